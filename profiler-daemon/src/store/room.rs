//! Keeping a store within its bounds.

use std::path::{Path, PathBuf};

use super::disk::{Disk, Op};
use super::listing::DAMAGED;
use super::plan::{self, Now};
use super::{Store, name};

impl<D: Disk> Store<D> {
    /// Makes room for a file of this size: what is too old goes, then what is damaged, then the oldest. Whether there is
    /// room now.
    pub(super) fn make_room(&mut self, size: u64, now: &Now) -> bool {
        self.expire(now);
        let bound = self.settings.bytes;
        if size > bound {
            return false;
        }
        let over = |store: &Self| (store.size().1.saturating_add(size)).saturating_sub(bound);
        while over(self) > 0
            && let Some(first) = self.damaged.keys().next().cloned()
        {
            self.counters.evicted += u64::from(self.remove_damaged(&first));
        }
        if over(self) > 0 {
            let oldest = plan::oldest(&self.index, over(self));
            self.counters.evicted += self.remove_all(&oldest);
        }
        over(self) == 0
    }

    /// Removes what is too old.
    pub(crate) fn expire(&mut self, now: &Now) {
        let expired = plan::expired(&self.index, self.settings.age_ns, now);
        self.counters.expired += self.remove_all(&expired);
        let oldest_s = now.unix_ns.saturating_sub(self.settings.age_ns) / 1_000_000_000;
        let last_day = PathBuf::from(name::day_of(oldest_s));
        // Their names begin with their days.
        let damaged: Vec<PathBuf> = self.damaged.range(..last_day).map(|(name, _)| name.clone()).collect();
        for file in damaged {
            self.counters.expired += u64::from(self.remove_damaged(&file));
        }
    }

    /// Removes files, and the folders of days that are empty then; how many are gone.
    pub(super) fn remove_all(&mut self, paths: &[PathBuf]) -> u64 {
        let mut gone = 0;
        let mut days: Vec<PathBuf> = Vec::new();
        for path in paths {
            gone += u64::from(self.remove(path));
            let day = path.parent().unwrap_or(Path::new("")).to_owned();
            if days.last() != Some(&day) {
                days.push(day);
            }
        }
        for day in days {
            let folder = self.folder.join(&day);
            if self.index.keys().any(|path| path.starts_with(&day)) {
                self.sync(&folder);
            } else {
                // Fails if somebody else has put something there, which is then none of our business.
                let _ = self.disk.apply(Op::RemoveFolder(&folder));
            }
        }
        gone
    }

    fn remove_damaged(&mut self, name: &Path) -> bool {
        let path = self.folder.join(DAMAGED).join(name);
        let gone = self.disk.apply(Op::Remove(&path)).is_ok() || !path.exists();
        // What cannot be removed is not tried again and again; the next start finds it.
        self.damaged.remove(name);
        gone
    }
}
