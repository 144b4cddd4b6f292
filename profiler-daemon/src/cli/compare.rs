//! What is typed after `compare`.

use std::path::PathBuf;

use clap::Args;

use super::Top;

/// Arguments of `compare`.
#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// Profile in pprof format (.pb.gz) from before.
    #[arg(value_name = "OLD")]
    pub(crate) old: PathBuf,
    /// Profile in pprof format (.pb.gz) from after.
    #[arg(value_name = "NEW")]
    pub(crate) new: PathBuf,
    /// Compare the time in each function together with what it called, instead of the time in the function itself.
    #[arg(long)]
    pub(crate) total: bool,
    /// Number of functions in the table; 0 shows all.
    #[arg(long, value_name = "N", default_value_t, conflicts_with = "json")]
    pub(crate) top: Top,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}
