//! For how long samples delay a thread that works all the time, by its own look at the clock, and how long the
//! kernel's handler takes for them, in turns of some milliseconds.
//!
//! - A host with other work to do makes the interrupt and its handler up to twice as expensive, for seconds at
//!   a time. The delay is seven to nine times the handler's time in either state. Measured one after the other
//!   instead of in turns, the two were off by a half.
//! - While the handler is timed, the work is one that leaves the frame pointers of the frames above alone, which
//!   the look at the clock does not.
//! - The CPU time of sampled work less that of unsampled work is the same figure on average, with all that
//!   disturbs either: in half a second, it was off by 15 to 20%.

use std::io;

use profiler_core::handler_trace::HandledSample;
use profiler_core::rate::{Cost, HandlerTime, SampleKind, handler_costs, interrupt_cost};
use profiler_core::record::{Record, RecordFormat};
use profiler_core::sorter::RecordQueue;

use super::load::waiting;
use super::spin::{compute, iterations_for, with_stack_above};
use crate::sampler::access::Access;
use crate::sampler::handler_tracer::HandlerTracer;
use crate::sampler::interrupt_probe::{self, held_up, stand_still};
use crate::standstill::Interruption;
use crate::sys::clock;
use crate::sys::frames::with_frames;
use crate::sys::perf_event::{ClockEvent, Event, EventReports, Scope};
use crate::sys::ring::PerfRing;

/// Period of the samples (ns), and of rare ones, between which the kernel's code leaves the caches.
const PERIOD_NS: u64 = 100_000;
const RARE_PERIOD_NS: u64 = 1_000_000;
/// Periods in a slice.
const SLICE_PERIODS: u64 = 20;
/// Frames above the work where they are few, and where they are many.
const SHALLOW: u64 = 4;
const DEEP: u64 = 100;
/// Stack copied of the samples that show what a byte costs.
const COPIED_BYTES: u32 = 8 << 10;
/// Bytes of stack above the work: more than are copied.
const STACK_ABOVE: usize = 12 << 10;
/// Holds the records of a slice.
const RING_BYTES: usize = 512 << 10;
/// What a sample costs by the stopwatch, over its delay. It is less than the delay where programs compute (.81 to .95): the
/// sample leaves the kernel's code in the caches for the ticks that come anyway. It is more where they wait for memory
/// (1.03 to 1.3), because they have to fetch it again. A script, a compressor and a database were as if they computed.
const COST_OF_DELAY: f64 = 0.87;
const COST_OF_DELAY_SE: f64 = 0.12;

fn cost_of(delay: Cost) -> Cost {
    let mean_ns = COST_OF_DELAY * delay.mean_ns;
    Cost::new(mean_ns, (COST_OF_DELAY * delay.se_ns).hypot(COST_OF_DELAY_SE * delay.mean_ns))
}

/// What samples cost work that only computes.
#[derive(Debug)]
pub(super) struct Delays {
    /// The delay by a sample of very few frames.
    pub(super) sample: Cost,
    /// The delay by a copied byte.
    pub(super) byte: Cost,
    /// What a rare sample of very few frames costs, if there were any.
    pub(super) rare: Option<Cost>,
    /// The delay by a sample, as it is measured while running; `None` if that failed.
    pub(super) interrupt: Option<Cost>,
    /// What the handler showed; `None` where it cannot be timed.
    pub(super) handler: Option<HandlerDelays>,
    /// Share of the time in which the thread waited for its CPU.
    pub(super) waited: f64,
}

/// The kernel's handler, and the samples that it is a part of.
#[derive(Debug)]
pub(super) struct HandlerDelays {
    /// Its time without a stack, for a frame and for a byte.
    pub(super) costs: [Cost; 3],
    /// What samples of very few frames cost, and their handler: often, and rare ones if there were any.
    pub(super) kinds: Vec<SampleKind>,
}

