//! How to sample: the settings that a run is started with.

use profiler_core::rate::Criterion;

use crate::{AttachMode, Backend, Bytes, Hertz, Ratio, Span, Threads, Unwind};

/// Largest budget: a profiler that takes half the CPU measures itself.
pub const MAX_BUDGET: f64 = 0.5;
/// What the profiler may use for itself where nothing else is asked for: a tenth of a CPU.
pub const DEFAULT_OWN_CPU: Ratio = Ratio::constant(0.1);
/// The most that the profiler may use for itself: the CPU that its one sampling thread runs on.
pub const MAX_OWN_CPU: f64 = 1.0;
/// Slowest rate that can be asked for (samples per CPU-second).
pub const MIN_RATE_HZ: f64 = 1.0;
/// Fastest rate that can be asked for (samples per CPU-second). At a 20 µs period the samples already cost a
/// virtual machine more than the program they interrupt.
pub const MAX_RATE_HZ: f64 = 50_000.0;

/// The sharpest precision that can be asked for; a tenth of it takes a hundred times the samples.
pub const MIN_PRECISION: f64 = 0.001;
/// The bluntest precision that can be asked for: beyond, nothing is known.
pub const MAX_PRECISION: f64 = 0.5;

/// The least memory for symbols that can be asked for: a page, which names nothing.
pub const MIN_SYMBOL_MEMORY: Bytes = Bytes::new(4 << 10);

/// How a target is sampled.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingSettings {
    /// Share of the target's CPU time that sampling may take from it.
    pub budget: Ratio,
    /// Share of one CPU that the profiler itself may use, set-up left out; `None` counts what it uses against a budget of the
    /// host.
    pub own_cpu: Option<Ratio>,
    /// CPU time of the target that one profile sums up: the longer, the lower the rate it needs. `None` follows the anytime
    /// law, which is near the best rate for every length.
    pub horizon: Option<Span>,
    /// A fixed rate in samples per CPU-second; `None` lets the controller choose.
    pub rate: Option<Hertz>,
    /// The error that the chosen rate makes smallest.
    pub criterion: Criterion,
    /// Which threads a sample delays.
    pub threads: Threads,
    /// How stacks are unwound.
    pub unwind: Unwind,
    /// What takes the samples.
    pub backend: Backend,
    /// How events are attached.
    pub attach_mode: AttachMode,
    /// Seed of the random periods; `None` draws one.
    pub seed: Option<u64>,
    /// Confidence level of the intervals in reports.
    pub confidence: Ratio,
    /// Sampling stops when the largest functions are known this well: half an interval as a share of the function's
    /// CPU time. `None` goes on to the end.
    pub until_precision: Option<Ratio>,
    /// What unwind tables and symbols may take of memory together.
    pub symbol_memory: Bytes,
}

impl Default for SamplingSettings {
    fn default() -> Self {
        Self {
            budget: Ratio::constant(0.05),
            own_cpu: Some(DEFAULT_OWN_CPU),
            horizon: None,
            rate: None,
            criterion: Criterion::MeanAbsolute,
            threads: Threads::Independent,
            unwind: Unwind::Auto,
            backend: Backend::Auto,
            attach_mode: AttachMode::Auto,
            seed: None,
            confidence: Ratio::constant(0.95),
            until_precision: None,
            symbol_memory: Bytes::new(256 << 20),
        }
    }
}

/// A setting that was understood and cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSetting {
    /// The budget is nothing, or more than [`MAX_BUDGET`].
    #[error("a budget of {0} cannot be kept: give more than 0 and at most 50%, such as 1%")]
    Budget(Ratio),
    /// The profiler may use none of a CPU, or more than [`MAX_OWN_CPU`].
    #[error("the profiler cannot run with {0} of a CPU: give more than 0 and at most 100%, such as 10%")]
    OwnCpu(Ratio),
    /// The horizon is no time at all.
    #[error("a horizon of {0} is too short: give at least 1ms of CPU time, such as 60s")]
    Horizon(Span),
    /// The rate is slower than [`MIN_RATE_HZ`] or faster than [`MAX_RATE_HZ`].
    #[error("a rate of {0} cannot be sampled: give 1 to 50000 Hz")]
    Rate(Hertz),
    /// The level of the intervals says nothing.
    #[error("there is no interval for this confidence: give 50% to 99.99%, such as 95%")]
    Confidence(Ratio),
    /// The precision is finer than [`MIN_PRECISION`] or blunter than [`MAX_PRECISION`].
    #[error("a precision of {0} cannot be waited for: give 0.1% to 50%, such as 5%")]
    Precision(Ratio),
    /// The memory for symbols is less than [`MIN_SYMBOL_MEMORY`].
    #[error("symbols cannot be kept in {0}: give 4KiB or more, such as 256MiB")]
    SymbolMemory(Bytes),
}

impl InvalidSetting {
    /// The field of [`SamplingSettings`] that it is about.
    pub fn key(&self) -> &'static str {
        match self {
            Self::Budget(_) => "budget",
            Self::OwnCpu(_) => "own_cpu",
            Self::Horizon(_) => "horizon",
            Self::Rate(_) => "rate",
            Self::Confidence(_) => "confidence",
            Self::Precision(_) => "until_precision",
            Self::SymbolMemory(_) => "symbol_memory",
        }
    }
}

impl SamplingSettings {
    /// Whether the settings can be used.
    ///
    /// # Errors
    ///
    /// The first setting that cannot, with the values that could.
    pub fn validate(&self) -> Result<(), InvalidSetting> {
        self.problems().next().map_or(Ok(()), Err)
    }

    /// All settings that cannot be used.
    pub fn problems(&self) -> impl Iterator<Item = InvalidSetting> {
        let budget = self.budget.get();
        let rates = MIN_RATE_HZ..=MAX_RATE_HZ;
        let precisions = MIN_PRECISION..=MAX_PRECISION;
        let refused = |possible: bool, problem: InvalidSetting| (!possible).then_some(problem);
        let none_or_more_than_all = |own: &Ratio| own.get() <= 0.0 || own.get() > MAX_OWN_CPU;
        let too_short = |horizon: &Span| horizon.seconds() < 0.001;
        let outside = |rate: &Hertz| !rates.contains(&rate.get());
        let finer_or_blunter = |ratio: &Ratio| !precisions.contains(&ratio.get());
        let problems = [
            refused(budget > 0.0 && budget <= MAX_BUDGET, InvalidSetting::Budget(self.budget)),
            self.own_cpu.filter(none_or_more_than_all).map(InvalidSetting::OwnCpu),
            self.horizon.filter(too_short).map(InvalidSetting::Horizon),
            self.rate.filter(outside).map(InvalidSetting::Rate),
            refused(
                (0.5..=0.9999).contains(&self.confidence.get()),
                InvalidSetting::Confidence(self.confidence),
            ),
            self.until_precision.filter(finer_or_blunter).map(InvalidSetting::Precision),
            refused(
                self.symbol_memory >= MIN_SYMBOL_MEMORY,
                InvalidSetting::SymbolMemory(self.symbol_memory),
            ),
        ];
        problems.into_iter().flatten()
    }
}
