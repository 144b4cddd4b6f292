use proptest::prelude::*;
use statrs::distribution::{Continuous, ContinuousCDF, Normal};

use super::*;

fn experiment(run_s: f64, share: f64, overhead_us: f64) -> Experiment {
    Experiment::new(1.96, run_s, share, overhead_us * 1e-6).unwrap()
}

/// The abscissa of a function's least value between two ends, on a grid of 1/1000 in logarithms.
fn argmin((low, high): (f64, f64), value: impl Fn(f64) -> f64) -> f64 {
    let steps = ((high / low).ln() * 1_000.0) as usize;
    let points = (0..=steps).map(|i| low * (i as f64 * 1e-3).exp());
    points.min_by(|a, b| value(*a).total_cmp(&value(*b))).unwrap()
}

fn near(value: f64, expected: f64, tolerance: f64) {
    assert!((value - expected).abs() <= tolerance, "{value} is not {expected} ± {tolerance}");
}

#[test]
fn the_worked_example_of_the_thesis_holds() {
    let run = experiment(300.0, 0.2, 250.0);
    near(run.optimum_samples(), 17_685.8, 0.05);
    near(run.time_s(run.optimum_samples()).high, 62.653, 0.0005);
    near(run.plan().rate_hz, 59.0, 0.5);
    near(run.crossing_samples(), 28_074.0, 0.5);
    let early = run.time_s(2_400.0);
    near(early.low, 55.32, 0.005);
    near(early.high, 64.92, 0.005);
}

#[test]
fn the_lower_curve_crosses_the_truth_at_the_crossing() {
    let run = experiment(300.0, 0.2, 250.0);
    near(run.time_s(run.crossing_samples()).low, 60.0, 1e-9);
}

#[test]
fn optima_of_the_thesis_hold() {
    for (run_s, expected) in [(300.0, 19_863.0), (600.0, 31_531.0), (900.0, 41_317.0)] {
        near(experiment(run_s, 0.15, 250.0).optimum_samples(), expected, 0.5);
    }
    // The "about 55,000 samples" of its section 1.1, which names neither a length nor a level: 300 s at z = .98
    // (or 150 s at 1.96) give 54,521. At 300 s and 1.96 it would be 86,547.
    let naive = Experiment::new(0.98, 300.0, 0.25, 20e-6).unwrap();
    near(naive.optimum_samples(), 54_521.0, 0.5);
    near(experiment(300.0, 0.25, 20.0).optimum_samples(), 86_547.0, 0.5);
}

#[test]
fn costs_behind_the_predictions_for_spec_cpu_hold() {
    // Tables 5.1 and 5.2: samples of a run at 2/s, share, predicted samples; the cost (µs) that these imply.
    let spec = [
        ("omnetpp", 687.0, 0.158, 91_830.0, 28.0),
        ("bzip2", 176.0, 0.385, 21_418.0, 34.8),
        ("mcf", 784.0, 0.436, 38_472.0, 57.9),
        ("milc", 921.0, 0.18, 60_555.0, 64.6),
        ("sjeng", 1_043.0, 0.153, 153_811.0, 19.9),
    ];
    for (name, slow_samples, share, predicted, overhead_us) in spec {
        let run = experiment(slow_samples / 2.0, share, overhead_us);
        let ratio = run.optimum_samples() / predicted;
        assert!((ratio - 1.0).abs() < 0.004, "{name}: {ratio}");
        let overhead = run.plan().overhead_ratio;
        assert!((0.00565..0.00855).contains(&overhead), "{name}: {overhead}");
    }
}

