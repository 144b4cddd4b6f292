//! Measures the cost of the statistics: of a retune (shares, spread, change detector), and of the table of a whole profile.
//!
//! Options: `--functions 5000`, `--windows 240`, `--samples 27000`, `--repetitions 200`.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

use anyhow::Result;
use profiler_core::rate::{CostModel, RateController, RateSettings, Reading, TopShares};
use profiler_core::stats::{Confidence, Goal, IntervalTable, Part, WindowSums};
use serde_json::json;
use tests::experiment::{option, print, row};
use tests::figures::median;

/// Samples that a retune sees in the second since the last one, at a high rate.
const TICK_SAMPLES: u64 = 10_000;

fn main() -> Result<()> {
    let repetitions = option("--repetitions", 200)?;
    let functions: usize = option("--functions", 5_000)?;
    let (windows, parts) = profile(functions, option("--windows", 240)?, option("--samples", 27_000)?);
    let retune_us = retune_us(functions as u64, repetitions);
    let table = || IntervalTable::new(&windows, &parts, Confidence::default());
    let table_us = median_us(repetitions, || drop(table()));
    let whole = table();
    let judge_us = median_us(repetitions, || {
        black_box(Goal::default().judge(&whole));
    });
    let rows = [
        row([&"statistics of", &"median"]),
        row([&"a retune", &format!("{retune_us:.0} µs")]),
        row([&"the table of a profile", &format!("{table_us:.0} µs")]),
        row([&"a look at the goal, given the table", &format!("{judge_us:.0} µs")]),
    ];
    let remark = format!("{functions} functions; a retune shall take less than 1,000 µs");
    let figures =
        json!({ "functions": functions, "retune_us": retune_us, "table_us": table_us, "judge_us": judge_us });
    print(&rows, &[remark], &figures)
}

/// A tick of the controller that closes a window of the shares and retunes, with all functions in it.
fn retune_us(functions: u64, repetitions: usize) -> f64 {
    let mut controller = RateController::new(RateSettings::default(), CostModel::default());
    controller.start(0);
    let mut rng = fastrand::Rng::with_seed(1);
    let mut at_ns = 0;
    median_us(repetitions, || {
        at_ns += 1_000_000_000;
        let reading = Reading {
            at_ns,
            target_cpu_ns: 1_000_000_000,
            samples: TICK_SAMPLES,
            frames: 20 * TICK_SAMPLES,
            ..Reading::default()
        };
        let counts = (0..functions).map(|key| (key, 1 + rng.u64(0..2 * TICK_SAMPLES / functions))).collect();
        controller.step(&reading, &TopShares { counts, ..TopShares::default() });
    })
}

/// Functions whose shares fall with their rank, sampled at random.
fn profile(functions: usize, windows: u32, samples: u64) -> (Vec<WindowSums>, Vec<Vec<Part>>) {
    let mut rng = fastrand::Rng::with_seed(2);
    let mut seen = vec![BTreeMap::<u32, Part>::new(); functions];
    let mut totals = vec![WindowSums::default(); windows as usize];
    for _ in 0..samples {
        let function = ((functions as f64).powf(rng.f64()) - 1.0) as usize; // shares fall as 1/rank
        let window = rng.u32(0..windows);
        let part = seen[function].entry(window).or_default();
        *part = Part { window, weight_ns: part.weight_ns + 2.2e6, samples: part.samples + 1, ..*part };
        let total = &mut totals[window as usize];
        *total = WindowSums { weight_ns: total.weight_ns + 2.2e6, samples: total.samples + 1, ..*total };
    }
    (totals, seen.into_iter().map(|parts| parts.into_values().collect()).collect())
}

fn median_us(repetitions: usize, mut job: impl FnMut()) -> f64 {
    let one = |_| {
        let start = Instant::now();
        job();
        start.elapsed().as_secs_f64() * 1e6
    };
    median(&(0..repetitions).map(one).collect::<Vec<_>>())
}
