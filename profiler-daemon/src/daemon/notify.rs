//! Notifications to the service manager: ready, reloading, alive, stopping. Without a manager
//! (`NOTIFY_SOCKET`) nothing happens.

use std::time::Duration;

use sd_notify::NotifyState;

use crate::sys::clock;

/// Tells the service manager, and remembers what it knows.
#[derive(Debug)]
pub(crate) struct Notifier {
    /// How long it waits for a sign of life; `None` if for ever.
    patience: Option<Duration>,
    /// Monotonic time of the last sign of life (ns).
    alive_ns: Option<u64>,
    /// The last status line.
    status: String,
    /// Whether a notification failed: logged once.
    deaf: bool,
}

impl Notifier {
    /// The manager that the environment names.
    pub(crate) fn from_env() -> Self {
        let patience = sd_notify::watchdog_enabled();
        Self { patience, alive_ns: None, status: String::new(), deaf: false }
    }

    /// The daemon samples what it can, with the settings that it read last.
    pub(crate) fn ready(&mut self, status: &str) {
        self.status = one_line(status);
        let status = self.status.clone();
        self.tell(&[NotifyState::Ready, NotifyState::Status(&status)]);
    }

    /// The settings are read again; [`Self::ready`] says that they were, also where the older ones stay in force. The time
    /// tells the manager which request this answers.
    pub(crate) fn reloading(&mut self) {
        let now_us = i128::from(clock::monotonic_ns() / 1000);
        self.tell(&[NotifyState::Reloading, NotifyState::MonotonicUsec(now_us)]);
    }

    /// How the daemon is, in a line for `systemctl status`. Told when it changes.
    pub(crate) fn status(&mut self, line: &str) {
        let line = one_line(line);
        if line != self.status {
            self.tell(&[NotifyState::Status(&line)]);
            self.status = line;
        }
    }

    /// Sends a sign of life after half of the watchdog interval. To be called at each wake-up.
    pub(crate) fn alive(&mut self, now_ns: u64) {
        let Some(patience) = self.patience else { return };
        let since = |told: u64| Duration::from_nanos(now_ns.saturating_sub(told));
        if self.alive_ns.is_none_or(|told| since(told) >= patience / 2) {
            self.alive_ns = Some(now_ns);
            self.tell(&[NotifyState::Watchdog]);
        }
    }

    /// Reports that the daemon ends as requested.
    pub(crate) fn stopping(&mut self) {
        self.tell(&[NotifyState::Stopping, NotifyState::Status("stops")]);
    }

    fn tell(&mut self, states: &[NotifyState]) {
        if let Err(error) = sd_notify::notify(states)
            && !self.deaf
        {
            self.deaf = true;
            tracing::warn!("the service manager cannot be notified ({error})");
        }
    }
}

/// A line of the protocol ends at a line feed.
fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

#[cfg(test)]
#[path = "notify_tests.rs"]
mod tests;
