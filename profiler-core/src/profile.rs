//! The profile that exporters read: stacks with names, weights and the run they come from.
//!
//! Everything that repeats is stored once and referred to by its index. Weights are nanoseconds of the
//! target's CPU time.
//!
//! A stack's CPU time is the sum of its windows', each rounded: a reader trusts the windows of a file only if
//! they add up.

mod run;

use serde::{Deserialize, Serialize};

pub use self::run::{
    CostFigures, CpuTimes, FileFigures, HowSampled, OverheadFigures, OverheadParts, PredictedFigures,
    RateChange, RateFigures, Run, SampleCounts,
};
pub use crate::outcome::{Outcome, TruncatedBy};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
