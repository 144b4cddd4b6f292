//! The command line as it was typed. [`crate::settings`] says what it means.

mod compare;
mod ctl;
mod hints;
mod push;
mod report;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{PathBufValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args, Parser, Subcommand};
use config::{AttachMode, Backend, Bytes, Hertz, Ratio, SamplingSettings, Span, Threads, Unwind};
use profile_files::Format;
use profiler_core::rate::Criterion;

use crate::evaluate::{Role, Shape};
use crate::output::{OutputFile, Top};
pub(crate) use compare::CompareArgs;
pub(crate) use ctl::{CtlArgs, CtlAttachArgs, CtlCommand, CtlProfileArgs, CtlTargetsArgs};
pub(crate) use hints::{hint, where_to_look};
pub(crate) use push::PushArgs;
pub(crate) use report::{ReportArgs, StoredArgs};

/// A sampling profiler that chooses its own rate: often enough to be precise, rarely enough not to disturb.
#[derive(Debug, Parser)]
#[command(name = "sweetspot", version, max_term_width = 100)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Profile a command until it exits, and pass on its exit status.
    Record(RecordArgs),
    /// Profile running processes.
    Attach(AttachArgs),
    /// Show where CPU time goes at present, again and again.
    Top(TopArgs),
    /// Print a pprof file, or a time range from the daemon's store.
    Report(ReportArgs),
    /// Show which functions changed between two profiles, as far as that is more than chance.
    Compare(CompareArgs),
    /// Send profiles to Pyroscope or to an OpenTelemetry (OTLP) backend.
    Push(PushArgs),
    /// Calculate the best rate for a function of known share, or predict what sampling a process will cost.
    Plan(PlanArgs),
    /// Compare the controller's rate with fixed rates on this machine, using programs of known shares.
    Evaluate(EvaluateArgs),
    /// The program of known shares.
    #[command(hide = true)]
    Workload(WorkloadArgs),
    /// Measure what sampling costs on this machine, for all later runs (under a minute).
    Calibrate(CalibrateArgs),
    /// Run the service: profile what a settings file names, and store the profiles.
    Daemon(DaemonArgs),
    /// Check a settings file, and show what the daemon would profile and what that may cost.
    CheckConfig(CheckConfigArgs),
    /// Query or control the daemon.
    Ctl(CtlArgs),
    /// Check what this machine allows and suggest fixes.
    Doctor(DoctorArgs),
    // What `calibrate` samples: this program once more.
    #[command(hide = true)]
    CalibrateWorkload(CalibrateWorkloadArgs),
    // What reads symbol tables for the others, and can do nothing else.
    #[command(hide = true)]
    Symbolizer,
    // What packages contain.
    #[command(hide = true)]
    GenerateDocs(GenerateDocsArgs),
}

/// Arguments of `record`.
#[derive(Debug, Args)]
pub(crate) struct RecordArgs {
    /// The command and its arguments, after `--`.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) goal: GoalArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Arguments of `attach`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("what").required(true).multiple(true).args(["pids", "name", "cgroup", "unit", "all"])))]
pub(crate) struct AttachArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// Every process of this machine, now and to come, but this one.
    #[arg(long, conflicts_with_all = ["pids", "name", "cgroup", "unit"])]
    pub(crate) all: bool,
    /// Stop after this time; without it, when the processes have exited or at Ctrl-C.
    #[arg(long, value_name = "TIME")]
    pub(crate) duration: Option<Span>,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) goal: GoalArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Arguments of `top`.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// Stop after this time; without it, when the processes have exited, at q or at Ctrl-C.
    #[arg(long, value_name = "TIME")]
    pub(crate) duration: Option<Span>,
    /// How often to show a new table.
    #[arg(long, value_name = "TIME", default_value = "2s")]
    pub(crate) every: Span,
    /// How much of the time until now a table is about. The rate is the best one for a profile of this time.
    #[arg(long, value_name = "TIME", default_value = "10s")]
    pub(crate) window: Span,
    /// Number of functions in the table; 0 shows all. Default: as many as fit, and 20 where the output is no
    /// terminal.
    #[arg(long, value_name = "N")]
    pub(crate) top: Option<Top>,
    /// Confidence level of the intervals.
    #[arg(long, value_name = "LEVEL", default_value_t = defaults().confidence)]
    pub(crate) confidence: Ratio,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}

