//! What a timer's signal costs a thread outside of its handler: the kernel's way into it and back.

use std::io;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};

use super::clock;

/// What lies between two signals of a program in its caches and what we touch to put ours out of them (bytes).
const CROWD_BYTES: usize = 1 << 20;
const LINE: usize = 64;

static ENTERED_NS: AtomicU64 = AtomicU64::new(0);
static LEFT_NS: AtomicU64 = AtomicU64::new(0);

/// Looks at the clock once on the way in and once on the way out.
extern "C" fn look(_: libc::c_int) {
    ENTERED_NS.store(clock::monotonic_ns(), Ordering::Relaxed);
    LEFT_NS.store(clock::monotonic_ns(), Ordering::Relaxed);
}

/// A signal with a handler that looks at the clock, and a timer on the calling thread's CPU time that sends it.
struct Trial {
    timer: libc::timer_t,
    signal: libc::c_int,
    before: libc::sigaction,
}

impl Trial {
    fn new() -> io::Result<Self> {
        let signal = libc::SIGRTMAX() - 4;
        // SAFETY: all-zero is a valid action, event and timer number.
        let (mut action, mut before, mut event, mut timer) = unsafe {
            (mem::zeroed::<libc::sigaction>(), mem::zeroed(), mem::zeroed::<libc::sigevent>(), mem::zeroed())
        };
        action.sa_sigaction = look as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal;
        event.sigev_notify_thread_id = nix::unistd::gettid().as_raw();
        // SAFETY: the pointers are valid for the calls; the handler does what a handler may.
        unsafe {
            if libc::sigaction(signal, &raw const action, &raw mut before) != 0 {
                return Err(io::Error::last_os_error());
            }
            if libc::timer_create(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut event, &raw mut timer) != 0 {
                let error = io::Error::last_os_error();
                libc::sigaction(signal, &raw const before, std::ptr::null_mut());
                return Err(error);
            }
        }
        Ok(Self { timer, signal, before })
    }

    /// How long it takes to set the timer to so many seconds of the thread's CPU time (ns).
    fn set_ns(&self, at_s: i64) -> u64 {
        let at = libc::timespec { tv_sec: at_s, tv_nsec: 1 };
        let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = libc::itimerspec { it_value: at, it_interval: never };
        let begin_ns = clock::monotonic_ns();
        // SAFETY: the timer is ours, and the pointer valid for the call.
        unsafe {
            libc::timer_settime(self.timer, libc::TIMER_ABSTIME, &raw const spec, std::ptr::null_mut())
        };
        clock::monotonic_ns().saturating_sub(begin_ns)
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        // SAFETY: the timer is ours; the action is the one that was in force.
        unsafe {
            libc::timer_delete(self.timer);
            libc::sigaction(self.signal, &raw const self.before, std::ptr::null_mut());
        }
    }
}

/// Sets a timer so many times to a time that has passed, so that its signal comes at once, and as often to one that never comes;
/// returns what each took (ns), that with the signal less the time between the handler's two looks at the clock.
///
/// # Errors
///
/// If there is no timer to be had.
pub(crate) fn measure(times: usize) -> io::Result<Vec<(u64, u64)>> {
    const NEVER_S: i64 = 1 << 40;
    let trial = Trial::new()?;
    let mut crowd = vec![0_u8; CROWD_BYTES];
    let mut found = Vec::with_capacity(times);
    for _ in 0..times {
        touch(&mut crowd);
        let without = trial.set_ns(NEVER_S);
        touch(&mut crowd);
        let with = trial.set_ns(0);
        let inside = LEFT_NS.load(Ordering::Relaxed).saturating_sub(ENTERED_NS.load(Ordering::Relaxed));
        found.push((with.saturating_sub(inside), without));
    }
    Ok(found)
}

fn touch(crowd: &mut [u8]) {
    crowd.iter_mut().step_by(LINE).for_each(|byte| *byte = byte.wrapping_add(1));
    std::hint::black_box(&crowd);
}

/// The kernel's tick (ns): timers on CPU time expire at no other times.
pub(crate) fn tick_ns() -> u64 {
    const USUAL_NS: u64 = 4_000_000;
    let resolution = nix::time::clock_getres(nix::time::ClockId::CLOCK_MONOTONIC_COARSE);
    resolution.map_or(USUAL_NS, |tick| tick.tv_sec() as u64 * 1_000_000_000 + tick.tv_nsec() as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signal_came_and_took_its_time() {
        let found = measure(20).unwrap();
        assert_eq!(found.len(), 20);
        assert!(found.iter().all(|(with, without)| *with > 0 && *without > 0), "{found:?}");
        assert!((1_000_000..=10_000_000).contains(&tick_ns()), "HZ is 100 to 1000");
    }
}
