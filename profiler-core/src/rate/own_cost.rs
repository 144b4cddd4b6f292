//! The profiler's own CPU time, told apart: so much per sample, so much per second.

/// Memory of the fit (s), calm and quick.
const MEMORY_S: f64 = 15.0;
const QUICK_MEMORY_S: f64 = 0.5;
/// Own cost that moved by this factor is a step, and the past is forgotten.
const STEP: f64 = 1.5;
/// Samples in a reading from which a step is put down to them.
const STEP_SAMPLES: f64 = 5.0;
/// Noise of own CPU time in one reading (ns): a wake-up more or less.
const NOISE_NS: f64 = 100_000.0;

/// What the profiler itself needs (ns of CPU time).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Own {
    pub(super) per_sample_ns: f64,
    pub(super) per_second_ns: f64,
}

/// What is assumed before data, and by how much it may be off (standard deviations).
#[derive(Clone, Copy, Debug)]
pub(super) struct Prior {
    pub(super) per_sample_ns: f64,
    pub(super) per_sample_sd_ns: f64,
    pub(super) per_second_ns: f64,
    pub(super) per_second_sd_ns: f64,
}

impl Default for Prior {
    /// 5 µs a sample; 300 µs a second, which differs more between hosts.
    fn default() -> Self {
        Prior {
            per_sample_ns: 5_000.0,
            per_sample_sd_ns: 5_000.0,
            per_second_ns: 300_000.0,
            per_second_sd_ns: 1_000_000.0,
        }
    }
}

impl Prior {
    /// After a step that `x` samples in `t` seconds show, which cost `y` ns: what is spent per second stayed
    /// what it was.
    fn after_step(x: f64, t: f64, y: f64, per_second_ns: f64) -> Self {
        let per_sample_ns = ((y - per_second_ns * t) / x).max(0.0);
        Prior {
            per_sample_ns,
            per_sample_sd_ns: 5_000f64.max(0.5 * per_sample_ns),
            per_second_ns,
            per_second_sd_ns: 100_000f64.max(0.3 * per_second_ns),
        }
    }
}

/// Forgetting sums of products: `x` samples, `t` seconds, `y` own nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    xx: f64,
    xt: f64,
    tt: f64,
    xy: f64,
    ty: f64,
    x: f64,
    t: f64,
    y: f64,
}

impl Sums {
    fn remember(&mut self, x: f64, t: f64, y: f64, memory_s: f64) {
        let keep = (-t / memory_s).exp();
        let add = |sum: &mut f64, new: f64| *sum = *sum * keep + new;
        add(&mut self.xx, x * x);
        add(&mut self.xt, x * t);
        add(&mut self.tt, t * t);
        add(&mut self.xy, x * y);
        add(&mut self.ty, t * y);
        add(&mut self.x, x);
        add(&mut self.t, t);
        add(&mut self.y, y);
    }

    /// Least squares towards the priors: at a constant rate the data alone cannot tell the two apart.
    fn fit(&self, prior: &Prior) -> (f64, f64) {
        let ridge_x = (NOISE_NS / prior.per_sample_sd_ns).powi(2);
        let ridge_t = (NOISE_NS / prior.per_second_sd_ns).powi(2);
        let (a, b, d) = (self.xx + ridge_x, self.xt, self.tt + ridge_t);
        let (u, v) = (self.xy + ridge_x * prior.per_sample_ns, self.ty + ridge_t * prior.per_second_ns);
        let det = a * d - b * b;
        let (per_sample, per_second) = ((u * d - v * b) / det, (v * a - u * b) / det);
        if per_sample.is_nan() || per_second.is_nan() {
            return (prior.per_sample_ns, prior.per_second_ns);
        }
        // Neither can be negative: the other then explains it all.
        match (per_sample < 0.0, per_second < 0.0) {
            (true, _) => (0.0, (v / d).max(0.0)),
            (_, true) => ((u / a).max(0.0), 0.0),
            _ => (per_sample, per_second),
        }
    }
}

/// A fit of own CPU time that forgets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OwnCost {
    prior: Prior,
    calm: Sums,
    quick: Sums,
}

impl OwnCost {
    /// Takes in `samples` that arrived in `wall_s` seconds and the own CPU time spent meanwhile (ns).
    pub(super) fn observe(&mut self, samples: f64, wall_s: f64, own_ns: f64) {
        // Beyond these no host goes, and squares stay finite.
        let (x, y) = (samples.min(1e12), own_ns.min(1e15));
        self.calm.remember(x, wall_s, y, MEMORY_S);
        self.quick.remember(x, wall_s, y, QUICK_MEMORY_S);
        let (per_sample, per_second) = self.calm.fit(&self.prior);
        let expected = per_sample * self.quick.x + per_second * self.quick.t;
        let stepped = self.quick.y > STEP * expected || expected > STEP * self.quick.y;
        let visible = (self.quick.y - expected).abs() > 5.0 * NOISE_NS;
        if stepped && visible {
            self.step(x, wall_s, y, per_second);
        }
    }

    /// Starts again from the latest reading.
    fn step(&mut self, x: f64, t: f64, y: f64, per_second_ns: f64) {
        self.prior =
            if x >= STEP_SAMPLES { Prior::after_step(x, t, y, per_second_ns) } else { Prior::default() };
        let mut latest = Sums::default();
        latest.remember(x, t, y, QUICK_MEMORY_S);
        self.quick = latest;
        self.calm = latest;
    }

    pub(super) fn now(&self) -> Own {
        let (per_sample_ns, per_second_ns) = self.calm.fit(&self.prior);
        Own { per_sample_ns, per_second_ns }
    }
}
