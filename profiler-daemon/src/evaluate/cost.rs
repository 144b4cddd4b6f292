//! What a sample costs by the CPU times of the runs, without the profiler's own account. It costs less the closer
//! samples follow each other, because the kernel's code is still in the caches: half as much at 40,000/s as at 100/s.
//! So the law's rate is that at which it asks for that rate at the cost there, and the reported cost is compared with
//! the stopwatch at the rates that were chosen.

use serde::Serialize;

use super::design::{Arm, SHAPES};
use super::fit::{Observation, golden_section};

/// The rate at which a cost is stated (samples per second of the program's own CPU time).
pub(super) const STATED_HZ: f64 = 1_000.0;
/// Exponents that are looked for; below 0 a sample would cost more at higher rates.
const EXPONENTS: (f64, f64) = (-0.2, 0.6);
/// From here on samples leave the program no time.
const MOST_OVERHEAD: f64 = 0.95;
/// Steps to the rate that includes the samples' own time; a handful suffices.
const DILATION_STEPS: usize = 40;
/// How close is close enough, relative.
const CLOSE_ENOUGH: f64 = 1e-6;

/// o(ν) = o₁·(ν/1,000)^−β, with ν samples for each second of the program's own CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Curve {
    /// o₁: the cost at 1,000 samples per second (µs).
    pub(super) overhead_us: f64,
    /// β.
    pub(super) exponent: f64,
}

/// A [`Curve`] fitted to the CPU times of all programs together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct FittedCost {
    /// The curve.
    #[serde(flatten)]
    pub(super) curve: Curve,
    /// Standard error of o₁, that of the exponent included (µs).
    pub(super) overhead_se_us: f64,
    /// Deviation of a run's CPU time from the curve, relative.
    pub(super) noise_ratio: f64,
}

/// What sampling makes of a second of a program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Dilated {
    /// ν: samples for each second of the program's own CPU time.
    pub(super) rate_hz: f64,
    /// What they add to that second, relative: ν·o(ν).
    pub(super) added: f64,
}

impl Curve {
    /// o(ν) (s).
    pub(super) fn at(self, rate_hz: f64) -> f64 {
        self.overhead_us * 1e-6 * falling(rate_hz, self.exponent)
    }

    /// The same fall, from another cost at 1,000 samples per second (s).
    pub(super) fn with_cost(self, overhead_s: f64) -> Self {
        Self { overhead_us: overhead_s * 1e6, ..self }
    }

    /// What a clock of λ samples per CPU-second does, the samples' own time being CPU time too: ν = λ·(1 + ν·o(ν)), by
    /// Newton's steps. `None` where samples leave the program no time.
    pub(super) fn dilated(self, clock_hz: f64) -> Option<Dilated> {
        let mut rate_hz = clock_hz;
        for _ in 0..DILATION_STEPS {
            let overhead_s = self.at(rate_hz);
            let added = rate_hz * overhead_s;
            let missing_hz = clock_hz * (1.0 + added) - rate_hz;
            let slope = 1.0 - clock_hz * (1.0 - self.exponent) * overhead_s;
            if !(added < MOST_OVERHEAD / (1.0 - MOST_OVERHEAD) && slope > 0.0) {
                return None;
            }
            if missing_hz.abs() < CLOSE_ENOUGH * rate_hz {
                return Some(Dilated { rate_hz, added });
            }
            rate_hz += missing_hz / slope;
        }
        None
    }

    /// How much less a sample costs with each doubling of the rate, relative.
    pub(super) fn less_at_double(self) -> f64 {
        1.0 - 0.5f64.powf(self.exponent)
    }
}

/// (ν/1,000)^−β.
pub(super) fn falling(rate_hz: f64, exponent: f64) -> f64 {
    (rate_hz / STATED_HZ).powf(-exponent)
}

/// What a sample costs the runs of an arm: what they took more than their twins, unsampled runs' own difference taken off,
/// over their samples (µs). `None` without samples.
///
/// By the turns of the twins alone, so that the truth's own noise is no part of it.
pub(super) fn cost_us(runs: &[&Observation], truth: &[f64; SHAPES.len()], arm: Arm) -> Option<f64> {
    let beyond = |run: &Observation| run.excess_ratio.unwrap_or(run.cpu_s / truth[run.shape] - 1.0);
    let unsampled: Vec<f64> =
        runs.iter().filter(|run| run.arm == Arm::Unsampled).map(|run| beyond(run)).collect();
    let usual = unsampled.iter().sum::<f64>() / unsampled.len().max(1) as f64;
    let of_arm = || runs.iter().filter(|run| run.arm == arm);
    let samples: f64 = of_arm().map(|run| run.n()).sum();
    let added_s: f64 = of_arm().map(|run| truth[run.shape] * (beyond(run) - usual)).sum();
    (samples > 0.0).then(|| added_s * 1e6 / samples)
}

