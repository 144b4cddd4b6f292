//! Quantiles of distributions.

use statrs::distribution::ContinuousCDF;

/// Halvings of a bracket: all the digits a float has.
const HALVINGS: usize = 60;

/// The value between `low` and `high` with so much of a distribution below it. Halving always ends; the library's own inverse does not
/// where its density underflows.
pub(super) fn quantile(
    distribution: &impl ContinuousCDF<f64, f64>,
    (mut low, mut high): (f64, f64),
    below: f64,
) -> f64 {
    for _ in 0..HALVINGS {
        let middle = 0.5 * (low + high);
        if distribution.cdf(middle) < below { low = middle } else { high = middle }
    }
    0.5 * (low + high)
}
