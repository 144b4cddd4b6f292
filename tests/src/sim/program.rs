//! The program that is sampled: threads that visit functions in bouts, or in a fixed round.

use std::collections::VecDeque;

use profiler_core::rate::{Dither, PeriodTimeline};

use super::profile::Functions;
use super::scenario::Phase;

/// A thread with an event of its own.
pub(super) struct Thread {
    tid: u32,
    rng: fastrand::Rng,
    function: usize,
    bout_left_ns: f64,
    /// What the last samples still hold the thread up for (ns).
    stall_ns: f64,
    /// CPU time until the event fires.
    left_ns: f64,
    period_ns: u64,
    timeline: PeriodTimeline,
    unread: VecDeque<(u64, usize)>,
}

/// What threads did in a step.
#[derive(Default)]
pub(super) struct Slice {
    pub(super) hits: Vec<Hit>,
    /// Depth of the stacks at the present rate, as a factor.
    pub(super) depth: f64,
    /// CPU time, with what samples took.
    pub(super) cpu_ns: f64,
    /// CPU time by function, without.
    pub(super) functions: Functions,
}

/// A sample as the target feels it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hit {
    pub(super) function: usize,
    pub(super) frames: u64,
    pub(super) cost_ns: f64,
    pub(super) tid: u32,
    /// CPU time of the thread since the one before.
    pub(super) gap_ns: u64,
}

impl Thread {
    pub(super) fn new(tid: u32, seed: u64, mean_period_ns: u64, dither: &mut Dither) -> Self {
        let period_ns = dither.draw(mean_period_ns);
        Thread {
            tid,
            rng: fastrand::Rng::with_seed(seed),
            function: 0,
            bout_left_ns: 0.0,
            stall_ns: 0.0,
            left_ns: period_ns as f64,
            period_ns,
            timeline: PeriodTimeline::new(0, period_ns),
            unread: VecDeque::new(),
        }
    }

    /// Runs for `cpu_ns` up to `now_ns`; samples fall into functions and hold the thread up there.
    pub(super) fn run(&mut self, phase: &Phase, now_ns: u64, cpu_ns: f64, slice: &mut Slice) {
        slice.cpu_ns += cpu_ns;
        let mut left = cpu_ns;
        while left > 0.0 {
            let stalled = self.stall_ns > 0.0;
            if !stalled && self.bout_left_ns <= 0.0 {
                self.visit(phase);
            }
            let bout_ns = if stalled { &mut self.stall_ns } else { &mut self.bout_left_ns };
            let step = left.min(*bout_ns).min(self.left_ns);
            *bout_ns -= step;
            (left, self.left_ns) = (left - step, self.left_ns - step);
            if !stalled {
                slice.functions.work(self.function, step);
            }
            if self.left_ns <= 0.0 {
                self.fire(phase, now_ns, slice);
            }
        }
    }

    fn fire(&mut self, phase: &Phase, now_ns: u64, slice: &mut Slice) {
        self.left_ns += self.period_ns as f64;
        self.unread.push_back((now_ns, self.function));
        let frames = (phase.frames * slice.depth * (0.5 + self.rng.f64())).round() as u64;
        let excess_us = phase.one_interrupt_us(&mut self.rng) - phase.interrupt_us();
        let cost_ns = (phase.cost_us(self.function, frames) + excess_us) * 1e3;
        let hit = Hit { function: self.function, frames, cost_ns, tid: self.tid, gap_ns: self.period_ns };
        self.stall_ns += hit.cost_ns;
        slice.hits.push(hit);
    }

    fn visit(&mut self, phase: &Phase) {
        if phase.round_ms > 0.0 {
            self.function = (self.function + 1) % phase.shares.len();
            self.bout_left_ns = (phase.share(self.function) * phase.round_ms * 1e6).max(1.0);
            return;
        }
        let mut pick = self.rng.f64();
        let found = phase.all_shares().position(|share| {
            pick -= share;
            pick < 0.0
        });
        self.function = found.unwrap_or(0);
        self.bout_left_ns = (phase.bout_ms * 1e6 * -(1.0 - self.rng.f64()).ln()).max(1_000.0);
    }

    /// Reads the ring: what each sample in it stands for is added to its function.
    pub(super) fn read(&mut self, functions: &mut Functions) {
        for (at_ns, function) in self.unread.drain(..) {
            functions.sample(function, self.timeline.weight(at_ns));
        }
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
