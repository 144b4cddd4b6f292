//! The results of a run: checked before it starts, delivered when it ends, and never lost.

use std::fmt::{self, Display, Formatter};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Error, Result, anyhow};
use profile_files::functions::{FunctionTable, functions};
use profile_files::stats::StatsWriter;
use profile_files::table::{View, render};
use profile_files::{AtomicFile, Format, PPROF};
use profiler_core::attach::AttachMode;
use profiler_core::profile::SymbolizedProfile;
use profiler_core::rate::Decision;
use profiler_core::unwind::method::Method;
use serde::Serialize;

use crate::debuginfod;
use crate::terminal::Terminal;

/// Where the results of a run are to go.
#[derive(Clone, Debug, Default)]
pub(crate) struct OutputJob {
    /// Files to write, each path once; where there are none, a table is printed.
    pub(crate) files: Vec<OutputFile>,
    /// The file for control decisions and the summary.
    pub(crate) stats: Option<PathBuf>,
    /// Servers of debug files.
    pub(crate) debuginfod: Option<debuginfod::DebuginfodSettings>,
    /// Functions that the table lists.
    pub(crate) top: Top,
    /// Print results and errors only.
    pub(crate) quiet: bool,
}

/// A file to write and the format its name asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OutputFile {
    /// Its final name.
    pub(crate) path: PathBuf,
    /// Its format.
    pub(crate) format: &'static Format,
}

/// How many rows a table lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Top(usize);

impl Top {
    /// All rows, as typed: 0.
    pub(crate) const ALL: Self = Self(0);

    /// The most rows to list.
    pub(crate) fn get(self) -> usize {
        if self == Self::ALL { usize::MAX } else { self.0 }
    }
}

impl Default for Top {
    fn default() -> Self {
        Self(20)
    }
}

impl Display for Top {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Top {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self).map_err(|_| "give a number of rows, or 0 for all")
    }
}

/// A receiver of control decisions.
pub(crate) trait DecisionLog {
    /// A decision worth a line: a change, or one per second while nothing changes.
    fn decision(&mut self, line: &DecisionLine<'_>);
}

/// A decision with its context: a line of `--stats`.
#[derive(Serialize)]
pub(crate) struct DecisionLine<'a> {
    /// The decision.
    #[serde(flatten)]
    pub(crate) decision: &'a Decision,
    pub(crate) at_s: f64,
    /// Spent since the start: charged to the target, and elsewhere (the profiler, samples of non-targets).
    pub(crate) target_spend_s: f64,
    pub(crate) others_spend_s: f64,
    pub(crate) unwind: Method,
    pub(crate) stack_copy_bytes: u32,
    pub(crate) attach_mode: AttachMode,
    pub(crate) clocks: usize,
}

/// Where the results of a run go.
#[derive(Debug)]
pub(crate) struct Outputs {
    files: Vec<OutputFile>,
    stats: Option<StatsWriter>,
    top: Top,
    terminal: Terminal,
}

impl Outputs {
    /// Makes sure that every output can be written, before anything is spent on a run.
    ///
    /// # Errors
    ///
    /// The first output that cannot, and what to do.
    pub(crate) fn prepare(job: &OutputJob) -> Result<Self> {
        for file in &job.files {
            check_writable(&file.path)?;
        }
        let stats = job.stats.as_deref().map(StatsWriter::create).transpose()?;
        Ok(Self { files: job.files.clone(), stats, top: job.top, terminal: Terminal { quiet: job.quiet } })
    }

    /// The terminal, as quiet as the person wants it.
    pub(crate) fn terminal(&self) -> Terminal {
        self.terminal
    }

    /// Writes every file, or prints the table where there are none, and ends the `--stats` file.
    ///
    /// # Errors
    ///
    /// What could not be written, and where the profile is instead.
    pub(crate) fn deliver(self, profile: &SymbolizedProfile) -> Result<()> {
        let table = functions(profile);
        let delivered = match self.files.as_slice() {
            [] => print_table(self.terminal, profile, &table, self.top),
            files => {
                // Asked for, and in the table alone otherwise.
                let fetched = profile.run.notes.iter().filter(|note| note.starts_with(debuginfod::NOTE));
                fetched.for_each(|note| self.terminal.say(note));
                write_all(files, profile, self.terminal)
            }
        };
        let stats =
            self.stats.map_or(Ok(()), |stats| stats.finish(&profile.run, &table).map_err(Error::from));
        match (delivered, stats) {
            (Err(first), Err(second)) => Err(anyhow!("{first:#}; and {second:#}")),
            (delivered, stats) => delivered.and(stats),
        }
    }
}

