//! Merging windows into hours, and hours into days.

use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use profiler_core::merge::{Merger, Range};
use profiler_core::profile::SymbolizedProfile;

use super::disk::Disk;
use super::listing::{self, StoredFile};
use super::name::Level;
use super::outbox::MOST_UNMERGED;
use super::place;
use super::plan::{self, MergeGroup, Now};
use super::seal::{self, Sealed};
use super::stamp::Stamp;
use super::time_range::TimeRanges;
use super::waiting::{Unmerged, Waits};
use super::{Store, is_full};

/// All time there is.
const EVER: Range = Range { from_unix_ns: 0, to_unix_ns: u64::MAX };

/// What becomes of a group.
enum Work {
    /// One file in place of several.
    Replace { stamp: Stamp, sealed: Sealed, sources: Vec<PathBuf> },
    /// Files go whose time another one in this folder holds already: an earlier merge could not remove them.
    Remove(Vec<PathBuf>, PathBuf),
}

/// Which files are merged next.
#[derive(Debug)]
pub(super) struct MergeQueue {
    pub(super) waits: Waits,
    /// Files that may wait to be sent before they are merged.
    pub(super) most_unmerged: usize,
    /// Whether days are looked for before hours: they take turns, so that neither waits for all of the other.
    days_first: bool,
}

impl Default for MergeQueue {
    fn default() -> Self {
        Self { waits: Waits::default(), most_unmerged: MOST_UNMERGED, days_first: false }
    }
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
    /// Does what is due: removes what is too old, then merges the files of one hour or one day of a target, as long as it
    /// `may_go_on`, which is asked before each of them. Whether there was something to merge; there may be more.
    pub fn maintain(&mut self, now: &Now, may_go_on: &dyn Fn() -> bool) -> bool {
        if self.look_over(now).is_err() {
            return false;
        }
        self.merges.waits.retain(&self.index);
        let room = if self.merges.waits.is_empty() { 0 } else { self.room() };
        let waits = |group: &MergeGroup| self.merges.waits.hold(group, now.monotonic_ns, room);
        let classes = self.outboxes.classes(self.merges.most_unmerged);
        let class = |path: &Path| classes.of(path);
        let Some(group) =
            plan::next_group(&self.index, &self.settings, now, self.merges.days_first, class, waits)
        else {
            return false;
        };
        if !self.outboxes.claim(&group.paths) {
            return false; // one of them is being sent by now
        }
        self.merges.days_first = group.level != Level::Day;
        // What is read are files: nothing that they hold may end the one that keeps windows.
        let work = catch_unwind(AssertUnwindSafe(|| self.merge(&group, may_go_on)))
            .unwrap_or_else(|_| Err(failed("internal error; see sweetspot's log")));
        let done = work.and_then(|work| self.carry_out(work, now));
        self.outboxes.release(&group.paths);
        match done {
            Ok(()) => {
                self.counters.merged += 1;
                self.merges.waits.end(&group);
            }
            Err(Unmerged::GivenUp) => return false,
            Err(Unmerged::Moot) => {}
            Err(why) => {
                self.counters.unmerged += 1;
                let room = self.room();
                self.merges.waits.add(group, why, now.monotonic_ns, room);
            }
        }
        true
    }

    /// Reads the files of a group and adds them up, no time twice.
    fn merge(&mut self, group: &MergeGroup, may_go_on: &dyn Fn() -> bool) -> Result<Work, Unmerged> {
        loop {
            let found: Vec<StoredFile> =
                group.paths.iter().filter_map(|path| self.index.get(path).cloned()).collect();
            let choice = listing::choose(&found);
            let counted: Vec<&StoredFile> = choice.counted.iter().map(|&at| &found[at]).collect();
            let Some(profile) = self.sum(group, &counted, may_go_on)? else {
                continue; // once more without what is gone: others may hold its time
            };
            let held: Vec<PathBuf> = choice.held.iter().map(|&at| found[at].path.clone()).collect();
            if let [] | [_] = counted.as_slice() {
                let day = counted.first().and_then(|entry| entry.path.parent()).unwrap_or(Path::new(""));
                return match (held.is_empty(), choice.overlapping.is_empty()) {
                    (false, _) => Ok(Work::Remove(held, day.to_owned())),
                    (true, true) => Err(Unmerged::Moot),
                    (true, false) => {
                        Err(failed("other files cover a part of their time; check what was put there"))
                    }
                };
            }
            let time_ranges = TimeRanges::union(counted.iter().map(|entry| &entry.stamp.time_ranges));
            let Stamp { target, labels, .. } = counted[0].stamp.clone();
            let stamp = Stamp::new(group.level, target, labels, time_ranges);
            let sealed = seal::seal(&stamp, &profile).map_err(|cause| failed(&cause.to_string()))?;
            if !reads_back(&sealed, &profile) {
                return Err(failed(
                    "the merged file would exceed the limits for reading; the files stay unmerged",
                ));
            }
            let sources = counted.iter().map(|entry| entry.path.clone()).chain(held).collect();
            return Ok(Work::Replace { stamp, sealed, sources });
        }
    }

