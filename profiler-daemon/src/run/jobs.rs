//! What a run is to do.

use std::ffi::OsString;
use std::time::Duration;

use config::SamplingSettings;

use crate::output::{OutputJob, Top};
use crate::targets::Target;

/// Profile a command until it exits.
#[derive(Debug)]
pub(crate) struct RecordJob {
    /// The program and its arguments; never empty.
    pub(crate) command: Vec<OsString>,
    /// How to sample; validated.
    pub(crate) sampling: SamplingSettings,
    /// Where the results go.
    pub(crate) output: OutputJob,
}

/// Profile running processes.
#[derive(Debug)]
pub(crate) struct AttachJob {
    /// Which processes.
    pub(crate) target: Target,
    /// When to stop; `None`: when they have exited.
    pub(crate) duration: Option<Duration>,
    /// How to sample; validated.
    pub(crate) sampling: SamplingSettings,
    /// Where the results go.
    pub(crate) output: OutputJob,
}

/// Show where CPU time goes at present.
#[derive(Debug)]
pub(crate) struct TopJob {
    /// What to sample, and how; no files are written.
    pub(crate) run: AttachJob,
    /// How often to draw.
    pub(crate) every: Duration,
    /// The time that is shown.
    pub(crate) window: Duration,
    /// Functions to list; by default as many as fit into the terminal.
    pub(crate) rows: Option<Top>,
}