/// A run as the fit sees it: deviations from its program's mean.
struct Deviation {
    /// Of the CPU time (s).
    cpu_s: f64,
    /// Of n·(ν/1,000)^−β: what a second of o₁ adds.
    per_overhead: f64,
    /// Of that times −ln(ν/1,000): how it changes with the exponent.
    per_exponent: f64,
    weight: f64,
}

/// Weighted least squares of C = T + o(ν)·n, with a T for each program and deviations in proportion to C. `None` where the
/// runs are too few, or none differ in their samples.
pub(super) fn cost(runs: &[&Observation], truth: &[f64; SHAPES.len()]) -> Option<FittedCost> {
    let usable: Vec<&Observation> = runs.iter().copied().filter(|run| run.cpu_s > 0.0).collect();
    let freedom = usable.len().checked_sub(SHAPES.len() + 2).filter(|freedom| *freedom > 0)?;
    let exponent = golden_section(EXPONENTS.0, EXPONENTS.1, |exponent| {
        let deviations = deviations(&usable, truth, exponent);
        let overhead_s = overhead(&deviations).unwrap_or(0.0);
        squares(&deviations, overhead_s)
    });
    let deviations = deviations(&usable, truth, exponent);
    let overhead_s = overhead(&deviations)?;
    let noise_ratio = (squares(&deviations, overhead_s) / freedom as f64).sqrt();
    Some(FittedCost {
        curve: Curve { overhead_us: overhead_s * 1e6, exponent },
        overhead_se_us: noise_ratio * precision(&deviations, overhead_s)?.powf(-0.5) * 1e6,
        noise_ratio,
    })
}

fn deviations(runs: &[&Observation], truth: &[f64; SHAPES.len()], exponent: f64) -> Vec<Deviation> {
    let mut all = Vec::with_capacity(runs.len());
    for (shape, true_s) in truth.iter().enumerate() {
        let terms = runs.iter().filter(|run| run.shape == shape).map(|run| {
            let (n, rate_hz) = (run.samples as f64, run.samples as f64 / true_s);
            let per_overhead = if n > 0.0 { n * falling(rate_hz, exponent) } else { 0.0 };
            let per_exponent = if n > 0.0 { -per_overhead * (rate_hz / STATED_HZ).ln() } else { 0.0 };
            Deviation { cpu_s: run.cpu_s, per_overhead, per_exponent, weight: run.cpu_s.powi(-2) }
        });
        let terms: Vec<Deviation> = terms.collect();
        let sum: f64 = terms.iter().map(|term| term.weight).sum();
        let mean =
            |of: fn(&Deviation) -> f64| terms.iter().map(|term| term.weight * of(term)).sum::<f64>() / sum;
        let (cpu_s, per_overhead, per_exponent) =
            (mean(|term| term.cpu_s), mean(|term| term.per_overhead), mean(|term| term.per_exponent));
        all.extend(terms.into_iter().map(|term| Deviation {
            cpu_s: term.cpu_s - cpu_s,
            per_overhead: term.per_overhead - per_overhead,
            per_exponent: term.per_exponent - per_exponent,
            weight: term.weight,
        }));
    }
    all
}

/// The weighted sum of products.
fn product(deviations: &[Deviation], of: impl Fn(&Deviation) -> f64) -> f64 {
    deviations.iter().map(|deviation| deviation.weight * of(deviation)).sum()
}

/// o₁ at an exponent (s). `None` where no run differs in its samples.
fn overhead(deviations: &[Deviation]) -> Option<f64> {
    let squared = product(deviations, |deviation| deviation.per_overhead.powi(2));
    (squared > 0.0)
        .then(|| product(deviations, |deviation| deviation.per_overhead * deviation.cpu_s) / squared)
}

/// The weighted sum of squares that o₁ leaves over.
fn squares(deviations: &[Deviation], overhead_s: f64) -> f64 {
    product(deviations, |deviation| (deviation.cpu_s - overhead_s * deviation.per_overhead).powi(2))
}

/// 1/variance of o₁ for deviations of variance 1, the exponent being fitted, too. `None` where the two cannot be told apart.
fn precision(deviations: &[Deviation], overhead_s: f64) -> Option<f64> {
    let of_overhead = product(deviations, |deviation| deviation.per_overhead.powi(2));
    let of_exponent = product(deviations, |deviation| (overhead_s * deviation.per_exponent).powi(2));
    let of_both =
        product(deviations, |deviation| overhead_s * deviation.per_overhead * deviation.per_exponent);
    let precision = of_overhead - of_both * of_both / of_exponent;
    (precision > 0.0).then_some(precision)
}

#[cfg(test)]
#[path = "cost_tests.rs"]
mod tests;
