use proptest::prelude::*;

use super::*;

fn normal(rng: &mut fastrand::Rng) -> f64 {
    (0..12).map(|_| rng.f64()).sum::<f64>() - 6.0
}

const fn prior(mean: f64, standard_deviation: f64) -> Prior {
    Prior { mean, standard_deviation }
}

/// The cost of a sample (µs) that a regression finds after it stepped from 10 to 14.95, while one reading in
/// twenty is lengthened by something else, to twice as long and more.
fn after_a_step(outlier: f64) -> f64 {
    let mut rng = fastrand::Rng::with_seed(1);
    let settings = RegressionSettings { outlier, ..Default::default() };
    let mut regression = RobustRegression::new(&[prior(10.0, 100.0)], settings);
    for reading in 0..12_000 {
        let truth = if reading < 4_000 { 10.0 } else { 14.95 };
        let samples = 50.0 + 50.0 * rng.f64();
        let something_else = if rng.f64() < 0.05 { 1_000.0 + 3_400.0 * rng.f64() } else { 0.0 };
        regression.observe(&[samples], samples * truth + 20.0 * normal(&mut rng) + something_else);
    }
    regression.parameters().values()[0]
}

/// model: 14.97 of a true 14.95, and 12% above it without Huber.
#[test]
fn a_step_is_recovered_from_among_outliers() {
    let (robust, plain) = (after_a_step(3.0), after_a_step(f64::INFINITY));
    assert!((robust - 14.95).abs() < 0.05, "{robust}");
    assert!((0.09..0.15).contains(&(plain / 14.95 - 1.0)), "{plain}");
}

/// What sampling costs in a simulated machine (ns): a sample, a frame, a byte copied.
const TRUTH: [f64; 3] = [12_600.0, 49.0, 0.2];
const PRIORS: [Prior; 3] = [prior(20_000.0, 20_000.0), prior(50.0, 50.0), prior(0.5, 0.5)];

/// Counts of a reading: samples, frames of a depth that varies, bytes.
fn counts(rng: &mut fastrand::Rng) -> [f64; 3] {
    let samples = 20.0 + 60.0 * rng.f64();
    [samples, samples * 50.0 * rng.f64(), samples * 20_000.0 * rng.f64()]
}

fn reading(rng: &mut fastrand::Rng) -> ([f64; 3], f64) {
    let counts = counts(rng);
    (counts, dot(&counts, &TRUTH) + 50_000.0 * normal(rng))
}

#[test]
fn parameters_are_told_apart_and_their_errors_are_true() {
    const MACHINES: usize = 300;
    let mut rng = fastrand::Rng::with_seed(2);
    let (mut held, mut predicted) = (0, 0);
    for _ in 0..MACHINES {
        let mut regression = RobustRegression::new(&PRIORS, RegressionSettings::default());
        for _ in 0..400 {
            let (counts, time) = reading(&mut rng);
            regression.observe(&counts, time);
        }
        let found = regression.parameters();
        let off = found.values().iter().zip(TRUTH).map(|(value, truth)| (value - truth).abs());
        held += off.zip(found.standard_errors()).filter(|(off, error)| *off < 1.96 * error).count();
        let counts = counts(&mut rng);
        let prediction = found.predict(&counts).unwrap();
        predicted += usize::from(
            (prediction.time - dot(&counts, &TRUTH)).abs() < 1.96 * prediction.standard_deviation,
        );
    }
    let (held, predicted) = (held as f64 / (3 * MACHINES) as f64, predicted as f64 / MACHINES as f64);
    assert!((0.92..0.98).contains(&held) && (0.90..0.99).contains(&predicted), "{held} {predicted}");
}

#[test]
fn errors_stay_true_while_the_past_is_forgotten() {
    let mut rng = fastrand::Rng::with_seed(5);
    let settings = RegressionSettings { forgetting: 0.98, ..Default::default() };
    let mut regression = RobustRegression::new(&[prior(1.0, 10.0)], settings);
    let (mut held, mut looks) = (0, 0);
    for reading in 0..20_000 {
        let time = 500.0 + 20.0 * normal(&mut rng);
        regression.observe(&[100.0], time);
        if reading > 1_000 && reading % 10 == 0 {
            let found = regression.parameters();
            held += usize::from((found.values()[0] - 5.0).abs() < 1.96 * found.standard_errors()[0]);
            looks += 1;
        }
    }
    let held = held as f64 / looks as f64;
    assert!((0.92..0.98).contains(&held), "{held}"); // the textbook's σ²·A⁻¹ would hold .994
}

