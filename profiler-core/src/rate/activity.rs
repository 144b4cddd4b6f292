//! What a target did while nothing was sampled, and figures with their errors.

use super::cost::Cost;

/// A target that used less CPU time while it was watched has shown nothing (ns).
pub(super) const SEEN_NS: u64 = 1_000_000;
/// CPUs that such a target is assumed to use once it runs.
const ASSUMED_CPUS: f64 = 1.0;

/// A figure and how sure it is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figure {
    /// The figure.
    pub mean: f64,
    /// Its standard error, in the same unit.
    pub se: f64,
}

impl Figure {
    /// `mean` with a standard error of `se`.
    pub const fn new(mean: f64, se: f64) -> Self {
        Figure { mean, se }
    }

    pub(super) fn exact(mean: f64) -> Self {
        Figure::new(mean, 0.0)
    }

    pub(super) fn plus(self, other: Figure) -> Self {
        Figure::new(self.mean + other.mean, self.se.hypot(other.se))
    }

    pub(super) fn scaled(self, factor: f64) -> Self {
        Figure::new(self.mean * factor, self.se * factor)
    }
}

impl From<Cost> for Figure {
    fn from(cost: Cost) -> Self {
        Figure::new(cost.mean_ns, cost.se_ns)
    }
}

/// Counts of a target's activity over some time without sampling. `Default`: no activity.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Activity {
    /// How long (ns of wall time).
    pub wall_ns: u64,
    /// CPU time that the scheduler charged to the target (ns).
    pub target_cpu_ns: u64,
    /// CPU time of everything else on this machine (ns).
    pub foreign_cpu_ns: u64,
    /// Context switches of the target.
    pub switches: u64,
    /// Context switches of its threads per second since they began: a target with a storm of switches may have another.
    pub past_switches_per_s: f64,
    /// Events that would have caused records: mappings and names.
    pub side_records: u64,
    /// Tasks that it created.
    pub forks: u64,
    /// Tasks that were created on this machine unseen, if the target was seen to create some: any number of them may be
    /// its own.
    pub unseen_forks: u64,
    /// Tasks of it that ended.
    pub ends: u64,
    /// Frames in a stack, if known.
    pub frames: Option<Figure>,
    /// Bytes of stack in use, where they are known.
    pub stack_bytes: Option<Figure>,
}

impl Activity {
    /// Whether the target used enough CPU time to tell anything.
    pub fn was_seen(&self) -> bool {
        self.target_cpu_ns >= SEEN_NS && self.wall_ns > 0
    }

    /// Context switches per second of wall time.
    pub fn switches_per_s(&self) -> f64 {
        self.switches as f64 * 1e9 / self.wall_ns.max(1) as f64
    }

    /// CPUs that the target kept busy; one if it was not observed.
    pub fn utilisation_cpus(&self) -> f64 {
        let busy = || self.target_cpu_ns as f64 / self.wall_ns as f64;
        if self.was_seen() { busy() } else { ASSUMED_CPUS }
    }

    /// How often something happened per CPU-second. Counts scatter like those of independent events; one more, since
    /// what did not happen yet may.
    pub(super) fn per_cpu_s(&self, count: u64) -> Figure {
        let per = if self.was_seen() { 1e9 / self.target_cpu_ns as f64 } else { 0.0 };
        Figure::new(count as f64, (count as f64 + 1.0).sqrt()).scaled(per)
    }

    /// Tasks that it created per CPU-second: the seen ones, and a share of the unseen ones that is uniform between none
    /// and all.
    pub(super) fn forks_per_cpu_s(&self) -> Figure {
        let (seen, unseen) = (self.per_cpu_s(self.forks), self.per_cpu_s(self.unseen_forks).mean);
        Figure::new(seen.mean + 0.5 * unseen, seen.se.hypot(unseen / 12f64.sqrt()))
    }
}
