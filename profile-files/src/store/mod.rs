//! The profiles of the last days: a folder of gzipped pprof files that any reader of pprof opens.
//!
//! **One file for a window of one target**, and not one for all of them: opening it shows one program; its name says whose it
//! is, so that another target's are not even opened; a run's figures (rate, overhead, losses) are one target's; and damage
//! costs one target a minute. Windows are merged into a file for each hour, hours into one for each day (UTC), so that a
//! week of ten targets is some two hundred files; these keep when each part was, to a minute and to ten.
//!
//! **Nothing is half there.** A file is written under a hidden name and renamed. A merged file is synced before that, its folder
//! after it, and only then its sources are removed. It says which ranges of time it counts: sources found beside it, after a
//! crash or in a copy, are ignored, and the owner removes them. What was changed by so much as a bit is set aside in `damaged/`,
//! and counted.
//!
//! **Windows are not synced.** The system writes them to the disk within half a minute, many at once; to wait for each took more
//! CPU time than all else that is done for a small one. Whatever ends the process loses nothing; a power failure takes what was
//! stored in the last half minute, beside the windows that were open.
//!
//! **Both bounds hold**: room is made before a file is written, the oldest first; age counts by the clock that cannot jump,
//! as far as a boot reaches. A file goes once all of its time is too old, so that a day's goes a day later. Where others have
//! filled the disk, the oldest files give way to a window as far as that takes. A disk that refuses, or has no room even so,
//! costs the window, which is counted, and nothing else.
//!
//! **Windows that wait for names lie in `unnamed/`**, where no reader looks, beside the bounds and within `limits.queue`
//! ([`Spool`]).
//!
//! **Windows that wait to be sent** to a backend are the store's own files ([`Outboxes`]); what each export has of them stands in
//! `exports/`.
//!
//! **The folder may be taken away.** Whoever removes or replaces it under its owner has it made and locked anew at the next
//! change. Links, pipes and devices in it are left alone, and counted.
//!
//! Time comes in as an argument, and every change to the disk is an [`disk::Op`]: tests run weeks in seconds and end the
//! process after each of them.
//!
//! **A file is set aside for its contents, never for an I/O error**: too many open files, or a bad moment of a
//! disk, would discard sound files. A reader opens all files of a range before it reads the first, so that
//! merging and removal meanwhile do not restart it; files that it finds damaged are checked again by the owner.

mod compact;
mod cursor;
mod disk;
mod index;
mod listing;
mod name;
mod open;
mod outbox;
mod parts;
mod place;
mod plan;
mod position;
mod read;
mod room;
mod seal;
mod spool;
mod stamp;
mod terms;
#[cfg(test)]
mod tests;
mod time_range;
mod unpack;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use profiler_core::profile::SymbolizedProfile;

pub use cursor::Cursor;
pub use disk::{Disk, Op, RealDisk};
pub use outbox::{ANOTHER_TURN_NS, ExportTally, OutboxFile, Outboxes, SendFault, SendOutcome};
pub use parts::PartsLeft;
pub use plan::Now;
pub use position::{Export, Position};
pub use read::{IsWanted, Query, RangeReading, read};
pub use seal::Damage;
pub use spool::{Spool, SpoolReadError};
pub use stamp::Stamp;
pub use terms::{Counters, NotKept, StoreError, StoreTerms, TargetWindow, UnmergedFiles};
pub use time_range::TimeRanges;
pub use unpack::{NotRead, read_file};

use compact::MergeQueue;
use index::FileIndex;
use listing::{DAMAGED, StoredFile};
use name::Level;
use place::HeldFolder;
use seal::Sealed;
use time_range::{CountedTime, Overlap};

/// A store and the right to change it.
#[derive(Debug)]
pub struct Store<D = RealDisk> {
    folder: PathBuf,
    settings: StoreTerms,
    disk: D,
    index: FileIndex,
    /// Damaged files and the room they take.
    damaged: BTreeMap<PathBuf, u64>,
    merges: MergeQueue,
    outboxes: Outboxes,
    /// Files that cannot be read, and why.
    left_alone: BTreeMap<PathBuf, String>,
    /// Files of a folder that was removed, until there is one again.
    taken: BTreeSet<PathBuf>,
    counters: Counters,
    notes: StoreNotes,
    /// When it was looked what others did in the folder (ns).
    looked_ns: u64,
    /// When it was looked what is too old (ns).
    expired_ns: u64,
    written_aside: u64,
    /// Held as long as the store is; none while somebody has taken the folder away.
    held: Option<HeldFolder>,
}

