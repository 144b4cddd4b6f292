//! What was typed after `ctl`, checked.

use std::time::Duration;

use anyhow::Result;
use config::Span;
use jiff::Zoned;
use profile_files::when::When;
use profile_files::{JSON, TABLE};

use super::{distinct, empty_range, report};
use crate::api::AttachBody;
use crate::cli::{CtlArgs, CtlAttachArgs, CtlCommand, CtlProfileArgs, CtlTargetsArgs};
use crate::ctl::{CtlJob, CtlProfile, CtlQuery, CtlTime, TargetList, TargetOrder};
use crate::failure::usage;
use crate::output::Top;

/// What was typed, checked.
///
/// # Errors
///
/// A usage error for values that do not go together.
pub(super) fn job(args: CtlArgs) -> Result<CtlJob> {
    let json = args.json;
    let query = match args.ask {
        CtlCommand::Status => CtlQuery::Status,
        CtlCommand::Targets(args) => CtlQuery::Targets(targets(&args, json)?),
        CtlCommand::Decisions { target } => CtlQuery::Decisions(target),
        CtlCommand::Profile(args) => CtlQuery::Profile(profile(args, json)?),
        CtlCommand::Attach(args) => CtlQuery::Attach(Box::new(attach(*args)?)),
        CtlCommand::Detach { target } => CtlQuery::Detach(target),
        CtlCommand::Reload => CtlQuery::Reload,
        CtlCommand::Stop => CtlQuery::Stop,
    };
    Ok(CtlJob { socket: args.socket, json, query })
}

/// In front of the subcommand, `--json` is no conflict that the parser sees.
fn not_with_json(json: bool, options: &[(&str, bool)]) -> Result<()> {
    match options.iter().find(|(_, is_given)| json && *is_given) {
        Some((option, _)) => Err(usage(format!("{option} does not work with --json; leave one of them out"))),
        None => Ok(()),
    }
}

fn targets(args: &CtlTargetsArgs, json: bool) -> Result<TargetList> {
    let CtlTargetsArgs { sort, top, labels } = *args;
    let (is_sorted, is_cut) = (sort != TargetOrder::Cpu, top != Top::ALL);
    not_with_json(json, &[("--sort", is_sorted), ("--top", is_cut), ("--labels", labels)])?;
    Ok(TargetList { order: sort, top: top.get(), labels })
}

fn profile(args: CtlProfileArgs, json: bool) -> Result<CtlProfile> {
    distinct(args.output.iter().map(|file| &file.path))?;
    let options = [("--format", *args.format != TABLE), ("--output", !args.output.is_empty())];
    not_with_json(json, &options)?;
    let top = report::top(args.top, if json { &JSON } else { args.format })?;
    Ok(CtlProfile {
        time: time(args.from, args.to, args.duration)?,
        targets: args.target,
        labels: args.label,
        format: args.format,
        top,
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
    let has_end = to.is_some();
    let to = to.map(|to| moment("--to", to)).transpose()?;
    let from = match from {
        Some(from) => moment("--from", from)?,
        None => to.unwrap_or(moment("--to", When::At(now.timestamp()))?).saturating_sub(60_000_000_000),
    };
    if to.unwrap_or(moment("--to", When::At(now.timestamp()))?) <= from {
        return Err(empty_range(has_end));
    }
    Ok(CtlTime::Range(from, to))
}

fn attach(args: CtlAttachArgs) -> Result<AttachBody> {
    let seconds = args.duration.seconds();
    if !(seconds > 0.0 && seconds <= 3600.0) {
        return Err(usage(format!(
            "--duration {} is not more than 0 and at most 1h; give such a time",
            args.duration
        )));
    }
    let (processes, containers) = (args.processes, args.containers);
    Ok(AttachBody {
        duration_s: Some(seconds),
        name: args.called,
        pid: processes.pid.or(processes.pid_option),
        executable: processes.executable,
        command: processes.command,
        process: processes.name,
        user: processes.user,
        unit: processes.unit,
        cgroup: processes.cgroup,
        container: containers.container,
        container_name: containers.container_name,
        image: containers.image,
        namespace: containers.namespace,
        pod: containers.pod,
        pod_labels: containers.pod_label.into_iter().collect(),
        everything: args.all,
        each: args.each.map(|each| each.to_string()),
        budget_ratio: args.budget.map(config::Ratio::get),
        horizon_cpu_s: args.horizon.map(Span::seconds),
        labels: args.label.into_iter().collect(),
    })
}
