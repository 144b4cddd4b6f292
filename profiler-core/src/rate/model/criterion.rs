//! What a profile is optimised for, and how bias and deviation make up its error.

use std::f64::consts::FRAC_1_SQRT_2;
use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use statrs::distribution::{Continuous, ContinuousCDF, Normal};

/// What "least wrong" means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
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

/// The word is no criterion's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {} such as z=1.96 (above 0, at most 10), not `{found}`", Criterion::WORDS)]
pub struct UnknownCriterion {
    /// The word.
    found: String,
}

impl FromStr for Criterion {
    type Err = UnknownCriterion;

    fn from_str(text: &str) -> Result<Self, UnknownCriterion> {
        let score = || text.strip_prefix("z=")?.parse().ok().filter(|z| *z > 0.0 && *z <= 10.0);
        match text {
            "mae" => Ok(Self::MeanAbsolute),
            "mse" => Ok(Self::MeanSquared),
            "p95" => Ok(Self::P95),
            _ => match score() {
                Some(z) => Ok(Self::UpperCurve { z }),
                None => Err(UnknownCriterion { found: text.to_owned() }),
            },
        }
    }
}

impl fmt::Display for Criterion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MeanAbsolute => f.write_str("mae"),
            Self::MeanSquared => f.write_str("mse"),
            Self::P95 => f.write_str("p95"),
            Self::UpperCurve { z } => write!(f, "z={z}"),
        }
    }
}

impl Criterion {
    /// The words for them on a command line and in a settings file. The last is the one that [`UnknownCriterion`] gives an example of.
    pub const WORDS: &str = "mae, mse, p95 or z=SCORE";
    /// Every criterion, the upper curve at 95%.
    pub const ALL: [Self; 4] =
        [Self::UpperCurve { z: 1.96 }, Self::MeanSquared, Self::MeanAbsolute, Self::P95];

    /// The ratio of bias to standard deviation at the optimum; the law's only dependence on the criterion.
    ///
    /// With u = bias/sd it is z/2 for the upper curve, 1/√2 for the mean square, the root of u(2Φ(u)−1) =
    /// φ(u) for the mean of the absolute error, and that of φ(q−u)(q−3u) + φ(q+u)(q+3u) = 0 for its 95th
    /// percentile q.
    pub fn r(self) -> f64 {
        match self {
            Criterion::UpperCurve { z } => z / 2.0,
            Criterion::MeanSquared => COMPENSATED_R,
            Criterion::MeanAbsolute => 0.657_306_553,
            Criterion::P95 => 0.858_587_303,
        }
    }

    /// The error of an estimate that is off by `bias` on average and scatters normally by `deviation` (≥ 0), in
    /// their unit: the upper end, the root mean square, the mean or the 95th percentile of the absolute error.
    pub fn error(self, bias: f64, deviation: f64) -> f64 {
        match self {
            Criterion::UpperCurve { z } => bias + z * deviation,
            Criterion::MeanSquared => bias.hypot(deviation),
            Criterion::MeanAbsolute => mean_absolute(bias.abs(), deviation),
            Criterion::P95 => percentile_95(bias.abs(), deviation),
        }
    }

    /// Whether the error of several profiles together is the mean of their squared errors, not of their errors.
    pub(super) fn averages_squares(self) -> bool {
        match self {
            Criterion::MeanSquared => true,
            Criterion::UpperCurve { .. } | Criterion::MeanAbsolute | Criterion::P95 => false,
        }
    }
}

/// The ratio at the optimum where the bias is itself a random error around zero: the two variances add up, and
/// every criterion grows with their sum.
pub(super) const COMPENSATED_R: f64 = FRAC_1_SQRT_2;

/// Standard scores beyond which a normal distribution has nothing left in double precision.
const TAIL: f64 = 40.0;

/// Mean of a folded normal distribution: σ√(2/π)·exp(−μ²/2σ²) + μ(2Φ(μ/σ) − 1).
fn mean_absolute(bias: f64, deviation: f64) -> f64 {
    let u = bias / deviation;
    if deviation <= 0.0 || u > TAIL {
        return bias;
    }
    let normal = Normal::standard();
    2.0 * deviation * normal.pdf(u) + bias * (2.0 * normal.cdf(u) - 1.0)
}

/// 95th percentile of a folded normal distribution, by bisection: it lies within 1.96σ above the bias.
fn percentile_95(bias: f64, deviation: f64) -> f64 {
    let u = bias / deviation;
    if deviation <= 0.0 || u > TAIL {
        return bias + 1.644_853_627 * deviation.max(0.0);
    }
    let normal = Normal::standard();
    let (mut low, mut high) = (u, u + 2.0);
    for _ in 0..52 {
        let middle = 0.5 * (low + high);
        let below = normal.cdf(middle - u) - normal.cdf(-middle - u);
        if below < 0.95 { low = middle } else { high = middle }
    }
    deviation * 0.5 * (low + high)
}
