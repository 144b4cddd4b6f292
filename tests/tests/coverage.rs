//! Intervals, orders and goals hold what they promise: a short form of `just coverage`, with seeded runs.

use profiler_core::stats::Goal;
use tests::bouts::{Program, Sampling};
use tests::coverage::{Case, Found, shapes};

const RUNS: usize = 60;

fn simulate(shape: usize, bout_ms: f64, window_ms: f64, goal: f64) -> Found {
    let (name, shares) = shapes()[shape].clone();
    let case = Case {
        name: name.to_string(),
        program: Program::new(&shares, bout_ms).uneven(),
        sampling: Sampling { rate_hz: 450.0, run_s: 10.0, window_ms },
        goal: Goal { relative: goal, ..Goal::default() },
    };
    case.simulate(RUNS, 23)
}

/// At 95%, three of sixty runs may miss; with intervals for independent samples, or with pointwise ones, most do.
#[test]
fn tables_hold_what_they_promise() {
    for (shape, bout_ms, window_ms) in
        [(0, 0.2, 500.0), (0, 20.0, 500.0), (1, 100.0, 100.0), (2, 2.0, 500.0), (2, 500.0, 500.0)]
    {
        let found = simulate(shape, bout_ms, window_ms, 0.05);
        let told = format!("shape {shape}, bouts of {bout_ms} ms, windows of {window_ms} ms: {found:?}");
        assert!(found.this_run >= 0.9 && found.long_run >= 0.9, "{told}");
        assert!(found.misordered <= 0.05 && found.peeked_wrong <= 0.05, "{told}");
    }
}

#[test]
fn who_stops_when_the_goal_is_reached_is_right() {
    let found = simulate(0, 0.2, 500.0, 0.2);
    assert!(found.stopped >= 0.3 && found.stopped_wrong <= 0.05, "{found:?}");
}

/// The widths are part of the promise: an interval that is always right may still be no use.
#[test]
fn long_bouts_make_this_run_surer_and_another_less_sure() {
    let (short, long) = (simulate(0, 0.2, 100.0, 0.05), simulate(0, 500.0, 100.0, 0.05));
    assert!(short.this_run_width < 1.5 && short.long_run_width < 1.8, "{short:?}");
    assert!(long.this_run_width < 0.7 && long.long_run_width > 10.0, "{long:?}");
}
