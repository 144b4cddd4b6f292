//! What a run was, how it went and what it cost.

use serde::{Deserialize, Serialize};

use super::{Measure, TruncatedBy};
use crate::rate::CostMode;

/// What a run was, how it went and what it cost. Keys of [`Run`] are those of the summary line of `--stats`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Run {
    /// The command that was profiled, or the processes that were attached to.
    pub target: String,
    /// What [`WeightedStack::cpu_ns`](super::WeightedStack::cpu_ns) is.
    #[serde(skip)]
    pub measure: Measure,
    /// Wall-clock start of sampling, ns since the Unix epoch.
    pub start_unix_ns: u64,
    /// Wall-clock length of sampling (s).
    pub duration_s: f64,
    /// Windows of time that it sums up, as the notes count them; 0 where it is a run of its own.
    pub merged_windows: u64,
    /// How it was sampled, and why sampling stopped.
    #[serde(flatten)]
    pub how: HowSampled,
    /// Samples, and what became of them.
    #[serde(flatten)]
    pub counts: SampleCounts,
    /// Mappings and files that were met, and the memory that their tables and symbols took.
    #[serde(flatten)]
    pub files: FileFigures,
    /// CPU time of the target and of the profiler.
    #[serde(flatten)]
    pub cpu: CpuTimes,
    /// What a sample cost.
    #[serde(flatten)]
    pub cost: CostFigures,
    /// What all of it cost, and what it might cost.
    #[serde(flatten)]
    pub overhead: OverheadFigures,
    /// The sampling rate, and what chose it.
    #[serde(flatten)]
    pub rate: RateFigures,
    /// What cost and rate were expected to be.
    #[serde(flatten)]
    pub predicted: PredictedFigures,
    /// Rate over time: every change, for the profile's comment fields.
    #[serde(skip)]
    pub rate_history: Vec<RateChange>,
    /// One-line notes for the person: what was degraded and what would mend it.
    pub notes: Vec<String>,
}

/// How a run was sampled, and why sampling stopped.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct HowSampled {
    /// How the events are attached: `task` or `cpu`.
    pub attach_mode: String,
    /// The sampling event: `cpu-clock`, or `timer-signal` for timers on the threads' CPU time.
    pub event: String,
    /// How the stacks are unwound: `fp`, `dwarf`, or `trial` (both).
    pub unwind: String,
    /// Bytes of stack copied per sample, last (0 with frame pointers).
    pub stack_copy_bytes: u64,
    /// Seed of the random periods.
    pub seed: u64,
    /// Level of the intervals in `functions`.
    pub confidence: f64,
    /// How well the largest functions shall be known: half an interval as a ratio of the function's long-run share; 0 where
    /// the run has no such goal.
    pub precision_goal_ratio: f64,
    /// Why sampling stopped: `target_ended`, `duration`, `signal` or `precise`.
    pub stopped: String,
}

/// Samples of a run, and what became of them.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct SampleCounts {
    /// Samples of the target in the profile.
    pub samples: u64,
    /// Samples that the kernel dropped because a ring buffer was full.
    pub lost: u64,
    /// Interrupts in code that may not be sampled: they slow the target down as well, and bring no sample.
    pub unseen_interrupts: u64,
    /// Samples with a stack that lacks outer frames.
    pub truncated: u64,
    /// The same by the reason.
    pub truncated_by: TruncatedBy,
    /// Share of the samples with a stack that reaches its outermost frame.
    pub complete_ratio: f64,
    /// Samples with outer frames that were cut off and taken from an earlier sample of the thread, which had its frames at the same
    /// places of the stack. Their stacks count as complete.
    pub outer_frames_from_earlier: u64,
    /// Records that could not be decoded.
    pub undecodable: u64,
    /// Times the kernel throttled an event.
    pub throttled: u64,
    /// Samples that hit other processes (attach mode `cpu`); their cost counts as overhead.
    pub foreign_samples: u64,
    /// Frames that the kernel walked for the target's samples.
    pub walked_frames: u64,
    /// Bytes of stack that it copied for them.
    pub copied_bytes: u64,
}

