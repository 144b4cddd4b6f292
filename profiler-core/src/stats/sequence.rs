//! Confidence sequences: intervals that hold at *every* look, however often one looks and whenever one stops.
//!
//! An interval of 95% holds in 95% of the looks, not of the runs: stopping when a live table looks good is
//! wrong about half of the time. These hold in 95% of the runs at all times together (Ville's inequality,
//! Robbins 1970, for a mixture of likelihood ratios), at up to twice the width.

use statrs::function::beta::checked_ln_beta;

use super::confidence::Confidence;
use super::interval::Interval;

/// The mixture over shares: Jeffreys', which is as good for small shares as for even ones.
const PRIOR: f64 = 0.5;
/// Halvings of a bracket.
const HALVINGS: usize = 60;

/// The shares that `x` of `n` samples do not contradict at any time: those where the beta mixture's likelihood is below
/// 1/α times their own.
///
/// For independent samples, of which `x` and `n` may be effective (fractional) counts. [`Interval::UNKNOWN`] without
/// samples or for what is no number; an `x` outside of 0 … `n` is brought into it.
pub fn beta_binomial(x: f64, n: f64, confidence: Confidence) -> Interval {
    if !(n > 0.0 && n.is_finite()) || x.is_nan() {
        return Interval::UNKNOWN;
    }
    let x = x.clamp(0.0, n);
    let mixture = checked_ln_beta(x + PRIOR, n - x + PRIOR).unwrap_or(f64::NAN)
        - checked_ln_beta(PRIOR, PRIOR).unwrap_or(f64::NAN);
    let limit = -confidence.alpha().ln();
    let excluded = |p: f64| mixture - log_power(p, x) - log_power(1.0 - p, n - x) >= limit;
    Interval { low: edge(0.0, x / n, excluded), high: edge(1.0, x / n, excluded) }
}

/// a·ln p, 0 for an a of 0.
fn log_power(p: f64, a: f64) -> f64 {
    if a == 0.0 { 0.0 } else { a * p.ln() }
}

/// Where exclusion ends between a share that may be excluded and the one that was seen.
fn edge(mut outside: f64, mut inside: f64, excluded: impl Fn(f64) -> bool) -> f64 {
    if !excluded(outside) {
        return outside;
    }
    for _ in 0..HALVINGS {
        let middle = 0.5 * (outside + inside);
        if excluded(middle) { outside = middle } else { inside = middle }
    }
    outside
}

/// The score that an error of independent, normal increments crosses ever with probability α only: √((1+η/I)(2·ln(1/α) +
/// ln(1+I/η))) at information I (one over the variance), tightest around I = 10·η.
///
/// The normal mixture's boundary, the limit of [`beta_binomial`] for many samples; infinite without information.
pub fn normal_mixture_score(information: f64, tuned_to: f64, confidence: Confidence) -> f64 {
    let ratio = information / tuned_to;
    if ratio.is_nan() || ratio <= 0.0 {
        return f64::INFINITY;
    }
    ((1.0 + 1.0 / ratio) * (-2.0 * confidence.alpha().ln() + ratio.ln_1p())).sqrt()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::stats::proportion::wald;

    /// The share of runs of 5,000 samples in which an interval misses at any of fifty looks, and its width at the
    /// last.
    fn missed(interval: impl Fn(f64, f64) -> Interval) -> (f64, f64) {
        let mut rng = fastrand::Rng::with_seed(11);
        let (runs, p) = (200, 0.1);
        let (mut missed, mut width) = (0, 0.0);
        for _ in 0..runs {
            let (mut x, mut held) = (0.0, true);
            for n in 1..=5_000 {
                x += f64::from(u8::from(rng.f64() < p));
                held &= n % 100 != 0 || interval(x, f64::from(n)).contains(p);
            }
            missed += usize::from(!held);
            let last = interval(x, 5_000.0);
            width += last.high - last.low;
        }
        (missed as f64 / f64::from(runs), width / f64::from(runs))
    }

    #[test]
    fn who_watches_errs_with_an_interval_and_not_with_a_sequence() {
        let confidence = Confidence::default();
        let (interval, narrow) = missed(|x, n| wald(x, n, confidence));
        let (sequence, wide) = missed(|x, n| beta_binomial(x, n, confidence));
        assert!(interval > 0.3, "{interval}");
        assert!(sequence <= 0.03, "{sequence}");
        assert!((1.4..2.1).contains(&(wide / narrow)), "{}", wide / narrow);
    }

    #[test]
    fn the_normal_mixture_is_its_limit() {
        let confidence = Confidence::default();
        let sequence = beta_binomial(30_000.0, 100_000.0, confidence);
        // Jeffreys' mixture has the density 1/(π√(p(1−p))) at p: η = 2π·density²·p(1−p) = 2/π in samples.
        let score = normal_mixture_score(100_000.0, std::f64::consts::FRAC_2_PI, confidence);
        let half = score * (0.3 * 0.7 / 100_000.0_f64).sqrt();
        assert!(((sequence.high - sequence.low) / (2.0 * half) - 1.0).abs() < 0.01, "{sequence:?} {half}");
    }

    proptest! {
        #[test]
        fn it_is_an_interval_whatever_comes(x: f64, n: f64, level: f64, whole in 0u64..1 << 60, of in 0u64..1 << 60) {
            for (x, n) in [(x, n), (whole as f64, of as f64), (0.0, n), (n, n)] {
                let ends = beta_binomial(x, n, Confidence::new(level));
                prop_assert!(0.0 <= ends.low && ends.low <= ends.high && ends.high <= 1.0, "{x} {n} {ends:?}");
            }
            prop_assert!(normal_mixture_score(x, n, Confidence::new(level)) >= 0.0);
        }
    }
}
