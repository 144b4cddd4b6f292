//! Programs that are periodic themselves, under a fixed period and under the profiler's random ones.

use std::collections::VecDeque;

use profiler_core::rate::{Dither, PeriodTimeline};

/// Share of each cycle of the program that the function of interest takes.
const SHARE: f64 = 0.2;
/// Length of a run (ns of CPU time).
const RUN_NS: u64 = 30_000_000_000;
/// What the daemon drains at a tick is older than this (ns).
const SETTLING_NS: u64 = 2_000_000;

/// How the clock is driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The same period from start to end.
    Fixed,
    /// Redrawn at ticks, as the daemon does it.
    Dithered,
}

/// Program periods of 0.5 to 50 ms (ns): thirty spaced evenly in logarithms, and five in resonance with a rate of
/// `rate_hz`, or nearly, and with a tick.
pub fn program_periods_ns(rate_hz: f64) -> Vec<f64> {
    let spaced = (0..30).map(|i| 0.5e6 * 100f64.powf(f64::from(i) / 29.0));
    let period = 1e9 / rate_hz;
    let near = [period, 1.0001 * period, 0.5 * period, 3.0 * period, 50e6];
    spaced.chain(near.map(|ns| ns.clamp(0.5e6, 50e6))).collect()
}

/// Root mean square over `runs` of the error of the function's share, in binomial standard deviations: 1 for
/// samples at random times.
pub fn error_sd(clock: Clock, rate_hz: f64, program_ns: f64, runs: u64) -> f64 {
    let squares: f64 = (0..runs).map(|seed| run(clock, rate_hz, program_ns, seed).powi(2)).sum();
    (squares / runs as f64).sqrt()
}

/// The error of one run with a program that starts anywhere in its cycle.
fn run(clock: Clock, rate_hz: f64, program_ns: f64, seed: u64) -> f64 {
    let offset = fastrand::Rng::with_seed(seed ^ 0x5eed).f64();
    let inside = |at_ns: u64| (at_ns as f64 / program_ns + offset).fract() < SHARE;
    let mut weights = Weights::default();
    let mut event = Event::new((1e9 / rate_hz) as u64, clock, seed);
    while event.now_ns < RUN_NS {
        event.tick(|at_ns, weight| weights.add(inside(at_ns), weight));
    }
    let deviation = (SHARE * (1.0 - SHARE) / weights.samples).sqrt();
    (weights.inside / weights.all - SHARE) / deviation
}

#[derive(Default)]
struct Weights {
    inside: f64,
    all: f64,
    samples: f64,
}

impl Weights {
    fn add(&mut self, inside: bool, weight: u64) {
        self.samples += 1.0;
        self.all += weight as f64;
        self.inside += if inside { weight as f64 } else { 0.0 };
    }
}

/// An event of a task that is always busy, drained and redrawn at ticks.
struct Event {
    clock: Clock,
    dither: Dither,
    timeline: PeriodTimeline,
    mean_ns: u64,
    period_ns: u64,
    next_sample_ns: u64,
    unread: VecDeque<u64>,
    now_ns: u64,
}

impl Event {
    fn new(mean_ns: u64, clock: Clock, seed: u64) -> Self {
        let mut dither = Dither::new(seed);
        let period_ns = if clock == Clock::Fixed { mean_ns } else { dither.draw(mean_ns) };
        Event {
            clock,
            dither,
            timeline: PeriodTimeline::new(0, period_ns),
            mean_ns,
            period_ns,
            next_sample_ns: period_ns,
            unread: VecDeque::new(),
            now_ns: 0,
        }
    }

    fn tick(&mut self, mut handle: impl FnMut(u64, u64)) {
        self.now_ns += self.dither.step_ns(self.now_ns);
        while self.next_sample_ns < self.now_ns {
            self.unread.push_back(self.next_sample_ns);
            self.next_sample_ns += self.period_ns;
        }
        let settled = self.unread.partition_point(|at_ns| *at_ns + SETTLING_NS <= self.now_ns);
        for at_ns in self.unread.drain(..settled) {
            handle(at_ns, self.timeline.weight(at_ns));
        }
        if self.clock == Clock::Dithered && self.timeline.due(self.now_ns, self.mean_ns, &mut self.dither) {
            self.period_ns = self.dither.draw(self.mean_ns);
            self.timeline.set(self.now_ns, self.period_ns, self.mean_ns);
            self.next_sample_ns = self.now_ns + self.period_ns;
        }
    }
}
