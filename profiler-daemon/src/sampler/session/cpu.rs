//! CPU time of a session's target.

use profiler_core::stats::WeightedSum;

use super::clocks::ClockedCpu;
use crate::sampler::target_cpu::TargetCpu;

/// The accounts of the target's CPU time.
#[derive(Default)]
pub(crate) struct SessionCpu {
    /// What the scheduler charged to its processes.
    pub(crate) scheduled: TargetCpu,
    /// By the clocks of its processes, if it is one target among many with events of their own.
    pub(super) clocked: Option<ClockedCpu>,
}

impl SessionCpu {
    /// Follows a process that may have run before; its earlier CPU time will show in the account of `parent`.
    pub(super) fn adopt_child(&mut self, pid: u32, parent: u32) {
        self.scheduled.adopt_child(pid, parent);
        self.clocked.iter_mut().for_each(|cpu| cpu.adopted(pid));
    }

    /// Follows a process that a followed one created just now.
    pub(super) fn forked(&mut self, pid: u32, parent: u32) {
        self.clocked.iter_mut().for_each(|cpu| cpu.born(pid));
        self.scheduled.forked(pid, parent);
    }

    /// A sample of a process stands for `weight_ns`.
    pub(super) fn sampled(&mut self, pid: u32, weight_ns: u64) {
        self.clocked.iter_mut().for_each(|cpu| cpu.sampled(pid, weight_ns));
    }

    /// The part of the target's CPU time that is known by samples alone (ns).
    pub(crate) fn unsure(&self) -> WeightedSum {
        self.clocked.as_ref().map_or_else(WeightedSum::default, ClockedCpu::unsure)
    }

    /// A process has ended, or belongs to another target from now on.
    pub(super) fn left(&mut self, pid: u32) {
        self.clocked.iter_mut().for_each(|cpu| cpu.left(pid));
    }
}
