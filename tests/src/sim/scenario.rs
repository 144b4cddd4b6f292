//! A scenario file: the script and the bands.

use profiler_core::rate::model::{Criterion, optimum_rate_hz, spread};
use profiler_core::rate::{anytime, ratio_at_optimum};
use serde::Deserialize;

/// A script and the bands that its results must stay within.
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
    /// Whether the length of the profile is unknown, as in a run that its user ends: the rate then follows the anytime law.
    #[serde(default)]
    pub anytime: bool,
    /// The budget of the profiler's own CPU time (ratio of a CPU); without one, `budget_ratio` is for all that sampling costs.
    #[serde(default)]
    pub own_cpu_ratio: Option<f64>,
    /// What the profile is optimised for.
    #[serde(default)]
    pub criterion: Criterion,
    /// How far off the calibrated costs are: .15 believes 15% too much.
    #[serde(default)]
    pub calibration_error_ratio: f64,
    /// The calibrated cost of a byte of stack, over the true one: a loop that spins finds its stack in the caches.
    #[serde(default = "one")]
    pub calibrated_byte_factor: f64,
    /// Whether the kernel's handler is timed in bursts.
    #[serde(default)]
    pub bursts: bool,
    /// The standard error that the calibration states.
    #[serde(default = "five_percent")]
    pub calibration_se_ratio: f64,
    /// Noise of the true cost: each step's is uniform within this around the mean.
    #[serde(default)]
    pub noise_ratio: f64,
    /// The profiler's own CPU time per second of wall time (µs).
    #[serde(default = "own_fixed")]
    pub own_per_second_us: f64,
    /// Phases of the program, in order.
    #[serde(rename = "phase")]
    pub phases: Vec<Phase>,
    /// A rate that is fixed instead of controlled (samples per CPU-second).
    #[serde(default)]
    pub fixed_rate_hz: Option<f64>,
    /// What the run has to stay within.
    pub bands: Bands,
}

/// What the program does from a time on.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Phase {
    /// Its start (s).
    pub from_s: f64,
    /// Threads, each on a CPU of its own.
    pub threads: usize,
    /// Share of the time that each thread runs.
    pub utilisation: f64,
    /// It runs for this long in every `burst_every_s`, and idles between (s); 0 for a program without bursts.
    pub burst_s: f64,
    /// See `burst_s`.
    pub burst_every_s: f64,
    /// Shares of its functions; they are scaled to a sum of 1.
    pub shares: Vec<f64>,
    /// Mean length of a visit to a function (ms of CPU time).
    pub bout_ms: f64,
    /// If above 0, functions are visited in turn instead, each for its share of a round of this length (ms of CPU
    /// time): a program that is periodic.
    pub round_ms: f64,
    /// True cost of a sample without its stack (µs).
    pub sample_us: f64,
    /// Share of the host's interrupts that cost `dear_factor` times as much, whatever is sampled.
    pub dear_ratio: f64,
    /// See `dear_ratio`.
    pub dear_factor: f64,
    /// What a sample costs in each function, as a factor on `sample_us`; 1 where there is none.
    pub cost_factors: Vec<f64>,
    /// Mean depth of the stacks; a stack is uniform within half of it.
    pub frames: f64,
    /// η: stacks deepen with the rate as λ^η, so that a sample's cost does; at the optimum they are `frames` deep.
    pub growth: f64,
    /// Bytes of stack copied.
    pub stack_bytes: u64,
    /// What a byte costs in this phase, as a factor.
    pub byte_factor: f64,
    /// The profiler's own CPU time per sample (µs).
    pub own_us: f64,
}

impl Default for Phase {
    fn default() -> Self {
        Phase {
            from_s: 0.0,
            threads: 1,
            utilisation: 1.0,
            burst_s: 0.0,
            burst_every_s: 0.0,
            shares: vec![0.3, 0.2, 0.15, 0.1, 0.1, 0.05, 0.05, 0.05],
            bout_ms: 1.0,
            round_ms: 0.0,
            sample_us: 11.6,
            dear_ratio: 0.0,
            dear_factor: 1.0,
            cost_factors: Vec::new(),
            frames: 20.0,
            growth: 0.0,
            stack_bytes: 0,
            byte_factor: 1.0,
            own_us: 2.0,
        }
    }
}

