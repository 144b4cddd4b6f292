//! The quick calibration: a thread of ours does the same work with and without being sampled, in turns. What takes
//! longer to find out keeps its cautious guess.

use std::io;
use std::thread;

use nix::unistd::gettid;
use profiler_core::handler_trace::HandledSample;
use profiler_core::rate::calibration::{Trial, fit};
use profiler_core::rate::{CacheSensitivity, Cost, CostModel, HandlerTime, SampleKind, handler_costs};
use profiler_core::record::{Record, RecordFormat};
use profiler_core::sorter::RecordQueue;

use super::load::{OtherLoad, waiting};
use super::place::CpuPair;
use super::spin::{compute, iterations_for, with_stack_above};
use super::workload::SwitchPartner;
use crate::sampler::access::Access;
use crate::sampler::handler_tracer::HandlerTracer;
use crate::sampler::interrupt_probe;
use crate::sys::affinity::stay_on;
use crate::sys::frames::with_frames;
use crate::sys::perf_event::{ClockEvent, Event, EventReports, Scope};
use crate::sys::ring::PerfRing;
use crate::sys::{clock, procfs};

/// Period of the samples that are measured (ns): about forty in a slice.
const PERIOD_NS: u64 = 100_000;
/// CPU time of one slice without samples (ns).
const SLICE_NS: u64 = 4_000_000;
/// Rounds, each with every probe twice, in opposite orders.
const ROUNDS: usize = 5;
/// Frames above the work where they are few, and where they are many.
const SHALLOW: u64 = 4;
const DEEP: u64 = 100;
/// Stack copied in the probe that tells what a byte costs.
const COPIED_BYTES: u32 = 8 << 10;
/// Bytes of stack above the work: more than are copied.
const STACK_ABOVE: usize = 12 << 10;
/// Turns that two threads take in a slice, and repetitions of that, A B B A each.
const TURNS: u64 = 400;
const TURN_ROUNDS: usize = 3;
/// Slices of each shape in which the kernel's handler is timed.
const HANDLER_ROUNDS: usize = 2;
/// Holds the records of a slice.
const RING_BYTES: usize = 512 << 10;
/// What the figures may be off beside their noise, as a share: so many samples at once find their code in the caches,
/// and nobody reads the rings meanwhile.
pub(super) const SYSTEMATIC: f64 = 0.15;
/// A program that waits for memory was seen to pay 1.1 to 1.7 times as much for a sample as one that computes. Only computing is measured here, and the middle is stated.
const COLD: f64 = 1.25;

/// What was found, and how busy the machine was otherwise.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quick {
    pub(super) model: CostModel,
    pub(super) load_ratio: f64,
}

/// Measures, in a thread of its own that stays on one CPU.
pub(super) fn measure(access: Access) -> io::Result<Quick> {
    let worker = thread::Builder::new().name("calibrate".to_owned());
    let measured = worker.spawn(move || measure_here(access))?;
    measured.join().map_err(|_| io::Error::other("the measuring thread failed"))?
}

fn measure_here(access: Access) -> io::Result<Quick> {
    let cpu = CpuPair::choose()?.work;
    stay_on(cpu)?;
    let load = OtherLoad::watch();
    let (trials, waited) = sample_trials(access, cpu)?;
    let [sample, frame, byte] = fit(&trials).map_err(io::Error::other)?;
    // A partner that cannot be had is no reason to do without the rest.
    let switch = switch_trials(access, cpu).ok().and_then(|trials| fit(&trials).ok());
    let handler = handler_times(access, cpu).ok().and_then(|times| handler_costs(&times));
    let alone = |[handler, ..]: [Cost; 3]| SampleKind { sample: unsure(sample), handler, frames: 0.0 };
    let per_interrupt_ns = interrupt_probe::calibrate(access, cpu);
    let prior = CostModel::default();
    let [per_frame_ns, per_byte_ns] = stack_costs([frame, byte], handler);
    let model = CostModel {
        per_sample_ns: unsure(usual(sample)),
        per_frame_ns,
        per_byte_ns,
        per_switch_ns: switch.map_or(prior.per_switch_ns, |[cost]| unsure(cost)),
        per_handler_ns: handler.map(|[bare, ..]| unsure(usual(bare))),
        cache_sensitivity: handler.and_then(|warm| CacheSensitivity::fit(&[alone(warm)], warm)),
        per_interrupt_ns,
        ..prior
    };
    Ok(Quick { model, load_ratio: load.of_others(0).max(waited) })
}

