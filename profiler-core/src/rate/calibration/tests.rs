use proptest::prelude::*;

use super::*;

/// What a sample, a frame and a byte truly cost (ns).
const TRUE: [f64; 3] = [12_600.0, 49.0, 0.21];

/// Trials as a calibration runs them: depths by frame pointers, and copies of several sizes, 600 samples each.
fn trials(
    rounds: usize,
    rng: &mut fastrand::Rng,
    mut noise_ns: impl FnMut(&mut fastrand::Rng) -> f64,
) -> Vec<Trial<3>> {
    let shapes = [(5.0, 0.0), (20.0, 0.0), (50.0, 0.0), (100.0, 0.0), (0.0, 1e3), (0.0, 8e3), (0.0, 3e4)];
    let mut trial = |(frames, bytes): (f64, f64)| {
        let samples = (580.0 + 40.0 * rng.f64()).round();
        let counts = [samples, samples * frames, samples * bytes];
        let cost: f64 = counts.iter().zip(TRUE).map(|(n, cost)| n * cost).sum();
        Trial { extra_ns: cost + noise_ns(rng), counts }
    };
    (0..rounds).flat_map(|_| shapes).map(&mut trial).collect()
}

/// Roughly normal, with standard deviation one.
fn normal(rng: &mut fastrand::Rng) -> f64 {
    (0..12).map(|_| rng.f64()).sum::<f64>() - 6.0
}

#[test]
fn costs_are_recovered_and_their_errors_are_true() {
    let mut rng = fastrand::Rng::with_seed(11);
    let mut squares = [0.0; 3];
    for _ in 0..200 {
        let costs = fit(&trials(6, &mut rng, |rng| 300_000.0 * normal(rng))).unwrap();
        for k in 0..3 {
            squares[k] += ((costs[k].mean_ns - TRUE[k]) / costs[k].se_ns).powi(2) / 200.0;
        }
        assert!((costs[0].mean_ns / TRUE[0] - 1.0).abs() < 0.05, "{costs:?}");
    }
    // Misses in units of the stated error: their mean square is one if the error is true.
    assert!(squares.iter().all(|z| (0.7..1.4).contains(z)), "{squares:?}");
}

#[test]
fn single_disturbed_trials_hardly_matter() {
    let mut rng = fastrand::Rng::with_seed(5);
    let burst =
        |rng: &mut fastrand::Rng| 300_000.0 * normal(rng) + if rng.f64() < 0.1 { 20_000_000.0 } else { 0.0 };
    for _ in 0..50 {
        let costs = fit(&trials(8, &mut rng, burst)).unwrap();
        assert!((costs[0].mean_ns / TRUE[0] - 1.0).abs() < 0.10, "{costs:?}");
        assert!(costs[0].se_ns < 0.05 * TRUE[0], "{costs:?}");
    }
}

#[test]
fn exact_measurements_are_fitted_exactly() {
    let costs = fit(&trials(1, &mut fastrand::Rng::with_seed(1), |_| 0.0)).unwrap();
    for k in 0..3 {
        assert!((costs[k].mean_ns / TRUE[k] - 1.0).abs() < 1e-6, "{costs:?}");
        assert!(costs[k].se_ns < 1e-3 * TRUE[k], "{costs:?}");
    }
}

#[test]
fn what_cannot_be_told_apart_is_an_error() {
    let proportional = |n: f64| Trial { extra_ns: n, counts: [n, 2.0 * n] };
    assert_eq!(
        fit(&(1..9).map(f64::from).map(proportional).collect::<Vec<_>>()),
        Err(FitError::NotToldApart)
    );
    let never = |n: f64| Trial { extra_ns: n, counts: [n, 0.0] };
    assert_eq!(fit(&(1..9).map(f64::from).map(never).collect::<Vec<_>>()), Err(FitError::NotToldApart));
    assert_eq!(fit::<1>(&[]), Err(FitError::TooFew));
    let broken = Trial { extra_ns: f64::NAN, counts: [1.0] };
    assert_eq!(fit(&[broken; 5]), Err(FitError::TooFew));
}

#[test]
fn pooled_costs_own_up_to_their_difference() {
    let pooled = Cost::new(10.0, 0.3).pooled(Cost::new(14.0, 0.4));
    assert_eq!(pooled.mean_ns, 12.0);
    assert!((pooled.se_ns - 2.0f64.hypot(0.25)).abs() < 1e-12, "{pooled:?}");
}

proptest! {
    #[test]
    fn any_numbers_give_finite_costs_or_an_error(
        figures in prop::collection::vec((any::<f64>(), any::<f64>(), any::<f64>()), 0..12),
    ) {
        let trials: Vec<Trial<2>> =
            figures.iter().map(|&(extra_ns, a, b)| Trial { extra_ns, counts: [a, b] }).collect();
        for cost in fit(&trials).into_iter().flatten() {
            prop_assert!(cost.mean_ns.is_finite() && cost.mean_ns >= 0.0, "{cost:?}");
            prop_assert!(cost.se_ns.is_finite() && cost.se_ns >= 0.0, "{cost:?}");
        }
    }
}
