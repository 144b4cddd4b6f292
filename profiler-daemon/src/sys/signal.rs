//! Signals with a value, to single threads; signals in the place of which we want an error; and those that are ignored.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
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

/// Whether a signal is ignored, as a hang-up is under `nohup`.
pub(crate) fn is_ignored(signal: Signal) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: no action is set; the kernel writes the present one to where the pointer says, which has room for it.
    let answer = unsafe { libc::sigaction(signal as i32, ptr::null(), action.as_mut_ptr()) };
    // SAFETY: zeros are a valid action, where the kernel wrote none.
    answer == 0 && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_rust_ignores_is_told_from_what_it_leaves() {
        assert!(is_ignored(Signal::SIGPIPE) && !is_ignored(Signal::SIGUSR2));
    }
}
