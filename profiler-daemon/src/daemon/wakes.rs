//! What wakes the loop: time, signals and requests.

use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal};
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};

use super::reload::PreparedSettings;
use crate::service::command::DaemonCommand;
use crate::sys::timer::Timer;

/// Why the loop woke up.
pub(super) enum Wake {
    Time,
    Reload,
    /// Other settings are ready to be in force, or refused.
    Prepared(Box<Result<PreparedSettings>>),
    Stop,
    Command(DaemonCommand),
}

/// Signals and the timer.
pub(super) struct Wakes {
    interrupt: SignalStream,
    terminate: SignalStream,
    hang_up: SignalStream,
    timer: Timer,
}

impl Wakes {
    /// Catches the signals, also those that our parent process had blocked: a service that ignores a request to stop
    /// has to be killed.
    pub(super) fn listen() -> Result<Self> {
        let caught = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
        caught.thread_unblock().context("signals could not be unblocked")?;
        let listen = |kind| signal(kind).context("signals could not be caught");
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hang_up: listen(SignalKind::hangup())?,
            timer: Timer::new().context("the timer could not be made")?,
        })
    }

    /// Waits for a signal, or for `pause`.
    pub(super) async fn wait(&mut self, pause: Duration) -> Wake {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => Wake::Stop,
            _ = self.interrupt.recv() => Wake::Stop,
            _ = self.hang_up.recv() => Wake::Reload,
            () = self.timer.sleep(pause) => Wake::Time,
        }
    }
}
