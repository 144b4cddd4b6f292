//! What this process does at a signal.

use std::mem::MaybeUninit;
use std::ptr;

use nix::sys::signal::Signal;

/// Whether a signal is ignored, as a hang-up is under `nohup`.
pub(crate) fn is_ignored(signal: Signal) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: no action is set; the kernel writes the present one to where the pointer says, which has room for it.
    let answer = unsafe { libc::sigaction(signal as i32, ptr::null(), action.as_mut_ptr()) };
    // SAFETY: zeros are a valid action, where the kernel wrote none.
    answer == 0 && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_rust_ignores_is_told_from_what_it_leaves() {
        assert!(is_ignored(Signal::SIGPIPE) && !is_ignored(Signal::SIGUSR2));
    }
}
