//! Which processes are sampled: those of the target, of a control group, of many targets, or all but those of others.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::clocks::ClockedCpu;
use super::ended::ProcessNames;
use super::{Owner, Owners, Session};
use crate::cgroup::Cgroup;
use crate::sys::{clock, family, procfs};

/// Which processes belong to the target, besides the known ones.
#[derive(Default)]
pub(super) struct Members {
    /// The control group, if the target is one.
    group: Option<Arc<Cgroup>>,
    /// Whether an unknown process that is sampled belongs to the target.
    pub(super) meets_unknown: bool,
    /// Processes of other targets: they do not belong to this one, even where unknown processes do.
    pub(super) excluded: FxHashSet<u32>,
    /// Children of excluded processes that were created since the last scan: the service does not know their target yet.
    pub(super) born_to_excluded: FxHashSet<u32>,
    /// Names of processes that may have ended before they are met.
    pub(super) names: ProcessNames,
    /// The child that has yet to execute its program.
    pub(super) awaited: Option<u32>,
}

impl Session {
    /// A program has ended, because its process ended or executed another one.
    pub(super) fn program_ended(&mut self, pid: u32) {
        self.stacks.forget_process(pid);
        if let Some(process) = self.processes.get(pid) {
            // Any target may have samples of programs that ended before.
            let frames = || self.counted.frames().copied().collect();
            self.code.jit.ended(process.index, frames, &self.code.objects.roots, &self.code.objects.names);
        }
    }

    /// Follows a child that has yet to execute `program`. Until it does, samples keep their kernel frames, which are the start of that
    /// program, and lose their user frames, which are the profiler's own code.
    pub(crate) fn await_exec(&mut self, pid: u32, program: &str) {
        self.processes.adopt(pid, program);
        self.cpu.adopt(pid);
        self.members.awaited = Some(pid);
    }

    /// The target is this control group, with the groups below and all future members. `alone`: no other target is
    /// sampled, so that any unknown process must be a new member.
    pub(crate) fn follow_group(&mut self, group: Arc<Cgroup>, alone: bool) {
        self.members.meets_unknown = alone;
        self.cpu.scheduled.follow_group(Arc::clone(&group));
        self.members.group = Some(group);
    }

    /// This session samples many targets: each process belongs to one of them, or to none once that is known.
    pub(crate) fn follow_owners(&mut self) {
        self.follow_everything();
        self.counted.owners = Some(Owners::default());
    }

    /// Declares that there are other targets, which children of this one's processes may join.
    pub(crate) fn is_one_of_many(&mut self) {
        self.cpu.clocked = Some(ClockedCpu::default());
    }

    /// A scan has assigned a process to `owner`, or to no target. `is_program`: it belongs there because of its
    /// program, so that others of that name that end before a scan count for the same target.
    pub(crate) fn assign(&mut self, pid: u32, owner: Option<Owner>, is_program: bool) {
        match owner {
            Some(_) => self.include(pid),
            // Sampled elsewhere, it is not of the rest either.
            None if self.members.excluded.contains(&pid) => return self.leave(pid),
            None => {}
        }
        let process = self.processes.get(pid).map(|process| process.index);
        let program = process.map(|index| self.processes.infos()[index.0 as usize].comm.clone());
        let Some(owners) = &mut self.counted.owners else { return };
        if let Some(program) = program {
            owners.note_program(program, owner.filter(|_| is_program));
        }
        owners.assign(pid, owner);
        if owners.is_unassigned(pid) {
            self.stop_counting(pid);
        }
    }

    /// The processes that the present scan covers and whose target was unknown before, such as those that have executed
    /// another program.
    pub(crate) fn seen_waiting(&self) -> Vec<u32> {
        self.counted.owners.iter().flat_map(Owners::seen_waiting).collect()
    }