#[test]
fn a_finite_population_asks_for_a_little_more() {
    // Stoker's array of 1,000,000 members, and a tenth of it.
    for (population, least) in [(1e6, 1.005), (1e5, 1.06)] {
        let run = experiment(300.0, 0.2, 250.0);
        let finite = run.in_population(population).unwrap();
        let n = finite.optimum_samples();
        near(argmin((5_000.0, 60_000.0), |n| finite.time_s(n).high) / n, 1.0, 0.001);
        assert!(n > least * run.optimum_samples() && n < 1.1 * run.optimum_samples(), "{n} of {population}");
        near(finite.time_s(finite.crossing_samples()).low, 60.0, 1e-6);
        let narrower = |n: f64| {
            let half = |run: &Experiment| run.time_s(n).high - run.time_s(n).mean;
            half(&finite) / half(&run)
        };
        near(narrower(20_000.0), ((population - 20_000.0) / (population - 1.0)).sqrt(), 1e-12);
        assert_eq!(narrower(population), 0.0);
    }
    let few = experiment(300.0, 0.2, 250.0).in_population(1e4).unwrap();
    assert_eq!(few.optimum_samples(), 1e4);
    assert!(experiment(300.0, 0.2, 250.0).in_population(1.0).is_err());
    let all = experiment(300.0, 1.0, 250.0).in_population(1e6).unwrap();
    assert_eq!((all.optimum_samples(), all.crossing_samples()), (0.0, 0.0));
}

#[test]
fn the_law_with_one_function_is_the_closed_form() {
    let law = optimum_rate_hz(
        Criterion::UpperCurve { z: 1.96 },
        spread([0.2, f64::NAN, 0.0], 4).unwrap(),
        250e-6,
        300.0,
    );
    near(law.unwrap(), experiment(300.0, 0.2, 250.0).plan().rate_hz, 1e-9);
}

#[test]
fn the_ratios_of_bias_to_deviation_minimise_what_they_name() {
    let normal = Normal::standard();
    near(Criterion::UpperCurve { z: 1.96 }.r(), 0.980, 1e-12);
    near(Criterion::MeanSquared.r(), 0.707, 5e-4);
    let u = Criterion::MeanAbsolute.r();
    near(u * (2.0 * normal.cdf(u) - 1.0), normal.pdf(u), 1e-8);
    near(u, 0.657, 5e-4);
    near(Criterion::P95.r(), 0.859, 5e-4);
    for criterion in Criterion::ALL {
        // In units where bias = deviation at one sample: the least error is at u = r, that is x = r^(2/3).
        let best = argmin((0.2, 5.0), |x| criterion.error(x, 1.0 / x.sqrt()));
        near(best.powf(1.5) / criterion.r(), 1.0, 0.002);
    }
}

#[test]
fn errors_are_those_of_a_normal_deviate() {
    let mut rng = fastrand::Rng::with_seed(1);
    let normal = Normal::standard();
    for (bias, deviation) in [(0.0, 1.0), (0.5, 1.0), (3.0, 2.0), (1.0, 0.0), (0.2, 0.001)] {
        let draw = |u: f64| (bias + deviation * normal.inverse_cdf(u)).abs();
        let mut off: Vec<f64> = (0..40_000).map(|_| draw(rng.f64().clamp(1e-12, 1.0 - 1e-12))).collect();
        off.sort_by(f64::total_cmp);
        let n = off.len() as f64;
        for criterion in Criterion::ALL {
            let seen = match criterion {
                Criterion::MeanAbsolute => off.iter().sum::<f64>() / n,
                Criterion::MeanSquared => (off.iter().map(|x| x * x).sum::<f64>() / n).sqrt(),
                Criterion::P95 => off[off.len() * 95 / 100],
                Criterion::UpperCurve { z } => bias + z * deviation, // no figure of a sample
            };
            near(criterion.error(bias, deviation), seen, 0.02 * seen);
        }
    }
}

#[test]
fn the_loss_is_flat() {
    for (x, loss) in [(0.5, 1.11), (1.0, 1.0), (2.0, 1.14), (0.25, 1.42), (4.0, 1.67)] {
        near(relative_loss(x), loss, 0.005);
    }
}

#[test]
fn spread_takes_the_largest_shares() {
    assert_eq!(spread([0.0, -1.0, f64::NAN], 4), None);
    assert_eq!(spread([1.0], 4), Some(0.0));
    near(spread([0.01, 0.5, 0.2, 0.01], 2).unwrap(), 1.5, 1e-12);
    // Two functions have nearly all of the time: the others count for little, and gradually more.
    near(spread([0.75, 0.2496, 0.0002, 0.0002], 4).unwrap(), 2.071, 1e-3);
    near(spread([0.002; 500], 4).unwrap(), 499f64.sqrt(), 1e-12);
    let by_share = |p: f64| spread([0.5, 0.3, p], 4).unwrap();
    assert!(by_share(0.001) < by_share(0.005) && (by_share(0.01) / by_share(0.010_1) - 1.0).abs() < 0.01);
}

