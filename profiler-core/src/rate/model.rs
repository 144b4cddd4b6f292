//! The law: how many samples make the estimated CPU seconds per function least wrong.
//!
//! A sample costs the target `o` seconds, so `λ` samples a CPU-second dilate it by `λ·o`; fewer samples leave
//! more sampling error. [`optimum_rate_hz`] balances the two for a [`Criterion`]; [`Experiment`] is the closed
//! form for one function and one run (Stoker, eq. 4.12, 4.13 and 4.16).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What "least wrong" means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Criterion {
    /// The upper end of a confidence interval with standard score `z` (Stoker, eq. 4.13).
    UpperCurve {
        /// Standard score, 1.96 for 95%.
        z: f64,
    },
    /// The mean squared error.
    MeanSquared,
    /// The mean absolute error, which the sum of absolute percentage errors (cMAPE) also follows.
    #[default]
    MeanAbsolute,
    /// The 95th percentile of the absolute error.
    P95,
}

impl Criterion {
    /// The ratio of bias to standard deviation at the optimum; the law's only dependence on the criterion.
    ///
    /// With u = bias/sd it is z/2 for the upper curve, 1/√2 for the mean square, the root of u(2Φ(u)−1) =
    /// φ(u) for the mean of the absolute error, and that of φ(q−u)(q−3u) + φ(q+u)(q+3u) = 0 for its 95th
    /// percentile q.
    pub fn r(self) -> f64 {
        match self {
            Criterion::UpperCurve { z } => z / 2.0,
            Criterion::MeanSquared => std::f64::consts::FRAC_1_SQRT_2,
            Criterion::MeanAbsolute => 0.657_306_553,
            Criterion::P95 => 0.858_587_303,
        }
    }
}

impl fmt::Display for Criterion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Criterion::UpperCurve { z } => write!(f, "z={z}"),
            Criterion::MeanSquared => f.write_str("mse"),
            Criterion::MeanAbsolute => f.write_str("mae"),
            Criterion::P95 => f.write_str("p95"),
        }
    }
}

impl FromStr for Criterion {
    type Err = ModelError;

    /// Reads `mae`, `mse`, `p95` or `z=1.96`.
    fn from_str(text: &str) -> Result<Self, ModelError> {
        match text.trim() {
            "mae" => Ok(Criterion::MeanAbsolute),
            "mse" => Ok(Criterion::MeanSquared),
            "p95" => Ok(Criterion::P95),
            other => {
                let unknown = || ModelError::UnknownCriterion(other.to_owned());
                let z = other.strip_prefix("z=").ok_or_else(unknown)?.parse().map_err(|_| unknown())?;
                Ok(Criterion::UpperCurve { z: positive("z", z)? })
            }
        }
    }
}

impl TryFrom<String> for Criterion {
    type Error = ModelError;

    fn try_from(text: String) -> Result<Self, ModelError> {
        text.parse()
    }
}

impl From<Criterion> for String {
    fn from(criterion: Criterion) -> String {
        criterion.to_string()
    }
}

/// Why the law has no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A quantity is not a finite number above zero, or so extreme that the answer is none.
    #[error("{name} must be a finite number above zero, not {value}")]
    NotPositive {
        /// The quantity.
        name: &'static str,
        /// What it was.
        value: f64,
    },
    /// A share is not in (0, 1].
    #[error("a share must be above 0 and at most 1, not {0}")]
    NotAShare(f64),
    /// A criterion that is none of `mae`, `mse`, `p95` and `z=NUMBER`.
    #[error("unknown criterion {0:?}: expected mae, mse, p95 or z=1.96")]
    UnknownCriterion(String),
}

fn positive(name: &'static str, value: f64) -> Result<f64, ModelError> {
    if value.is_finite() && value > 0.0 { Ok(value) } else { Err(ModelError::NotPositive { name, value }) }
}

