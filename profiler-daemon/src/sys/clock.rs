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

/// CPU time of all threads of this process but the first (ns).
pub(crate) fn beside_main_thread_ns() -> u64 {
    // The kernel's number for the CPU clock of one thread, by its scheduler.
    const OF_ONE_THREAD: i32 = 0b110;
    let main = !(std::process::id() as i32) << 3 | OF_ONE_THREAD;
    self_cpu_ns().saturating_sub(ns(ClockId::from_raw(main)).unwrap_or(0))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_other_threads_use_is_told_from_what_the_first_does() {
        // A test is no process' first thread.
        let (before_ns, own_ns) = (beside_main_thread_ns(), thread_cpu_ns());
        while thread_cpu_ns() < own_ns + 20_000_000 {
            std::hint::spin_loop();
        }
        let after_ns = beside_main_thread_ns();
        assert!(after_ns >= before_ns + 20_000_000 && after_ns <= self_cpu_ns(), "{before_ns} {after_ns}");
    }
}
