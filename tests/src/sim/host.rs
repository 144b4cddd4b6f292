//! The host: its clock, what a sample truly costs, and the readings that the controller gets.

use profiler_core::rate::{Decision, Dither, Reading, TopShares};

use super::program::{Slice, Thread};
use super::scenario::{BYTE_US, FRAME_US, Scenario};

/// The daemon looks this often (ns).
pub(super) const TICK_NS: u64 = 100_000_000;
/// Threads take turns at this grain (ns).
const SLICE_NS: u64 = 2_000_000;

/// What truly happened in a tick.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Truth {
    pub(super) cpu_ns: f64,
    pub(super) target_ns: f64,
    pub(super) self_ns: f64,
    pub(super) samples: u64,
    pub(super) weight_ns: f64,
}

pub(super) struct Host<'a> {
    scenario: &'a Scenario,
    rng: fastrand::Rng,
    dither: Dither,
    threads: Vec<Thread>,
    now_ns: u64,
    period_ns: u64,
}

impl<'a> Host<'a> {
    pub(super) fn new(scenario: &'a Scenario, seed: u64, first: &Decision) -> Self {
        let mut dither = Dither::new(seed);
        let most = scenario.phases.iter().map(|phase| phase.threads).max().unwrap_or(1);
        let thread = |i| Thread::new(seed * 1_000 + i as u64, first.period_ns, &mut dither);
        let threads = (0..most).map(thread).collect();
        let rng = fastrand::Rng::with_seed(seed ^ 0x5eed);
        Host { scenario, rng, dither, threads, now_ns: 0, period_ns: first.period_ns }
    }

    pub(super) fn now_s(&self) -> f64 {
        self.now_ns as f64 * 1e-9
    }

    /// Sets the mean period from now on, as events become due.
    pub(super) fn obey(&mut self, decision: &Decision) {
        self.period_ns = decision.period_ns;
        for thread in &mut self.threads {
            thread.set(self.now_ns, self.period_ns, &mut self.dither);
        }
    }

    /// Lets a tick pass; returns what the daemon read and what was true.
    pub(super) fn tick(&mut self) -> (Reading, TopShares, Truth) {
        let mut slice = Slice::default();
        for _ in 0..TICK_NS / SLICE_NS {
            self.now_ns += SLICE_NS;
            self.run_threads(&mut slice);
        }
        let weight_ns = self.threads.iter_mut().map(Thread::read).sum();
        self.measure(&slice, weight_ns)
    }

    fn run_threads(&mut self, slice: &mut Slice) {
        let at_s = self.now_s();
        let phase = self.scenario.phase(at_s);
        let bursts = phase.burst_every_s > 0.0;
        // Bursts begin at no round time, so that they meet ticks anywhere.
        if bursts && (at_s + 0.037) % phase.burst_every_s >= phase.burst_s {
            return;
        }
        for thread in &mut self.threads[..phase.threads] {
            thread.run(phase, self.now_ns, phase.utilisation * SLICE_NS as f64, slice);
        }
    }

    fn measure(&mut self, slice: &Slice, weight_ns: f64) -> (Reading, TopShares, Truth) {
        let phase = self.scenario.phase(self.now_s());
        let samples = slice.functions.len() as u64;
        let mut counts = vec![0u64; phase.shares.len().max(1)];
        let frames: u64 =
            slice.functions.iter().map(|_| (phase.frames * (0.5 + self.rng.f64())).round() as u64).sum();
        slice.functions.iter().for_each(|function| counts[*function] += 1);

        let noise = 1.0 + self.scenario.noise_ratio * (2.0 * self.rng.f64() - 1.0);
        let stack_bytes = samples * phase.stack_bytes;
        let true_us =
            samples as f64 * phase.sample_us + frames as f64 * FRAME_US + stack_bytes as f64 * BYTE_US;
        // Own CPU time comes in lumps: within a third either way.
        let own_us = samples as f64 * phase.own_us + self.scenario.own_per_second_us * TICK_NS as f64 * 1e-9;
        let self_ns = own_us * 1e3 * (0.67 + 0.66 * self.rng.f64());
        let reading = Reading {
            at_ns: self.now_ns,
            target_cpu_ns: slice.cpu_ns as u64,
            self_cpu_ns: self_ns as u64,
            samples,
            frames,
            stack_bytes,
            ..Reading::default()
        };
        let truth =
            Truth { cpu_ns: slice.cpu_ns, target_ns: true_us * 1e3 * noise, self_ns, samples, weight_ns };
        let counts = counts.into_iter().enumerate().map(|(key, n)| (key as u64, n)).filter(|(_, n)| *n > 0);
        (reading, TopShares { counts: counts.collect() }, truth)
    }
}
