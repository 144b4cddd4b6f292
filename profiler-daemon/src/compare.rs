//! `compare`: two profiles side by side, and what changed by more than chance brings.

use std::path::PathBuf;

use anyhow::Result;
use profile_files::comparison::{self, Comparison};
use profile_files::names;
use profile_files::table::View;

use crate::failure::usage;
use crate::output::Top;
use crate::report;
use crate::terminal::Terminal;

/// Compare two profiles.
#[derive(Debug)]
pub(crate) struct CompareJob {
    /// The file from before.
    pub(crate) old: PathBuf,
    /// The file from after.
    pub(crate) new: PathBuf,
    /// Whether a function's time is that with what it called.
    pub(crate) with_called: bool,
    /// Whether to print JSON.
    pub(crate) json: bool,
    /// Functions that the table lists.
    pub(crate) top: Top,
}

/// Prints what changed.
///
/// # Errors
///
/// If a file is missing or no profile, or one is of CPU time and the other of something else.
pub(crate) fn run(job: &CompareJob, terminal: Terminal) -> Result<()> {
    let (old, new) = (report::from_file(&job.old)?, report::from_file(&job.new)?);
    if old.run.measure != new.run.measure {
        let [old, new] = [&old, &new].map(|profile| names::visible(&profile.run.measure.in_words()));
        return Err(usage(format!(
            "the old profile is of {old}, and the new one of {new}; give two of the same"
        )));
    }
    let comparison = Comparison::of(&old, &new, job.with_called);
    if job.json {
        return terminal.print(&format!("{}\n", serde_json::to_string(&comparison)?));
    }
    terminal.print(&comparison::render(&comparison, View { width: terminal.columns(), top: job.top.get() }))
}
