//! Failures that have an exit status of their own.

use std::process::ExitCode;

/// Why the program ends without a result. Anything else that fails exits with status 1.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// What was asked for cannot be meant, or is not available.
    #[error("{0}")]
    Usage(String),
    /// What is wrong with a settings file, a line each.
    #[error("{}", .0.join("; "))]
    Settings(Vec<String>),
    /// The kernel or its settings forbid it; the text says what to do.
    #[error("{0}")]
    NotPermitted(String),
    /// Somebody asked to stop before there was a result; the status is the one a shell would give.
    #[error("{text}")]
    Stopped {
        /// Exit status.
        status: u8,
        /// What is left undone.
        text: String,
    },
    /// The command to be profiled could not be run; its status is the one a shell would give.
    #[error("{text}")]
    Command {
        /// Exit status.
        status: u8,
        /// What happened and what to do.
        text: String,
    },
}

/// The exit status for `error`: 2 for usage, 77 for a missing permission, else 1.
pub(crate) fn exit_code(error: &anyhow::Error) -> ExitCode {
    match error.downcast_ref::<Failure>() {
        Some(Failure::Usage(_) | Failure::Settings(_)) => ExitCode::from(2),
        Some(Failure::NotPermitted(_)) => ExitCode::from(77),
        Some(Failure::Command { status, .. } | Failure::Stopped { status, .. }) => ExitCode::from(*status),
        None => ExitCode::FAILURE,
    }
}

/// An error as a person reads it: the chain of causes on a line, or of a settings file a line for each problem.
pub(crate) fn lines(error: &anyhow::Error) -> Vec<String> {
    match error.downcast_ref() {
        Some(Failure::Settings(lines)) => lines.clone(),
        _ => vec![format!("{error:#}").replace(['\n', '\r'], " ")],
    }
}

/// Whether somebody asked to stop.
pub(crate) fn is_stop(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Failure::Stopped { .. }))
}

/// A usage error with this text.
pub(crate) fn usage(message: impl Into<String>) -> anyhow::Error {
    Failure::Usage(message.into()).into()
}