#[test]
fn the_least_cap_binds() {
    let caps = Caps { own_hz: f64::INFINITY, budget_hz: 600.0, kernel_hz: 50_000.0, bytes_hz: f64::NAN };
    assert_eq!(caps.bound(500.0), (500.0, BoundBy::Law));
    assert_eq!(caps.bound(700.0), (600.0, BoundBy::Budget));
    assert_eq!(Caps { bytes_hz: 10.0, ..caps }.bound(700.0), (10.0, BoundBy::Bytes));
}

fn law(criterion: Criterion) -> Law {
    Law::new(criterion, 2.0, 12.6e-6, 60.0)
}

#[test]
fn the_law_finds_the_least_error() {
    for criterion in Criterion::ALL {
        let error = |hz: f64| criterion.error(hz * 12.6e-6, 2.0 / (hz * 60.0).sqrt());
        near(law(criterion).rate_hz().unwrap() / argmin((50.0, 5_000.0), error), 1.0, 0.002);
    }
}

#[test]
fn several_horizons_share_one_rate() {
    let horizons = [(10.0, 3.0), (60.0, 1.0), (3_600.0, 2.0)];
    let over = horizons.map(|(cpu_s, weight)| Horizon { cpu_s, weight }).to_vec();
    for criterion in Criterion::ALL {
        let error = |hz: f64| -> f64 {
            let one = |(w, weight): (f64, f64)| {
                let error = criterion.error(hz * 12.6e-6, 2.0 / (hz * w).sqrt());
                weight * if criterion.averages_squares() { error * error } else { error }
            };
            horizons.map(one).iter().sum()
        };
        let rate = law(criterion).over(over.clone()).rate_hz().unwrap();
        let best = argmin((50.0, 5_000.0), error);
        assert!(error(rate) <= 1.01 * error(best), "{criterion:?}: {rate} Hz, best {best} Hz");
        if matches!(criterion, Criterion::UpperCurve { .. } | Criterion::MeanSquared) {
            near(rate / best, 1.0, 0.002);
        }
    }
    // The closed form: λ = (Σω·B/(2o·Σω))^(2/3) with B = z·S/√W.
    let z = 1.96;
    let b: f64 = horizons.map(|(w, weight)| weight * z * 2.0 / f64::sqrt(w)).iter().sum();
    let closed = (b / (2.0 * 12.6e-6 * 6.0)).powf(2.0 / 3.0);
    near(law(Criterion::UpperCurve { z }).over(over).rate_hz().unwrap() / closed, 1.0, 1e-12);
    assert!(law(Criterion::P95).over(Vec::new()).rate_hz().is_err());
}

#[test]
fn a_fading_profile_scatters_like_one_of_twice_its_time_constant() {
    let tau_s = 40.0;
    let weights: Vec<f64> = (0..200_000).map(|i| (-f64::from(i) / (100.0 * tau_s)).exp()).collect();
    let (sum, squares): (f64, f64) = weights.iter().fold((0.0, 0.0), |(s, q), w| (s + w, q + w * w));
    near(sum * sum / squares / 100.0, Horizon::decayed(tau_s).cpu_s, 0.05);
}

#[test]
fn threads_that_wait_for_each_other_are_sampled_less() {
    let law = Law::new(Criterion::UpperCurve { z: 1.96 }, spread([0.2], 1).unwrap(), 250e-6, 4.0 * 300.0);
    let alone = law.clone().rate_hz().unwrap();
    assert_eq!(law.clone().threads(Threads::independent(4.0)).rate_hz(), Ok(alone));
    // In lockstep the samples of all four are those of the wall-clock law: eq. 4.16 with T of wall time.
    let lockstep = law.clone().threads(Threads::in_lockstep(4.0)).rate_hz().unwrap();
    near(lockstep * 4.0 * 300.0, experiment(300.0, 0.2, 250.0).optimum_samples(), 1e-6);
    let between = law.clone().threads(Threads { count: 4.0, kappa: 0.5 }).rate_hz().unwrap();
    near(alone / between, 2f64.powf(2.0 / 3.0), 1e-9);
    assert_eq!(law.clone().threads(Threads { count: 4.0, kappa: 9.0 }).rate_hz(), Ok(lockstep));
    assert!(law.threads(Threads { count: f64::NAN, kappa: 1.0 }).rate_hz().is_err());
}

