//! Programs that install a system call filter: from then on, a system call of the agent could end them.
//!
//! The agent evaluates a filter before it takes effect (`filter`), and then makes only the system calls that the
//! filter allows. Timers that may not be set keep their period; timers that may not be stopped run on. The
//! promise of no new privileges that precedes a filter forbids nothing by itself. If a filter forbids the return
//! from a signal handler, the timers are removed.
//!
//! The filter holds in the programs that the process executes, too: they get an agent only where it lets through all
//! that an agent calls. A filter from before the agent is tried: where it refuses a timer, that thread is not sampled.
//!
//! The strict mode also forbids reading the processor's clock: even reading the time ends the thread. Such a
//! thread is no longer sampled.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Release};

use crate::{memory, sys, threads};

/// Whether a filter was put up since the program began.
static SHUT: AtomicBool = AtomicBool::new(false);
/// The same, and it does not let through what it takes to set a timer.
static FIXED: AtomicBool = AtomicBool::new(false);
/// The same, and it does not let through what it takes to sample a program that is executed.
static NO_HEIRS: AtomicBool = AtomicBool::new(false);
/// Whether a filter was put up since the program began that does not let through what it takes to stop a timer.
static MUTE: AtomicBool = AtomicBool::new(false);

/// Whether the kernel must not be entered any more, but to set timers and to stop them where that is let through.
#[inline]
pub(crate) fn is_shut() -> bool {
    SHUT.load(Acquire)
}

/// Whether a timer may be set.
#[inline]
pub(crate) fn may_set_timers() -> bool {
    !FIXED.load(Acquire)
}

/// Whether programs that are executed from here may be sampled: a filter holds in them too.
pub(crate) fn may_give_on() -> bool {
    !NO_HEIRS.load(Acquire)
}

/// Whether a timer may be stopped.
#[inline]
pub(crate) fn may_stop_timers() -> bool {
    !is_mute()
}

/// The program is about to make this call of `prctl`.
pub(crate) fn before_prctl(option: libc::c_int, argument: libc::c_ulong) {
    let is_strict =
        option == libc::PR_SET_SECCOMP && argument == libc::c_ulong::from(libc::SECCOMP_MODE_STRICT);
    let takes_clock = is_strict || option == libc::PR_SET_TSC;
    // A child of `vfork` runs in the memory of its parent, which goes on as before.
    if takes_clock && !is_mute() && memory::is_own(sys::getpid()) {
        threads::leave_out();
    }
}

/// Whether not even the process may be asked for.
pub(crate) fn is_mute() -> bool {
    MUTE.load(Acquire)
}

/// What a filter lets through.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lets {
    /// The return from a handler.
    pub(crate) end_handlers: bool,
    /// To set a timer.
    pub(crate) set: bool,
    /// To look at a program's file, and all that an agent in that program calls.
    pub(crate) give_on: bool,
    /// To ask for the process, and to stop a timer.
    pub(crate) stop: bool,
}

/// The program is about to put up a filter.
pub(crate) fn before_filter(lets: Lets, is_for_all: bool) {
    SHUT.store(true, Release);
    if !lets.set {
        FIXED.store(true, Release);
    }
    if !lets.give_on {
        NO_HEIRS.store(true, Release);
    }
    if !lets.end_handlers {
        threads::stop_for_filter(is_for_all);
    }
    if !lets.stop {
        MUTE.store(true, Release);
    }
}