/// Takes this many rounds of each shape of samples on the calling thread, which must stay on this CPU.
pub(super) fn measure(access: Access, cpu: u32, rounds: usize, with_rare: bool) -> io::Result<Delays> {
    let mut few = Shape::open(access, cpu, SHALLOW, 0, PERIOD_NS)?;
    let mut many = Shape::open(access, cpu, DEEP, 0, PERIOD_NS)?;
    let mut copied = Shape::open(access, cpu, SHALLOW, COPIED_BYTES, PERIOD_NS)?;
    let mut rare = with_rare.then(|| Shape::open(access, cpu, SHALLOW, 0, RARE_PERIOD_NS)).transpose()?;
    let mut tracer = HandlerTracer::find().ok();
    let (cpu_ns, wall_ns) = (clock::thread_cpu_ns(), clock::monotonic_ns());
    let mut interrupts = Vec::new();
    for _ in 0..rounds {
        interrupts.extend(interrupt_probe::measure(access, cpu).unwrap_or_default());
        // The ring that it opened and closed pushed code out of the caches.
        few.slice()?;
        for shape in [&mut few, &mut many, &mut copied].into_iter().chain(&mut rare) {
            if shape.frames_above == SHALLOW {
                shape.measure_delays()?;
            }
            if let Some(tracer) = &mut tracer {
                shape.time_handler(tracer, cpu)?;
            }
        }
    }
    let waited = waiting(clock::thread_cpu_ns() - cpu_ns, clock::monotonic_ns() - wall_ns);
    let often: Vec<HandlerTime> =
        [&few, &many, &copied].iter().flat_map(|one| &one.handler).copied().collect();
    let handler = handler_costs(&often).map(|costs| {
        let walked = std::iter::once(&few).chain(&rare);
        HandlerDelays { costs, kinds: walked.filter_map(|shape| shape.kind(costs[1])).collect() }
    });
    let sample = few.delay()?;
    Ok(Delays {
        sample,
        byte: copied_byte(sample, copied.delay()?),
        rare: rare.map(|rare| rare.delay().map(cost_of)).transpose()?,
        interrupt: interrupt_cost(&interrupts),
        handler,
        waited,
    })
}

/// What a byte costs, by samples with a copied stack and without; a cost below zero is noise.
fn copied_byte(without: Cost, with: Cost) -> Cost {
    let bytes = f64::from(COPIED_BYTES);
    Cost::new((with.mean_ns - without.mean_ns).max(0.0) / bytes, with.se_ns.hypot(without.se_ns) / bytes)
}

/// Samples of one shape, with a ring of their own.
struct Shape {
    event: Event,
    ring: PerfRing,
    format: RecordFormat,
    period_ns: u64,
    frames_above: u64,
    chain: Vec<u64>,
    /// Of the last slice.
    samples: Vec<HandledSample>,
    /// Frames of the last sample while the delays were measured.
    frames: f64,
    /// Work of a slice in which the handler is timed.
    iterations: u64,
    /// What each sample delayed the work (ns), while its handler was not timed.
    delays: Vec<f64>,
    handler: Vec<HandlerTime>,
}

impl Shape {
    /// Samples of work below this many frames, which are walked; or the stack is copied, if `copied_bytes` is not 0.
    fn open(access: Access, cpu: u32, frames: u64, copied_bytes: u32, period_ns: u64) -> io::Result<Self> {
        let format = RecordFormat::new(copied_bytes > 0);
        let clock = ClockEvent {
            period_ns,
            format,
            stack_bytes: copied_bytes,
            user_chain: copied_bytes == 0,
            kernel: access.kernel,
            reports: EventReports::Own,
        };
        let tid = nix::unistd::gettid().as_raw() as u32;
        let event = Event::clock(Scope::Task { tid, cpu }, &clock)?;
        let ring =
            PerfRing::map(event.fd(), RING_BYTES).or_else(|_| PerfRing::map(event.fd(), RING_BYTES / 2))?;
        Ok(Self {
            event,
            ring,
            format,
            period_ns,
            frames_above: frames,
            chain: Vec::new(),
            samples: Vec::new(),
            frames: 0.0,
            iterations: iterations_for(SLICE_PERIODS * period_ns),
            delays: Vec::new(),
            handler: Vec::new(),
        })
    }

    fn measure_delays(&mut self) -> io::Result<()> {
        let interruptions = self.slice()?;
        let samples_ns: Vec<u64> = self.samples.iter().map(|sample| sample.at_ns).collect();
        self.delays.extend(held_up(&interruptions, &samples_ns));
        self.frames = self.samples.last().map_or(self.frames, |sample| sample.frames as f64);
        Ok(())
    }

