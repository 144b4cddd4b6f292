use profiler_core::profile::StackWindow;

use super::*;
use crate::formats::table::View;
use crate::testing;

const SAMPLE_NS: u64 = 10_000_000;

fn run(shares: [f64; 4], rng: &mut fastrand::Rng) -> SymbolizedProfile {
    testing::minute(shares, || rng.f64())
}

fn named<'a>(comparison: &'a Comparison, name: &str) -> &'a FunctionChange {
    comparison.functions.iter().find(|function| function.name == name).expect("a function")
}

#[test]
fn what_chance_brings_is_not_called_a_change() {
    let mut rng = fastrand::Rng::with_seed(5);
    let shares = [0.4, 0.3, 0.2, 0.1];
    let changed = |_: u32| {
        let (old, new) = (run(shares, &mut rng), run(shares, &mut rng));
        let comparison = Comparison::of(&old, &new, false);
        assert!(comparison.old.tells_of_others && comparison.new.tells_of_others);
        comparison.functions.iter().any(|function| function.is_changed)
    };
    let misled = (0..60).map(changed).filter(|changed| *changed).count();
    assert!(misled <= 7, "{misled} of 60"); // 3 are expected; more than 7 in one of 50 such tests
}

#[test]
fn a_change_is_found_and_its_interval_holds_it() {
    let mut rng = fastrand::Rng::with_seed(6);
    let (mut found, mut held, mut known) = (0, 0, 0);
    for _ in 0..40 {
        let (old, new) = (run([0.4, 0.3, 0.2, 0.1], &mut rng), run([0.34, 0.36, 0.2, 0.1], &mut rng));
        let comparison = Comparison::of(&old, &new, false);
        let memcpy = named(&comparison, "memcpy");
        found += usize::from(memcpy.is_changed && comparison.functions[0].is_changed);
        let ends = memcpy.change_low.zip(memcpy.change_high);
        known += usize::from(ends.is_some());
        held += usize::from(ends.is_some_and(|(low, high)| (low..=high).contains(&-0.06)));
    }
    assert!(
        known >= 38 && found >= known - 1 && held >= known - 6,
        "known in {known} of 40, found in {found}, held in {held}"
    );
}

/// A rate of its own, or a run of another length, changes no share.
#[test]
fn a_longer_run_is_compared_by_shares() {
    let mut rng = fastrand::Rng::with_seed(7);
    let (old, mut new) = (run([0.4, 0.3, 0.2, 0.1], &mut rng), run([0.4, 0.3, 0.2, 0.1], &mut rng));
    for stack in &mut new.stacks {
        stack.cpu_ns *= 3;
        stack.windows.iter_mut().for_each(|had| had.cpu_ns *= 3);
    }
    let comparison = Comparison::of(&old, &new, false);
    assert!(comparison.functions.iter().all(|function| !function.is_changed), "{comparison:?}");
}

#[test]
fn nothing_is_called_changed_where_a_run_does_not_show_how_much_runs_differ() {
    let mut rng = fastrand::Rng::with_seed(8);
    let (old, mut new) = (run([0.7, 0.1, 0.1, 0.1], &mut rng), run([0.1, 0.7, 0.1, 0.1], &mut rng));
    new.windows.clear();
    new.stacks.iter_mut().for_each(|stack| stack.windows.clear());
    let comparison = Comparison::of(&old, &new, false);
    assert!(comparison.old.tells_of_others && !comparison.new.tells_of_others);
    let memcpy = named(&comparison, "memcpy");
    assert!(
        (memcpy.change + 0.6).abs() < 0.05 && memcpy.change_low.is_none() && !memcpy.is_changed,
        "{memcpy:?}"
    );
    let text = render(&comparison, View::default());
    assert!(
        comparison.basis == Basis::Nothing && text.contains("not known: a profile of another tool"),
        "{text}"
    );
}

