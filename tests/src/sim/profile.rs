//! The simulated profile of each function, window by window, beside the truth.

use super::run::play;
use super::scenario::Scenario;

/// Times and samples by function.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Functions {
    /// CPU time that the samples of each function stand for (ns).
    pub weight_ns: Vec<f64>,
    /// Samples of each function.
    pub samples: Vec<u64>,
    /// CPU time that each function truly took, without what samples added (ns).
    pub true_ns: Vec<f64>,
}

impl Functions {
    pub(super) fn work(&mut self, function: usize, cpu_ns: f64) {
        self.reach(function);
        self.true_ns[function] += cpu_ns;
    }

    pub(super) fn sample(&mut self, function: usize, weight_ns: u64) {
        self.reach(function);
        self.weight_ns[function] += weight_ns as f64;
        self.samples[function] += 1;
    }

    fn reach(&mut self, function: usize) {
        let length = self.true_ns.len().max(function + 1);
        self.weight_ns.resize(length, 0.0);
        self.samples.resize(length, 0);
        self.true_ns.resize(length, 0.0);
    }

    pub(super) fn add(&mut self, other: &Functions) {
        self.reach(other.true_ns.len().saturating_sub(1));
        for i in 0..other.true_ns.len() {
            self.weight_ns[i] += other.weight_ns[i];
            self.samples[i] += other.samples[i];
            self.true_ns[i] += other.true_ns[i];
        }
    }

    /// The profile's estimate of a function's share; 0 without samples.
    pub fn share(&self, function: usize) -> f64 {
        ratio(&self.weight_ns, function)
    }

    /// The share that the function truly took.
    pub fn true_share(&self, function: usize) -> f64 {
        ratio(&self.true_ns, function)
    }
}

fn ratio(times: &[f64], function: usize) -> f64 {
    let all: f64 = times.iter().sum();
    if all > 0.0 { times.get(function).copied().unwrap_or(0.0) / all } else { 0.0 }
}

/// A simulated profile.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// Windows in order; a sample belongs to the one in which it was read.
    pub windows: Vec<Functions>,
    /// Samples taken.
    pub samples: u64,
    /// CPU time of the target, with what samples took (s).
    pub cpu_s: f64,
    /// What samples took of it (s).
    pub charged_s: f64,
}

impl Profile {
    /// All windows together.
    pub fn total(&self) -> Functions {
        let mut total = Functions::default();
        self.windows.iter().for_each(|window| total.add(window));
        total
    }
}

/// Plays a scenario with the real controller, periods and weights, and returns its profile in windows of `window_s` seconds
/// of wall time, rounded up to steps.
pub fn profile(scenario: &Scenario, seed: u64, window_s: f64) -> Profile {
    let mut profile = Profile::default();
    let (mut window, mut window_ns) = (Functions::default(), 0.0);
    play(scenario, seed, |truth, _, _| {
        window.add(&truth.functions);
        window_ns += truth.wall_ns;
        profile.samples += truth.samples;
        profile.cpu_s += truth.cpu_ns * 1e-9;
        profile.charged_s += truth.target_ns * 1e-9;
        if window_ns >= window_s * 1e9 {
            profile.windows.push(std::mem::take(&mut window));
            window_ns = 0.0;
        }
    });
    if window_ns > 0.0 {
        profile.windows.push(window);
    }
    profile
}
