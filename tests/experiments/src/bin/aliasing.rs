//! Does the profiler lock onto programs that are periodic themselves? 35 program periods from 0.5 to 50 ms at three
//! rates, under a fixed period and under the profiler's random ones: the root mean square error of a function's share,
//! in binomial standard deviations. The profiler's must stay within 1.5.
//!
//! Options: `--runs 500` (of 30 CPU-seconds, for each program).

use anyhow::{Result, ensure};
use serde::Serialize;
use tests::aliasing::{Clock, error_sd, program_periods_ns};
use tests::experiment::{option, print, progress, row};

const RATES_HZ: [f64; 3] = [100.0, 450.0, 1_000.0];
const ALLOWED_SD: f64 = 1.5;
/// Rows of the table for each rate: those where the profiler errs most.
const SHOWN: usize = 6;
/// A fixed period errs by so much that few runs tell.
const FIXED_RUNS: u64 = 20;

#[derive(Serialize)]
struct Found {
    rate_hz: f64,
    program_ms: f64,
    fixed_error_sd: f64,
    dithered_error_sd: f64,
}

fn main() -> Result<()> {
    let runs = option("--runs", 500)?;
    let (mut rows, mut found) =
        (vec![["rate", "program", "fixed", "dithered"].map(str::to_string).to_vec()], vec![]);
    for rate_hz in RATES_HZ {
        let mut at_rate = measure(rate_hz, runs);
        at_rate.sort_by(|a, b| b.dithered_error_sd.total_cmp(&a.dithered_error_sd));
        rows.extend(at_rate.iter().take(SHOWN).map(to_row));
        progress(&format!("{rate_hz}/s: {} programs", at_rate.len()));
        found.extend(at_rate);
    }
    let worst = |error: fn(&Found) -> f64| found.iter().map(error).fold(0.0, f64::max);
    let (fixed, dithered) = (worst(|found| found.fixed_error_sd), worst(|found| found.dithered_error_sd));
    let remark = format!(
        "worst of all {}: {dithered:.2} sd ({ALLOWED_SD} allowed), {fixed:.0} with a fixed period",
        found.len()
    );
    print(&rows, &[remark], &found)?;
    ensure!(dithered <= ALLOWED_SD, "the profiler locks onto a periodic program: {dithered:.2} sd");
    Ok(())
}

fn measure(rate_hz: f64, runs: u64) -> Vec<Found> {
    let found = |program_ns: f64| Found {
        rate_hz,
        program_ms: program_ns * 1e-6,
        fixed_error_sd: error_sd(Clock::Fixed, rate_hz, program_ns, FIXED_RUNS.min(runs)),
        dithered_error_sd: error_sd(Clock::Dithered, rate_hz, program_ns, runs),
    };
    program_periods_ns(rate_hz).into_iter().map(found).collect()
}

fn to_row(found: &Found) -> Vec<String> {
    row([
        &format!("{:.0}/s", found.rate_hz),
        &format!("{:.3} ms", found.program_ms),
        &format!("{:.1}", found.fixed_error_sd),
        &format!("{:.2}", found.dithered_error_sd),
    ])
}
