//! The lines of `--stats`, as far as the tests read them.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use profiler_core::profile::OverheadParts;
use serde::Deserialize;
use serde_json::Value;

/// The last line: what the run was and what it cost.
#[derive(Clone, Debug, Deserialize)]
pub struct Summary {
    /// Samples in the profile.
    pub samples: u64,
    /// Samples the kernel dropped.
    pub lost: u64,
    /// Samples whose stack lacks outer frames.
    pub truncated: u64,
    /// Samples whose outer frames were not in their copy.
    pub outer_frames_from_earlier: u64,
    /// The same by the reason.
    #[serde(default)]
    pub truncated_by: BTreeMap<String, u64>,
    /// Samples that hit other processes (attach mode `cpu`).
    pub foreign_samples: u64,
    /// Frames that the kernel walked.
    #[serde(default)]
    pub walked_frames: u64,
    /// Bytes of stack that it copied.
    #[serde(default)]
    pub copied_bytes: u64,
    /// CPU time that the scheduler charged to the target (s).
    pub target_cpu_s: f64,
    /// CPU time that sampling added, taken out of the functions' (s).
    pub sampling_cpu_s: f64,
    /// CPU time that is in no function, since no sample could cover it (s).
    #[serde(default)]
    pub not_sampled_cpu_s: f64,
    /// Sum of the weights before they were reconciled with the scheduler's figure (s).
    pub weight_s: f64,
    /// CPU time of the profiler while sampling (s).
    pub self_cpu_s: f64,
    /// CPU time of the profiler before sampling began (s).
    pub setup_cpu_s: f64,
    /// Mean cost of a sample charged to the target (µs).
    pub overhead_us: f64,
    /// Its standard error (µs).
    pub overhead_se_us: f64,
    /// Whether the kernel's handler was timed, or why not.
    #[serde(default)]
    pub handler_time: String,
    /// What it took for a sample (µs), where it was timed.
    #[serde(default)]
    pub handler_us: Option<f64>,
    /// Its standard error (µs).
    #[serde(default)]
    pub handler_se_us: Option<f64>,
    /// Samples it was timed for.
    #[serde(default)]
    pub handler_samples: u64,
    /// Share of the target's CPU time spent on sampling.
    pub overhead_ratio: f64,
    /// What it is made of.
    pub overhead_parts: OverheadParts,
    /// The worst second.
    pub overhead_worst_1s_ratio: f64,
    /// The worst ten seconds.
    pub overhead_worst_10s_ratio: f64,
    /// What a sample was expected to cost (µs).
    pub predicted_overhead_us: f64,
    /// The share that was expected.
    pub predicted_overhead_ratio: f64,
    /// The rate that was expected.
    pub predicted_rate_hz: f64,
    /// The budget.
    pub budget_ratio: f64,
    /// Share of the target's CPU time by which sampling slowed it.
    pub slowdown_ratio: f64,
    /// Its bound.
    pub slowdown_budget_ratio: f64,
    /// The profiler's own CPU time, as a share of one CPU.
    pub own_cpu_ratio: f64,
    /// Its bound; 0 if it has none.
    pub own_cpu_budget_ratio: f64,
    /// Samples that the law asks for at the target's CPU time.
    pub law_samples: f64,
    /// The last rate.
    pub rate_hz: f64,
    /// What bound it.
    pub bound_by: String,
    /// How the events were attached.
    pub attach_mode: String,
    /// How the stacks were unwound.
    pub unwind: String,
    /// Why sampling stopped.
    pub stopped: String,
    /// What was degraded.
    pub notes: Vec<String>,
    /// The profile's table.
    pub functions: Vec<Function>,
}

/// A line of the profile's table.
#[derive(Clone, Debug, Deserialize)]
pub struct Function {
    /// Name, demangled.
    pub name: String,
    /// The file that holds the code.
    pub module: String,
    /// Estimated CPU time (s).
    pub cpu_s: f64,
    /// Lower end of its interval (s), where it has one.
    pub cpu_s_low: Option<f64>,
    /// Upper end of its interval (s), where it has one.
    pub cpu_s_high: Option<f64>,
    /// Share of the target's CPU time.
    pub share: f64,
}

/// Everything in a stats file.
#[derive(Clone, Debug)]
pub struct Stats {
    /// The decisions and readings, in order, as they are.
    pub lines: Vec<Value>,
    /// The summary.
    pub summary: Summary,
}

impl Stats {
    /// Parses a stats file: JSON objects, a line each, the last of type `summary`.
    pub fn parse(text: &str) -> Result<Stats> {
        let mut lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).with_context(|| format!("not JSON: {line}")))
            .collect::<Result<_>>()?;
        let last = lines.pop().context("the stats file is empty")?;
        anyhow::ensure!(last["type"] == "summary", "the last line is no summary: {last}");
        let summary = serde_json::from_value(last).context("the summary lacks a key")?;
        Ok(Stats { lines, summary })
    }
}
