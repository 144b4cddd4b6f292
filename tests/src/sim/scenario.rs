//! A scenario file: the script and the bands.

use profiler_core::rate::model::{Criterion, optimum_rate_hz, spread};
use serde::Deserialize;

/// A script and what has to come of it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What it is about, in a line.
    pub about: String,
    /// Length (s of wall time).
    pub duration_s: f64,
    /// How many seeds it is played with.
    #[serde(default = "three")]
    pub seeds: u64,
    /// The budget (ratio of the target's CPU time).
    #[serde(default = "one_percent")]
    pub budget_ratio: f64,
    /// W (CPU-seconds).
    #[serde(default = "a_minute")]
    pub horizon_s: f64,
    /// What the profile is optimised for.
    #[serde(default)]
    pub criterion: Criterion,
    /// How far off the calibrated costs are: .15 believes 15% too much.
    #[serde(default)]
    pub calibration_error_ratio: f64,
    /// The standard error that the calibration states.
    #[serde(default = "five_percent")]
    pub calibration_se_ratio: f64,
    /// Noise of the true cost: each tick's is uniform within this around the mean.
    #[serde(default)]
    pub noise_ratio: f64,
    /// The profiler's own CPU time per second of wall time (µs).
    #[serde(default = "own_fixed")]
    pub own_per_second_us: f64,
    /// Phases of the program, in order.
    #[serde(rename = "phase")]
    pub phases: Vec<Phase>,
    /// What the run has to stay within.
    pub bands: Bands,
}

/// What the program does from a time on.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// Its start (s).
    #[serde(default)]
    pub from_s: f64,
    /// Threads, each on a CPU of its own.
    #[serde(default = "one")]
    pub threads: usize,
    /// Share of the time that each thread runs.
    #[serde(default = "always")]
    pub utilisation: f64,
    /// It runs for this long in every `burst_every_s`, and idles between (s); 0 for a program without bursts.
    #[serde(default)]
    pub burst_s: f64,
    /// See `burst_s`.
    #[serde(default)]
    pub burst_every_s: f64,
    /// Shares of its functions; they are scaled to a sum of 1.
    #[serde(default = "shares")]
    pub shares: Vec<f64>,
    /// Mean length of a visit to a function (ms of CPU time).
    #[serde(default = "bout")]
    pub bout_ms: f64,
    /// True cost of a sample without its stack (µs).
    #[serde(default = "bare_cost")]
    pub sample_us: f64,
    /// Mean depth of the stacks; a stack is uniform within half of it.
    #[serde(default = "depth")]
    pub frames: f64,
    /// Bytes of stack copied.
    #[serde(default)]
    pub stack_bytes: u64,
    /// The profiler's own CPU time per sample (µs).
    #[serde(default = "own")]
    pub own_us: f64,
}

/// What a run has to stay within. Rates are compared with the law's under the *true* cost.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bands {
    /// From when on the rate must be near the optimum: seconds after the start and after each phase's.
    #[serde(default = "five")]
    pub converged_after_s: f64,
    /// Lowest and highest rate, relative to the optimum.
    #[serde(default = "quarter")]
    pub rate_ratio: (f64, f64),
    /// Highest overhead of any second, relative to the budget.
    #[serde(default = "worst_1s")]
    pub worst_1s_of_budget: f64,
    /// Highest overhead of any ten seconds, relative to the budget.
    #[serde(default = "worst_10s")]
    pub worst_10s_of_budget: f64,
    /// Most retunes a minute once converged.
    #[serde(default = "always")]
    pub retunes_per_minute: f64,
    /// Ticks with the bucket throttling once converged, as a share of all.
    #[serde(default = "five_percent")]
    pub throttled_ratio: f64,
    /// How far the sum of the samples' weights may be off the CPU time.
    #[serde(default = "two_percent")]
    pub weight_error_ratio: f64,
    /// Bursts must be sampled at the rate: samples over those that the rate in force asks for; lowest and
    /// highest.
    #[serde(default = "realised")]
    pub realised_ratio: (f64, f64),
}

/// Cost of a frame and of a byte (µs), the same on all hosts.
pub(super) const FRAME_US: f64 = 0.05;
pub(super) const BYTE_US: f64 = 0.0002;

impl Phase {
    /// o: the true mean cost of a sample charged to the target (s).
    pub fn overhead_s(&self) -> f64 {
        (self.sample_us + self.frames * FRAME_US + self.stack_bytes as f64 * BYTE_US) * 1e-6
    }

    /// CPUs kept busy on average.
    pub fn utilisation_cpus(&self) -> f64 {
        let bursts = if self.burst_every_s > 0.0 { self.burst_s / self.burst_every_s } else { 1.0 };
        self.threads as f64 * self.utilisation * bursts
    }
}

impl Scenario {
    /// The phase at a time (s).
    pub fn phase(&self, at_s: f64) -> &Phase {
        self.phases.iter().rev().find(|phase| phase.from_s <= at_s).unwrap_or(&self.phases[0])
    }

    /// The law's rate under the true cost, shares and own cost of a phase.
    pub fn optimum_hz(&self, phase: &Phase) -> f64 {
        let total: f64 = phase.shares.iter().sum();
        let spread = spread(phase.shares.iter().map(|p| p / total), 4).expect("a program has functions");
        let law = optimum_rate_hz(self.criterion, spread, phase.overhead_s(), self.horizon_s);
        let own_ratio = self.own_per_second_us * 1e-6 / phase.utilisation_cpus().max(0.1);
        let cap = (0.9 * self.budget_ratio - own_ratio).max(0.0) / (phase.overhead_s() + phase.own_us * 1e-6);
        law.expect("scenarios are within the law").min(cap).max(1.0)
    }
}

fn one() -> usize {
    1
}
fn three() -> u64 {
    3
}
fn one_percent() -> f64 {
    0.01
}
fn two_percent() -> f64 {
    0.02
}
fn five_percent() -> f64 {
    0.05
}
fn a_minute() -> f64 {
    60.0
}
fn own_fixed() -> f64 {
    300.0
}
fn always() -> f64 {
    1.0
}
fn shares() -> Vec<f64> {
    vec![0.3, 0.2, 0.15, 0.1, 0.1, 0.05, 0.05, 0.05]
}
fn bout() -> f64 {
    1.0
}
fn bare_cost() -> f64 {
    11.6
}
fn depth() -> f64 {
    20.0
}
fn own() -> f64 {
    2.0
}
fn five() -> f64 {
    5.0
}
fn quarter() -> (f64, f64) {
    (0.75, 1.25)
}
fn worst_1s() -> f64 {
    1.2
}
fn worst_10s() -> f64 {
    1.02
}
fn realised() -> (f64, f64) {
    (0.9, 1.1)
}
