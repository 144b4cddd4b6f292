//! Are ticks told apart that cannot be believed, and left alone that can? Programs that are locked to the kernel's tick and others,
//! sampled by both in simulation: after how much CPU time the audit finds the former, and how often in a day the latter. And whether
//! the intervals of a profile hold the truth, ticks or none.
//!
//! Options: `--runs 200` (of each locked program), `--hours 24` (of each other one), `--clock 50` (samples of the clock per
//! CPU-second), `--every 1` (one in how many ticks is sampled), `--cpu 60` (CPU time of a run for the intervals, s).

use anyhow::{Result, ensure};
use profiler_core::rate::AUDIT_HZ;
use profiler_core::stats::Confidence;
use serde::Serialize;
use tests::experiment::{option, percent, print, progress, row};
use tests::locked::{Program, Rates, hardly_locked, locked, run, run_whole, unlocked};

/// CPU time within which a lock must be found where every tick is sampled (s).
const WITHIN_S: f64 = 5.0;
/// A run in which nothing is found ends there (s).
const MOST_CPU_S: f64 = 1_000.0;

#[derive(Serialize)]
struct Found {
    program: &'static str,
    median_s: f64,
    worst_s: f64,
    missed: usize,
}

/// How often the intervals must hold together, at 95%.
const COVERED: f64 = 0.95;

#[derive(Serialize)]
struct Covered {
    program: &'static str,
    /// Runs whose intervals all hold, and those that have ticks in them (ratios).
    holds_ratio: f64,
    with_ticks_ratio: f64,
}

fn main() -> Result<()> {
    let (runs, hours) = (option("--runs", 200)?, option("--hours", 24.0)?);
    let rates = Rates { clock_hz: option("--clock", AUDIT_HZ)?, every: option("--every", 1.0)? };
    let found: Vec<Found> = locked().iter().map(|program| delays(program, rates, runs)).collect();
    let mut rows = vec![["locked program", "median", "worst", "missed"].map(str::to_string).to_vec()];
    rows.extend(found.iter().map(|found| {
        let Found { program, median_s, worst_s, missed } = found;
        row([program, &format!("{median_s:.2} s"), &format!("{worst_s:.2} s"), missed])
    }));
    let programs: Vec<Program> = locked().into_iter().chain(hardly_locked()).chain(unlocked()).collect();
    let cpu_s: f64 = option("--cpu", 60.0)?;
    let covered: Vec<Covered> =
        programs.iter().map(|program| coverage(program, rates, cpu_s, runs)).collect();
    rows.push(Vec::new());
    rows.push(["program", "intervals hold", "with ticks"].map(str::to_string).to_vec());
    rows.extend(covered.iter().map(|covered| {
        row([&covered.program, &percent(covered.holds_ratio), &percent(covered.with_ticks_ratio)])
    }));
    let mut alarms = Vec::new();
    for program in unlocked() {
        progress(&format!("{}: {hours} h", program.name));
        if let Some(finding) = run(&program, rates, hours * 3_600.0, 7).finding {
            alarms.push(format!("{}: {finding:?}", program.name));
        }
    }
    let within_s = WITHIN_S * rates.every.max(1.0);
    let worst_s = found.iter().map(|found| found.worst_s).fold(0.0, f64::max);
    let missed: usize = found.iter().map(|found| found.missed).sum();
    let least = covered.iter().map(|covered| covered.holds_ratio).fold(1.0, f64::min);
    let remarks = [
        format!("all intervals of a run hold in {} of {runs} runs at least", percent(least)),
        format!("after {worst_s:.2} s of CPU time at worst ({within_s} s allowed), {missed} missed"),
        format!(
            "false alarms in {hours} h of CPU time of each of {} others: {}",
            unlocked().len(),
            alarms.len()
        ),
    ];
    print(&rows, &remarks, &(found, covered))?;
    ensure!(least >= COVERED, "intervals hold too seldom");
    ensure!(missed == 0 && worst_s <= within_s, "a lock was found too late, or not at all");
    ensure!(alarms.is_empty(), "false alarms: {alarms:?}");
    Ok(())
}

fn coverage(program: &Program, rates: Rates, cpu_s: f64, runs: u64) -> Covered {
    progress(&format!("{}: intervals", program.name));
    let outcomes = (0..runs).map(|seed| run_whole(program, rates, cpu_s, seed).covers(Confidence::default()));
    let (mut holds, mut with_ticks) = (0, 0);
    for (covers, has_ticks) in outcomes {
        holds += u64::from(covers);
        with_ticks += u64::from(has_ticks);
    }
    let ratio = |count: u64| count as f64 / runs.max(1) as f64;
    Covered { program: program.name, holds_ratio: ratio(holds), with_ticks_ratio: ratio(with_ticks) }
}

fn delays(program: &Program, rates: Rates, runs: u64) -> Found {
    let outcomes: Vec<_> = (0..runs).map(|seed| run(program, rates, MOST_CPU_S, seed)).collect();
    let seen = outcomes.iter().filter(|outcome| outcome.finding.is_some());
    let mut delays: Vec<f64> = seen.map(|outcome| outcome.late_s()).collect();
    delays.sort_by(f64::total_cmp);
    let median_s = delays.get(delays.len() / 2).copied().unwrap_or(f64::NAN);
    let worst_s = delays.last().copied().unwrap_or(f64::NAN);
    Found { program: program.name, median_s, worst_s, missed: outcomes.len() - delays.len() }
}
