use proptest::prelude::*;

use super::fit::number_as_printed;
use super::*;

fn component(weight: f64, mean: f64, deviation: f64) -> Component {
    Component { weight, mean, deviation }
}

fn mixture(components: &[(f64, f64, f64)]) -> Mixture {
    Mixture::new(
        components.iter().map(|&(weight, mean, deviation)| component(weight, mean, deviation)).collect(),
    )
    .unwrap()
}

fn sample(from: &Mixture, size: usize, rng: &mut fastrand::Rng) -> Vec<f64> {
    (0..size).map(|_| from.draw(rng)).collect()
}

/// Three versions of a program: one time, two times, a time and a tail.
fn versions() -> [Mixture; 3] {
    [
        mixture(&[(1.0, 10.0, 0.8)]),
        mixture(&[(0.6, 9.0, 0.3), (0.4, 11.5, 0.5)]),
        mixture(&[(0.5, 9.5, 0.1), (0.3, 10.2, 0.6), (0.2, 13.0, 2.0)]),
    ]
}

#[test]
fn two_draws_of_one_normal_distribution_differ_by_two_over_root_pi() {
    let normal = mixture(&[(1.0, 3.0, 1.0)]);
    assert!((normal.mean_difference(&normal) - 2.0 / std::f64::consts::PI.sqrt()).abs() < 1e-12);
    assert!((normal.probability_below(&normal, 0.0) - 0.5).abs() < 1e-12);
    assert!((normal.probability_below(&normal, f64::INFINITY) - 1.0).abs() < 1e-12);
}

#[test]
fn each_run_is_won_by_one_version() {
    let shares = probability_smallest(&versions());
    assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{shares:?}");
    let [x, y, _] = versions();
    let below = x.probability_below(&y, 0.0);
    let pair = probability_smallest(&[x.clone(), y]);
    assert!((pair[0] - below).abs() < 1e-9, "{pair:?} {below}");
    assert!((probability_smallest(&[x])[0] - 1.0).abs() < 1e-9);
    assert!(probability_smallest(&[]).is_empty());
}

/// I₁ to I₃ against Monte Carlo, whose own error is a third of the .2% that are allowed.
#[test]
fn the_measures_are_what_draws_show() {
    const DRAWS: usize = 1_500_000;
    let versions = versions();
    let mut rng = fastrand::Rng::with_seed(6);
    let (mut apart, mut below, mut first) = (0.0, 0, [0; 3]);
    for _ in 0..DRAWS {
        let drawn = [0, 1, 2].map(|version: usize| versions[version].draw(&mut rng));
        apart += (drawn[0] - drawn[1]).abs();
        below += usize::from(drawn[0] < drawn[1] + 0.4);
        let fastest = (0..3).min_by(|&a, &b| drawn[a].total_cmp(&drawn[b])).unwrap();
        first[fastest] += 1;
    }
    let share = |count: usize| count as f64 / DRAWS as f64;
    let pairs = [
        (apart / DRAWS as f64, versions[0].mean_difference(&versions[1])),
        (share(below), versions[0].probability_below(&versions[1], 0.4)),
    ];
    let firsts = first.map(share).into_iter().zip(probability_smallest(&versions));
    for (drawn, computed) in pairs.into_iter().chain(firsts) {
        assert!(
            (drawn / computed - 1.0).abs() < 0.002 || (drawn - computed).abs() < 0.001,
            "{drawn} {computed}"
        );
    }
}

#[test]
fn modes_are_counted_where_they_are() {
    let modes = |components: &[(f64, f64, f64)]| mixture(components).modes();
    let [one] = modes(&[(1.0, 5.0, 2.0)])[..] else { panic!("a normal distribution has one mode") };
    assert!((one - 5.0).abs() < 1e-9);
    // Two equal normal distributions have two modes from a distance of two deviations on.
    assert_eq!(modes(&[(0.5, 0.0, 1.0), (0.5, 1.95, 1.0)]).len(), 1);
    assert_eq!(modes(&[(0.5, 0.0, 1.0), (0.5, 2.2, 1.0)]).len(), 2);
    // A shoulder is no mode, a spike within a wide component is the only one, and far apart are two.
    assert_eq!(modes(&[(0.9, 0.0, 1.0), (0.1, 1.5, 1.0)]).len(), 1);
    assert_eq!(modes(&[(0.5, 0.1, 0.01), (0.5, 0.0, 5.0)]).len(), 1);
    let apart = modes(&[(0.3, -1e6, 1.0), (0.7, 1e6, 3.0)]);
    assert!(apart.len() == 2 && (apart[0] + 1e6).abs() < 1e-6 && (apart[1] - 1e6).abs() < 1e-6, "{apart:?}");
}

