//! Runs without perf events: whether that is the way, what is preloaded into the command, and which commands it cannot be
//! preloaded into.

use std::ffi::{CString, OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use config::{Backend, SamplingSettings, Unwind};
use object::read::elf::{FileHeader, ProgramHeader};
use profiler_core::attach::AttachMode;
use profiler_core::rate::Dither;
use profiler_core::unwind::copy::CopySize;
use profiler_core::unwind::method::Method;

use super::{Setup, explain};
use crate::calibrate;
use crate::failure::usage;
use crate::objects::Symbols;
use crate::sampler::access::{Access, OpenError, probe_access};
use crate::sampler::perf::ClockSettings;
use crate::sampler::timer_signal::{Host, TimerSampler};
use crate::sys::{clock, signal_cost};
use crate::terminal;

/// The agent's file.
const LIBRARY: &str = "libsweetspot_agent.so";
/// Where it is beside the program, and in any case.
const PLACES: [&str; 2] = ["", "../lib/sweetspot"];
const INSTALLED: &str = "/usr/lib/sweetspot";
/// What the dynamic linker loads into a program before its own libraries.
const PRELOAD: &str = "LD_PRELOAD";
/// A script may name another script as its interpreter, so often.
const SCRIPTS: usize = 4;
/// Much more than the headers of any program.
const HEADERS_BYTES: u64 = 64 << 10;

/// What a machine offers, and which of it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The kernel's perf events.
    Perf,
    /// Timer signals, by the agent in this file.
    Timers(PathBuf),
}

/// The way to sample a command.
///
/// # Errors
///
/// What is not permitted or missing, and what to do.
pub(crate) fn choose(sampling: &SamplingSettings) -> Result<Way> {
    let find = || find_library().ok_or_else(explain::no_agent);
    match sampling.backend {
        Backend::Perf => Ok(Way::Perf),
        Backend::TimerSignal => Ok(Way::Timers(find()?)),
        Backend::Auto => match probe_access() {
            Err(error @ OpenError::NotPermitted(_)) if !wants_events(sampling) => {
                find_library().map(Way::Timers).ok_or_else(|| explain::open(error, None))
            }
            _ => Ok(Way::Perf),
        },
    }
}

/// The way to sample processes that run: they are not changed unless the person says so.
///
/// # Errors
///
/// What is not permitted or missing, and what to do.
pub(crate) fn choose_for(pids: &[u32], is_group: bool, sampling: &SamplingSettings) -> Result<Way> {
    let one = (!is_group).then_some(pids).and_then(|pids| <[u32; 1]>::try_from(pids).ok());
    match (sampling.backend, one) {
        (Backend::Perf, _) => Ok(Way::Perf),
        (Backend::TimerSignal, None) => {
            Err(usage("--backend timer-signal samples one process at a time; give its id"))
        }
        (Backend::TimerSignal, Some(_)) => Ok(Way::Timers(find_library().ok_or_else(explain::no_agent)?)),
        (Backend::Auto, one) => match (probe_access(), one, find_library()) {
            (Err(OpenError::NotPermitted(cause)), Some([pid]), Some(library)) if !wants_events(sampling) => {
                match terminal::agrees(&explain::may_load(&cause, pid)) {
                    true => Ok(Way::Timers(library)),
                    false => Err(explain::could_load(&cause, pid)),
                }
            }
            _ => Ok(Way::Perf),
        },
    }
}

/// Whether the person asks for what events alone can do.
fn wants_events(sampling: &SamplingSettings) -> bool {
    let by_threads = matches!(sampling.attach_mode, config::AttachMode::Auto | config::AttachMode::Task);
    !by_threads || sampling.unwind == Unwind::FramePointers
}

/// Where the agent is: beside this program, or where packages put it.
pub(crate) fn find_library() -> Option<PathBuf> {
    let program = std::env::current_exe().ok();
    let beside = program.as_deref().and_then(Path::parent);
    let near = beside.into_iter().flat_map(|folder| PLACES.map(|place| folder.join(place)));
    let candidates = near.chain([PathBuf::from(INSTALLED)]).map(|folder| folder.join(LIBRARY));
    candidates.filter(|file| file.is_file()).find_map(|file| file.canonicalize().ok())
}

/// What a run by timers is set up with before the command is.
pub(crate) struct Inside {
    pub(crate) setup: Setup,
    pub(crate) sampler: Box<TimerSampler>,
    /// The command's environment.
    pub(crate) environment: Vec<CString>,
}

impl Inside {
    /// Prepares to sample `program` by the agent in `library`.
    ///
    /// # Errors
    ///
    /// If it cannot be preloaded, or there is no memory for the samples.
    pub(crate) fn begin(sampling: &SamplingSettings, library: &Path, program: Option<&Path>) -> Result<Self> {
        if let Some(reason) = program.and_then(refusal) {
            return Err(explain::not_preloadable(program.unwrap_or(Path::new("")), reason));
        }
        let setup = setup(sampling);
        let sampler = TimerSampler::new(clocks(), Dither::new(setup.seed), setup.seed).map_err(no_memory)?;
        let environment = environment(library, &sampler.place())?;
        Ok(Self { setup, sampler: Box::new(sampler), environment })
    }
}

