//! The host: its clock, what a sample truly costs, and the readings that the controller gets.

use std::collections::BTreeMap;

use profiler_core::rate::{Decision, Dither, Reading, TopShares};

use super::program::{Slice, Thread};
use super::scenario::{BYTE_US, FRAME_US, Scenario};

/// The daemon looks this often (ns).
pub(super) const TICK_NS: u64 = 100_000_000;
/// It reads the rings this often in between (ns).
const LOOK_NS: u64 = 20_000_000;
/// Threads take turns at this grain (ns).
const SLICE_NS: u64 = 2_000_000;

/// What truly happened in a tick.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Truth {
    pub(super) wall_ns: f64,
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

    /// Lets a tick pass, or less if the controller is `overdrawn` by what the rings hold; returns what the
    /// daemon read and what was true.
    pub(super) fn tick(&mut self, overdrawn: impl Fn(&Reading) -> bool) -> (Reading, TopShares, Truth) {
        let (started_ns, mut slice, mut tick) = (self.now_ns, Slice::default(), Tick::default());
        let noise = 1.0 + self.scenario.noise_ratio * (2.0 * self.rng.f64() - 1.0);
        // Own CPU time comes in lumps: within a third either way.
        let lump = 0.67 + 0.66 * self.rng.f64();
        loop {
            let before = slice.functions.len();
            self.run_threads(&mut slice);
            tick.add(self.scenario, self.now_s(), slice.functions.len() - before, &mut self.rng);
            self.now_ns += SLICE_NS;
            let reading = tick.reading(self.now_ns, &slice, lump);
            let looks = self.now_ns.is_multiple_of(LOOK_NS);
            if self.now_ns.is_multiple_of(TICK_NS)
                || (looks && overdrawn(&Reading { target_cpu_ns: 0, ..reading }))
            {
                let truth = Truth {
                    wall_ns: (self.now_ns - started_ns) as f64,
                    cpu_ns: slice.cpu_ns,
                    target_ns: tick.true_us * 1e3 * noise,
                    self_ns: reading.self_cpu_ns as f64,
                    samples: reading.samples,
                    weight_ns: self.threads.iter_mut().map(Thread::read).sum(),
                };
                return (reading, shares(&slice), truth);
            }
        }
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
            thread.run(phase, self.now_ns + SLICE_NS, phase.utilisation * SLICE_NS as f64, slice);
        }
    }
}

/// Counts and true costs of a tick.
#[derive(Default)]
struct Tick {
    frames: u64,
    stack_bytes: u64,
    true_us: f64,
    own_us: f64,
}

impl Tick {
    fn add(&mut self, scenario: &Scenario, at_s: f64, samples: usize, rng: &mut fastrand::Rng) {
        let phase = scenario.phase(at_s);
        let frames: u64 = (0..samples).map(|_| (phase.frames * (0.5 + rng.f64())).round() as u64).sum();
        let stack_bytes = samples as u64 * phase.stack_bytes;
        self.frames += frames;
        self.stack_bytes += stack_bytes;
        self.true_us +=
            samples as f64 * phase.sample_us + frames as f64 * FRAME_US + stack_bytes as f64 * BYTE_US;
        self.own_us += samples as f64 * phase.own_us + scenario.own_per_second_us * SLICE_NS as f64 * 1e-9;
    }

    fn reading(&self, at_ns: u64, slice: &Slice, lump: f64) -> Reading {
        Reading {
            at_ns,
            target_cpu_ns: slice.cpu_ns as u64,
            self_cpu_ns: (self.own_us * 1e3 * lump) as u64,
            samples: slice.functions.len() as u64,
            frames: self.frames,
            stack_bytes: self.stack_bytes,
            ..Reading::default()
        }
    }
}

fn shares(slice: &Slice) -> TopShares {
    let mut counts = BTreeMap::<u64, u64>::new();
    slice.functions.iter().for_each(|function| *counts.entry(*function as u64).or_default() += 1);
    TopShares { counts: counts.into_iter().collect() }
}
