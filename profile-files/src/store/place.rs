//! The folder of a store as its owner holds it, and the files in it: regular ones alone, never what a link leads to.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::sys::stat::{Mode, SFlag, fstat};

use super::StoreError;
use super::disk::{Disk, Op};

/// The file that the owner of a store holds locked.
const LOCK: &str = ".lock";

/// Opens a file of a store for reading. Anything else is not opened at all: a pipe would keep us waiting, and a device may start
/// to work.
///
/// # Errors
///
/// If it cannot be read, or is a link, a pipe, a device or anything else but a file.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    let found = nix::fcntl::open(path, flags, Mode::empty())?;
    if fstat(&found)?.st_mode & SFlag::S_IFMT.bits() != SFlag::S_IFREG.bits() {
        return Err(io::Error::other("not a regular file"));
    }
    let flags = OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let found = format!("/proc/self/fd/{}", found.as_raw_fd());
    File::options().read(true).custom_flags(flags.bits()).open(found)
}

/// Reads all of such a file.
///
/// # Errors
///
/// The same.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Whether there is a folder of this name; an error if it is a link.
pub(super) fn is_folder(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => Err(io::Error::other("a link in place of a folder")),
        Ok(found) => Ok(found.is_dir()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Device and inode.
type FolderIdentity = (u64, u64);

/// Within this a process that was started runs its own program.
const TO_START: Duration = Duration::from_millis(300);
const AGAIN_AFTER: Duration = Duration::from_millis(10);

/// A folder and the right to change what is in it.
#[derive(Debug)]
pub(super) struct HeldFolder {
    folder: FolderIdentity,
    lock: File,
}

impl HeldFolder {
    /// Makes the folder if it is missing, and locks it.
    ///
    /// # Errors
    ///
    /// If another process holds it, or it cannot be written to.
    pub(super) fn take(folder: &Path, disk: &mut impl Disk) -> Result<Self, StoreError> {
        let unwritable = |cause| StoreError::Unwritable { path: folder.to_owned(), cause };
        disk.apply(Op::MakeFolder(folder)).map_err(unwritable)?;
        let path = folder.join(LOCK);
        // A pipe would be waited for, and a link may lead anywhere.
        let flags = (OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW).bits();
        let mut made = File::options();
        made.write(true).create(true).truncate(false).custom_flags(flags);
        // Held for reading, so that the disk can be remounted read-only under us.
        let lock = made.open(&path).and_then(|_| open(&path)).map_err(unwritable)?;
        match lock_soon(&lock) {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(StoreError::Busy(folder.to_owned())),
            Err(fs::TryLockError::Error(cause)) => return Err(unwritable(cause)),
        }
        let found = fs::metadata(folder).map_err(unwritable)?;
        Ok(Self { folder: identity(&found), lock })
    }

    /// Whether the folder of this name and its lock are those that are held. What cannot be looked at may be.
    pub(super) fn is_at(&self, folder: &Path) -> bool {
        let is_same = |found: io::Result<fs::Metadata>, held: FolderIdentity| match found {
            Ok(found) => identity(&found) == held,
            Err(error) => !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
        };
        let lock = self.lock.metadata().map(|found| identity(&found)).unwrap_or_default();
        is_same(fs::metadata(folder), self.folder) && is_same(fs::symlink_metadata(folder.join(LOCK)), lock)
    }
}

/// Locks a file. A process that was just started has all that its parent has, also a lock that the parent gave up, until it runs its own
/// program: that is waited for.
fn lock_soon(file: &File) -> Result<(), fs::TryLockError> {
    let until = Instant::now() + TO_START;
    loop {
        match file.try_lock() {
            Err(fs::TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(AGAIN_AFTER),
            done => return done,
        }
    }
}

fn identity(found: &fs::Metadata) -> FolderIdentity {
    (found.dev(), found.ino())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// To open a pipe for reading would wait for a writer.
    #[test]
    fn only_regular_files_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), "kept").unwrap();
        symlink("file", at("link")).unwrap();
        symlink("loop", at("loop")).unwrap();
        nix::unistd::mkfifo(&at("pipe"), Mode::S_IRWXU).unwrap();
        drop(std::os::unix::net::UnixListener::bind(at("socket")).unwrap());
        assert_eq!(read(&at("file")).unwrap(), b"kept");
        for path in [at("link"), at("loop"), at("pipe"), at("socket"), at(""), "/dev/zero".into()] {
            assert!(open(&path).is_err(), "{}", path.display());
        }
        assert_eq!(open(&at("missing")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