/// What a run by timers in a process that runs already is set up with.
///
/// # Errors
///
/// If there is no memory for the samples.
pub(crate) fn within(sampling: &SamplingSettings, host: Host) -> Result<(Setup, Box<TimerSampler>)> {
    let setup = setup(sampling);
    let sampler = TimerSampler::within(host, clocks(), Dither::new(setup.seed), setup.seed);
    Ok((setup, Box::new(sampler.map_err(no_memory)?)))
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
        clock_tick_ns: Some(signal_cost::tick_ns()),
        symbols: Symbols::new(sampling.symbol_memory.get()),
    }
}

/// Before the controller has chosen.
fn clocks() -> ClockSettings {
    ClockSettings {
        period_ns: 1_000_000_000,
        method: Method::Dwarf,
        stack_bytes: CopySize::default().bytes(),
        mappings: true,
    }
}

/// Ours, with the agent preloaded before what is preloaded anyway.
fn environment(library: &Path, place: &str) -> Result<Vec<CString>> {
    let path = library.as_os_str();
    if path.as_bytes().iter().any(|byte| matches!(byte, b' ' | b':')) {
        return Err(anyhow!(
            "{} cannot be preloaded: its path holds a blank or a colon; move it",
            library.display()
        ));
    }
    let preload = std::env::var_os(PRELOAD).filter(|before| !before.is_empty());
    let preload = preload.map_or(path.to_owned(), |before| join(path, ":", &before));
    let others = std::env::vars_os().filter(|(name, _)| name != PRELOAD && name != agent_memory::PLACE);
    let ours = [(OsString::from(PRELOAD), preload), (agent_memory::PLACE.into(), place.into())];
    let variables = others.chain(ours).map(|(name, value)| join(&name, "=", &value).into_vec());
    Ok(variables.filter_map(|variable| CString::new(variable).ok()).collect())
}

fn join(first: &OsStr, between: &str, second: &OsStr) -> OsString {
    let mut joined = first.to_owned();
    joined.push(between);
    joined.push(second);
    joined
}

/// Why nothing can be preloaded into a program; `None` where it can, or nobody knows.
fn refusal(program: &Path) -> Option<&'static str> {
    let mut program = program.to_owned();
    for _ in 0..SCRIPTS {
        let file = std::fs::File::open(&program).ok()?;
        if file.metadata().is_ok_and(|meta| meta.mode() & (libc::S_ISUID | libc::S_ISGID) != 0) {
            return Some("runs with the rights of another user or group");
        }
        let mut head = Vec::new();
        file.take(HEADERS_BYTES).read_to_end(&mut head).ok()?;
        match head.strip_prefix(b"#!") {
            None => return refusal_of(&head),
            Some(line) => {
                let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
                program = PathBuf::from(OsStr::from_bytes(words.next()?));
            }
        }
    }
    None
}

/// The same for the first bytes of its file.
fn refusal_of(head: &[u8]) -> Option<&'static str> {
    const OTHER: &str = "was built for another processor";
    let Ok(header) = object::elf::FileHeader64::<object::Endianness>::parse(head) else {
        return head.starts_with(b"\x7fELF").then_some(OTHER);
    };
    let endian = header.endian().ok()?;
    let ours = if cfg!(target_arch = "aarch64") { object::elf::EM_AARCH64 } else { object::elf::EM_X86_64 };
    if header.e_machine(endian) != ours {
        return Some(OTHER);
    }
    let segments = header.program_headers(endian, head).ok()?;
    let interpreter = segments.iter().find_map(|segment| segment.interpreter(endian, head).ok().flatten());
    match interpreter {
        None => Some("is linked statically"),
        Some(path) if path.windows(7).any(|part| part == b"ld-musl") => Some("uses musl and not glibc"),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_goes_before_what_is_preloaded_and_its_place_is_told_once() {
        let variables = environment(Path::new("/lib/agent.so"), "/proc/1/fd/3").unwrap();
        let with = |start: &str| {
            let found = variables.iter().filter(|variable| variable.as_bytes().starts_with(start.as_bytes()));
            found.map(|variable| variable.to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        assert_eq!(with("SWEETSPOT_AGENT="), ["SWEETSPOT_AGENT=/proc/1/fd/3"]);
        assert_eq!(with("LD_PRELOAD=").len(), 1);
        assert!(with("LD_PRELOAD=")[0].starts_with("LD_PRELOAD=/lib/agent.so"));
        assert!(!with("PATH=").is_empty());
        assert!(environment(Path::new("/a b/agent.so"), "").is_err());
    }

    #[test]
    fn programs_that_nothing_can_be_preloaded_into_are_told_apart() {
        assert_eq!(refusal(Path::new("/bin/sh")), None);
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script");
        std::fs::write(&script, "#! /bin/sh -e\nexit 0\n").unwrap();
        assert_eq!(refusal(&script), None);
        let shell = std::fs::read("/bin/sh").unwrap();
        let changed = |at: usize, to: u8| {
            let mut other = shell.clone();
            other[at] = to;
            refusal_of(&other)
        };
        assert_eq!(changed(18, 0xf3), Some("was built for another processor"));
        assert_eq!(changed(4, 1), Some("was built for another processor"));
        assert_eq!(changed(56, 0), Some("is linked statically"), "no segments");
        assert_eq!(refusal_of(b"\x7fELF"), Some("was built for another processor"));
        assert_eq!(refusal_of(b"no program"), None);
    }
}
