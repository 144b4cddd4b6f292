//! The profile that exporters read: stacks with names, weights and the run they come from.
//!
//! Everything that repeats is stored once and referred to by its index. Weights are nanoseconds of the
//! target's CPU time.
//!
//! A stack's CPU time is the sum of its windows', each rounded: a reader trusts the windows of a file only if
//! they add up.

use serde::{Deserialize, Serialize};

pub use crate::outcome::{Outcome, TruncatedBy};
use crate::rate::CostMode;

/// Index into [`SymbolizedProfile::processes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessIndex(pub u32);
/// Index into [`SymbolizedProfile::modules`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModuleIndex(pub u32);
/// Index into [`SymbolizedProfile::functions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FunctionIndex(pub u32);
/// Index into [`SymbolizedProfile::locations`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LocationIndex(pub u32);

/// A profile with names, ready for an exporter.
#[derive(Clone, Debug, Default)]
pub struct SymbolizedProfile {
    /// The processes that were sampled.
    pub processes: Vec<ProcessInfo>,
    /// The executables and libraries that samples fell into; the kernel is one of them.
    pub modules: Vec<ModuleInfo>,
    /// Functions, each once.
    pub functions: Vec<Function>,
    /// Code addresses, each once.
    pub locations: Vec<Location>,
    /// Distinct stacks with their weights.
    pub stacks: Vec<WeightedStack>,
    /// The windows of time that [`WeightedStack::windows`] refers to, oldest first.
    pub windows: Vec<Window>,
    /// What the run was and what it cost.
    pub run: Run,
}

/// A process that was sampled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Process id.
    pub pid: u32,
    /// The command name, as the kernel has it (at most 15 bytes).
    pub comm: String,
}

/// An executable, a library, the vDSO or the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModuleInfo {
    /// What a person calls it: the file's name, `[vdso]`, `[kernel]`, or `[unknown]` for code in no file.
    pub name: String,
    /// The path as the target saw it; empty where there is none.
    pub path: String,
    /// The GNU build id in hexadecimal, where the file has one.
    pub build_id: Option<String>,
    /// The address behind its last byte, as its file states it; 0 where there is no file that tells.
    pub end: u64,
}

impl ModuleInfo {
    /// Whether both are the same module, whatever is known of its end.
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.name, &self.path, &self.build_id) == (&other.name, &other.path, &other.build_id)
    }
}

/// A function, as its source names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Function {
    /// Demangled name, or `module+0x1234` where there is no name.
    pub name: String,
    /// The linkage name; equal to `name` where nothing was demangled.
    pub system_name: String,
    /// The module that holds its code.
    pub module: ModuleIndex,
    /// Source file, where debug information has it.
    pub file: Option<String>,
}

/// A code address and the functions it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The module that holds the address.
    pub module: ModuleIndex,
    /// The address as the module's file states it (the stated virtual memory address).
    pub address: u64,
    /// The function at the address and those it was inlined into, innermost first; never empty.
    pub lines: Vec<Line>,
    /// Why the address has no name, where it has none.
    pub unknown: Option<Unknown>,
}

/// Why an address has no name, in words for a person.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Unknown {
    /// What is missing.
    pub reason: String,
    /// What would give it a name; empty where nothing would.
    pub remedy: String,
}

/// A function and the line in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// The function.
    pub function: FunctionIndex,
    /// Line number, 0 where unknown.
    pub line: u32,
}

/// A distinct stack of one process.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightedStack {
    /// The process it was seen in.
    pub process: ProcessIndex,
    /// Frames, innermost first; kernel frames come before user frames.
    pub frames: Vec<LocationIndex>,
    /// How its unwinding ended.
    pub outcome: Outcome,
    /// Samples.
    pub samples: u64,
    /// CPU time without what sampling added: the sum of the samples' periods, reconciled with the scheduler's figure
    /// (ns).
    pub cpu_ns: u64,
    /// `samples` and `cpu_ns` by window, in the windows' order; empty where the file does not tell.
    pub windows: Vec<StackWindow>,
}

/// What a stack had in one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackWindow {
    /// Index into [`SymbolizedProfile::windows`].
    pub window: u32,
    /// CPU time (ns).
    pub cpu_ns: u64,
    /// Samples.
    pub samples: u64,
}

/// A span of the run, for statistics over windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its start, ns since [`Run::start_unix_ns`]: the start of sampling, or of this part where a long run is cut into many
    /// profiles.
    pub start_ns: u64,
    /// Its end, ns since the same.
    pub end_ns: u64,
}

/// What the weights of stacks are: CPU time in every profile of ours; files of other tools may hold other times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Measure {
    /// CPU time, counted in samples.
    #[default]
    CpuTime,
    /// Another time, as of a lock or by the clock on the wall.
    Other {
        /// How the file calls it: `delay`, `wall`.
        time: String,
        /// How it calls what it counts beside: `contentions`.
        counted: String,
    },
}

impl Measure {
    /// What a person calls the time.
    pub fn in_words(&self) -> String {
        match self {
            Self::CpuTime => "CPU time".to_owned(),
            Self::Other { time, .. } if time.ends_with("time") => time.clone(),
            Self::Other { time, .. } => format!("{time} time"),
        }
    }

    /// What is counted beside the time.
    pub fn counted(&self) -> &str {
        match self {
            Self::CpuTime => "samples",
            Self::Other { counted, .. } => counted,
        }
    }

    /// Whether it is CPU time.
    pub fn is_cpu(&self) -> bool {
        *self == Self::CpuTime
    }
}

