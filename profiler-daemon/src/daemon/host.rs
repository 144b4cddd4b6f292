//! The total cost of profiling for the host: what is charged to targets and to other processes, and all of
//! the profiler's own CPU time.

use std::collections::VecDeque;

use crate::service::state::HostStatus;

const WINDOW_NS: u64 = 10_000_000_000;
/// Current spending is averaged over this time (ns); over a longer one, a start would look like a steady load.
const PRESENT_NS: u64 = 3_000_000_000;

/// CPU time spent up to a moment (ns).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    /// The moment, by the monotonic clock.
    pub(crate) at_ns: u64,
    /// Charged to targets and non-target processes.
    pub(crate) charged_ns: u64,
    /// Own CPU time, all threads.
    pub(crate) self_ns: u64,
    /// The part of it in turns of targets.
    pub(crate) turns_ns: u64,
    /// The part of that for set-up, like reading unwind tables.
    pub(crate) once_ns: u64,
    /// The part of own time for names, and for profiles that were asked for.
    pub(crate) names_ns: u64,
}

impl Spent {
    /// CPU time spent after `earlier` (ns).
    pub(crate) fn since(&self, earlier: &Self) -> u64 {
        self.charged_ns.saturating_sub(earlier.charged_ns) + self.self_ns.saturating_sub(earlier.self_ns)
    }
}

/// The host's account of what profiling costs.
#[derive(Debug, Default)]
pub(crate) struct HostAccount {
    began: Spent,
    history: VecDeque<Spent>,
    worst_10s: f64,
    cpus: usize,
}

impl HostAccount {
    /// An account that begins now.
    pub(crate) fn new(now: Spent, cpus: usize) -> Self {
        Self { began: now, history: VecDeque::from([now]), worst_10s: 0.0, cpus: cpus.max(1) }
    }

    /// Takes in the totals up to now; called once a second.
    pub(crate) fn observe(&mut self, now: Spent, cpus: usize) {
        self.cpus = cpus.max(1);
        self.history.push_back(now);
        while self.history.get(1).is_some_and(|second| now.at_ns.saturating_sub(second.at_ns) >= WINDOW_NS) {
            self.history.pop_front();
        }
        if now.at_ns.saturating_sub(self.oldest().at_ns) >= WINDOW_NS {
            self.worst_10s = self.worst_10s.max(self.last_10s_ratio());
        }
    }

    /// Share of the CPU time of all CPUs that was spent in the last ten seconds, those before it began included.
    pub(crate) fn last_10s_ratio(&self) -> f64 {
        let (then, now) = (self.oldest(), self.latest());
        now.since(&then) as f64 / self.all_cpus_ns(&then, &now)
    }

    /// [`Self::last_10s_ratio`] without set-up, which is charged over the following minutes.
    pub(crate) fn counted_10s_ratio(&self) -> f64 {
        let (then, now) = (self.oldest(), self.latest());
        let once_ns = now.once_ns.saturating_sub(then.once_ns);
        now.since(&then).saturating_sub(once_ns) as f64 / self.all_cpus_ns(&then, &now)
    }

    /// CPU time that all CPUs have between two moments, at least for ten seconds of one CPU (ns): never zero.
    fn all_cpus_ns(&self, then: &Spent, now: &Spent) -> f64 {
        (now.at_ns.saturating_sub(then.at_ns).max(WINDOW_NS) * self.cpus as u64) as f64
    }

    /// Own CPU time for no target and for no names, in the last ten seconds (CPU-seconds per second). In the first ten
    /// seconds it is averaged over ten, too: they say little about the next.
    pub(crate) fn housekeeping_cpus(&self) -> f64 {
        let (then, now) = (self.oldest(), self.latest());
        let wall_ns = now.at_ns.saturating_sub(then.at_ns).max(WINDOW_NS) as f64;
        let own_ns = now.self_ns.saturating_sub(then.self_ns);
        let names_ns = now.names_ns.saturating_sub(then.names_ns);
        let beside_ns = own_ns.saturating_sub(now.turns_ns.saturating_sub(then.turns_ns) + names_ns);
        beside_ns as f64 / wall_ns
    }