/// What a frame and a byte of stack cost, by how much longer slices took and by the handler's costs, if it was timed. Both are work
/// of the handler, whose times tell them to some percent; slices of half a second in all leave 5 to 25 µs of doubt about a
/// copy of 60 KiB.
fn stack_costs([frame, byte]: [Cost; 2], handler: Option<[Cost; 3]>) -> [Cost; 2] {
    let usual = CostModel::default();
    let known = match handler {
        Some([_, frame, byte]) => [frame, byte],
        None => [frame.weighed(usual.per_frame_ns), byte.weighed(usual.per_byte_ns)],
    };
    known.map(unsure)
}

/// What was measured while the program computed, as between that and waiting for memory.
fn usual(computing: Cost) -> Cost {
    Cost::new(COLD * computing.mean_ns, COLD * computing.se_ns)
}

fn unsure(cost: Cost) -> Cost {
    Cost::new(cost.mean_ns, cost.se_ns.hypot(SYSTEMATIC * cost.mean_ns))
}

fn probes(access: Access, cpu: u32) -> io::Result<[Probe; 3]> {
    Ok([
        Probe::open(access, cpu, SHALLOW, 0)?,
        Probe::open(access, cpu, DEEP, 0)?,
        Probe::open(access, cpu, SHALLOW, COPIED_BYTES)?,
    ])
}

/// How long the kernel's handler took for each of some samples of three shapes.
fn handler_times(access: Access, cpu: u32) -> io::Result<Vec<HandlerTime>> {
    let mut tracer = HandlerTracer::find().map_err(io::Error::other)?;
    let iterations = iterations_for(SLICE_NS);
    let mut times = Vec::new();
    for mut probe in (0..HANDLER_ROUNDS).flat_map(|_| probes(access, cpu)).flatten() {
        tracer.start(&[cpu]).map_err(io::Error::other)?;
        probe.run(iterations)?;
        tracer.stop();
        times.extend(tracer.collect(&probe.handled).times);
    }
    Ok(times)
}

/// What samples of three shapes took, and the share of the time that the work waited for its CPU.
fn sample_trials(access: Access, cpu: u32) -> io::Result<(Vec<Trial<3>>, f64)> {
    let mut probes = probes(access, cpu)?;
    let iterations = iterations_for(SLICE_NS);
    let (mut trials, mut plain) = (Vec::new(), WorkSlice::default());
    for _ in 0..ROUNDS {
        let mut unsampled = WorkSlice::of(SHALLOW, iterations);
        let mut sampled = [WorkSlice::default(); 3];
        for i in [0, 1, 2, 2, 1, 0] {
            sampled[i].add(&probes[i].run(iterations)?);
        }
        unsampled.add(&WorkSlice::of(SHALLOW, iterations));
        plain.add(&unsampled);
        trials.extend(sampled.map(|slice| slice.trial(&unsampled)));
    }
    Ok((trials, waiting(plain.cpu_ns, plain.wall_ns)))
}

/// Some work: what it took and the samples in it.
#[derive(Clone, Copy, Default)]
struct WorkSlice {
    cpu_ns: u64,
    wall_ns: u64,
    samples: u64,
    frames: u64,
    stack_bytes: u64,
}

impl WorkSlice {
    /// Does the work below so many frames.
    fn of(frames: u64, iterations: u64) -> Self {
        let mut slice = Self::default();
        with_stack_above(STACK_ABOVE, &mut || {
            with_frames(frames, &mut || {
                let (cpu_ns, wall_ns) = (clock::thread_cpu_ns(), clock::monotonic_ns());
                compute(iterations);
                slice.cpu_ns = clock::thread_cpu_ns() - cpu_ns;
                slice.wall_ns = clock::monotonic_ns() - wall_ns;
            });
        });
        slice
    }

    fn add(&mut self, other: &Self) {
        self.cpu_ns += other.cpu_ns;
        self.wall_ns += other.wall_ns;
        self.samples += other.samples;
        self.frames += other.frames;
        self.stack_bytes += other.stack_bytes;
    }

    fn trial(&self, unsampled: &Self) -> Trial<3> {
        let counts = [self.samples, self.frames, self.stack_bytes].map(|count| count as f64);
        Trial { extra_ns: self.cpu_ns as f64 - unsampled.cpu_ns as f64, counts }
    }
}

/// A clock on the calling thread with a ring of its own.
struct Probe {
    event: Event,
    ring: PerfRing,
    format: RecordFormat,
    frames: u64,
    chain: Vec<u64>,
    /// The samples of the last run.
    handled: Vec<HandledSample>,
}

