//! Keeping a store within its bounds.

use std::io;
use std::path::{Path, PathBuf};

use super::disk::{Disk, Op};
use super::listing::{self, DAMAGED};
use super::plan::{self, Now};
use super::seal::Sealed;
use super::stamp::Stamp;
use super::{Store, StoreError, name};

/// Times that the oldest give way to one window: others may take what is freed.
const MOST_ROUNDS: usize = 3;
/// How often it is looked what others did in the folder (ns).
const LOOK_BESIDE_NS: u64 = 60_000_000_000;
/// How often it is looked what is too old (ns).
const EXPIRE_NS: u64 = 10_000_000_000;

impl<D: Disk> Store<D> {
    /// Makes room for a file of this size, if there is none: what is too old goes, then what is damaged, then the oldest. Whether
    /// there is room now.
    pub(super) fn make_room(&mut self, size: u64, now: &Now) -> bool {
        let bound = self.settings.bytes;
        if size > bound {
            return false;
        }
        let over = |store: &Self| (store.size().1.saturating_add(size)).saturating_sub(bound);
        if over(self) > 0 {
            self.expire(now);
        }
        while over(self) > 0
            && let Some(first) = self.damaged.keys().next().cloned()
        {
            self.counters.evicted += u64::from(self.remove_damaged(&first));
        }
        if over(self) > 0 {
            let oldest = plan::oldest(&self.index, over(self), now);
            self.counters.evicted += self.remove_all(&oldest);
        }
        over(self) == 0
    }

    /// Writes a file. Where others have filled the disk, the oldest files give way to it: no more of them than it needs, and
    /// none where the disk has no more room for it.
    ///
    /// # Errors
    ///
    /// If the disk refuses, or is full even so.
    pub(super) fn put_with_room(&mut self, stamp: Stamp, sealed: &Sealed, now: &Now) -> io::Result<()> {
        let size = listing::room(sealed.bytes.len() as u64);
        for _ in 0..MOST_ROUNDS {
            let refused = match self.put(stamp.clone(), sealed) {
                Err(cause) if is_crowded(&cause) => cause,
                put => return put,
            };
            let free = self.disk.free(&self.folder);
            if !self.give_way(size.saturating_sub(free), now) || self.disk.free(&self.folder) <= free {
                return Err(refused);
            }
        }
        self.put(stamp, sealed)
    }

    /// Removes as much of what is damaged and then of the oldest as frees this room, a file at least; whether anything is gone.
    fn give_way(&mut self, room: u64, now: &Now) -> bool {
        let (room, before, mut gone) = (room.max(1), self.size().1, 0);
        let left = |store: &Self| room.saturating_sub(before.saturating_sub(store.size().1));
        while left(self) > 0
            && let Some(first) = self.damaged.keys().next().cloned()
        {
            gone += u64::from(self.remove_damaged(&first));
        }
        let oldest = plan::oldest(&self.index, left(self), now);
        gone += self.remove_all(&oldest);
        self.counters.evicted += gone;
        self.counters.evicted_disk_full += gone;
        if gone > 0 {
            let note = format!(
                "other data has filled the disk of {}: {} of the oldest files were removed for new windows; \
                 free space on it, or lower store.bytes",
                self.folder.display(),
                self.counters.evicted_disk_full
            );
            if self.notes.crowded.is_none() {
                tracing::warn!("{note}");
            }
            self.notes.crowded = Some((now.monotonic_ns, note));
        }
        gone > 0
    }

    /// Looks at the folder, and removes what is too old.
    ///
    /// # Errors
    ///
    /// If somebody has taken the folder away, and it cannot be made anew.
    pub fn look_over(&mut self, now: &Now) -> Result<(), StoreError> {
        self.stay(now.monotonic_ns)?;
        if now.monotonic_ns.saturating_sub(self.looked_ns) >= LOOK_BESIDE_NS {
            self.looked_ns = now.monotonic_ns;
            self.look_beside(now.monotonic_ns);
        }
        if now.monotonic_ns.saturating_sub(self.expired_ns) >= EXPIRE_NS {
            self.expired_ns = now.monotonic_ns;
            self.expire(now);
        }
        Ok(())
    }

    /// Removes what is too old.
    pub(crate) fn expire(&mut self, now: &Now) {
        let expired = plan::expired(&self.index, self.settings.age_ns, now);
        self.counters.expired += self.remove_all(&expired);
        self.outboxes.prune(now, self.settings.age_ns);
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

/// Whether the disk is full in a way that removing files can mend.
fn is_crowded(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
