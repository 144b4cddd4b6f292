//! Targets that are control groups: which processes join and leave them.

use profiler_core::attach::AttachMode;

use super::{Engine, GENERATIONS};
use crate::cgroup::Cgroup;
use crate::explain;
use crate::output::DecisionLog;
use crate::sys::{clock, family, procfs};

/// Time after which no other process is met until the next second (ns).
const MEET_NS: u64 = 50_000_000;

impl<L: DecisionLog> Engine<L> {
    /// Finds processes that have joined or left the target's group, and checks whether a group is still the target's
    /// own.
    pub(super) fn look_at_members(&mut self) {
        let uses_group =
            self.attaching.choice.offers_group() || self.attaching.choice.mode() == AttachMode::Cgroup;
        let own = self.attaching.group.as_ref().filter(|_| uses_group);
        let Some(group) = self.session.group().or(own) else { return };
        let mut members = group.processes().unwrap_or_default();
        members.sort_unstable();
        let known = |pid: &u32| self.session.processes.contains(*pid);
        let new: Vec<u32> = members.iter().copied().filter(|pid| !known(pid)).collect();
        let live = self.session.processes.live().map(|(pid, _)| pid);
        let missing: Vec<u32> = live.filter(|pid| members.binary_search(pid).is_err()).collect();
        if self.session.group().is_some() {
            missing.into_iter().for_each(|pid| self.session.leave(pid));
            self.attaching.joining = new.into(); // those not met now are found again
            self.meet_joining();
        } else if !missing.into_iter().all(procfs::has_ended) {
            self.attaching.attach_changed |= self.attaching.choice.lose_group().is_some();
            if self.attaching.choice.mode() == AttachMode::Cgroup {
                self.note(explain::LEFT_GROUP.to_owned()); // asked for, so it stays
            }
        }
    }

    /// Processes have joined or left the target, according to its owner.
    pub(crate) fn apply_member_changes(&mut self, joined: &[u32], left: &[u32]) {
        // Processes that have ended may still have samples on the way, and need a last reading.
        for &pid in left {
            match procfs::has_ended(pid) {
                true => self.session.may_have_ended(pid),
                false => {
                    self.take_clocks_from(pid);
                    self.session.leave(pid);
                }
            }
        }
        joined.iter().for_each(|&pid| self.session.include(pid));
        self.attaching.joining.retain(|pid| !left.contains(pid));
        self.attaching.joining.extend(joined);
        self.meet_joining();
    }

    /// A process that lives on is another target's from now on: clocks of its threads go with the next renewal.
    fn take_clocks_from(&mut self, pid: u32) {
        let has_clocks =
            self.attaching.choice.mode() == AttachMode::Task && self.session.processes.contains(pid);
        self.attaching.members_changed |= has_clocks;
    }

    /// Follows processes that have joined, for a limited time: rings fill meanwhile.
    pub(super) fn meet_joining(&mut self) {
        let until_ns = clock::monotonic_ns().saturating_add(MEET_NS);
        let mut came = false;
        while let Some(pid) = self.attaching.joining.pop_front() {
            if !self.session.processes.contains(pid) {
                self.meet(pid);
                came |= self.session.processes.contains(pid);
            }
            if clock::monotonic_ns() >= until_ns {
                break;
            }
        }
        if came {
            self.attaching.members_changed |= self.attaching.choice.mode() == AttachMode::Task;
            self.rouse(); // a new process may end before a rare step
        }
    }

    /// Processes have joined or left other targets. If the target is a control group, its members stay.
    pub(crate) fn leave_to_others(&mut self, others: &[u32], no_longer: &[u32]) {
        if self.session.group().is_none() {
            no_longer.iter().for_each(|&pid| self.session.include(pid));
            for &pid in others {
                self.take_clocks_from(pid);
                self.session.exclude_one(pid);
            }
        }
    }

    /// Whether no process of the target is left.
    pub(crate) fn target_has_ended(&self) -> bool {
        let nobody_known = self.session.processes.live().next().is_none();
        nobody_known && self.session.group().is_none_or(|group| others_in(group).is_empty())
    }

    /// Whether a process is in the target's control group, other than this one.
    pub(crate) fn group_has_others(&self) -> bool {
        self.session.group().is_some_and(|group| !others_in(group).is_empty())
    }

    /// Whether the target's control group was removed: events of it sample nothing any more.
    pub(crate) fn group_is_gone(&self) -> bool {
        self.session.group().is_some_and(|group| group.is_gone())
    }

    /// Whether a process that comes after the last one has left can be sampled by the present events, or by others in
    /// their place. For processes in a group of their own, it is unknown where the next ones will be.
    pub(crate) fn takes_newcomers(&self) -> bool {
        self.session.group().is_some() || self.attaching.choice.mode() != AttachMode::Cgroup
    }

    /// Whether no process can join any more, because the group was removed. Other targets do not wait for processes.
    pub(crate) fn nobody_can_come(&self) -> bool {
        self.session.group().is_none_or(|group| group.is_gone())
    }

    /// Follows all processes of the target's group, until nothing new is found.
    pub(crate) fn adopt_members(&mut self) {
        for _ in 0..GENERATIONS {
            let Some(group) = self.session.group() else { return };
            let mut pids = others_in(group);
            pids.retain(|pid| !self.session.processes.contains(*pid));
            if pids.is_empty() {
                return;
            }
            pids.into_iter().for_each(|pid| self.meet(pid));
        }
    }

    fn meet(&mut self, pid: u32) {
        if let Err(error) = self.session.meet(pid)
            && let Some(line) = explain::member(&error)
        {
            self.note(line);
        }
    }
}

/// The processes of a group, without ourselves.
pub(crate) fn others_in(group: &Cgroup) -> Vec<u32> {
    let mut pids = group.processes().unwrap_or_default();
    pids.retain(|pid| !family::is_ours(*pid));
    pids
}
