//! Clocks: the monotonic one that records carry, and CPU time.

use nix::time::ClockId;

use super::family;

/// Monotonic clock (ns), the clock of every record.
pub(crate) fn monotonic_ns() -> u64 {
    ns(ClockId::CLOCK_MONOTONIC).unwrap_or(0)
}

/// Wall clock (ns since the Unix epoch).
pub(crate) fn unix_ns() -> u64 {
    ns(ClockId::CLOCK_REALTIME).unwrap_or(0)
}

/// CPU time of this process, all threads, and of those that read symbols for it (ns).
pub(crate) fn self_cpu_ns() -> u64 {
    ns(ClockId::CLOCK_PROCESS_CPUTIME_ID).unwrap_or(0) + family::readers_cpu_ns()
}

/// CPU time of the calling thread (ns).
pub(crate) fn thread_cpu_ns() -> u64 {
    ns(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0)
}

/// The same without the first thread of this process (ns).
pub(crate) fn beside_main_thread_ns() -> u64 {
    let main = cpu_clock(std::process::id() as i32, OF_ONE_THREAD);
    self_cpu_ns().saturating_sub(ns(main).unwrap_or(0))
}

/// The kernel's numbers for CPU clocks by its scheduler: that of a process, and that of one thread.
const OF_PROCESS: i32 = 0b010;
const OF_ONE_THREAD: i32 = 0b110;
/// The kernel gives no higher process id (PID_MAX_LIMIT). Of a much higher one, the number would be another clock's.
const MAX_PID: i32 = 1 << 22;

/// The CPU clock of a process or a thread. `clock_getcpuclockid` makes the same number, and asks the kernel whether there is
/// such a clock: reading it tells that too.
fn cpu_clock(pid: i32, whose: i32) -> ClockId {
    ClockId::from_raw(!pid << 3 | whose)
}

/// CPU time that the scheduler charged to a process, threads that have ended included (ns). `None` once it
/// is gone; a zombie still has its time.
pub(crate) fn process_cpu_ns(pid: u32) -> Option<u64> {
    let pid = i32::try_from(pid).ok().filter(|pid| (1..=MAX_PID).contains(pid))?;
    ns(cpu_clock(pid, OF_PROCESS))
}

/// CPU time of a thread of this process (ns); `None` once it is gone.
pub(crate) fn cpu_of_thread_ns(thread: i32) -> Option<u64> {
    ns(cpu_clock(thread, OF_ONE_THREAD))
}

fn ns(clock: ClockId) -> Option<u64> {
    let time = clock.now().ok()?;
    Some(time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_of_a_process_is_the_one_that_the_library_names() {
        let own = nix::unistd::getpid();
        let named = nix::time::clock_getcpuclockid(own).unwrap();
        assert_eq!(cpu_clock(own.as_raw(), OF_PROCESS), named);
        let (before_ns, read_ns) = (self_cpu_ns(), process_cpu_ns(std::process::id()).unwrap());
        let sum_ns = read_ns + family::readers_cpu_ns();
        assert!((before_ns..=self_cpu_ns()).contains(&sum_ns));
        assert_eq!((process_cpu_ns(i32::MAX as u32), process_cpu_ns(u32::MAX)), (None, None));
    }

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
