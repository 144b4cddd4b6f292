//! `report`: a profile from a file, as the run that wrote it would have printed it, or a range of time of those that the
//! daemon keeps, as one run over it would have.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::slice;

use anyhow::{Error, Result, anyhow, bail};
use profile_files::range::{self, RangeError};
use profile_files::store::{Query, StoreError};
use profile_files::table::View;
use profile_files::unknown::{self, UnknownList};
use profile_files::{Format, JSON, names, pprof};
use profiler_core::merge::{Merger, Range};
use profiler_core::profile::SymbolizedProfile;

use crate::failure::Failure;
use crate::output::Outputs;
use crate::output::{OutputFile, OutputJob, Top};
use crate::terminal::Terminal;

/// Print a profile.
#[derive(Debug)]
pub(crate) struct ReportJob {
    /// Where it is.
    pub(crate) source: ReportSource,
    /// Files to write instead, each path once.
    pub(crate) files: Vec<OutputFile>,
    /// How to print it.
    pub(crate) format: &'static Format,
    /// What it does not know instead of what it knows.
    pub(crate) unknown: bool,
    /// Functions that its table lists.
    pub(crate) top: Top,
}

/// Where a profile to be printed is.
#[derive(Debug)]
pub(crate) enum ReportSource {
    /// In files, in pprof's format, each of another host: at least one, and each path once.
    Files(Vec<PathBuf>),
    /// In what the daemon keeps.
    Store {
        /// The folder.
        folder: PathBuf,
        /// What of it; the range is not empty.
        query: Query,
    },
}

/// Prints the profile that `job` asks for, or writes it to files.
///
/// # Errors
///
/// If it is missing or not a profile, or nothing was kept in the range.
pub(crate) fn run(job: &ReportJob, terminal: Terminal) -> Result<()> {
    let profile = match &job.source {
        ReportSource::Files(files) => from_files(files)?,
        ReportSource::Store { folder, query } => {
            let profile = from_store(folder, query)?;
            if !shows_notes(job) {
                say_missing(&profile, terminal);
            }
            profile
        }
    };
    if !job.files.is_empty() {
        let files = OutputJob { files: job.files.clone(), ..OutputJob::default() };
        return Outputs::prepare(&files)?.deliver(&profile);
    }
    print(job, &profile, terminal)
}

/// Whether a person reads the notes of the profile in what is printed; JSON has them too, but a program reads it.
fn shows_notes(job: &ReportJob) -> bool {
    job.files.is_empty() && !job.unknown && job.format.lists_functions
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
    Ok(pooled(&mut profiles))
}

/// The sum of profiles of as many hosts. They may lie days apart: bins are as short as the longest one asks for.
fn pooled(profiles: &mut [SymbolizedProfile]) -> SymbolizedProfile {
    begin_with_the_first(profiles);
    let bins_ns = profiles.iter().map(|profile| Range::of_all(slice::from_ref(profile)).bin_ns());
    let bin_ns = bins_ns.max().unwrap_or(1);
    let mut merger = Merger::of_hosts(Range::of_all(profiles), bin_ns);
    for profile in &*profiles {
        merger.add(profile);
    }
    let mut sum = merger.finish();
    // A file of another tool does not say what was sampled when: nor does the sum.
    let says_when = |profile: &SymbolizedProfile| profile.stacks.is_empty() || !profile.windows.is_empty();
    if !profiles.iter().all(says_when) {
        sum.windows.clear();
        sum.stacks.iter_mut().for_each(|stack| stack.windows.clear());
    }
    sum.run
        .notes
        .push(format!("this is the sum of {} files, each taken to be of another host", profiles.len()));
    sum
}

/// Lets profiles that do not say when they began begin with the first of those that do: 1970 is no such time.
fn begin_with_the_first(profiles: &mut [SymbolizedProfile]) {
    let starts = profiles.iter().map(|profile| profile.run.start_unix_ns);
    let first_unix_ns = starts.filter(|start| *start > 0).min().unwrap_or_default();
    for profile in profiles.iter_mut().filter(|profile| profile.run.start_unix_ns == 0) {
        profile.run.start_unix_ns = first_unix_ns;
    }
}

/// Reads a file.
///
/// # Errors
///
/// If it is missing or no profile.
pub(crate) fn from_file(file: &Path) -> Result<SymbolizedProfile> {
    let path = file.display();
    let file = File::open(file)
        .map_err(|error| anyhow!("{path} cannot be opened ({error}); give a .pb.gz file that `-o` wrote"))?;
    pprof::read(file).map_err(|error| {
        let advice = error.advice();
        anyhow!("{path} cannot be shown: {:#}; {advice}", Error::from(error))
    })
}

