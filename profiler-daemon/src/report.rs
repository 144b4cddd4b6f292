//! `report FILE`: a profile from a file, as the run that wrote it would have printed it.

use std::fs::File;

use anyhow::{Error, Result, anyhow};

use crate::cli::ReportFormat;
use crate::export::functions::{Ends, ShareInterval, Weights, functions};
use crate::export::{folded, pprof, stats};
use crate::output::print_table;
use crate::settings::ReportJob;
use crate::terminal::Terminal;

/// Prints the profile in `job.file`. `interval_at` gives the intervals at the level that the file asks for.
///
/// # Errors
///
/// If the file is missing or not a profile.
pub(crate) fn run<I>(job: &ReportJob, terminal: Terminal, interval_at: impl Fn(f64) -> I) -> Result<()>
where
    I: Fn(&[Weights], u64) -> Option<Ends>,
{
    let path = job.file.display();
    let file = File::open(&job.file)
        .map_err(|error| anyhow!("{path} cannot be opened ({error}); give a .pb.gz file that `-o` wrote"))?;
    let profile = pprof::read(file).map_err(|error| {
        let reason = Error::from(error);
        anyhow!("{path} cannot be shown: {reason:#}; give a CPU profile in pprof's format")
    })?;
    let interval = interval_at(profile.run.confidence);
    let interval: ShareInterval = &interval;
    match job.format {
        ReportFormat::Table => print_table(terminal, &profile, &functions(&profile, interval)),
        ReportFormat::Json => {
            let line = stats::summary(&profile.run, &functions(&profile, interval))?;
            terminal.print(&line)
        }
        ReportFormat::Folded => {
            let mut text = Vec::new();
            folded::write(&profile, &mut text)?;
            terminal.print(&String::from_utf8_lossy(&text))
        }
    }
}
