//! Signals with a value, to single threads; and signals in the place of which we want an error.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::sys::signal::{SigHandler, Signal, signal};

/// Whether we ignore what comes of files that become too big, and whoever started us did not.
static IGNORES_BIG_FILES: AtomicBool = AtomicBool::new(false);

/// A file that may not become so big is an error like any other, and not the end of this process.
pub(crate) fn take_errors_for_big_files() {
    // SAFETY: no handler is installed.
    let was = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) };
    // ATOMICS: read by this thread, or by what is forked of it.
    IGNORES_BIG_FILES.store(matches!(was, Ok(SigHandler::SigDfl)), Ordering::Relaxed);
}

/// In a child that is about to become another program: what that finds ignored is what whoever started us ignores. That of pipes is
/// ignored by Rust's runtime, and what was before nobody knows: it is as in any command that Rust starts.
pub(crate) fn as_we_were_started() {
    // SAFETY: no handler is installed, and `signal` is safe after `fork`.
    unsafe {
        let _ = signal(Signal::SIGPIPE, SigHandler::SigDfl);
        if IGNORES_BIG_FILES.load(Ordering::Relaxed) {
            let _ = signal(Signal::SIGXFSZ, SigHandler::SigDfl);
        }
    }
}

/// Sends a signal of ours, with a value, to a thread of another process.
pub(crate) fn queue(pid: u32, tid: u32, signal: i32, value: u64) -> io::Result<()> {
    // SAFETY: all-zero is a valid description of a signal.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    info.si_signo = signal;
    info.si_code = libc::SI_QUEUE;
    // SAFETY: of a queued signal, behind three numbers and padding come sender and user (4 bytes each), and then the value.
    unsafe { (&raw mut info).cast::<u64>().add(3).write(value) };
    // SAFETY: the pointer is valid for the call.
    let answer = unsafe {
        libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid as i32, tid as i32, signal, &raw const info)
    };
    Errno::result(answer)?;
    Ok(())
}
