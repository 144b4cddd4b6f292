//! The law's rate for each target, from what was observed of it.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use profiler_core::rate::budget_division::{Demand, divide};
use profiler_core::rate::model::Criterion;
use serde_json::Value;

/// The twins compute in eight functions, an eighth of the time in each: the spread of any of them, √((1 − p)/p).
const SPREAD: f64 = 2.645_751;
/// CPU time that a profile sums up (s), as in the settings of the run.
const HORIZON_S: f64 = 1.0;
/// Controllers aim at this share of a budget.
const MARGIN: f64 = 0.9;
/// Standard errors between a cost and its upper bound, as the controller has it.
const UPPER_SE: f64 = 2.0;
/// Fewest CPUs that the cost of a target is divided by.
const FLOOR_CPUS: f64 = 0.1;

/// A target, as far as the law asks.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'d> {
    /// Bound on its slowdown (ratio).
    pub budget_ratio: f64,
    /// CPUs that it kept busy, by its own clock.
    pub busy_cpus: f64,
    /// What switches and records that are no samples cost (ratio of its CPU time).
    pub events_ratio: f64,
    /// The controller's last estimate of its costs.
    pub decision: &'d Value,
}

/// Rates (samples per CPU-second) under a host's budget of so many CPUs.
pub fn rates_hz(
    seen: &BTreeMap<usize, Seen<'_>>,
    host_cpus: f64,
    housekeeping_cpus: f64,
) -> Result<BTreeMap<usize, f64>> {
    let demands = seen.values().map(demand).collect::<Result<Vec<_>>>()?;
    let shares = divide(&demands, MARGIN * (host_cpus - housekeeping_cpus).max(0.0));
    Ok(seen.keys().copied().zip(shares.of.iter().map(|share| share.rate_hz)).collect())
}

fn demand(seen: &Seen<'_>) -> Result<Demand> {
    let figure = |key: &str| seen.decision[key].as_f64().with_context(|| format!("no {key} in a decision"));
    let counted_cpus = seen.busy_cpus.max(FLOOR_CPUS);
    // A budget is kept with the upper bound of a cost, and switches take their part of it first.
    let overhead_us = figure("overhead_us")?;
    let target_us = overhead_us + UPPER_SE * figure("overhead_se_us")?;
    Ok(Demand {
        slowdown_ratio: (MARGIN * seen.budget_ratio - seen.events_ratio).max(0.0),
        busy_cpus: seen.busy_cpus,
        counted_cpus,
        sample_s: figure("total_hi_us")? * 1e-6,
        target_s: target_us * 1e-6,
        fixed_cpus: figure("fixed_ratio")? * counted_cpus,
        error: 2.0 * Criterion::default().r() * SPREAD / HORIZON_S.sqrt(),
        ..Demand::default()
    })
}