/// Adds decisions to the `--stats` file, where there is one.
impl DecisionLog for Outputs {
    fn decision(&mut self, line: &DecisionLine<'_>) {
        if let Some(stats) = &mut self.stats {
            stats.decision(line);
        }
    }
}

/// Prints the table: its first `top` functions.
fn print_table(
    terminal: Terminal,
    profile: &SymbolizedProfile,
    table: &FunctionTable,
    top: Top,
) -> Result<()> {
    let text = render(profile, table, View { width: terminal.columns(), top: top.get() });
    terminal.print(&text)
}

/// Writes each file whatever becomes of the others. If none of them holds the whole profile, it is rescued.
fn write_all(files: &[OutputFile], profile: &SymbolizedProfile, terminal: Terminal) -> Result<()> {
    let mut failures = Vec::new();
    let mut kept = false;
    for file in files {
        match write_file(file, profile) {
            Ok(()) => {
                kept |= *file.format == PPROF;
                terminal.say(&format!("wrote {}", file.path.display()));
            }
            Err(error) => failures.push(format!("{:#}", cannot_write(&file.path, error))),
        }
    }
    if failures.is_empty() {
        return Ok(());
    }
    if !kept {
        failures.push(rescue(profile));
    }
    Err(anyhow!(failures.join("; ")))
}

fn write_file(file: &OutputFile, profile: &SymbolizedProfile) -> io::Result<()> {
    let mut out = BufWriter::new(AtomicFile::create(&file.path)?);
    file.format.write(profile, View::default(), &mut out)?;
    out.into_inner().map_err(io::IntoInnerError::into_error)?.commit()
}

/// Makes sure that a file can be written, before anything is spent on what it is to hold.
///
/// # Errors
///
/// Why it cannot, and what to do.
pub(crate) fn check_writable(path: &Path) -> Result<()> {
    // Written and removed: permissions, quotas and read-only disks show in no other way.
    AtomicFile::create(path).map(drop).map_err(|error| cannot_write(path, error))
}

/// Writes a text to a file that appears whole or not at all.
///
/// # Errors
///
/// Why it cannot be written, and what to do.
pub(crate) fn write_text(path: &Path, text: &str) -> Result<()> {
    let write = || {
        let mut file = AtomicFile::create(path)?;
        file.write_all(text.as_bytes())?;
        file.commit()
    };
    write().map_err(|error| cannot_write(path, error))
}

/// Puts the profile where temporary files go, and says where that is.
fn rescue(profile: &SymbolizedProfile) -> String {
    let mut folders = vec![std::env::temp_dir()];
    if folders[0] != Path::new("/tmp") {
        folders.push(PathBuf::from("/tmp"));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let name = format!("sweetspot-{}-{now}.pb.gz", std::process::id());
    let mut reason = None;
    for folder in folders {
        let path = folder.join(&name);
        match write_private(&path, profile) {
            Ok(()) => return format!("the profile is in {}", path.display()),
            Err(error) => reason = Some(cannot_write(&path, error)),
        }
    }
    reason.map_or_else(String::new, |error| format!("{error:#}, and the profile is lost"))
}

/// A profile tells what a program does, and everyone can read the folder of temporary files.
fn write_private(path: &Path, profile: &SymbolizedProfile) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(path)?;
    let written = PPROF.write(profile, View::default(), &mut file).and_then(|()| file.flush());
    if written.is_err() {
        let _ = std::fs::remove_file(path);
    }
    written
}

fn cannot_write(path: &Path, error: io::Error) -> anyhow::Error {
    let advice = match error.kind() {
        // The format refuses, not the disk, and says what to do.
        io::ErrorKind::FileTooLarge if error.raw_os_error().is_none() => {
            return anyhow!("{} is not written: {error}", path.display());
        }
        io::ErrorKind::NotFound => "create its folder first, or name another",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free space there, or name another folder"
        }
        _ => "name a file in a folder that you may write to",
    };
    anyhow!("{} cannot be written ({error}); {advice}", path.display())
}

#[cfg(test)]
#[path = "output_tests.rs"]
mod tests;
