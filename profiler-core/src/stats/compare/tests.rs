use proptest::prelude::*;
use statrs::distribution::ChiSquared;

use super::*;

const WINDOWS: usize = 100;
const SAMPLES: usize = 45;

/// Shares of forty functions, as 1/rank.
fn zipf() -> Vec<f64> {
    let total: f64 = (1..=40).map(|rank| 1.0 / f64::from(rank)).sum();
    (1..=40).map(|rank| 1.0 / f64::from(rank) / total).collect()
}

/// A profile of 100 windows of 45 samples: the samples of each function, window by window. A sample is in the same
/// function as the one before with probability `stay`, which makes the variance inflation (1 + stay)/(1 − stay).
fn profile(shares: &[f64], stay: f64, rng: &mut fastrand::Rng) -> Vec<Vec<(f64, f64)>> {
    let bounds: Vec<f64> = shares
        .iter()
        .scan(0.0, |sum, share| {
            *sum += share;
            Some(*sum)
        })
        .collect();
    let draw = |rng: &mut fastrand::Rng| {
        let at = rng.f64();
        bounds.partition_point(|bound| *bound < at).min(shares.len() - 1)
    };
    let mut windows = vec![vec![(0.0, SAMPLES as f64); WINDOWS]; shares.len()];
    let mut function = draw(rng);
    for sample in 0..WINDOWS * SAMPLES {
        if rng.f64() >= stay {
            function = draw(rng);
        }
        windows[function][sample / SAMPLES].0 += 1.0;
    }
    windows
}

fn changes(old: &[Vec<(f64, f64)>], new: &[Vec<(f64, f64)>]) -> Vec<Change> {
    let functions: Vec<TwoRuns<'_>> = old.iter().zip(new).map(|(old, new)| TwoRuns { old, new }).collect();
    compare(&functions, 0.05, 0.95)
}

/// The pooled χ² test of two profiles.
fn pooled_p_value(old: &[Vec<(f64, f64)>], new: &[Vec<(f64, f64)>]) -> f64 {
    let count = |windows: &Vec<(f64, f64)>| windows.iter().map(|(x, _)| x).sum::<f64>();
    let pairs: Vec<(f64, f64)> =
        old.iter().map(count).zip(new.iter().map(count)).filter(|(a, b)| a + b > 0.0).collect();
    let statistic: f64 = pairs.iter().map(|(a, b)| (a - b).powi(2) / (a + b)).sum();
    ChiSquared::new(pairs.len() as f64 - 1.0).unwrap().sf(statistic)
}

/// Shares of identical pairs called different: by `compare`, which names any function, and by pooled χ².
fn false_alarms(stay: f64) -> (f64, f64) {
    const PAIRS: usize = 300;
    let mut rng = fastrand::Rng::with_seed(20);
    let (mut ours, mut pooled) = (0, 0);
    for _ in 0..PAIRS {
        let [old, new] = [0, 1].map(|_| profile(&zipf(), stay, &mut rng));
        ours += usize::from(changes(&old, &new).iter().any(|change| change.effect.is_some()));
        pooled += usize::from(pooled_p_value(&old, &new) < 0.05);
    }
    (ours as f64 / PAIRS as f64, pooled as f64 / PAIRS as f64)
}

/// Inflations of 1, 1.5 and 3, and of 90: bouts as long as a window, where windows alone would err in a quarter.
#[test]
fn identical_programs_are_rarely_called_different() {
    for (stay, pooled_at_least) in [(0.0, 0.02), (0.2, 0.4), (0.5, 0.97), (0.978, 0.97)] {
        let (ours, pooled) = false_alarms(stay);
        assert!(ours <= 0.06, "variance inflation {}: {ours}", (1.0 + stay) / (1.0 - stay));
        assert!(pooled >= pooled_at_least, "the pooled test knows no inflation, and errs: {pooled}");
    }
}

#[test]
fn what_changed_is_found_and_little_else() {
    const PAIRS: usize = 60;
    let mut rng = fastrand::Rng::with_seed(21);
    let before = zipf();
    let mut after = before.clone();
    (after[0], after[1], after[7]) = (before[0] - 0.12, before[1] + 0.06, before[7] + 0.06);
    let (mut found, mut called, mut wrongly, mut held) = (0, 0, 0, 0);
    for _ in 0..PAIRS {
        let [old, new] = [&before, &after].map(|shares| profile(shares, 0.5, &mut rng));
        for (function, change) in changes(&old, &new).into_iter().enumerate() {
            let truth = after[function] - before[function];
            held += usize::from((change.new_share - change.old_share - truth).abs() <= change.half_width);
            let Some(effect) = change.effect else { continue };
            assert!(
                change.adjusted_p_value <= 0.05 && change.p_value <= change.adjusted_p_value,
                "{change:?}"
            );
            called += 1;
            found += usize::from(truth != 0.0);
            wrongly += usize::from(truth == 0.0);
            let more = change.new_share > change.old_share;
            assert!((effect.probability_more > 0.5) == more, "{change:?}");
            assert!(effect.mean_difference > 0.3 * (change.new_share - change.old_share).abs(), "{change:?}");
            assert!(effect.old_modes >= 1 && effect.new_modes >= 1, "{change:?}");
        }
    }
    let held = held as f64 / (PAIRS * before.len()) as f64;
    assert!(found * 10 >= 3 * PAIRS * 9, "found {found} of {}", 3 * PAIRS);
    assert!(wrongly * 20 <= called * 2, "{wrongly} of {called} are wrong"); // .05 on average
    assert!((0.93..0.97).contains(&held), "intervals hold {held}");
}