    fn time_handler(&mut self, tracer: &mut HandlerTracer, cpu: u32) -> io::Result<()> {
        if tracer.start(&[cpu]).is_ok() {
            let iterations = self.iterations;
            let worked = self.work(&mut || compute(iterations));
            tracer.stop();
            worked?;
            self.handler.extend(tracer.collect(&self.samples).times);
        }
        Ok(())
    }

    /// Works, and finds when it stood still.
    fn slice(&mut self) -> io::Result<Vec<Interruption<()>>> {
        let (work_ns, mut found) = (SLICE_PERIODS * self.period_ns, Vec::new());
        self.work(&mut || found = stand_still(work_ns))?;
        Ok(found)
    }

    /// Does the work while it is sampled, below the frames.
    fn work(&mut self, work: &mut dyn FnMut()) -> io::Result<()> {
        self.event.enable()?;
        with_stack_above(STACK_ABOVE, &mut || with_frames(self.frames_above, work));
        self.event.disable()?;
        self.read_samples();
        Ok(())
    }

    fn read_samples(&mut self) {
        self.samples.clear();
        while let Some(raw) = self.ring.front() {
            if let Ok(Record::Sample(sample)) = raw.decode(&self.format) {
                self.chain.clear();
                sample.kernel_chain(&mut self.chain);
                sample.user_chain(&mut self.chain);
                let frames = self.chain.len() as u64;
                let stack_bytes = sample.stack.map_or(0, |stack| stack.len()) as u64;
                let (at_ns, cpu) = (sample.time_ns, sample.cpu);
                self.samples.push(HandledSample { at_ns, cpu, frames, stack_bytes });
            }
            self.ring.pop();
        }
    }

    /// The mean delay.
    fn delay(&self) -> io::Result<Cost> {
        interrupt_cost(&self.delays).ok_or_else(|| io::Error::other("no samples arrived"))
    }

    /// The delay and the handler together, if both are known and a frame costs the handler so much: it walked more frames
    /// while it was timed.
    fn kind(&self, frame: Cost) -> Option<SampleKind> {
        let sample = cost_of(self.delay().ok()?);
        let without_frames = |time: &HandlerTime| HandlerTime {
            time_ns: time.time_ns - time.frames as f64 * frame.mean_ns,
            frames: 0,
            stack_bytes: 0,
        };
        let [bare, ..] = handler_costs(&self.handler.iter().map(without_frames).collect::<Vec<_>>())?;
        let handler = Cost::new(bare.mean_ns + self.frames * frame.mean_ns, bare.se_ns);
        Some(SampleKind { sample, handler, frames: self.frames })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copied_byte_costs_what_a_copy_costs_more() {
        let (without, with) = (Cost::new(20_000.0, 300.0), Cost::new(28_192.0, 400.0));
        assert_eq!(copied_byte(without, with), Cost::new(1.0, 500.0 / 8_192.0));
        assert_eq!(copied_byte(with, without).mean_ns, 0.0);
    }

    #[test]
    #[allow(clippy::print_stderr, reason = "it says why it skips")]
    fn a_sample_delays_by_more_than_its_handler_takes() {
        let Ok(access) = crate::sampler::access::probe_access() else {
            return eprintln!("skipped: there are no perf events here");
        };
        let measured = std::thread::spawn(move || {
            let cpu = crate::sys::affinity::allowed(0)[0];
            crate::sys::affinity::stay_on(cpu).unwrap();
            measure(access, cpu, 5, true).unwrap()
        });
        let delays = measured.join().unwrap();
        assert!(delays.sample.mean_ns > 0.0 && delays.byte.mean_ns >= 0.0, "{delays:?}");
        if let Some(handler) = delays.handler {
            assert_eq!(handler.kinds.len(), 2);
            let is_part = |kind: &SampleKind| (0.0..kind.sample.mean_ns).contains(&kind.handler.mean_ns);
            assert!(handler.kinds.iter().all(is_part), "{:?}", handler.kinds);
            // A hundred frames were walked: a mistaken count of them shows here.
            assert!(handler.costs[1].mean_ns < 0.2 * handler.costs[0].mean_ns, "{:?}", handler.costs);
        }
    }
}
