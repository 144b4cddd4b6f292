//! Targets that the rules for labels drop. They keep their processes, so that these belong to no other target, but are
//! not reported: dropping a target looks like its end, and keeping it again like a new target.

use std::collections::{BTreeMap, BTreeSet};

use super::Changes;
use super::table::{TargetId, TargetTable};

/// Those that were dropped at the last look.
#[derive(Debug, Default)]
pub(super) struct DroppedTargets {
    /// With the CPU time that was seen of each by then, dropped or not (ticks).
    all: BTreeMap<TargetId, u64>,
    /// CPU time that targets used while they were dropped (ticks).
    ticks: u64,
}

impl DroppedTargets {
    pub(super) fn ids(&self) -> impl Iterator<Item = TargetId> {
        self.all.keys().copied()
    }

    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// Adds the CPU time used since the last call; returns the total (ticks).
    pub(super) fn count_ticks(&mut self, table: &TargetTable) -> u64 {
        for (id, seen) in &mut self.all {
            let now = table.cpu_ticks(*id).max(*seen);
            self.ticks = self.ticks.saturating_add(now - std::mem::replace(seen, now));
        }
        self.ticks
    }

    /// Removes dropped targets from `changes`: a newly dropped target appears there as ended, and one that is no longer
    /// dropped as new.
    pub(super) fn hide(&mut self, table: &TargetTable, changes: &mut Changes) {
        let now: BTreeSet<TargetId> = table.dropped().collect();
        if now.is_empty() && self.all.is_empty() {
            return;
        }
        self.count_ticks(table);
        let was = |id: &TargetId| self.all.contains_key(id);
        changes.changed.retain(|id| !was(id) && !now.contains(id));
        // Targets that were dropped from the start, or have ended since, were never reported.
        let new: BTreeSet<TargetId> = changes.appeared.iter().copied().collect();
        changes.appeared.retain(|id| !now.contains(id));
        changes.gone.retain(|id| !was(id));
        changes.left_dropped = changes.left.extract_if(.., |(id, _)| was(id)).collect();
        changes.joined_dropped = changes.joined.extract_if(.., |(id, _)| now.contains(id)).collect();
        for id in now.iter().filter(|id| !was(id) && !new.contains(*id)) {
            Self::end(*id, table, changes);
        }
        for id in self.ids().filter(|id| !now.contains(id)) {
            Self::begin(id, table, changes);
        }
        for list in [&mut changes.left, &mut changes.joined, &mut changes.joined_dropped] {
            list.sort_unstable();
        }
        let seen = |id: TargetId| (id, self.all.get(&id).copied().unwrap_or_else(|| table.cpu_ticks(id)));
        self.all = now.into_iter().map(seen).collect();
    }

    /// A target is dropped from now on: its processes are reported as having left, and join no target.
    fn end(id: TargetId, table: &TargetTable, changes: &mut Changes) {
        changes.gone.push(id);
        let pids = table.get(id).into_iter().flat_map(|entry| &entry.found.pids);
        let is_new = |pid: &u32| changes.joined_dropped.binary_search(&(id, *pid)).is_ok();
        let stay: Vec<(TargetId, u32)> = pids.filter(|pid| !is_new(pid)).map(|pid| (id, *pid)).collect();
        changes.left.extend(&stay);
        changes.joined_dropped.extend(stay);
        changes.joined_dropped.sort_unstable();
    }

    /// A target is no longer dropped, unless it has ended: its processes are reported as having joined.
    fn begin(id: TargetId, table: &TargetTable, changes: &mut Changes) {
        let Some(entry) = table.get(id) else { return };
        changes.appeared.push(id);
        changes.joined.retain(|(joined, _)| *joined != id);
        changes.joined.extend(entry.found.pids.iter().map(|pid| (id, *pid)));
    }
}
