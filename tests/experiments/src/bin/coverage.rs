//! Checks how often the intervals hold. Simulates programs of 8 to 50 functions for .5 to 300 s: visits to functions last .1 ms to 30 s at
//! random, or follow each other in rounds of .3 to 3 sampling periods. Counts how often all intervals of a table hold together, for this run
//! and for the long run; how often a watcher who checks every second is misled; and how often functions are wrongly called resolved.
//!
//! Options: `--runs 1000`, `--rate 450`, `--window 0` (ms; 0 for those of a real run), `--relative .2` (the watcher's goal), `--uneven 1` (every
//! second function in bouts of a tenth), `--shortest 0` and `--longest 60` (no shorter and no longer runs, s; 300 takes a quarter of an hour with
//! `--runs 60`), `--only "4 equal, visits of 5 ms"` (programs of such a name).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Result, ensure};
use profiler_core::stats::Goal;
use serde_json::json;
use tests::bouts::{Program, Sampling};
use tests::coverage::{Case, Found, shapes};
use tests::experiment::{option, print, progress, row};

const BOUTS_MS: [f64; 12] =
    [0.1, 1.0, 5.0, 20.0, 50.0, 70.0, 100.0, 150.0, 500.0, 3_000.0, 10_000.0, 30_000.0];
/// Visits of equal length, in random order.
const ALIKE_MS: [f64; 5] = [5.0, 50.0, 70.0, 100.0, 150.0];
/// Lengths of rounds, in sampling periods: in resonance with them, nearly so, and not.
const ROUNDS: [f64; 7] = [0.3, 0.5, 0.75, 1.0, 1.25, 2.0, 3.0];
const RUNS_S: [f64; 6] = [0.5, 1.2, 3.0, 10.0, 60.0, 300.0];
/// Share of the runs that may be misled.
const MISLED: f64 = 0.05;
/// Standard errors beyond that: of some thousand figures, chance brings none so far.
const CHANCE: f64 = 4.0;
/// Where a smaller share of the runs says anything of others, those that do are the ones that chance misled: they are held against all runs.
const FEW_TOLD: f64 = 0.1;

fn main() -> Result<()> {
    let runs = option("--runs", 1_000)?;
    let cases = cases()?;
    let found = simulate(&cases, runs);
    let heads = [
        "run, functions, kind",
        "this run",
        "width",
        "long run",
        "told",
        "width",
        "totals",
        "long run",
        "misordered",
        "peeking",
        "stopped",
        "wrong",
    ];
    let mut rows = vec![heads.map(str::to_string).to_vec()];
    rows.extend(cases.iter().zip(&found).map(|(case, found)| to_row(case, found)));
    let worst = |figure: fn(&Found) -> f64| found.iter().map(figure).fold(f64::NAN, f64::max);
    let remarks = [
        "promised: this run and long run .950 or more, where a tenth of the runs says anything of others; misordered, peeking and wrong .050 \
         or less; ± one standard error"
            .to_string(),
        "width: of the joint intervals, relative to Wilson's pointwise ones of as many independent samples".to_string(),
    ];
    let told: Vec<&Found> = found.iter().filter(|found| found.long_run_told >= FEW_TOLD).collect();
    let worst_told =
        |figure: fn(&Found) -> f64| told.iter().map(|found| figure(found)).fold(f64::NAN, f64::min);
    let figures = json!({
        "runs": runs,
        "programs": found.len(),
        "programs_told": told.len(),
        "this_run_worst": 1.0 - worst(|found| 1.0 - found.this_run),
        "totals_this_run_worst": 1.0 - worst(|found| 1.0 - found.totals_this_run),
        "totals_long_run_worst": worst_told(|found| found.totals_long_run),
        "long_run_worst": worst_told(|found| found.long_run),
        "misordered_worst": worst(|found| found.misordered),
        "peeking_worst": worst(|found| found.peeked_wrong),
        "stopped_wrong_worst": worst(|found| found.stopped_wrong),
    });
    print(&rows, &remarks, &figures)?;
    cases.iter().zip(&found).try_for_each(|(case, found)| verdict(&case.name, found))
}

