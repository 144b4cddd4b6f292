//! What `plan` is to work out.

use std::path::PathBuf;
use std::time::Duration;

use config::{Ratio, SamplingSettings, Span};
use profiler_core::rate::Criterion;

/// Work out the best rate for one function.
#[derive(Clone, Debug)]
pub(crate) struct PlanJob {
    /// T, the CPU time that the target runs unsampled; more than 0.
    pub(crate) horizon: Span,
    /// p, the function's share; between 0 and 1, neither included.
    pub(crate) share: Ratio,
    /// o, the cost of one sample; more than 0 and less than the horizon.
    pub(crate) overhead: Span,
    /// v, the variance of the samples over that of independent ones; between 0.000001 and 1,000.
    pub(crate) variance_ratio: f64,
    /// R: number of replicas whose profiles are read as one; 1 if there is a single one.
    pub(crate) replicas: u32,
    /// The error to make smallest.
    pub(crate) criterion: Criterion,
    /// Share of the CPU time that sampling may cost; more than 0.
    pub(crate) budget: Ratio,
    /// The kernel's tick, where samples come at ticks alone (ns).
    pub(crate) clock_tick_ns: Option<u64>,
    /// Where to draw the curve.
    pub(crate) file: Option<PathBuf>,
    /// Print JSON.
    pub(crate) json: bool,
}

impl PlanJob {
    /// T·p: the function's CPU time without sampling (s).
    pub(crate) fn true_s(&self) -> f64 {
        self.horizon.seconds() * self.share.get()
    }

    /// Whether the rate is judged by the upper end of an interval.
    pub(crate) fn is_upper_bound(&self) -> bool {
        matches!(self.criterion, Criterion::UpperCurve { .. })
    }
}

/// Predict what sampling a process costs.
#[derive(Clone, Debug)]
pub(crate) struct PlanProcessJob {
    /// The process; neither 0 nor ourselves.
    pub(crate) pid: u32,
    /// For how long it is watched; more than 0.
    pub(crate) duration: Duration,
    /// How it would be sampled; validated.
    pub(crate) sampling: SamplingSettings,
    /// Where to draw the curve.
    pub(crate) file: Option<PathBuf>,
    /// Print JSON.
    pub(crate) json: bool,
}
