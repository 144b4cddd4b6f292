//! Merging windows into hours, and hours into days.

use std::fs;
use std::path::{Path, PathBuf};

use profiler_core::merge::{Merger, Range};
use profiler_core::profile::SymbolizedProfile;

use super::disk::Disk;
use super::listing::{self, Entry};
use super::name::Level;
use super::plan::{self, Group, Now};
use super::seal::{self, Sealed};
use super::stamp::Stamp;
use super::stretch::Stretches;
use super::waiting::Unmerged;
use super::{Store, is_full};

/// All time there is.
const EVER: Range = Range { from_unix_ns: 0, to_unix_ns: u64::MAX };

/// What becomes of a group.
enum Work {
    /// One file in place of several.
    Replace { stamp: Stamp, sealed: Sealed, sources: Vec<PathBuf> },
    /// Files go whose time another one holds already: an earlier merge could not remove them.
    Remove(Vec<PathBuf>),
}

impl Level {
    /// How finely a file of this level keeps its time (ns).
    fn bin_ns(self) -> u64 {
        let seconds = match self {
            Self::Window | Self::Hour => 60,
            Self::Day => 600,
        };
        seconds * 1_000_000_000
    }
}

impl<D: Disk> Store<D> {
    /// Does what is due: removes what is too old, then merges the files of one hour or one day of a target. Whether there
    /// was something to merge; there may be more.
    pub(crate) fn maintain(&mut self, now: &Now) -> bool {
        self.expire(now);
        self.waits.retain(&self.index);
        let room = if self.waits.is_empty() { 0 } else { self.room() };
        let waits = |group: &Group| self.waits.hold(group, now.monotonic_ns, room);
        let Some(group) = plan::next_group(&self.index, &self.settings, now, waits) else { return false };
        let merged = self.merge(&group).ok_or(Unmerged::Refused).and_then(|work| self.carry_out(work));
        match merged {
            Ok(()) => self.counters.merged += 1,
            Err(why) => {
                self.counters.unmerged += 1;
                let room = self.room();
                self.waits.add(group, why, now.monotonic_ns, room);
            }
        }
        true
    }

    /// Reads the files of a group and adds them up, no time twice. Nothing if that leaves nothing to do.
    fn merge(&mut self, group: &Group) -> Option<Work> {
        loop {
            let found: Vec<Entry> =
                group.paths.iter().filter_map(|path| self.index.get(path).cloned()).collect();
            let choice = listing::choose(&found);
            let counted: Vec<&Entry> = choice.counted.iter().map(|&at| &found[at]).collect();
            let mut merger = Merger::new(EVER, group.level.bin_ns());
            let sound = counted.iter().filter(|entry| {
                let profile = self.profile(&entry.path);
                profile.is_some_and(|profile| merger.add(&profile))
            });
            if sound.count() < counted.len() {
                continue; // once more without what was set aside: others may hold its time
            }
            let held = choice.held.iter().map(|&at| found[at].path.clone());
            if counted.len() < 2 {
                let held: Vec<PathBuf> = held.collect();
                return (!held.is_empty()).then_some(Work::Remove(held));
            }
            let stretches = Stretches::union(counted.iter().map(|entry| &entry.stamp.stretches));
            let Stamp { target, labels, .. } = counted[0].stamp.clone();
            let stamp = Stamp::new(group.level, target, labels, stretches);
            let profile = merger.finish();
            let sealed = seal::seal(&stamp, &profile).ok().filter(|sealed| reads_back(sealed, &profile))?;
            let sources = counted.iter().map(|entry| entry.path.clone()).chain(held).collect();
            return Some(Work::Replace { stamp, sealed, sources });
        }
    }

    /// What a file holds. One that is damaged, or that the disk does not give back, is set aside.
    fn profile(&mut self, path: &Path) -> Option<SymbolizedProfile> {
        let name = self.index.get(path)?.name.clone();
        let opened = fs::read(self.folder.join(path)).ok().and_then(|bytes| seal::open(&name, &bytes).ok());
        if opened.is_none() {
            self.set_aside(path);
        }
        opened
    }

    fn carry_out(&mut self, work: Work) -> Result<(), Unmerged> {
        match work {
            Work::Remove(held) if self.remove_all(&held) == held.len() as u64 => Ok(()),
            Work::Remove(_) => Err(Unmerged::Refused),
            Work::Replace { stamp, sealed, sources } => self.replace(stamp, &sealed, &sources),
        }
    }

    /// Writes what files became, then removes them; in between, readers ignore the files.
    ///
    /// For that moment, both take room. It is made by the oldest files, unless these are among those to be merged.
    fn replace(&mut self, stamp: Stamp, sealed: &Sealed, sources: &[PathBuf]) -> Result<(), Unmerged> {
        let size = listing::room(sealed.bytes.len() as u64);
        let over = self.size().1.saturating_add(size).saturating_sub(self.settings.bytes);
        let oldest = plan::oldest(&self.index, over);
        let freed: u64 = oldest.iter().filter_map(|path| self.index.get(path)).map(|entry| entry.size).sum();
        if freed < over || oldest.iter().any(|path| sources.contains(path)) {
            return Err(Unmerged::NoRoom(size));
        }
        self.counters.evicted += self.remove_all(&oldest);
        self.put(stamp, sealed).map_err(|cause| match is_full(&cause) {
            true => Unmerged::NoRoom(size),
            false => Unmerged::Refused,
        })?;
        self.remove_all(sources);
        Ok(())
    }

    /// Room that is left, by the settings and on the disk (bytes).
    fn room(&self) -> u64 {
        self.settings.bytes.saturating_sub(self.size().1).min(self.disk.free(&self.folder))
    }
}

/// Whether a reader gets all that was merged: files have bounds, and the sources are about to go.
fn reads_back(sealed: &Sealed, profile: &SymbolizedProfile) -> bool {
    let sums = |profile: &SymbolizedProfile| {
        let stacks = profile.stacks.iter();
        let (samples, cpu_ns) = stacks.fold((0_u128, 0_u128), |(samples, cpu_ns), stack| {
            (samples + u128::from(stack.samples), cpu_ns + u128::from(stack.cpu_ns))
        });
        (profile.stacks.len(), profile.windows.len(), samples, cpu_ns)
    };
    seal::open(&sealed.name, &sealed.bytes).is_ok_and(|again| sums(&again) == sums(profile))
}