/// Ten observations in each run: R's t.test gives t = −1.8608, 17.776 degrees of freedom, p = .07939 (the data of
/// Student's sleep, in hundredths).
#[test]
fn welch_is_the_textbooks() {
    let windows = |hours: [f64; 10]| hours.map(|extra| (0.02 + extra / 100.0, 1.0));
    let old = windows([0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]);
    let new = windows([1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]);
    let [change] = &compare(&[TwoRuns { old: &old, new: &new }], 0.05, 0.95)[..] else {
        panic!("one function")
    };
    assert!((change.p_value - 0.07939).abs() < 5e-6, "{change:?}");
    assert!((change.new_share - change.old_share - 0.0158).abs() < 1e-12, "{change:?}");
    assert!((change.half_width - 0.017855).abs() < 5e-7, "{change:?}"); // −3.3654832 … .2054832
    assert_eq!(change.effect, None);
}

#[test]
fn benjamini_and_hochbergs_adjustment_is_that_of_their_paper() {
    // Their example of 1995 (section 3.2): the four smallest of fifteen are rejected at .05.
    let p_values = [
        0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719,
        0.6528, 0.7590, 1.0,
    ];
    let adjusted = benjamini_hochberg(&p_values);
    assert_eq!(adjusted.iter().filter(|p| **p <= 0.05).count(), 4);
    assert!((adjusted[3] - 0.0095 * 15.0 / 4.0).abs() < 1e-12 && adjusted[14] == 1.0, "{adjusted:?}");
    assert!((adjusted[5] - 0.0298 * 15.0 / 7.0).abs() < 1e-12, "{adjusted:?}"); // a later one may be lower
    assert_eq!(benjamini_hochberg(&[f64::NAN, 0.01]), [1.0, 0.02]);
}

#[test]
fn the_edges_are_defined() {
    assert!(compare(&[], 0.05, 0.95).is_empty());
    let one = |old: &[(f64, f64)], new: &[(f64, f64)]| compare(&[TwoRuns { old, new }], 0.05, 0.95).remove(0);
    let nothing = one(&[], &[(1.0, 2.0); 30]);
    assert!(nothing.p_value == 1.0 && nothing.half_width == 1.0 && nothing.effect.is_none(), "{nothing:?}");
    let same = one(&[(0.1, 0.3); 30], &[(0.2, 0.6); 30]);
    assert!(same.p_value > 0.5 && same.effect.is_none(), "{same:?}");
    let appeared = one(&[(0.0, 10.0); 30], &[(1.0, 10.0); 30]);
    assert!(
        appeared.p_value < 1e-9 && appeared.effect.is_some_and(|it| it.probability_more > 0.99),
        "{appeared:?}"
    );
    let seldom = one(&[(0.0, 10.0); 30], &[[(1.0, 10.0)].as_slice(), &[(0.0, 10.0); 29]].concat());
    assert!(seldom.p_value > 0.3, "{seldom:?}");
}

proptest! {
    #[test]
    fn any_windows_can_be_compared(
        wild in prop::collection::vec((any::<f64>(), any::<f64>()), 0..50),
        sound in prop::collection::vec((0.0..=1.0f64, 1e-9..1e12f64), 0..50), rate: f64, confidence: f64,
    ) {
        let sound: Vec<_> = sound.iter().map(|(share, total)| (share * total, *total)).collect();
        let pairs = [(&wild, &sound), (&sound, &wild), (&wild, &wild), (&sound, &sound)];
        let functions = pairs.map(|(old, new)| TwoRuns { old, new });
        for change in compare(&functions, rate, confidence) {
            prop_assert!((0.0..=1.0).contains(&change.old_share) && (0.0..=1.0).contains(&change.new_share), "{:?}", change);
            prop_assert!((0.0..=1.0).contains(&change.p_value) && change.adjusted_p_value >= change.p_value, "{:?}", change);
            prop_assert!(change.half_width.is_finite() && change.half_width >= 0.0, "{:?}", change);
        }
    }
}
