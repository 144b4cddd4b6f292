//! The daemon and its targets as the interface, the metrics and `ctl` show them. Counters count since the daemon began;
//! every key has its unit in its name.

use std::collections::BTreeMap;

use profile_files::store::{Counters, UnmergedFiles};
use profiler_core::attach::AttachMode;
use profiler_core::profile::OverheadParts;
use profiler_core::rate::Decision;
use profiler_core::unwind::method::Method;
use serde::Serialize;

use crate::containers::RuntimeStatus;
use crate::fleet::{FleetStatus, Membership};

/// Why a target is sampled or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TargetState {
    /// No process belongs to it at present.
    #[default]
    Waiting,
    /// It is sampled.
    Sampled,
    /// There are more targets than the settings allow, or memory is short, and others are more active.
    LeftOut,
    /// Its events could not be opened; this is tried again, ever more rarely.
    Failed,
}

/// Where a target comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Origin {
    /// From the settings.
    #[default]
    Settings,
    /// It was requested.
    Request,
}

/// A target.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct TargetStatus {
    /// What it is called.
    pub(crate) name: String,
    /// Its labels.
    pub(crate) labels: BTreeMap<String, String>,
    /// Where it comes from.
    pub(crate) origin: Origin,
    /// Whether it is sampled.
    pub(crate) state: TargetState,
    /// Why it is not sampled, or what is wrong.
    pub(crate) reason: Option<String>,
    /// Requested targets that have taken processes from it, until they end.
    pub(crate) taken_by: Vec<String>,
    /// When watching ends (s from now).
    pub(crate) ends_in_s: Option<f64>,
    /// Processes that belong to it.
    pub(crate) processes: usize,
    /// How it is sampled at present.
    #[serde(flatten)]
    pub(crate) sampling: SamplingStatus,
    /// Its number of replicas; none without a fleet in the settings.
    pub(crate) fleet: Option<Membership>,
    /// Share of its CPU time that everything spent on it may take, as the host's budget leaves it.
    pub(crate) budget_ratio: f64,
    /// Its own budget: bound on the slowdown.
    pub(crate) own_budget_ratio: f64,
    /// What was counted of it since the daemon began.
    #[serde(flatten)]
    pub(crate) totals: TargetTotals,
}

/// How a target is sampled, and what that costs; all are none while it is not sampled.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct SamplingStatus {
    /// How events are attached.
    pub(crate) attach_mode: Option<AttachMode>,
    /// How stacks are unwound.
    pub(crate) unwind: Option<Method>,
    /// Samples per CPU-second.
    pub(crate) rate_hz: Option<f64>,
    /// The rate at which the error would be smallest, within its budget.
    pub(crate) optimum_rate_hz: Option<f64>,
    /// What a sample costs it (µs), and the standard error.
    pub(crate) overhead_us: Option<f64>,
    /// Standard error of the above (µs).
    pub(crate) overhead_se_us: Option<f64>,
    /// Everything spent on it in the last second, over its CPU time; see `overhead_parts` for all of the time.
    pub(crate) overhead_last_1s_ratio: Option<f64>,
    /// The largest such ratio of any second.
    pub(crate) overhead_worst_1s_ratio: Option<f64>,
    /// What the overhead is made of, over the CPU time since it was attached to.
    pub(crate) overhead_parts: Option<OverheadParts>,
    /// Share of its CPU time that samples, context switches and mapping records took from it in the last ten seconds.
    pub(crate) slowdown_ratio: Option<f64>,
    /// The largest such share of any ten seconds.
    pub(crate) slowdown_worst_10s_ratio: Option<f64>,
    /// CPU time that the profiler spent on it in the last ten seconds, samples of other processes included and set-up not
    /// (share of one CPU).
    pub(crate) own_cpu_ratio: Option<f64>,
}

/// Counters of a target since the daemon began.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct TargetTotals {
    /// CPU time that it used while it was watched (s).
    pub(crate) cpu_s: f64,
    /// Where that lies, at 95%: processes that ended before their CPU time was read are known by their samples alone (s).
    pub(crate) cpu_s_low: f64,
    /// Upper end of the above (s).
    pub(crate) cpu_s_high: f64,
    /// What was spent on it (s of CPU time), in itself and elsewhere.
    pub(crate) overhead_s: f64,
    /// Samples that were taken.
    pub(crate) samples: u64,
    /// Records that the kernel dropped.
    pub(crate) lost: u64,
    /// Samples without outer frames.
    pub(crate) truncated: u64,
    /// Samples whose innermost function has no name, of those that were written.
    pub(crate) unnamed: u64,
    /// Windows that were handed to the store.
    pub(crate) windows: u64,
}

/// What the controller decided, and from what.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct DecisionEntry {
    /// Wall-clock time (s since the epoch).
    pub(crate) at_unix_s: f64,
    /// The decision with its inputs.
    #[serde(flatten)]
    pub(crate) decision: Decision,
}

/// The daemon.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Status {
    /// Its version.
    pub(crate) version: String,
    /// Its process.
    pub(crate) pid: u32,
    /// How old these figures are: the loop publishes them each second (s).
    pub(crate) age_s: f64,
    /// How long it has run (s).
    pub(crate) uptime_s: f64,
    /// Whether it samples what it can, and keeps what it samples: not if the store cannot be written to, or if targets failed and
    /// none is sampled.
    pub(crate) ready: bool,
    /// What is not as it should be, in lines for a person.
    pub(crate) degraded: Vec<String>,
    /// The settings.
    pub(crate) settings: SettingsStatus,
    /// Targets by state.
    pub(crate) targets: TargetCounts,
    /// What all of it costs.
    pub(crate) host: HostStatus,
    /// What it takes of memory.
    pub(crate) memory: MemoryStatus,
    /// What reads symbols for it.
    pub(crate) symbolizer: SymbolizerStatus,
    /// What is kept.
    pub(crate) store: StoreStatus,
    /// What is sent.
    pub(crate) exports: Vec<ExportStatus>,
    /// Container runtimes that are queried for names.
    pub(crate) runtimes: Vec<RuntimeStatus>,
    /// Where numbers of replicas come from; none without a fleet in the settings.
    pub(crate) fleet: Option<FleetStatus>,
}

