//! The event loop of a run, and what ends it.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::signal::Signal;

use super::engine::Engine;
use super::precise::Precise;
use super::progress::Progress;
use super::signals::Signals;
use crate::output::Outputs;
use crate::sys::spawn::{Ended, RunningCommand};
use crate::sys::{clock, terminal};

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
    /// The profile reached the requested precision.
    Precise,
}

impl Stop {
    /// The word for it in the summary.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Exit(_) | Self::TargetGone => "target_ended",
            Self::Duration => "duration",
            Self::Signal => "signal",
            Self::Precise => "precise",
        }
    }

    /// The command's own status, where it has one.
    pub(super) fn exit_code(self) -> ExitCode {
        match self {
            Self::Exit(ended) => ExitCode::from(ended.status),
            _ => ExitCode::SUCCESS,
        }
    }
}

/// Passes a signal on to a command, unless the terminal has sent it already.
pub(super) fn pass_on(signal: Signal, command: &RunningCommand) {
    if !(signal == Signal::SIGINT && terminal::in_foreground()) {
        command.signal(signal);
    }
}

/// Samples until the target has ended, the duration is over, the profile is precise enough or a signal asks to stop.
pub(super) async fn follow(
    engine: &mut Engine<Outputs>,
    signals: &mut Signals,
    mut until: Until,
    watched: WatchedProcesses<'_>,
) -> Result<Stop> {
    let deadline = until.duration.map(|duration| Instant::now() + duration);
    let mut progress = Progress::new(engine.log.terminal(), until.duration);
    let mut asked_to_stop = false;
    loop {
        let left =
            deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
        let signal =
            signals.wait_or_alarm(engine.pause(clock::monotonic_ns()).min(left), engine.alarm()).await;
        engine.turn();
        progress.show(engine);
        let mut stop = left.is_zero().then_some(Stop::Duration);
        match &watched {
            WatchedProcesses::Command { pid, command } => {
                let ended = if signals.take_may_have_ended() { command.try_wait()? } else { None };
                if let Some(ended) = ended {
                    engine.session.cpu.scheduled.waited_for(*pid, ended.cpu_ns);
                    stop = Some(Stop::Exit(ended));
                } else if let Some(signal) = signal {
                    // The command decides how to end, as if it were not profiled; at the second signal it is left alone.
                    stop = asked_to_stop.then_some(Stop::Signal);
                    asked_to_stop = true;
                    pass_on(signal, command);
                }
            }
            WatchedProcesses::Processes | WatchedProcesses::Everything if signal.is_some() => {
                stop = Some(Stop::Signal)
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
