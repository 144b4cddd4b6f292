//! The parts of the daemon's responses that are printed as text. A daemon of another version may send more,
//! or less.

use std::collections::BTreeMap;

use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ShownStatus {
    pub(super) version: String,
    pub(super) pid: u32,
    pub(super) uptime_s: f64,
    pub(super) ready: bool,
    pub(super) degraded: Vec<String>,
    pub(super) settings: ShownSettings,
    pub(super) targets: ShownCounts,
    pub(super) host: ShownHost,
    pub(super) memory: ShownMemory,
    pub(super) store: ShownStore,
    pub(super) exports: Vec<ShownExport>,
    pub(super) fleet: Option<ShownFleet>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ShownFleet {
    pub(super) prometheus: Option<String>,
    pub(super) label: String,
    pub(super) age_s: Option<f64>,
    pub(super) services: u64,
    pub(super) members: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ShownSettings {
    pub(super) file: Option<String>,
    pub(super) read_unix_s: f64,
    pub(super) problem: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ShownCounts {
    pub(super) sampled: u64,
    pub(super) waiting: u64,
    pub(super) left_out: u64,
    pub(super) failed: u64,
    pub(super) dropped: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ShownHost {
    pub(super) cpus: u64,
    pub(super) budget_ratio: f64,
    pub(super) overhead_last_10s_ratio: f64,
    pub(super) overhead_worst_10s_ratio: f64,
    pub(super) self_cpu_s: f64,
    pub(super) setup_cpu_s: f64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ShownMemory {
    pub(super) resident_bytes: u64,
    pub(super) limit_bytes: u64,
    pub(super) ring_bytes: u64,
    pub(super) symbol_bytes: u64,
    pub(super) pressed: u64,
    pub(super) open_files: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ShownStore {
    pub(super) folder: String,
    pub(super) problem: Option<String>,
    pub(super) files: u64,
    pub(super) bytes: u64,
    pub(super) limit_bytes: u64,
    pub(super) queued_bytes: u64,
    pub(super) unnamed_files: u64,
    pub(super) dropped_queue: u64,
    pub(super) dropped_full: u64,
    pub(super) dropped_refused: u64,
    pub(super) damaged: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ShownExport {
    pub(super) name: String,
    pub(super) to: String,
    pub(super) pushed: u64,
    pub(super) refused: u64,
    pub(super) left_out: u64,
    pub(super) dropped: u64,
    pub(super) sent_bytes: u64,
    pub(super) pending: u64,
    pub(super) lag_s: f64,
    pub(super) problem: Option<String>,
    pub(super) retry_s: Option<f64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Targets {
    pub(super) targets: Vec<ShownTarget>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ShownTarget {
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) state: String,
    pub(super) reason: Option<String>,
    pub(super) taken_by: Vec<String>,
    pub(super) ends_in_s: Option<f64>,
    pub(super) processes: u64,
    #[serde(flatten)]
    pub(super) sampling: ShownSampling,
    pub(super) fleet: Option<ShownMembership>,
    pub(super) own_budget_ratio: f64,
    #[serde(flatten)]
    pub(super) totals: ShownTotals,
}

/// How a target is sampled at present.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ShownSampling {
    pub(super) attach_mode: Option<String>,
    pub(super) unwind: Option<String>,
    pub(super) rate_hz: Option<f64>,
    pub(super) slowdown_ratio: Option<f64>,
    pub(super) own_cpu_ratio: Option<f64>,
}

/// Counters of a target.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ShownTotals {
    pub(super) cpu_s: f64,
    pub(super) cpu_s_low: f64,
    pub(super) cpu_s_high: f64,
    pub(super) samples: u64,
    pub(super) lost: u64,
}

/// How many replicas a target is one of.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ShownMembership {
    pub(super) replicas: f64,
    pub(super) source: String,
    pub(super) reason: Option<String>,
}

/// What somebody asked for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ShownAttached {
    pub(super) name: String,
    pub(super) takes_from: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Decisions {
    pub(super) shared_by: usize,
    pub(super) decisions: Vec<ShownDecision>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ShownDecision {
    pub(super) at_unix_s: f64,
    pub(super) rate_hz: f64,
    pub(super) optimum_rate_hz: f64,
    pub(super) reason: String,
    pub(super) bound_by: String,
    pub(super) overhead_us: f64,
    pub(super) overhead_se_us: f64,
    pub(super) slowdown_ratio: f64,
    pub(super) budget_ratio: f64,
    pub(super) utilisation_cpus: f64,
    pub(super) replicas: f64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Message {
    pub(super) message: String,
}
