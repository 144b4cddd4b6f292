//! The profiles of the last days: a folder of gzipped pprof files that any reader of pprof opens.
//!
//! **One file for a window of one target**, and not one for all of them: opening it shows one program; its name says whose it
//! is, so that another target's are not even opened; a run's figures (rate, overhead, losses) are one target's; and damage
//! costs one target a minute. Windows are merged into a file for each hour, hours into one for each day (UTC), so that a
//! week of ten targets is some two hundred files; these keep when each part was, to a minute and to ten.
//!
//! **Nothing is half there.** A file is written under a hidden name, synced, renamed, and its folder synced. A merged file
//! says which stretches of time it counts: sources found beside it, after a crash or in a copy, are ignored, and the owner
//! removes them. What was changed by so much as a bit is set aside in `damaged/`, and counted.
//!
//! **Both bounds hold**: room is made before a file is written, the oldest first; age counts by the clock that cannot jump,
//! as far as a boot reaches. A file goes once all of its time is too old, so that a day's goes a day later. A disk that is
//! full or refuses costs the window, which is counted, and nothing else.
//!
//! Time comes in as an argument, and every change to the disk is an [`disk::Op`]: tests run weeks in seconds and end the
//! process after each of them.

mod compact;
mod disk;
mod listing;
mod name;
mod plan;
mod read;
mod room;
mod seal;
mod stamp;
mod stretch;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use jiff::civil::Date;
use profiler_core::profile::SymbolizedProfile;

pub(crate) use disk::{Disk, RealDisk};
pub(crate) use plan::Now;
pub(crate) use read::{Query, Reading, read};

use disk::Op;
use listing::{DAMAGED, Entry, Listing};
use name::Level;
use plan::Index;
use seal::Sealed;
use stamp::Stamp;
use stretch::{Standing, Stretch, Stretches, Taken};

/// The file that the owner of a store holds locked.
const LOCK: &str = ".lock";

/// How much is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// How long (ns).
    pub(crate) age_ns: u64,
    /// How much (bytes), rounded up to blocks file by file.
    pub(crate) bytes: u64,
    /// When an hour's windows are merged: so long after its end (ns).
    pub(crate) hourly_after_ns: u64,
    /// The same for a day's hours (ns).
    pub(crate) daily_after_ns: u64,
}

/// A window of a target. Its wall clock and length are those of the profile's run.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    /// The target.
    pub(crate) target: String,
    /// Its labels.
    pub(crate) labels: BTreeMap<String, String>,
    /// Identity of the boot.
    pub(crate) boot: String,
    /// Begin by the monotonic clock of that boot (ns).
    pub(crate) from_ns: u64,
    /// End by the same; later than the begin.
    pub(crate) to_ns: u64,
}

/// Why a store cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// Another process writes to it.
    #[error("{} is written to by another sweetspot; stop it, or name another folder", .0.display())]
    Busy(PathBuf),
    /// It cannot be written to.
    #[error("profiles cannot be kept in {} ({cause}); make it a folder that sweetspot may write to", path.display())]
    Unwritable {
        /// What cannot be written.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// It cannot be read.
    #[error("{} cannot be read ({cause}); name a folder of profiles that you may read", path.display())]
    Unreadable {
        /// What cannot be read.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// Files came and went as long as anyone was looking.
    #[error("the files in {} change all the time; try again", .0.display())]
    Restless(PathBuf),
}

/// Why a window was not kept.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotKept {
    /// The disk, or the room that the settings leave, is full.
    #[error("there is no room for it")]
    Full,
    /// The disk refuses.
    #[error("the disk refuses it")]
    Refused(#[source] io::Error),
    /// Some of its time is kept already, or it has none.
    #[error("its time is kept already")]
    Taken,
}

/// What happened to a store since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// Windows that were kept.
    pub(crate) written: u64,
    /// Windows that were not, for want of room.
    pub(crate) dropped_full: u64,
    /// Windows that were not for any other reason.
    pub(crate) dropped_refused: u64,
    /// Files that were removed for their age.
    pub(crate) expired: u64,
    /// Files that were removed to make room.
    pub(crate) evicted: u64,
    /// Files that others were merged into.
    pub(crate) merged: u64,
    /// Merges that failed or had no room.
    pub(crate) unmerged: u64,
    /// Damaged files that were set aside.
    pub(crate) damaged: u64,
    /// Files left by a process that ended in the middle of something.
    pub(crate) cleaned: u64,
    /// Changes that may not outlive a power failure, since the disk did not confirm them.
    pub(crate) unsynced: u64,
}

