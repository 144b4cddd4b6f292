use proptest::prelude::*;

use super::*;

const EVEN: WindowSums = WindowSums { weight_ns: 1e9, samples: 100, squares_ns2: 0.0 };

fn part(window: u32, weight_ns: f64, samples: u64) -> Part {
    Part { window, weight_ns, samples, squares_ns2: 0.0 }
}

/// A function with so many of a window's hundred samples, in each of them.
fn steady(windows: u32, samples: u64) -> Vec<Part> {
    (0..windows).map(|window| part(window, samples as f64 * 1e7, samples)).collect()
}

#[test]
fn a_single_function_is_all_there_is() {
    let table = IntervalTable::new(&[EVEN; 20], &[steady(20, 100)], Confidence::default());
    let row = table.rows()[0];
    assert_eq!((row.share, row.samples, row.this_run.high, row.inflation), (1.0, 2_000, 1.0, 1.0));
    assert!(row.this_run.low > 0.99 && row.this_run.low < 1.0, "{row:?}");
}

#[test]
fn without_samples_nothing_is_known() {
    let nothing: [Vec<Part>; 2] = [vec![], vec![part(7, 1.0, 1)]];
    for windows in [vec![], vec![WindowSums::default(); 9], vec![WindowSums { weight_ns: f64::NAN, ..EVEN }]]
    {
        let table = IntervalTable::new(&windows, &nothing, Confidence::default());
        assert!(table.rows().iter().all(|row| *row == Row { samples: row.samples, ..Row::NOTHING }));
        assert_eq!((table.samples(), table.weight_ns()), (0, 0.0));
    }
}

#[test]
fn the_largest_comes_first_and_near_neighbours_are_tied() {
    let functions = [steady(20, 19), steady(20, 60), steady(20, 21)];
    let table = IntervalTable::new(&[EVEN; 20], &functions, Confidence::default());
    assert_eq!(table.order(), [1, 2, 0]);
    let ties = table.order().iter().map(|index| table.rows()[*index].tied_with_next).collect::<Vec<_>>();
    assert_eq!(ties, [false, true, false]);
}

/// A function that has the first half of the run for itself: what the other half of another run would be, this one does not show.
#[test]
fn of_phases_as_long_as_the_run_nothing_is_said_of_other_runs() {
    let alternating = |windows: u32| {
        let all = |first: bool| (0..96).filter(move |w| (w / windows).is_multiple_of(2) == first);
        let parts = [true, false].map(|first| all(first).map(|w| part(w, 1e9, 100)).collect::<Vec<Part>>());
        IntervalTable::new(&[EVEN; 96], &parts, Confidence::default())
    };
    assert!(alternating(3).inflation_is_known());
    let phases = alternating(48);
    assert!(!phases.inflation_is_known() && phases.rows()[0].long_run == Interval::UNKNOWN, "{phases:?}");
    assert!(phases.rows()[0].this_run.low > 0.4 && phases.rows()[0].tied_with_next, "{phases:?}");
}

/// A run that was in one function until another began in its last window looks like a program that is rarely in the second.
#[test]
fn of_a_function_that_was_only_seen_at_the_end_nothing_is_said() {
    const WINDOWS: u32 = 20;
    let all = vec![WindowSums { weight_ns: 1e9, samples: 1_000, ..WindowSums::default() }; WINDOWS as usize];
    // Beside one function, others that are all alike.
    let seen = |count: u64, rare: Vec<Part>| {
        let usual = |window| {
            let others =
                rare.iter().find(|part| part.window == window).map_or(0, |part| count * part.samples);
            part(window, (1_000 - others) as f64 * 1e6, 1_000 - others)
        };
        let mut functions = vec![(0..WINDOWS).map(usual).collect()];
        functions.extend((0..count).map(|_| rare.clone()));
        IntervalTable::new(&all, &functions, Confidence::default())
    };
    for count in [1, 10] {
        let at_the_end = seen(count, vec![part(WINDOWS - 1, 20e6, 20)]);
        assert!(!at_the_end.inflation_is_known() && at_the_end.rows()[0].tied_with_next, "{at_the_end:?}");
    }
    let now_and_then = seen(1, (0..WINDOWS).map(|window| part(window, 1e6, 1)).collect());
    assert!(now_and_then.inflation_is_known() && !now_and_then.rows()[0].tied_with_next, "{now_and_then:?}");
}

