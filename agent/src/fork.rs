//! The child of a fork: it has none of its parent's timers, and gets a slot and a timer of its own, but in a
//! process that we were loaded into: there it is left alone. Children of `vfork` and of
//! `clone` past the C library are not sampled, and touch nothing.

use core::sync::atomic::Ordering::Relaxed;

use crate::{control, environment, memory, threads};

/// Has the children of forks sampled from now on.
pub(crate) fn follow() {
    // SAFETY: the function takes nothing and returns.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

unsafe extern "C" fn in_child() {
    control::begin_child();
    environment::begin_child();
    if control::is_injected() {
        return control::leave_child();
    }
    if memory::ENABLED.load(Relaxed) {
        threads::enter_child();
    }
}
