//! What is typed after `report`.

use std::path::PathBuf;

use clap::Args;
use profile_files::when::When;
use profile_files::{Format, TABLE};

use super::{OutputFile, Top, output_file, output_help, printed_format};

/// Arguments of `report`.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// Profile in pprof format (.pb.gz). Several are summed up, each as the profile of another host.
    #[arg(value_name = "FILE", required_unless_present_any = ["from", "to", "store"], conflicts_with_all = ["from", "to", "store", "target", "label"])]
    pub(crate) files: Vec<PathBuf>,
    /// Output format.
    #[arg(long, value_parser = printed_format(), default_value = TABLE.name)]
    pub(crate) format: &'static Format,
    /// List code without names and stacks without their outer frames, each with the reason and a fix, as a
    /// table or as JSON.
    #[arg(long)]
    pub(crate) unknown: bool,
    #[arg(short, long = "output", value_name = "FILE", value_parser = output_file(), help = output_help("it"), conflicts_with_all = ["format", "unknown"])]
    pub(crate) output: Vec<OutputFile>,
    /// Number of functions in the table (20); 0 shows all. With --unknown: for each module.
    #[arg(long, value_name = "N", conflicts_with = "output")]
    pub(crate) top: Option<Top>,
    #[command(flatten)]
    pub(crate) stored: StoredArgs,
}

/// What of the profiles that the daemon keeps.
#[derive(Debug, Args)]
#[command(next_help_heading = "Profiles in the daemon's store")]
pub(crate) struct StoredArgs {
    /// Start of the time range: an age (-1h), a time of day (09:30, the most recent one), or a date and time
    /// (2026-11-22T09:30 in local time, or 2026-11-22T09:30Z).
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) from: Option<When>,
    /// End of the time range (now).
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) to: Option<When>,
    /// The store's folder (/var/lib/sweetspot).
    #[arg(long, value_name = "FOLDER")]
    pub(crate) store: Option<PathBuf>,
    /// Only this target; may be repeated. Default: all targets.
    #[arg(long, value_name = "NAME")]
    pub(crate) target: Vec<String>,
    /// Only targets with this label; may be repeated, and all have to match.
    #[arg(long, value_name = "KEY=TEXT", value_parser = label)]
    pub(crate) label: Vec<(String, String)>,
}

/// A label as it is typed.
pub(super) fn label(text: &str) -> Result<(String, String), String> {
    let label = text.split_once('=').filter(|(key, _)| !key.is_empty());
    label.map(|(key, text)| (key.to_owned(), text.to_owned())).ok_or_else(|| "write KEY=TEXT".to_owned())
}
