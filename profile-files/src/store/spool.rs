//! Windows that wait to be named, on the disk: a process that is killed loses none of them.
//!
//! A window is written without names as soon as it has ended, under a hidden name, and renamed; its file goes once the named one
//! is in place. What is found here at a start is named then, unless the store has its time already: it was killed between the
//! two. Readers of a store do not look here. Nothing is synced: only a power failure can take what the system has. Files are
//! used again, since a file system may take longer to make one than to write it.
//!
//! Such a file is a file of the store in every respect, except that its modules have the identity of their file
//! (device, inode, length, times) in place of a build id: only the same file is read for names later. The two
//! writes need not be atomic, because a named file states which time it covers.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::fcntl::OFlag;
use profiler_core::profile::SymbolizedProfile;

use super::name::{ENDING, Name};
use super::stamp::Stamp;
use super::time_range::{TimeRange, TimeRanges};
use super::{Damage, Disk, Store, TargetWindow, listing, place, seal};
use crate::store::disk::create;
use crate::store::name::Level;

/// The folder of windows without names, in a store's.
pub(super) const UNNAMED: &str = "unnamed";

/// The folder of windows that wait. Clones are the same.
#[derive(Clone, Debug)]
pub struct Spool(Arc<SharedSpool>);

#[derive(Debug)]
struct SharedSpool {
    folder: PathBuf,
    /// Room that all files may take (bytes).
    most_bytes: AtomicU64,
    written: AtomicU64,
    /// Files and the room they take (bytes).
    files: Mutex<BTreeMap<String, u64>>,
    /// Empty files for the next windows: no more than waited at once.
    spare: Mutex<Vec<PathBuf>>,
}