#[test]
fn a_fleet_shares_the_work() {
    for criterion in Criterion::ALL {
        let one = law(criterion).rate_hz().unwrap();
        let fleet = law(criterion).replicas(8.0).rate_hz().unwrap();
        near(one / fleet, 2.0, 1e-9);
        let error = |hz: f64, r: f64| criterion.error(hz * 12.6e-6, 2.0 / (hz * 60.0 * r).sqrt());
        near(error(one, 1.0) / error(fleet, 8.0), 2.0, 1e-9);
    }
}

#[test]
fn compensation_leaves_the_error_of_the_cost() {
    let se_s = 0.1 * 12.6e-6;
    for criterion in Criterion::ALL {
        let error = |hz: f64| criterion.error(0.0, (hz * se_s).hypot(2.0 / (hz * 60.0).sqrt()));
        let rate = law(criterion).compensated(se_s).rate_hz().unwrap();
        near(rate / argmin((50.0, 50_000.0), error), 1.0, 0.002);
    }
    let (plain, compensated) = (law(Criterion::MeanSquared), law(Criterion::MeanSquared).compensated(se_s));
    near(compensated.rate_hz().unwrap() / plain.rate_hz().unwrap(), 0.1f64.powf(-2.0 / 3.0), 1e-9);
    assert!(law(Criterion::P95).compensated(0.0).rate_hz().is_err());
}

#[test]
fn the_budget_binds_where_the_profile_is_short() {
    let (z, p, o, b) = (1.96, 0.2, 250e-6, 0.01f64);
    let law = |w: f64| Law::new(Criterion::UpperCurve { z }, spread([p], 1).unwrap(), o, w);
    let least = law(300.0).budget_binds_below_s(b).unwrap();
    near(least, z * z * (1.0 - p) * o / (4.0 * p * b.powi(3)), 1e-6);
    near(law(least).overhead_ratio().unwrap(), b, 1e-12);
    let caps = Caps { budget_hz: b / o, own_hz: f64::INFINITY, kernel_hz: 50_000.0, bytes_hz: f64::INFINITY };
    assert_eq!(law(0.9 * least).optimum(&caps).bound_by, BoundBy::Budget);
    assert_eq!(law(1.1 * least).optimum(&caps).bound_by, BoundBy::Law);
}

#[test]
fn without_an_answer_the_caps_decide() {
    let caps = Caps { own_hz: f64::INFINITY, budget_hz: 600.0, kernel_hz: 50_000.0, bytes_hz: f64::INFINITY };
    let free = Law::new(Criterion::MeanAbsolute, 2.0, 0.0, 60.0).optimum(&caps);
    assert_eq!((free.rate_hz, free.bound_by, free.unbounded_hz), (600.0, BoundBy::Budget, f64::MAX));
}

#[test]
fn the_edges_are_defined() {
    assert_eq!(Experiment::new(1.96, 300.0, 1.0, 1e-4).unwrap().plan().rate_hz, 0.0);
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(Experiment::new(bad, 300.0, 0.2, 1e-4).is_err());
        assert!(Experiment::new(1.96, bad, 0.2, 1e-4).is_err());
        assert!(Experiment::new(1.96, 300.0, bad, 1e-4).is_err());
        assert!(Experiment::new(1.96, 300.0, 0.2, bad).is_err());
        assert!(optimum_rate_hz(Criterion::MeanSquared, 2.0, bad, 60.0).is_err());
        assert!(optimum_rate_hz(Criterion::MeanSquared, 2.0, 1e-5, bad).is_err());
    }
    assert_eq!(optimum_rate_hz(Criterion::MeanSquared, 0.0, 1e-5, 60.0), Ok(0.0));
    // Found by the property below: every input is a number, an answer was not.
    assert!(Experiment::new(8.1e302, 2.3e-308, 2.3e-308, 5.5e180).is_err());
}

