//! What the command line means: one plain job for each command, with everything checked that can be checked
//! before anything runs.

mod ctl;
mod push;
mod report;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use config::{Ratio, SamplingSettings, Span};
use profiler_core::rate::Criterion;
use regex_lite::Regex;

use crate::calibrate::CalibrateJob;
use crate::cli::{self, Command};
use crate::compare::CompareJob;
use crate::ctl::CtlJob;
use crate::daemon::{DaemonJob, SETTINGS_FILE};
use crate::debuginfod;
use crate::doctor::DoctorJob;
use crate::evaluate::{Design, EvaluateJob, WorkloadJob};
use crate::failure::usage;
use crate::output::OutputJob;
use crate::plan::{PlanJob, PlanProcessJob};
use crate::push::PushJob;
use crate::report::ReportJob;
use crate::run::{AttachJob, RecordJob, TopJob};
use crate::sampler;
use crate::targets::Target;

/// What `top` shows, and how often, is at least this long: a run may sleep for so long.
const SHORTEST_VIEW: Duration = Duration::from_millis(500);
/// The most tables of `top` that share a sample: their profiles are kept, and added up for each table.
const MOST_PARTS: f64 = 60.0;

/// One run of the program.
#[derive(Debug)]
pub(crate) enum Job {
    /// Profile a command.
    Record(RecordJob),
    /// Profile running processes.
    Attach(AttachJob),
    /// Show where CPU time goes at present.
    Top(TopJob),
    /// Print a profile.
    Report(ReportJob),
    /// Compare two profiles.
    Compare(CompareJob),
    /// Send profiles to a backend.
    Push(PushJob),
    /// Work out a rate.
    Plan(PlanJob),
    /// Predict what sampling a process costs.
    PlanProcess(PlanProcessJob),
    /// Hold the controller against fixed rates.
    Evaluate(EvaluateJob),
    /// Be the program that is profiled for it.
    Workload(WorkloadJob),
    /// Measure what sampling costs.
    Calibrate(CalibrateJob),
    /// Be what `Calibrate` samples, on this CPU.
    CalibrateWorkload(u32),
    /// Be what reads symbols for another process of this program.
    Symbolizer,
    /// Be the service.
    Daemon(DaemonJob),
    /// Judge a settings file of the daemon; `None`: print the commented one.
    CheckConfig(Option<PathBuf>),
    /// Query or control the daemon.
    Ctl(CtlJob),
    /// Look at the machine.
    Doctor(DoctorJob),
    /// Write manual pages and completions to this folder.
    GenerateDocs(PathBuf),
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
            Command::Top(args) => Self::Top(top(args)?),
            Command::Report(args) => Self::Report(report::job(args)?),
            Command::Compare(args) => Self::Compare(compare(args)),
            Command::Push(args) => Self::Push(push::job(args)?),
            Command::Plan(args) => match args.process.pid {
                Some(pid) => Self::PlanProcess(plan_process(pid, args)?),
                None => Self::Plan(plan(args)?),
            },
            Command::Evaluate(args) => Self::Evaluate(evaluate(args)?),
            Command::Workload(args) => Self::Workload(workload(args)?),
            Command::Calibrate(args) => Self::Calibrate(CalibrateJob { quick: args.quick, json: args.json }),
            Command::CalibrateWorkload(args) => Self::CalibrateWorkload(args.cpu),
            Command::Symbolizer => Self::Symbolizer,
            Command::Daemon(args) => Self::Daemon(daemon(args)),
            Command::CheckConfig(args) => Self::CheckConfig(args.file),
            Command::Ctl(args) => Self::Ctl(ctl::job(args)?),
            Command::Doctor(args) => Self::Doctor(DoctorJob { json: args.json }),
            Command::GenerateDocs(args) => Self::GenerateDocs(args.folder),
        })
    }
}

fn compare(args: cli::CompareArgs) -> CompareJob {
    let cli::CompareArgs { old, new, total: with_called, top, json } = args;
    CompareJob { old, new, with_called, json, top }
}

/// The settings where the package puts them, if nobody names others.
fn daemon(args: cli::DaemonArgs) -> DaemonJob {
    let packaged = || Some(PathBuf::from(SETTINGS_FILE)).filter(|file| file.exists());
    DaemonJob { file: args.config.or_else(packaged) }
}

fn record(args: cli::RecordArgs) -> Result<RecordJob> {
    let sampling = sampling(&args.sampling, args.output.confidence, Some(&args.goal))?;
    check_backend(&sampling)?;
    Ok(RecordJob { command: args.command, sampling, output: output(args.output)? })
}

/// Whether the backend that was asked for can do what else was asked for.
fn check_backend(sampling: &SamplingSettings) -> Result<()> {
    sampling.backend.refuses(sampling).map_or(Ok(()), |reason| Err(usage(reason)))
}