/// Which settings are in force.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct SettingsStatus {
    /// Their file; none where the defaults are in force.
    pub(crate) file: Option<String>,
    /// When they were read (s since the epoch).
    pub(crate) read_unix_s: f64,
    /// Why the last attempt to read them again failed: the older ones are in force.
    pub(crate) problem: Option<String>,
    /// How often they were read again, and how often that failed.
    pub(crate) reloads: u64,
    /// Failures among them.
    pub(crate) reloads_failed: u64,
}

/// Targets by state.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct TargetCounts {
    /// Sampled.
    pub(crate) sampled: usize,
    /// Waiting for a process.
    pub(crate) waiting: usize,
    /// Left out.
    pub(crate) left_out: usize,
    /// Failed.
    pub(crate) failed: usize,
    /// Dropped by the rules for labels: none of the targets.
    pub(crate) dropped: usize,
}

/// What profiling costs the host. Ratios are of the CPU time of all its CPUs.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct HostStatus {
    /// CPUs that are online.
    pub(crate) cpus: usize,
    /// Share that profiling may use.
    pub(crate) budget_ratio: f64,
    /// What was spent in the last ten seconds.
    pub(crate) overhead_last_10s_ratio: f64,
    /// The most that was spent in any ten seconds.
    pub(crate) overhead_worst_10s_ratio: f64,
    /// Charged to targets and non-target processes since it began (s).
    pub(crate) charged_s: f64,
    /// Own CPU time since it began (s).
    pub(crate) self_cpu_s: f64,
    /// The part of it for set-up, like reading unwind tables, which the budget counts over the minutes that follow (s).
    pub(crate) setup_cpu_s: f64,
    /// The part of it that is spent for no target (s).
    pub(crate) housekeeping_cpu_s: f64,
    /// CPU time that all programs of the host but this one have used since it began (s).
    pub(crate) busy_cpu_s: f64,
    /// CPU time that all targets together have used since it began (s).
    pub(crate) targets_cpu_s: f64,
}

/// The process that reads symbol tables and debug information.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct SymbolizerStatus {
    /// Whether they are read in a process of their own; if not, the daemon reads them itself.
    pub(crate) apart: bool,
    /// Times that it was started.
    pub(crate) started: u64,
    /// Times that a file has ended it, or kept it for too long.
    pub(crate) broken: u64,
}

/// Memory of the process (bytes).
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct MemoryStatus {
    /// Resident.
    pub(crate) resident_bytes: u64,
    /// Rings, which the kernel counts in no process.
    pub(crate) ring_bytes: u64,
    /// Limit for both together.
    pub(crate) limit_bytes: u64,
    /// Unwind tables and names.
    pub(crate) symbol_bytes: u64,
    /// Times that something was given up because of the limit.
    pub(crate) pressed: u64,
    /// Descriptors that are open.
    pub(crate) open_files: u64,
}

/// The store, and what waits for it.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct StoreStatus {
    /// Its folder.
    pub(crate) folder: String,
    /// Why it cannot be written to at present.
    pub(crate) problem: Option<String>,
    /// Files.
    pub(crate) files: usize,
    /// Room that they take (bytes).
    pub(crate) bytes: u64,
    /// Room that they may take (bytes).
    pub(crate) limit_bytes: u64,
    /// Present length of a target's window (s): as configured, or longer if the host's budget requires it.
    pub(crate) window_s: f64,
    /// Windows that wait (bytes, about).
    pub(crate) queued_bytes: u64,
    /// Windows that wait for their names and are on the disk without.
    pub(crate) unnamed_files: usize,
    /// Windows that could not be written before they were named: they waited in memory alone.
    pub(crate) unspooled: u64,
    /// Windows that were dropped because too many waited.
    pub(crate) dropped_queue: u64,
    /// Files in its folder that cannot be read, and are left alone.
    pub(crate) left_alone_files: usize,
    /// What happened to it lately that should not, in lines for a person.
    #[serde(skip)]
    pub(crate) notes: Vec<String>,
    /// Event counters of the store.
    #[serde(flatten)]
    pub(crate) counters: Counters,
    /// Files that wait to be merged.
    #[serde(flatten)]
    pub(crate) waiting: UnmergedFiles,
}

/// An export. Windows are counted since the daemon began.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct ExportStatus {
    /// Its name.
    pub(crate) name: String,
    /// Host and port of the backend.
    pub(crate) to: String,
    /// Windows that were acknowledged.
    pub(crate) pushed: u64,
    /// Windows that the backend did not take.
    pub(crate) refused: u64,
    /// Windows that the export's rules drop.
    pub(crate) left_out: u64,
    /// Windows that were gone from the store before they were sent.
    pub(crate) dropped: u64,
    /// Bytes of windows that were acknowledged.
    pub(crate) sent_bytes: u64,
    /// Windows that wait.
    pub(crate) pending: u64,
    /// How long ago the oldest of these ended (s).
    pub(crate) lag_s: f64,
    /// Why nothing is sent at present.
    pub(crate) problem: Option<String>,
    /// When it is tried again (s from now).
    pub(crate) retry_s: Option<f64>,
}
