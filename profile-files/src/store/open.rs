//! Taking over a folder: what a crash left is removed, and what is damaged is set aside.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::civil::Date;

use super::compact::MergeQueue;
use super::disk::Disk;
use super::index::FileIndex;
use super::listing::{self, Choice, DAMAGED, Listing, StoredFile};
use super::name::{ENDING, Name};
use super::outbox::Outboxes;
use super::place::{self, HeldFolder};
use super::waiting::Waits;
use super::{Counters, Store, StoreError, StoreNotes, StoreTerms, seal};

/// Most non-files (folders, links) that are remembered, of those that appear while the store is open.
const MOST_LEFT_ALONE: usize = 1000;

impl<D: Disk> Store<D> {
    /// Opens the store in `folder`, which is made if it is missing: removes what a crash left, and sets aside what is
    /// damaged as far as headers tell.
    ///
    /// # Errors
    ///
    /// If another process has it open, or it cannot be read and written.
    pub fn open(folder: &Path, settings: StoreTerms, mut disk: D) -> Result<Self, StoreError> {
        let held = HeldFolder::take(folder, &mut disk)?;
        let mut store = Self {
            folder: folder.to_owned(),
            settings,
            disk,
            index: FileIndex::default(),
            damaged: BTreeMap::new(),
            merges: MergeQueue::default(),
            outboxes: Outboxes::default(),
            left_alone: BTreeMap::new(),
            taken: BTreeSet::new(),
            counters: Counters::default(),
            notes: StoreNotes::default(),
            expired_ns: 0,
            looked_ns: 0,
            written_aside: 0,
            held: Some(held),
        };
        store.load()?;
        Ok(store)
    }

    /// Reads what is in the folder.
    fn load(&mut self) -> Result<(), StoreError> {
        let listing = listing::list(&self.folder, (Date::MIN, Date::MAX), |_| true)
            .map_err(|cause| StoreError::Unreadable { path: self.folder.clone(), cause })?;
        self.damaged = damaged_files(&self.folder);
        self.adopt(listing);
        Ok(())
    }

    /// Makes sure that the folder and its lock are still the held ones. If they were removed or replaced, the folder is
    /// created again and locked, and its present content is loaded.
    ///
    /// # Errors
    ///
    /// If that fails: the store is then empty, and nothing is written until it succeeds.
    pub(super) fn stay(&mut self, now_ns: u64) -> Result<(), StoreError> {
        if self.held.as_ref().is_some_and(|held| held.is_at(&self.folder)) {
            return Ok(());
        }
        self.taken.extend(self.index.keys().chain(self.damaged.keys()).cloned());
        self.held = None; // a copy of the folder may hold the same lock
        self.index = FileIndex::default();
        self.damaged = BTreeMap::new();
        self.left_alone = BTreeMap::new();
        self.merges.waits = Waits::default();
        self.held = Some(HeldFolder::take(&self.folder, &mut self.disk)?);
        self.load()?;
        self.outboxes.rebuild(&self.index);
        self.counters.remade += 1;
        let is_lost = |path: &&PathBuf| !self.index.contains_key(*path) && !self.damaged.contains_key(*path);
        let taken = std::mem::take(&mut self.taken);
        let (lost, all, folder) = (taken.iter().filter(is_lost).count(), taken.len(), self.folder.display());
        let remade = format!("{folder} was removed or replaced while it was in use: it was created again");
        if lost == 0 {
            tracing::info!("{remade}; no file was lost");
            return Ok(());
        }
        let note = format!(
            "{remade}, without {lost} of its {all} files; leave it to sweetspot, or name another store.folder"
        );
        tracing::warn!("{note}");
        self.notes.remade = Some((now_ns, note));
        Ok(())
    }

    /// Checks what others did in the folder: files that they removed are forgotten, and entries that are not files are
    /// counted.
    pub(super) fn look_beside(&mut self, now_ns: u64) {
        let Ok(days) = listing::days(&self.folder) else { return }; // that says nothing of what is in it
        let mut present = BTreeSet::new();
        for day in days {
            match place::is_folder(&self.folder.join(&day))
                .and_then(|_| listing::names(&self.folder.join(&day)))
            {
                Ok(names) => present.extend(names.into_iter().map(|name| day.join(name))),
                Err(_) => present.extend(self.index.keys().filter(|path| path.starts_with(&day)).cloned()),
            }
        }
        let before = self.index.len();
        self.index.keep_only(&present);
        self.outboxes.keep_only(&self.index);
        self.left_alone.retain(|path, _| fs::symlink_metadata(self.folder.join(path)).is_ok());
        let unknown = present.iter().filter(|path| path.to_string_lossy().ends_with(ENDING));
        for path in unknown.filter(|path| !self.index.contains_key(*path)) {
            let is_file = fs::symlink_metadata(self.folder.join(path)).map_or(true, |found| found.is_file());
            if !is_file && self.left_alone.len() < MOST_LEFT_ALONE {
                self.left_alone.entry(path.clone()).or_insert_with(|| "not a regular file".to_owned());
            }
        }
        let gone = (before - self.index.len()) as u64;
        if gone > 0 {
            self.counters.vanished += gone;
            let note = format!(
                "{gone} files of {} were removed by something else; limit it by store.age and store.bytes \
                 instead",
                self.folder.display()
            );
            tracing::warn!("{note}");
            self.notes.vanished = Some((now_ns, note));
        }
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
        self.left_alone = unreadable.into_iter().map(|(path, cause)| (path, cause.to_string())).collect();
        let held: BTreeSet<PathBuf> = choice.held.iter().map(|&at| entries[at].path.clone()).collect();
        self.index = entries.into_iter().collect();
        for path in held {
            self.counters.cleaned += u64::from(self.remove(&path));
        }
    }

    /// The first file that covers other files' time and fails its check; a damaged one is set aside. The covered files
    /// are removed only once their merged file is known to be whole. No other file is read, so that a large store opens
    /// as fast as a small one.
    fn unproved(
        &mut self,
        entries: &[StoredFile],
        choice: &Choice,
        whole: &mut BTreeSet<PathBuf>,
        unreadable: &mut Vec<(PathBuf, io::Error)>,
    ) -> Option<PathBuf> {
        for entry in choice.holders.iter().map(|&at| &entries[at]) {
            if whole.contains(&entry.path) {
                continue;
            }
            match place::read(&self.folder.join(&entry.path)) {
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

    /// Checks files that readers, or senders to backends, found to be damaged, and sets aside those that are.
    pub fn check(&mut self, read: &[PathBuf]) {
        for path in read.iter().chain(&self.outboxes.take_suspects()) {
            let Ok(bytes) = place::read(&self.folder.join(path)) else { continue }; // gone, or for another time
            let is_sound = Name::parse(path).is_some_and(|name| {
                seal::stamp(&name, bytes.as_slice()).is_ok() && seal::open(&name, &bytes).is_ok()
            });
            if !is_sound {
                self.set_aside(path);
            }
        }
    }
}

/// The damaged files that were set aside earlier.
fn damaged_files(folder: &Path) -> BTreeMap<PathBuf, u64> {
    let folder = folder.join(DAMAGED);
    if !place::is_folder(&folder).unwrap_or(false) {
        return BTreeMap::new();
    }
    let names = listing::names(&folder).unwrap_or_default(); // most stores have none
    let size =
        |name: &String| fs::symlink_metadata(folder.join(name)).map_or(0, |found| listing::room(found.len()));
    names.iter().map(|name| (PathBuf::from(name), size(name))).collect()
}