fn verdict(name: &str, found: &Found) -> Result<()> {
    let of_told = |held: f64| {
        let is_judged = found.long_run_told >= FEW_TOLD;
        if is_judged { (1.0 - held, found.long_run_told) } else { ((1.0 - held) * found.long_run_told, 1.0) }
    };
    for (what, (misled, share_of_runs)) in [
        ("intervals of this run", (1.0 - found.this_run, 1.0)),
        ("intervals of this run's total times", (1.0 - found.totals_this_run, 1.0)),
        ("intervals of the long run", of_told(found.long_run)),
        ("intervals of the long run's total times", of_told(found.totals_long_run)),
        ("orders", (found.misordered, 1.0)),
        ("goals at any second", (found.peeked_wrong, 1.0)),
        ("goals where it stopped", (found.stopped_wrong, 1.0)),
    ] {
        let runs = found.runs as f64 * share_of_runs;
        let most = MISLED + CHANCE * (MISLED * (1.0 - MISLED) / runs).sqrt();
        ensure!(misled <= most, "{name}: {what} mislead in {misled:.3} of the runs, above {MISLED}");
    }
    Ok(())
}

/// Simulates the cases, one on each CPU at a time.
fn simulate(cases: &[Case], runs: usize) -> Vec<Found> {
    let (next, found) = (AtomicUsize::new(0), Mutex::new(vec![Found::default(); cases.len()]));
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(case) = cases.get(index) else { break };
            let seen = case.simulate(runs, 17);
            found.lock().unwrap_or_else(PoisonError::into_inner)[index] = seen;
            progress(&format!("{}: done", case.name));
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    found.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn cases() -> Result<Vec<Case>> {
    let (rate_hz, window_ms) = (option("--rate", 450.0)?, option("--window", 0.0)?);
    let goal = Goal { relative: option("--relative", 0.2)?, ..Goal::default() };
    let uneven = option("--uneven", 0)?;
    let (shortest_s, longest_s) = (option("--shortest", 0.0)?, option("--longest", 60.0)?);
    let only = option("--only", String::new())?;
    let mut cases = Vec::new();
    for run_s in RUNS_S.into_iter().filter(|run_s| (shortest_s..=longest_s).contains(run_s)) {
        let sampling = Sampling { rate_hz, run_s, window_ms };
        for (shape, shares) in shapes() {
            let visits = BOUTS_MS.map(|bout_ms| {
                let even = Program::new(&shares, bout_ms);
                let program = if uneven > 0 { even.uneven() } else { even };
                (format!("visits of {bout_ms} ms"), program)
            });
            let alike = ALIKE_MS.map(|bout_ms| {
                let program = Program::new(&shares, bout_ms).alike();
                (format!("visits of {bout_ms} ms each"), program)
            });
            let rounds = ROUNDS.map(|periods| {
                let round_ms = periods * 1e3 / rate_hz;
                (format!("rounds of {periods} periods"), Program::in_rounds(&shares, round_ms))
            });
            cases.extend(visits.into_iter().chain(alike).chain(rounds).map(|(kind, program)| {
                let name = format!("{run_s} s, {shape}, {kind}");
                Case { name, program, sampling, goal }
            }));
        }
    }
    cases.retain(|case| case.name.contains(&only));
    Ok(cases)
}

fn to_row(case: &Case, found: &Found) -> Vec<String> {
    let share = |share: f64| format!("{share:.3} ± {:.3}", found.error(share));
    row([
        &case.name,
        &share(found.this_run),
        &format!("{:.2}", found.this_run_width),
        &share(found.long_run),
        &format!("{:.2}", found.long_run_told),
        &format!("{:.2}", found.long_run_width),
        &share(found.totals_this_run),
        &share(found.totals_long_run),
        &share(found.misordered),
        &share(found.peeked_wrong),
        &format!("{:.2}", found.stopped),
        &share(found.stopped_wrong),
    ])
}
