//! What the command line means: one plain job for each command, with everything checked that can be checked
//! before anything runs.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use config::{Ratio, SamplingSettings, Span};
use regex_lite::Regex;

use crate::cli::{self, Command, OutputFile, ReportFormat};
use crate::failure::usage;

/// One run of the program.
#[derive(Debug)]
pub(crate) enum Job {
    /// Profile a command.
    Record(RecordJob),
    /// Profile running processes.
    Attach(AttachJob),
    /// Print a profile.
    Report(ReportJob),
    /// Work out a rate.
    Plan(PlanJob),
    /// Look at the machine.
    Doctor(DoctorJob),
}

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

/// Which processes to attach to.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// These.
    Pids(Vec<u32>),
    /// Those whose command name or program file name matches.
    Name(Regex),
}

/// Where the results of a run go.
#[derive(Clone, Debug, Default)]
pub(crate) struct OutputJob {
    /// Files to write, each path once; where there are none, a table is printed.
    pub(crate) files: Vec<OutputFile>,
    /// The file for control decisions and the summary.
    pub(crate) stats: Option<PathBuf>,
    /// Print results and errors only.
    pub(crate) quiet: bool,
}

/// Print a profile.
#[derive(Debug)]
pub(crate) struct ReportJob {
    /// The file, in pprof's format.
    pub(crate) file: PathBuf,
    /// How to print it.
    pub(crate) format: ReportFormat,
}

/// Work out the best rate for one function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlanJob {
    /// T, the CPU time that the target runs unsampled; more than 0.
    pub(crate) horizon: Span,
    /// p, the function's share; between 0 and 1, neither included.
    pub(crate) share: Ratio,
    /// o, the cost of one sample; more than 0 and less than the horizon.
    pub(crate) overhead: Span,
    /// z, the standard score; above 0 and at most 10.
    pub(crate) z: f64,
}

/// Look at the machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DoctorJob {
    /// Print JSON.
    pub(crate) json: bool,
}

impl Job {
    /// What was typed, checked.
    ///
    /// # Errors
    ///
    /// A usage error for values that do not go together or are not available.
    pub(crate) fn new(command: Command) -> Result<Self> {
        Ok(match command {
            Command::Record(args) => Self::Record(record(args)?),
            Command::Attach(args) => Self::Attach(attach(args)?),
            Command::Report(args) => Self::Report(ReportJob { file: args.file, format: args.format }),
            Command::Plan(args) => Self::Plan(plan(&args)?),
            Command::Doctor(args) => Self::Doctor(DoctorJob { json: args.json }),
        })
    }
}

fn record(args: cli::RecordArgs) -> Result<RecordJob> {
    let sampling = sampling(&args.sampling, &args.output)?;
    Ok(RecordJob { command: args.command, sampling, output: output(args.output)? })
}

fn attach(args: cli::AttachArgs) -> Result<AttachJob> {
    if args.all {
        return Err(usage("--all is not available in this version; give process ids or --name REGEX"));
    }
    if args.duration.is_some_and(|duration| duration.duration().is_zero()) {
        return Err(usage("--duration 0s leaves nothing to sample; give a time such as 30s"));
    }
    let sampling = sampling(&args.sampling, &args.output)?;
    Ok(AttachJob {
        target: target(args.pids, args.name)?,
        duration: args.duration.map(Span::duration),
        sampling,
        output: output(args.output)?,
    })
}

fn target(mut pids: Vec<u32>, name: Option<String>) -> Result<Target> {
    if let Some(name) = name {
        let regex = Regex::new(&name)
            .map_err(|error| usage(format!("`{name}` is not a regular expression: {error}")))?;
        return Ok(Target::Name(regex));
    }
    pids.sort_unstable();
    pids.dedup();
    if pids.contains(&0) {
        return Err(usage("0 is not a process id; `pgrep NAME` lists those of a program"));
    }
    if pids.contains(&std::process::id()) {
        return Err(usage("the profiler does not profile itself; give another process id"));
    }
    Ok(Target::Pids(pids))
}

fn sampling(args: &cli::SamplingArgs, output: &cli::OutputArgs) -> Result<SamplingSettings> {
    let settings = SamplingSettings {
        budget: args.budget,
        horizon: args.horizon,
        rate: args.rate,
        criterion: args.criterion,
        unwind: args.unwind,
        backend: args.backend,
        source: args.source,
        attach_mode: args.attach_mode,
        seed: args.seed,
        confidence: output.confidence,
        until_precision: args.until_precision,
    };
    settings.validate().map_err(|error| usage(error.to_string()))?;
    Ok(settings)
}

fn output(args: cli::OutputArgs) -> Result<OutputJob> {
    let files = args.output.iter().map(|file| &file.path).chain(&args.stats);
    let mut paths: Vec<_> = files.collect();
    paths.sort_unstable();
    if let Some(twice) = paths.windows(2).find(|pair| pair[0] == pair[1]) {
        let path = twice[0].display();
        return Err(usage(format!("{path} would be written twice; give each output its own file")));
    }
    Ok(OutputJob { files: args.output, stats: args.stats, quiet: args.quiet })
}

fn plan(args: &cli::PlanArgs) -> Result<PlanJob> {
    let (horizon, overhead, share) = (args.horizon.seconds(), args.overhead.seconds(), args.share.get());
    if horizon <= 0.0 {
        return Err(usage("--horizon must be more than 0, such as 300s"));
    }
    if share <= 0.0 || share >= 1.0 {
        return Err(usage("--share must lie between 0 and 1, such as 0.2 or 20%"));
    }
    if overhead <= 0.0 || overhead >= horizon {
        return Err(usage("--overhead must be more than 0 and less than the horizon, such as 250us"));
    }
    if !(args.z > 0.0 && args.z <= 10.0) {
        return Err(usage("--z must be above 0 and at most 10, such as 1.96"));
    }
    Ok(PlanJob { horizon: args.horizon, share: args.share, overhead: args.overhead, z: args.z })
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