/// Mappings and files that a run met, and the memory that their tables and symbols took.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct FileFigures {
    /// Times that the mappings of a process were read again from `/proc`, because records of them may have been missed.
    pub maps_reread: u64,
    /// Mappings of processes that had too many.
    pub mappings_dropped: u64,
    /// Executables and libraries that were met, each build once.
    pub objects: u64,
    /// Of these, files that had to be closed for others and were gone when they were asked for again.
    pub files_lost: u64,
    /// The most that unwind tables and symbols took of memory together, as far as it is accounted for (bytes).
    pub symbol_bytes_peak: u64,
    /// How often unwind tables gave way to those of heavier objects.
    pub symbol_evictions: u64,
    /// How often unwind tables were read after all that had given way, or for which there was no room at first.
    pub symbol_rereads: u64,
}

/// CPU time of the target and of the profiler in a run.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct CpuTimes {
    /// CPU time that the scheduler charged to the target while sampled (s).
    pub target_cpu_s: f64,
    /// CPU time that sampling added, taken out of the functions' CPU time (s): what was charged to the target, or the part
    /// of it that its samples stand for where the kernel was not sampled.
    pub sampling_cpu_s: f64,
    /// Standard error of `sampling_cpu_s` (s).
    pub sampling_cpu_se_s: f64,
    /// CPU time of the target that no sample could stand for, and that is in no function (s): where samples are taken in its processes, that
    /// of processes and threads without the code that takes them.
    pub not_sampled_cpu_s: f64,
    /// Sum of the samples' weights before it was reconciled with `target_cpu_s` (s).
    pub weight_s: f64,
    /// CPU time of the profiler while sampling (s).
    pub self_cpu_s: f64,
    /// CPU time the profiler spent before sampling began: calibration, reading maps (s).
    pub setup_cpu_s: f64,
}

/// What a sample of a run cost.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct CostFigures {
    /// Mean cost of one sample charged to the target, o (µs).
    pub overhead_us: f64,
    /// Standard error of `overhead_us` (µs).
    pub overhead_se_us: f64,
    /// `measured` if the kernel's handler that writes samples was timed in the target, else why it was not.
    pub handler_time: String,
    /// What the handler took for a sample, a part of `overhead_us` and, as the tracepoints that time it, in it (µs).
    pub handler_us: Option<f64>,
    /// Standard error of `handler_us` (µs).
    pub handler_se_us: Option<f64>,
    /// Samples that the handler was timed for.
    pub handler_samples: u64,
    /// Costs that the samples gather around, where there are two or more, for instance with warm and with cold caches.
    pub overhead_modes: Vec<CostMode>,
    /// Mean CPU time of the profiler itself per sample (µs).
    pub self_us: f64,
    /// What an interrupt costs on this host over what it did when the machine was calibrated, which `overhead_us` follows: 1 where the two
    /// agree within their errors; 0 where the file does not say.
    pub interrupt_ratio: f64,
}

/// What sampling cost in a run, and what it might cost.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct OverheadFigures {
    /// Share of the target's CPU time spent on sampling, the profiler's own included.
    pub overhead_ratio: f64,
    /// What `overhead_ratio` is made of.
    pub overhead_parts: OverheadParts,
    /// Largest `overhead_ratio` of any one second of the run.
    pub overhead_worst_1s_ratio: f64,
    /// Largest `overhead_ratio` of any ten seconds of the run.
    pub overhead_worst_10s_ratio: f64,
    /// The budget for `overhead_ratio`.
    pub budget_ratio: f64,
    /// What samples, context switches and side records cost the target, as a share of its CPU time.
    pub slowdown_ratio: f64,
    /// The most that `slowdown_ratio` may be; 0 where the file does not say.
    pub slowdown_budget_ratio: f64,
    /// Largest `slowdown_ratio` of any ten seconds of the run.
    pub slowdown_worst_10s_ratio: f64,
    /// CPU time of the profiler while sampling, as a share of one CPU.
    pub own_cpu_ratio: f64,
    /// Largest `own_cpu_ratio` of any ten seconds of the run.
    pub own_cpu_worst_10s_ratio: f64,
    /// The most that `own_cpu_ratio` may be; 0 where there is no bound.
    pub own_cpu_budget_ratio: f64,
}

