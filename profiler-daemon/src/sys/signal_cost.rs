//! What a timer's signal costs a thread outside of its handler: the kernel's way into it and back, at a tick of the kernel, which
//! finds other caches than a signal that the thread asks for.

use std::io;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};

use super::clock;

/// A step of work that takes so much longer than usual was interrupted (ns).
const LONGER_NS: u64 = 1_500;
/// A step counts for so little of what is usual.
const USUAL_STEPS: f64 = 64.0;
/// What steps take before any was done (ns).
const FIRST_NS: f64 = 1_000.0;

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

/// A time at which a thread that works all the time did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interruption {
    /// When it began (ns of the monotonic clock).
    pub(crate) at_ns: u64,
    /// How long the thread stood still (ns).
    pub(crate) stood_ns: u64,
    /// The handler that ran meanwhile, if a signal came.
    pub(crate) handler: Option<Handled>,
}

/// What a handler saw of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handled {
    /// When it began (ns of the monotonic clock).
    pub(crate) begun_ns: u64,
    /// What it took between its looks at the clock (ns).
    pub(crate) took_ns: u64,
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

    /// Lets it expire each time that so much CPU time has passed (ns).
    fn every(&self, period_ns: u64) {
        let each = libc::timespec {
            tv_sec: (period_ns / 1_000_000_000) as i64,
            tv_nsec: (period_ns % 1_000_000_000) as i64,
        };
        let spec = libc::itimerspec { it_value: each, it_interval: each };
        // SAFETY: the timer is ours, and the pointer valid for the call.
        unsafe { libc::timer_settime(self.timer, 0, &raw const spec, std::ptr::null_mut()) };
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

/// Works for so long in steps of some hundred nanoseconds, with a signal each `period_ns` of CPU time, and tells when it was
/// interrupted. For one thread at a time.
///
/// # Errors
///
/// If there is no timer to be had.
pub(crate) fn interruptions(
    period_ns: u64,
    for_ns: u64,
    mut step: impl FnMut(),
) -> io::Result<Vec<Interruption>> {
    let trial = Trial::new()?;
    trial.every(period_ns);
    let (mut found, mut usual_ns) = (Vec::new(), FIRST_NS);
    let mut came = CAME.load(Ordering::Relaxed);
    let mut last_ns = clock::monotonic_ns();
    let end_ns = last_ns.saturating_add(for_ns);
    while last_ns < end_ns {
        step();
        let now_ns = clock::monotonic_ns();
        let took_ns = now_ns.saturating_sub(last_ns);
        last_ns = now_ns;
        if took_ns > usual_ns as u64 + LONGER_NS {
            let has_come = CAME.load(Ordering::Relaxed) != came;
            let handler = || Handled {
                begun_ns: BEGUN_NS.load(Ordering::Relaxed),
                took_ns: INSIDE_NS.load(Ordering::Relaxed),
            };
            found.push(Interruption {
                at_ns: now_ns - took_ns,
                stood_ns: took_ns - usual_ns as u64,
                handler: has_come.then(handler),
            });
            // From here on again, since steps follow each other without a gap in which one could be interrupted unseen.
            came = CAME.load(Ordering::Relaxed);
            last_ns = clock::monotonic_ns();
        } else {
            usual_ns += (took_ns as f64 - usual_ns) / USUAL_STEPS;
        }
    }
    Ok(found)
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
    fn a_thread_that_works_is_interrupted_with_signals_and_without() {
        let found = interruptions(2 * tick_ns(), 400_000_000, || {
            std::hint::black_box((0..100_u64).fold(1_u64, |x, y| std::hint::black_box(x ^ y)));
        });
        let found = found.unwrap();
        let handlers: Vec<_> = found.iter().filter_map(|one| Some((one, one.handler?))).collect();
        let is_within = |&(one, handler): &(&Interruption, Handled)| {
            one.at_ns <= handler.begun_ns && handler.took_ns <= one.stood_ns
        };
        assert!(!handlers.is_empty() && handlers.iter().all(is_within), "{found:?}");
        assert!((1_000_000..=10_000_000).contains(&tick_ns()), "HZ is 100 to 1000");
    }
}
