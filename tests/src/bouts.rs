//! A program that stays in its functions for a while, and what a profiler sees of it: for the statistics of
//! profiles, faster than the simulated host by orders.

use std::collections::BTreeMap;

use profiler_core::rate::{Dither, PeriodTimeline};
use profiler_core::stats::{Part, WindowSums, window_ns};

/// A program whose long-run shares are known.
#[derive(Clone, Debug)]
pub struct Program {
    /// The functions' long-run shares of the CPU time; they sum to 1.
    pub shares: Vec<f64>,
    /// Mean length of a visit to each function (ms).
    pub bout_ms: Vec<f64>,
    /// How the visits follow each other.
    pub visits: Visits,
}

/// How the visits to functions follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visits {
    /// At random, of exponential lengths.
    Random,
    /// At random, all visits to a function of one length.
    Alike,
    /// In turn, all visits to a function of one length.
    Rounds,
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
    pub windows: Vec<WindowSums>,
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
        Program { bout_ms: vec![bout_ms; shares.len()], shares, visits: Visits::Random }
    }

    /// Functions of these shares (scaled to a sum of 1) that are visited in rounds of `round_ms`.
    pub fn in_rounds(shares: &[f64], round_ms: f64) -> Self {
        let program = Program::new(shares, 0.0);
        let bout_ms = program.shares.iter().map(|share| share * round_ms).collect();
        Program { bout_ms, visits: Visits::Rounds, ..program }
    }

    /// The same with visits to a function that all last as long.
    pub fn alike(self) -> Self {
        Program { visits: Visits::Alike, ..self }
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
        let chances =
            cumulated(self.shares.iter().zip(&self.bout_ms).map(|(share, bout_ms)| share / bout_ms));
        // Where it starts, it is found as often as it is there.
        let mut function = pick(&cumulated(self.shares.iter().copied()), rng);
        let (mut at_ms, mut realised) = (0.0, vec![0.0; self.shares.len()]);
        let mut begun = if self.visits == Visits::Random { 0.0 } else { rng.f64() };
        while at_ms < run_ms {
            let length = if self.visits == Visits::Random { -(1.0 - rng.f64()).ln() } else { 1.0 - begun };
            let end_ms = (at_ms + self.bout_ms[function] * length).min(run_ms);
            realised[function] += (end_ms - at_ms) / run_ms;
            recorder.stay(function, end_ms);
            (at_ms, begun) = (end_ms, 0.0);
            function = match self.visits {
                Visits::Rounds => (function + 1) % self.shares.len(),
                Visits::Random | Visits::Alike => pick(&chances, rng),
            };
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

/// A clock whose period is redrawn as the daemon does it, and the windows it fills.
struct Recorder {
    mean_ns: u64,
    dither: Dither,
    timeline: PeriodTimeline,
    next_ns: u64,
    period_ns: u64,
    tick_ns: u64,
    /// Where the windows end (ms).
    ends_ms: Vec<f64>,
    at: usize,
    windows: Vec<WindowSums>,
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
        let mut dither = Dither::new(rng.u64(..));
        let mean_ns = (1e9 / sampling.rate_hz) as u64;
        let period_ns = dither.draw(mean_ns);
        Recorder {
            mean_ns,
            timeline: PeriodTimeline::new(0, period_ns),
            next_ns: period_ns,
            period_ns,
            tick_ns: dither.step_ns(0),
            dither,
            at: 0,
            windows: vec![WindowSums::default(); ends_ms.len()],
            ends_ms,
            functions: vec![BTreeMap::new(); functions],
        }
    }

    /// The program is in a function until then.
    fn stay(&mut self, function: usize, end_ms: f64) {
        let end_ns = (end_ms * 1e6) as u64;
        while self.next_ns.min(self.tick_ns) < end_ns {
            if self.tick_ns <= self.next_ns {
                self.tick();
            } else {
                self.sample(function);
            }
        }
    }

    fn sample(&mut self, function: usize) {
        while self.ends_ms[self.at] * 1e6 <= self.next_ns as f64 {
            self.at += 1;
        }
        let window = self.at;
        let weight_ns = self.timeline.weight(self.next_ns) as f64;
        let part = self.functions[function].entry(window as u32).or_default();
        part.window = window as u32;
        part.weight_ns += weight_ns;
        part.samples += 1;
        self.windows[window].weight_ns += weight_ns;
        self.windows[window].samples += 1;
        self.next_ns += self.period_ns;
    }

    fn tick(&mut self) {
        if self.timeline.due(self.tick_ns, self.mean_ns, &mut self.dither) {
            self.period_ns = self.dither.draw(self.mean_ns);
            self.timeline.set(self.tick_ns, self.period_ns, self.mean_ns);
            self.next_ns = self.tick_ns + self.period_ns;
        }
        self.tick_ns += self.dither.step_ns(self.tick_ns);
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
