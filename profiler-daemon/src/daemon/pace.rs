//! How fast windows are named: names are the host's cost like any other, and windows end together where many targets are left
//! at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What may be spent at once is what comes in within this (ns): the stretch that the host's budget is kept over. No debt is
/// larger, so that nothing waits longer.
const DEPTH_NS: f64 = 10e9;

/// What the loop wants of the thread that names. Clones want it together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    /// CPUs that names may take; bits of a float.
    cpus: Arc<AtomicU64>,
    /// Who waits for what is in the queue.
    urgent: Arc<AtomicUsize>,
}

impl Wanted {
    /// From now on (CPUs).
    pub(crate) fn allow(&self, cpus: f64) {
        self.cpus.store(cpus.to_bits(), Ordering::Relaxed);
    }

    fn cpus(&self) -> f64 {
        f64::from_bits(self.cpus.load(Ordering::Relaxed))
    }

    /// Somebody waits for what is in the queue now.
    pub(crate) fn hasten(&self) {
        self.urgent.fetch_add(1, Ordering::Relaxed);
    }

    /// He has it.
    pub(crate) fn hastened(&self) {
        let _ =
            self.urgent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |waiting| waiting.checked_sub(1));
    }

    /// Whether there is no time to wait.
    pub(crate) fn is_urgent(&self) -> bool {
        self.urgent.load(Ordering::Relaxed) > 0
    }
}

/// A bucket of CPU time.
#[derive(Debug)]
pub(crate) struct Pace {
    pub(crate) wanted: Wanted,
    level_ns: f64,
    settled_ns: u64,
}

impl Pace {
    /// A full one.
    pub(crate) fn new(wanted: Wanted, now_ns: u64) -> Self {
        Self { level_ns: f64::INFINITY, settled_ns: now_ns, wanted }
    }

    /// So much was spent until now (ns).
    pub(crate) fn settle(&mut self, now_ns: u64, spent_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.settled_ns);
        self.settled_ns = self.settled_ns.max(now_ns);
        let depth_ns = self.wanted.cpus() * DEPTH_NS;
        let level_ns = (self.level_ns + self.wanted.cpus() * passed_ns as f64).min(depth_ns);
        self.level_ns = (level_ns - spent_ns as f64).max(-depth_ns);
    }

    /// How long the next window should wait (ns).
    pub(crate) fn pause_ns(&self, now_ns: u64) -> u64 {
        let cpus = self.wanted.cpus();
        if cpus <= 0.0 || self.wanted.is_urgent() {
            return 0;
        }
        let passed_ns = now_ns.saturating_sub(self.settled_ns) as f64;
        (-self.level_ns / cpus - passed_ns).clamp(0.0, DEPTH_NS) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn pace(cpus: f64) -> Pace {
        let wanted = Wanted::default();
        wanted.allow(cpus);
        Pace::new(wanted, 0)
    }

    #[test]
    fn what_ten_seconds_bring_is_spent_at_once_and_the_rest_as_it_comes() {
        let mut pace = pace(0.01);
        pace.settle(0, SECOND_NS / 10);
        assert_eq!(pace.pause_ns(0), 0);
        pace.settle(0, SECOND_NS / 20);
        assert_eq!(pace.pause_ns(0), 5 * SECOND_NS);
        assert_eq!(pace.pause_ns(2 * SECOND_NS), 3 * SECOND_NS);
        pace.settle(5 * SECOND_NS, 0);
        assert_eq!(pace.pause_ns(5 * SECOND_NS), 0);
        // Of a great debt no more than ten seconds are waited for.
        pace.settle(5 * SECOND_NS, 100 * SECOND_NS);
        assert_eq!(pace.pause_ns(5 * SECOND_NS), 10 * SECOND_NS);
    }

    #[test]
    fn who_waits_is_served_at_once_and_without_a_budget_nothing_waits() {
        let mut pace = pace(0.01);
        pace.settle(0, SECOND_NS);
        pace.wanted.hasten();
        assert_eq!(pace.pause_ns(0), 0);
        pace.wanted.hastened();
        pace.wanted.hastened();
        assert!(pace.pause_ns(0) > 0);
        pace.wanted.allow(0.0);
        pace.settle(SECOND_NS, SECOND_NS);
        assert_eq!(pace.pause_ns(SECOND_NS), 0);
    }
}
