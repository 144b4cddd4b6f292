//! How many CPUs non-target processes keep busy, if whole CPUs are sampled: estimated from their samples at
//! the rates in force.

/// Memory (s): some ten steps, so that chance in one of them does not set the rate.
const MEMORY_S: f64 = 1.0;
/// Samples beyond this multiple of the expected ones, and a few for chance, are a step: the past is forgotten.
const STEP: f64 = 2.0;
const STEP_SAMPLES: f64 = 5.0;
/// Fewer samples than this are forgotten.
const SEEN_SAMPLES: f64 = 0.01;
/// Added to the samples: at a low rate, a load may be there without a sample.
const UNSEEN_SAMPLES: f64 = 1.0;

/// Forgetting sums of non-target samples and of those that one busy CPU would have brought.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NonTargetLoad {
    samples: f64,
    per_cpu: f64,
}

impl NonTargetLoad {
    /// Takes in `samples` of non-target processes in `wall_s` seconds at `rate_hz` (samples per CPU-second).
    pub(super) fn observe(&mut self, samples: f64, rate_hz: f64, wall_s: f64) {
        let per_cpu = rate_hz * wall_s;
        let keep = if self.is_step(samples, per_cpu) { 0.0 } else { (-wall_s / MEMORY_S).exp() };
        self.samples = self.samples * keep + samples;
        self.per_cpu = self.per_cpu * keep + per_cpu;
    }

    fn is_step(&self, samples: f64, per_cpu: f64) -> bool {
        samples > STEP * self.busy_cpus() * per_cpu + STEP_SAMPLES
    }

    /// Whether there were any of late.
    pub(super) fn were_seen(&self) -> bool {
        self.samples > SEEN_SAMPLES
    }

    /// CPUs that they keep busy, rather too many than too few; 0 before anything was seen.
    pub(super) fn busy_cpus(&self) -> f64 {
        if self.per_cpu > 0.0 { (self.samples + UNSEEN_SAMPLES) / self.per_cpu } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(ticks: &[(f64, f64)]) -> f64 {
        let mut non_targets = NonTargetLoad::default();
        ticks.iter().for_each(|(samples, rate_hz)| non_targets.observe(*samples, *rate_hz, 0.1));
        non_targets.busy_cpus()
    }

    #[test]
    fn their_cpus_follow_from_any_rate() {
        let at = |rate_hz: f64| after(&[(0.5 * rate_hz * 0.1, rate_hz); 100]);
        assert!((at(1_000.0) - 0.5).abs() < 0.002, "{}", at(1_000.0));
        // A low rate is no proof that nobody is there.
        assert!(at(4.0) > 0.6 && after(&[(0.0, 4.0); 100]) > 0.2);
        assert!(after(&[(0.0, 1_000.0); 100]) < 0.002);
        // A change of the rate is none of theirs.
        let changed = [[(50.0, 1_000.0); 20], [(5.0, 100.0); 20]].concat();
        assert!((after(&changed) - 0.5).abs() < 0.02);
    }

    #[test]
    fn a_step_up_is_believed_at_once() {
        let step = [vec![(5.0, 100.0); 20], vec![(100.0, 100.0)]].concat();
        assert!((after(&step) - 10.1).abs() < 1e-9, "{}", after(&step));
        assert_eq!(after(&[]), 0.0);
    }
}
