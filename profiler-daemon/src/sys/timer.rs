//! A timer that wakes us once: the runtime's own wheel wakes up in between to sort its entries, and each wake-up
//! counts as overhead.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use tokio::io::unix::AsyncFd;

/// A one-shot timer of the kernel.
pub(crate) struct Timer(AsyncFd<Descriptor>);

/// Gives the runtime the descriptor of a timer.
struct Descriptor(TimerFd);

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Timer {
    /// A timer; needs a runtime around it.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = Descriptor(TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?);
        // SAFETY: the descriptor belongs to `timer`, which keeps it open and unchanged until it is dropped.
        Ok(Self(unsafe { AsyncFd::register(timer) }?))
    }

    /// Waits for `pause`. A timer that cannot be set or read does not wait.
    pub(crate) async fn sleep(&self, pause: Duration) {
        let at_least = pause.max(Duration::from_micros(1)); // zero would disarm it
        let expiration = Expiration::OneShot(TimeSpec::from_duration(at_least));
        if self.0.get_ref().0.set(expiration, TimerSetTimeFlags::empty()).is_err() {
            return;
        }
        while let Ok(mut ready) = self.0.readable().await {
            let mut count = [0; 8];
            if nix::unistd::read(self.0.get_ref().as_fd(), &mut count).is_ok() {
                return;
            }
            ready.clear_ready();
        }
    }
}