/// The processes to sample.
#[derive(Debug, Args)]
pub(crate) struct TargetArgs {
    /// Process ids.
    #[arg(value_name = "PID")]
    pub(crate) pids: Vec<u32>,
    /// Processes whose name, or whose program's file name, matches this regular expression.
    #[arg(long, value_name = "REGEX", conflicts_with = "pids")]
    pub(crate) name: Option<String>,
    /// Everything in this control group (cgroup v2) and below, now and to come: its path, such as
    /// system.slice/nginx.service, or its folder.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["pids", "name"])]
    pub(crate) cgroup: Option<PathBuf>,
    /// Everything in the control group of this systemd unit.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["pids", "name", "cgroup"])]
    pub(crate) unit: Option<String>,
}

/// How to sample.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Bound on the slowdown of the target: the share of its CPU time that sampling may take, over any ten
    /// seconds.
    #[arg(long, value_name = "SHARE", default_value_t = defaults().budget)]
    pub(crate) budget: Ratio,
    /// Bound on the profiler's own CPU time, as a share of one CPU over any ten seconds, without set-up.
    #[arg(long, value_name = "SHARE", default_value_t = config::DEFAULT_OWN_CPU)]
    pub(crate) own_cpu: Ratio,
    /// Sample at this fixed rate per CPU-second. This turns the controller off.
    #[arg(long, value_name = "HZ")]
    pub(crate) rate: Option<Hertz>,
    #[arg(long, value_name = "ERROR", default_value_t = defaults().criterion)]
    #[arg(help = format!("The error that the rate minimises: {}", Criterion::WORDS))]
    pub(crate) criterion: Criterion,
    /// Which threads a sample delays: independent (only the one it hits) or coupled (all running threads,
    /// because they wait for each other at barriers).
    #[arg(long, value_name = "HOW", default_value_t = defaults().threads)]
    pub(crate) threads: Threads,
    /// How to unwind stacks: auto, fp (frame pointers) or dwarf (unwind tables).
    #[arg(long, value_name = "HOW", default_value_t = defaults().unwind)]
    pub(crate) unwind: Unwind,
    #[arg(long, value_name = "WHAT", default_value_t = defaults().backend, help = Backend::HELP)]
    pub(crate) backend: Backend,
    /// How to attach events: auto, task (for each thread), cpu (for each CPU) or cgroup (for a control group
    /// on each CPU; a command gets a group of its own).
    #[arg(long, value_name = "HOW", default_value_t = defaults().attach_mode)]
    pub(crate) attach_mode: AttachMode,
    /// Seed of the random sampling periods.
    #[arg(long, value_name = "NUMBER")]
    pub(crate) seed: Option<u64>,
    /// Memory for unwind tables and symbols together. If it does not suffice, the files with the most samples
    /// come first.
    #[arg(long, value_name = "SIZE", default_value_t = defaults().symbol_memory)]
    pub(crate) symbol_memory: Bytes,
}

/// How much to sample.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct GoalArgs {
    /// CPU time of the target that the profile will cover, if you know it: the longer, the lower the best
    /// rate. Without it, the rate falls as the run goes on and is close to the best for a run of any length.
    #[arg(long, value_name = "TIME")]
    pub(crate) horizon: Option<Span>,
    /// Stop sampling once the largest functions are known this precisely: with 5%, each share to ±5% of
    /// itself. A command continues to its end.
    #[arg(long, value_name = "SHARE")]
    pub(crate) until_precision: Option<Ratio>,
}

