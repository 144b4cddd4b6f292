//! Whether several targets share one sampler: a clock on each CPU also samples non-target processes, while
//! events of each target's own have a fixed cost each.

/// What a target with events of its own costs without samples (CPUs): it is stepped several times a second.
const FIXED_CPUS: f64 = 0.0015;
/// Assumed rate of a sampler (samples per CPU-second).
const USUAL_HZ: f64 = 100.0;
/// The other way must be this many times cheaper than the present one, and this much time must have passed since the
/// last decision (ns): a change ends windows.
const CLEARLY: f64 = 2.0;
const SETTLES_NS: u64 = 60_000_000_000;
/// Memory of the load (s).
const MEMORY_S: f64 = 10.0;

/// Compares the costs of the two ways.
#[derive(Clone, Copy, Debug)]
pub struct Sharing {
    is_on: bool,
    /// Time of the last decision, or of the first call (ns).
    decided_ns: Option<u64>,
    /// The last observation: time, CPU time of the machine, and of the targets (ns).
    last: Option<[u64; 3]>,
    /// CPUs that non-target processes keep busy.
    non_target_cpus: f64,
}

impl Default for Sharing {
    fn default() -> Self {
        Sharing { is_on: true, decided_ns: None, last: None, non_target_cpus: 0.0 }
    }
}

impl Sharing {
    /// Whether targets share.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Takes in the CPU time so far of all processes of the machine, and of the targets (ns).
    pub fn observe(&mut self, now_ns: u64, busy_ns: u64, targets_ns: u64) {
        let now = [now_ns, busy_ns, targets_ns];
        let Some(last) = self.last.replace(now) else { return };
        let [wall_ns, busy_ns, targets_ns] =
            std::array::from_fn(|at| now[at].saturating_sub(last[at]) as f64);
        if wall_ns > 0.0 {
            let gain = 1.0 - (-wall_ns * 1e-9 / MEMORY_S).exp();
            self.non_target_cpus += gain * ((busy_ns - targets_ns).max(0.0) / wall_ns - self.non_target_cpus);
        }
    }

    /// Decides for this many targets. `has_rest`: non-target processes are a target, too, so that no sample is wasted.
    /// `non_target_sample_ns` is the cost of a sample of a non-target process, in it and in the profiler.
    pub fn weigh(&mut self, now_ns: u64, targets: usize, has_rest: bool, non_target_sample_ns: f64) {
        let shared_cpus =
            if has_rest { 0.0 } else { self.non_target_cpus * USUAL_HZ * non_target_sample_ns * 1e-9 };
        let own_cpus = targets.saturating_sub(1) as f64 * FIXED_CPUS;
        let (present_cpus, other_cpus) =
            if self.is_on { (shared_cpus, own_cpus) } else { (own_cpus, shared_cpus) };
        let decided_ns = *self.decided_ns.get_or_insert(now_ns); // the load at the start is no evidence
        let is_settled = now_ns >= decided_ns.saturating_add(SETTLES_NS);
        let is_worth_it = present_cpus > CLEARLY * other_cpus + FIXED_CPUS;
        if is_settled && is_worth_it {
            (self.is_on, self.decided_ns) = (!self.is_on, Some(now_ns));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;
    const NON_TARGET_SAMPLE_NS: f64 = 20_000.0;

    /// A host, and what its processes and the targets have used until now (ns).
    #[derive(Default)]
    struct Host {
        sharing: Sharing,
        now_ns: u64,
        busy_ns: u64,
    }

    impl Host {
        /// Whether targets share after two minutes beside so many busy CPUs of non-target processes.
        fn after(&mut self, non_target_cpus: u64, targets: usize, has_rest: bool) -> bool {
            for _ in 0..120 {
                self.now_ns += SECOND_NS;
                self.busy_ns += (non_target_cpus + 1) * SECOND_NS;
                self.sharing.observe(self.now_ns, self.busy_ns, self.now_ns);
                self.sharing.weigh(self.now_ns, targets, has_rest, NON_TARGET_SAMPLE_NS);
            }
            self.sharing.is_on()
        }
    }

    #[test]
    fn a_few_targets_on_a_busy_host_have_events_of_their_own() {
        assert!(!Host::default().after(60, 3, false));
        assert!(Host::default().after(60, 100, false), "so many share");
        assert!(Host::default().after(1, 3, false), "and on a host that has little else to do");
        assert!(Host::default().after(60, 3, true), "and where non-target processes are a target");
    }

    #[test]
    fn what_was_decided_stays_until_the_other_way_is_clearly_cheaper() {
        let mut host = Host::default();
        assert!(!host.after(60, 3, false));
        assert!(!host.after(20, 16, false), "the other way is hardly dearer");
        assert!(host.after(1, 16, false));
    }

    #[test]
    fn hostile_figures_decide_nothing() {
        let mut sharing = Sharing::default();
        sharing.observe(5, u64::MAX, 0);
        sharing.observe(3, 0, u64::MAX);
        sharing.weigh(u64::MAX, usize::MAX, false, f64::NAN);
        sharing.weigh(0, usize::MAX, false, f64::NAN);
        assert!(sharing.is_on());
    }
}