    /// A scan of all processes has ended, after each process of a target was assigned.
    pub(crate) fn scan_ended(&mut self) {
        let Some(owners) = &mut self.counted.owners else { return };
        let unassigned = owners.scan_ended(procfs::has_ended);
        for process in unassigned.live.iter().filter_map(|pid| self.processes.get(*pid)) {
            owners.note_program(self.processes.infos()[process.index.0 as usize].comm.clone(), None);
        }
        unassigned.ended.into_iter().for_each(|pid| self.may_have_ended(pid));
        unassigned.live.into_iter().for_each(|pid| self.stop_counting(pid));
    }

    /// Stops counting a process.
    pub(super) fn stop_counting(&mut self, pid: u32) {
        self.cpu.left(pid);
        self.program_ended(pid);
        self.processes.forget(pid);
        self.rereads.forget(pid);
    }

    /// The target is every process of the machine, present and future, except the excluded ones.
    pub(crate) fn follow_everything(&mut self) {
        self.members.meets_unknown = true;
        self.cpu.scheduled.follow_machine();
    }

    /// Excludes the processes of other targets, with their future children; all other processes belong to this target.
    pub(crate) fn exclude(&mut self, others: &FxHashSet<u32>) {
        let is_counted = |pid: &u32| {
            let owners = self.counted.owners.as_ref();
            self.processes.contains(*pid) || owners.is_some_and(|owners| owners.is_known(*pid))
        };
        let theirs: Vec<u32> = others.iter().copied().filter(is_counted).collect();
        theirs.into_iter().for_each(|pid| self.leave(pid));
        self.members.excluded.clone_from(others);
        self.members.excluded.extend(&self.members.born_to_excluded);
    }

    /// A process was created by one that is excluded. It is excluded too: it may end before a scan finds it.
    pub(super) fn exclude_birth(&mut self, pid: u32) {
        self.members.excluded.insert(pid);
        self.members.born_to_excluded.insert(pid);
    }

    /// A scan has found the targets of the children of excluded processes. Which of them are excluded, the next call of [`Self::exclude`] says.
    pub(crate) fn births_are_known(&mut self) {
        self.members.born_to_excluded.clear();
    }

    /// This process belongs to another target, whichever process created it.
    pub(crate) fn exclude_one(&mut self, pid: u32) {
        self.members.excluded.insert(pid);
        if self.processes.contains(pid) {
            self.leave(pid);
        }
    }

    /// A process is no longer excluded: it left the other target, or has ended.
    pub(crate) fn include(&mut self, pid: u32) {
        self.members.excluded.remove(&pid);
        self.members.born_to_excluded.remove(&pid);
    }

    /// The control group, if the target is one.
    pub(crate) fn group(&self) -> Option<&Arc<Cgroup>> {
        self.members.group.as_ref()
    }

    /// Follows a process that has come into the group by itself; the error says which of its code has no names.
    /// Nothing happens if it has ended, or is this process.
    pub(crate) fn meet(&mut self, pid: u32) -> Result<(), ::procfs::ProcError> {
        if family::is_ours(pid) || procfs::has_ended(pid) {
            return Ok(());
        }
        self.stacks.unwinder.note_change();
        self.adopt(pid)
    }

    /// [`Self::meet`] for a sampled process. If it has ended meanwhile, its CPU time still counts, and it stays known
    /// until the next reading. This process is never met.
    pub(super) fn meet_by_sample(&mut self, pid: u32) {
        if !family::is_ours(pid) {
            self.stacks.unwinder.note_change();
            let _ = self.adopt(pid); // unnamed code is counted as such
            if clock::process_cpu_ns(pid).is_none() {
                self.readings.exits.doubt(pid);
            }
        }
    }

    /// A process has left the target.
    pub(crate) fn leave(&mut self, pid: u32) {
        if let Some(owners) = &mut self.counted.owners {
            owners.leave(pid);
        }
        self.stop_counting(pid);
    }

    /// Checks at the next reading whether a process has ended: the record of its end may have been lost.
    pub(crate) fn may_have_ended(&mut self, pid: u32) {
        self.readings.exits.doubt(pid);
    }
}