/// A job in two phases that are as long as the run: it does not show what other runs would do, but these two are known well.
#[test]
fn jobs_in_long_phases_are_compared_as_they_were() {
    let mut rng = fastrand::Rng::with_seed(11);
    let in_phases = |first: f64, rng: &mut fastrand::Rng| {
        let mut profile = run([first, 1.0 - first, 0.0, 0.0], rng);
        // All of the first function comes before all of the second.
        let [memcpy, main] = [0, 1].map(|at| profile.stacks[at].samples);
        for (at, (from, samples)) in [(0, (0, memcpy)), (1, (memcpy, main))] {
            let stack = &mut profile.stacks[at];
            stack.windows.clear();
            for window in from / 100..=(from + samples - 1) / 100 {
                let count = (from + samples).min((window + 1) * 100) - from.max(window * 100);
                stack.windows.push(StackWindow {
                    window: window as u32,
                    cpu_ns: count * SAMPLE_NS,
                    samples: count,
                });
            }
        }
        profile.stacks.truncate(2);
        profile
    };
    let (old, same, new) = (in_phases(0.5, &mut rng), in_phases(0.5, &mut rng), in_phases(0.4, &mut rng));
    let changed = Comparison::of(&old, &new, false);
    assert_eq!(changed.basis, Basis::TheseRuns);
    let memcpy = named(&changed, "memcpy");
    assert!(
        memcpy.is_changed && memcpy.change_high < Some(-0.05) && memcpy.adjusted_p_value.is_none(),
        "{memcpy:?}"
    );
    let text = render(&changed, View::default());
    assert!(
        text.contains("2 of 2 functions, between these two runs; the two profiles do not show"),
        "{text}"
    );
    // What chance made of 6,000 samples here differs by a point or so.
    let same = Comparison::of(&old, &same, false);
    assert!(named(&same, "memcpy").change.abs() < 0.03, "{same:?}");
}

#[test]
fn a_function_may_come_go_and_move_to_the_next_version_of_its_library() {
    let mut rng = fastrand::Rng::with_seed(9);
    let (old, mut new) = (run([0.4, 0.3, 0.2, 0.1], &mut rng), run([0.4, 0.3, 0.0, 0.3], &mut rng));
    let libc = new.modules.iter_mut().find(|module| module.name == "libc.so.6").expect("memcpy's module");
    libc.name = "libc.so.7".to_owned();
    let comparison = Comparison::of(&old, &new, false);
    let memcpy = named(&comparison, "memcpy");
    assert_eq!(memcpy.module, "libc.so.7");
    assert!(memcpy.old_share > 0.3 && memcpy.new_share > 0.3, "{memcpy:?}");
    let walk = named(&comparison, "walk");
    assert!(walk.is_changed && walk.old_share > 0.1 && walk.new_share == 0.0, "{walk:?}");
}

#[test]
fn with_what_was_called_a_caller_has_its_callees_time() {
    let mut rng = fastrand::Rng::with_seed(10);
    let (old, new) = (run([0.4, 0.3, 0.2, 0.1], &mut rng), run([0.4, 0.3, 0.2, 0.1], &mut rng));
    let comparison = Comparison::of(&old, &new, true);
    let start = named(&comparison, "_start");
    assert!(start.old_share > 0.99 && !start.is_changed, "{start:?}");
}

/// The level is that of the comparison, whatever the runs were recorded with.
#[test]
fn intervals_are_at_the_level_that_is_printed() {
    let mut rng = fastrand::Rng::with_seed(12);
    let [old, new] = [(); 2].map(|()| run([0.4, 0.3, 0.2, 0.1], &mut rng));
    let width = |level: f64| {
        let of_level = |profile: &SymbolizedProfile| {
            let mut profile = profile.clone();
            profile.run.how.confidence = level;
            profile.windows.truncate(5); // too short to tell of other runs
            profile.stacks.iter_mut().for_each(|stack| stack.windows.retain(|had| had.window < 5));
            profile
        };
        let comparison = Comparison::of(&of_level(&old), &of_level(&new), false);
        assert_eq!(comparison.basis, Basis::TheseRuns);
        let memcpy = named(&comparison, "memcpy");
        memcpy.change_high.unwrap() - memcpy.change_low.unwrap()
    };
    assert_eq!(width(0.99), width(0.8));
}

#[test]
fn times_of_other_tools_have_their_names() {
    let mut rng = fastrand::Rng::with_seed(13);
    let mut profile = run([0.4, 0.3, 0.2, 0.1], &mut rng);
    profile.run.measure = Measure::Other { time: "delay".to_owned(), counted: "contentions".to_owned() };
    let text = render(&Comparison::of(&profile, &profile, false), View::default());
    assert!(text.contains("of delay time of") && text.contains("shares of the delay time"), "{text}");
    assert!(!text.contains("CPU"), "{text}");
}

#[test]
fn it_reads_like_this() {
    let mut rng = fastrand::Rng::with_seed(10);
    let (old, new) = (run([0.4, 0.3, 0.2, 0.1], &mut rng), run([0.34, 0.36, 0.2, 0.1], &mut rng));
    insta::assert_snapshot!(render(&Comparison::of(&old, &new, false), View { width: 100, top: 3 }));
}