#[test]
fn a_mixture_is_found_again() {
    let truth = [(0.5, 311.8, 0.3), (0.3, 340.0, 8.0), (0.2, 420.0, 15.0)];
    let mut rng = fastrand::Rng::with_seed(7);
    let fitted = fit(&sample(&mixture(&truth), 2_000, &mut rng), 10).unwrap();
    let found = fitted.mixture.components();
    assert_eq!(found.len(), 3, "{found:?}");
    for (found, (weight, mean, deviation)) in found.iter().zip(truth) {
        assert!(
            (found.weight - weight).abs() < 0.03 && (found.mean - mean).abs() < 0.15 * deviation,
            "{found:?}"
        );
        assert!((found.deviation / deviation - 1.0).abs() < 0.15, "{found:?}");
    }
    assert_eq!(fitted.mixture.modes().len(), 3);
}

#[test]
fn the_likelihood_is_that_of_the_values() {
    let mut rng = fastrand::Rng::with_seed(8);
    let values = sample(&mixture(&[(0.5, 1e-6, 1e-7), (0.5, 2e-6, 1e-7)]), 100, &mut rng);
    let fitted = fit(&values, 4).unwrap();
    let direct: f64 = values.iter().map(|value| fitted.mixture.density(*value).ln()).sum();
    assert!(
        (fitted.log_likelihood - direct).abs() < 1e-6 * direct.abs(),
        "{} {direct}",
        fitted.log_likelihood
    );
    let parameters = 3.0 * fitted.mixture.components().len() as f64 - 1.0;
    assert!((fitted.bic - (parameters * 100f64.ln() - 2.0 * direct)).abs() < 1e-6 * direct.abs());
}

/// Samples of 35 from one normal distribution (the size of the paper's examples): K by 3K − 1 parameters, and by the
/// K that the paper prints.
#[test]
fn the_number_of_components_is_not_overfitted() {
    const SAMPLES: usize = 80;
    let mut rng = fastrand::Rng::with_seed(9);
    let normal = mixture(&[(1.0, 0.0, 1.0)]);
    let (mut single, mut many) = (0, 0);
    for _ in 0..SAMPLES {
        let values = sample(&normal, 35, &mut rng);
        single += usize::from(fit(&values, 10).unwrap().mixture.components().len() == 1);
        many += usize::from(number_as_printed(&values) >= 5);
    }
    let of_forty = |count: usize| 40.0 * count as f64 / SAMPLES as f64;
    assert!(of_forty(single) >= 38.0, "one component in {single} of {SAMPLES}"); // 39 of 40
    assert!((30.0..=38.0).contains(&of_forty(many)), "five or more by K·ln n in {many} of {SAMPLES}"); // 34
}

/// Shares of samples that are rejected at .05 when they come from a mixture of `components`, fitted with as many.
fn rejected(components: &[(f64, f64, f64)], size: usize, change: fn(f64) -> f64) -> f64 {
    const SAMPLES: usize = 100;
    let truth = mixture(components);
    let mut rng = fastrand::Rng::with_seed(10);
    let mut rejected = 0;
    for _ in 0..SAMPLES {
        let values: Vec<f64> = sample(&truth, size, &mut rng).into_iter().map(change).collect();
        let fitted = fit(&values, components.len()).unwrap().mixture;
        rejected += usize::from(goodness_of_fit(&values, &fitted, 59, &mut rng).unwrap().p_value <= 0.05);
    }
    rejected as f64 / SAMPLES as f64
}

#[test]
fn a_sample_of_a_mixture_is_rarely_rejected_and_one_of_ticks_is() {
    let one = rejected(&[(1.0, 5.0, 1.0)], 35, |value| value);
    let two = rejected(&[(0.5, 5.0, 1.0), (0.5, 12.0, 1.0)], 60, |value| value);
    let skewed = rejected(&[(1.0, 0.0, 1.0)], 60, f64::exp);
    let ticks = rejected(&[(1.0, 5.0, 1.0)], 60, f64::round);
    assert!(one <= 0.1 && two <= 0.1, "{one} {two}");
    assert!(skewed >= 0.9 && ticks >= 0.9, "{skewed} {ticks}");
}

