//! Requests to the daemon, as the command line states them.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use profile_files::Format;

use crate::api::AttachBody;
use crate::output::{OutputFile, Top};

/// Query or control a daemon.
#[derive(Debug)]
pub(crate) struct CtlJob {
    /// Its socket.
    pub(crate) socket: PathBuf,
    /// Print its own words.
    pub(crate) json: bool,
    /// What.
    pub(crate) query: CtlQuery,
}

/// A query or a command to the daemon.
#[derive(Debug)]
pub(crate) enum CtlQuery {
    /// How it is.
    Status,
    /// Its targets.
    Targets(TargetList),
    /// The decisions for a target.
    Decisions(String),
    /// A profile.
    Profile(CtlProfile),
    /// Watch this.
    Attach(Box<AttachBody>),
    /// Watch this no more.
    Detach(String),
    /// Read the settings again.
    Reload,
    /// End.
    Stop,
}

/// How targets are listed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TargetList {
    /// What comes first.
    pub(crate) order: TargetOrder,
    /// The most rows.
    pub(crate) top: usize,
    /// With their labels.
    pub(crate) labels: bool,
}

/// A profile that the daemon has.
#[derive(Debug)]
pub(crate) struct CtlProfile {
    /// Of which time.
    pub(crate) time: CtlTime,
    /// Of which targets; empty: of all.
    pub(crate) targets: Vec<String>,
    /// With which labels.
    pub(crate) labels: Vec<(String, String)>,
    /// How to print it.
    pub(crate) format: &'static Format,
    /// Functions that its table lists.
    pub(crate) top: Top,
    /// Files to write instead, each path once.
    pub(crate) files: Vec<OutputFile>,
}

/// Of which time a profile is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CtlTime {
    /// From here to there (ns since the Unix epoch); not empty.
    Range(u64, Option<u64>),
    /// The next seconds, at least one.
    Next(Duration),
}

/// In which order targets are listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum TargetOrder {
    /// CPU time of the target.
    #[default]
    Cpu,
    /// Name.
    Name,
    /// Samples.
    Samples,
    /// Slowdown in the last ten seconds.
    Slowdown,
    /// The profiler's own CPU time for it in the last ten seconds.
    Own,
}