fn attach(args: cli::AttachArgs) -> Result<AttachJob> {
    let sampling = sampling(&args.sampling, args.output.confidence, Some(&args.goal))?;
    let target = if args.all { Target::Everything } else { target(args.target)? };
    attach_job(target, args.duration, sampling, output(args.output)?)
}

/// Without a target, `top` shows every process. The profile that is shown has the length of the window.
fn top(args: cli::TopArgs) -> Result<TopJob> {
    for (option, time) in [("--every", args.every), ("--window", args.window)] {
        if time.duration() < SHORTEST_VIEW {
            return Err(usage(format!("{option} must be at least {}ms", SHORTEST_VIEW.as_millis())));
        }
    }
    if args.window < args.every {
        return Err(usage(format!("--window must not be shorter than --every, {}", args.every)));
    }
    if args.window.seconds() > MOST_PARTS * args.every.seconds() {
        let every_s = (args.window.seconds() / MOST_PARTS).ceil();
        return Err(usage(format!("--window {} needs --every {every_s}s at least", args.window)));
    }
    let target = target(args.target)?;
    let sampling = sampling(&args.sampling, args.confidence, None)?;
    let sampling = SamplingSettings { horizon: Some(args.window), ..sampling };
    Ok(TopJob {
        run: attach_job(target, args.duration, sampling, OutputJob::default())?,
        every: args.every.duration(),
        window: args.window.duration(),
        rows: args.top,
    })
}

fn attach_job(
    target: Target,
    duration: Option<Span>,
    sampling: SamplingSettings,
    output: OutputJob,
) -> Result<AttachJob> {
    if duration.is_some_and(|duration| duration.duration().is_zero()) {
        return Err(usage("--duration 0s leaves nothing to sample; give a time such as 30s"));
    }
    let mode = sampling.attach_mode;
    let is_of_cpus = matches!(mode, config::AttachMode::Auto | config::AttachMode::Cpu);
    if matches!(target, Target::Everything) && !is_of_cpus {
        return Err(usage(format!("every process is sampled CPU by CPU; leave out --attach-mode {mode}")));
    }
    check_backend(&sampling)?;
    let is_many = matches!(target, Target::Everything | Target::Cgroup(_) | Target::Unit(_));
    if let Some(reason) = sampling.backend.refuses_many().filter(|_| is_many) {
        return Err(usage(reason));
    }
    Ok(AttachJob { target, duration: duration.map(Span::duration), sampling, output })
}

/// What was named; everything, if nothing was.
fn target(args: cli::TargetArgs) -> Result<Target> {
    Ok(match args {
        cli::TargetArgs { cgroup: Some(path), .. } => Target::Cgroup(path),
        cli::TargetArgs { unit: Some(unit), .. } => Target::Unit(unit_name(unit)?),
        cli::TargetArgs { name: Some(name), .. } => named(&name)?,
        cli::TargetArgs { pids, .. } if pids.is_empty() => Target::Everything,
        cli::TargetArgs { pids, .. } => processes(pids)?,
    })
}

fn named(name: &str) -> Result<Target> {
    Regex::new(name)
        .map(Target::Name)
        .map_err(|error| usage(format!("`{name}` is not a regular expression: {error}")))
}

fn processes(mut pids: Vec<u32>) -> Result<Target> {
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

/// A unit's name is a folder's.
fn unit_name(unit: String) -> Result<String> {
    if unit.is_empty() || unit.contains('/') {
        return Err(usage(format!("`{unit}` is not a valid unit name; give one such as nginx.service")));
    }
    Ok(unit)
}

fn sampling(
    args: &cli::SamplingArgs,
    confidence: Ratio,
    goal: Option<&cli::GoalArgs>,
) -> Result<SamplingSettings> {
    let settings = SamplingSettings {
        budget: args.budget,
        own_cpu: Some(args.own_cpu),
        horizon: goal.and_then(|goal| goal.horizon),
        rate: args.rate,
        criterion: args.criterion,
        threads: args.threads,
        unwind: args.unwind,
        backend: args.backend,
        attach_mode: args.attach_mode,
        seed: args.seed,
        confidence,
        until_precision: goal.and_then(|goal| goal.until_precision),
        symbol_memory: args.symbol_memory,
    };
    settings.validate().map_err(|error| usage(error.to_string()))?;
    Ok(settings)
}

/// The range from `--from` to `--to` is none; without `--to` it ends now.
fn empty_range(has_end: bool) -> anyhow::Error {
    usage(match has_end {
        true => "--to is not after --from; give a later --to, or an earlier --from",
        false => "--from is not before now; give an earlier time, such as --from -1h",
    })
}

/// Each file once.
fn distinct<'a>(files: impl Iterator<Item = &'a PathBuf>) -> Result<()> {
    let mut paths: Vec<_> = files.collect();
    paths.sort_unstable();
    if let Some(twice) = paths.windows(2).find(|pair| pair[0] == pair[1]) {
        let path = twice[0].display();
        return Err(usage(format!("{path} would be written twice; give each output its own file")));
    }
    Ok(())
}

