//! Runs of known cost and variance, for the tests of what is made of them.

use super::cost::Curve;
use super::design::{Arm, Design, FUNCTIONS, Planned, SHAPES};
use super::fit::Observation;

/// A machine on which a sample costs the same in every run of a rate.
pub(super) struct Machine {
    /// o at 1,000 samples per second (µs).
    pub(super) overhead_us: f64,
    /// β: 0 where a sample costs the same at every rate.
    pub(super) exponent: f64,
    /// o as the profiler tells it (µs).
    pub(super) told_us: f64,
    /// v.
    pub(super) variance: f64,
    /// τ.
    pub(super) noise_ratio: f64,
    /// The adaptive runs' rate (samples per CPU-second).
    pub(super) adaptive_hz: f64,
}

impl Machine {
    /// All runs of an experiment.
    pub(super) fn run(&self, design: &Design) -> Vec<Observation> {
        let mut random = fastrand::Rng::with_seed(design.seed);
        design.runs().iter().map(|planned| self.observe(planned, design.cpu_s(), &mut random)).collect()
    }

    fn observe(&self, planned: &Planned, true_s: f64, random: &mut fastrand::Rng) -> Observation {
        let rate_hz = match planned.arm {
            Arm::Unsampled => 0.0,
            Arm::Fixed(hertz) => hertz,
            Arm::Adaptive => self.adaptive_hz,
            Arm::Default => self.adaptive_hz,
        };
        let plain_s = true_s * (1.0 + self.noise_ratio * normal(random));
        let curve = Curve { overhead_us: self.overhead_us, exponent: self.exponent };
        let added = curve.dilated(rate_hz).map_or(0.0, |dilated| dilated.added);
        let cpu_s = plain_s * (1.0 + added);
        let samples = (rate_hz * cpu_s).round();
        // So many independent draws have v times the variance of `samples`.
        let draws = (samples / self.variance).round() as u64;
        let counts = draw(SHAPES[planned.shape].shares(), draws, random);
        Observation {
            shape: planned.shape,
            program: SHAPES[planned.shape].name,
            arm: planned.arm,
            cpu_s,
            charged_cpu_s: cpu_s,
            excess_ratio: Some(cpu_s / true_s - 1.0),
            samples: samples as u64,
            rate_hz,
            overhead_us: self.told_us,
            overhead_se_us: 0.5,
            shares: std::array::from_fn(|index| counts[index] as f64 / draws.max(1) as f64),
        }
    }
}

/// Multinomial counts: each function's are binomial in what the ones before it left over.
fn draw(shares: [f64; FUNCTIONS], draws: u64, random: &mut fastrand::Rng) -> [u64; FUNCTIONS] {
    let (mut left, mut share_left) = (draws, 1.0);
    shares.map(|share| {
        let count = binomial(left, (share / share_left).clamp(0.0, 1.0), random);
        (left, share_left) = (left - count, (share_left - share).max(f64::MIN_POSITIVE));
        count
    })
}

/// One by one where they are few, else as the normal distribution has it.
fn binomial(draws: u64, p: f64, random: &mut fastrand::Rng) -> u64 {
    if draws < 200 {
        return (0..draws).filter(|_| random.f64() < p).count() as u64;
    }
    let mean = draws as f64 * p;
    (mean + normal(random) * (mean * (1.0 - p)).sqrt()).round().clamp(0.0, draws as f64) as u64
}

/// A standard normal number: twelve uniform ones are close enough.
fn normal(random: &mut fastrand::Rng) -> f64 {
    (0..12).map(|_| random.f64()).sum::<f64>() - 6.0
}