/// How much other runs differ is not seen in five windows, however many samples they hold.
#[test]
fn of_few_windows_nothing_is_said_of_other_runs() {
    let functions = [steady(6, 20), steady(6, 80)];
    for (windows, is_known) in [(5, false), (6, true)] {
        let functions = functions.each_ref().map(|parts| &parts[..windows]);
        let table = IntervalTable::new(&[EVEN; 6][..windows], &functions, Confidence::default());
        let [small, large] = table.rows() else { panic!("{table:?}") };
        assert!(large.this_run.low > 0.6 && small.this_run.high < 0.4, "{table:?}");
        assert_eq!(large.long_run != Interval::UNKNOWN, is_known);
        assert_eq!((large.tied_with_next, small.tied_with_next), (!is_known, false));
    }
}

/// A function that has every second window for itself and one that has half of each have the same share; the first one's
/// bouts make the long run uncertain and this run certain.
#[test]
fn bouts_widen_the_long_run_and_narrow_this_run() {
    let windows = [EVEN; 96];
    // Bouts of three windows.
    let bouts: Vec<Part> = (0..96).filter(|w| w / 3 % 2 == 0).map(|w| part(w, 1e9, 100)).collect();
    let rest: Vec<Part> = (0..96).filter(|w| w / 3 % 2 == 1).map(|w| part(w, 1e9, 100)).collect();
    let width = |interval: Interval| interval.high - interval.low;
    let of =
        |functions: &[Vec<Part>]| IntervalTable::new(&windows, functions, Confidence::default()).rows()[0];
    let (in_bouts, spread) = (of(&[bouts, rest]), of(&[steady(96, 50), steady(96, 50)]));
    assert_eq!(in_bouts.share, spread.share);
    assert_eq!(spread.inflation, 1.0);
    assert!(in_bouts.inflation > 50.0, "{in_bouts:?}");
    assert!(width(in_bouts.long_run) > 5.0 * width(spread.long_run), "{in_bouts:?} {spread:?}");
    assert!(width(in_bouts.this_run) < 0.2 * width(spread.this_run), "{in_bouts:?} {spread:?}");
}

/// What all samples have in common, as a program's `main` is, says nothing about how the functions below it come and go: their inflation is
/// the same with it in the table and without.
#[test]
fn a_function_that_is_in_all_samples_hides_no_bouts() {
    let mut rng = fastrand::Rng::with_seed(29);
    for _ in 0..50 {
        let windows: Vec<WindowSums> = (0..60)
            .map(|_| WindowSums { weight_ns: rng.f64() * 1e9, samples: rng.u64(50..150), ..EVEN })
            .collect();
        let whole = |w: u32| part(w, windows[w as usize].weight_ns, windows[w as usize].samples);
        let of_some = |first: u32| -> Vec<Part> {
            (0..60).filter(|window| window / 2 % 3 == first).map(whole).collect()
        };
        let mut functions: Vec<Vec<Part>> = (0..3).map(of_some).collect();
        let without = IntervalTable::new(&windows, &functions, Confidence::default());
        functions.push((0..60).map(whole).collect());
        let with = IntervalTable::new(&windows, &functions, Confidence::default());
        for (with, without) in with.rows().iter().zip(without.rows()) {
            assert!(without.inflation > 20.0, "{without:?}");
            assert!((with.inflation / without.inflation - 1.0).abs() < 1e-6, "{with:?} {without:?}");
        }
        assert!(with.rows()[3].long_run.contains(1.0) && with.rows()[3].share == 1.0, "{:?}", with.rows()[3]);
    }
}

