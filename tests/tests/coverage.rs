//! Intervals, orders and goals hold what they promise: a short form of `just coverage`, with seeded runs.

use profiler_core::stats::Goal;
use tests::bouts::{Program, Sampling};
use tests::coverage::{Case, Found, shapes};

const RUNS: usize = 60;

const RATE_HZ: f64 = 450.0;

fn simulate(shape: usize, bout_ms: f64, window_ms: f64, goal: f64) -> Found {
    let goal = Goal { relative: goal, ..Goal::default() };
    let sampling = Sampling { rate_hz: RATE_HZ, run_s: 10.0, window_ms };
    of(shape, |shares| Program::new(shares, bout_ms).uneven(), sampling, goal)
}

fn of(shape: usize, program: impl Fn(&[f64]) -> Program, sampling: Sampling, goal: Goal) -> Found {
    let (name, shares) = shapes()[shape].clone();
    Case { name: name.to_string(), program: program(&shares), sampling, goal }.simulate(RUNS, 23)
}

/// Rounds that meet the sampling period or nearly raise the error above that of independent samples.
#[test]
fn programs_in_rounds_are_known_as_well_as_said() {
    for (periods, run_s) in [(1.0, 10.0), (1.25, 3.0), (0.3, 1.2)] {
        let in_rounds = |shares: &[f64]| Program::in_rounds(shares, periods * 1e3 / RATE_HZ);
        for shape in 0..shapes().len() {
            let sampling = Sampling { rate_hz: RATE_HZ, run_s, window_ms: 0.0 };
            let found = of(shape, in_rounds, sampling, Goal::default());
            assert!(found.this_run >= 0.9 && found.totals_this_run >= 0.9, "{periods}, {shape}: {found:?}");
        }
    }
}

/// Two dozen visits that all last as long are enough to say how much other runs differ.
#[test]
fn a_short_run_of_long_visits_says_what_others_may_be() {
    let sampling = Sampling { rate_hz: RATE_HZ, run_s: 1.2, window_ms: 0.0 };
    for shape in [0, 1] {
        let found = of(shape, |shares| Program::new(shares, 50.0).alike(), sampling, Goal::default());
        assert!(found.long_run_told >= 0.5 && found.long_run >= 0.9, "{shape}: {found:?}");
        assert!(found.misordered <= 0.05, "{shape}: {found:?}");
    }
}

/// Where most runs show too few visits, the others are those in which visits looked shorter than they are.
#[test]
fn the_few_runs_that_seem_to_have_enough_visits_are_not_misled() {
    for (shape, bout_ms, run_s) in [(0, 20.0, 0.5), (0, 70.0, 1.2), (1, 150.0, 3.0)] {
        let sampling = Sampling { rate_hz: RATE_HZ, run_s, window_ms: 0.0 };
        let name = format!("visits of {bout_ms} ms in {run_s} s");
        let (_, shares) = &shapes()[shape];
        let case = Case { name, program: Program::new(shares, bout_ms), sampling, goal: Goal::default() };
        let found = case.simulate(400, 17);
        assert!(found.long_run_told > 0.1 && found.long_run_told < 0.6, "{}: {found:?}", case.name);
        assert!(found.long_run >= 0.93 && found.totals_long_run >= 0.93, "{}: {found:?}", case.name);
    }
}

/// Of visits that last for as much as a tenth of the run, next to nothing is said of other runs.
#[test]
fn a_run_of_few_visits_says_nothing_of_others() {
    for (bout_ms, run_s) in [(100.0, 0.5), (500.0, 3.0), (3_000.0, 10.0), (30_000.0, 60.0)] {
        let sampling = Sampling { rate_hz: RATE_HZ, run_s, window_ms: 0.0 };
        let found = of(1, |shares| Program::new(shares, bout_ms), sampling, Goal::default());
        assert!(found.long_run_told * (1.0 - found.long_run) <= 0.1, "{bout_ms} ms in {run_s} s: {found:?}");
        assert!(found.misordered <= 0.1 && found.peeked_wrong <= 0.1, "{bout_ms} ms in {run_s} s: {found:?}");
    }
}

/// At 95%, three of sixty runs may miss; with intervals for independent samples, or with pointwise ones, most do.
#[test]
fn tables_hold_what_they_promise() {
    for (shape, bout_ms, window_ms) in
        [(1, 0.2, 500.0), (1, 20.0, 500.0), (2, 100.0, 100.0), (3, 2.0, 500.0), (3, 500.0, 500.0)]
    {
        let found = simulate(shape, bout_ms, window_ms, 0.05);
        let told = format!("shape {shape}, bouts of {bout_ms} ms, windows of {window_ms} ms: {found:?}");
        assert!(found.this_run >= 0.9 && found.long_run >= 0.9, "{told}");
        assert!(found.misordered <= 0.05 && found.peeked_wrong <= 0.05, "{told}");
    }
}

#[test]
fn who_stops_when_the_goal_is_reached_is_right() {
    let found = simulate(1, 0.2, 500.0, 0.2);
    assert!(found.stopped >= 0.3 && found.stopped_wrong <= 0.05, "{found:?}");
}

/// The widths are part of the promise: an interval that is always right may still be no use.
#[test]
fn long_bouts_make_this_run_surer_and_another_less_sure() {
    let (short, long) = (simulate(1, 0.2, 100.0, 0.05), simulate(1, 500.0, 100.0, 0.05));
    // As wide as a program in rounds needs.
    assert!(short.this_run_width < 1.8 && short.long_run_width < 1.8, "{short:?}");
    assert!(long.this_run_width < 0.7 && long.long_run_width > 10.0, "{long:?}");
}