    /// What everything except names takes at present (CPU-seconds per second).
    pub(crate) fn beside_names_cpus(&self) -> f64 {
        let now = self.latest();
        let is_present = |spent: &&Spent| now.at_ns.saturating_sub(spent.at_ns) <= PRESENT_NS;
        let then = self.history.iter().find(is_present).copied().unwrap_or_default();
        let wall_ns = now.at_ns.saturating_sub(then.at_ns).max(1);
        let names_ns = now.names_ns.saturating_sub(then.names_ns);
        now.since(&then).saturating_sub(names_ns) as f64 / wall_ns as f64
    }

    /// The figures for the status.
    pub(crate) fn status(&self, budget_ratio: f64) -> HostStatus {
        let (began, now) = (self.began, self.latest());
        let own_ns = now.self_ns.saturating_sub(began.self_ns);
        HostStatus {
            cpus: self.cpus,
            budget_ratio,
            overhead_last_10s_ratio: self.last_10s_ratio(),
            overhead_worst_10s_ratio: self.worst_10s.max(self.last_10s_ratio()),
            charged_s: now.charged_ns.saturating_sub(began.charged_ns) as f64 * 1e-9,
            self_cpu_s: own_ns as f64 * 1e-9,
            setup_cpu_s: now.once_ns.saturating_sub(began.once_ns) as f64 * 1e-9,
            housekeeping_cpu_s: own_ns.saturating_sub(now.turns_ns.saturating_sub(began.turns_ns)) as f64
                * 1e-9,
            busy_cpu_s: 0.0, // filled in by the loop
            targets_cpu_s: 0.0,
        }
    }

    fn oldest(&self) -> Spent {
        self.history.front().copied().unwrap_or_default()
    }

    fn latest(&self) -> Spent {
        self.history.back().copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spent(second: u64, charged_ns: u64, self_ns: u64) -> Spent {
        Spent {
            at_ns: second * 1_000_000_000,
            charged_ns,
            self_ns,
            turns_ns: self_ns / 2,
            once_ns: self_ns / 8,
            names_ns: self_ns / 4,
        }
    }

    #[test]
    fn the_worst_ten_seconds_are_kept_and_own_time_without_a_target_counts() {
        let mut account = HostAccount::new(spent(0, 0, 0), 2);
        account.observe(spent(1, 0, 10_000_000), 2);
        assert!((account.housekeeping_cpus() - 0.00025).abs() < 1e-9, "what a start takes");
        let mut account = HostAccount::new(spent(0, 0, 0), 2);
        let mut charged_ns = 0;
        for second in 1..=60 {
            charged_ns += if (20..30).contains(&second) { 40_000_000 } else { 10_000_000 };
            account.observe(spent(second, charged_ns, second * 10_000_000), 2);
        }
        let status = account.status(0.01);
        assert!((status.overhead_last_10s_ratio - 0.01).abs() < 1e-9, "{status:?}");
        // An eighth of own time was for set-up.
        assert!((account.counted_10s_ratio() - (0.01 - 0.005 / 8.0)).abs() < 1e-9);
        assert!((status.overhead_worst_10s_ratio - 0.025).abs() < 1e-9, "{status:?}");
        assert!((account.housekeeping_cpus() - 0.0025).abs() < 1e-9);
        assert!((account.beside_names_cpus() - 0.0175).abs() < 1e-9);
        account.observe(spent(61, charged_ns + 30_000_000, 610_000_000), 2);
        assert!((account.beside_names_cpus() - (0.0175 + 0.02 / 3.0)).abs() < 1e-9, "a second of three");
        assert!((status.charged_s - 0.9).abs() < 1e-9 && (status.housekeeping_cpu_s - 0.3).abs() < 1e-9);
    }

    #[test]
    fn a_clock_that_stands_still_divides_nothing() {
        let mut account = HostAccount::new(Spent::default(), 0);
        account.observe(Spent::default(), 0);
        assert_eq!(account.last_10s_ratio(), 0.0);
        assert_eq!(account.housekeeping_cpus(), 0.0);
    }
}
