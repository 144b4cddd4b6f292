//! Whether a sample could have come from a mixture: the distance of Kolmogorov and Smirnov, its distribution by
//! parametric bootstrap (Worms and Touati 2016, section II.B.3).
//!
//! The mixture was fitted to the sample itself, so it lies closer than tables allow for; the bootstrap draws samples
//! from it and fits each of them as well. Equal values are steps that no mixture has: times rounded to a clock's ticks are
//! rejected, and should be taken in nanoseconds.

use super::Mixture;
use super::fit::ScaledSample;

/// More resamples change the level by nothing that matters.
const MOST_RESAMPLES: usize = 10_000;

/// How far a sample is from a mixture, and how often one that comes from it would be as far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GoodnessOfFit {
    /// D, the largest distance between the sample's cdf and the mixture's.
    pub distance: f64,
    /// The level at which the mixture would just be rejected; small says that it does not fit.
    pub p_value: f64,
}

/// Tests whether `values` may have come from `mixture`, which was fitted to them, by `resamples` (1 … 10,000) samples
/// drawn from it. `None` without a finite value.
///
/// Of more than 4000 values as many quantiles are tested, as [`fit`](super::fit()) does.
pub fn goodness_of_fit(
    values: &[f64],
    mixture: &Mixture,
    resamples: usize,
    rng: &mut fastrand::Rng,
) -> Option<GoodnessOfFit> {
    let sample = ScaledSample::of(values)?;
    let distance = distance(&sample, mixture);
    let resamples = resamples.clamp(1, MOST_RESAMPLES);
    let as_far =
        (0..resamples).filter(|_| resampled_distance(mixture, sample.len(), rng) >= distance).count();
    Some(GoodnessOfFit { distance, p_value: (as_far + 1) as f64 / (resamples + 1) as f64 })
}

/// The distance of a sample of the mixture from the fit to that sample.
fn resampled_distance(mixture: &Mixture, size: usize, rng: &mut fastrand::Rng) -> f64 {
    let values: Vec<f64> = (0..size).map(|_| mixture.draw(rng)).collect();
    let Some(sample) = ScaledSample::of(&values) else { return 0.0 };
    // Where a component got no values the sample is as far as it is from the mixture itself.
    let refitted = sample.refit(mixture);
    distance(&sample, refitted.as_ref().unwrap_or(mixture))
}

/// sup|Fₙ − F|: the sample's cdf jumps at each value, so both sides of it are looked at.
fn distance(sample: &ScaledSample, mixture: &Mixture) -> f64 {
    let n = sample.len() as f64;
    let apart = |(index, value): (usize, f64)| {
        let share = mixture.cdf(value);
        (share - index as f64 / n).abs().max((share - (index + 1) as f64 / n).abs())
    };
    sample.sorted().enumerate().map(apart).fold(0.0, f64::max)
}