/// Reads a range of the store.
fn from_store(folder: &Path, query: &Query) -> Result<SymbolizedProfile> {
    let read = range::read(folder, query, &|| true).map_err(|unread| match &unread {
        RangeError::Store(StoreError::Unreadable { cause, .. })
            if cause.kind() == ErrorKind::PermissionDenied =>
        {
            Failure::NotPermitted(format!("{unread}; or use the daemon: sweetspot ctl profile")).into()
        }
        _ => Error::from(unread),
    })?;
    Ok(read.profile)
}

/// Says what is missing of a profile of a range, where its notes are not printed with it.
pub(crate) fn say_missing(profile: &SymbolizedProfile, terminal: Terminal) {
    range::missing(profile).for_each(|note| terminal.say(note));
}

#[cfg(test)]
mod tests {

    use super::*;
    use profile_files::functions::{FunctionCost, functions};
    use profile_files::testing;
    use profile_files::{FOLDED, TABLE};

    const SECOND_NS: u64 = 1_000_000_000;

    /// A minute of a host, whose samples fall into four functions by chance.
    fn host(rng: &mut fastrand::Rng) -> SymbolizedProfile {
        let mut profile = testing::minute([0.4, 0.3, 0.2, 0.1], || rng.f64());
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
            hosts.iter_mut().for_each(|host| host.run.cpu.sampling_cpu_se_s = 0.0);
            let sum = functions(&pooled(&mut hosts)).functions;
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
        let mut hosts: Vec<SymbolizedProfile> = (0..6).map(|_| host(&mut rng)).collect();
        let sum = pooled(&mut hosts).run;
        let one = &hosts[0].run;
        assert!((sum.cpu.sampling_cpu_s - 6.0 * one.cpu.sampling_cpu_s).abs() < 1e-9);
        assert!(
            (sum.cpu.sampling_cpu_se_s - 6_f64.sqrt() * one.cpu.sampling_cpu_se_s).abs() < 1e-9,
            "{sum:?}"
        );
        assert!((sum.cost.overhead_us - one.cost.overhead_us).abs() < 1e-9);
        assert!((sum.cost.overhead_se_us - one.cost.overhead_se_us / 6_f64.sqrt()).abs() < 1e-9);
        assert_eq!((sum.counts.samples, sum.cpu.target_cpu_s), (36_000, 360.0));
        assert!(
            sum.notes.iter().any(|note| note.starts_with("this is the sum of 6 files")),
            "{:?}",
            sum.notes
        );
    }

    #[test]
    fn what_is_missing_is_said_beside_outputs_without_notes_alone() {
        let shown = |format: &'static Format, unknown, files: &[OutputFile]| {
            let source = ReportSource::Files(Vec::new());
            shows_notes(&ReportJob { source, files: files.to_vec(), format, unknown, top: Top::ALL })
        };
        assert!(shown(&TABLE, false, &[]) && !shown(&JSON, false, &[]));
        assert!(!shown(&FOLDED, false, &[]) && !shown(&TABLE, true, &[]));
        let file = OutputFile { path: "a.folded".into(), format: &FOLDED };
        assert!(!shown(&TABLE, false, &[file]));
    }

    /// Another tool's file may not say when it was sampled.
    #[test]
    fn a_file_without_a_start_does_not_begin_in_1970() {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut hosts = [host(&mut rng), host(&mut rng)];
        let start_unix_ns = hosts[0].run.start_unix_ns;
        let other = &mut hosts[1];
        (other.run.start_unix_ns, other.windows) = (0, Vec::new());
        other.stacks.iter_mut().for_each(|stack| stack.windows.clear());
        let run = pooled(&mut hosts).run;
        assert_eq!((run.start_unix_ns, run.counts.samples), (start_unix_ns, 12_000));
        assert!((run.duration_s - 60.0).abs() < 1e-6, "{}", run.duration_s);
        hosts.iter_mut().for_each(|host| host.run.start_unix_ns = 0);
        let run = pooled(&mut hosts).run;
        assert_eq!(run.start_unix_ns, 0, "none says when");
        assert!((run.duration_s - 60.0).abs() < 1e-6, "{}", run.duration_s);
    }

    #[test]
    fn several_files_are_read_as_one_profile() {
        let folder = tempfile::tempdir().unwrap();
        let mut rng = fastrand::Rng::with_seed(7);
        let files: Vec<PathBuf> = (0..3).map(|at| folder.path().join(format!("{at}.pb.gz"))).collect();
        for file in &files {
            pprof::write(&host(&mut rng), &mut File::create(file).unwrap()).unwrap();
        }
        assert_eq!(from_files(&files[..1]).unwrap().run.counts.samples, 6_000);
        let sum = from_files(&files).unwrap();
        assert_eq!((sum.run.counts.samples, sum.stacks.len()), (18_000, 4));
        std::fs::write(&files[1], "no profile").unwrap();
        assert!(from_files(&files).unwrap_err().to_string().contains("1.pb.gz cannot be shown"));
    }
}
