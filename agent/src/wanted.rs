//! What the program sets up for the agent's signal: recorded, and not applied.

use core::ffi::c_int;
use core::mem;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU64, AtomicUsize};

/// What the program wants to happen at our signal, for signals of others than our timers.
pub(crate) static WANTED: WantedAction = WantedAction {
    handler: AtomicUsize::new(libc::SIG_DFL),
    flags: AtomicU64::new(0),
    mask: AtomicU64::new(0),
};

pub(crate) struct WantedAction {
    handler: AtomicUsize,
    flags: AtomicU64,
    mask: AtomicU64,
}

impl WantedAction {
    pub(crate) fn get(&self) -> libc::sigaction {
        // SAFETY: all-zero is a valid action.
        let mut action: libc::sigaction = unsafe { mem::zeroed() };
        action.sa_sigaction = self.handler.load(Acquire);
        action.sa_flags = self.flags.load(Relaxed) as c_int;
        // SAFETY: a set is at least eight bytes of bits.
        unsafe { (&raw mut action.sa_mask).cast::<u64>().write_unaligned(self.mask.load(Relaxed)) };
        action
    }

    pub(crate) fn set(&self, action: &libc::sigaction) {
        // SAFETY: the same.
        let mask = unsafe { (&raw const action.sa_mask).cast::<u64>().read_unaligned() };
        self.mask.store(mask, Relaxed);
        self.flags.store(action.sa_flags as u64, Relaxed);
        self.handler.store(action.sa_sigaction, Release);
    }
}
