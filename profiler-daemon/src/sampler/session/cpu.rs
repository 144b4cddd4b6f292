//! CPU time of a session's target.

use profiler_core::stats::WeightedSum;

use super::clocks::ClockedCpu;
use crate::sampler::target_cpu::TargetCpu;

/// The account of the target's CPU time.
#[derive(Default)]
pub(crate) struct SessionCpu {
    /// What the scheduler charged to its processes.
    pub(crate) scheduled: TargetCpu,
    /// In its place the clocks of its processes, if it is one target among many with events of their own.
    pub(super) clocked: Option<ClockedCpu>,
}

impl SessionCpu {
    /// Follows a process that may have run before; only what it uses from now on counts.
    pub(super) fn adopt(&mut self, pid: u32) {
        match &mut self.clocked {
            Some(clocked) => clocked.adopted(pid),
            None => self.scheduled.adopt(pid),
        }
    }

    /// Follows a process that may have run before; its earlier CPU time will show in the account of `parent`.
    pub(super) fn adopt_child(&mut self, pid: u32, parent: u32) {
        match &mut self.clocked {
            Some(clocked) => clocked.adopted(pid),
            None => self.scheduled.adopt_child(pid, parent),
        }
    }

    /// Follows a process that a followed one created just now.
    pub(super) fn forked(&mut self, pid: u32, parent: u32) {
        match &mut self.clocked {
            Some(clocked) => clocked.born(pid),
            None => self.scheduled.forked(pid, parent),
        }
    }

    /// A sample of a process stands for `weight_ns`.
    pub(super) fn sampled(&mut self, pid: u32, weight_ns: u64) {
        self.clocked.iter_mut().for_each(|cpu| cpu.sampled(pid, weight_ns));
    }

    /// The part of the target's CPU time that is known by samples alone (ns).
    pub(crate) fn unsure(&self) -> WeightedSum {
        self.clocked.as_ref().map_or_else(WeightedSum::default, ClockedCpu::unsure)
    }

    /// A process has ended.
    pub(super) fn ended(&mut self, pid: u32) {
        self.clocked.iter_mut().for_each(|cpu| cpu.left(pid));
    }

    /// A process belongs to another target from now on, or to none.
    pub(super) fn left(&mut self, pid: u32) {
        match &mut self.clocked {
            Some(clocked) => clocked.left(pid),
            None => self.scheduled.leave(pid),
        }
    }

    /// CPU time of the target so far (ns), and processes that have ended since the last reading.
    pub(super) fn read(&mut self) -> (u64, Vec<u32>) {
        match &mut self.clocked {
            Some(clocked) => clocked.read(),
            None => self.scheduled.read(),
        }
    }
}