#[test]
fn the_prior_decides_where_nothing_is_seen_and_does_not_fade() {
    let regression = RobustRegression::new(&PRIORS, RegressionSettings::default());
    assert_eq!(regression.parameters().values(), [20_000.0, 50.0, 0.5]);
    let errors = regression.parameters().standard_errors();
    assert!(
        errors.iter().zip([20_000.0, 50.0, 0.5]).all(|(error, prior)| (error / prior - 1.0).abs() < 1e-9)
    );

    let mut regression = regression;
    let mut rng = fastrand::Rng::with_seed(3);
    for _ in 0..20_000 {
        regression.observe(&[50.0, 0.0, 0.0], 50.0 * 12_600.0 + 10_000.0 * normal(&mut rng));
    }
    let found = regression.parameters();
    assert!((found.values()[0] / 12_600.0 - 1.0).abs() < 0.01, "{found:?}");
    assert_eq!(found.values()[1..], [50.0, 0.5]);
    assert!((found.standard_errors()[1] / 50.0 - 1.0).abs() < 1e-6, "{found:?}");
}

#[test]
fn an_outlier_may_come_first() {
    let mut rng = fastrand::Rng::with_seed(4);
    let mut regression = RobustRegression::new(&[prior(15.0, 15.0)], RegressionSettings::default());
    regression.observe(&[100.0], 1e12);
    for _ in 0..200 {
        regression.observe(&[100.0], 1_000.0 + 10.0 * normal(&mut rng));
    }
    let found = regression.parameters().values()[0];
    assert!((found / 10.0 - 1.0).abs() < 0.3, "{found}");
}

#[test]
fn a_cost_is_not_negative_and_the_others_make_up_for_it() {
    // 12 and −2 each.
    let data = [([10.0, 9.0], 102.0), ([20.0, 21.0], 198.0), ([5.0, 6.0], 48.0), ([12.0, 10.0], 124.0)];
    let fitted = |nonnegative| {
        let settings = RegressionSettings { nonnegative, forgetting: 1.0, ..Default::default() };
        let mut regression = RobustRegression::new(&[prior(1.0, 100.0), prior(1.0, 100.0)], settings);
        data.iter().cycle().take(60).for_each(|(counts, time)| {
            regression.observe(counts, *time);
        });
        regression
    };
    let (free, bounded) = (fitted(false).parameters(), fitted(true).parameters());
    assert!(
        free.values().iter().zip([12.0, -2.0]).all(|(value, truth)| (value - truth).abs() < 1e-3),
        "{free:?}"
    );
    let alone =
        data.iter().map(|(c, t)| c[0] * t).sum::<f64>() / data.iter().map(|(c, _)| c[0] * c[0]).sum::<f64>();
    assert!(
        (bounded.values()[0] / alone - 1.0).abs() < 0.05 && bounded.values()[1] == 0.0,
        "{bounded:?} {alone}"
    );
}

proptest! {
    /// Karush, Kuhn and Tucker: the squares' slope is zero in each parameter, or upwards in one at its bound.
    #[test]
    fn the_bounded_solution_is_the_smallest(
        data in prop::collection::vec((prop::collection::vec(-10.0..10.0f64, 6), -100.0..100.0f64), 5..30),
        means in prop::collection::vec(0.0..1.0f64, 6),
    ) {
        let priors: Vec<Prior> = means.iter().map(|mean| prior(*mean, 500.0)).collect();
        let mut regression = RobustRegression::new(&priors, RegressionSettings::default());
        data.iter().for_each(|(counts, time)| {
            regression.observe(counts, *time);
        });
        let (weights, u) = (regression.prior_squares(), regression.solution());
        for i in 0..6 {
            let terms: Vec<f64> = (0..6).map(|j| regression.squares[i][j] * u[j]).collect();
            let slope = terms.iter().sum::<f64>() + weights[i] * u[i] - regression.products[i];
            let rounding = 1e-6 * (1.0 + terms.iter().map(|term| term.abs()).sum::<f64>() + regression.products[i].abs());
            let at_bound = u[i] <= -priors[i].mean / 500.0;
            prop_assert!(slope >= -rounding && (at_bound || slope <= rounding), "{:?} {}: {}", u, i, slope);
        }
    }

    #[test]
    fn it_stays_finite_whatever_comes(
        wild in prop::collection::vec((prop::collection::vec(any::<f64>(), 2), any::<f64>()), 0..40),
        large in prop::collection::vec((prop::collection::vec(-1e20..1e20f64, 2), -1e20..1e20f64), 0..40),
        mean: f64, deviation: f64, forgetting: f64, outlier: f64, nonnegative: bool,
    ) {
        let settings = RegressionSettings { forgetting, outlier, nonnegative };
        let mut regression = RobustRegression::new(&[prior(mean, deviation), prior(1e20, 1e20)], settings);
        for (counts, time) in wild.iter().chain(&large) {
            let residual = regression.observe(counts, *time);
            prop_assert!(residual.is_none_or(f64::is_finite), "{:?}", residual);
        }
        let found = regression.parameters();
        prop_assert!(found.values().iter().all(|value| value.is_finite()), "{:?}", found);
        prop_assert!(found.standard_errors().iter().all(|error| error.is_finite()), "{:?}", found);
        prop_assert!(regression.observe(&[1.0], 1.0).is_none());
    }
}
