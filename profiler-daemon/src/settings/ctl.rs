//! What was typed after `ctl`, checked.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use config::Span;
use jiff::Zoned;
use profile_files::Format;
use profile_files::when::When;

use super::distinct;
use crate::api::Attach;
use crate::cli::{CtlArgs, CtlAttachArgs, CtlCommand, CtlProfileArgs, OutputFile, TargetOrder, Top};
use crate::failure::usage;

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
    Attach(Box<Attach>),
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

impl CtlJob {
    /// What was typed, checked.
    ///
    /// # Errors
    ///
    /// A usage error for values that do not go together.
    pub(super) fn new(args: CtlArgs) -> Result<Self> {
        let query = match args.ask {
            CtlCommand::Status => CtlQuery::Status,
            CtlCommand::Targets(args) => {
                CtlQuery::Targets(TargetList { order: args.sort, top: args.top.get(), labels: args.labels })
            }
            CtlCommand::Decisions { target } => CtlQuery::Decisions(target),
            CtlCommand::Profile(args) => CtlQuery::Profile(profile(args)?),
            CtlCommand::Attach(args) => CtlQuery::Attach(Box::new(attach(*args)?)),
            CtlCommand::Detach { target } => CtlQuery::Detach(target),
            CtlCommand::Reload => CtlQuery::Reload,
            CtlCommand::Stop => CtlQuery::Stop,
        };
        Ok(Self { socket: args.socket, json: args.json, query })
    }
}

fn profile(args: CtlProfileArgs) -> Result<CtlProfile> {
    distinct(args.output.iter().map(|file| &file.path))?;
    Ok(CtlProfile {
        time: time(args.from, args.to, args.duration)?,
        targets: args.target,
        labels: args.label,
        format: args.format,
        top: args.top,
        files: args.output,
    })
}

fn time(from: Option<When>, to: Option<When>, duration: Option<Span>) -> Result<CtlTime> {
    if let Some(span) = duration {
        let seconds = span.seconds().ceil();
        if !(1.0..=3600.0).contains(&seconds) {
            return Err(usage(format!("--duration {span} is not from 1s to 1h; give such a time")));
        }
        return Ok(CtlTime::Next(Duration::from_secs(seconds as u64)));
    }
    let now = Zoned::now();
    let moment = |option: &str, when: When| {
        when.unix_ns(&now)
            .ok_or_else(|| usage(format!("{option} is not a time since 1970; give one such as -1h")))
    };
    let to = to.map(|to| moment("--to", to)).transpose()?;
    let from = match from {
        Some(from) => moment("--from", from)?,
        None => to.unwrap_or(moment("--to", When::At(now.timestamp()))?).saturating_sub(60_000_000_000),
    };
    if to.unwrap_or(moment("--to", When::At(now.timestamp()))?) <= from {
        return Err(usage("--from is not before --to; give an earlier time, such as --from -1h"));
    }
    Ok(CtlTime::Range(from, to))
}

fn attach(args: CtlAttachArgs) -> Result<Attach> {
    let seconds = args.duration.seconds();
    if !(seconds > 0.0 && seconds <= 3600.0) {
        return Err(usage(format!(
            "--duration {} is not more than 0 and at most 1h; give such a time",
            args.duration
        )));
    }
    Ok(Attach {
        duration_s: Some(seconds),
        name: args.called,
        pid: args.pid.or(args.pid_option),
        executable: args.executable,
        command: args.command,
        process: args.name,
        user: args.user,
        unit: args.unit,
        cgroup: args.cgroup,
        container: args.container,
        container_name: args.container_name,
        image: args.image,
        namespace: args.namespace,
        pod: args.pod,
        pod_labels: args.pod_label.into_iter().collect(),
        everything: args.all,
        each: args.each.map(|each| each.to_string()),
        budget_ratio: args.budget.map(config::Ratio::get),
        horizon_cpu_s: args.horizon.map(Span::seconds),
        labels: args.label.into_iter().collect(),
    })
}
