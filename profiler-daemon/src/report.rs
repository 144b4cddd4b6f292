//! `report`: a profile from a file, as the run that wrote it would have printed it, or a range of time of those that the
//! daemon keeps, as one run over it would have.

use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Error, Result, anyhow, bail};
use profile_files::range::{self, RangeError};
use profile_files::store::{Query, StoreError};
use profile_files::table::View;
use profile_files::unknown::{self, UnknownList};
use profile_files::{Format, JSON, names, pprof};
use profiler_core::profile::SymbolizedProfile;

use crate::cli::Top;
use crate::failure::Failure;
use crate::output::Outputs;
use crate::settings::{OutputJob, ReportJob, ReportSource};
use crate::terminal::Terminal;

/// Prints the profile that `job` asks for, or writes it to files.
///
/// # Errors
///
/// If it is missing or not a profile, or nothing was kept in the range.
pub(crate) fn run(job: &ReportJob, terminal: Terminal) -> Result<()> {
    let profile = match &job.source {
        ReportSource::File(file) => from_file(file)?,
        ReportSource::Store { folder, query } => from_store(folder, query, terminal)?,
    };
    if !job.files.is_empty() {
        let files = OutputJob { files: job.files.clone(), ..OutputJob::default() };
        return Outputs::prepare(&files)?.deliver(&profile);
    }
    print(job, &profile, terminal)
}

fn print(job: &ReportJob, profile: &SymbolizedProfile, terminal: Terminal) -> Result<()> {
    let measure = &profile.run.measure;
    if *job.format == JSON && !measure.is_cpu() {
        bail!(
            "--format json is for CPU time, and this is a profile of {}; leave it out, or use --format folded",
            names::visible(&measure.in_words())
        );
    }
    if job.unknown {
        let list = UnknownList::of(profile);
        let text = match *job.format == JSON {
            true => list.json()?,
            false => unknown::render(&list, measure, terminal.columns(), job.top.get()),
        };
        return terminal.print(&text);
    }
    print_as(job.format, profile, terminal, job.top)
}

/// Prints a profile.
///
/// # Errors
///
/// If standard output cannot be written.
pub(crate) fn print_as(
    format: &Format,
    profile: &SymbolizedProfile,
    terminal: Terminal,
    top: Top,
) -> Result<()> {
    let mut text = Vec::new();
    format.write(profile, View { width: terminal.columns(), top: top.get() }, &mut text)?;
    terminal.print(&String::from_utf8_lossy(&text))
}

fn from_file(file: &Path) -> Result<SymbolizedProfile> {
    let path = file.display();
    let file = File::open(file)
        .map_err(|error| anyhow!("{path} cannot be opened ({error}); give a .pb.gz file that `-o` wrote"))?;
    pprof::read(file).map_err(|error| {
        let reason = Error::from(error);
        anyhow!("{path} cannot be shown: {reason:#}; give a CPU profile in pprof's format")
    })
}

/// Reads a range of the store, and says what is missing of it.
fn from_store(folder: &Path, query: &Query, terminal: Terminal) -> Result<SymbolizedProfile> {
    let read = range::read(folder, query, &|| true).map_err(|unread| match &unread {
        RangeError::Store(StoreError::Unreadable { cause, .. })
            if cause.kind() == ErrorKind::PermissionDenied =>
        {
            Failure::NotPermitted(format!("{unread}; or ask the daemon: sweetspot ctl profile")).into()
        }
        _ => Error::from(unread),
    })?;
    say_missing(&read.profile, terminal);
    Ok(read.profile)
}

/// Says what is missing of a profile of a range, wherever it goes.
pub(crate) fn say_missing(profile: &SymbolizedProfile, terminal: Terminal) {
    range::missing(profile).for_each(|note| terminal.say(note));
}
