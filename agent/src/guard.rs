//! Programs that shut themselves in: from then on a system call of ours could be the end of them.
//!
//! A filter of system calls takes `prctl` first, for itself or for the promise of no new privileges that it needs. So `prctl` is
//! watched, and after either call the handler enters the kernel no more: the timers go on at the period that they have. A
//! filter that a process was begun with is not in the way: it answers, and a refused timer is a thread left out. One that does not
//! let the return from a handler through takes the timers away before it is in force (`filter`).
//!
//! The strict mode, and who asks for it by itself, takes the processor's clock away as well: then even a look at the time is
//! the end. Such a thread is sampled no longer.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Release};

use crate::{memory, sys, threads};

static SHUT: AtomicBool = AtomicBool::new(false);
/// Whether a filter was put up since the program began that does not let through what it takes to stop a timer.
static MUTE: AtomicBool = AtomicBool::new(false);

/// Whether the kernel must not be entered any more.
#[inline]
pub(crate) fn is_shut() -> bool {
    SHUT.load(Acquire)
}

/// The program is about to make this call of `prctl`.
pub(crate) fn before_prctl(option: libc::c_int, argument: libc::c_ulong) {
    let is_strict =
        option == libc::PR_SET_SECCOMP && argument == libc::c_ulong::from(libc::SECCOMP_MODE_STRICT);
    let takes_clock = is_strict || option == libc::PR_SET_TSC;
    let shuts = matches!(option, libc::PR_SET_SECCOMP | libc::PR_SET_NO_NEW_PRIVS);
    // A child of `vfork` runs in the memory of its parent, which goes on as before.
    if !(takes_clock || shuts) || is_mute() || !memory::is_own(sys::getpid()) {
        return;
    }
    if takes_clock {
        threads::leave_out();
    } else {
        SHUT.store(true, Release);
    }
}

/// Whether not even the process may be asked for.
pub(crate) fn is_mute() -> bool {
    MUTE.load(Acquire)
}

/// The program is about to put up a filter that lets handlers return, or does not, and lets timers be stopped later, or does not.
pub(crate) fn before_filter(lets_return: bool, lets_stop: bool, is_for_all: bool) {
    SHUT.store(true, Release);
    if !lets_return {
        threads::stop_for_filter(is_for_all);
    }
    if !lets_stop {
        MUTE.store(true, Release);
    }
}
