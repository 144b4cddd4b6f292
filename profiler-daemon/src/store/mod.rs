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
mod open;
mod plan;
mod read;
mod room;
mod seal;
mod stamp;
mod stretch;
mod terms;
#[cfg(test)]
mod tests;
mod unpack;
mod waiting;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use profiler_core::profile::SymbolizedProfile;

pub(crate) use disk::{Disk, RealDisk};
pub(crate) use plan::Now;
pub(crate) use read::{IsWanted, Query, Reading, read};
pub(crate) use seal::Damage;
pub(crate) use terms::{Counters, NotKept, Settings, StoreError, Waiting, Window};

use disk::Op;
use listing::{DAMAGED, Entry};
use name::Level;
use plan::Index;
use seal::Sealed;
use stamp::Stamp;
use stretch::{Standing, Stretch, Stretches, Taken};
use waiting::Waits;

/// A store and the right to change it.
#[derive(Debug)]
pub(crate) struct Store<D = RealDisk> {
    folder: PathBuf,
    settings: Settings,
    disk: D,
    index: Index,
    /// Damaged files and the room they take.
    damaged: BTreeMap<PathBuf, u64>,
    waits: Waits,
    /// Whether days are looked for before hours: they take turns, so that neither waits for all of the other.
    days_first: bool,
    /// What could not be read when it was opened.
    left_alone: Option<String>,
    counters: Counters,
    written_aside: u64,
    /// Held as long as the store is.
    _lock: File,
}

impl<D: Disk> Store<D> {
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
        for (by, entry) in of_target.enumerate() {
            taken.take(&entry.stamp.target, &entry.stamp.stretches, by);
        }
        if taken.take(&stamp.target, &stamp.stretches, usize::MAX) != Standing::Free {
            return Err(NotKept::Taken);
        }
        let sealed = seal::seal(&stamp, profile).map_err(NotKept::Refused)?;
        if !self.make_room(listing::room(sealed.bytes.len() as u64), now) {
            return Err(NotKept::Full);
        }
        let put = self.put(stamp, &sealed).map_err(|cause| match is_full(&cause) {
            true => NotKept::Full,
            false => NotKept::Refused(cause),
        });
        put.map(drop)
    }

    /// Writes a file so that it is there whole or not at all; whether it outlives a power failure.
    fn put(&mut self, stamp: Stamp, sealed: &Sealed) -> io::Result<bool> {
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
        let is_synced = self.sync(&day);
        let size = listing::room(sealed.bytes.len() as u64);
        self.index.insert(path.clone(), Entry { path, name: sealed.name.clone(), stamp, size });
        Ok(is_synced)
    }

    /// Has the names in a folder outlive a power failure; whether the disk confirms it.
    fn sync(&mut self, folder: &Path) -> bool {
        let is_synced = self.disk.apply(Op::SyncFolder(folder)).is_ok();
        self.counters.unsynced += u64::from(!is_synced);
        is_synced
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
        let is_moved = moved.and_then(|()| self.disk.apply(Op::Rename(&from, &folder.join(&name)))).is_ok();
        if is_moved {
            self.damaged.insert(name, size);
            self.sync(&folder);
        }
        // Where it cannot be moved, it is out of the index all the same, and counted once.
        let was_known = self.index.remove(path).is_some();
        self.counters.damaged += u64::from(was_known || is_moved);
    }

    /// A window was lost on its way to the store.
    pub(crate) fn count_lost(&mut self) {
        self.counters.dropped_refused += 1;
    }

    /// Other bounds are in force from the next change on.
    pub(crate) fn rebound(&mut self, settings: Settings) {
        self.settings = settings;
    }

    /// Reads a range, and sets aside what turns out to be damaged.
    ///
    /// # Errors
    ///
    /// If the folder or a file in it cannot be read.
    #[cfg(test)]
    pub(crate) fn read(&mut self, query: &Query) -> Result<Reading, StoreError> {
        let reading = read(&self.folder, query, &|| true)?;
        self.check(&reading.damaged.iter().map(|(path, _)| path.clone()).collect::<Vec<_>>());
        Ok(reading)
    }

    /// What could not be read when it was opened, in a line.
    pub(crate) fn left_alone(&self) -> Option<&str> {
        self.left_alone.as_deref()
    }

    /// What happened since it was opened.
    pub(crate) fn counters(&self) -> Counters {
        self.counters
    }

    /// What waits to be merged, by the monotonic clock.
    pub(crate) fn waiting(&self, now_ns: u64) -> Waiting {
        self.waits.shown(now_ns)
    }

    /// Files, damaged ones among them, and the room they take (bytes).
    pub(crate) fn size(&self) -> (usize, u64) {
        let files = self.index.len() + self.damaged.len();
        (files, self.index.values().map(|entry| entry.size).chain(self.damaged.values().copied()).sum())
    }
}

/// Whether a disk refuses for want of room.
fn is_full(cause: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(cause.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}
