//! The error of a realised share: what the target did in *this* run, of which the samples are a systematic selection.
//!
//! Samples that follow each other at nearly equal distances miss a long visit by at most a distance at its ends, so
//! they know the share of this run better than as many independent ones, and the better the longer the visits are. How
//! much better is seen in the differences between neighbours.

use super::table::WindowSums;

/// √(Σ(Δx)²/(2n(n−1))) over n neighbours: the standard error of the mean of a systematic sample of any
/// values, valid where they are random and too large, never too small, where they drift or come in bouts (von
/// Neumann 1941, Wolter 1984).
///
/// Infinite of less than two; NaN where a value is none.
pub fn error(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let squares: f64 = values.windows(2).map(|pair| (pair[1] - pair[0]).powi(2)).sum();
    if values.len() < 2 { f64::INFINITY } else { (squares / (2.0 * n * (n - 1.0))).sqrt() }
}

/// The variance of a function's realised share, where the windows tell how it was spread over the run.
///
/// The sum of two parts. *Within* a window, its samples are taken for independent: (t/T)²·q(1−q)/(m−1) for a share q
/// of m samples of equal weight, nothing where the function has all or none of the window. *Between* neighbouring windows, the
/// successive differences at the scale of `n` samples: Σ(Δq)²/(2n²), a sample's worth of error for each edge.
///
/// `parts` are the windows in which the function was seen with its weights (ns), `squares_ns2` the sums of the squares of its
/// samples' weights in each.
pub(super) fn realised_variance(
    windows: &[WindowSums],
    total_ns: f64,
    n: f64,
    parts: &[(usize, f64)],
    squares_ns2: &[f64],
) -> f64 {
    let (mut within, mut between, mut before) = (0.0, 0.0, None::<(usize, f64)>);
    for (&(at, weight_ns), own_ns2) in parts.iter().zip(squares_ns2) {
        let window = windows[at];
        let (q, all_ns2) = ((weight_ns / window.weight_ns).min(1.0), window.known_squares_ns2());
        let m = window.weight_ns * window.weight_ns / all_ns2;
        let independent_ns2 = ((1.0 - 2.0 * q) * own_ns2 + q * q * all_ns2).max(0.0);
        within += independent_ns2 / (total_ns * total_ns) * m / (m - 1.0).max(1.0);
        between += match before {
            Some((last, share)) if last + 1 == at => (q - share).powi(2),
            Some((_, share)) => share * share + q * q,
            None => q * q,
        };
        before = Some((at, q));
    }
    between += before.map_or(0.0, |(_, share)| share * share);
    within + between / (2.0 * n * n)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn of_independent_values_it_is_the_standard_error() {
        let mut rng = fastrand::Rng::with_seed(4);
        let values: Vec<f64> = (0..20_000).map(|_| f64::from(u8::from(rng.f64() < 0.3))).collect();
        let expected = (0.3 * 0.7 / 20_000.0_f64).sqrt();
        assert!((error(&values) / expected - 1.0).abs() < 0.03);
    }

    #[test]
    fn of_long_bouts_it_is_the_edges() {
        let values: Vec<f64> = (0..1_000).map(|i| f64::from(i32::from((300..700).contains(&i)))).collect();
        assert!((error(&values) - (2.0 / (2.0 * 1_000.0 * 999.0_f64)).sqrt()).abs() < 1e-12);
        assert_eq!(error(&[1.0]), f64::INFINITY);
    }

    #[test]
    fn windows_that_are_all_or_nothing_leave_the_edges_alone() {
        let windows = [WindowSums { weight_ns: 1.0, samples: 50, squares_ns2: 0.0 }; 10];
        let (run, split) = ([(3, 1.0), (4, 1.0)], [(3, 0.5), (4, 1.0), (5, 0.5)]);
        let variance = |parts: &[(usize, f64)]| {
            let squares_ns2: Vec<f64> = parts.iter().map(|(_, weight_ns)| weight_ns / 50.0).collect();
            realised_variance(&windows, 10.0, 500.0, parts, &squares_ns2)
        };
        assert!((variance(&run) - 2.0 / (2.0 * 500.0 * 500.0)).abs() < 1e-15);
        // Two windows of half a share: 2·.01·.25/49, and four half steps.
        assert!((variance(&split) - (2.0 * 0.01 * 0.25 / 49.0 + 1.0 / 500_000.0)).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn it_is_no_negative_number(values in prop::collection::vec(any::<f64>(), 0..20)) {
            let error = error(&values);
            prop_assert!(error >= 0.0 || error.is_nan());
        }
    }
}
