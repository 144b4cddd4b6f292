//! What processes inherit from their creators, and which target follows.

use rustc_hash::FxHashMap;

use super::Changes;
use super::look::{Processes, ScanContext};
use super::process::{Counted, KnownProcess, Life};
use super::table::{TargetId, TargetTable};
use crate::sys::family;

/// Generations that may start and end between two scans.
const MAX_GENERATIONS: usize = 64;
/// Births that are kept until the next scan.
const MAX_BIRTHS: usize = 1 << 16;

/// Births and ends since the last scan.
#[derive(Debug, Default)]
pub(super) struct Lineage {
    /// Creators of processes, from records.
    births: FxHashMap<u32, u32>,
    /// What children of processes that ended inherit.
    estates: FxHashMap<u32, Option<TargetId>>,
}

impl Lineage {
    pub(super) fn born(&mut self, pid: u32, creator: u32) {
        if self.births.len() < MAX_BIRTHS {
            self.births.insert(pid, creator);
        }
    }

    pub(super) fn ended(&mut self, pid: u32, heritage: Option<TargetId>) {
        self.estates.insert(pid, heritage);
    }

    pub(super) fn clear(&mut self) {
        self.births.clear();
        self.estates.clear();
    }
}

impl Processes {
    /// Finds the creator of a new process: from a record, or its parent. If the creator has ended since the
    /// last scan, the process inherits what it left.
    pub(super) fn find_creator(&mut self, pid: u32) {
        let Some(child) = self.all.get(&pid) else { return };
        let start = child.stat.start;
        let mut creator = self.lineage.births.get(&pid).copied().unwrap_or(child.stat.parent);
        let (mut found, mut inherited) = (None, None);
        for _ in 0..MAX_GENERATIONS {
            // A process that began later has reused the id of the ended creator.
            let living = self.all.get(&creator).filter(|creator| creator.stat.start <= start);
            if let Some(ended) = living.filter(|living| living.stat.has_ended) {
                inherited = ended.heritage();
                break;
            }
            if let Some(living) = living {
                found = Some(Life { pid: creator, start: living.stat.start });
                break;
            }
            if let Some(estate) = self.lineage.estates.get(&creator) {
                inherited = *estate;
                break;
            }
            let Some(&before) = self.lineage.births.get(&creator) else { break };
            creator = before;
        }
        if let Some(child) = self.all.get_mut(&pid) {
            (child.creator, child.inherited) = (found, inherited);
        }
    }

    /// Finds the targets of these processes, or of all if what some inherit may have changed, and records the
    /// differences in `changes`.
    pub(super) fn settle_all(
        &mut self,
        mut touched: Vec<u32>,
        heritage_changed: bool,
        terms: &mut ScanContext<'_>,
        changes: &mut Changes,
    ) {
        if heritage_changed {
            touched = self.all.keys().copied().collect();
            self.round += 1;
        }
        for pid in &touched {
            if let Some(process) = self.all.get_mut(pid) {
                process.settled = 0;
            }
        }
        touched.sort_unstable();
        touched.dedup();
        self.round = self.round.max(1);
        touched.iter().for_each(|pid| self.settle(*pid, terms));
        touched.iter().for_each(|pid| self.report(*pid, terms.table, changes));
        changes.left.sort_unstable();
        changes.joined.sort_unstable();
    }

    /// Finds the target of a process, after those that it inherits from.
    fn settle(&mut self, pid: u32, terms: &mut ScanContext<'_>) {
        let (mut line, mut next) = (Vec::new(), Some(pid));
        while let Some(pid) = next {
            let unsettled = self.all.get_mut(&pid).filter(|process| process.settled != self.round);
            let Some(process) = unsettled else { break };
            process.settled = self.round; // also ends a line that leads back to itself
            line.push(pid);
            let creator = process.creator;
            next = creator.filter(|creator| self.lives(*creator).is_some()).map(|creator| creator.pid);
        }
        line.into_iter().rev().for_each(|pid| self.settle_one(pid, terms));
    }

    fn settle_one(&mut self, pid: u32, terms: &mut ScanContext<'_>) {
        let Some(process) = self.all.get(&pid) else { return };
        let belongs = process.can_belong() && pid != self.own && !family::is_reader(pid);
        let inherited = match process.creator.and_then(|creator| self.lives(creator)) {
            _ if process.stat.is_kernel || pid == self.own || family::is_reader(pid) => None,
            Some(creator) => creator.heritage(),
            None => process.inherited, // inherited from a creator that has ended
        };
        let inherited = inherited.filter(|id| terms.table.has(*id));
        let own = process.own.filter(|id| terms.table.has(*id));
        let target = own.or(inherited).filter(|_| belongs);
        let target = match (target, terms.finder.everything) {
            (None, Some(at)) if belongs => self.target_in(pid, at, terms),
            _ => target,
        };
        target.into_iter().for_each(|id| terms.table.claim(id));
        if target.is_some()
            && let Some(mut subject) = self.subject(pid)
        {
            subject.place_id(); // for the labels
        }
        if let Some(process) = self.all.get_mut(&pid) {
            (process.inherited, process.target) = (inherited, target);
        }
    }

    /// The process, unless it has ended.
    fn lives(&self, life: Life) -> Option<&KnownProcess> {
        let process = self.all.get(&life.pid)?;
        (process.stat.start == life.start && !process.stat.has_ended).then_some(process)
    }

    /// Records in the table and in `changes` which target a process belongs to now.
    fn report(&mut self, pid: u32, table: &mut TargetTable, changes: &mut Changes) {
        let Some(process) = self.all.get_mut(&pid) else { return };
        let place = process.facts.known_place();
        let now = process.target.map(|target| Counted { target, place });
        let ticks = std::mem::take(&mut process.new_ticks);
        let was = std::mem::replace(&mut process.counted, now);
        if let Some(user) = was.or(now) {
            table.charge(user.target, ticks);
        }
        if was == now {
            return;
        }
        was.into_iter().for_each(|was| table.leave(pid, was));
        now.into_iter().for_each(|now| table.enter(pid, now));
        let (was, now) = (was.map(|was| was.target), now.map(|now| now.target));
        if was != now {
            changes.left.extend(was.map(|target| (target, pid)));
            changes.joined.extend(now.map(|target| (target, pid)));
        }
    }
}
