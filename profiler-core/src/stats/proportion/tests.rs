use proptest::prelude::*;
use statrs::distribution::{Binomial, Discrete};

use super::*;

fn close(interval: Interval, low: f64, high: f64, tolerance: f64) {
    let off = (interval.low - low).abs().max((interval.high - high).abs());
    assert!(off < tolerance, "{interval:?} is not {low} … {high}");
}

fn level(level: f64) -> Confidence {
    Confidence::new(level)
}

/// Lilja 2000: 658 of 6,000 interrupts found the operating system running.
#[test]
fn the_share_of_the_operating_system_is_the_lectures() {
    close(wald(658.0, 6_000.0, level(0.95)), 0.1018, 0.1176, 5e-5);
    let closer = wilson(658.0, 6_000.0, level(0.95));
    close(closer, 0.1020, 0.1178, 5e-5);
}

#[test]
fn they_are_the_textbooks() {
    close(wilson(1.0, 10.0, level(0.95)), 0.0179, 0.4042, 5e-5);
    close(clopper_pearson(1.0, 10.0, level(0.95)), 0.0025, 0.4450, 5e-5);
    close(clopper_pearson(0.0, 10.0, level(0.95)), 0.0, 0.3085, 5e-5);
    close(clopper_pearson(10.0, 10.0, level(0.95)), 0.6915, 1.0, 5e-5);
    // Of 3 expected by Poisson: .6187 … 8.7673.
    close(clopper_pearson(3.0, 1e12, level(0.95)), 0.6187e-12, 8.7673e-12, 1e-15);
}

/// How often an interval holds p, summed over all outcomes of n samples.
fn coverage(n: u64, p: f64, interval: impl Fn(f64, f64, Confidence) -> Interval) -> f64 {
    let outcomes = Binomial::new(p, n).unwrap();
    let holds = |x: &u64| interval(*x as f64, n as f64, level(0.95)).contains(p);
    (0..=n).filter(holds).map(|x| outcomes.pmf(x)).sum()
}

/// The figures of one expected sample: Wald .63, Wilson .92, Clopper and Pearson .98.
#[test]
fn of_a_share_that_was_hardly_seen_wald_knows_nothing() {
    let of = |interval: fn(f64, f64, Confidence) -> Interval| coverage(1_000, 0.001, interval);
    let figures = [of(wald), of(wilson), of(clopper_pearson)];
    for (figure, expected) in figures.into_iter().zip([0.63, 0.92, 0.98]) {
        assert!((figure - expected).abs() < 0.006, "{figures:?}");
    }
}

#[test]
fn clopper_and_pearson_never_hold_less_often_than_promised() {
    for p in [0.003, 0.02, 0.1, 0.3, 0.5, 0.77, 0.99] {
        let covered = coverage(80, p, clopper_pearson);
        assert!((0.95..=1.0).contains(&covered), "{p}: {covered}");
    }
}

/// Fifty functions at 2%, 4,500 samples: intervals for one hold together in 8% of the tables, split ones in 95%.
/// (Independent shares; those of a table are nearly so.)
#[test]
fn a_table_needs_the_split() {
    let joint = |confidence: Confidence| {
        let n = 4_500;
        let outcomes = Binomial::new(0.02, n).unwrap();
        let holds = |x: &u64| wilson(*x as f64, n as f64, confidence).contains(0.02);
        (0..=n).filter(holds).map(|x| outcomes.pmf(x)).sum::<f64>().powi(50)
    };
    let (pointwise, split) = (joint(level(0.95)), joint(level(0.95).split(50)));
    assert!((0.06..0.10).contains(&pointwise), "{pointwise}");
    assert!((0.93..0.965).contains(&split), "{split}");
}

#[test]
fn a_small_population_makes_an_interval_smaller() {
    assert!((finite_population_factor(50_000.0, 1e6) - 0.974_680).abs() < 1e-6);
    assert_eq!(finite_population_factor(1e6, 1e6), 0.0);
    assert_eq!(finite_population_factor(10.0, f64::INFINITY), 1.0);
    assert_eq!(finite_population_factor(f64::NAN, 10.0), 1.0);
    assert_eq!(finite_population_factor(1.0, 1.0), 0.0);
}

proptest! {
    #[test]
    fn it_is_an_interval_whatever_comes(
        x: f64, n: f64, asked: f64, whole in 0u64..1 << 62, of in 0u64..1 << 62, population: f64,
    ) {
        for (x, n) in [(x, n), (whole as f64, of as f64), (whole as f64 % 1e5, of as f64), (0.0, n), (n, n)] {
            for interval in [wald, wilson, clopper_pearson] {
                let ends = interval(x, n, level(asked));
                prop_assert!(0.0 <= ends.low && ends.low <= ends.high && ends.high <= 1.0, "{x} {n}: {ends:?}");
            }
            let factor = finite_population_factor(n, population);
            prop_assert!((0.0..=1.0).contains(&factor));
        }
    }

    #[test]
    fn it_holds_the_share_that_was_seen(n in 1.0..1e9f64, p in 0.0..1.0f64) {
        for interval in [wald, wilson, clopper_pearson] {
            let ends = interval(p * n, n, Confidence::default());
            prop_assert!(ends.low <= p * (1.0 + 1e-9) && p * (1.0 - 1e-9) <= ends.high, "{p} {n}: {ends:?}");
        }
    }
}

/// What the closed form is off by, in widths of the interval, and that it errs outwards where little was seen.
#[test]
fn the_closed_form_is_clopper_and_pearsons() {
    for n in [10.0, 50.5, 1_000.0, 1e6] {
        for x in [0.0, 0.3, 1.0, 2.5, 5.0, 20.0, 200.0, 3_000.0] {
            for confidence in [level(0.95), level(0.95).split(50), level(0.95).split(5_000)] {
                for p in [x / n, 1.0 - x / n].into_iter().filter(|p| (0.0..=1.0).contains(p)) {
                    let (exact, fast) =
                        (clopper_pearson(p * n, n, confidence), count_interval(p, n, confidence));
                    let width = exact.high - exact.low;
                    let off = (fast.low - exact.low).abs().max((fast.high - exact.high).abs()) / width;
                    assert!(off < 0.09, "{x} of {n}: {exact:?} {fast:?}");
                }
            }
        }
    }
}