/// Two targets as busy as each other, one sampled a hundred times as often. Of a share of the other's time the error is that of
/// its own few samples: √((1/2)²·q(1−q)/n) for q of its n.
#[test]
fn a_share_of_few_heavy_samples_is_as_unsure_as_these() {
    const WINDOWS: u32 = 60;
    let mut rng = fastrand::Rng::with_seed(11);
    let (often, seldom) = (10_000, 100);
    let all = WindowSums {
        weight_ns: 2e9,
        samples: often + seldom,
        squares_ns2: 1e18 / often as f64 + 1e18 / seldom as f64,
    };
    let (mut covered, mut widths) = ([0; 2], [0.0; 2]);
    const RUNS: usize = 200;
    for _ in 0..RUNS {
        let mut functions = [vec![], vec![], vec![]];
        for window in 0..WINDOWS {
            let hits = (0..seldom).filter(|_| rng.f64() < 0.5).count() as u64;
            for (parts, (samples, each_ns)) in functions.iter_mut().zip([
                (often, 1e9 / often as f64),
                (hits, 1e9 / seldom as f64),
                (seldom - hits, 1e9 / seldom as f64),
            ]) {
                let weight_ns = samples as f64 * each_ns;
                parts.push(Part { squares_ns2: weight_ns * each_ns, ..part(window, weight_ns, samples) });
            }
        }
        let table = IntervalTable::new(&[all; WINDOWS as usize], &functions, Confidence::default());
        let row = table.rows()[1];
        for (at, interval) in [row.this_run, row.long_run].into_iter().enumerate() {
            covered[at] += usize::from(interval.contains(0.25));
            widths[at] += (interval.high - interval.low) / RUNS as f64;
        }
    }
    assert!(covered.iter().all(|covered| *covered * 100 >= 95 * RUNS), "{covered:?}");
    let error = (0.25_f64 * 0.25 / f64::from(seldom as u32 * WINDOWS)).sqrt();
    assert!(widths.iter().all(|width| *width < 9.0 * error), "{widths:?} {error}");
}

#[test]
fn the_error_is_spent_once() {
    let functions = [steady(20, 50), steady(20, 30), steady(20, 15), steady(20, 4), steady(20, 1), vec![]];
    let table = IntervalTable::new(&[EVEN; 20], &functions, Confidence::default());
    let spent: f64 = table.rows().iter().map(|row| row.part).sum();
    assert!(spent > 0.9 && spent <= 1.0 + 1e-12, "{spent}");
}

fn any_window() -> impl Strategy<Value = WindowSums> {
    let weight = prop_oneof![any::<f64>(), 0.0..1e12];
    (weight, prop_oneof![any::<u64>(), 0u64..500], any_squares())
        .prop_map(|(weight_ns, samples, squares_ns2)| WindowSums { weight_ns, samples, squares_ns2 })
}

fn any_part() -> impl Strategy<Value = Part> {
    let weight = prop_oneof![any::<f64>(), 0.0..1e12];
    let fields =
        (prop_oneof![any::<u32>(), 0u32..40], weight, prop_oneof![any::<u64>(), 0u64..500], any_squares());
    fields.prop_map(|(window, weight_ns, samples, squares_ns2)| Part {
        squares_ns2,
        ..part(window, weight_ns, samples)
    })
}

fn any_squares() -> impl Strategy<Value = f64> {
    prop_oneof![Just(0.0), any::<f64>(), 0.0..1e24]
}

proptest! {
    #[test]
    fn it_is_a_table_whatever_comes(
        windows in prop::collection::vec(any_window(), 0..40),
        functions in prop::collection::vec(prop::collection::vec(any_part(), 0..20), 0..12),
        level: f64, sorted: bool,
    ) {
        let mut functions = functions;
        if sorted {
            functions.iter_mut().for_each(|parts| parts.sort_by_key(|part| part.window));
        }
        let table = IntervalTable::new(&windows, &functions, Confidence::new(level));
        prop_assert_eq!(table.rows().len(), functions.len());
        prop_assert!(table.weight_ns().is_finite());
        for row in table.rows() {
            for interval in [row.this_run, row.long_run] {
                prop_assert!(0.0 <= interval.low && interval.low <= interval.high && interval.high <= 1.0, "{row:?}");
                prop_assert!(interval.contains(row.share) || row.samples == 0, "{row:?}");
            }
            prop_assert!(row.inflation >= 1.0 && row.inflation.is_finite() && row.freedom >= 1.0, "{row:?}");
        }
        let shares: Vec<f64> = table.order().iter().map(|index| table.rows()[*index].share).collect();
        prop_assert!(shares.is_sorted_by(|a, b| a >= b));
    }
}
