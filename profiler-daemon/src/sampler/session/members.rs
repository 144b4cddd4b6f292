//! Which processes are sampled: those of the target, of a control group, of many targets, or all but those of others.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::clocks::ClockedCpu;
use super::ended::Names;
use super::{Owner, Owners, Session};
use crate::cgroup::Cgroup;
use crate::sys::{clock, family, procfs};

/// Which processes belong to the target, beside those that it is known to have.
#[derive(Default)]
pub(super) struct Members {
    /// The group, where the target is whatever is in it.
    group: Option<Arc<Cgroup>>,
    /// Whether an unknown process that is sampled belongs to the target.
    pub(super) meets_unknown: bool,
    /// Processes that don't belong to it even where unknown ones do: those of other targets.
    pub(super) excluded: FxHashSet<u32>,
    /// What processes are called that may be met when they have ended.
    pub(super) names: Names,
    /// The child that has yet to execute its program.
    pub(super) awaited: Option<u32>,
}

impl Session {
    /// A program has ended: its process did, or goes on to be another one.
    pub(super) fn program_ended(&mut self, pid: u32) {
        self.stacks.earlier.forget_process(pid);
        self.stacks.deeper.forget(pid);
        let counted = match &self.owners {
            Some(owners) => owners.counted_of(pid),
            None => Some(&self.aggregator),
        };
        if let (Some(process), Some(counted)) = (self.processes.get(pid), counted) {
            let frames = counted.frames().frames();
            self.jit.ended(process.index, frames, &self.objects.roots, &self.objects.names);
        }
    }

    /// Follows a child that has yet to execute `program`. Until it does, samples keep their kernel frames, which are the start of that
    /// program, and lose their user frames, which are the profiler's own code.
    pub(crate) fn await_exec(&mut self, pid: u32, program: &str) {
        self.processes.adopt(pid, program);
        self.cpu.adopt(pid);
        self.members.awaited = Some(pid);
    }

    /// The target is whatever is in this group and below, and whatever comes into it; `alone` says that no other target is
    /// sampled, so that an unknown process must be one that has come into it.
    pub(crate) fn follow_group(&mut self, group: Arc<Cgroup>, alone: bool) {
        self.members.meets_unknown = alone;
        self.cpu.follow_group(Arc::clone(&group));
        self.members.group = Some(group);
    }

    /// The targets are many, and all are sampled by this session: every process belongs to one of them, or to none once that is known.
    pub(crate) fn follow_owners(&mut self) {
        self.follow_everything();
        self.owners = Some(Owners::default());
    }

    /// There are other targets, to which processes may go that this one's have created.
    pub(crate) fn is_one_of_many(&mut self) {
        self.clocked_cpu = Some(ClockedCpu::default());
    }

    /// A look has found that a process belongs to this target from now on, or to none. `is_program` says that a process belongs to the
    /// target for its program: others of that name are taken for its too, if they end before a look.
    pub(crate) fn assign(&mut self, pid: u32, owner: Option<Owner>, is_program: bool) {
        let process = self.processes.get(pid).map(|process| process.index);
        let program = process.map(|index| self.processes.infos()[index.0 as usize].comm.clone());
        let Some(owners) = &mut self.owners else { return };
        if let (Some(owner), Some(program), true) = (owner, program, is_program) {
            owners.note_program(program, owner);
        }
        owners.assign(pid, owner);
        if owners.is_nobodys(pid) {
            self.let_go(pid);
        }
    }

    /// The processes that the present look has seen and of which it was not known before whose they are, such as those that have
    /// begun another program.
    pub(crate) fn seen_waiting(&self) -> Vec<u32> {
        self.owners.iter().flat_map(Owners::seen_waiting).collect()
    }

    /// A look at all processes has ended, and each that belongs to a target was assigned.
    pub(crate) fn look_ended(&mut self) {
        let Some(owners) = &mut self.owners else { return };
        let unassigned = owners.look_ended(procfs::has_ended);
        unassigned.ended.into_iter().for_each(|pid| self.may_have_ended(pid));
        unassigned.nobodys.into_iter().for_each(|pid| self.let_go(pid));
    }

    /// What a process does is counted no more.
    pub(super) fn let_go(&mut self, pid: u32) {
        self.clocked_cpu.iter_mut().for_each(|cpu| cpu.left(pid));
        self.program_ended(pid);
        self.processes.forget(pid);
        self.rereads.forget(pid);
        self.cpu.leave(pid);
    }

    /// The target is every process of the machine but those that are excluded, now and to come.
    pub(crate) fn follow_everything(&mut self) {
        self.members.meets_unknown = true;
        self.cpu.follow_machine();
    }

    /// These processes belong to other targets, which are sampled: they and what they create are none of this one's, and all
    /// others are.
    pub(crate) fn exclude(&mut self, others: &FxHashSet<u32>) {
        let theirs: Vec<u32> =
            self.processes.live().map(|(pid, _)| pid).filter(|pid| others.contains(pid)).collect();
        theirs.into_iter().for_each(|pid| self.leave(pid));
        self.members.excluded.clone_from(others);
    }

    /// This process belongs to another target, whichever process created it.
    pub(crate) fn exclude_one(&mut self, pid: u32) {
        self.members.excluded.insert(pid);
        if self.processes.contains(pid) {
            self.leave(pid);
        }
    }

    /// This process no longer belongs to another target, or has ended.
    pub(crate) fn include(&mut self, pid: u32) {
        self.members.excluded.remove(&pid);
    }

    /// The group, where the target is whatever is in it.
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

    /// The same by a sample: a process that has ended meanwhile has used CPU time all the same, and is known until the next
    /// reading. This process is nobody's target.
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
        if let Some(owners) = &mut self.owners {
            owners.leave(pid);
        }
        self.let_go(pid);
    }

    /// A process is to be looked at in the next reading: its end may have been on a record that was lost.
    pub(crate) fn may_have_ended(&mut self, pid: u32) {
        self.readings.exits.doubt(pid);
    }
}