/// What a run was, how it went and what it cost. Keys of [`Run`] are those of the summary line of `--stats`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Run {
    /// The command that was profiled, or the processes that were attached to.
    pub target: String,
    /// What [`WeightedStack::cpu_ns`] is.
    #[serde(skip)]
    pub measure: Measure,
    /// Wall-clock start of sampling, ns since the Unix epoch.
    pub start_unix_ns: u64,
    /// Wall-clock length of sampling (s).
    pub duration_s: f64,
    /// Samples of the target in the profile.
    pub samples: u64,
    /// Samples that the kernel dropped because a ring buffer was full.
    pub lost: u64,
    /// Samples whose stack lacks outer frames.
    pub truncated: u64,
    /// The same by the reason.
    pub truncated_by: TruncatedBy,
    /// Share of the samples whose stack reaches its outermost frame.
    pub complete_ratio: f64,
    /// Samples of which the outer frames were cut off and are those of an earlier sample of the thread, whose frames lay at the same
    /// places of the stack. Their stacks count as complete.
    pub outer_frames_from_earlier: u64,
    /// Records that could not be decoded.
    pub undecodable: u64,
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
    /// Times the kernel throttled an event.
    pub throttled: u64,
    /// Samples that hit other processes (attach mode `cpu`); their cost counts as overhead.
    pub foreign_samples: u64,
    /// Frames that the kernel walked for the target's samples.
    pub walked_frames: u64,
    /// Bytes of stack that it copied for them.
    pub copied_bytes: u64,
    /// CPU time that the scheduler charged to the target while sampled (s).
    pub target_cpu_s: f64,
    /// CPU time that sampling added, taken out of the functions' CPU time (s): what was charged to the target, or the part
    /// of it that its samples stand for where the kernel was not sampled.
    pub sampling_cpu_s: f64,
    /// Standard error of `sampling_cpu_s` (s).
    pub sampling_cpu_se_s: f64,
    /// CPU time of the target that no sample could stand for, and that is in no function (s): where samples are taken in its processes, that
    /// of whoever has nothing that takes them.
    pub not_sampled_cpu_s: f64,
    /// Sum of the samples' weights before it was reconciled with `target_cpu_s` (s).
    pub weight_s: f64,
    /// CPU time of the profiler while sampling (s).
    pub self_cpu_s: f64,
    /// CPU time the profiler spent before sampling began: calibration, reading maps (s).
    pub setup_cpu_s: f64,
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
    /// Samples that the law asks for in a run of this much CPU time, bounds left aside; 0 where that is unknown.
    pub law_samples: f64,
    /// Variance of the samples at the law's rate over that of independent ones: below 1 where functions run on for longer than a
    /// sampling period, which makes fewer samples enough; 0 where the file does not say.
    pub variance_ratio: f64,
    /// R: CPU time of all replicas of the target's service over its own, which the law reckoned with: 1 for one alone; 0 where the file
    /// does not say.
    pub replicas: f64,
    /// What an interrupt costs on this host over what it did when the machine was calibrated, which `overhead_us` follows: 1 where the two
    /// agree within their errors; 0 where the file does not say.
    pub interrupt_ratio: f64,
    /// What `overhead_us` was expected to be before the clocks ran, or of a command after its first second (µs).
    pub predicted_overhead_us: f64,
    /// Standard error of `predicted_overhead_us` (µs).
    pub predicted_overhead_se_us: f64,
    /// What `overhead_ratio` was expected to be.
    pub predicted_overhead_ratio: f64,
    /// Standard error of `predicted_overhead_ratio`.
    pub predicted_overhead_se_ratio: f64,
    /// What `rate_hz` was expected to be once it is settled; 0 where nothing was predicted.
    pub predicted_rate_hz: f64,
    /// Standard error of `predicted_rate_hz`.
    pub predicted_rate_se_hz: f64,
    /// Rate changes.
    pub retunes: u64,
    /// How the events are attached: `task` or `cpu`.
    pub attach_mode: String,
    /// The sampling event: `cpu-clock`, or `timer-signal` for timers on the threads' CPU time.
    pub event: String,
    /// How the stacks are unwound: `fp`, `dwarf`, or both.
    pub unwind: String,
    /// Bytes of stack copied per sample, last (0 with frame pointers).
    pub stack_copy_bytes: u64,
    /// Why sampling stopped: `target_ended`, `duration`, `signal` or `precise`.
    pub stopped: String,
    /// Level of the intervals in `functions`.
    pub confidence: f64,
    /// How well the largest functions shall be known: half an interval as a ratio of the function's long-run share; 0 where
    /// the run has no such goal.
    pub precision_goal_ratio: f64,
    /// Seed of the random periods.
    pub seed: u64,
    /// Windows of time that it sums up, as the notes count them; 0 where it is a run of its own.
    pub merged_windows: u64,
    /// Rate over time: every change, for the profile's comment fields.
    #[serde(skip)]
    pub rate_history: Vec<RateChange>,
    /// One-line notes for the person: what was degraded and what would mend it.
    pub notes: Vec<String>,
}

/// What the overhead of a run is made of, each part as a ratio of the target's CPU time. All but `fixed_ratio` add up to
/// [`Run::overhead_ratio`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OverheadParts {
    /// Samples of the target: the interrupts and their records.
    pub base_ratio: f64,
    /// Frames that the kernel walked for them.
    pub frames_ratio: f64,
    /// Stack that was copied for them.
    pub stack_ratio: f64,
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
