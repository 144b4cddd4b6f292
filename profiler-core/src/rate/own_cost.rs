//! The profiler's own CPU time, separated into a cost per sample and a cost per second.
//!
//! Own time of a single reading may include the end of a window or the reading of mappings, so the cost per
//! sample is only raised after three high readings in a row. Work that is known to happen once is charged over
//! the following minutes instead (`set_up.rs`).

/// Memory of the fit (s).
const MEMORY_S: f64 = 15.0;
/// Own cost that moved by this factor is a step, and the past is forgotten.
const STEP: f64 = 1.5;
/// Readings in a row that show a step: a single one may contain one-time work. Its cost is taken back by the budget's
/// bucket in any case.
const STEP_READINGS: u32 = 3;
/// Samples in them from which a step is put down to samples.
const STEP_SAMPLES: f64 = 5.0;
/// Noise of own CPU time in one reading (ns): a wake-up more or less.
const NOISE_NS: f64 = 100_000.0;

/// What the profiler itself needs (ns of CPU time).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Own {
    pub(super) per_sample_ns: f64,
    pub(super) per_second_ns: f64,
}

/// What is assumed before any data, with standard deviations.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnCostPrior {
    pub(super) per_sample_ns: f64,
    pub(super) per_sample_sd_ns: f64,
    pub(super) per_second_ns: f64,
    pub(super) per_second_sd_ns: f64,
}

impl Default for OwnCostPrior {
    /// 5 µs a sample; 300 µs a second, which differs more between hosts.
    fn default() -> Self {
        OwnCostPrior {
            per_sample_ns: 5_000.0,
            per_sample_sd_ns: 5_000.0,
            per_second_ns: 300_000.0,
            per_second_sd_ns: 1_000_000.0,
        }
    }
}

impl OwnCostPrior {
    /// The prior after a step, from `x` samples in `t` seconds that cost `y` ns: the cost per second is assumed to be
    /// unchanged.
    fn after_step(x: f64, t: f64, y: f64, per_second_ns: f64) -> Self {
        let per_sample_ns = ((y - per_second_ns * t) / x).max(0.0);
        OwnCostPrior {
            per_sample_ns,
            per_sample_sd_ns: 5_000f64.max(0.5 * per_sample_ns),
            per_second_ns,
            per_second_sd_ns: 100_000f64.max(0.3 * per_second_ns),
        }
    }
}

/// Forgetting sums of products: `x` samples, `t` seconds, `y` own nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct ForgettingSums {
    xx: f64,
    xt: f64,
    tt: f64,
    xy: f64,
    ty: f64,
}

impl ForgettingSums {
    fn remember(&mut self, x: f64, t: f64, y: f64, memory_s: f64) {
        let keep = (-t / memory_s).exp();
        let add = |sum: &mut f64, new: f64| *sum = *sum * keep + new;
        add(&mut self.xx, x * x);
        add(&mut self.xt, x * t);
        add(&mut self.tt, t * t);
        add(&mut self.xy, x * y);
        add(&mut self.ty, t * y);
    }

    /// Least squares with priors: at a constant rate, the data cannot separate the two costs.
    fn fit(&self, prior: &OwnCostPrior) -> (f64, f64) {
        let ridge_x = (NOISE_NS / prior.per_sample_sd_ns).powi(2);
        let ridge_t = (NOISE_NS / prior.per_second_sd_ns).powi(2);
        let (a, b, d) = (self.xx + ridge_x, self.xt, self.tt + ridge_t);
        let (u, v) = (self.xy + ridge_x * prior.per_sample_ns, self.ty + ridge_t * prior.per_second_ns);
        // a d − b², without the difference of two large and nearly equal numbers: at a constant rate the first part is 0.
        let det = (self.xx * self.tt - b * b).max(0.0) + ridge_t * a + ridge_x * self.tt;
        let (per_sample, per_second) = ((u * d - v * b) / det, (v * a - u * b) / det);
        if !per_sample.is_finite() || !per_second.is_finite() {
            return (prior.per_sample_ns, prior.per_second_ns);
        }
        // Neither can be negative: otherwise the other one explains everything.
        match (per_sample < 0.0, per_second < 0.0) {
            (true, _) => (0.0, (v / d).max(0.0)),
            (_, true) => ((u / a).max(0.0), 0.0),
            _ => (per_sample, per_second),
        }
    }
}

