//! Are ticks told apart that cannot be believed, and left alone that can? Programs that are locked to the kernel's tick and others,
//! sampled by both in simulation: after how much CPU time the audit finds the former, and how often in a day the latter.
//!
//! Options: `--runs 200` (of each locked program), `--hours 24` (of each other one), `--clock 50` (samples of the clock per
//! CPU-second).

use anyhow::{Result, ensure};
use profiler_core::rate::AUDIT_HZ;
use serde::Serialize;
use tests::experiment::{option, print, progress, row};
use tests::locked::{Program, locked, run, unlocked};

/// CPU time within which a lock must be found (s).
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

fn main() -> Result<()> {
    let (runs, hours, clock_hz) =
        (option("--runs", 200)?, option("--hours", 24.0)?, option("--clock", AUDIT_HZ)?);
    let found: Vec<Found> = locked().iter().map(|program| delays(program, clock_hz, runs)).collect();
    let mut rows = vec![["locked program", "median", "worst", "missed"].map(str::to_string).to_vec()];
    rows.extend(found.iter().map(|found| {
        let Found { program, median_s, worst_s, missed } = found;
        row([program, &format!("{median_s:.2} s"), &format!("{worst_s:.2} s"), missed])
    }));
    let mut alarms = Vec::new();
    for program in unlocked() {
        progress(&format!("{}: {hours} h", program.name));
        if let Some(finding) = run(&program, clock_hz, hours * 3_600.0, 7).finding {
            alarms.push(format!("{}: {finding:?}", program.name));
        }
    }
    let worst_s = found.iter().map(|found| found.worst_s).fold(0.0, f64::max);
    let missed: usize = found.iter().map(|found| found.missed).sum();
    let remarks = [
        format!("after {worst_s:.2} s of CPU time at worst ({WITHIN_S} s allowed), {missed} missed"),
        format!(
            "false alarms in {hours} h of CPU time of each of {} others: {}",
            unlocked().len(),
            alarms.len()
        ),
    ];
    print(&rows, &remarks, &found)?;
    ensure!(missed == 0 && worst_s <= WITHIN_S, "a lock was found too late, or not at all");
    ensure!(alarms.is_empty(), "false alarms: {alarms:?}");
    Ok(())
}

fn delays(program: &Program, clock_hz: f64, runs: u64) -> Found {
    let outcomes: Vec<_> = (0..runs).map(|seed| run(program, clock_hz, MOST_CPU_S, seed)).collect();
    let seen = outcomes.iter().filter(|outcome| outcome.finding.is_some());
    let mut delays: Vec<f64> = seen.map(|outcome| outcome.since_change_cpu_s).collect();
    delays.sort_by(f64::total_cmp);
    let median_s = delays.get(delays.len() / 2).copied().unwrap_or(f64::NAN);
    let worst_s = delays.last().copied().unwrap_or(f64::NAN);
    Found { program: program.name, median_s, worst_s, missed: outcomes.len() - delays.len() }
}
