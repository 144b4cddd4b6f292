//! How many samples a question needs, before any is taken.
//!
//! `z` is a standard score ([`super::Confidence::normal_score`], 1.96 for 95%). Samples are taken to be
//! independent; multiply by the variance inflation where they are not. The answers are whole and rounded up;
//! where no number suffices, or an argument is none, infinity.

use super::confidence::Confidence;

/// Rounds after which the number for Student's score moves no more.
const ROUNDS: usize = 50;

/// n = z²p(1−p)/r²: a share p known to ±r (Stoker 2014, eq. 2.4).
pub fn for_share(z: f64, p: f64, r: f64) -> f64 {
    whole(z * z * p * (1.0 - p) / (r * r))
}

/// n = z²p(1−p)/(rp)²: a share p known to ±r of itself (Stoker 2014, eq. 2.5; Lilja 2000, whose
/// slide lacks the squares).
pub fn for_relative_share(z: f64, p: f64, r: f64) -> f64 {
    for_share(z, p, r * p)
}

/// n = [z(√(p(1−p)) + √(q(1−q)))/(p−q)]²: p above q, as if the two were seen in samples of their own (Stoker 2014, eq.
/// 3.2). [`for_order`] is the right size for shares of one sample; this one is larger, up to twice.
pub fn for_order_of_separate_samples(z: f64, p: f64, q: f64) -> f64 {
    let sum = (p * (1.0 - p)).sqrt() + (q * (1.0 - q)).sqrt();
    whole((z * sum / (p - q)).powi(2))
}

/// n = z²(p+q−(p−q)²)/(p−q)²: p above q in one sample, in which one takes what the other does not get.
///
/// The correction of Stoker 2014, eq. 3.2: Var(p̂−q̂) = (p(1−p) + q(1−q) + 2pq)/n.
pub fn for_order(z: f64, p: f64, q: f64) -> f64 {
    let difference = (p - q) * (p - q);
    whole(z * z * (p + q - difference) / difference)
}

/// n = (score·s/(r·x̄))²: a mean known to ±r of itself, from a first estimate of mean and standard deviation
/// (Lilja 2000, "Determining the Number of Measurements Needed").
///
/// `score` is z, or Student's with the freedom of the first estimate.
pub fn for_mean(score: f64, mean: f64, deviation: f64, r: f64) -> f64 {
    whole((score * deviation / (r * mean)).powi(2))
}

/// The same with Student's score for n itself: the least n with n ≥ (t(n−1)·s/(r·x̄))².
pub fn for_mean_with_own_freedom(confidence: Confidence, mean: f64, deviation: f64, r: f64) -> f64 {
    let mut n = for_mean(confidence.normal_score(), mean, deviation, r).max(2.0);
    for _ in 0..ROUNDS {
        let next = for_mean(confidence.student_score(n - 1.0), mean, deviation, r).max(2.0);
        // From below the steps may swing: the larger of two that do not agree suffices.
        if next <= n {
            return n;
        }
        n = next;
    }
    n
}

/// What remains of `n` samples where they come out of a population of N without being put back: n/(1 + (n−1)/N)
/// (the finite population factor of Stoker 2014, section 2.1, solved for n).
pub fn of_finite_population(n: f64, population: f64) -> f64 {
    whole(n / (1.0 + (n - 1.0) / population))
}

/// The next whole number; infinity for what is no number of samples.
fn whole(n: f64) -> f64 {
    if !n.is_finite() || n < 0.0 { f64::INFINITY } else { (n - 1e-9 * n).ceil() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const Z: f64 = 1.96;
    const DISK: (f64, f64) = (7.9375, 2.1447);

    #[test]
    fn a_share_to_so_many_points() {
        assert_eq!(for_share(Z, 0.2, 0.005), 24_587.0); // 24,586.24: the seed rounds to the nearest
        assert_eq!(for_share(Z, 0.15, 0.0025), 78_369.0);
        assert_eq!(for_relative_share(Z, 0.2, 0.005), 614_656.0);
        // Lilja 2000: 5% of the operating system's share, 124.8 s at 100/s.
        assert_eq!(for_relative_share(Z, 658.0 / 6_000.0, 0.05), 12_476.0);
    }

    #[test]
    fn foo_above_bar() {
        let pairs = [(0.49, 0.48), (0.40, 0.39), (0.30, 0.29), (0.20, 0.19), (0.10, 0.09), (0.02, 0.01)];
        let printed = [38_375.0, 36_718.0, 31_956.0, 24_115.0, 13_201.0, 2_204.0];
        for ((p, q), n) in pairs.into_iter().zip(printed) {
            let separate = for_order_of_separate_samples(Z, p, q);
            assert!((separate - n).abs() <= 3.0, "{p} {q}: {separate} {n}");
            let right = for_order(Z, p, q);
            assert!(right > separate / 2.0 && right < separate, "{p} {q}: {right}");
        }
        assert_eq!(for_order(Z, 0.49, 0.48), 37_260.0);
        assert_eq!(for_order(Z, 0.2, 0.2), f64::INFINITY);
    }

    /// Lilja 2000, 7% of the mean at 90%: 41 by the normal score, 54 by Student's of the eight measurements.
    #[test]
    fn a_mean_to_so_many_percent() {
        let ninety = Confidence::new(0.9);
        let (mean, deviation) = DISK;
        assert_eq!(for_mean(ninety.normal_score(), mean, deviation, 0.07), 41.0);
        assert_eq!(for_mean(ninety.student_score(7.0), mean, deviation, 0.07), 54.0);
        let own = for_mean_with_own_freedom(ninety, mean, deviation, 0.07);
        let enough = |n: f64| n >= for_mean(ninety.student_score(n - 1.0), mean, deviation, 0.07);
        assert!(own == 43.0 && enough(own) && !enough(own - 1.0), "{own}");
    }

    #[test]
    fn of_a_small_population_fewer_suffice() {
        assert_eq!(of_finite_population(40_000.0, 1e6), 38_462.0);
        assert_eq!(of_finite_population(1e9, 1_000.0), 1_000.0);
        assert_eq!(of_finite_population(100.0, f64::INFINITY), 100.0);
    }

    proptest! {
        #[test]
        fn a_size_is_a_number_whatever_comes(a: f64, b: f64, c: f64, d: f64) {
            let sizes = [
                for_share(a, b, c),
                for_relative_share(a, b, c),
                for_order_of_separate_samples(a, b, c),
                for_order(a, b, c),
                for_mean(a, b, c, d),
                for_mean_with_own_freedom(Confidence::new(a), b, c, d),
                of_finite_population(a, b),
            ];
            prop_assert!(sizes.iter().all(|n| *n >= 0.0), "{sizes:?}");
        }
    }
}
