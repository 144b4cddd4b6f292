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

impl Signals {
    /// Catches them, also those that whoever started us had blocked.
    pub(crate) fn listen() -> Result<Self> {
        let caught = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGCHLD]);
        caught.thread_unblock().context("signals could not be unblocked")?;
        let listen = |kind| signal(kind).context("signals could not be caught");
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hang_up: listen(SignalKind::hangup())?,
            child: listen(SignalKind::child())?,
            timer: Timer::new().context("the timer could not be made")?,
        })
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