/// What a run has to stay within. Rates are compared with the law's under the *true* cost.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Bands {
    /// From when on the rate must be near the optimum: seconds after the start and after each phase's.
    pub converged_after_s: f64,
    /// Lowest and highest rate, relative to the optimum.
    pub rate_ratio: (f64, f64),
    /// Lowest and highest o that the controller believes in, relative to the truth.
    pub overhead_ratio: (f64, f64),
    /// Highest overhead of any second, relative to the budget.
    pub worst_1s_of_budget: f64,
    /// Highest overhead of any ten seconds, relative to the budget.
    pub worst_10s_of_budget: f64,
    /// The same once converged.
    pub converged_10s_of_budget: f64,
    /// Highest overhead of any minute, relative to the budget.
    pub worst_60s_of_budget: f64,
    /// Highest overhead of any 0.2 s in which the target was busy, relative to the budget.
    pub worst_200ms_of_budget: f64,
    /// Most retunes a minute once converged.
    pub retunes_per_minute: f64,
    /// Steps with the bucket throttling once converged, as a share of all.
    pub throttled_ratio: f64,
    /// How far the sum of the samples' weights may be off the CPU time.
    pub weight_error_ratio: f64,
    /// Bursts must be sampled at the rate: samples over those that the rate in force asks for; lowest and
    /// highest.
    pub realised_ratio: (f64, f64),
    /// Least number of samples over what the anytime law asks for or the budget pays, if that is less.
    pub samples_of_law: f64,
}

impl Default for Bands {
    fn default() -> Self {
        Bands {
            converged_after_s: 5.0,
            rate_ratio: (0.75, 1.25),
            overhead_ratio: (0.0, f64::INFINITY),
            worst_1s_of_budget: 1.2,
            worst_10s_of_budget: 1.02,
            converged_10s_of_budget: 1.1,
            worst_60s_of_budget: 1.0,
            worst_200ms_of_budget: 2.0,
            retunes_per_minute: 1.0,
            throttled_ratio: 0.05,
            weight_error_ratio: 0.02,
            realised_ratio: (0.9, 1.1),
            samples_of_law: 0.0,
        }
    }
}

/// Cost of a frame and of a byte (µs), the same on all hosts.
pub(super) const FRAME_US: f64 = 0.05;
pub(super) const BYTE_US: f64 = 0.0002;
/// The part of a sample's cost that passes in the kernel's handler, without its stack (µs).
pub(super) const HANDLER_US: f64 = 0.8;

impl Phase {
    /// A function's share, of a sum of 1.
    pub fn share(&self, function: usize) -> f64 {
        self.shares[function] / self.shares.iter().sum::<f64>()
    }

    /// The shares of all functions, of a sum of 1.
    pub fn all_shares(&self) -> impl Iterator<Item = f64> + Clone {
        let sum: f64 = self.shares.iter().sum();
        self.shares.iter().map(move |share| share / sum)
    }

    /// Mean true cost of a sample in a function (µs).
    pub(super) fn cost_us(&self, function: usize, frames: u64) -> f64 {
        let factor = self.cost_factors.get(function).copied().unwrap_or(1.0);
        self.interrupt_us() * factor + frames as f64 * FRAME_US + self.stack_us()
    }

    /// The mean of what the host's interrupts cost (µs).
    pub(super) fn interrupt_us(&self) -> f64 {
        self.sample_us * (1.0 + self.dear_ratio * (self.dear_factor - 1.0))
    }

    /// What an interrupt costs, one of the host's at random (µs).
    pub(super) fn one_interrupt_us(&self, rng: &mut fastrand::Rng) -> f64 {
        if rng.f64() < self.dear_ratio { self.dear_factor * self.sample_us } else { self.sample_us }
    }