/// Where the results go.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArgs {
    #[arg(short, long = "output", value_name = "FILE", value_parser = output_file(), help = output_help("a table"))]
    pub(crate) output: Vec<OutputFile>,
    /// Write each control decision, and a summary at the end, to FILE: one JSON object per line.
    #[arg(long, value_name = "FILE")]
    pub(crate) stats: Option<PathBuf>,
    /// After the run, fetch missing debug files from the servers in $DEBUGINFOD_URLS.
    #[arg(long)]
    pub(crate) debuginfod: bool,
    /// Confidence level of the intervals.
    #[arg(long, value_name = "LEVEL", default_value_t = defaults().confidence)]
    pub(crate) confidence: Ratio,
    /// Number of functions in the table; 0 shows all.
    #[arg(long, value_name = "N", default_value_t, conflicts_with = "output")]
    pub(crate) top: Top,
    /// Print results and errors only.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// Arguments of `plan`.
#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// CPU time of the target when it is not sampled; with --pid, the CPU time that one profile covers (60s).
    #[arg(long, value_name = "TIME", required_unless_present = "pid")]
    pub(crate) horizon: Option<Span>,
    /// Share of that time that the function takes.
    #[arg(long, value_name = "SHARE", required_unless_present = "pid")]
    #[arg(conflicts_with_all = ["duration", "rate", "unwind", "attach_mode"])]
    pub(crate) share: Option<Ratio>,
    /// What one sample costs the target.
    #[arg(long, value_name = "TIME", required_unless_present = "pid")]
    pub(crate) overhead: Option<Span>,
    /// Variance of the samples over that of independent ones: the variance_ratio of an earlier run's summary.
    #[arg(long, value_name = "RATIO", default_value_t = 1.0)]
    pub(crate) variance_ratio: f64,
    /// Number of replicas of the program on all hosts, whose profiles are summed up.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000), conflicts_with = "pid")]
    pub(crate) replicas: u32,
    /// Standard score of the interval whose upper end the rate minimises.
    #[arg(long, value_name = "SCORE", default_value_t = 1.96)]
    pub(crate) z: f64,
    #[arg(long, value_name = "ERROR", conflicts_with = "z")]
    #[arg(help = format!("Minimise this error instead, such as mae, which `record` takes by default: {}", Criterion::WORDS))]
    pub(crate) criterion: Option<Criterion>,
    /// Share of the CPU time that sampling may cost.
    #[arg(long, value_name = "SHARE", default_value_t = defaults().budget)]
    pub(crate) budget: Ratio,
    #[arg(long, value_name = "WHAT", default_value_t = defaults().backend, conflicts_with = "pid")]
    #[arg(help = Backend::PLAN_HELP)]
    pub(crate) backend: Backend,
    /// Also draw the curve to FILE (.svg).
    #[arg(short, long = "output", value_name = "FILE", value_parser = picture_file())]
    pub(crate) output: Option<PathBuf>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) process: PlanProcessArgs,
}

/// What is predicted of a process.
#[derive(Debug, Args)]
#[command(next_help_heading = "A running process")]
pub(crate) struct PlanProcessArgs {
    /// Watch this process without sampling it, and predict what `attach` will cost it.
    #[arg(long, value_name = "PID", conflicts_with_all = ["share", "overhead", "z", "variance_ratio"])]
    pub(crate) pid: Option<u32>,
    /// How long to watch it (2s).
    #[arg(long, value_name = "TIME", requires = "pid")]
    pub(crate) duration: Option<Span>,
    /// Predict for this fixed rate per CPU-second.
    #[arg(long, value_name = "HZ", requires = "pid")]
    pub(crate) rate: Option<Hertz>,
    /// How to unwind stacks: auto, fp or dwarf.
    #[arg(long, value_name = "HOW", requires = "pid")]
    pub(crate) unwind: Option<Unwind>,
    /// How to attach events: auto, task, cpu or cgroup.
    #[arg(long, value_name = "HOW", requires = "pid")]
    pub(crate) attach_mode: Option<AttachMode>,
}

