//! Files that targets control, on file systems that may not answer.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use nix::sys::statfs::{
    BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, F2FS_SUPER_MAGIC, FsType, ISOFS_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC,
    PROC_SUPER_MAGIC, REISERFS_SUPER_MAGIC, TMPFS_MAGIC, XFS_SUPER_MAGIC, fstatfs,
};

use crate::opener::Mount;
use crate::sys::root::{path_only, reopen};

/// Which file systems answer at once, whatever happens elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileSystem {
    /// On a disk or in memory.
    Local,
    /// Over others (overlay): local, mostly.
    Layered,
    /// A process or a server answers, or it is not known what does.
    Remote,
}

impl FileSystem {
    /// That of a file. This asks it.
    pub(super) fn of(file: &File) -> Self {
        const LOCAL: [FsType; 8] = [
            BTRFS_SUPER_MAGIC,
            EXT4_SUPER_MAGIC, // and ext2, ext3
            F2FS_SUPER_MAGIC,
            ISOFS_SUPER_MAGIC,
            PROC_SUPER_MAGIC,
            REISERFS_SUPER_MAGIC,
            TMPFS_MAGIC,
            XFS_SUPER_MAGIC,
        ];
        match fstatfs(file).map(|found| found.filesystem_type()) {
            Ok(found) if LOCAL.contains(&found) => Self::Local,
            Ok(OVERLAYFS_SUPER_MAGIC) => Self::Layered,
            _ => Self::Remote,
        }
    }

    /// What is kept of an open file. A FUSE server is told when a descriptor that can read is closed, also by the end of the
    /// process, which waits for it.
    pub(super) fn keep(self, file: File) -> io::Result<Arc<File>> {
        let kept = if self == Self::Local { file } else { path_only(&file)? };
        Ok(Arc::new(kept))
    }

    /// The file to be read of which this is kept.
    pub(super) fn readable(self, kept: Arc<File>) -> io::Result<Arc<File>> {
        if self == Self::Local { Ok(kept) } else { reopen(&*kept).map(Arc::new) }
    }
}

/// An open file that a target goes on writing.
#[derive(Debug)]
pub(crate) struct TargetFile {
    file: Arc<File>,
    system: FileSystem,
    device: u64,
    inode: u64,
}

impl TargetFile {
    /// Keeps an open file. This asks its file system.
    ///
    /// # Errors
    ///
    /// It has no state, or there are too many descriptors.
    pub(crate) fn new(file: File) -> io::Result<Self> {
        let (meta, system) = (file.metadata()?, FileSystem::of(&file));
        Ok(Self { file: system.keep(file)?, system, device: meta.dev(), inode: meta.ino() })
    }

    /// Whether reading it never waits for a server.
    pub(crate) fn is_local(&self) -> bool {
        self.system == FileSystem::Local
    }

    /// Whether it is the same file.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    /// What answers for it.
    pub(crate) fn mount(&self) -> Mount {
        Mount::Device { major: libc::major(self.device), minor: libc::minor(self.device) }
    }

    /// The file, to be read.
    ///
    /// # Errors
    ///
    /// It cannot be opened again.
    pub(crate) fn readable(&self) -> io::Result<Arc<File>> {
        self.system.readable(Arc::clone(&self.file))
    }
}