    /// What copying the stack truly costs (µs).
    fn stack_us(&self) -> f64 {
        self.stack_bytes as f64 * self.byte_factor * BYTE_US
    }

    /// What the handler truly takes for a sample (µs).
    pub(super) fn handler_us(&self, frames: u64) -> f64 {
        HANDLER_US + frames as f64 * FRAME_US + self.stack_us()
    }

    /// o: the true mean cost of a sample charged to the target (s).
    pub fn overhead_s(&self) -> f64 {
        let cost_us = |(function, share)| share * self.cost_us(function, 0);
        (self.all_shares().enumerate().map(cost_us).sum::<f64>() + self.frames * FRAME_US) * 1e-6
    }

    /// CPUs kept busy on average.
    pub fn utilisation_cpus(&self) -> f64 {
        let bursts = if self.burst_every_s > 0.0 { self.burst_s / self.burst_every_s } else { 1.0 };
        self.threads as f64 * self.utilisation * bursts
    }
}

impl Scenario {
    /// A scenario of these phases, with everything else as in a file that does not say.
    pub fn of(phases: Vec<Phase>, duration_s: f64) -> Scenario {
        Scenario {
            about: String::new(),
            duration_s,
            seeds: three(),
            budget_ratio: one_percent(),
            horizon_s: a_minute(),
            anytime: false,
            own_cpu_ratio: None,
            criterion: Criterion::default(),
            calibration_error_ratio: 0.0,
            calibrated_byte_factor: one(),
            bursts: false,
            calibration_se_ratio: five_percent(),
            noise_ratio: 0.0,
            own_per_second_us: own_fixed(),
            phases,
            fixed_rate_hz: None,
            bands: Bands::default(),
        }
    }

    /// The phase at a time (s).
    pub fn phase(&self, at_s: f64) -> &Phase {
        self.phases.iter().rev().find(|phase| phase.from_s <= at_s).unwrap_or(&self.phases[0])
    }

    /// See [`RateController::age_for_steps_ns`](profiler_core::rate::RateController::age_for_steps_ns).
    pub(super) fn age_for_steps_ns(&self, elapsed_ns: u64) -> u64 {
        if self.anytime { elapsed_ns } else { u64::MAX }
    }

    /// Samples that the anytime law asks for in `cpu_s` CPU-seconds of the first phase, or that the budget of the slowdown pays for,
    /// if that is less.
    pub(super) fn law_samples(&self, cpu_s: f64) -> f64 {
        let phase = &self.phases[0];
        let spread = spread(phase.all_shares(), 4).expect("a program has functions");
        let for_one_s_hz = optimum_rate_hz(self.criterion, spread, phase.overhead_s(), 1.0);
        let asked = anytime::samples(for_one_s_hz.expect("scenarios are within the law"), cpu_s);
        asked.min(self.budget_ratio * cpu_s / phase.overhead_s())
    }

    /// The law's rate under the true cost, shares, visits and own cost of a phase.
    pub fn optimum_hz(&self, phase: &Phase) -> f64 {
        let spread = spread(phase.all_shares(), 4).expect("a program has functions");
        let law = optimum_rate_hz(self.criterion, spread, phase.overhead_s(), self.horizon_s);
        let own_ratio = self.own_per_second_us * 1e-6 / phase.utilisation_cpus().max(0.1);
        let cap = (0.9 * self.budget_ratio - own_ratio).max(0.0) / (phase.overhead_s() + phase.own_us * 1e-6);
        let independent_hz = law.expect("scenarios are within the law");
        // Rounds have no memory of this kind.
        let memory_s = if phase.round_ms > 0.0 { 0.0 } else { phase.bout_ms * 1e-3 };
        let part = ratio_at_optimum(independent_hz, memory_s);
        (independent_hz * part.cbrt()).min(cap).max(1.0)
    }
}

fn one() -> f64 {
    1.0
}
fn three() -> u64 {
    3
}
fn one_percent() -> f64 {
    0.01
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