/// The sampling rate of a run, and what chose it.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct RateFigures {
    /// The last sampling rate (samples per CPU-second of the target).
    pub rate_hz: f64,
    /// The rate the law asked for last, under the budget and the caps.
    pub optimum_rate_hz: f64,
    /// The rate the law would take without budget and caps.
    pub unbounded_rate_hz: f64,
    /// What bound the last rate: `law`, `budget`, `kernel`, `fixed`.
    pub bound_by: String,
    /// What chose the rate: `anytime`, `horizon` or `fixed`; empty where the file does not say.
    pub law: String,
    /// Samples that the law asks for in a run of this much CPU time, bounds left aside; 0 where that is unknown. Where
    /// the kernel's code may not be sampled, the part of them that may bring a sample.
    pub law_samples: f64,
    /// Variance of the samples at the law's rate over that of independent ones: below 1 where functions run on for longer than a
    /// sampling period, which makes fewer samples enough; 0 where the file does not say.
    pub variance_ratio: f64,
    /// R: CPU time of all replicas of the target's service over its own, which the law reckoned with: 1 for one alone; 0 where the file
    /// does not say.
    pub replicas: f64,
    /// Rate changes.
    pub retunes: u64,
}

/// What the cost and the rate of a run were expected to be.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct PredictedFigures {
    /// What [`CostFigures::overhead_us`] was expected to be before the clocks ran, or of a command after its first second (µs).
    #[serde(rename = "predicted_overhead_us")]
    pub overhead_us: f64,
    /// Standard error of `overhead_us` (µs).
    #[serde(rename = "predicted_overhead_se_us")]
    pub overhead_se_us: f64,
    /// What [`OverheadFigures::overhead_ratio`] was expected to be.
    #[serde(rename = "predicted_overhead_ratio")]
    pub overhead_ratio: f64,
    /// Standard error of `overhead_ratio`.
    #[serde(rename = "predicted_overhead_se_ratio")]
    pub overhead_se_ratio: f64,
    /// What [`RateFigures::rate_hz`] was expected to be once it is settled; 0 where nothing was predicted.
    #[serde(rename = "predicted_rate_hz")]
    pub rate_hz: f64,
    /// Standard error of `rate_hz`.
    #[serde(rename = "predicted_rate_se_hz")]
    pub rate_se_hz: f64,
}

/// What the overhead of a run is made of, each part as a ratio of the target's CPU time. All but `fixed_ratio` add up to
/// [`OverheadFigures::overhead_ratio`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OverheadParts {
    /// Samples of the target: the interrupts and their records.
    pub base_ratio: f64,
    /// Frames that the kernel walked for them.
    pub frames_ratio: f64,
    /// Stack that was copied for them.
    pub stack_ratio: f64,
    /// Interrupts in code that may not be sampled.
    pub unseen_ratio: f64,
    /// Context switches of tasks that have events.
    pub switches_ratio: f64,
    /// Mappings, names and new tasks that were reported.
    pub side_records_ratio: f64,
    /// Samples and records of others.
    pub foreign_ratio: f64,
    /// The profiler's own CPU time.
    pub self_ratio: f64,
    /// The part of all that is due to no sample: switches, records that are no samples, and of the profiler's own time
    /// what passes at any rate.
    pub fixed_ratio: f64,
}

/// A change of the sampling rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RateChange {
    /// Seconds since the start of sampling.
    pub at_s: f64,
    /// New rate (samples per CPU-second).
    pub rate_hz: f64,
    /// Why.
    pub reason: String,
}
