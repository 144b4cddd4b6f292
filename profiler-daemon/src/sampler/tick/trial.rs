//! Whether ticks are seen as they are thought to be: a thread that is busy in its own code is sampled for some of them.

use std::hint::black_box;

use profiler_core::record::{Record, RecordFormat};
use profiler_core::sorter::RecordQueue;

use super::{TickSource, Unavailable};
use crate::sampler::handler_tracer::Unavailable as NoTracepoints;
use crate::sys::clock;
use crate::sys::perf_event::{ClockEvent, Event, Reports, Scope};
use crate::sys::ring::Ring;

/// Ticks in user code that are enough. A wrong way in never leaves nothing of a stack, so one would be.
const ENOUGH: u32 = 2;
/// Samples of which so few are not enough: the trial itself enters the kernel now and then.
const MOST_SAMPLES: u32 = 8;
/// CPU time without enough of them, in ticks: programs that share a CPU are switched at ticks, and then one may meet none for a while.
const MOST_TICKS: u64 = 16;
/// The same by the clock on the wall, for a thread that hardly gets to run (ns).
const MOST_NS: u64 = 2_000_000_000;
/// Holds far more samples than that.
const RING_BYTES: usize = 64 << 10;
/// Steps of work between two looks at the clock: some ten microseconds.
const STEPS: u64 = 10_000;

/// Keeps the calling thread busy until ticks have hit it as they should.
pub(super) fn run(tick: &TickSource) -> Result<(), Unavailable> {
    let refused = |error| Unavailable::Tracepoint(NoTracepoints::Refused(error));
    let format = RecordFormat::new(false).without_period();
    let sample = ClockEvent {
        period_ns: tick.tick_ns,
        format,
        stack_bytes: 0,
        user_chain: false,
        kernel: true,
        reports: Reports::Own,
    };
    let thread = Scope::Thread(nix::unistd::gettid().as_raw() as u32);
    let mut event =
        Event::at_tracepoint(thread, tick.tracepoint, &tick.filter, 1, &sample).map_err(refused)?;
    let mut ring = Ring::map(event.fd(), RING_BYTES).map_err(refused)?;
    event.enable().map_err(refused)?;
    let (begun_ns, cpu_ns) = (clock::monotonic_ns(), clock::thread_cpu_ns());
    let (mut samples, mut in_user_code) = (0, 0);
    let mut chain = Vec::new();
    loop {
        work_for(tick.tick_ns);
        while let Some(raw) = ring.front() {
            if let Ok(Record::Sample(sample)) = raw.decode(&format) {
                chain.clear();
                sample.kernel_chain(&mut chain);
                tick.uncover(&mut chain);
                samples += 1;
                in_user_code += u32::from(chain.is_empty());
            }
            ring.pop();
        }
        let busy_ns = clock::thread_cpu_ns().saturating_sub(cpu_ns);
        let is_over = busy_ns > MOST_TICKS * tick.tick_ns
            || clock::monotonic_ns().saturating_sub(begun_ns) > MOST_NS
            || samples >= MOST_SAMPLES;
        if in_user_code >= ENOUGH {
            return Ok(());
        } else if is_over && samples == 0 {
            return Err(Unavailable::NoTick { busy_ms: busy_ns as f64 * 1e-6 });
        } else if is_over {
            return Err(Unavailable::UnknownEntry { samples });
        }
    }
}

/// Is busy for so long in code of the program's own.
fn work_for(ns: u64) {
    let begun_ns = clock::monotonic_ns();
    while clock::monotonic_ns().saturating_sub(begun_ns) < ns {
        black_box((0..STEPS).fold(begun_ns, |sum, step| black_box(sum.rotate_left(5) ^ step)));
    }
}
