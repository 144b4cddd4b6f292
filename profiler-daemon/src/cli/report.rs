//! What is typed after `report`.

use std::path::PathBuf;

use clap::Args;
use profile_files::when::When;
use profile_files::{Format, TABLE};

use super::{OutputFile, Top, output_file, output_help, printed_format};

/// Arguments of `report`.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// A profile in pprof's format (.pb.gz).
    #[arg(required_unless_present_any = ["from", "to", "store"], conflicts_with_all = ["from", "to", "store", "target", "label"])]
    pub(crate) file: Option<PathBuf>,
    /// How to print it.
    #[arg(long, value_parser = printed_format(), default_value = TABLE.name)]
    pub(crate) format: &'static Format,
    /// List what has no name, and stacks without their outer frames, with the reason and what would mend it; as a table or as
    /// JSON.
    #[arg(long)]
    pub(crate) unknown: bool,
    #[arg(short, long = "output", value_name = "FILE", value_parser = output_file, help = output_help("it"), conflicts_with_all = ["format", "unknown"])]
    pub(crate) output: Vec<OutputFile>,
    /// Functions that the table lists, 0: all; with --unknown, of each module.
    #[arg(long, value_name = "N", default_value_t, conflicts_with = "output")]
    pub(crate) top: Top,
    #[command(flatten)]
    pub(crate) stored: StoredArgs,
}

/// What of the profiles that the daemon keeps.
#[derive(Debug, Args)]
#[command(next_help_heading = "Profiles that the daemon keeps")]
pub(crate) struct StoredArgs {
    /// Sum up what was kept since this time: so long ago (-1h), a time of day (09:30: the last one), or a date and time
    /// (2026-11-22T09:30, here, or 2026-11-22T09:30Z).
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) from: Option<When>,
    /// Until this time (now).
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) to: Option<When>,
    /// The folder in which they are kept (/var/lib/sweetspot).
    #[arg(long, value_name = "FOLDER")]
    pub(crate) store: Option<PathBuf>,
    /// Of this target; may be repeated. Without it, of all.
    #[arg(long, value_name = "NAME")]
    pub(crate) target: Vec<String>,
    /// Of targets with this label; may be repeated: with all of these.
    #[arg(long, value_name = "KEY=TEXT", value_parser = label)]
    pub(crate) label: Vec<(String, String)>,
}

/// A label as it is typed.
pub(super) fn label(text: &str) -> Result<(String, String), String> {
    let label = text.split_once('=').filter(|(key, _)| !key.is_empty());
    label.map(|(key, text)| (key.to_owned(), text.to_owned())).ok_or_else(|| "write KEY=TEXT".to_owned())
}
