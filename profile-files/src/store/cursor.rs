//! Where an export is in the store, as a file in the store's folder.
//!
//! The first line is the whole position; below it stands a line for each window that was sent, refused or left out since, and for each
//! part of a window that is sent in parts. Each line begins with its checksum: what a power failure cut short is no line. The file is replaced as a whole now and then.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::disk::{Disk, Op, RealDisk};
use super::outbox::OutboxFile;
use super::parts::PartsLeft;
use super::position::Position;
use super::time_range::TimeRanges;
use super::{listing, place};

/// The folder of cursors, in a store's.
const FOLDER: &str = "exports";
/// Lines are added up to this size (bytes), and up to that of the whole position.
const MOST_ADDED: u64 = 64 << 10;

/// The cursor of an export.
#[derive(Debug)]
pub struct Cursor {
    path: PathBuf,
    /// The first line, and what was added below it (bytes).
    whole_bytes: u64,
    added_bytes: u64,
}

/// The first line.
#[derive(Deserialize)]
struct Whole {
    version: u32,
    #[serde(flatten)]
    position: Position,
}

#[derive(Serialize)]
struct WholeRef<'a> {
    version: u32,
    #[serde(flatten)]
    position: &'a Position,
}

/// A line below it.
#[derive(Serialize, Deserialize)]
struct Settled {
    target: String,
    #[serde(flatten)]
    time_ranges: TimeRanges,
}

/// Another line below it: what is left of a file.
#[derive(Serialize, Deserialize)]
struct Begun {
    file: PathBuf,
    left: PartsLeft,
}

impl Cursor {
    const VERSION: u32 = 1;

    /// The cursor of an export, whether there is one or not.
    pub fn of(store: &Path, name: &str) -> Self {
        Self { path: store.join(FOLDER).join(name), whole_bytes: 0, added_bytes: 0 }
    }

    /// What it says; nothing if there is none, or its first line is damaged.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub(super) fn read(&self) -> io::Result<Option<Position>> {
        let bytes = match place::read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut lines = bytes.split(|byte| *byte == b'\n');
        let whole = lines.next().and_then(parse::<Whole>).filter(|whole| whole.version == Self::VERSION);
        let Some(Whole { mut position, .. }) = whole else { return Ok(None) };
        for line in lines {
            if let Some(Settled { target, time_ranges }) = parse(line) {
                position.settle(&target, &time_ranges);
            } else if let Some(Begun { file, left }) = parse(line) {
                position.leave(&file, left);
            }
        }
        Ok(Some(position))
    }

    /// Writes all of it anew.
    ///
    /// # Errors
    ///
    /// If the disk refuses; what was there before is there still.
    pub fn write(&mut self, position: &Position) -> io::Result<()> {
        let line = line(&WholeRef { version: Self::VERSION, position })?;
        let (Some(folder), Some(name)) = (self.path.parent(), self.path.file_name()) else {
            return Err(io::Error::other("it has no folder"));
        };
        let aside = folder.join(format!(".sweetspot-{}-{}.tmp", std::process::id(), name.to_string_lossy()));
        let mut disk = RealDisk;
        if !place::is_folder(folder)? {
            // Not the store's, if that is gone: its owner makes it anew, and locks it.
            let mut builder = fs::DirBuilder::new();
            std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o750).create(folder)?;
        }
        let _ = disk.apply(Op::Remove(&aside)); // left by an attempt that failed
        let written = disk.apply(Op::Write(&aside, &line)).and_then(|()| disk.apply(Op::SyncFile(&aside)));
        if let Err(cause) = written.and_then(|()| disk.apply(Op::Rename(&aside, &self.path))) {
            let _ = disk.apply(Op::Remove(&aside)); // where that fails too, the next attempt does it
            return Err(cause);
        }
        (self.whole_bytes, self.added_bytes) = (line.len() as u64, 0);
        disk.apply(Op::SyncFolder(folder))
    }

    /// Adds what was sent, refused or left out.
    ///
    /// # Errors
    ///
    /// If the disk refuses, or there is no cursor.
    pub fn add(&mut self, file_to_send: &OutboxFile) -> io::Result<()> {
        let (target, time_ranges) = (file_to_send.target.clone(), file_to_send.time_ranges.clone());
        self.append(&Settled { target, time_ranges })
    }

    /// Adds what is left of a file after a part of it was acknowledged.
    ///
    /// # Errors
    ///
    /// As [`Self::add`].
    pub fn leave(&mut self, file: &Path, left: &PartsLeft) -> io::Result<()> {
        self.append(&Begun { file: file.to_owned(), left: left.clone() })
    }

    fn append(&mut self, value: &impl Serialize) -> io::Result<()> {
        // The line before may have been cut short.
        let line = [b"\n".to_vec(), line(value)?].concat();
        let flags = (OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW).bits();
        let mut file = OpenOptions::new().append(true).custom_flags(flags).open(&self.path)?;
        self.added_bytes += line.len() as u64;
        file.write_all(&line)?;
        file.sync_data()
    }

    /// Whether it should be written anew.
    pub fn is_long(&self) -> bool {
        self.added_bytes > self.whole_bytes.max(MOST_ADDED)
    }
}

/// Removes the cursors of all exports but these, and what was left half written. Nobody may be writing a cursor meanwhile.
pub(super) fn keep_only(store: &Path, names: &BTreeSet<&str>) {
    let folder = store.join(FOLDER);
    if !place::is_folder(&folder).unwrap_or(false) {
        return;
    }
    let found = listing::names(&folder).unwrap_or_default();
    for name in found.iter().filter(|name| !names.contains(name.as_str())) {
        if let Err(error) = fs::remove_file(folder.join(name)) {
            tracing::warn!("{name} cannot be removed from {} ({error})", folder.display());
        }
    }
}

/// A line without its end.
fn line(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let json = serde_json::to_string(value)?;
    Ok(format!("{:08x} {json}", crc32fast::hash(json.as_bytes())).into_bytes())
}

fn parse<T: DeserializeOwned>(line: &[u8]) -> Option<T> {
    let (crc, json) = line.split_at_checked(8)?;
    let json = json.strip_prefix(b" ")?;
    let crc = u32::from_str_radix(str::from_utf8(crc).ok()?, 16).ok()?;
    (crc32fast::hash(json) == crc).then(|| serde_json::from_slice(json).ok())?
}
