//! The files of a store, with what is asked of them for each window that is written: the room they take, and which are of its target.
//! Hundreds of targets have tens of thousands of files; to go through all of them for each window would take longer than to write it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::path::{Path, PathBuf};

use rustc_hash::FxHashMap;

use super::listing::StoredFile;

/// The files by their paths, which is by their begin. It is read as a map.
#[derive(Debug, Default)]
pub(crate) struct FileIndex {
    files: BTreeMap<PathBuf, StoredFile>,
    /// What they take together (bytes).
    room: u64,
    of_targets: FxHashMap<String, BTreeSet<PathBuf>>,
}

impl FileIndex {
    /// The room that all of them take (bytes).
    pub(super) fn room(&self) -> u64 {
        self.room
    }

    /// Those of a target, the oldest first.
    pub(super) fn of_target(&self, target: &str) -> impl Iterator<Item = &StoredFile> {
        self.of_targets.get(target).into_iter().flatten().filter_map(|path| self.files.get(path))
    }

    /// Enters a file, in place of one that has its path.
    pub(super) fn insert(&mut self, entry: StoredFile) {
        self.remove(&entry.path.clone());
        self.room = self.room.saturating_add(entry.size);
        self.of_targets.entry(entry.stamp.target.clone()).or_default().insert(entry.path.clone());
        self.files.insert(entry.path.clone(), entry);
    }

    /// Forgets a file; what was known of it.
    pub(super) fn remove(&mut self, path: &Path) -> Option<StoredFile> {
        let entry = self.files.remove(path)?;
        self.room = self.room.saturating_sub(entry.size);
        if let Some(paths) = self.of_targets.get_mut(&entry.stamp.target) {
            paths.remove(path);
            if paths.is_empty() {
                self.of_targets.remove(&entry.stamp.target);
            }
        }
        Some(entry)
    }

    /// Forgets all files but those in `present`.
    pub(super) fn keep_only(&mut self, present: &BTreeSet<PathBuf>) {
        let gone: Vec<PathBuf> = self.files.keys().filter(|path| !present.contains(*path)).cloned().collect();
        gone.iter().for_each(|path| drop(self.remove(path)));
    }
}

impl Deref for FileIndex {
    type Target = BTreeMap<PathBuf, StoredFile>;

    fn deref(&self) -> &Self::Target {
        &self.files
    }
}

impl FromIterator<StoredFile> for FileIndex {
    fn from_iter<I: IntoIterator<Item = StoredFile>>(entries: I) -> Self {
        let mut index = Self::default();
        entries.into_iter().for_each(|entry| index.insert(entry));
        index
    }
}

#[cfg(test)]
mod tests {
    use super::super::name::{Level, Name};
    use super::super::stamp::Stamp;
    use super::super::time_range::{TimeRange, TimeRanges};
    use super::*;

    fn entry(target: &str, second: u64, size: u64) -> StoredFile {
        let ns = second * 1_000_000_000;
        let time_range = TimeRange { boot: "boot".into(), from_ns: ns, to_ns: ns + 1, begin_unix_ns: ns };
        let stamp =
            Stamp::new(Level::Window, target.into(), BTreeMap::new(), TimeRanges::new(vec![time_range]));
        let name = Name::of(&stamp);
        StoredFile { path: name.path(), name, stamp, size }
    }

    #[test]
    fn room_and_targets_follow_what_comes_and_goes() {
        let entries = [entry("web", 1, 10), entry("db", 2, 20), entry("web", 3, 30)];
        let mut index: FileIndex = entries.iter().cloned().collect();
        let of =
            |index: &FileIndex, target: &str| index.of_target(target).map(|e| e.size).collect::<Vec<_>>();
        assert_eq!((index.len(), index.room(), of(&index, "web")), (3, 60, vec![10, 30]));
        index.insert(StoredFile { size: 15, ..entries[0].clone() });
        assert_eq!((index.len(), index.room(), of(&index, "web")), (3, 65, vec![15, 30]));
        assert!(index.remove(&entries[1].path).is_some() && index.remove(&entries[1].path).is_none());
        assert_eq!((index.room(), of(&index, "db"), index.of_targets.len()), (45, vec![], 1));
        index.keep_only(&BTreeSet::from([entries[2].path.clone()]));
        assert_eq!((index.len(), index.room(), of(&index, "web")), (1, 30, vec![30]));
    }
}
