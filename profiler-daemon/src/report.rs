//! `report FILE`: a profile from a file, as the run that wrote it would have printed it.

use std::fs::File;

use anyhow::{Error, Result, anyhow};

use crate::cli::ReportFormat;
use crate::export::functions::functions;
use crate::export::unknown::{self, UnknownList};
use crate::export::{folded, pprof, stats};
use crate::output::{TOP, print_table};
use crate::settings::ReportJob;
use crate::terminal::Terminal;

/// Prints the profile in `job.file`.
///
/// # Errors
///
/// If the file is missing or not a profile.
pub(crate) fn run(job: &ReportJob, terminal: Terminal) -> Result<()> {
    let path = job.file.display();
    let file = File::open(&job.file)
        .map_err(|error| anyhow!("{path} cannot be opened ({error}); give a .pb.gz file that `-o` wrote"))?;
    let profile = pprof::read(file).map_err(|error| {
        let reason = Error::from(error);
        anyhow!("{path} cannot be shown: {reason:#}; give a CPU profile in pprof's format")
    })?;
    if job.unknown {
        let list = UnknownList::of(&profile);
        let top = if terminal.is_terminal() { TOP } else { usize::MAX };
        return match job.format {
            ReportFormat::Json => terminal.print(&list.json()?),
            _ => terminal.print(&unknown::render(&list, terminal.columns(), top)),
        };
    }
    match job.format {
        ReportFormat::Table => print_table(terminal, &profile, &functions(&profile)),
        ReportFormat::Json => {
            let line = stats::summary(&profile.run, &functions(&profile))?;
            terminal.print(&line)
        }
        ReportFormat::Folded => {
            let mut text = Vec::new();
            folded::write(&profile, &mut text)?;
            terminal.print(&String::from_utf8_lossy(&text))
        }
    }
}
