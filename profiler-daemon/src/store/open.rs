//! Taking over a folder: what a crash left is removed, and what is damaged is set aside.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use jiff::civil::Date;

use super::disk::{Disk, Op};
use super::listing::{self, Choice, DAMAGED, Entry, Listing};
use super::plan::Index;
use super::waiting::Waits;
use super::{Counters, Settings, Store, StoreError};

/// The file that the owner of a store holds locked.
const LOCK: &str = ".lock";

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
        let lock = folder.join(LOCK);
        let made = fs::OpenOptions::new().write(true).create(true).truncate(false).open(&lock);
        // Held for reading, so that the disk can be remounted read-only under us.
        let lock = made.and_then(|_| File::open(&lock)).map_err(unwritable)?;
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
            waits: Waits::default(),
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
        for (path, _) in listing.damaged {
            self.set_aside(&path);
        }
        let mut entries = listing.entries;
        let mut choice = listing::choose(&entries);
        while let broken = self.broken_merges(&entries, &choice)
            && !broken.is_empty()
        {
            entries.retain(|entry| !broken.contains(&entry.path));
            broken.iter().for_each(|path| self.set_aside(path));
            choice = listing::choose(&entries);
        }
        let held: BTreeSet<PathBuf> = choice.held.iter().map(|&at| entries[at].path.clone()).collect();
        self.index = entries.into_iter().map(|entry| (entry.path.clone(), entry)).collect();
        for path in held {
            self.counters.cleaned += u64::from(self.remove(&path));
        }
    }

    /// Damaged files that seem to hold others' time: these are removed only once what they were merged into is known to be
    /// whole.
    fn broken_merges(&self, entries: &[Entry], choice: &Choice) -> Vec<PathBuf> {
        let targets: BTreeSet<&str> =
            choice.held.iter().map(|&at| entries[at].stamp.target.as_str()).collect();
        let counted = choice.counted.iter().map(|&at| &entries[at]);
        let of_held = counted.filter(|entry| targets.contains(entry.stamp.target.as_str()));
        of_held.filter(|entry| !self.is_whole(entry)).map(|entry| entry.path.clone()).collect()
    }

    fn is_whole(&self, entry: &Entry) -> bool {
        let bytes = fs::read(self.folder.join(&entry.path));
        bytes.is_ok_and(|bytes| entry.name.checksum(&bytes) == entry.name.crc)
    }
}

/// The damaged files that were set aside before.
fn damaged_files(folder: &Path) -> BTreeMap<PathBuf, u64> {
    let folder = folder.join(DAMAGED);
    let names = listing::names(&folder).unwrap_or_default(); // most stores have none
    let size = |name: &String| fs::metadata(folder.join(name)).map_or(0, |found| listing::room(found.len()));
    names.iter().map(|name| (PathBuf::from(name), size(name))).collect()
}
