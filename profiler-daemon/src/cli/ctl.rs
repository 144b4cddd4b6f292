//! What is typed after `ctl`.

use crate::ctl::TargetOrder;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use config::{Each, ListenSettings, Ratio, Span};
use profile_files::when::When;
use profile_files::{Format, TABLE};

use super::report::label;
use super::{OutputFile, Top, output_file, output_help, printed_format};

/// Arguments of `ctl`.
#[derive(Debug, Args)]
pub(crate) struct CtlArgs {
    /// The daemon's socket.
    #[arg(long, global = true, value_name = "PATH", default_value_os_t = ListenSettings::default().socket)]
    pub(crate) socket: PathBuf,
    /// Print the daemon's response as JSON.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// The request.
    #[command(subcommand)]
    pub(crate) ask: CtlCommand,
}

/// Requests to the daemon.
#[derive(Debug, Subcommand)]
pub(crate) enum CtlCommand {
    /// Show the state of the daemon.
    Status,
    /// List all targets: sampled, waiting and left out.
    Targets(CtlTargetsArgs),
    /// List the controller's latest decisions for a target.
    Decisions {
        /// The target.
        target: String,
    },
    /// Print a profile of a stored time range, or of the next seconds.
    Profile(CtlProfileArgs),
    /// Profile another target for some time.
    Attach(Box<CtlAttachArgs>),
    /// Remove a target that was added by `ctl attach`.
    Detach {
        /// The target.
        target: String,
    },
    /// Reload the settings.
    Reload,
    /// Stop sampling at once, store what was sampled, and stop the daemon.
    Stop,
}

/// Arguments of `ctl targets`.
#[derive(Debug, Args)]
pub(crate) struct CtlTargetsArgs {
    /// What to sort by: the largest figure first, or the name.
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = TargetOrder::Cpu, conflicts_with = "json")]
    pub(crate) sort: TargetOrder,
    /// Number of targets in the table; 0 shows all.
    #[arg(long, value_name = "N", default_value_t = Top::ALL, conflicts_with = "json")]
    pub(crate) top: Top,
    /// List the labels of each target below the table.
    #[arg(long, conflicts_with = "json")]
    pub(crate) labels: bool,
}

/// Arguments of `ctl profile`.
#[derive(Debug, Args)]
pub(crate) struct CtlProfileArgs {
    /// Start of the time range: an age (-1h), a time of day (09:30, the most recent one), or a date and time
    /// (2026-11-22T09:30 in local time, or 2026-11-22T09:30Z). Default: a minute ago.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) from: Option<When>,
    /// End of the time range (now).
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) to: Option<When>,
    /// Wait this long, and show what was sampled meanwhile.
    #[arg(long, value_name = "TIME", conflicts_with_all = ["from", "to"])]
    pub(crate) duration: Option<Span>,
    /// Only this target; may be repeated. Default: all targets.
    #[arg(long, value_name = "NAME")]
    pub(crate) target: Vec<String>,
    /// Only targets with this label; may be repeated, and all have to match.
    #[arg(long, value_name = "KEY=TEXT", value_parser = label)]
    pub(crate) label: Vec<(String, String)>,
    /// Output format.
    #[arg(long, value_parser = printed_format(), default_value = TABLE.name, conflicts_with = "json")]
    pub(crate) format: &'static Format,
    /// Number of functions in the table (20); 0 shows all.
    #[arg(long, value_name = "N", conflicts_with = "output")]
    pub(crate) top: Option<Top>,
    #[arg(short, long = "output", value_name = "FILE", value_parser = output_file(), help = output_help("it"), conflicts_with_all = ["format", "json"])]
    pub(crate) output: Vec<OutputFile>,
}

/// Arguments of `ctl attach`.
#[derive(Debug, Args)]
pub(crate) struct CtlAttachArgs {
    #[command(flatten)]
    pub(crate) processes: CtlProcessArgs,
    #[command(flatten)]
    pub(crate) containers: CtlContainerArgs,
    /// Every process that fits no other target.
    #[arg(long, conflicts_with_all = ["pid", "pid_option", "name", "command", "executable", "user", "cgroup", "unit", "container", "container_name", "image", "namespace", "pod", "pod_label"])]
    pub(crate) all: bool,
    /// Make one target for each process (by program name), unit, container, pod, workload, cgroup or user
    /// among these processes.
    #[arg(long, value_name = "WHAT")]
    pub(crate) each: Option<Each>,
    /// How long, at most 1h.
    #[arg(long, value_name = "TIME")]
    pub(crate) duration: Span,
    /// Bound on its slowdown, instead of the one in the settings.
    #[arg(long, value_name = "SHARE")]
    pub(crate) budget: Option<Ratio>,
    /// CPU time that one profile covers, instead of the one in the settings.
    #[arg(long, value_name = "TIME")]
    pub(crate) horizon: Option<Span>,
    /// Name of the target. Default: derived from what it selects.
    #[arg(long = "as", value_name = "NAME")]
    pub(crate) called: Option<String>,
    /// A label of its profiles; may be repeated.
    #[arg(long, value_name = "KEY=TEXT", value_parser = label)]
    pub(crate) label: Vec<(String, String)>,
}

/// Arguments of `ctl attach` that select processes by what they are.
#[derive(Debug, Args)]
pub(crate) struct CtlProcessArgs {
    /// A process id.
    #[arg(value_name = "PID", required_unless_present_any = ["pid_option", "name", "command", "executable", "user", "cgroup", "unit", "container", "container_name", "image", "namespace", "pod", "pod_label", "all"])]
    pub(crate) pid: Option<u32>,
    /// The same as PID.
    #[arg(id = "pid_option", long = "pid", value_name = "PID", conflicts_with = "pid")]
    pub(crate) pid_option: Option<u32>,
    /// Processes whose name, or whose program's file name, matches this regular expression.
    #[arg(long, value_name = "REGEX")]
    pub(crate) name: Option<String>,
    /// Processes whose command line matches this regular expression.
    #[arg(long, value_name = "REGEX")]
    pub(crate) command: Option<String>,
    /// Processes that run this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) executable: Option<PathBuf>,
    /// Processes of this user: a name or a number.
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Everything in this control group (cgroup v2) and below.
    #[arg(long, value_name = "PATH")]
    pub(crate) cgroup: Option<PathBuf>,
    /// Everything in the control group of this systemd unit.
    #[arg(long, value_name = "NAME")]
    pub(crate) unit: Option<String>,
}

/// Arguments of `ctl attach` that select processes by their container or pod.
#[derive(Debug, Args)]
pub(crate) struct CtlContainerArgs {
    /// Processes of the container whose id begins with these digits, at least 12.
    #[arg(long, value_name = "ID")]
    pub(crate) container: Option<String>,
    /// Processes of containers whose name in the container runtime matches this regular expression.
    #[arg(long, value_name = "REGEX")]
    pub(crate) container_name: Option<String>,
    /// Processes of containers whose image matches this regular expression.
    #[arg(long, value_name = "REGEX")]
    pub(crate) image: Option<String>,
    /// Processes of Kubernetes pods whose namespace matches this regular expression.
    #[arg(long, value_name = "REGEX")]
    pub(crate) namespace: Option<String>,
    /// Processes of Kubernetes pods whose name matches this regular expression.
    #[arg(long, value_name = "REGEX")]
    pub(crate) pod: Option<String>,
    /// Processes of Kubernetes pods with this label; may be repeated, and all have to match.
    #[arg(long, value_name = "KEY=TEXT", value_parser = label)]
    pub(crate) pod_label: Vec<(String, String)>,
}