/// S: the mean of √((1−p)/p) over the `top` largest shares, weighted equally.
///
/// Values that are not above zero are no functions and are skipped; a share of 1 or more counts as 0, since
/// nothing about it is uncertain. `None` without any share. Shares need not be sorted.
pub fn spread(shares: impl IntoIterator<Item = f64>, top: usize) -> Option<f64> {
    let mut largest: Vec<f64> = shares.into_iter().filter(|p| *p > 0.0).collect();
    largest.sort_unstable_by(|a, b| b.total_cmp(a));
    largest.truncate(top.max(1));
    let sum: f64 = largest.iter().map(|p| ((1.0 - p.min(1.0)) / p).sqrt()).sum();
    (!largest.is_empty()).then(|| sum / largest.len() as f64)
}

/// λ* = (r·S / (o·√W))^(2/3): samples per CPU-second of the target.
///
/// `overhead_s` is o, the mean cost that one sample charges to the target (s); `horizon_s` is W, the CPU time
/// that goes into one profile (s). A `spread` of 0 (all time in one function) gives 0: no sample can teach
/// anything.
///
/// # Errors
/// [`ModelError::NotPositive`] where o or W is not above zero (samples that cost nothing have no optimum), or the
/// spread is negative or not finite, or the result would not be finite.
pub fn optimum_rate_hz(
    criterion: Criterion,
    spread: f64,
    overhead_s: f64,
    horizon_s: f64,
) -> Result<f64, ModelError> {
    let r = positive("r", criterion.r())?;
    let o = positive("the cost of a sample", overhead_s)?;
    let w = positive("the horizon", horizon_s)?;
    if spread == 0.0 {
        return Ok(0.0);
    }
    let s = positive("the spread of the shares", spread)?;
    positive("the optimum", (r * s / (o * w.sqrt())).powf(2.0 / 3.0))
}

/// The loss relative to the optimum when `x` times the optimal number of samples is taken: (x + 2/√x)/3.
///
/// Exact for the upper curve; the other criteria differ by some percent within a factor of 4.
pub fn relative_loss(x: f64) -> f64 {
    (x + 2.0 / x.sqrt()) / 3.0
}

/// What one of the caps on the rate allows, all in samples per CPU-second of the target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Caps {
    /// The overhead budget.
    pub budget_hz: f64,
    /// The shortest period the kernel is asked for.
    pub kernel_hz: f64,
    /// The rate of bytes that the rings and the unwinder can take.
    pub bytes_hz: f64,
}

impl Caps {
    /// The least of the law's rate and the caps, and which one it is. A NaN among them never binds.
    pub fn bound(&self, law_hz: f64) -> (f64, BoundBy) {
        let caps = [
            (self.budget_hz, BoundBy::Budget),
            (self.kernel_hz, BoundBy::Kernel),
            (self.bytes_hz, BoundBy::Bytes),
        ];
        caps.into_iter().fold((law_hz, BoundBy::Law), |least, cap| if cap.0 < least.0 { cap } else { least })
    }
}

/// What set the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BoundBy {
    /// The law: more samples would make the profile worse.
    Law,
    /// The overhead budget.
    Budget,
    /// The shortest period the kernel is asked for.
    Kernel,
    /// The bytes that samples bring.
    Bytes,
    /// The token bucket: more was spent of late than the budget allows.
    Bucket,
    /// The lowest rate that still yields a profile.
    Floor,
    /// The user, who fixed it.
    Fixed,
}

impl BoundBy {
    /// The name in JSON and in a profile's summary.
    pub fn as_str(self) -> &'static str {
        match self {
            BoundBy::Law => "law",
            BoundBy::Budget => "budget",
            BoundBy::Kernel => "kernel",
            BoundBy::Bytes => "bytes",
            BoundBy::Bucket => "bucket",
            BoundBy::Floor => "floor",
            BoundBy::Fixed => "fixed",
        }
    }
}

/// A run to be planned: one function of interest, a known length, a known cost of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experiment {
    z: f64,
    run_s: f64,
    share: f64,
    overhead_s: f64,
}

