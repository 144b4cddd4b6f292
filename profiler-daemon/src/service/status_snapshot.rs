//! The latest published status of the daemon and its targets. The interface answers from it, so that no
//! request waits for a turn of the loop: on an overloaded machine, a turn that attaches to many processes
//! takes seconds.

use std::sync::Arc;

use super::recent::RecentDecisions;
use super::state::{Status, TargetStatus};
use crate::sys::{clock, procfs};

/// Figures that are older than this say so in `degraded` (ns).
const LATE_NS: u64 = 5_000_000_000;

/// The status of the daemon at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct StatusSnapshot {
    /// Time of the snapshot (ns, monotonic).
    pub(crate) at_ns: u64,
    /// How it was, but for what anyone can read of this process.
    pub(crate) status: Status,
    /// Each target's status, and its recent decisions.
    pub(crate) targets: Vec<(TargetStatus, TargetDecisions)>,
}

/// Recent decisions on the rate of a target's sampler.
#[derive(Clone, Debug, Default)]
pub(crate) struct TargetDecisions {
    /// The decisions.
    pub(crate) log: RecentDecisions,
    /// Targets that the sampler is for: their CPUs, slowdown and cost are together in each decision. 0 where the target
    /// is not sampled.
    pub(crate) shared_by: usize,
}

impl StatusSnapshot {
    /// How old it is (ns).
    pub(crate) fn age_ns(&self) -> u64 {
        clock::monotonic_ns().saturating_sub(self.at_ns)
    }

    /// The daemon's status, with memory and open files read now.
    pub(crate) fn status(&self) -> Status {
        let age_ns = self.age_ns();
        let age_s = age_ns as f64 * 1e-9;
        let mut status = self.status.clone();
        (status.age_s, status.uptime_s) = (age_s, status.uptime_s + age_s);
        status.memory.resident_bytes = procfs::resident_bytes();
        status.memory.open_files = procfs::own_open_files();
        if age_ns > LATE_NS {
            status.degraded.push(format!(
                "the loop has been busy for {age_s:.0} s, and these figures are as old; the machine may be overloaded"
            ));
        }
        status
    }

    /// The status of each target.
    pub(crate) fn targets(&self) -> Vec<TargetStatus> {
        let age_s = self.age_ns() as f64 * 1e-9;
        let aged = |target: &TargetStatus| TargetStatus {
            ends_in_s: target.ends_in_s.map(|seconds| (seconds - age_s).max(0.0)),
            ..target.clone()
        };
        self.targets.iter().map(|(target, _)| aged(target)).collect()
    }

    /// The last decisions for a target; none if there is no such target.
    pub(crate) fn decisions(&self, name: &str) -> Option<&TargetDecisions> {
        let found = self.targets.iter().find(|(target, _)| target.name == name);
        found.map(|(_, decisions)| decisions)
    }
}

/// The latest snapshot; none before the first.
pub(crate) type Latest = Option<Arc<StatusSnapshot>>;
