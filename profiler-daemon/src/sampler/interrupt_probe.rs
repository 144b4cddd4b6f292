//! What an interrupt costs on this host at present: a thread of ours spins for a millisecond every few
//! seconds under a clock of its own, and measures how long each sample delays it. It does so where a target
//! was sampled last, on a CPU that is as fast and as busy as the target finds it, else on each CPU in turn
//! that we may use. It needs no permission beyond sampling our own processes.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use nix::unistd::gettid;
use profiler_core::record::{Record, RecordFormat};
use profiler_core::sorter::RecordQueue;

use super::access::Access;
use crate::standstill::{Interruption, interruptions};
use crate::sys::affinity;
use crate::sys::perf_event::{ClockEvent, Event, EventReports, Scope};
use crate::sys::ring::PerfRing;

/// Length of a measurement, and period of its samples (ns): ten samples, for 0.02% of a CPU.
const SPIN_NS: u64 = 1_000_000;
const PERIOD_NS: u64 = 100_000;
/// Time between two measurements, and between the first few. A single one is not believed, but budgets are kept with it until there is
/// another: if that took a second, a short run would lose its samples by one that was disturbed.
const PAUSE: Duration = Duration::from_secs(5);
const FIRST_PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];
/// Ring size (bytes) for the samples of a measurement.
const RING_BYTES: usize = 16 << 10;
/// Loop iterations of a step, which take some tens of nanoseconds.
const STEP: u32 = 16;
/// A step that takes this much longer than usual was interrupted (ns).
const LONGER_NS: u64 = 300;
/// Largest distance between a sample's time and the interruption that it belongs to (ns).
const SLACK_NS: u64 = 1_000;

/// The latest measurement of this process, and its number.
static LATEST: Mutex<(u64, Vec<f64>)> = Mutex::new((0, Vec::new()));

/// CPU where a target was last sampled.
static BUSY_CPU: AtomicU32 = AtomicU32::new(NONE);
const NONE: u32 = u32::MAX;

fn latest() -> MutexGuard<'static, (u64, Vec<f64>)> {
    LATEST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the measurements. All readers of a process share one measuring thread.
#[derive(Debug)]
pub(crate) struct InterruptProbe {
    seen: u64,
}

impl InterruptProbe {
    /// Measures from now on until the process ends.
    pub(crate) fn start(access: Access) -> Self {
        static STARTED: OnceLock<()> = OnceLock::new();
        STARTED.get_or_init(|| {
            let measuring = thread::Builder::new().name("interrupts".to_owned());
            if let Err(error) = measuring.spawn(move || measure_for_ever(access)) {
                tracing::debug!(%error, "what interrupts cost is not measured while running");
            }
        });
        Self { seen: 0 }
    }

    /// A target was sampled on this CPU.
    pub(crate) fn sampled_on(cpu: u32) {
        BUSY_CPU.store(cpu, Ordering::Relaxed);
    }

    /// The delays that the samples of the latest measurement caused (ns), returned once; empty if it failed.
    pub(crate) fn take(&mut self) -> Option<Vec<f64>> {
        let (number, times_ns) = &*latest();
        (std::mem::replace(&mut self.seen, *number) != *number).then(|| times_ns.clone())
    }
}

fn measure_for_ever(access: Access) {
    for turn in 0_usize.. {
        let allowed = affinity::allowed(std::process::id());
        let busy = BUSY_CPU.load(Ordering::Relaxed);
        let next = allowed.get(turn % allowed.len().max(1)).copied();
        let cpu = Some(busy).filter(|cpu| allowed.contains(cpu)).or(next);
        let measured = cpu.map(|cpu| affinity::stay_on(cpu).and_then(|()| measure(access, cpu)));
        if let Some(Err(error)) = &measured {
            tracing::debug!(%error, ?cpu, "what an interrupt costs was not measured");
        }
        let mut latest = latest();
        *latest = (latest.0 + 1, measured.and_then(Result::ok).unwrap_or_default());
        drop(latest);
        thread::sleep(FIRST_PAUSES.get(turn).copied().unwrap_or(PAUSE));
    }
}

/// Spins, and measures how long each sample delays the calling thread, which must stay on this CPU (ns).
pub(crate) fn measure(access: Access, cpu: u32) -> io::Result<Vec<f64>> {
    let format = RecordFormat::new(false);
    let clock = ClockEvent {
        period_ns: PERIOD_NS,
        format,
        stack_bytes: 0,
        user_chain: true,
        kernel: access.kernel,
        reports: EventReports::Own,
    };
    // An event of this thread only: its clock stops while another task runs on the CPU.
    let mut event = Event::clock(Scope::Task { tid: gettid().as_raw() as u32, cpu }, &clock)?;
    let mut ring = PerfRing::map(event.fd(), RING_BYTES)?;
    event.enable()?;
    let found = stand_still(SPIN_NS);
    event.disable()?;
    let mut samples_ns = Vec::new();
    while let Some(raw) = ring.front() {
        if let Ok(Record::Sample(sample)) = raw.decode(&format) {
            samples_ns.push(sample.time_ns);
        }
        ring.pop();
    }
    Ok(held_up(&found, &samples_ns))
}

/// Works for so long (ns), and finds when the calling thread stood still.
pub(crate) fn stand_still(for_ns: u64) -> Vec<Interruption<()>> {
    interruptions(for_ns, LONGER_NS, step, || None)
}

fn step() {
    std::hint::black_box((0..STEP).fold(1_u32, |x, y| std::hint::black_box(x ^ y)));
}

/// The share of each sample of the interruption that it lies in (ns). Where an interrupt takes longer than the period, several do.
pub(crate) fn held_up(found: &[Interruption<()>], samples_ns: &[u64]) -> Vec<f64> {
    let of = |one: &Interruption<()>| {
        let within = one.at_ns.saturating_sub(SLACK_NS)..one.at_ns + one.stood_ns + SLACK_NS;
        let samples = samples_ns.iter().filter(|at_ns| within.contains(at_ns)).count();
        std::iter::repeat_n(one.stood_ns as f64 / samples.max(1) as f64, samples)
    };
    found.iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interruption_is_its_samples_and_others_are_nobody_s() {
        let stood = |at_ns, stood_ns| Interruption { at_ns, stood_ns, handled: None };
        let found = [stood(10_000, 8_000), stood(50_000, 2_000), stood(90_000, 30_000)];
        assert_eq!(held_up(&found, &[12_000, 95_000, 105_000, 200_000]), [8_000.0, 15_000.0, 15_000.0]);
    }

    #[test]
    #[allow(clippy::print_stderr, reason = "it says why it skips")]
    fn a_thread_that_spins_finds_its_samples() {
        let Ok(access) = crate::sampler::access::probe_access() else {
            return eprintln!("skipped: there are no perf events here");
        };
        let cpu = affinity::allowed(std::process::id())[0];
        let times_ns = thread::spawn(move || {
            affinity::stay_on(cpu).unwrap();
            (0..5).flat_map(|_| measure(access, cpu).unwrap()).collect::<Vec<f64>>()
        });
        let times_ns = times_ns.join().unwrap();
        assert!(times_ns.len() >= 10 && times_ns.iter().all(|ns| *ns >= LONGER_NS as f64), "{times_ns:?}");
    }
}
