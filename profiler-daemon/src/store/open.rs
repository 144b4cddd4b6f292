//! Taking over a folder: what a crash left is removed, and what is damaged is set aside.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use jiff::civil::Date;

use super::disk::{Disk, Op};
use super::listing::{self, Choice, DAMAGED, Entry, Listing};
use super::name::Name;
use super::plan::Index;
use super::waiting::Waits;
use super::{Counters, Settings, Store, StoreError, seal};

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
            days_first: false,
            left_alone: None,
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
        let mut unreadable = listing.unreadable;
        let mut entries = listing.entries;
        let mut choice = listing::choose(&entries);
        let mut whole = BTreeSet::new();
        while let Some(path) = self.unproved(&entries, &choice, &mut whole, &mut unreadable) {
            entries.retain(|entry| entry.path != path);
            choice = listing::choose(&entries);
        }
        self.left_alone = unreadable.first().map(|(path, cause)| {
            let (count, first) = (unreadable.len(), path.display());
            format!("{count} files of the store cannot be read and are left alone, as {first} ({cause})")
        });
        let held: BTreeSet<PathBuf> = choice.held.iter().map(|&at| entries[at].path.clone()).collect();
        self.index = entries.into_iter().map(|entry| (entry.path.clone(), entry)).collect();
        for path in held {
            self.counters.cleaned += u64::from(self.remove(&path));
        }
    }

    /// The first file that seems to hold others' time and is not known to be whole: these are removed only once what they were
    /// merged into is. One that is damaged is set aside. Nothing else is read, so that a start takes no longer where there is
    /// much.
    fn unproved(
        &mut self,
        entries: &[Entry],
        choice: &Choice,
        whole: &mut BTreeSet<PathBuf>,
        unreadable: &mut Vec<(PathBuf, io::Error)>,
    ) -> Option<PathBuf> {
        for entry in choice.holders.iter().map(|&at| &entries[at]) {
            if whole.contains(&entry.path) {
                continue;
            }
            match fs::read(self.folder.join(&entry.path)) {
                Ok(bytes) if entry.name.checksum(&bytes) == entry.name.crc => {
                    whole.insert(entry.path.clone());
                    continue;
                }
                Ok(_) => self.set_aside(&entry.path),
                Err(cause) => unreadable.push((entry.path.clone(), cause)),
            }
            return Some(entry.path.clone());
        }
        None
    }

    /// Looks at files that readers took for damaged, and sets aside those that are.
    pub(crate) fn check(&mut self, paths: &[PathBuf]) {
        for path in paths {
            let Ok(bytes) = fs::read(self.folder.join(path)) else { continue }; // gone, or for another time
            let is_sound = Name::parse(path).is_some_and(|name| {
                seal::stamp(&name, bytes.as_slice()).is_ok() && seal::open(&name, &bytes).is_ok()
            });
            if !is_sound {
                self.set_aside(path);
            }
        }
    }
}

/// The damaged files that were set aside before.
fn damaged_files(folder: &Path) -> BTreeMap<PathBuf, u64> {
    let folder = folder.join(DAMAGED);
    let names = listing::names(&folder).unwrap_or_default(); // most stores have none
    let size = |name: &String| fs::metadata(folder.join(name)).map_or(0, |found| listing::room(found.len()));
    names.iter().map(|name| (PathBuf::from(name), size(name))).collect()
}
