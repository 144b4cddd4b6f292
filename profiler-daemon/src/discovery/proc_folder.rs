//! The files of `/proc` that discovery reads: each is bounded, and counted.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::DirEntryExt;
use std::path::PathBuf;

use super::stat::{Stat, effective_user};
use crate::cgroup::named_in;

/// Limit for `stat` and `status` (bytes): they have some hundred, and the name in them at most 64.
const MAX_LINE: u64 = 16 << 10;
/// More of a command line is not matched: its words may have megabytes.
const MAX_COMMAND: u64 = 32 << 10;
/// More of a `cgroup` is not read: a path has at most 4 KiB, and there is one for each of a dozen hierarchies.
const MAX_CGROUP: u64 = 64 << 10;

/// A process as the folder lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ListedProcess {
    pub(super) pid: u32,
    /// Inode of its `/proc` folder. Every process gets another one, and now and then the same process gets a new one.
    pub(super) inode: u64,
}

/// Why a process could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcReadError {
    /// It has ended.
    Gone,
    /// It cannot be read now: no permission, or no descriptor is left.
    Failed,
}

/// The control group of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Group {
    /// Its path in the hierarchy of version 2.
    Path(String),
    /// This host has no such hierarchy, or not for this process.
    OldOnly,
    /// It is outside of the visible part of the hierarchy, or cannot be read.
    Unknown,
}

/// A folder laid out as `/proc` is.
#[derive(Debug)]
pub(super) struct ProcFolder {
    root: PathBuf,
    /// Path and text of the last file, kept to reuse their memory.
    path: String,
    text: Vec<u8>,
    reads: u64,
}

impl ProcFolder {
    /// The folder at this path; `/proc` but for tests.
    pub(super) fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), path: String::new(), text: Vec::new(), reads: 0 }
    }

    /// Files and links read so far, lists of processes left out.
    #[cfg(test)]
    pub(super) fn reads(&self) -> u64 {
        self.reads
    }

    /// Lists all visible processes.
    ///
    /// # Errors
    ///
    /// If they cannot be listed now.
    pub(super) fn list(&self, listed: &mut Vec<ListedProcess>) -> io::Result<()> {
        listed.clear();
        for entry in fs::read_dir(&self.root)? {
            let entry = entry?;
            if let Some(pid) = entry.file_name().to_str().and_then(number) {
                listed.push(ListedProcess { pid, inode: entry.ino() });
            }
        }
        Ok(())
    }

    /// Its `stat`.
    pub(super) fn stat(&mut self, pid: u32) -> Result<Stat, ProcReadError> {
        self.read(pid, "stat", MAX_LINE)?;
        Stat::parse(&self.text).ok_or(ProcReadError::Failed)
    }

    /// Its command line, with blanks between the words; empty if it has none.
    pub(super) fn command(&mut self, pid: u32) -> Vec<u8> {
        if self.read(pid, "cmdline", MAX_COMMAND).is_err() {
            return Vec::new();
        }
        let end = self.text.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        self.text[..end].iter().map(|byte| if *byte == 0 { b' ' } else { *byte }).collect()
    }

    /// Path of the file that it runs, as the process sees it, without the kernel's mark of a removed file.
    pub(super) fn executable(&mut self, pid: u32) -> Option<Box<[u8]>> {
        self.name(pid, "exe");
        let link = fs::read_link(&self.path).ok()?;
        let mut path = OsString::from(link).into_vec();
        if path.ends_with(b" (deleted)") {
            path.truncate(path.len() - b" (deleted)".len());
        }
        Some(path.into_boxed_slice())
    }

    /// Its effective user.
    pub(super) fn user(&mut self, pid: u32) -> Option<u32> {
        self.read(pid, "status", MAX_LINE).ok()?;
        effective_user(&self.text)
    }

    /// Its control group.
    pub(super) fn group(&mut self, pid: u32) -> Group {
        if self.read(pid, "cgroup", MAX_CGROUP).is_err() || self.text.is_empty() {
            return Group::Unknown;
        }
        let text = String::from_utf8_lossy(&self.text);
        match named_in(&text) {
            Some(path) => Group::Path(path.to_owned()),
            None if text.lines().any(|line| line.starts_with("0::")) => Group::Unknown,
            None => Group::OldOnly,
        }
    }

    fn name(&mut self, pid: u32, file: &str) {
        self.reads += 1;
        self.path.clear();
        let _ = write!(self.path, "{}/{pid}/{file}", self.root.display()); // into memory
    }

    fn read(&mut self, pid: u32, file: &str, most: u64) -> Result<(), ProcReadError> {
        self.name(pid, file);
        self.text.clear();
        let read = File::open(&self.path).and_then(|file| file.take(most).read_to_end(&mut self.text));
        match read {
            Ok(_) => Ok(()),
            Err(error) if is_gone(&error) => Err(ProcReadError::Gone),
            Err(_) => Err(ProcReadError::Failed),
        }
    }
}

/// If a process ends after its file was opened, reading fails with another error than if it was gone before.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

/// A process id as the kernel writes it.
fn number(name: &str) -> Option<u32> {
    let digits = name.bytes().all(|byte| byte.is_ascii_digit()) && !name.starts_with('0');
    if digits { name.parse().ok() } else { None }
}
