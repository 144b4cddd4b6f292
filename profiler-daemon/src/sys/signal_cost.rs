//! What a timer's signal costs a thread outside of its handler: the kernel's way into it and back, at a tick of the kernel, which
//! finds other caches than a signal that the thread asks for.

use std::io;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::clock;

static CAME: AtomicU64 = AtomicU64::new(0);
static BEGUN_NS: AtomicU64 = AtomicU64::new(0);
static INSIDE_NS: AtomicU64 = AtomicU64::new(0);

/// Looks at the clock once on the way in and once on the way out.
extern "C" fn look(_: libc::c_int) {
    let begun_ns = clock::monotonic_ns();
    CAME.fetch_add(1, Ordering::Relaxed);
    BEGUN_NS.store(begun_ns, Ordering::Relaxed);
    INSIDE_NS.store(clock::monotonic_ns().saturating_sub(begun_ns), Ordering::Relaxed);
}

/// What a handler saw of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handled {
    /// When it began (ns of the monotonic clock).
    pub(crate) begun_ns: u64,
    /// What it took between its looks at the clock (ns).
    pub(crate) took_ns: u64,
}

/// One thread at a time has the signal, whoever else wants it waits.
static TAKEN: Mutex<()> = Mutex::new(());

/// A signal with a handler that looks at the clock, and a timer on the calling thread's CPU time that sends it.
pub(crate) struct TimedSignal {
    timer: libc::timer_t,
    signal: libc::c_int,
    before: libc::sigaction,
    /// Those that were asked about.
    seen: u64,
    _taken: MutexGuard<'static, ()>,
}

impl TimedSignal {
    /// Sends one each time that so much CPU time has passed (ns).
    ///
    /// # Errors
    ///
    /// If there is no timer to be had.
    pub(crate) fn each(period_ns: u64) -> io::Result<Self> {
        let taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
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
        let signals = Self { timer, signal, before, seen: CAME.load(Ordering::Relaxed), _taken: taken };
        signals.set(period_ns);
        Ok(signals)
    }

    /// The last one, if any came since this was last asked.
    pub(crate) fn last(&mut self) -> Option<Handled> {
        let came = CAME.load(Ordering::Relaxed);
        let has_come = came != mem::replace(&mut self.seen, came);
        has_come.then(|| Handled {
            begun_ns: BEGUN_NS.load(Ordering::Relaxed),
            took_ns: INSIDE_NS.load(Ordering::Relaxed),
        })
    }

    fn set(&self, period_ns: u64) {
        let each = libc::timespec {
            tv_sec: (period_ns / 1_000_000_000) as i64,
            tv_nsec: (period_ns % 1_000_000_000) as i64,
        };
        let spec = libc::itimerspec { it_value: each, it_interval: each };
        // SAFETY: the timer is ours, and the pointer valid for the call.
        unsafe { libc::timer_settime(self.timer, 0, &raw const spec, std::ptr::null_mut()) };
    }
}

impl Drop for TimedSignal {
    fn drop(&mut self) {
        // SAFETY: the timer is ours; the action is the one that was in force.
        unsafe {
            libc::timer_delete(self.timer);
            libc::sigaction(self.signal, &raw const self.before, std::ptr::null_mut());
        }
    }
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
    fn the_last_signal_is_told_once() {
        let begun_ns = clock::monotonic_ns();
        let mut signals = TimedSignal::each(2 * tick_ns()).unwrap();
        let last = loop {
            if let Some(last) = signals.last() {
                break last;
            }
        };
        drop(signals);
        assert!((begun_ns..=clock::monotonic_ns()).contains(&last.begun_ns), "{last:?}");
        assert!((1_000_000..=10_000_000).contains(&tick_ns()), "HZ is 100 to 1000");
    }
}
