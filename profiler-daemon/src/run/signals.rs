//! What wakes a run: signals, its timer, and the alarm of a storm of switches.

use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal};
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};

use crate::sys::alarm::SwitchAlarm;
use crate::sys::timer::Timer;

/// The signals that a run reacts to.
pub(crate) struct Signals {
    interrupt: SignalStream,
    terminate: SignalStream,
    hang_up: SignalStream,
    child: SignalStream,
    timer: Timer,
}

/// Those that ask to stop.
const TO_STOP: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// Has signals that ask to stop wait until somebody listens: from when something is in another process that only our end takes
/// out of it.
pub(super) fn put_off() -> Result<()> {
    SigSet::from_iter(TO_STOP).thread_block().context("signals could not be blocked")
}

impl Signals {
    /// Catches them, also those that we or whoever started us had blocked: one of these may wait, and would end us uncaught.
    pub(crate) fn listen() -> Result<Self> {
        let listen = |kind| signal(kind).context("signals could not be caught");
        let signals = Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hang_up: listen(SignalKind::hangup())?,
            child: listen(SignalKind::child())?,
            timer: Timer::new().context("the timer could not be made")?,
        };
        let caught = SigSet::from_iter(TO_STOP.into_iter().chain([Signal::SIGCHLD]));
        caught.thread_unblock().context("signals could not be unblocked")?;
        Ok(signals)
    }

    /// Waits for `pause`, or for a signal; returns the one that asks to stop.
    pub(crate) async fn wait(&mut self, pause: Duration) -> Option<Signal> {
        self.wait_or_alarm(pause, None).await
    }

    /// The same, or until the alarm rings.
    pub(super) async fn wait_or_alarm(
        &mut self,
        pause: Duration,
        alarm: Option<&SwitchAlarm>,
    ) -> Option<Signal> {
        let rings = async {
            match alarm {
                Some(alarm) => alarm.wait().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.timer.sleep(pause) => None,
            () = rings => None,
            _ = self.child.recv() => None,
            _ = self.interrupt.recv() => Some(Signal::SIGINT),
            _ = self.terminate.recv() => Some(Signal::SIGTERM),
            _ = self.hang_up.recv() => Some(Signal::SIGHUP),
        }
    }
}
