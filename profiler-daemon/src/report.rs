//! `report`: a profile from a file, as the run that wrote it would have printed it, or a range of time of those that the
//! daemon keeps, as one run over it would have.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Error, Result, anyhow, bail};
use profiler_core::merge::{Merger, Range};
use profiler_core::profile::SymbolizedProfile;

use crate::cli::{ReportFormat, Top};
use crate::export::functions::functions;
use crate::export::unknown::{self, UnknownList};
use crate::export::{folded, names, pprof, stats};
use crate::failure::Failure;
use crate::output::{Outputs, print_table};
use crate::settings::{OutputJob, ReportJob, ReportSource};
use crate::store::{self, IsWanted, Query, Reading, StoreError};
use crate::terminal::Terminal;
use crate::when;

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
        ReportSource::Files(files) => from_files(files)?,
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

/// One profile, or the sum of those of several hosts.
fn from_files(files: &[PathBuf]) -> Result<SymbolizedProfile> {
    let mut profiles = files.iter().map(|file| from_file(file)).collect::<Result<Vec<_>>>()?;
    if profiles.len() == 1 {
        return Ok(profiles.remove(0));
    }
    let other = profiles.iter().zip(files).find(|(profile, _)| !profile.run.measure.is_cpu());
    if let Some((profile, file)) = other {
        bail!(
            "{} is a profile of {}; profiles of CPU time alone can be summed up",
            file.display(),
            names::visible(&profile.run.measure.in_words())
        );
    }
    Ok(pooled(&profiles))
}

