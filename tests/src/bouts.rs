//! A program that stays in its functions for a while, and what a profiler sees of it: for the statistics of
//! profiles, faster than the simulated host by orders.

use std::collections::BTreeMap;

use profiler_core::stats::{Part, Window, window_ns};

/// How often a clock's period is redrawn (ms), and by how much around its mean.
const REDRAW_MS: f64 = 100.0;
const REDRAW_WIDTH: f64 = 0.25;

/// A program whose long-run shares are known.
#[derive(Clone, Debug)]
pub struct Program {
    /// The functions' long-run shares of the CPU time; they sum to 1.
    pub shares: Vec<f64>,
    /// Mean length of a visit to each function (ms); lengths are exponential.
    pub bout_ms: Vec<f64>,
}

/// How it is sampled.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// Samples per CPU-second.
    pub rate_hz: f64,
    /// CPU time of the run (s).
    pub run_s: f64,
    /// Length of a window (ms); 0 for those of a real run, which are short at first.
    pub window_ms: f64,
}

/// A run: what was sampled, and what really happened.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// The windows.
    pub windows: Vec<Window>,
    /// Each function's part in the windows; empty for one that was not sampled.
    pub functions: Vec<Vec<Part>>,
    /// The shares of this run, sampled or not.
    pub realised: Vec<f64>,
}

impl Program {
    /// Functions of these shares (scaled to a sum of 1) that are all visited for `bout_ms` on average.
    pub fn new(shares: &[f64], bout_ms: f64) -> Self {
        let total: f64 = shares.iter().sum();
        let shares: Vec<f64> = shares.iter().map(|share| share / total).collect();
        Program { bout_ms: vec![bout_ms; shares.len()], shares }
    }

    /// The same with every second function visited for a tenth of the time, ten times as often.
    pub fn uneven(mut self) -> Self {
        self.bout_ms.iter_mut().skip(1).step_by(2).for_each(|bout_ms| *bout_ms /= 10.0);
        self
    }

    /// Runs it under a sampler.
    pub fn run(&self, sampling: Sampling, rng: &mut fastrand::Rng) -> Run {
        let run_ms = sampling.run_s * 1e3;
        let mut recorder = Recorder::new(sampling, self.shares.len(), rng);
        let visits = cumulated(self.shares.iter().zip(&self.bout_ms).map(|(share, bout_ms)| share / bout_ms));
        // Where it starts, it is found as often as it is there.
        let mut function = pick(&cumulated(self.shares.iter().copied()), rng);
        let (mut at_ms, mut realised) = (0.0, vec![0.0; self.shares.len()]);
        while at_ms < run_ms {
            let end_ms = (at_ms - self.bout_ms[function] * (1.0 - rng.f64()).ln()).min(run_ms);
            realised[function] += (end_ms - at_ms) / run_ms;
            recorder.stay(function, end_ms, rng);
            at_ms = end_ms;
            function = pick(&visits, rng);
        }
        Run { realised, ..recorder.finish() }
    }
}

fn cumulated(weights: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut sum = 0.0;
    weights
        .map(|weight| {
            sum += weight;
            sum
        })
        .collect()
}

fn pick(cumulated: &[f64], rng: &mut fastrand::Rng) -> usize {
    let at = rng.f64() * cumulated.last().copied().unwrap_or(0.0);
    cumulated.partition_point(|sum| *sum <= at).min(cumulated.len().saturating_sub(1))
}

/// A clock whose period is redrawn, and the windows it fills.
struct Recorder {
    sampling: Sampling,
    next_ms: f64,
    period_ms: f64,
    redraw_ms: f64,
    /// Where the windows end (ms).
    ends_ms: Vec<f64>,
    at: usize,
    windows: Vec<Window>,
    functions: Vec<BTreeMap<u32, Part>>,
}

impl Sampling {
    fn ends_ms(&self) -> Vec<f64> {
        let (mut at_ms, mut ends_ms) = (0.0, Vec::new());
        while at_ms < self.run_s * 1e3 {
            let usual_ms = window_ns((at_ms * 1e6) as u64) as f64 * 1e-6;
            at_ms += if self.window_ms > 0.0 { self.window_ms } else { usual_ms };
            ends_ms.push(at_ms);
        }
        ends_ms
    }
}

impl Recorder {
    fn new(sampling: Sampling, functions: usize, rng: &mut fastrand::Rng) -> Self {
        let ends_ms = sampling.ends_ms();
        let mut recorder = Recorder {
            sampling,
            next_ms: 0.0,
            period_ms: 0.0,
            redraw_ms: REDRAW_MS,
            at: 0,
            windows: vec![Window::default(); ends_ms.len()],
            ends_ms,
            functions: vec![BTreeMap::new(); functions],
        };
        recorder.redraw(rng);
        recorder.next_ms = recorder.period_ms * rng.f64();
        recorder
    }

    fn redraw(&mut self, rng: &mut fastrand::Rng) {
        let factor = 1.0 + REDRAW_WIDTH * (2.0 * rng.f64() - 1.0);
        self.period_ms = 1e3 / self.sampling.rate_hz * factor;
    }

    /// The program is in a function until then.
    fn stay(&mut self, function: usize, end_ms: f64, rng: &mut fastrand::Rng) {
        while self.next_ms < end_ms {
            while self.ends_ms[self.at] <= self.next_ms {
                self.at += 1;
            }
            let window = self.at;
            let weight_ns = self.period_ms * 1e6;
            let part = self.functions[function].entry(window as u32).or_default();
            part.window = window as u32;
            part.weight_ns += weight_ns;
            part.samples += 1;
            self.windows[window].weight_ns += weight_ns;
            self.windows[window].samples += 1;
            if self.next_ms >= self.redraw_ms {
                self.redraw_ms += REDRAW_MS;
                self.redraw(rng);
            }
            self.next_ms += self.period_ms;
        }
    }

    fn finish(self) -> Run {
        let functions = self.functions.into_iter().map(|parts| parts.into_values().collect()).collect();
        Run { windows: self.windows, functions, realised: Vec::new() }
    }
}

impl Run {
    /// What a profile held after the first `windows`.
    pub fn until(&self, windows: usize) -> Run {
        let before = |parts: &Vec<Part>| {
            parts.iter().copied().take_while(|part| (part.window as usize) < windows).collect()
        };
        Run {
            windows: self.windows[..windows.min(self.windows.len())].to_vec(),
            functions: self.functions.iter().map(before).collect(),
            realised: Vec::new(),
        }
    }
}
