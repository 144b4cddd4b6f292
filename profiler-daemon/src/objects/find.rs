//! Where the file behind a mapping is found, and which files a command will map.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use profiler_core::record::{FileId, Mapped};

use super::{DELETED, Missing};
use crate::roots::{RootView, Roots};
use crate::sys::file;
use crate::sys::root::{Link, open_regular};

/// How a file was found.
pub(super) enum Way {
    /// By its path; it can be found so again as long as it stays there.
    Path,
    /// Through its process alone.
    Process,
}

/// Opens the file behind a mapping, or says why not.
pub(crate) fn open_mapped(mapped: &Mapped, view: RootView, roots: &Roots) -> Result<File, Missing> {
    find_mapped(mapped, view, roots).map(|(file, _)| file)
}

/// The same, and how it was found.
pub(super) fn find_mapped(mapped: &Mapped, view: RootView, roots: &Roots) -> Result<(File, Way), Missing> {
    let found = match roots.open(view, Path::new(path_of(mapped)), Link::Follow) {
        Ok(file) if is_mapped_file(&file, mapped) => return Ok((file, Way::Path)),
        Ok(_) => Missing::Replaced,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Missing::Deleted,
        Err(error) => Missing::NotOpened(error.to_string()),
    };
    let through_process = open_through_mapping(mapped).or_else(|_| open_executed(mapped));
    through_process.map(|file| (file, Way::Process)).map_err(|_| found)
}

/// The process still holds what it mapped; with enough privilege it can be opened from there.
pub(super) fn open_through_mapping(mapped: &Mapped) -> io::Result<File> {
    let end = mapped.start.saturating_add(mapped.len);
    open_regular(
        Path::new(&format!("/proc/{}/map_files/{:x}-{end:x}", mapped.pid, mapped.start)),
        Link::Follow,
    )
}

/// The program that a process executes, if that is the file. The right to attach to the process is enough to open it.
fn open_executed(mapped: &Mapped) -> io::Result<File> {
    let file = open_regular(Path::new(&format!("/proc/{}/exe", mapped.pid)), Link::Follow)?;
    let is_it = mapped.file.inode != 0 && is_mapped_file(&file, mapped);
    if is_it { Ok(file) } else { Err(io::ErrorKind::NotFound.into()) }
}

/// The path that a mapped file has or had.
pub(super) fn path_of(mapped: &Mapped) -> &str {
    mapped.path.trim_end_matches(DELETED)
}

/// Device numbers are not compared: layered file systems report another one than the mapping does. An inode's number may
/// be given to the next file, its generation tells.
fn is_mapped_file(file: &File, mapped: &Mapped) -> bool {
    let FileId { inode, generation, .. } = mapped.file;
    let is_generation = || generation == 0 || file::generation(file).is_none_or(|found| found == generation);
    inode == 0 || file.metadata().is_ok_and(|meta| meta.ino() == inode) && is_generation()
}

pub(super) fn is_library(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().contains(".so"))
}

/// The program named in the first line of a script.
pub(super) fn script_interpreter(program: &Path) -> Option<PathBuf> {
    let mut start = [0; 256];
    let read = File::open(program).ok()?.read_at(&mut start, 0).ok()?;
    let line = start[..read].strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    let path = std::str::from_utf8(line).ok()?.split_ascii_whitespace().next()?;
    Some(PathBuf::from(path))
}

/// The mapping of a file as the kernel would report it, without its address.
pub(super) fn will_map(path: &Path) -> Option<Mapped> {
    let path = path.canonicalize().ok()?;
    let file = File::open(&path).ok()?;
    let meta = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let (major, minor) = (libc::major(meta.dev()), libc::minor(meta.dev()));
    let generation = file::generation(&file).unwrap_or(0);
    let file = FileId { major, minor, inode: meta.ino(), generation };
    let path = path.to_str()?.to_owned();
    Some(Mapped { pid: std::process::id(), start: 0, len: 0, file_offset: 0, file, path })
}
