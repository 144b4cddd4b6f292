//! The error to expect of an estimate with a bias and a normal deviation.

use std::f64::consts::{FRAC_2_SQRT_PI, SQRT_2};

use profiler_core::rate::Criterion;
use statrs::function::erf::erf;

/// Halvings of an interval of ten deviations: the percentile is then exact in a double.
const HALVINGS: usize = 60;

/// What `criterion` names, of an error that is normal with mean `bias` and standard deviation `sd`, in their
/// unit.
///
/// The mean of its absolute value is that of the folded normal distribution. Both must be at least 0 and
/// finite.
pub(crate) fn expected_error(criterion: Criterion, bias: f64, sd: f64) -> f64 {
    match criterion {
        Criterion::UpperCurve { z } => bias + z * sd,
        Criterion::MeanSquared => bias.hypot(sd),
        Criterion::MeanAbsolute => folded_mean(bias, sd),
        Criterion::P95 => absolute_percentile(0.95, bias, sd),
    }
}

/// E|X| for X normal with this mean and deviation.
pub(crate) fn folded_mean(mean: f64, sd: f64) -> f64 {
    if sd <= 0.0 {
        return mean.abs();
    }
    let u = mean / (sd * SQRT_2);
    sd * FRAC_2_SQRT_PI / SQRT_2 * (-u * u).exp() + mean * erf(u)
}

/// The value that |X| stays below with this probability.
fn absolute_percentile(probability: f64, mean: f64, sd: f64) -> f64 {
    if sd <= 0.0 {
        return mean.abs();
    }
    let below = |q: f64| 0.5 * (erf((q - mean) / (sd * SQRT_2)) + erf((q + mean) / (sd * SQRT_2)));
    let (mut low, mut high) = (mean.abs(), mean.abs() + 10.0 * sd);
    for _ in 0..HALVINGS {
        let middle = 0.5 * (low + high);
        if below(middle) < probability { low = middle } else { high = middle }
    }
    low
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn near(value: f64, expected: f64) {
        assert!((value - expected).abs() < 5e-5, "{value} is not {expected}");
    }

    #[test]
    fn errors_are_those_of_the_folded_normal_distribution() {
        near(expected_error(Criterion::MeanAbsolute, 0.0, 1.0), 0.79788);
        near(expected_error(Criterion::P95, 0.0, 1.0), 1.95996);
        near(expected_error(Criterion::MeanSquared, 3.0, 4.0), 5.0);
        near(expected_error(Criterion::UpperCurve { z: 1.96 }, 1.0, 2.0), 4.92);
        near(expected_error(Criterion::MeanAbsolute, 1.0, 1.0), 1.16663);
        near(expected_error(Criterion::MeanAbsolute, 2.0, 4.0), 3.58237);
    }

    #[test]
    fn errors_without_deviation_are_the_bias() {
        for criterion in [Criterion::MeanAbsolute, Criterion::MeanSquared, Criterion::P95] {
            near(expected_error(criterion, 2.0, 0.0), 2.0);
            near(expected_error(criterion, 2.0, 1e-9), 2.0);
        }
        near(expected_error(Criterion::P95, 100.0, 1.0), 101.64485);
    }

    proptest! {
        /// With u = bias/sd at the optimum rate, errors are smallest where the law says.
        #[test]
        fn the_law_s_ratio_is_where_the_error_is_smallest(index in 0usize..3, factor in 1.02..3.0f64) {
            let criterion = [Criterion::MeanAbsolute, Criterion::MeanSquared, Criterion::P95][index];
            let error = |x: f64| expected_error(criterion, criterion.r() * x, 1.0 / x.sqrt());
            prop_assert!(error(1.0) < error(factor) && error(1.0) < error(1.0 / factor));
        }
    }
}
