//! What takes the samples of a run, and what it needs first: the agent of timer signals is preloaded into a command, or loaded
//! into a running process.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use agent_memory::{LIBRARY, PLACE, PRELOAD, Program, SEPARATOR};
use anyhow::{Result, anyhow};
use config::{Backend, SamplingSettings};
use profiler_core::attach::AttachMode;
use profiler_core::rate::Dither;
use profiler_core::unwind::copy::CopySize;
use profiler_core::unwind::method::Method;

use super::Setup;
use crate::calibrate;
use crate::explain;
use crate::failure::usage;
use crate::objects::Symbols;
use crate::sampler::access::{Access, OpenError, probe_access};
use crate::sampler::source::{ClockSettings, Source};
use crate::sampler::timer_signal::{Host, TimerSampler};
use crate::sys::clock;
use crate::terminal;

/// Folders in which the agent is looked for, relative to the program.
const PLACES: [&str; 2] = ["", "../lib/sweetspot"];
const INSTALLED: &str = "/usr/lib/sweetspot";
/// Most scripts in a chain: a script may name another script as its interpreter.
const SCRIPTS: usize = 4;

/// What a run begins with: what takes its samples, and what is known before the target.
pub(crate) struct PreparedRun {
    pub(crate) setup: Setup,
    /// What takes the samples; `None` for perf events, which are opened once it is known what to attach to.
    pub(crate) source: Option<Box<dyn Source>>,
    /// The environment of a command, if it needs another than ours.
    pub(crate) environment: Option<Vec<CString>>,
}

impl PreparedRun {
    /// By the kernel's perf events.
    fn perf(sampling: &SamplingSettings) -> Result<Self> {
        Ok(Self { setup: Setup::begin(sampling)?, source: None, environment: None })
    }
}

/// Chooses what samples a command, and prepares it.
///
/// # Errors
///
/// What is not permitted or missing, and what to do.
pub(crate) fn for_command(sampling: &SamplingSettings, program: Option<&Path>) -> Result<PreparedRun> {
    match sampling.backend {
        Backend::Perf => PreparedRun::perf(sampling),
        Backend::TimerSignal => preloaded(sampling, &library()?, program),
        Backend::Auto => match probe_access() {
            Err(error @ OpenError::NotPermitted(_)) if can_use_timers(sampling) => {
                let library = find_library().ok_or_else(|| explain::open(error, None))?;
                preloaded(sampling, &library, program)
            }
            _ => PreparedRun::perf(sampling),
        },
    }
}

/// Chooses what samples running processes, and prepares it. The processes are only changed if the user allows it.
///
/// # Errors
///
/// What is not permitted or missing, and what to do.
pub(crate) fn for_processes(
    pids: &[u32],
    is_group: bool,
    sampling: &SamplingSettings,
) -> Result<PreparedRun> {
    let one = (!is_group).then_some(pids).and_then(|pids| <[u32; 1]>::try_from(pids).ok());
    match (sampling.backend, one) {
        (Backend::Perf, _) => PreparedRun::perf(sampling),
        (Backend::TimerSignal, None) => Err(usage(Backend::TIMERS_ONE_AT_A_TIME)),
        (Backend::TimerSignal, Some([pid])) => loaded(sampling, Host { pid, library: library()? }),
        (Backend::Auto, one) => match (probe_access(), one, find_library()) {
            (Err(OpenError::NotPermitted(cause)), Some([pid]), Some(library)) if can_use_timers(sampling) => {
                match terminal::agrees(&explain::may_load(&cause, pid)) {
                    true => loaded(sampling, Host { pid, library }),
                    false => Err(explain::could_load(&cause, pid)),
                }
            }
            _ => PreparedRun::perf(sampling),
        },
    }
}

fn can_use_timers(sampling: &SamplingSettings) -> bool {
    Backend::TimerSignal.refuses(sampling).is_none()
}

fn library() -> Result<PathBuf> {
    find_library().ok_or_else(explain::no_agent)
}

/// Where the agent is: beside this program, or where packages put it.
pub(crate) fn find_library() -> Option<PathBuf> {
    let program = std::env::current_exe().ok();
    let beside = program.as_deref().and_then(Path::parent);
    let near = beside.into_iter().flat_map(|folder| PLACES.map(|place| folder.join(place)));
    let candidates = near.chain([PathBuf::from(INSTALLED)]).map(|folder| folder.join(LIBRARY));
    candidates.filter(|file| file.is_file()).find_map(|file| file.canonicalize().ok())
}

/// A run of `program` by the agent in `library`, which the command will load.
fn preloaded(sampling: &SamplingSettings, library: &Path, program: Option<&Path>) -> Result<PreparedRun> {
    let first = match program.map(|program| (program, loaded_before(program))) {
        Some((program, Err(reason))) => return Err(explain::not_preloadable(program, reason)),
        Some((_, Ok(first))) => first,
        None => OsString::new(),
    };
    let setup = setup(sampling);
    let sampler = TimerSampler::new(clocks(), Dither::new(setup.seed), setup.seed).map_err(no_memory)?;
    let environment = Some(environment(library, &sampler.place(), &first)?);
    Ok(PreparedRun { setup, source: Some(Box::new(sampler)), environment })
}

/// A run by the agent that will be loaded into a running process.
fn loaded(sampling: &SamplingSettings, host: Host) -> Result<PreparedRun> {
    explain::first_thread(host.pid)?;
    let setup = setup(sampling);
    let sampler = TimerSampler::within(host, clocks(), Dither::new(setup.seed), setup.seed);
    Ok(PreparedRun { setup, source: Some(Box::new(sampler.map_err(no_memory)?)), environment: None })
}