fn output(args: cli::OutputArgs) -> Result<OutputJob> {
    distinct(args.output.iter().map(|file| &file.path).chain(&args.stats))?;
    let settings =
        || debuginfod::DebuginfodSettings::from_env().map_err(|unusable| usage(unusable.to_string()));
    let debuginfod = args.debuginfod.then(settings).transpose()?;
    Ok(OutputJob { files: args.output, stats: args.stats, debuginfod, top: args.top, quiet: args.quiet })
}

fn plan(args: cli::PlanArgs) -> Result<PlanJob> {
    let (Some(horizon), Some(share), Some(overhead)) = (args.horizon, args.share, args.overhead) else {
        return Err(usage("plan needs --horizon, --share and --overhead, or --pid"));
    };
    if horizon.seconds() <= 0.0 {
        return Err(usage("--horizon must be more than 0, such as 300s"));
    }
    if share.get() <= 0.0 || share.get() >= 1.0 {
        return Err(usage("--share must lie between 0 and 1, such as 0.2 or 20%"));
    }
    if overhead.seconds() <= 0.0 || overhead >= horizon {
        return Err(usage("--overhead must be more than 0 and less than the horizon, such as 250us"));
    }
    if !(args.z > 0.0 && args.z <= 10.0) {
        return Err(usage("--z must be above 0 and at most 10, such as 1.96"));
    }
    if !(args.variance_ratio >= 1e-6 && args.variance_ratio <= 1e3) {
        return Err(usage("--variance-ratio must lie between 0.000001 and 1000, such as 0.3"));
    }
    if args.budget.get() <= 0.0 {
        return Err(usage("--budget must be more than 0, such as 1%"));
    }
    Ok(PlanJob {
        horizon,
        share,
        overhead,
        variance_ratio: args.variance_ratio,
        replicas: args.replicas,
        criterion: args.criterion.unwrap_or(Criterion::UpperCurve { z: args.z }),
        budget: args.budget,
        clock_tick_ns: sampler::clock_tick_ns(args.backend),
        file: args.output,
        json: args.json,
    })
}

fn plan_process(pid: u32, args: cli::PlanArgs) -> Result<PlanProcessJob> {
    const WATCHED: Duration = Duration::from_secs(2);
    processes(vec![pid])?;
    let duration = args.process.duration.map_or(WATCHED, Span::duration);
    if duration.is_zero() {
        return Err(usage("--duration 0s leaves nothing to watch; give a time such as 2s"));
    }
    let default = SamplingSettings::default();
    let sampling = SamplingSettings {
        budget: args.budget,
        horizon: args.horizon,
        criterion: args.criterion.unwrap_or(default.criterion),
        rate: args.process.rate,
        unwind: args.process.unwind.unwrap_or(default.unwind),
        attach_mode: args.process.attach_mode.unwrap_or(default.attach_mode),
        ..default
    };
    sampling.validate().map_err(|error| usage(error.to_string()))?;
    Ok(PlanProcessJob { pid, duration, sampling, file: args.output, json: args.json })
}

fn evaluate(args: cli::EvaluateArgs) -> Result<EvaluateJob> {
    distinct(args.output.iter())?;
    let size = if args.quick { Design::quick(args.seed) } else { Design::full(args.seed) };
    let design = Design {
        rounds: args.rounds.unwrap_or(size.rounds),
        cpu: args.cpu.map_or(size.cpu, Span::duration),
        ..size
    };
    if !(1..=1000).contains(&design.rounds) {
        return Err(usage("--rounds must be 1 to 1000"));
    }
    if !(0.01..=3600.0).contains(&design.cpu.as_secs_f64()) {
        return Err(usage("--cpu must be 10ms to 1h"));
    }
    Ok(EvaluateJob { design, unwind: args.unwind, files: args.output, quiet: args.quiet })
}

fn workload(args: cli::WorkloadArgs) -> Result<WorkloadJob> {
    const MOST_CALLS: u64 = 1 << 32; // a byte of memory each
    if args.calls > MOST_CALLS {
        return Err(usage(format!("--calls must be at most {MOST_CALLS}")));
    }
    let cli::WorkloadArgs { shape, calls, seed, cpu, turns, role } = args;
    Ok(WorkloadJob { shape, calls, seed, cpu, turns: turns.map(|folder| (folder, role)) })
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
