//! Everything that the store changes on the disk, operation by operation: so that a test can stop after any of them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use nix::sys::statvfs::statvfs;

/// A change to the disk.
#[derive(Clone, Copy, Debug)]
pub enum Op<'a> {
    /// Makes a folder; one that is there is left alone.
    MakeFolder(&'a Path),
    /// Writes a new file. Its bytes are the system's then: a power failure may still take them.
    Write(&'a Path, &'a [u8]),
    /// Waits until the bytes of a file are on the disk.
    SyncFile(&'a Path),
    /// Gives a file another name, in place of a file that has it.
    Rename(&'a Path, &'a Path),
    /// Removes a file.
    Remove(&'a Path),
    /// Removes an empty folder.
    RemoveFolder(&'a Path),
    /// Waits until the names in a folder are on the disk.
    SyncFolder(&'a Path),
}

/// What carries out the changes.
pub trait Disk {
    /// Carries out one.
    ///
    /// # Errors
    ///
    /// If the disk refuses.
    fn apply(&mut self, op: Op<'_>) -> io::Result<()>;

    /// Room that is left for us on the disk of a folder (bytes); no end of it where the system does not say.
    fn free(&self, folder: &Path) -> u64 {
        statvfs(folder)
            .map_or(u64::MAX, |found| found.blocks_available().saturating_mul(found.fragment_size()))
    }
}

/// Makes a new file, never through a link that someone else has put there.
pub(super) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o640).open(path)
}

/// The real one.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn apply(&mut self, op: Op<'_>) -> io::Result<()> {
        match op {
            // Profiles tell what programs do: for the owner, and for a group if the folder above lets it in.
            Op::MakeFolder(path) => fs::DirBuilder::new().recursive(true).mode(0o750).create(path),
            Op::Write(path, bytes) => create(path)?.write_all(bytes),
            Op::SyncFile(path) | Op::SyncFolder(path) => File::open(path)?.sync_all(),
            Op::Rename(from, to) => fs::rename(from, to),
            Op::Remove(path) => fs::remove_file(path),
            Op::RemoveFolder(path) => fs::remove_dir(path),
        }
    }
}