/// The sum of profiles of as many hosts.
fn pooled(profiles: &[SymbolizedProfile]) -> SymbolizedProfile {
    let range = Range::of_all(profiles);
    let mut merger = Merger::of_hosts(range, range.bin_ns());
    for profile in profiles {
        merger.add(profile);
    }
    let mut sum = merger.finish();
    sum.run
        .notes
        .push(format!("this is the sum of {} files, each taken to be of another host", profiles.len()));
    sum
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

#[cfg(test)]
mod tests {
    use profiler_core::profile::{Outcome, StackWindow, Window};

    use super::*;
    use crate::export::functions::FunctionCost;
    use crate::export::testing::{self, stack};

    const SECOND_NS: u64 = 1_000_000_000;
    const SHARES: [f64; 4] = [0.4, 0.3, 0.2, 0.1];
    const SAMPLE_NS: u64 = 10_000_000;

    /// A minute of a host, whose samples fall into four functions by chance.
    fn host(rng: &mut fastrand::Rng) -> SymbolizedProfile {
        let mut profile = testing::profile();
        profile.windows =
            (0..60).map(|at| Window { start_ns: at * SECOND_NS, end_ns: (at + 1) * SECOND_NS }).collect();
        let leaves = [3, 1, 4, 5];
        let mut stacks = leaves.map(|leaf| stack(&[leaf, 0], Outcome::Complete, 0..0, 0, 0));
        for window in 0..60 {
            let mut counts = [0; 4];
            for _ in 0..100 {
                let mut left = rng.f64();
                let hit = SHARES.iter().position(|share| {
                    left -= share;
                    left < 0.0
                });
                counts[hit.unwrap_or(3)] += 1;
            }
            for (stack, samples) in stacks.iter_mut().zip(counts).filter(|(_, samples)| *samples > 0) {
                let cpu_ns = samples * SAMPLE_NS;
                stack.windows.push(StackWindow { window, cpu_ns, samples });
                (stack.cpu_ns, stack.samples) = (stack.cpu_ns + cpu_ns, stack.samples + samples);
            }
        }
        profile.stacks = stacks.to_vec();
        (profile.run.samples, profile.run.target_cpu_s, profile.run.duration_s) = (6_000, 60.0, 60.0);
        profile.run.start_unix_ns += rng.u64(..SECOND_NS); // no two hosts cut at one moment
        profile
    }

    fn widths(functions: &[FunctionCost], name: &str) -> [f64; 2] {
        let function = functions.iter().find(|function| function.name == name).expect("a function");
        let width = |low: Option<f64>, high: Option<f64>| (high.unwrap() - low.unwrap()) / function.cpu_s;
        [
            width(function.cpu_s_low, function.cpu_s_high),
            width(function.long_run_cpu_s_low, function.long_run_cpu_s_high),
        ]
    }

    #[test]
    fn six_hosts_together_know_more_by_the_root_of_six() {
        let mut rng = fastrand::Rng::with_seed(7);
        let (mut ratios, mut held) = ([0.0; 2], 0);
        const TIMES: usize = 20;
        for _ in 0..TIMES {
            let mut hosts: Vec<SymbolizedProfile> = (0..6).map(|_| host(&mut rng)).collect();
            // What samples cost is as sure as it is; here only that they are few matters.
            hosts.iter_mut().for_each(|host| host.run.sampling_cpu_se_s = 0.0);
            let sum = functions(&pooled(&hosts)).functions;
            let one = functions(&hosts[0]).functions;
            for name in ["memcpy", "main", "walk", "clear_page"] {
                let (sum, one) = (widths(&sum, name), widths(&one, name));
                (0..2).for_each(|at| ratios[at] += sum[at] / one[at] / (4 * TIMES) as f64);
            }
            let total_s = 360.0;
            let truth = [("memcpy", 0.4), ("main", 0.3), ("walk", 0.2), ("clear_page", 0.1)];
            let holds = |(name, share): &(&str, f64)| {
                let function = sum.iter().find(|function| function.name == *name).expect("a function");
                let (low, high) =
                    (function.long_run_cpu_s_low.unwrap(), function.long_run_cpu_s_high.unwrap());
                (low..=high).contains(&(share * total_s))
            };
            held += usize::from(truth.iter().all(holds));
        }
        let expected = 6_f64.sqrt().recip();
        assert!(ratios.iter().all(|ratio| (ratio / expected - 1.0).abs() < 0.1), "{ratios:?} {expected}");
        assert!(held >= TIMES - 3, "{held} of {TIMES} tables hold");
    }

    #[test]
    fn what_hosts_err_by_in_the_cost_of_samples_adds_up_as_variances() {
        let mut rng = fastrand::Rng::with_seed(7);
        let hosts: Vec<SymbolizedProfile> = (0..6).map(|_| host(&mut rng)).collect();
        let (one, sum) = (&hosts[0].run, pooled(&hosts).run);
        assert!((sum.sampling_cpu_s - 6.0 * one.sampling_cpu_s).abs() < 1e-9);
        assert!((sum.sampling_cpu_se_s - 6_f64.sqrt() * one.sampling_cpu_se_s).abs() < 1e-9, "{sum:?}");
        assert!((sum.overhead_us - one.overhead_us).abs() < 1e-9);
        assert!((sum.overhead_se_us - one.overhead_se_us / 6_f64.sqrt()).abs() < 1e-9);
        assert_eq!((sum.samples, sum.target_cpu_s), (36_000, 360.0));
        assert!(
            sum.notes.iter().any(|note| note.starts_with("this is the sum of 6 files")),
            "{:?}",
            sum.notes
        );
    }

    #[test]
    fn several_files_are_read_as_one_profile() {
        let folder = tempfile::tempdir().unwrap();
        let mut rng = fastrand::Rng::with_seed(7);
        let files: Vec<PathBuf> = (0..3).map(|at| folder.path().join(format!("{at}.pb.gz"))).collect();
        for file in &files {
            pprof::write(&host(&mut rng), &mut File::create(file).unwrap()).unwrap();
        }
        assert_eq!(from_files(&files[..1]).unwrap().run.samples, 6_000);
        let sum = from_files(&files).unwrap();
        assert_eq!((sum.run.samples, sum.stacks.len()), (18_000, 4));
        std::fs::write(&files[1], "no profile").unwrap();
        assert!(from_files(&files).unwrap_err().to_string().contains("1.pb.gz cannot be shown"));
    }
}
