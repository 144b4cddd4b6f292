//! How soon this process gets a CPU where all are busy.

use nix::libc;

/// Threads that read rings and answer must not wait for their turn behind dozens of others: samples would be lost meanwhile.
const NICENESS: libc::c_int = -10;

/// Threads that nobody waits for come after programs of usual niceness. Not last of all: what others wait for may be in their hands
/// for a moment.
const LATER: libc::c_int = 5;

/// Comes before programs of usual niceness from now on, where that is permitted. For those whose CPU time is bounded in another way.
pub(crate) fn come_first() {
    // SAFETY: the call takes numbers and touches no memory of ours.
    let refused = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICENESS) } != 0;
    if refused {
        tracing::debug!("the niceness stays what it is: it takes CAP_SYS_NICE to lower it");
    }
}

/// The calling thread comes after programs of usual niceness from now on. Its process' other threads stay as they are.
pub(crate) fn come_later() {
    // SAFETY: the call takes numbers and touches no memory of ours. 0 is the calling thread.
    let refused = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, LATER) } != 0;
    if refused {
        tracing::debug!("a thread's niceness stays what it is");
    }
}
