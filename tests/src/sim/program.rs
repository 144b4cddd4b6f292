//! The program that is sampled: threads that visit functions in bouts.

use std::collections::VecDeque;

use profiler_core::rate::{Dither, PeriodTimeline};

use super::scenario::Phase;

/// A thread with an event of its own.
pub(super) struct Thread {
    rng: fastrand::Rng,
    function: usize,
    bout_left_ns: f64,
    /// CPU time until the event fires.
    left_ns: f64,
    period_ns: u64,
    timeline: PeriodTimeline,
    unread: VecDeque<u64>,
}

/// What a thread did in a slice of time.
#[derive(Default)]
pub(super) struct Slice {
    pub(super) functions: Vec<usize>,
    pub(super) cpu_ns: f64,
}

impl Thread {
    pub(super) fn new(seed: u64, mean_period_ns: u64, dither: &mut Dither) -> Self {
        let period_ns = dither.draw(mean_period_ns);
        Thread {
            rng: fastrand::Rng::with_seed(seed),
            function: 0,
            bout_left_ns: 0.0,
            left_ns: period_ns as f64,
            period_ns,
            timeline: PeriodTimeline::new(0, period_ns),
            unread: VecDeque::new(),
        }
    }

    /// Runs for `cpu_ns` up to `now_ns`; samples fall into functions.
    pub(super) fn run(&mut self, phase: &Phase, now_ns: u64, cpu_ns: f64, slice: &mut Slice) {
        slice.cpu_ns += cpu_ns;
        let mut left = cpu_ns;
        while left > 0.0 {
            if self.bout_left_ns <= 0.0 {
                self.visit(phase);
            }
            let step = left.min(self.bout_left_ns).min(self.left_ns);
            (left, self.bout_left_ns, self.left_ns) =
                (left - step, self.bout_left_ns - step, self.left_ns - step);
            if self.left_ns <= 0.0 {
                self.left_ns += self.period_ns as f64;
                self.unread.push_back(now_ns);
                slice.functions.push(self.function);
            }
        }
    }

    fn visit(&mut self, phase: &Phase) {
        let mut pick = self.rng.f64() * phase.shares.iter().sum::<f64>();
        self.function = phase
            .shares
            .iter()
            .position(|share| {
                pick -= share;
                pick < 0.0
            })
            .unwrap_or(0);
        self.bout_left_ns = (phase.bout_ms * 1e6 * -(1.0 - self.rng.f64()).ln()).max(1_000.0);
    }

    /// Reads the ring; the sum of the weights of what was in it.
    pub(super) fn read(&mut self) -> f64 {
        self.unread.drain(..).map(|at_ns| self.timeline.weight(at_ns) as f64).sum()
    }

    /// Redraws or changes the period, if it is due.
    pub(super) fn set(&mut self, now_ns: u64, mean_period_ns: u64, dither: &mut Dither) {
        if self.timeline.due(now_ns, mean_period_ns, dither) {
            self.period_ns = dither.draw(mean_period_ns);
            self.left_ns = self.period_ns as f64;
            self.timeline.set(now_ns + 1, self.period_ns, mean_period_ns);
        }
    }
}