#[test]
fn the_edges_are_defined() {
    assert_eq!(fit(&[], 3), None);
    assert_eq!(fit(&[f64::NAN, f64::INFINITY], 3), None);
    let mut rng = fastrand::Rng::with_seed(1);
    let single = fit(&[4.0], 3).unwrap().mixture;
    assert!(single.components().len() == 1 && (single.mean() - 4.0).abs() < 1e-9, "{single:?}");
    assert_eq!(goodness_of_fit(&[], &single, 10, &mut rng), None);
    let equal = fit(&[7.0; 50], 10).unwrap().mixture;
    assert!(equal.components().len() == 1 && equal.components()[0].deviation < 1e-9, "{equal:?}");
    assert!(equal.probability_below(&equal, 1e-6) > 0.999 && equal.modes().len() == 1);
    let zeros = fit(&[0.0; 50], 10).unwrap().mixture;
    assert!(zeros.mean() == 0.0 && zeros.modes().len() == 1, "{zeros:?}");
    assert_eq!(Mixture::new(vec![]), None);
    assert_eq!(Mixture::new(vec![component(0.0, 1.0, 1.0)]), None);
    assert_eq!(Mixture::new(vec![component(1.0, f64::NAN, 1.0)]), None);
    assert_eq!(Mixture::new(vec![component(1.0, 1.0, -1.0)]), None);
}

#[test]
fn large_samples_are_thinned_and_not_refused() {
    let mut rng = fastrand::Rng::with_seed(11);
    let truth = mixture(&[(0.5, 0.0, 1.0), (0.5, 9.0, 1.0)]);
    let fitted = fit(&sample(&truth, 100_000, &mut rng), 2).unwrap();
    assert!(fitted.values == 4_000 && (fitted.mixture.mean() - 4.5).abs() < 0.1, "{fitted:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_values_give_a_mixture_or_none(
        wild in prop::collection::vec(any::<f64>(), 0..25),
        mild in prop::collection::vec(-1e3..1e3f64, 0..25),
        ticks in prop::collection::vec((0..4u8).prop_map(f64::from), 0..25), most in 0..12usize,
    ) {
        for values in [&wild, &mild, &ticks] {
            let Some(fitted) = fit(values, most) else {
                prop_assert!(values.iter().all(|value| value.is_nan() || value.abs() > 1e100));
                continue;
            };
            let found = fitted.mixture.components();
            prop_assert!(found.len() <= most.clamp(1, 10) && fitted.bic.is_finite(), "{:?}", fitted);
            let weights: f64 = found.iter().map(|component| component.weight).sum();
            prop_assert!((weights - 1.0).abs() < 1e-9 && found.iter().all(|it| it.deviation > 0.0), "{:?}", fitted);
            let modes = fitted.mixture.modes();
            prop_assert!((1..=found.len()).contains(&modes.len()), "{:?} {:?}", fitted, modes);
            let test = goodness_of_fit(values, &fitted.mixture, 1, &mut fastrand::Rng::with_seed(1)).unwrap();
            prop_assert!((0.0..=1.0).contains(&test.distance) && (0.0..=1.0).contains(&test.p_value), "{:?}", test);
        }
    }

    #[test]
    fn any_versions_can_be_compared(
        first in prop::collection::vec((1e-3..1.0f64, -1e3..1e3f64, 0.0..1e2f64), 1..4),
        second in prop::collection::vec((1e-3..1.0f64, -1e100..1e100f64, 0.0..1e100f64), 1..4), shift: f64,
    ) {
        let [first, second] = [mixture(&first), mixture(&second)];
        let below = first.probability_below(&second, shift);
        prop_assert!((-1e-9..1.0 + 1e-9).contains(&below), "{}", below);
        let apart = first.mean_difference(&second);
        prop_assert!(apart.is_finite() && apart >= 0.0, "{}", apart);
        let shares = probability_smallest(&[first, second]);
        prop_assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-6, "{:?}", shares);
    }
}