/// A store and the right to change it.
#[derive(Debug)]
pub(crate) struct Store<D = RealDisk> {
    folder: PathBuf,
    settings: Settings,
    disk: D,
    index: Index,
    /// Damaged files and the room they take.
    damaged: BTreeMap<PathBuf, u64>,
    /// Files that could not be merged, and until when they wait (ns of the monotonic clock).
    waiting: BTreeMap<PathBuf, u64>,
    counters: Counters,
    written_aside: u64,
    /// Held as long as the store is.
    _lock: File,
}

impl<D: Disk> Store<D> {
    /// Opens the store in `folder`, which is made if it is missing: removes what a crash left, and sets aside what is
    /// damaged as far as headers tell.
    ///
    /// # Errors
    ///
    /// If another process has it open, or it cannot be read and written.
    pub(crate) fn open(folder: &Path, settings: Settings, mut disk: D) -> Result<Self, StoreError> {
        let unwritable = |cause| StoreError::Unwritable { path: folder.to_owned(), cause };
        disk.apply(Op::MakeFolder(folder)).map_err(unwritable)?;
        let lock = fs::OpenOptions::new().write(true).create(true).truncate(false).open(folder.join(LOCK));
        let lock = lock.map_err(unwritable)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(StoreError::Busy(folder.to_owned())),
            Err(fs::TryLockError::Error(cause)) => return Err(unwritable(cause)),
        }
        let listing = listing::list(folder, (Date::MIN, Date::MAX), |_| true)
            .map_err(|cause| StoreError::Unreadable { path: folder.to_owned(), cause })?;
        let mut store = Self {
            folder: folder.to_owned(),
            settings,
            disk,
            index: Index::new(),
            damaged: damaged_files(folder),
            waiting: BTreeMap::new(),
            counters: Counters::default(),
            written_aside: 0,
            _lock: lock,
        };
        store.adopt(listing);
        Ok(store)
    }

    /// Takes over what was found in the folder.
    fn adopt(&mut self, listing: Listing) {
        for path in listing.unfinished {
            self.counters.cleaned += u64::from(self.remove(&path));
        }
        let mut entries = listing.entries;
        loop {
            let choice = listing::choose(&entries);
            // Sources are removed only once what they were merged into is known to be whole.
            let broken: Vec<PathBuf> = if choice.held.is_empty() {
                Vec::new()
            } else {
                let merged = choice.counted.iter().filter(|&&at| entries[at].name.level > Level::Window);
                merged
                    .map(|&at| &entries[at])
                    .filter(|entry| !self.is_whole(entry))
                    .map(|e| e.path.clone())
                    .collect()
            };
            if broken.is_empty() {
                let held: BTreeSet<usize> = choice.held.into_iter().collect();
                for (at, entry) in entries.into_iter().enumerate() {
                    if held.contains(&at) {
                        self.counters.cleaned += u64::from(self.remove(&entry.path));
                    } else {
                        self.index.insert(entry.path.clone(), entry);
                    }
                }
                break;
            }
            entries.retain(|entry| !broken.contains(&entry.path));
            broken.iter().for_each(|path| self.set_aside(path));
        }
        for (path, _) in listing.damaged {
            self.set_aside(&path);
        }
    }

    fn is_whole(&self, entry: &Entry) -> bool {
        let bytes = fs::read(self.folder.join(&entry.path));
        bytes.is_ok_and(|bytes| entry.name.checksum(&bytes) == entry.name.crc)
    }

    /// Keeps a window.
    ///
    /// # Errors
    ///
    /// If there is no room, or the disk refuses; the window is then counted as dropped, and the store is as it was.
    pub(crate) fn write(
        &mut self,
        now: &Now,
        window: Window,
        profile: &SymbolizedProfile,
    ) -> Result<(), NotKept> {
        let kept = self.try_write(now, window, profile);
        match &kept {
            Ok(()) => self.counters.written += 1,
            Err(NotKept::Full) => self.counters.dropped_full += 1,
            Err(NotKept::Refused(_) | NotKept::Taken) => self.counters.dropped_refused += 1,
        }
        kept
    }

    fn try_write(&mut self, now: &Now, window: Window, profile: &SymbolizedProfile) -> Result<(), NotKept> {
        let stretch = Stretch {
            boot: window.boot,
            from_ns: window.from_ns,
            to_ns: window.to_ns,
            begin_unix_ns: profile.run.start_unix_ns,
        };
        if stretch.from_ns >= stretch.to_ns {
            return Err(NotKept::Taken);
        }
        let stamp = Stamp::new(Level::Window, window.target, window.labels, Stretches::new(vec![stretch]));
        let mut taken = Taken::default();
        let of_target = self.index.values().filter(|entry| entry.stamp.target == stamp.target);
        for entry in of_target {
            taken.take(&entry.stamp.target, &entry.stamp.stretches);
        }
        if taken.take(&stamp.target, &stamp.stretches) != Standing::Free {
            return Err(NotKept::Taken);
        }
        let sealed = seal::seal(&stamp, profile).map_err(NotKept::Refused)?;
        if !self.make_room(listing::room(sealed.bytes.len() as u64), now) {
            return Err(NotKept::Full);
        }
        self.put(stamp, &sealed).map_err(|cause| match cause.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                NotKept::Full
            }
            _ => NotKept::Refused(cause),
        })
    }

    /// Writes a file so that it is there whole or not at all.
    fn put(&mut self, stamp: Stamp, sealed: &Sealed) -> io::Result<()> {
        let path = sealed.name.path();
        let full = self.folder.join(&path);
        let day = full.parent().unwrap_or(&self.folder).to_owned();
        if !day.is_dir() {
            self.disk.apply(Op::MakeFolder(&day))?;
            self.sync(&self.folder.clone());
        }
        self.written_aside += 1;
        let aside = day.join(listing::unfinished_name(self.written_aside));
        let written = self.disk.apply(Op::Write(&aside, &sealed.bytes));
        if let Err(cause) = written.and_then(|()| self.disk.apply(Op::Rename(&aside, &full))) {
            let _ = self.disk.apply(Op::Remove(&aside)); // where that fails too, the next start does it
            return Err(cause);
        }
        self.sync(&day);
        let size = listing::room(sealed.bytes.len() as u64);
        self.index.insert(path.clone(), Entry { path, name: sealed.name.clone(), stamp, size });
        Ok(())
    }

    fn sync(&mut self, folder: &Path) {
        if self.disk.apply(Op::SyncFolder(folder)).is_err() {
            self.counters.unsynced += 1;
        }
    }

    /// Removes a file of the store; whether it is gone.
    fn remove(&mut self, path: &Path) -> bool {
        let gone = match self.disk.apply(Op::Remove(&self.folder.join(path))) {
            Ok(()) => true,
            Err(cause) => cause.kind() == io::ErrorKind::NotFound,
        };
        if gone {
            self.index.remove(path);
        }
        gone
    }

    /// Moves a file to the damaged ones.
    fn set_aside(&mut self, path: &Path) {
        let (from, folder) = (self.folder.join(path), self.folder.join(DAMAGED));
        let name = PathBuf::from(path.to_string_lossy().replace('/', "_"));
        let size = fs::metadata(&from).map_or(0, |found| listing::room(found.len()));
        let moved = self.disk.apply(Op::MakeFolder(&folder));
        let moved = moved.and_then(|()| self.disk.apply(Op::Rename(&from, &folder.join(&name))));
        if moved.is_ok() {
            self.damaged.insert(name, size);
            self.sync(&folder);
        }
        // Where it cannot be moved, it is out of the index all the same: nothing reads it.
        self.index.remove(path);
        self.counters.damaged += 1;
    }

    /// Reads a range, and sets aside what turns out to be damaged.
    ///
    /// # Errors
    ///
    /// If the folder or a file in it cannot be read.
    pub(crate) fn read(&mut self, query: &Query) -> Result<Reading, StoreError> {
        let reading = read(&self.folder, query)?;
        for (path, _) in &reading.damaged {
            self.set_aside(path);
        }
        Ok(reading)
    }

    /// What happened since it was opened.
    pub(crate) fn counters(&self) -> Counters {
        self.counters
    }

    /// Files, damaged ones among them, and the room they take (bytes).
    pub(crate) fn size(&self) -> (usize, u64) {
        let files = self.index.len() + self.damaged.len();
        (files, self.index.values().map(|entry| entry.size).chain(self.damaged.values().copied()).sum())
    }
}

/// The damaged files that were set aside before.
fn damaged_files(folder: &Path) -> BTreeMap<PathBuf, u64> {
    let folder = folder.join(DAMAGED);
    let names = listing::names(&folder).unwrap_or_default(); // most stores have none
    let size = |name: &String| fs::metadata(folder.join(name)).map_or(0, |found| listing::room(found.len()));
    names.iter().map(|name| (PathBuf::from(name), size(name))).collect()
}