fn hostile() -> impl Strategy<Value = f64> {
    prop_oneof![any::<f64>(), Just(0.0), Just(1.0), Just(f64::MIN_POSITIVE), Just(f64::MAX), 0.0..1.0]
}

proptest! {
    #[test]
    fn the_law_is_finite_or_an_error(
        x in prop::array::uniform9(hostile()), compensated in any::<bool>(), (criterion, z) in (0..Criterion::ALL.len(), hostile()),
        caps in prop::array::uniform3(hostile()),
    ) {
        let [s, o, w1, w2, weight, count, kappa, replicas, se] = x;
        let criterion = if criterion == 0 { Criterion::UpperCurve { z } } else { Criterion::ALL[criterion] };
        let mut law = Law::new(criterion, s, o, w1)
            .over(vec![Horizon::new(w1), Horizon { cpu_s: w2, weight }])
            .threads(Threads { count, kappa })
            .replicas(replicas);
        if compensated {
            law = law.compensated(se);
        }
        if let Ok(rate) = law.rate_hz() {
            prop_assert!(rate.is_finite() && rate >= 0.0);
        }
        let caps = Caps { budget_hz: caps[0], own_hz: f64::INFINITY, kernel_hz: caps[1], bytes_hz: caps[2] };
        let optimum = law.optimum(&caps);
        prop_assert!(optimum.rate_hz.is_finite() && optimum.rate_hz >= 0.0);
        for cap in [caps.budget_hz, caps.kernel_hz, caps.bytes_hz] {
            prop_assert!(cap.is_nan() || optimum.rate_hz <= cap.max(0.0), "{optimum:?} above {cap}");
        }
    }

    #[test]
    fn the_law_answers_whatever_a_person_may_ask(
        shares in prop::collection::vec(0.0..=1.0f64, 0..12), top in 0usize..6,
        o in 1e-8..1e-2f64, w in prop_oneof![Just(1e-3), Just(2_678_400.0), 1e-3..2.7e6f64], criterion in 0..Criterion::ALL.len(),
    ) {
        // No function at all has no spread; every other profile has a rate.
        let Some(s) = spread(shares.iter().copied(), top) else {
            prop_assert!(shares.iter().all(|p| *p == 0.0));
            return Ok(());
        };
        let rate = optimum_rate_hz(Criterion::ALL[criterion], s, o, w);
        prop_assert!(rate.is_ok_and(|rate| rate.is_finite()));
    }

    #[test]
    fn errors_are_no_smaller_than_the_bias(bias in 0.0..1e9f64, deviation in 0.0..1e9f64) {
        for criterion in Criterion::ALL {
            let error = criterion.error(bias, deviation);
            prop_assert!(error.is_finite() && error >= 0.999_999 * bias, "{criterion:?} {error}");
            prop_assert!(error <= bias + 2.0 * deviation + 1e-9, "{criterion:?} {error}");
        }
    }

    #[test]
    fn a_plan_is_finite_or_an_error(
        z in hostile(), t in hostile(), p in hostile(), o in hostile(), moments in hostile(),
    ) {
        let Ok(run) = Experiment::new(z, t, p, o) else { return Ok(()) };
        for run in [Ok(run), run.in_population(moments)].into_iter().flatten() {
            let plan = run.plan();
            for x in [plan.optimum_samples, plan.rate_hz, plan.crossing_samples, plan.overhead_ratio,
                      plan.time_at_optimum_s.low, plan.time_at_optimum_s.high] {
                prop_assert!(x.is_finite(), "{x} in {plan:?}");
            }
        }
    }
}

#[test]
fn a_criterion_is_written_as_it_is_read() {
    for criterion in Criterion::ALL {
        let text = criterion.to_string();
        assert_eq!(text.parse::<Criterion>(), Ok(criterion));
        assert!(Criterion::WORDS.contains(text.trim_end_matches("1.96")), "{text}");
    }
    for text in ["z=0", "z=-1", "z=nan", "z=inf", "z=11", "z=", "rms", ""] {
        assert!(text.parse::<Criterion>().is_err(), "{text}");
    }
}
