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

use super::OnceCost;
use super::target_file::FileSystem;
use crate::opener::{Mount, Opener, Wait};
use crate::roots::{RootView, Roots};
use crate::sys::file::known_state;
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

    /// The same as far as the kernel knows without asking a server.
    fn is_known_of(&self, file: &File) -> bool {
        known_state(file).is_ok_and(|known| {
            let found = (known.device, known.inode, known.len, known.modified);
            found == (self.device, self.inode, self.len, self.modified)
        })
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
    /// Open; where its file system is not local, a descriptor that leads to it alone.
    file: Option<Arc<File>>,
    system: FileSystem,
    version: Version,
    places: Vec<FilePlace>,
    used: u64,
    is_lost: bool,
}

/// The files of all objects. Clones are the same.
#[derive(Clone)]
pub(crate) struct OpenFiles {
    pool: Arc<Mutex<Pool>>,
    opener: Opener,
}

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

/// Finding a file takes none of the locks here: its file system may not answer.
impl OpenFiles {
    /// At most so many are open at once. Those that are being read when they are closed count beside them: one for each thread
    /// that names an object.
    pub(super) fn new(roots: Roots, most: usize, opener: Opener) -> Self {
        let pool = Pool { roots, most, entries: FxHashMap::default(), open: 0, next: 0, uses: 0, lost: 0 };
        Self { pool: Arc::new(Mutex::new(pool)), opener }
    }

    /// What asks file systems that may not answer.
    pub(super) fn opener(&self) -> &Opener {
        &self.opener
    }

    /// Holds a file that is open now.
    pub(super) fn hold(&self, file: File, version: Version) -> HeldFile {
        self.make_room();
        let system = FileSystem::of(&file);
        let file = system.keep(file).ok();
        let mut pool = self.pool();
        let number = pool.next;
        pool.next += 1;
        let used = pool.use_now();
        pool.open += usize::from(file.is_some());
        let entry = PooledFile { file, system, version, places: Vec::new(), used, is_lost: false };
        pool.entries.insert(number, entry);
        HeldFile(Arc::new(Handle { files: self.clone(), number }))
    }

    /// Files that had to be closed, and were not there any more when they were asked for again.
    pub(crate) fn lost(&self) -> u64 {
        self.pool().lost
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file, which is opened again if it had to be closed.
    fn get(&self, number: u64) -> io::Result<Arc<File>> {
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let mut pool = self.pool();
        let used = pool.use_now();
        let entry = pool.entries.get_mut(&number).ok_or_else(gone)?;
        entry.used = used;
        let (version, places) = (entry.version, entry.places.clone());
        if let Some(open) = entry.file.clone() {
            let system = entry.system;
            drop(pool);
            return system.readable(open);
        }
        let roots = pool.roots.clone();
        drop(pool);
        let Some(found) = find_again(&places, &version, &roots) else {
            let mut pool = self.pool();
            let is_first = |entry: &mut PooledFile| !std::mem::replace(&mut entry.is_lost, true);
            let is_lost = pool.entries.get_mut(&number).is_some_and(is_first);
            pool.lost += u64::from(is_lost);
            return Err(gone());
        };
        self.make_room();
        let system = FileSystem::of(&found);
        let file = system.keep(found)?;
        let mut pool = self.pool();
        if let Some(entry) = pool.entries.get_mut(&number) {
            entry.system = system;
            let is_new = entry.file.replace(Arc::clone(&file)).is_none(); // unless another thread was quicker
            pool.open += usize::from(is_new);
        }
        drop(pool);
        system.readable(file)
    }

    fn candidates(&self) -> Option<(Vec<Candidate>, Roots)> {
        self.pool().candidates() // the lock is not held where they are tried
    }

    /// Closes files until there is room for one more.
    fn make_room(&self) {
        while let Some((candidates, roots)) = self.candidates() {
            // Those of servers are not tried: one that does not answer would hold up another's.
            let can_return = |oldest: &Candidate| {
                oldest.system != FileSystem::Remote
                    && find_again(&oldest.places, &oldest.version, &roots).is_some()
            };
            let at = candidates.iter().position(can_return).unwrap_or(0);
            let mut pool = self.pool();
            let closed = pool.entries.get_mut(&candidates[at].number).and_then(|entry| entry.file.take());
            pool.open -= usize::from(closed.is_some());
            drop(pool);
            drop(closed); // outside of the lock
        }
    }
}

/// A file that may be closed.
struct Candidate {
    number: u64,
    system: FileSystem,
    places: Vec<FilePlace>,
    version: Version,
}

impl Pool {
    fn use_now(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }

    /// If there is no room for one more, the files that were not read for the longest time, and where they can be found.
    fn candidates(&self) -> Option<(Vec<Candidate>, Roots)> {
        if self.open < self.most {
            return None;
        }
        let open = self.entries.iter().filter(|(_, entry)| entry.file.is_some());
        let mut by_use: Vec<(u64, u64)> = open.map(|(&number, entry)| (entry.used, number)).collect();
        by_use.sort_unstable();
        let candidate = |&(_, number): &(u64, u64)| {
            let PooledFile { system, version, places, .. } = self.entries.get(&number)?;
            Some(Candidate { number, system: *system, places: places.clone(), version: *version })
        };
        let candidates: Vec<Candidate> = by_use.iter().take(CANDIDATES).filter_map(candidate).collect();
        (!candidates.is_empty()).then(|| (candidates, self.roots.clone()))
    }
}

fn find_again(places: &[FilePlace], version: &Version, roots: &Roots) -> Option<File> {
    let open = |place: &FilePlace| roots.open(place.view, &place.path, Link::Follow).ok();
    places.iter().filter_map(open).find(|file| version.recognises(file))
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

    /// The open file, for a thread that names.
    ///
    /// # Errors
    ///
    /// It had to be closed, and is not there any more; or its file system does not answer.
    pub(crate) fn get(&self) -> io::Result<Arc<File>> {
        self.with(Wait::Naming, |file| Ok(Arc::clone(file)))
    }

    /// Does something with the open file: at once if its file system answers at once, and otherwise where nothing is held up by
    /// it.
    fn with<T: Send + 'static>(
        &self,
        wait: Wait,
        work: impl FnOnce(&Arc<File>) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        if let Some(file) = self.open_local() {
            return work(&file);
        }
        let (files, held) = (&self.0.files, self.clone());
        let done = files.opener.call(&self.mount(), wait, move || {
            let file = held.0.files.get(held.0.number)?;
            work(&file)
        });
        done.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// The file, if it is open and local.
    fn open_local(&self) -> Option<Arc<File>> {
        let mut pool = self.0.files.pool();
        let used = pool.use_now();
        let entry = pool.entries.get_mut(&self.0.number).filter(|entry| entry.system == FileSystem::Local)?;
        entry.used = used;
        entry.file.clone()
    }

    /// What answers for it.
    pub(super) fn mount(&self) -> Mount {
        let device = self.version().map_or(0, |version| version.device);
        Mount::Device { major: libc::major(device), minor: libc::minor(device) }
    }

    /// Whether the file can be had, and holds what it held when it was opened first. For a thread that names.
    pub(super) fn is_unchanged(&self) -> io::Result<bool> {
        let Some(version) = self.version() else { return Ok(false) };
        self.with(Wait::Naming, move |file| Ok(version.has_bytes_of(file)))
    }

    /// Whether it holds what it did and can be read. One that had to be closed stays so: this is asked for each mapping, on the thread
    /// that samples. One whose file system does not answer counts as it was.
    pub(super) fn is_as_it_was(&self) -> bool {
        let pool = self.0.files.pool();
        let Some(entry) = pool.entries.get(&self.0.number) else { return false };
        let (version, open) = (entry.version, entry.file.clone());
        if let Some(file) = open {
            drop(pool);
            return self.0.files.opener.is_stalled(&self.mount()) || version.is_known_of(&file);
        }
        let (places, roots) = (entry.places.clone(), pool.roots.clone());
        drop(pool);
        let find = move || find_again(&places, &version, &roots).is_some();
        self.0.files.opener.call(&self.mount(), Wait::Sampling, find).unwrap_or(true)
    }

    /// What it was when it was opened first.
    pub(super) fn version(&self) -> Option<Version> {
        self.0.files.pool().entries.get(&self.0.number).map(|entry| entry.version)
    }

    /// A range of its bytes, for the thread that samples.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::TimedOut`] if its file system does not answer; it may later.
    pub(super) fn read_to_sample(&self, start: u64, len: usize, once: OnceCost) -> io::Result<Vec<u8>> {
        self.with(Wait::Sampling, move |file| {
            once.of(|| {
                let mut bytes = vec![0; len];
                file.read_exact_at(&mut bytes, start)?;
                Ok(bytes)
            })
        })
    }
}

impl ReadAt for HeldFile {
    fn len(&self) -> io::Result<u64> {
        self.with(Wait::Naming, |file| ReadAt::len(&**file))
    }

    fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        self.with(Wait::Naming, move |file| ReadAt::read_at(&**file, offset, len))
    }
}

#[cfg(test)]
mod tests;
