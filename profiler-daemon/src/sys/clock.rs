//! Clocks: the monotonic one that records carry, and CPU time.

use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;

/// Monotonic clock (ns), the clock of every record.
pub(crate) fn monotonic_ns() -> u64 {
    ns(ClockId::CLOCK_MONOTONIC).unwrap_or(0)
}

/// Wall clock (ns since the Unix epoch).
pub(crate) fn unix_ns() -> u64 {
    ns(ClockId::CLOCK_REALTIME).unwrap_or(0)
}

/// CPU time of this process, all threads (ns).
pub(crate) fn self_cpu_ns() -> u64 {
    ns(ClockId::CLOCK_PROCESS_CPUTIME_ID).unwrap_or(0)
}

/// CPU time of the calling thread (ns).
pub(crate) fn thread_cpu_ns() -> u64 {
    ns(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0)
}

/// CPU time that the scheduler charged to a process, threads that have ended included (ns). `None` once it
/// is gone; a zombie still has its time.
pub(crate) fn process_cpu_ns(pid: u32) -> Option<u64> {
    let clock = clock_getcpuclockid(Pid::from_raw(i32::try_from(pid).ok()?)).ok()?;
    ns(clock)
}

fn ns(clock: ClockId) -> Option<u64> {
    let time = clock.now().ok()?;
    Some(time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}