fn no_memory(cause: std::io::Error) -> anyhow::Error {
    if cause.kind() == std::io::ErrorKind::FileTooLarge {
        return anyhow!("the memory for the samples may not become so big ({cause}); raise `ulimit -f`");
    }
    anyhow!("there is no memory for the samples ({cause}); free some, and try again")
}

fn setup(sampling: &SamplingSettings) -> Setup {
    Setup {
        calibration: calibrate::prepare_signals(),
        seed: sampling.seed.unwrap_or_else(clock::monotonic_ns),
        // The kernel's time is in the clocks that the timers are on, though its functions are not seen.
        access: Access { cpu_wide: false, kernel: true, targets: 1 },
        asked: Some(AttachMode::Task),
        reports: None,
        nature: TimerSampler::nature(),
        symbols: Symbols::new(sampling.symbol_memory.get()),
    }
}

/// Clocks before the controller has chosen a rate.
fn clocks() -> ClockSettings {
    ClockSettings {
        period_ns: 1_000_000_000,
        method: Method::Dwarf,
        stack_bytes: CopySize::default().bytes(),
        mappings: true,
    }
}

/// Our environment, with the agent preloaded behind existing preloads and behind `first`, which the command needs
/// before it.
fn environment(library: &Path, place: &str, first: &OsStr) -> Result<Vec<CString>> {
    let path = library.as_os_str();
    if path.as_bytes().iter().any(|byte| matches!(byte, b' ' | b':')) {
        return Err(anyhow!(
            "{} cannot be preloaded: its path holds a blank or a colon; move it",
            library.display()
        ));
    }
    let list = if first.is_empty() { path.to_owned() } else { join(first, ":", path) };
    // Existing preloads stay in place: the agent removes what comes after the separator.
    let others =
        std::env::vars_os().filter(|(name, _)| name != PLACE).map(|(name, value)| match name == PRELOAD {
            true => (name, join(&value, SEPARATOR, &list)),
            false => (name, value),
        });
    let preload = std::env::var_os(PRELOAD).is_none().then(|| (OsString::from(PRELOAD), list.clone()));
    let ours = preload.into_iter().chain([(PLACE.into(), place.into())]);
    let variables = others.chain(ours).map(|(name, value)| join(&name, "=", &value).into_vec());
    Ok(variables.filter_map(|variable| CString::new(variable).ok()).collect())
}

fn join(first: &OsStr, between: &str, second: &OsStr) -> OsString {
    let mut joined = first.to_owned();
    joined.push(between);
    joined.push(second);
    joined
}

/// What has to be loaded before the agent, or why nothing can be preloaded into `program`. Nothing for an unknown
/// program.
fn loaded_before(program: &Path) -> std::result::Result<OsString, &'static str> {
    let mut program = program.to_owned();
    for _ in 0..SCRIPTS {
        let Ok(file) = std::fs::File::open(&program) else { break };
        if file.metadata().is_ok_and(|meta| meta.mode() & (libc::S_ISUID | libc::S_ISGID) != 0) {
            return Err("runs with the rights of another user or group");
        }
        match Program::read(|at, into| file.read_at(into, at).unwrap_or(0)) {
            Program::Script(interpreter) => {
                program = PathBuf::from(OsStr::from_bytes(interpreter.bytes()));
            }
            Program::Dynamic { first, .. } => return Ok(OsStr::from_bytes(first.bytes()).to_owned()),
            Program::Refused(obstacle) => return Err(explain::obstacle(obstacle)),
            Program::Unknown => break,
        }
    }
    Ok(OsString::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_goes_behind_what_is_preloaded_and_its_place_is_named_once() {
        let variables = |first: &str| environment(Path::new("/lib/agent.so"), "/proc/1/fd/3", first.as_ref());
        let with = |first: &str, start: &str| {
            let variables = variables(first).unwrap();
            let found = variables.iter().filter(|variable| variable.as_bytes().starts_with(start.as_bytes()));
            found.map(|variable| variable.to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        assert_eq!(with("", "SWEETSPOT_AGENT="), ["SWEETSPOT_AGENT=/proc/1/fd/3"]);
        assert_eq!(with("", "LD_PRELOAD=").len(), 1);
        assert!(with("", "LD_PRELOAD=")[0].ends_with("/lib/agent.so"));
        assert!(with("libasan.so.8", "LD_PRELOAD=")[0].ends_with("libasan.so.8:/lib/agent.so"));
        assert!(!with("", "PATH=").is_empty());
        assert!(environment(Path::new("/a b/agent.so"), "", "".as_ref()).is_err());
    }

    #[test]
    fn programs_that_nothing_can_be_preloaded_into_are_told_apart() {
        assert_eq!(loaded_before(Path::new("/bin/sh")), Ok(OsString::new()));
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script");
        std::fs::write(&script, "#! /bin/sh -e\nexit 0\n").unwrap();
        assert_eq!(loaded_before(&script), Ok(OsString::new()));
        let other = folder.path().join("other");
        std::fs::write(&other, b"\x7fELF").unwrap();
        assert_eq!(loaded_before(&other), Err("was built for another processor"));
        std::fs::write(&script, format!("#!{}\n", other.display())).unwrap();
        assert_eq!(loaded_before(&script), Err("was built for another processor"));
    }
}