impl<D: Disk> Store<D> {
    /// Keeps a window.
    ///
    /// # Errors
    ///
    /// If there is no room, or the disk refuses; the window is then counted as dropped, and the store is as it was.
    pub fn write(
        &mut self,
        now: &Now,
        window: TargetWindow,
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

    fn try_write(
        &mut self,
        now: &Now,
        window: TargetWindow,
        profile: &SymbolizedProfile,
    ) -> Result<(), NotKept> {
        self.stay(now.monotonic_ns).map_err(|error| NotKept::Refused(io::Error::other(error)))?;
        let time_range = window.time_range();
        if time_range.from_ns >= time_range.to_ns {
            return Err(NotKept::Taken);
        }
        let stamp =
            Stamp::new(Level::Window, window.target, window.labels, TimeRanges::new(vec![time_range]));
        if !self.is_free(&stamp.target, &stamp.time_ranges) {
            return Err(NotKept::Taken);
        }
        let sealed = seal::seal(&stamp, profile).map_err(NotKept::Refused)?;
        if !self.make_room(listing::room(sealed.bytes.len() as u64), now) {
            return Err(NotKept::Full);
        }
        self.put_with_room(stamp, &sealed, now).map_err(|cause| match is_full(&cause) {
            true => NotKept::Full,
            false => NotKept::Refused(cause),
        })?;
        if let Some(entry) = self.index.get(&sealed.name.path()) {
            self.outboxes.wrote(entry);
        }
        Ok(())
    }

    /// Whether nothing of this time is kept of a target.
    fn is_free(&self, target: &str, time_ranges: &TimeRanges) -> bool {
        let mut taken = CountedTime::default();
        for (by, entry) in self.index.of_target(target).enumerate() {
            taken.take(&entry.stamp.target, &entry.stamp.time_ranges, by);
        }
        taken.take(target, time_ranges, usize::MAX) == Overlap::None
    }

    /// Writes a file so that readers see the whole of it or nothing.
    fn put(&mut self, stamp: Stamp, sealed: &Sealed) -> io::Result<()> {
        let aside = self.write_aside(sealed)?;
        self.show(&aside, stamp, sealed)
    }

    /// The same, once all of the file is on the disk; whether its name is as well, so that it outlives a power failure.
    fn put_synced(&mut self, stamp: Stamp, sealed: &Sealed) -> io::Result<bool> {
        let aside = self.write_aside(sealed)?;
        if let Err(cause) = self.disk.apply(Op::SyncFile(&aside)) {
            self.give_up(&aside);
            return Err(cause);
        }
        self.show(&aside, stamp, sealed)?;
        Ok(self.sync(&self.day_of(sealed)))
    }

    /// Writes a file under a hidden name, in the folder of its day.
    fn write_aside(&mut self, sealed: &Sealed) -> io::Result<PathBuf> {
        let day = self.day_of(sealed);
        if !place::is_folder(&day)? {
            self.disk.apply(Op::MakeFolder(&day))?;
            self.sync(&self.folder.clone());
        }
        self.written_aside += 1;
        let aside = day.join(listing::unfinished_name(self.written_aside));
        match self.disk.apply(Op::Write(&aside, &sealed.bytes)) {
            Ok(()) => Ok(aside),
            Err(cause) => {
                self.give_up(&aside);
                Err(cause)
            }
        }
    }

    /// Gives a file that was written its name.
    fn show(&mut self, aside: &Path, stamp: Stamp, sealed: &Sealed) -> io::Result<()> {
        let path = sealed.name.path();
        if let Err(cause) = self.disk.apply(Op::Rename(aside, &self.folder.join(&path))) {
            self.give_up(aside);
            return Err(cause);
        }
        let size = listing::room(sealed.bytes.len() as u64);
        self.index.insert(StoredFile { path, name: sealed.name.clone(), stamp, size });
        Ok(())
    }

    /// Removes a file that gets no name.
    fn give_up(&mut self, aside: &Path) {
        let _ = self.disk.apply(Op::Remove(aside)); // where that fails too, the next start does it
    }

    fn day_of(&self, sealed: &Sealed) -> PathBuf {
        let full = self.folder.join(sealed.name.path());
        full.parent().unwrap_or(&self.folder).to_owned()
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
            self.forget(path);
        }
        gone
    }

    /// A file is not in the store any more; whether it was.
    fn forget(&mut self, path: &Path) -> bool {
        self.outboxes.removed(path);
        self.index.remove(path).is_some()
    }

    /// Moves a file to the damaged ones.
    fn set_aside(&mut self, path: &Path) {
        self.set_aside_as(path, Path::new(&path.to_string_lossy().replace('/', "_")));
    }

