//! Files that are held open, a bounded number of them.
//!
//! The file that was not read for the longest time is closed first, if it can be found again by its path. When it is asked
//! for once more, it is opened again and recognised; one that is not there any more is lost, which is counted.

use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::statfs::{FUSE_SUPER_MAGIC, fstatfs};
use rustc_hash::FxHashMap;
use symbolizer::ReadAt;

use crate::roots::{RootView, Roots};
use crate::sys::root::Link;

/// Of so many files that were not read for the longest time, one is closed that can be opened again.
const CANDIDATES: usize = 8;
/// Places where an object was found that are remembered.
const MOST_PLACES: usize = 4;

/// What tells a file from others, and from what it becomes when somebody writes into it. A build id does not: whoever makes
/// a file can give it that of another, and would lend his names to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Version {
    device: u64,
    inode: u64,
    pub(super) len: u64,
    /// When it was written into last, as far as its owner does not say otherwise.
    modified: (i64, i64),
    /// When anything of it was changed, which tells one that has the inode of another and its times too.
    changed: (i64, i64),
}

/// Code that is the same for all who have mapped it: of one file, and separate debug files are looked for at one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Code {
    pub(super) version: Version,
    pub(super) view: RootView,
}

impl Version {
    pub(super) fn new(meta: &Metadata) -> Self {
        let modified = (meta.mtime(), meta.mtime_nsec());
        let changed = (meta.ctime(), meta.ctime_nsec());
        Self { device: meta.dev(), inode: meta.ino(), len: meta.len(), modified, changed }
    }

    /// Whether `file`, found where this one was, is the same, and nobody wrote into it.
    fn recognises(&self, file: &File) -> bool {
        file.metadata().is_ok_and(|meta| Self::new(&meta) == *self)
    }

    /// The same of one that may have lost its name since then, which changes it too.
    fn has_bytes_of(&self, file: &File) -> bool {
        let as_before = |meta: Metadata| Self { changed: self.changed, ..Self::new(&meta) } == *self;
        file.metadata().is_ok_and(as_before)
    }
}

/// As text that a later process compares with that of the file it finds.
impl fmt::Display for Version {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, inode, len, modified, changed } = self;
        write!(
            out,
            "{device:x}:{inode}:{len}:{}.{:09}:{}.{:09}",
            modified.0, modified.1, changed.0, changed.1
        )
    }
}

/// Whether a process of anybody's answers for this file: it can give it the numbers and times of any other.
pub(super) fn is_made_up(file: &File) -> bool {
    fstatfs(file).is_ok_and(|found| found.filesystem_type() == FUSE_SUPER_MAGIC)
}

/// Where a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FilePlace {
    view: RootView,
    path: PathBuf,
}

struct PooledFile {
    file: Option<Arc<File>>,
    version: Version,
    places: Vec<FilePlace>,
    used: u64,
    is_lost: bool,
}

/// The files of all objects. Clones are the same.
#[derive(Clone)]
pub(crate) struct OpenFiles(Arc<Mutex<Pool>>);

struct Pool {
    roots: Roots,
    most: usize,
    entries: FxHashMap<u64, PooledFile>,
    /// How many of them are.
    open: usize,
    next: u64,
    uses: u64,
    lost: u64,
}

/// A file that is open or can be opened again, until the last clone of this goes.
#[derive(Clone)]
pub(crate) struct HeldFile(Arc<Handle>);

struct Handle {
    files: OpenFiles,
    number: u64,
}

impl Drop for Handle {
    fn drop(&mut self) {
        let mut pool = self.files.pool();
        let entry = pool.entries.remove(&self.number);
        pool.open -= usize::from(entry.as_ref().is_some_and(|entry| entry.file.is_some()));
        drop(pool);
        drop(entry); // closed outside of the lock
    }
}

impl OpenFiles {
    /// At most so many are open at once. Those that are being read when they are closed count beside them: one for each thread
    /// that names an object.
    pub(super) fn new(roots: Roots, most: usize) -> Self {
        let pool = Pool { roots, most, entries: FxHashMap::default(), open: 0, next: 0, uses: 0, lost: 0 };
        Self(Arc::new(Mutex::new(pool)))
    }