    /// The sum of the files; `None` if one of them is gone, or is damaged and was set aside.
    fn sum(
        &mut self,
        group: &MergeGroup,
        counted: &[&StoredFile],
        may_go_on: &dyn Fn() -> bool,
    ) -> Result<Option<SymbolizedProfile>, Unmerged> {
        let mut merger = Merger::new(EVER, group.level.bin_ns());
        for entry in counted {
            if !may_go_on() {
                return Err(Unmerged::GivenUp);
            }
            match place::read(&self.folder.join(&entry.path)) {
                Ok(bytes) => match seal::open(&entry.name, &bytes) {
                    Ok(profile) if merger.add(&profile) => continue,
                    Ok(_) => return Err(failed("one of them covers no time; check what was put there")),
                    Err(_) => self.set_aside(&entry.path),
                },
                Err(cause) if cause.kind() == ErrorKind::NotFound => drop(self.forget(&entry.path)),
                // That says nothing of the file: there may be too many open ones, or the disk has a bad moment.
                Err(cause) => {
                    let path = entry.path.display();
                    return Err(failed(&format!("{path} cannot be read ({cause}); look at the disk")));
                }
            }
            return Ok(None);
        }
        if may_go_on() { Ok(Some(merger.finish())) } else { Err(Unmerged::GivenUp) }
    }

    fn carry_out(&mut self, work: Work, now: &Now) -> Result<(), Unmerged> {
        match work {
            Work::Remove(held, day) => {
                let day = self.folder.join(day);
                if !self.sync(&day) {
                    return Err(unsynced());
                }
                let gone = self.remove_all(&held) == held.len() as u64;
                if gone { Ok(()) } else { Err(failed("the disk removes no files; check it")) }
            }
            Work::Replace { stamp, sealed, sources } => self.replace(stamp, &sealed, &sources, now),
        }
    }

    /// Writes the merged file, then removes its sources; in between, readers ignore the sources.
    ///
    /// Until the sources are removed, both take room. The oldest files are evicted for it; if a source is among them,
    /// the merge fails with [`Unmerged::NoRoom`] and evicts nothing.
    fn replace(
        &mut self,
        stamp: Stamp,
        sealed: &Sealed,
        sources: &[PathBuf],
        now: &Now,
    ) -> Result<(), Unmerged> {
        let size = listing::room(sealed.bytes.len() as u64);
        let over = self.size().1.saturating_add(size).saturating_sub(self.settings.bytes);
        let oldest = plan::oldest(&self.index, over, now);
        let freed: u64 = oldest.iter().filter_map(|path| self.index.get(path)).map(|entry| entry.size).sum();
        if freed < over || oldest.iter().any(|path| sources.contains(path)) {
            return Err(Unmerged::NoRoom(size));
        }
        self.counters.evicted += self.remove_all(&oldest);
        let is_synced = self.put_synced(stamp, sealed).map_err(|cause| match is_full(&cause) {
            true => Unmerged::NoRoom(size),
            false => failed(&format!("the disk refuses the merged file ({cause}); check it")),
        })?;
        if let Some(entry) = self.index.get(&sealed.name.path()) {
            self.outboxes.merged(sources, entry);
        }
        if !is_synced {
            return Err(unsynced()); // a power failure may take the file: what it is made of stays beside it
        }
        self.remove_all(sources);
        Ok(())
    }

    /// Room that is left, by the settings and on the disk (bytes).
    fn room(&self) -> u64 {
        self.settings.bytes.saturating_sub(self.size().1).min(self.disk.free(&self.folder))
    }
}

fn failed(why: &str) -> Unmerged {
    Unmerged::Failed(why.to_owned())
}

fn unsynced() -> Unmerged {
    failed("the disk does not confirm the merged file; check it")
}

/// Whether a reader gets everything that was merged: files have size limits, and the sources are about to be removed.
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
