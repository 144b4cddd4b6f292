//! Intervals of a proportion: `x` of `n` samples, all of them independent.
//!
//! `x` and `n` need not be whole: dividing both by the variance inflation is how samples that are not
//! independent are treated. Wilson's interval is the one to use. Clopper and Pearson's never holds less often
//! than promised and is wider. Wald's (Lilja 2000, "Confidence Intervals Proportions"; Stoker 2014, eq. 2.3)
//! is there to be compared with: around one expected sample it holds in 63% of the cases instead of 95%.
//!
//! Without samples, and for numbers that are none, every interval is [`Interval::UNKNOWN`]. An `x` outside of
//! 0 … `n` is brought into it.

use statrs::distribution::Beta;

use super::confidence::Confidence;
use super::interval::Interval;
use super::quantile::quantile;

/// Up to here the library's beta distribution is exact to many digits; above, Wilson's interval is the same.
const EXACT_COUNT: f64 = 1e4;
/// Above, a small count out of many is a Poisson count, whose ends go with 1/n.
const EXACT_SAMPLES: f64 = 1e8;

/// p ± z·√(p(1−p)/n) (Stoker 2014, eq. 2.3), within 0 and 1. For comparison only.
pub fn wald(x: f64, n: f64, confidence: Confidence) -> Interval {
    let Some(p) = share(x, n) else { return Interval::UNKNOWN };
    let half = confidence.normal_score() * (p * (1.0 - p) / n).sqrt();
    Interval { low: (p - half).max(0.0), high: (p + half).min(1.0) }
}

/// Wilson's score interval: the shares that n samples do not contradict.
pub fn wilson(x: f64, n: f64, confidence: Confidence) -> Interval {
    let Some(p) = share(x, n) else { return Interval::UNKNOWN };
    score_interval(p, p * (1.0 - p) / n, n, confidence.normal_score())
}

/// Wilson's interval around `p` at this score, where the share's error has a `variance` other than p(1−p)/n: that of
/// a better design, or that of inflated samples.
///
/// `n` is what speaks against shares that were hardly seen: no sample in n leaves room up to about score²/n.
pub(super) fn score_interval(p: f64, variance: f64, n: f64, score: f64) -> Interval {
    let unseen = score * score / n;
    let centre = (p + unseen / 2.0) / (1.0 + unseen);
    let half = score / (1.0 + unseen) * (variance + unseen / (4.0 * n)).sqrt();
    let (low, high) = (centre - half, centre + half);
    if low.is_nan() || high.is_nan() {
        return Interval::UNKNOWN;
    }
    // At a share of 0 or 1 one end is exactly there; rounding must not move it, nor push the share out.
    Interval { low: low.clamp(0.0, p), high: high.clamp(p, 1.0) }
}

/// Clopper and Pearson's interval: the shares at which neither `x` or more nor `x` or fewer are rarer than α/2.
pub fn clopper_pearson(x: f64, n: f64, confidence: Confidence) -> Interval {
    let Some(p) = share(x, n) else { return Interval::UNKNOWN };
    if n > EXACT_SAMPLES && p.min(1.0 - p) * EXACT_SAMPLES < EXACT_COUNT {
        return poisson(p, n, confidence);
    }
    if p.min(1.0 - p) * n > EXACT_COUNT {
        return wilson(x, n, confidence);
    }
    let (x, tail) = (p * n, confidence.alpha() / 2.0);
    let low = if p == 0.0 { 0.0 } else { beta_quantile(x, n - x + 1.0, tail) };
    let high = if p == 1.0 { 1.0 } else { beta_quantile(x + 1.0, n - x, 1.0 - tail) };
    Interval { low: low.min(p), high: high.max(p) }
}

/// Clopper and Pearson's interval of a share `p` of `n` effective samples, in closed form: Paulson's approximation of
/// the beta distribution's quantiles, a table of thousands of functions in little time.
///
/// Its ends are those of [`clopper_pearson`] within some percent of the interval's width, and outside of them where
/// fewer than five are expected.
pub(super) fn count_interval(p: f64, n: f64, confidence: Confidence) -> Interval {
    if share(p * n, n).is_none() {
        return Interval::UNKNOWN;
    }
    if p > 0.5 {
        let rest = count_interval(1.0 - p, n, confidence);
        return Interval { low: 1.0 - rest.high, high: 1.0 - rest.low }.including(p.min(1.0));
    }
    let p = p.max(0.0);
    let (x, rest, z) = (p * n, n - p * n, confidence.normal_score());
    let low = if p == 0.0 { Some(0.0) } else { paulson(x, rest + 1.0, -z) };
    match (low, paulson(x + 1.0, rest, z)) {
        (Some(low), Some(high)) => Interval { low: low.clamp(0.0, p), high: high.clamp(p, 1.0) },
        _ => clopper_pearson(x, n, confidence).including(p),
    }
}

/// The quantile of a beta distribution at this score: with F^⅓ nearly normal, c = 1/(9a) and d = 1/(9b), the root y of
/// ((1−d)²−z²d)·y² − 2(1−c)(1−d)·y + (1−c)²−z²c = 0 on the score's side, and F = y³.
///
/// `None` where the approximation has no root, for a small b at a large score.
fn paulson(a: f64, b: f64, z: f64) -> Option<f64> {
    let (c, d) = (1.0 / (9.0 * a), 1.0 / (9.0 * b));
    let square = (1.0 - d).powi(2) - z * z * d;
    let root = ((1.0 - d).powi(2) * c + (1.0 - c).powi(2) * d - c * d * z * z).sqrt();
    let y = ((1.0 - c) * (1.0 - d) + z * root) / square;
    let odds = a / b * y.max(0.0).powi(3);
    (square > 0.0 && !y.is_nan()).then_some(odds / (1.0 + odds))
}

/// The interval of so rare (or so usual) an outcome, from one of fewer samples.
fn poisson(p: f64, n: f64, confidence: Confidence) -> Interval {
    if p > 0.5 {
        let rest = poisson(1.0 - p, n, confidence);
        return Interval { low: 1.0 - rest.high, high: 1.0 - rest.low };
    }
    let factor = EXACT_SAMPLES / n;
    let count = (p * n).min(EXACT_COUNT);
    if count == EXACT_COUNT {
        return wilson(p * n, n, confidence);
    }
    let scaled = clopper_pearson(count, EXACT_SAMPLES, confidence);
    Interval { low: (scaled.low * factor).min(p), high: (scaled.high * factor).max(p) }
}

/// The share with so much of a beta distribution below it.
fn beta_quantile(a: f64, b: f64, below: f64) -> f64 {
    Beta::new(a, b).map_or(f64::NAN, |beta| quantile(&beta, (0.0, 1.0), below))
}

/// √((N−n)/(N−1)): what the error of n samples shrinks by when they are taken out of N and not put back (Stoker 2014,
/// section 2.1). It matters from n = N/20.
///
/// 1 for a population that is not known (infinite, or no number), 0 where all of it was taken.
pub fn finite_population_factor(n: f64, population: f64) -> f64 {
    let factor = ((population - n) / (population - 1.0)).max(0.0).sqrt();
    if population.is_finite() && n >= 1.0 && factor.is_finite() {
        factor.min(1.0)
    } else if n >= population {
        0.0
    } else {
        1.0
    }
}

/// x/n, if there is one.
fn share(x: f64, n: f64) -> Option<f64> {
    let p = x / n;
    (n > 0.0 && n.is_finite() && !p.is_nan()).then(|| p.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests;