    fn set_aside_as(&mut self, path: &Path, name: &Path) {
        let (from, folder, name) = (self.folder.join(path), self.folder.join(DAMAGED), name.to_owned());
        let size = fs::symlink_metadata(&from).map_or(0, |found| listing::room(found.len()));
        let moved = place::is_folder(&folder).and_then(|_| self.disk.apply(Op::MakeFolder(&folder)));
        let is_moved = moved.and_then(|()| self.disk.apply(Op::Rename(&from, &folder.join(&name)))).is_ok();
        if is_moved {
            self.damaged.insert(name, size);
            self.sync(&folder);
        }
        // Where it cannot be moved, it is out of the index all the same, and counted once.
        let was_known = self.forget(path);
        self.counters.damaged += u64::from(was_known || is_moved);
    }

    /// A window was lost on its way to the store.
    pub fn count_lost(&mut self) {
        self.counters.dropped_refused += 1;
    }

    /// Other bounds are in force from the next change on.
    pub fn rebound(&mut self, settings: StoreTerms) {
        self.settings = settings;
    }

    /// What waits to be sent.
    pub fn outboxes(&self) -> Outboxes {
        self.outboxes.clone()
    }

    /// These exports get windows from now on, and no others. One that is new gets those that end from now on; one that was there
    /// in an earlier process goes on where it was.
    pub fn export(&mut self, now: &Now, exports: &[Export]) {
        let outboxes = self.outboxes.clone();
        let _cursors = outboxes.replacing_cursors();
        cursor::keep_only(
            &self.folder,
            &exports.iter().map(|export| export.name.as_str()).collect::<BTreeSet<_>>(),
        );
        let new = exports.iter().filter(|export| !self.outboxes.has(&export.name));
        let position = |export: &Export| {
            let read = Cursor::of(&self.folder, &export.name).read();
            let found = read.unwrap_or_else(|cause| {
                tracing::warn!(
                    export = export.name,
                    "export {}: its cursor cannot be read ({cause}): it gets the windows that end from now on",
                    export.name
                );
                None
            });
            found.map_or_else(|| Position::new(now.clone(), export), |position| position.in_boot(now))
        };
        let positions = new.map(|export| (export.name.clone(), position(export))).collect();
        for (name, position) in self.outboxes.replace(exports, positions, &self.index) {
            if let Err(cause) = Cursor::of(&self.folder, &name).write(&position) {
                tracing::warn!(
                    export = name,
                    "export {name}: its cursor cannot be written ({cause}), and is tried again with the next window"
                );
            }
        }
    }

    /// Reads a range, and sets aside what turns out to be damaged.
    ///
    /// # Errors
    ///
    /// If the folder or a file in it cannot be read.
    #[cfg(test)]
    pub(crate) fn read(&mut self, query: &Query) -> Result<RangeReading, StoreError> {
        let reading = read(&self.folder, query, &|| true)?;
        self.check(&reading.damaged.iter().map(|(path, _)| path.clone()).collect::<Vec<_>>());
        Ok(reading)
    }

    /// How many files cannot be read and are left alone.
    pub fn left_alone(&self) -> usize {
        self.left_alone.len()
    }

    /// What an operator should hear of, in lines.
    pub fn notes(&self, now_ns: u64) -> Vec<String> {
        let left_alone = self.left_alone.iter().next().map(|(path, cause)| {
            let (count, first) = (self.left_alone.len(), self.folder.join(path));
            format!(
                "{count} files of the store cannot be read and are left alone, as {} ({cause}); look at them, or remove them",
                first.display()
            )
        });
        left_alone.into_iter().chain(self.notes.recent(now_ns)).collect()
    }

    /// What happened since it was opened.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// What waits to be merged, by the monotonic clock.
    pub fn waiting(&self, now_ns: u64) -> UnmergedFiles {
        self.merges.waits.shown(now_ns)
    }

    /// Files, damaged ones among them, and the room they take (bytes).
    pub fn size(&self) -> (usize, u64) {
        let files = self.index.len() + self.damaged.len();
        (files, self.index.room().saturating_add(self.damaged.values().sum()))
    }
}

/// What happened to a store that an operator should hear of for a while, and when (ns).
#[derive(Debug, Default)]
struct StoreNotes {
    /// Its folder was made anew.
    remade: Option<(u64, String)>,
    /// Somebody removed files of it.
    vanished: Option<(u64, String)>,
    /// The oldest went since the disk was full.
    crowded: Option<(u64, String)>,
}

impl StoreNotes {
    /// So long it is heard of (ns).
    const SHOWN_NS: u64 = 3_600_000_000_000;

    fn recent(&self, now_ns: u64) -> impl Iterator<Item = String> {
        let all = [&self.remade, &self.vanished, &self.crowded];
        let is_recent = move |(at_ns, _): &&(u64, String)| now_ns.saturating_sub(*at_ns) < Self::SHOWN_NS;
        all.into_iter().flatten().filter(is_recent).map(|(_, text)| text.clone())
    }
}

/// Whether a disk refuses for want of room.
fn is_full(cause: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(cause.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}