/// Readings in a row that all cost more than expected, or all less.
#[derive(Clone, Copy, Debug, Default)]
struct Streak {
    is_dearer: bool,
    readings: u32,
    samples: f64,
    wall_s: f64,
    own_ns: f64,
    expected_ns: f64,
}

impl Streak {
    /// Continues with another reading, restarts with it, or ends.
    fn observe(&mut self, samples: f64, wall_s: f64, own_ns: f64, expected_ns: f64) {
        let is_dearer = own_ns > STEP * expected_ns;
        if !is_dearer && expected_ns <= STEP * own_ns {
            *self = Self::default();
            return;
        }
        if is_dearer != self.is_dearer {
            *self = Self { is_dearer, ..Self::default() };
        }
        self.readings += 1;
        self.samples += samples;
        self.wall_s += wall_s;
        self.own_ns += own_ns;
        self.expected_ns += expected_ns;
    }

    /// Whether the streak is more than noise, and more than one-time work.
    fn is_step(&self) -> bool {
        self.readings >= STEP_READINGS && (self.own_ns - self.expected_ns).abs() > 5.0 * NOISE_NS
    }
}

/// A fit of own CPU time that forgets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OwnCost {
    prior: OwnCostPrior,
    sums: ForgettingSums,
    streak: Streak,
}

impl OwnCost {
    /// Takes in `samples` that arrived in `wall_s` seconds and the own CPU time spent meanwhile (ns).
    pub(super) fn observe(&mut self, samples: f64, wall_s: f64, own_ns: f64) {
        // No host exceeds these bounds, and they keep squares finite.
        let (x, y) = (samples.min(1e12), own_ns.min(1e15));
        let (per_sample_ns, per_second_ns) = self.sums.fit(&self.prior);
        self.streak.observe(x, wall_s, y, per_sample_ns * x + per_second_ns * wall_s);
        self.sums.remember(x, wall_s, y, MEMORY_S);
        if self.streak.is_step() {
            self.step(per_second_ns);
        }
    }

    /// Restarts the fit from the streak.
    fn step(&mut self, per_second_ns: f64) {
        let Streak { samples, wall_s, own_ns, .. } = std::mem::take(&mut self.streak);
        self.prior = match samples >= STEP_SAMPLES {
            true => OwnCostPrior::after_step(samples, wall_s, own_ns, per_second_ns),
            false => OwnCostPrior::default(),
        };
        self.sums = ForgettingSums::default();
        self.sums.remember(samples, wall_s, own_ns, MEMORY_S);
    }

    pub(super) fn now(&self) -> Own {
        let (per_sample_ns, per_second_ns) = self.sums.fit(&self.prior);
        Own { per_sample_ns, per_second_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten readings a second: 8 µs a sample, and 3 ms a second.
    fn settled() -> OwnCost {
        let mut own = OwnCost::default();
        (0..600).for_each(|at| reading(&mut own, at, 8_000.0));
        own
    }

    fn reading(own: &mut OwnCost, at: u32, per_sample_ns: f64) {
        let samples = f64::from(8 + at % 3);
        own.observe(samples, 0.1, samples * per_sample_ns + 300_000.0);
    }

    #[test]
    fn what_is_done_once_does_not_make_samples_dear() {
        for once_ns in [1e6, 10e6, 100e6] {
            let mut own = settled();
            let before = own.now();
            own.observe(9.0, 0.1, once_ns);
            for at in 0..100 {
                reading(&mut own, at, 8_000.0);
                let now = own.now();
                assert!(now.per_sample_ns < before.per_sample_ns + 15_000.0, "{once_ns} {at}: {now:?}");
            }
            let after = own.now();
            assert!((after.per_second_ns - before.per_second_ns).abs() < 1e6, "{once_ns}: {after:?}");
        }
    }

    #[test]
    fn samples_that_are_dearer_from_now_on_are_noticed_in_the_third_reading() {
        let mut own = settled();
        (0..3).for_each(|at| reading(&mut own, at, 80_000.0));
        let now = own.now();
        assert!((60_000.0..100_000.0).contains(&now.per_sample_ns), "{now:?}");
        (0..3).for_each(|at| reading(&mut own, at, 8_000.0));
        let now = own.now();
        assert!((4_000.0..16_000.0).contains(&now.per_sample_ns), "{now:?}");
    }
}