    /// Holds a file that is open now.
    pub(super) fn hold(&self, file: File, version: Version) -> HeldFile {
        let mut pool = self.pool();
        pool.make_room();
        let number = pool.next;
        pool.next += 1;
        let used = pool.use_now();
        let file = Some(Arc::new(file));
        pool.open += 1;
        pool.entries.insert(number, PooledFile { file, version, places: Vec::new(), used, is_lost: false });
        HeldFile(Arc::new(Handle { files: self.clone(), number }))
    }

    /// Files that had to be closed, and were not there any more when they were asked for again.
    pub(crate) fn lost(&self) -> u64 {
        self.pool().lost
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    fn use_now(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }

    fn get(&mut self, number: u64) -> io::Result<Arc<File>> {
        let used = self.use_now();
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let entry = self.entries.get_mut(&number).ok_or_else(gone)?;
        entry.used = used;
        if let Some(file) = &entry.file {
            return Ok(Arc::clone(file));
        }
        let found = entry.find_again(&self.roots);
        let Some(file) = found else {
            self.lost += u64::from(!std::mem::replace(&mut entry.is_lost, true));
            return Err(gone());
        };
        let file = Arc::new(file);
        self.make_room();
        if let Some(entry) = self.entries.get_mut(&number) {
            entry.file = Some(Arc::clone(&file));
            self.open += 1;
        }
        Ok(file)
    }

    /// Closes files until there is room for one more.
    fn make_room(&mut self) {
        if self.open < self.most {
            return;
        }
        let open = self.entries.iter().filter(|(_, entry)| entry.file.is_some());
        let mut by_use: Vec<(u64, u64)> = open.map(|(&number, entry)| (entry.used, number)).collect();
        by_use.sort_unstable();
        let mut excess = by_use.len() + 1 - self.most;
        while excess > 0 && !by_use.is_empty() {
            let can_return =
                |&(_, number): &(u64, u64)| self.entries[&number].find_again(&self.roots).is_some();
            let at = by_use.iter().take(CANDIDATES).position(can_return).unwrap_or(0);
            let (_, number) = by_use.remove(at);
            if let Some(entry) = self.entries.get_mut(&number) {
                entry.file = None;
                self.open -= 1;
            }
            excess -= 1;
        }
    }
}

impl PooledFile {
    fn find_again(&self, roots: &Roots) -> Option<File> {
        let open = |place: &FilePlace| roots.open(place.view, &place.path, Link::Follow).ok();
        self.places.iter().filter_map(open).find(|file| self.version.recognises(file))
    }
}

impl HeldFile {
    /// Notes another place where the file can be found.
    pub(super) fn is_at(&self, view: RootView, path: &Path) {
        let mut pool = self.0.files.pool();
        let Some(entry) = pool.entries.get_mut(&self.0.number) else { return };
        let place = FilePlace { view, path: path.to_owned() };
        if entry.places.len() < MOST_PLACES && !entry.places.contains(&place) {
            entry.places.push(place);
        }
    }

    /// The open file.
    ///
    /// # Errors
    ///
    /// It had to be closed, and is not there any more.
    pub(crate) fn get(&self) -> io::Result<Arc<File>> {
        self.0.files.pool().get(self.0.number)
    }

    /// Whether the file holds what it held when it was opened first.
    pub(super) fn is_unchanged(&self, file: &File) -> bool {
        self.version().is_some_and(|version| version.has_bytes_of(file))
    }

    /// Whether it holds what it did and can be read. One that had to be closed stays so: this is asked for each mapping.
    pub(super) fn is_as_it_was(&self) -> bool {
        let pool = self.0.files.pool();
        let Some(entry) = pool.entries.get(&self.0.number) else { return false };
        match &entry.file {
            Some(file) => entry.version.has_bytes_of(file),
            None => entry.find_again(&pool.roots).is_some(),
        }
    }

    /// What it was when it was opened first.
    pub(super) fn version(&self) -> Option<Version> {
        self.0.files.pool().entries.get(&self.0.number).map(|entry| entry.version)
    }

    /// A range of its bytes.
    pub(super) fn read(&self, start: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.get()?.read_exact_at(&mut bytes, start)?;
        Ok(bytes)
    }
}

impl ReadAt for HeldFile {
    fn len(&self) -> io::Result<u64> {
        ReadAt::len(&*self.get()?)
    }

    fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        ReadAt::read_at(&*self.get()?, offset, len)
    }
}

#[cfg(test)]
mod tests;
