//! The event loop of a run, and what ends it.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::signal::Signal;

use super::engine::Engine;
use super::precise::Precise;
use super::signals::Signals;
use crate::output::Outputs;
use crate::sys::spawn::{Ended, RunningCommand};
use crate::sys::{clock, terminal};
use crate::terminal::Terminal;

/// The processes whose end ends the run.
pub(super) enum WatchedProcesses<'a> {
    /// A command that we started.
    Command {
        /// Its process.
        pid: u32,
        /// To wait for its end.
        command: &'a RunningCommand,
    },
    /// Running processes: the run ends when none is left.
    Processes,
    /// All processes, of which there are always some.
    Everything,
}

/// What else ends a run.
pub(super) struct Until {
    pub(super) duration: Option<Duration>,
    pub(super) precise: Option<Precise>,
}

/// Why sampling stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The command has ended.
    Exit(Ended),
    /// No process of the target was left.
    TargetGone,
    /// The time was up.
    Duration,
    /// It was requested.
    Signal,
    /// It was requested twice, and the command goes on.
    LeftAlone(Signal),
    /// The profile reached the requested precision.
    Precise,
}

impl Stop {
    /// The word for it in the summary.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Exit(_) | Self::TargetGone => "target_ended",
            Self::Duration => "duration",
            Self::Signal | Self::LeftAlone(_) => "signal",
            Self::Precise => "precise",
        }
    }

    /// The command's own status, where it has one; that of the signal where the command goes on.
    pub(super) fn exit_code(self) -> ExitCode {
        match self {
            Self::Exit(ended) => ExitCode::from(ended.status),
            Self::LeftAlone(signal) => ExitCode::from(128 + signal as u8),
            _ => ExitCode::SUCCESS,
        }
    }
}

/// Two Ctrl-C, or two SIGTERM, within this time ask to leave the command alone: one by one, they are the command's.
const TWICE: Duration = Duration::from_secs(2);

/// Signals that ask a command to stop.
#[derive(Default)]
pub(super) struct Requests {
    /// When the terminal last sent one.
    by_terminal: Option<Instant>,
    /// When one was last passed on.
    passed_on: Option<Instant>,
}

impl Requests {
    /// Passes a signal on to the command, unless the terminal has sent it already: the command decides how to end, as if
    /// it were not profiled. At the second one it is left alone.
    pub(super) fn pass_on(
        &mut self,
        signal: Signal,
        command: &RunningCommand,
        terminal: Terminal,
    ) -> Option<Stop> {
        let of_terminal = signal == Signal::SIGINT && terminal::in_foreground();
        if !of_terminal {
            command.signal(signal);
        }
        // To many programs SIGHUP means that they shall read their settings again.
        let is_second = signal != Signal::SIGHUP && self.is_second(of_terminal, Instant::now());
        is_second.then(|| {
            terminal.say("the command goes on, and is no longer sampled");
            Stop::LeftAlone(signal)
        })
    }

    fn is_second(&mut self, of_terminal: bool, now: Instant) -> bool {
        let last = if of_terminal { &mut self.by_terminal } else { &mut self.passed_on };
        let last = last.replace(now);
        last.is_some_and(|last| now.saturating_duration_since(last) < TWICE)
    }
}

/// What shows a run while it goes on.
pub(super) trait RunDisplay {
    /// Shows the run as it is now, if that is due; returns whether the run is to end.
    fn show(&mut self, engine: &mut Engine<Outputs>) -> bool;
}

/// Samples until the target has ended, the duration is over, the profile is precise enough or a signal asks to stop.
pub(super) async fn follow(
    engine: &mut Engine<Outputs>,
    signals: &mut Signals,
    mut until: Until,
    watched: &WatchedProcesses<'_>,
    display: &mut impl RunDisplay,
) -> Result<Stop> {
    let deadline = until.duration.map(|duration| Instant::now() + duration);
    let (mut requests, terminal) = (Requests::default(), engine.log.terminal());
    loop {
        let left =
            deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
        let signal =
            signals.wait_or_alarm(engine.pause(clock::monotonic_ns()).min(left), engine.alarm()).await;
        let is_to_end = display.show(engine); // before the turn, which charges what showing took
        engine.turn();
        let mut stop = left.is_zero().then_some(Stop::Duration);
        match watched {
            WatchedProcesses::Command { pid, command } => {
                let ended = if signals.take_may_have_ended() { command.try_wait()? } else { None };
                if let Some(ended) = ended {
                    engine.session.cpu.scheduled.waited_for(*pid, ended.cpu_ns);
                    stop = Some(Stop::Exit(ended));
                } else if let Some(signal) = signal {
                    stop = requests.pass_on(signal, command, terminal).or(stop);
                }
            }
            WatchedProcesses::Processes | WatchedProcesses::Everything if signal.is_some() || is_to_end => {
                stop = Some(Stop::Signal);
            }
            // A process may enter an empty group until the duration is over.
            WatchedProcesses::Processes
                if engine.target_has_ended() && (deadline.is_none() || engine.nobody_can_come()) =>
            {
                stop = Some(Stop::TargetGone);
            }
            WatchedProcesses::Processes | WatchedProcesses::Everything => {}
        }
        let mut precise =
            || until.precise.as_mut().is_some_and(|precise| precise.is_reached(&engine.session));
        if let Some(stop) = stop.or_else(|| precise().then_some(Stop::Precise)) {
            engine.stop();
            return Ok(stop);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_interrupt_after_another_is_the_commands_and_two_at_once_leave_it() {
        let (mut requests, now) = (Requests::default(), Instant::now());
        let at = |seconds| now + Duration::from_secs(seconds);
        let seen = [0, 10, 20, 21].map(|seconds| requests.is_second(true, at(seconds)));
        assert_eq!(seen, [false, false, false, true]);
        // Those that come from elsewhere are counted by themselves.
        assert_eq!([22, 60, 61].map(|seconds| requests.is_second(false, at(seconds))), [false, false, true]);
    }
}
