//! The host: its clock, what a sample truly costs, and the readings that the controller gets.

use std::collections::BTreeMap;

use profiler_core::rate::{BurstSchedule, Decision, Dither, HandlerTime, Reading, ThreadVisits, TopShares};

use super::profile::Functions;
use super::program::{Hit, Slice, Thread};
use super::scenario::Scenario;

/// The shortest step, where the last was late or cut short (ns); steps are drawn by the dither, as the daemon's are.
const MIN_STEP_NS: u64 = 50_000_000;
/// The rings are read this often in between (ns).
const LOOK_NS: u64 = 20_000_000;
/// Threads take turns at this grain (ns).
const SLICE_NS: u64 = 2_000_000;

/// What truly happened in a step.
#[derive(Clone, Debug, Default)]
pub(super) struct Truth {
    pub(super) wall_ns: f64,
    pub(super) cpu_ns: f64,
    pub(super) target_ns: f64,
    pub(super) self_ns: f64,
    pub(super) samples: u64,
    pub(super) functions: Functions,
    /// What the handler took for the first samples, as tracepoints would have timed it.
    pub(super) handlers: Vec<HandlerTime>,
}

/// Interrupts that a measurement of the host sees, by how much they vary, and the time between two measurements (ns).
const MEASURED_INTERRUPTS: usize = 10;
const INTERRUPT_NOISE: f64 = 0.2;
const MEASURED_EVERY_NS: u64 = 5_000_000_000;
const MEASURED_AT_FIRST_NS: u64 = 1_000_000_000;

/// By how much a handler's time varies from sample to sample, as a share.
const HANDLER_NOISE: f64 = 0.3;

pub(super) struct Host<'a> {
    scenario: &'a Scenario,
    rng: fastrand::Rng,
    dither: Dither,
    threads: Vec<Thread>,
    visits: ThreadVisits,
    now_ns: u64,
    next_step_ns: u64,
    next_measured_ns: u64,
    period_ns: u64,
}