impl Probe {
    /// For work below so many frames, of which `stack_bytes` are copied, or which are walked if that is 0.
    fn open(access: Access, cpu: u32, frames: u64, stack_bytes: u32) -> io::Result<Self> {
        let format = RecordFormat::new(stack_bytes > 0);
        let clock = ClockEvent {
            period_ns: PERIOD_NS,
            format,
            stack_bytes,
            user_chain: stack_bytes == 0,
            kernel: access.kernel,
            reports: EventReports::Own,
        };
        let event = Event::clock(Scope::Task { tid: own_tid(), cpu }, &clock)?;
        let ring =
            PerfRing::map(event.fd(), RING_BYTES).or_else(|_| PerfRing::map(event.fd(), RING_BYTES / 2))?;
        Ok(Self { event, ring, format, frames, chain: Vec::new(), handled: Vec::new() })
    }

    /// The work while it is sampled.
    fn run(&mut self, iterations: u64) -> io::Result<WorkSlice> {
        self.event.enable()?;
        let mut slice = WorkSlice::of(self.frames, iterations);
        self.event.disable()?;
        self.handled.clear();
        while let Some(raw) = self.ring.front() {
            if let Ok(Record::Sample(sample)) = raw.decode(&self.format) {
                self.chain.clear();
                sample.kernel_chain(&mut self.chain);
                sample.user_chain(&mut self.chain);
                let frames = self.chain.len() as u64;
                let stack_bytes = sample.stack.map_or(0, |stack| stack.len()) as u64;
                slice.samples += 1;
                slice.frames += frames;
                slice.stack_bytes += stack_bytes;
                let (at_ns, cpu) = (sample.time_ns, sample.cpu);
                self.handled.push(HandledSample { at_ns, cpu, frames, stack_bytes });
            }
            self.ring.pop();
        }
        if slice.samples == 0 {
            return Err(io::Error::other("no samples arrived"));
        }
        Ok(slice)
    }
}

/// What two threads that take turns on this CPU pay for having events.
fn switch_trials(access: Access, cpu: u32) -> io::Result<Vec<Trial<1>>> {
    let partner = SwitchPartner::start().map_err(io::Error::other)?;
    let tids = [own_tid(), partner.tid()];
    let take_turns = || -> io::Result<u64> {
        let before = clock::self_cpu_ns();
        (0..TURNS).try_for_each(|_| partner.take_turns()).map_err(io::Error::other)?;
        Ok(clock::self_cpu_ns() - before)
    };
    let with_events = || -> io::Result<(u64, u64)> {
        let mut events = [silent_clock(access, tids[0], cpu)?, silent_clock(access, tids[1], cpu)?];
        events.iter_mut().try_for_each(Event::enable)?;
        let before = procfs::context_switches_of(&tids);
        let cpu_ns = take_turns()?;
        Ok((cpu_ns, procfs::context_switches_of(&tids).saturating_sub(before)))
    };
    let trial = |_| {
        let first = take_turns()?;
        let (attached, again) = (with_events()?, with_events()?);
        let plain_ns = first + take_turns()?;
        let extra_ns = (attached.0 + again.0) as f64 - plain_ns as f64;
        Ok(Trial { extra_ns, counts: [(attached.1 + again.1) as f64] })
    };
    (0..TURN_ROUNDS).map(trial).collect()
}

/// A clock that does not fire while it is measured what switching to and from it costs.
fn silent_clock(access: Access, tid: u32, cpu: u32) -> io::Result<Event> {
    let clock = ClockEvent {
        period_ns: 60_000_000_000,
        format: RecordFormat::new(false),
        stack_bytes: 0,
        user_chain: true,
        kernel: access.kernel,
        reports: EventReports::Own,
    };
    Event::clock(Scope::Task { tid, cpu }, &clock)
}

fn own_tid() -> u32 {
    gettid().as_raw() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a calibration of half a second found them: of the handler, and of slices on a noisy machine.
    #[test]
    fn a_large_copy_is_known_whatever_slices_showed() {
        let slices = [Cost::new(57.0, 34.0), Cost::new(0.064, 0.407)];
        let handler = [Cost::new(2_400.0, 60.0), Cost::new(70.2, 0.5), Cost::new(0.2, 0.005)];
        let copy = |[_, byte]: [Cost; 2]| Cost::new(61_440.0 * byte.mean_ns, 61_440.0 * byte.se_ns);
        let timed = copy(stack_costs(slices, Some(handler)));
        assert!((timed.mean_ns - 12_288.0).abs() < 1.0 && timed.se_ns < 0.2 * timed.mean_ns, "{timed:?}");
        let by_slices = copy(stack_costs(slices, None));
        let usual = CostModel::default().per_byte_ns;
        assert!(by_slices.se_ns < 61_440.0 * usual.se_ns * 1.1, "{by_slices:?}");
        let clear = copy(stack_costs([slices[0], Cost::new(0.1, 0.01)], None));
        assert!((clear.mean_ns / 61_440.0 - 0.1).abs() < 0.002, "{clear:?}");
    }
}