impl Experiment {
    /// A run of `run_s` CPU seconds in which the function takes `share`, at `overhead_s` a sample, judged by
    /// intervals of standard score `z`.
    ///
    /// # Errors
    /// [`ModelError`] where one is not a finite number above zero, or the share is above 1.
    pub fn new(z: f64, run_s: f64, share: f64, overhead_s: f64) -> Result<Self, ModelError> {
        if !(share > 0.0 && share <= 1.0) {
            return Err(ModelError::NotAShare(share));
        }
        let z = positive("z", z)?;
        let run_s = positive("the length of the run", run_s)?;
        let overhead_s = positive("the cost of a sample", overhead_s)?;
        let experiment = Experiment { z, run_s, share, overhead_s };
        // The answers must be numbers, too: 1e300 seconds at 1e-300 a sample are not a run.
        let plan = experiment.plan();
        let (n, time) = (plan.optimum_samples, plan.time_at_optimum_s);
        let figures = [n, plan.rate_hz, time.low, time.high, plan.crossing_samples, plan.overhead_ratio];
        let finite = figures.iter().all(|figure| figure.is_finite());
        if finite { Ok(experiment) } else { Err(ModelError::NotPositive { name: "the optimum", value: n }) }
    }

    /// n* = (z·T·√(p(1−p)) / (2·o·p))^(2/3) (Stoker, eq. 4.16); 0 for a share of 1.
    pub fn optimum_samples(&self) -> f64 {
        let (p, t) = (self.share, self.run_s);
        (self.z * t * (p * (1.0 - p)).sqrt() / (2.0 * self.overhead_s * p)).powf(2.0 / 3.0)
    }

    /// n×, where the lower curve crosses the truth: even the optimistic end of the interval overstates from
    /// there.
    pub fn crossing_samples(&self) -> f64 {
        2f64.powf(2.0 / 3.0) * self.optimum_samples()
    }

    /// t(n) = T·p + n·o·p ± z·T·√(p(1−p)/n): where the function's measured time will lie (Stoker, eq. 4.12,
    /// 4.13).
    ///
    /// Zero samples say nothing: the interval is then the whole run.
    pub fn time_s(&self, samples: f64) -> TimeInterval {
        let (p, t) = (self.share, self.run_s);
        if samples.is_nan() || samples <= 0.0 {
            return TimeInterval { low: 0.0, mean: t * p, high: t };
        }
        let mean = t * p + samples * self.overhead_s * p;
        let half = self.z * t * (p * (1.0 - p) / samples).sqrt();
        TimeInterval { low: mean - half, mean, high: mean + half }
    }

    /// The figures a person plans with.
    pub fn plan(&self) -> Plan {
        let n = self.optimum_samples();
        Plan {
            optimum_samples: n,
            rate_hz: n / self.run_s,
            time_at_optimum_s: self.time_s(n),
            crossing_samples: self.crossing_samples(),
            overhead_ratio: n * self.overhead_s / self.run_s,
            loss_at_half: relative_loss(0.5),
            loss_at_double: relative_loss(2.0),
        }
    }
}

/// Where a function's measured time will lie (s).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TimeInterval {
    /// Lower end.
    #[serde(rename = "low_s")]
    pub low: f64,
    /// Expected value, the dilation by sampling included.
    #[serde(rename = "mean_s")]
    pub mean: f64,
    /// Upper end.
    #[serde(rename = "high_s")]
    pub high: f64,
}

/// What [`Experiment::plan`] found.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// Samples at the optimum, n*.
    pub optimum_samples: f64,
    /// Samples per CPU-second at the optimum.
    pub rate_hz: f64,
    /// The function's measured time at the optimum.
    pub time_at_optimum_s: TimeInterval,
    /// Samples at which the lower curve crosses the truth, n×.
    pub crossing_samples: f64,
    /// Share of the run's CPU time spent on sampling at the optimum.
    pub overhead_ratio: f64,
    /// Loss at half the optimal number of samples, relative to the optimum.
    pub loss_at_half: f64,
    /// Loss at twice the optimal number of samples, relative to the optimum.
    pub loss_at_double: f64,
}

#[cfg(test)]
mod tests;