impl<'a> Host<'a> {
    pub(super) fn new(scenario: &'a Scenario, seed: u64, first: &Decision) -> Self {
        let mut dither = Dither::new(seed);
        let most = scenario.phases.iter().map(|phase| phase.threads).max().unwrap_or(1);
        let thread = |i| Thread::new(i as u32, seed * 1_000 + i as u64, first.period_ns, &mut dither);
        let threads = (0..most).map(thread).collect();
        let rng = fastrand::Rng::with_seed(seed ^ 0x5eed);
        let next_step_ns = dither.step_ns(scenario.age_for_steps_ns(0));
        let (visits, period_ns) = (ThreadVisits::default(), first.period_ns);
        Host {
            scenario,
            rng,
            dither,
            threads,
            visits,
            now_ns: 0,
            next_step_ns,
            next_measured_ns: 0,
            period_ns,
        }
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

    /// Simulates a step, or less if the samples in the rings make the controller `overdrawn`; returns the
    /// daemon's readings and the truth.
    pub(super) fn step(&mut self, overdrawn: impl Fn(&Reading) -> bool) -> (Reading, TopShares, Truth) {
        let (started_ns, mut own_us) = (self.now_ns, 0.0);
        let mut slice = Slice { depth: 1.0, ..Slice::default() };
        let noise = 1.0 + self.scenario.noise_ratio * (2.0 * self.rng.f64() - 1.0);
        // Own CPU time comes in lumps: within a third either way.
        let lump = 0.67 + 0.66 * self.rng.f64();
        loop {
            let before = slice.hits.len();
            own_us += self.scenario.own_per_second_us * SLICE_NS as f64 * 1e-9;
            own_us += self.run_threads(&mut slice) * (slice.hits.len() - before) as f64;
            self.now_ns += SLICE_NS;
            let reading = reading(self.scenario, self.now_ns, &slice, own_us * lump);
            let looks = self.now_ns.is_multiple_of(LOOK_NS);
            if self.now_ns >= self.next_step_ns
                || (looks && overdrawn(&Reading { target_cpu_ns: 0, ..reading }))
            {
                let truth = self.truth((self.now_ns - started_ns) as f64, &mut slice, &reading, noise);
                let step_ns = self.dither.step_ns(self.scenario.age_for_steps_ns(self.now_ns));
                self.next_step_ns = (self.next_step_ns + step_ns).max(self.now_ns + MIN_STEP_NS);
                return (reading, self.shares(&slice), truth);
            }
        }
    }

    /// Runs all threads for a slice; returns the profiler's own cost of a sample at present (µs).
    fn run_threads(&mut self, slice: &mut Slice) -> f64 {
        let at_s = self.now_s();
        let phase = self.scenario.phase(at_s);
        let bursts = phase.burst_every_s > 0.0;
        // Bursts begin at no round time, so that they meet steps anywhere.
        if bursts && (at_s + 0.037) % phase.burst_every_s >= phase.burst_s {
            return phase.own_us;
        }
        if phase.growth > 0.0 {
            slice.depth = (1e9 / self.period_ns as f64 / self.scenario.optimum_hz(phase)).powf(phase.growth);
        }
        for thread in &mut self.threads[..phase.threads] {
            thread.run(phase, self.now_ns + SLICE_NS, phase.utilisation * SLICE_NS as f64, slice);
        }
        phase.own_us
    }

    fn shares(&mut self, slice: &Slice) -> TopShares {
        let mut counts = BTreeMap::<u64, u64>::new();
        for hit in &slice.hits {
            *counts.entry(hit.function as u64).or_default() += 1;
            self.visits.sampled(hit.tid, hit.function as u64, hit.gap_ns);
        }
        TopShares { counts: counts.into_iter().collect(), neighbours: self.visits.take() }
    }

    fn truth(&mut self, wall_ns: f64, slice: &mut Slice, reading: &Reading, noise: f64) -> Truth {
        let mut functions = std::mem::take(&mut slice.functions);
        self.threads.iter_mut().for_each(|thread| thread.read(&mut functions));
        Truth {
            wall_ns,
            cpu_ns: slice.cpu_ns,
            target_ns: slice.hits.iter().map(|hit| hit.cost_ns).sum::<f64>() * noise,
            self_ns: reading.self_cpu_ns as f64,
            samples: reading.samples,
            functions,
            handlers: self.handlers(slice),
        }
    }

    /// For how long interrupts hold up a thread that spins on this host (ns), every few seconds.
    pub(super) fn interrupts(&mut self) -> Option<Vec<f64>> {
        if self.now_ns < self.next_measured_ns {
            return None;
        }
        let is_first = self.next_measured_ns < 2 * MEASURED_AT_FIRST_NS;
        self.next_measured_ns += if is_first { MEASURED_AT_FIRST_NS } else { MEASURED_EVERY_NS };
        let phase = self.scenario.phase(self.now_s());
        let mut one = || {
            let noise = 1.0 + INTERRUPT_NOISE * (2.0 * self.rng.f64() - 1.0);
            phase.one_interrupt_us(&mut self.rng) * 1e3 * noise
        };
        Some((0..MEASURED_INTERRUPTS).map(|_| one()).collect())
    }

    fn handlers(&mut self, slice: &Slice) -> Vec<HandlerTime> {
        let phase = self.scenario.phase((self.now_ns - SLICE_NS) as f64 * 1e-9);
        let timed = |hit: &Hit| HandlerTime {
            time_ns: phase.handler_us(hit.frames)
                * 1e3
                * (1.0 + HANDLER_NOISE * (2.0 * self.rng.f64() - 1.0)),
            frames: hit.frames,
            stack_bytes: phase.stack_bytes,
        };
        slice.hits.iter().take(BurstSchedule::SAMPLES).map(timed).collect()
    }
}

fn reading(scenario: &Scenario, at_ns: u64, slice: &Slice, own_us: f64) -> Reading {
    let samples = slice.hits.len() as u64;
    let copied = scenario.phase((at_ns - SLICE_NS) as f64 * 1e-9).stack_bytes;
    Reading {
        at_ns,
        target_cpu_ns: slice.cpu_ns as u64,
        self_cpu_ns: (own_us * 1e3) as u64,
        samples,
        frames: slice.hits.iter().map(|hit| hit.frames).sum(),
        stack_bytes: samples * copied,
        ..Reading::default()
    }
}
