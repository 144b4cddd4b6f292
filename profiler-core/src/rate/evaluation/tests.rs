use proptest::prelude::*;

use super::*;
use crate::rate::model::{Criterion, Law, spread};

const SHARES: [f64; 6] = [0.35, 0.25, 0.15, 0.1, 0.1, 0.05];

#[test]
fn the_expected_error_is_that_of_simulated_profiles() {
    let (rate_hz, cpu_s, overhead_s) = (400.0, 20.0, 30e-6);
    let mut rng = fastrand::Rng::with_seed(11);
    let (n, runs, mut sum) = (8_000u32, 400, 0.0);
    for _ in 0..runs {
        let mut counts = [0u32; SHARES.len()];
        for _ in 0..n {
            let mut pick = rng.f64();
            let hit = SHARES.iter().position(|p| {
                pick -= p;
                pick < 0.0
            });
            counts[hit.unwrap_or(0)] += 1;
        }
        let run_s = cpu_s + f64::from(n) * overhead_s;
        let error =
            |i: usize| (f64::from(counts[i]) / f64::from(n) * run_s / (SHARES[i] * cpu_s) - 1.0).abs();
        sum += (0..TOP).map(error).sum::<f64>();
    }
    let expected = Workload::new(&SHARES, cpu_s).unwrap().time_cmape(rate_hz, overhead_s);
    let simulated = sum / f64::from(runs);
    assert!((simulated / expected - 1.0).abs() < 0.05, "{simulated} {expected}");
}

#[test]
fn the_best_rate_is_the_laws_within_the_flat_part_of_the_loss() {
    for (cpu_s, overhead_s) in [(10.0, 1.5e-6), (60.0, 12.6e-6), (300.0, 40e-6)] {
        let workload = Workload::new(&SHARES, cpu_s).unwrap();
        let best = workload.best(overhead_s).unwrap();
        let s = spread(SHARES, TOP).unwrap();
        let law_hz = Law::new(Criterion::MeanAbsolute, s, overhead_s, cpu_s).rate_hz().unwrap();
        assert!((law_hz / best.rate_hz - 1.0).abs() < 0.06, "{law_hz} {best:?}");
        assert!(workload.time_cmape(law_hz, overhead_s) < 1.003 * best.time_cmape);
        // With one function the two are the same.
        let one = Workload::new(&[0.2], cpu_s).unwrap().best(overhead_s).unwrap();
        let law_hz = Law::new(Criterion::MeanAbsolute, 2.0, overhead_s, cpu_s).rate_hz().unwrap();
        assert!((law_hz / one.rate_hz - 1.0).abs() < 1e-5, "{law_hz} {one:?}");
    }
}

#[test]
fn a_rate_that_changes_errs_like_its_stretches() {
    let workload = Workload::new(&SHARES, 60.0).unwrap();
    assert_eq!(workload.error(400.0 * 1e-5, 1.0 / 400.0), workload.time_cmape(400.0, 1e-5));
    // Half the time at 200/s and half at 800/s is worse than 400/s throughout, without overhead, by √1.25.
    let mixed = workload.error(0.0, 0.5 / 200.0 + 0.5 / 800.0);
    assert!((mixed / workload.time_cmape(400.0, 0.0) - 1.25f64.sqrt()).abs() < 1e-12);
    let scattering = workload.clone().scattering(4.0).unwrap();
    assert!((scattering.time_cmape(400.0, 0.0) / workload.time_cmape(400.0, 0.0) - 2.0).abs() < 1e-12);
    assert_eq!(workload.time_cmape(400.0, -1e-5), workload.time_cmape(400.0, 1e-5));
}

fn hostile() -> impl Strategy<Value = f64> {
    prop_oneof![any::<f64>(), Just(0.0), Just(1.0), Just(f64::MIN_POSITIVE), Just(f64::MAX), 0.0..1.0]
}

proptest! {
    #[test]
    fn errors_are_above_zero_or_infinite(
        shares in prop::collection::vec(hostile(), 0..6), x in prop::array::uniform4(hostile()),
    ) {
        let [w, rate, o, factor] = x;
        let Ok(workload) = Workload::new(&shares, w).and_then(|workload| workload.scattering(factor)) else {
            return Ok(());
        };
        prop_assert!(workload.time_cmape(rate, o) >= 0.0);
        if let Ok(best) = workload.best(o) {
            prop_assert!(best.rate_hz.is_finite() && best.time_cmape >= 0.0, "{best:?}");
        }
    }
}