/// Why a file of the spool was not read.
#[derive(Debug, thiserror::Error)]
pub enum SpoolReadError {
    /// The disk does not give it, or not now.
    #[error("it cannot be read ({0})")]
    Refused(#[from] io::Error),
    /// It was changed.
    #[error("it is damaged: {0}")]
    Damaged(#[from] Damage),
}

impl Spool {
    /// The spool of a store that is locked, with room for so many bytes. Removes what a process began to write and did not
    /// finish.
    pub fn open(store: &Path, most_bytes: u64) -> Self {
        let folder = store.join(UNNAMED);
        let mut files = BTreeMap::new();
        // A link is not followed; what cannot be read is not there.
        let is_folder = place::is_folder(&folder).unwrap_or(false);
        let names = if is_folder { listing::names(&folder).unwrap_or_default() } else { Vec::new() };
        for name in names {
            let path = folder.join(&name);
            if listing::is_unfinished(&name) {
                let _ = fs::remove_file(path); // the next start tries again
            } else if name.ends_with(ENDING)
                && let Ok(found) = fs::symlink_metadata(path)
                && found.is_file()
            {
                files.insert(name, listing::room(found.len()));
            }
        }
        let (most_bytes, files) = (AtomicU64::new(most_bytes), Mutex::new(files));
        let (written, spare) = (AtomicU64::new(0), Mutex::default());
        Self(Arc::new(SharedSpool { folder, most_bytes, written, files, spare }))
    }

    /// It may take so much room from now on (bytes).
    pub fn rebound(&self, most_bytes: u64) {
        self.0.most_bytes.store(most_bytes, Ordering::Relaxed);
    }

    /// The files in it, the oldest first.
    pub fn names(&self) -> Vec<String> {
        self.files().keys().cloned().collect()
    }

    /// Files, and the room they take (bytes).
    pub fn size(&self) -> (usize, u64) {
        let files = self.files();
        (files.len(), files.values().sum())
    }

    /// Writes a window without names; what its file is called.
    ///
    /// # Errors
    ///
    /// If there is no room for it, or the disk refuses.
    pub fn write(&self, window: TargetWindow, profile: &SymbolizedProfile) -> io::Result<String> {
        let time_ranges = TimeRanges::new(vec![window.time_range()]);
        let stamp = Stamp::new(Level::Window, window.target, window.labels, time_ranges);
        let sealed = seal::seal_for_now(&stamp, profile)?;
        let size = listing::room(sealed.bytes.len() as u64);
        if self.size().1.saturating_add(size) > self.0.most_bytes.load(Ordering::Relaxed) {
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, "limits.queue leaves no room for it"));
        }
        let folder = &self.0.folder;
        if !place::is_folder(folder)? {
            // Not the store's, if that is gone: its owner makes it anew, and locks it.
            let mut builder = fs::DirBuilder::new();
            std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o750).create(folder)?;
        }
        let name = sealed.name.path().to_string_lossy().replace('/', "_");
        let (aside, file) = self.new_file()?;
        let written = io::Write::write_all(&mut &file, &sealed.bytes);
        if let Err(cause) = written.and_then(|()| fs::rename(&aside, folder.join(&name))) {
            let _ = fs::remove_file(&aside); // the next start does it where that fails
            return Err(cause);
        }
        self.files().insert(name.clone(), size);
        Ok(name)
    }

    /// Reads a window back.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or a bit of it is not as it was written.
    pub fn read(&self, file: &str) -> Result<(TargetWindow, SymbolizedProfile), SpoolReadError> {
        let bytes = place::read(&self.0.folder.join(file))?;
        // Its day has no folder of its own here.
        let name = Name::parse(Path::new(&file.replacen('_', "/", 1))).ok_or(Damage::Name)?;
        let stamp = seal::stamp(&name, bytes.as_slice())?;
        let profile = seal::open(&name, &bytes)?;
        let mut time_ranges = stamp.time_ranges.iter();
        let (Some(time_range), None) = (time_ranges.next(), time_ranges.next()) else {
            return Err(Damage::Stamp.into());
        };
        let TimeRange { boot, from_ns, to_ns, begin_unix_ns } = time_range.clone();
        let (target, labels) = (stamp.target, stamp.labels);
        Ok((TargetWindow { target, labels, boot, from_ns, to_ns, begin_unix_ns }, profile))
    }

    /// An empty file under a hidden name: one that is left of an earlier window, or a new one.
    fn new_file(&self) -> io::Result<(PathBuf, File)> {
        let spare = self.spare().pop();
        if let Some(path) = spare
            && let Ok(file) = open_again(&path)
        {
            return Ok((path, file));
        }
        let path = self.hidden_path();
        let file = create(&path)?;
        Ok((path, file))
    }

    fn hidden_path(&self) -> PathBuf {
        self.0.folder.join(listing::unfinished_name(self.0.written.fetch_add(1, Ordering::Relaxed)))
    }

    /// Removes a window that is named, or lost.
    pub fn remove(&self, file: &str) {
        let (path, hidden) = (self.0.folder.join(file), self.hidden_path());
        let removed = fs::rename(&path, &hidden).and_then(|()| {
            let emptied = open_again(&hidden).map(|_| self.spare().push(hidden.clone()));
            emptied.or_else(|_| fs::remove_file(&hidden))
        });
        match removed {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
                tracing::warn!("{file} cannot be removed from {} ({cause})", self.0.folder.display());
            }
            _ => drop(self.files().remove(file)),
        }
    }

    fn spare(&self) -> MutexGuard<'_, Vec<PathBuf>> {
        self.0.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.0.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SharedSpool {
    /// Where a process is killed, the next one removes what is left.
    fn drop(&mut self) {
        let spare = self.spare.get_mut().unwrap_or_else(PoisonError::into_inner);
        spare.drain(..).for_each(|path| drop(fs::remove_file(path)));
    }
}

/// Opens a file of ours to be written anew. A link that someone else has put in its place is not followed.
fn open_again(path: &Path) -> io::Result<File> {
    fs::OpenOptions::new().write(true).truncate(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(path)
}

impl<D: Disk> Store<D> {
    /// Whether some of this window's time is kept already.
    pub fn has_time_of(&self, window: &TargetWindow) -> bool {
        !self.is_free(&window.target, &TimeRanges::new(vec![window.time_range()]))
    }

    /// A window without names was named that an earlier process had left.
    pub fn count_recovered(&mut self) {
        self.counters.recovered += 1;
    }

    /// Moves a file of the spool to the damaged ones.
    pub fn set_unnamed_aside(&mut self, spool: &Spool, file: &str) {
        self.set_aside_as(&Path::new(UNNAMED).join(file), Path::new(file));
        spool.files().remove(file);
    }
}