/// Arguments of `evaluate`.
#[derive(Debug, Args)]
pub(crate) struct EvaluateArgs {
    /// Two minutes instead of fifteen, and wider intervals.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Also write a chart (.svg) or all figures (.json) to FILE; may be repeated.
    #[arg(short, long = "output", value_name = "FILE", value_parser = evaluation_file())]
    pub(crate) output: Vec<PathBuf>,
    /// How to unwind stacks: auto, fp (frame pointers) or dwarf (unwind tables).
    #[arg(long, value_name = "HOW", default_value_t = defaults().unwind)]
    pub(crate) unwind: Unwind,
    /// Seed of the order of the runs, of their programs and of the random sampling periods.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print results and errors only.
    #[arg(short, long)]
    pub(crate) quiet: bool,
    // For tests and for those who know what they are after.
    #[arg(long, hide = true)]
    pub(crate) rounds: Option<u32>,
    #[arg(long, hide = true)]
    pub(crate) cpu: Option<Span>,
}

/// Arguments of `workload`.
#[derive(Debug, Args)]
pub(crate) struct WorkloadArgs {
    #[arg(long, value_parser = shape)]
    pub(crate) shape: Shape,
    #[arg(long)]
    pub(crate) calls: u64,
    #[arg(long)]
    pub(crate) seed: u64,
    #[arg(long)]
    pub(crate) cpu: Option<usize>,
    /// The folder where its twin is met.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) turns: Option<PathBuf>,
    /// Which of the two it is.
    #[arg(long, value_enum, default_value = "program")]
    pub(crate) role: Role,
}

/// Arguments of `daemon`.
#[derive(Debug, Args)]
pub(crate) struct DaemonArgs {
    /// The settings file. Default: /etc/sweetspot/sweetspot.toml if it exists, otherwise the built-in
    /// defaults.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// Arguments of `check-config`.
#[derive(Debug, Args)]
pub(crate) struct CheckConfigArgs {
    /// The settings file.
    #[arg(required_unless_present = "default")]
    pub(crate) file: Option<PathBuf>,
    /// Print a settings file with every setting, its meaning and its default.
    #[arg(long, conflicts_with = "file")]
    pub(crate) default: bool,
}

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Print one JSON object for each check.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `calibrate`.
#[derive(Debug, Args)]
pub(crate) struct CalibrateArgs {
    /// Take less than a second, as the first run does automatically.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `calibrate-workload`.
#[derive(Debug, Args)]
pub(crate) struct CalibrateWorkloadArgs {
    /// The CPU to stay on.
    #[arg(long)]
    pub(crate) cpu: u32,
}

/// Arguments of `generate-docs`.
#[derive(Debug, Args)]
pub(crate) struct GenerateDocsArgs {
    /// Where manual pages and completions are written to.
    pub(crate) folder: PathBuf,
}

fn defaults() -> SamplingSettings {
    SamplingSettings::default()
}

/// What `-o` takes: any file name whose ending is a format's.
fn output_file() -> impl TypedValueParser<Value = OutputFile> {
    PathBufValueParser::new().try_map(|path| {
        let format = Format::of(&path)?;
        Ok::<_, String>(OutputFile { path, format })
    })
}

/// What `-o` says of itself, where without it this would be printed.
fn output_help(printed: &str) -> String {
    let endings = Format::endings();
    format!(
        "Write the profile to FILE instead of printing {printed}; may be repeated. The ending picks the format: {endings}"
    )
}

/// The formats that `--format` takes.
fn printed_format() -> impl TypedValueParser<Value = &'static Format> {
    let values = Format::printed().map(|format| PossibleValue::new(format.name).help(sentence(format.about)));
    PossibleValuesParser::new(values).try_map(|name| Format::named(&name).ok_or("there is no such format"))
}

/// The text with a capital letter at its begin.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(letters).collect()
}

fn picture_file() -> impl TypedValueParser<Value = PathBuf> {
    file_ending_in(&["svg"], "the name of a picture must end in .svg")
}

fn evaluation_file() -> impl TypedValueParser<Value = PathBuf> {
    file_ending_in(&["svg", "json"], "the name must end in .svg or .json")
}

fn file_ending_in(
    endings: &'static [&'static str],
    otherwise: &'static str,
) -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(move |path| {
        let ends = path.extension().is_some_and(|ending| endings.iter().any(|known| ending == *known));
        if ends { Ok(path) } else { Err(otherwise) }
    })
}

fn shape(text: &str) -> Result<Shape, String> {
    Shape::named(text).ok_or_else(|| "there is no such shape".to_owned())
}
