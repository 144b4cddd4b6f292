//! A decision of the controller, with all its inputs.

use serde::Serialize;

use super::model::BoundBy;

/// Why the rate is what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RateReason {
    /// The first guess, before anything was measured.
    Start,
    /// The rate stays.
    Hold,
    /// The law, the budget or a cap asked for another rate.
    Retune,
    /// A retune after a change of phase in the program, which made the shares start anew.
    PhaseChange,
    /// The token bucket holds the rate below what was decided.
    Throttle,
    /// The token bucket no longer holds the rate down.
    Release,
    /// The user fixed the rate.
    Fixed,
}

impl RateReason {
    /// The name in JSON and in a profile's history of rates.
    pub fn as_str(self) -> &'static str {
        match self {
            RateReason::Start => "start",
            RateReason::Hold => "hold",
            RateReason::Retune => "retune",
            RateReason::PhaseChange => "phase_change",
            RateReason::Throttle => "throttle",
            RateReason::Release => "release",
            RateReason::Fixed => "fixed",
        }
    }
}

/// The law that the rate follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LawInForce {
    /// λ(t) = k·t^(−1/3): near the best rate for a run of any length.
    Anytime,
    /// The best rate for a known horizon.
    Horizon,
    /// A rate that the user fixed.
    Fixed,
}

impl LawInForce {
    /// The name in JSON and in a profile's summary.
    pub fn as_str(self) -> &'static str {
        match self {
            LawInForce::Anytime => "anytime",
            LawInForce::Horizon => "horizon",
            LawInForce::Fixed => "fixed",
        }
    }
}

/// A decision and its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// When: ns on the monotonic clock, from the reading.
    pub at_ns: u64,
    /// The rate from now on (samples per CPU-second of the target).
    pub rate_hz: f64,
    /// The mean period from now on (ns of CPU time); to be drawn around by [`Dither`](super::Dither).
    pub period_ns: u64,
    /// Why.
    pub reason: RateReason,
    /// What set the rate.
    pub bound_by: BoundBy,
    /// What a sample costs.
    #[serde(flatten)]
    pub cost: DecidedCost,
    /// The inputs of the law, and the rate that results from them.
    #[serde(flatten)]
    pub terms: LawTerms,
    /// What else bounds the rate.
    #[serde(flatten)]
    pub caps: RateCaps,
    /// How the run went until now.
    #[serde(flatten)]
    pub so_far: SoFar,
}

/// What a sample costs, as a decision takes it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DecidedCost {
    /// o: mean cost of one sample charged to the target (µs).
    pub overhead_us: f64,
    /// Standard error of `overhead_us` (µs).
    pub overhead_se_us: f64,
    /// The part of `overhead_us` for frames that were walked (µs).
    pub frames_us: f64,
    /// The part of `overhead_us` for stack that was copied (µs).
    pub stack_us: f64,
    /// Own CPU time per sample (µs).
    pub self_us: f64,
    /// Charged to others per sample (µs).
    pub foreign_us: f64,
    /// The cost per sample that the budget is kept with, everything included, two standard errors up (µs).
    pub total_hi_us: f64,
    /// How long an interrupt delays a thread of the profiler's own at present (µs); absent before the first
    /// measurement.
    pub interrupt_us: Option<f64>,
    /// `interrupt_us` over its value at the calibration of the machine, which the cost of a sample follows; 1 where the
    /// two agree.
    pub interrupt_ratio: f64,
    /// What is spent whatever the rate (ratio of the target's CPU time).
    pub fixed_ratio: f64,
}

/// The inputs of the law, and the rate that results from them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LawTerms {
    /// S: mean of √((1−p)/p) over the largest functions, small ones by their weight.
    pub spread_ratio: f64,
    /// The variance of the samples at the law's rate over that of independent ones: below 1 where functions run on for
    /// longer than a sampling period.
    pub variance_ratio: f64,
    /// The law in force.
    pub law: LawInForce,
    /// Samples that the law asks for at the CPU time so far.
    pub law_samples: f64,
    /// W (CPU-seconds); by the anytime law, that which stands for the next step.
    pub horizon_cpu_s: f64,
    /// R: CPU time of all replicas of the target's service over its own; the law is that of R·W. 1 for one alone.
    pub replicas: f64,
    /// λ*: the law's rate without budgets and caps.
    pub unbounded_rate_hz: f64,
    /// The law's rate within the budgets and caps; the rate follows it within its dead band.
    pub optimum_rate_hz: f64,
}

/// What bounds the rate beside the law, and the budgets behind it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RateCaps {
    /// Cap by the budget of the slowdown.
    pub budget_cap_hz: f64,
    /// What the budget of own CPU time allows, or what the host's budget leaves for everything.
    pub own_cap_hz: f64,
    /// What the token bucket allows until the next step.
    pub bucket_cap_hz: f64,
    /// What the token bucket holds (µs of CPU time); negative in debt.
    pub bucket_level_us: f64,
    /// The budget of the slowdown (ratio of the target's CPU time).
    pub budget_ratio: f64,
    /// What the host's budget leaves for everything that sampling costs (ratio of the target's CPU time), where own CPU time
    /// has no budget of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub granted_ratio: Option<f64>,
    /// The budget of own CPU time (share of one CPU), where there is one.
    pub own_cpu_budget_ratio: Option<f64>,
}

/// How a run went until a decision.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SoFar {
    /// What sampling took from the target so far (ratio of its CPU time).
    pub slowdown_ratio: f64,
    /// What the profiler used so far, set-up left out (share of one CPU).
    pub own_cpu_ratio: f64,
    /// Overhead of the last second (ratio), as [`Account`](super::Account) defines it.
    pub overhead_1s_ratio: f64,
    /// CPUs that the target kept busy of late.
    pub utilisation_cpus: f64,
    /// CPU time that the target used since the start (s).
    pub target_cpu_s: f64,
    /// Samples of the target since the start.
    pub samples: u64,
    /// Changes of the rate by the law since the start; throttling not counted.
    pub retunes: u64,
}

impl Decision {
    /// Whether the period has to be set anew (apart from its random redraw).
    pub fn changed(&self) -> bool {
        !matches!(self.reason, RateReason::Hold | RateReason::Fixed)
    }
}
