//! `report`: a profile from a file, as the run that wrote it would have printed it, or a range of time of those that the
//! daemon keeps, as one run over it would have.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Error, Result, anyhow, bail};
use profile_files::functions::functions;
use profile_files::store::{self, IsWanted, Query, Reading, StoreError};
use profile_files::unknown::{self, UnknownList};
use profile_files::when;
use profile_files::{folded, names, pprof, stats};
use profiler_core::merge::Range;
use profiler_core::profile::SymbolizedProfile;

use crate::cli::{ReportFormat, Top};
use crate::failure::Failure;
use crate::output::{Outputs, print_table};
use crate::settings::{OutputJob, ReportJob, ReportSource};
use crate::terminal::Terminal;

/// Gaps and damaged files that are told one by one.
const TOLD: usize = 5;
/// How notes begin that tell what is missing.
const DAMAGED: &str = "left out, since they are damaged";
const UNREADABLE: &str = "left out, since they cannot be read";
const OVERLAPPING: &str = "left out, since other files hold a part of their time";
const NOT_KEPT: &str = "nothing was kept";
const MISSING: [&str; 4] = [DAMAGED, UNREADABLE, OVERLAPPING, NOT_KEPT];

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
    if job.format == ReportFormat::Json && !measure.is_cpu() {
        bail!(
            "--format json is for CPU time, and this is a profile of {}; leave it out, or use --format folded",
            names::visible(&measure.in_words())
        );
    }
    if job.unknown {
        let list = UnknownList::of(profile);
        return match job.format {
            ReportFormat::Json => terminal.print(&list.json()?),
            _ => {
                let measure = &profile.run.measure;
                terminal.print(&unknown::render(&list, measure, terminal.columns(), job.top.get()))
            }
        };
    }
    print_as(job.format, profile, terminal, job.top)
}

/// Prints a profile.
///
/// # Errors
///
/// If standard output cannot be written.
pub(crate) fn print_as(
    format: ReportFormat,
    profile: &SymbolizedProfile,
    terminal: Terminal,
    top: Top,
) -> Result<()> {
    match format {
        ReportFormat::Table => print_table(terminal, profile, &functions(profile), top),
        ReportFormat::Json => {
            let line = stats::summary(&profile.run, &functions(profile))?;
            terminal.print(&line)
        }
        ReportFormat::Folded => {
            let mut text = Vec::new();
            folded::write(profile, &mut text)?;
            terminal.print(&String::from_utf8_lossy(&text))
        }
    }
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

/// Why a range has no profile.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unread {
    /// Nothing was kept of it, or it is in files that are damaged.
    #[error("{0}")]
    Nothing(String, Vec<PathBuf>),
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A range that was read, with what is missing of it in the notes of the profile.
#[derive(Debug)]
pub(crate) struct Read {
    /// The sum.
    pub(crate) profile: SymbolizedProfile,
    /// Files of the store that are damaged.
    pub(crate) damaged: Vec<PathBuf>,
}

/// Reads a range as long as it is wanted.
///
/// # Errors
///
/// If the folder cannot be read, nothing was kept, or nobody wants it any more.
pub(crate) fn read(folder: &Path, query: &Query, is_wanted: IsWanted<'_>) -> Result<Read, Unread> {
    let mut reading = store::read(folder, query, is_wanted)?;
    let notes = notes(&reading);
    if reading.targets.is_empty() {
        if !reading.unreadable.is_empty() {
            let (path, cause) = reading.unreadable.swap_remove(0);
            return Err(StoreError::Unreadable { path: folder.join(path), cause }.into());
        }
        let damaged = notes
            .iter()
            .find(|_| !reading.damaged.is_empty())
            .map_or_else(String::new, |note| format!(": {note}"));
        let text = format!(
            "{} has no such profile {}{damaged}; try other times, targets or labels",
            folder.display(),
            in_words(query.range)
        );
        return Err(Unread::Nothing(text, paths(reading.damaged)));
    }
    let mut profile = reading.profile;
    profile.run.notes.extend(notes);
    Ok(Read { profile, damaged: paths(reading.damaged) })
}

fn paths(damaged: Vec<(PathBuf, store::Damage)>) -> Vec<PathBuf> {
    damaged.into_iter().map(|(path, _)| path).collect()
}

/// The same for a person: what is missing is said.
fn from_store(folder: &Path, query: &Query, terminal: Terminal) -> Result<SymbolizedProfile> {
    let read = read(folder, query, &|| true).map_err(|unread| match &unread {
        Unread::Store(StoreError::Unreadable { cause, .. })
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
    let missing = profile.run.notes.iter().filter(|note| MISSING.iter().any(|begin| note.starts_with(begin)));
    missing.for_each(|note| terminal.say(note));
}

fn in_words(range: Range) -> String {
    format!("from {} to {}", when::in_words(range.from_unix_ns), when::in_words(range.to_unix_ns))
}

/// What is missing, and why.
fn notes(reading: &Reading) -> Vec<String> {
    let mut notes = Vec::new();
    if !reading.damaged.is_empty() {
        let files = reading.damaged.iter().map(|(path, damage)| format!("{} ({damage})", shown(path)));
        notes.push(format!("{DAMAGED}: {}", some(files)));
    }
    if !reading.unreadable.is_empty() {
        let files = reading.unreadable.iter().map(|(path, cause)| format!("{} ({cause})", shown(path)));
        notes.push(format!("{UNREADABLE}: {}", some(files)));
    }
    if !reading.overlapping.is_empty() {
        let files = reading.overlapping.iter().map(|path| shown(path));
        notes.push(format!("{OVERLAPPING}: {}", some(files)));
    }
    if !reading.gaps.is_empty() {
        notes.push(format!("{NOT_KEPT} {}", some(reading.gaps.iter().map(|gap| in_words(*gap)))));
    }
    notes
}

/// A path without what a terminal would act upon.
fn shown(path: &Path) -> String {
    names::visible(&path.to_string_lossy())
}

/// The first few, and how many more there are.
fn some(all: impl ExactSizeIterator<Item = String>) -> String {
    let more = all.len().saturating_sub(TOLD);
    let named = all.take(TOLD).collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{named} and {more} more") } else { named }
}
