//! The service as an operator meets it: targets that come and go, windows that are kept, settings that change, and bad days.
//! Live, as root.

#![allow(clippy::print_stderr, reason = "a test that skips says why")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tests::attempts::attempts;
use tests::daemon::{Daemon, monotonic_ms, span_ms};
use tests::ends::{Life, ensure_sound};
use tests::guards::{Deaf, Running, SmallDisk};
use tests::privileged;
use tests::programs::{copy_program, program};
use tests::run::{Sweetspot, run, start, wait_until, wait_until_told};

/// The two clocks are read one after the other, with a neighbour's turn in between, and one of them is slewed. A tick that is missing is
/// a tenth of a second.
const CLOCKS_MS: u64 = 20;

mod ends;
mod names;
mod sums;
mod targets;
mod windows;

/// A program of known functions under a path of its own, so that no other test's is taken for it.
struct Busy {
    folder: TempDir,
    name: String,
}

impl Busy {
    fn new() -> Result<Busy> {
        Busy::of("mix_nofp")
    }

    fn of(build: &str) -> Result<Busy> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let name = format!("busy{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let folder = tempfile::tempdir()?;
        copy_program(&program(build)?, &folder.path().join(&name))?;
        Ok(Busy { folder, name })
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join(&self.name)
    }

    fn start(&self) -> Result<Running> {
        start(Command::new(self.path()).args(["--cpu", "300"]))
    }

    /// A section of the settings that is this program, with more lines.
    fn section(&self, name: &str, more: &str) -> String {
        format!("[[target]]\nname = {name:?}\nexecutable = {:?}\n{more}\n", self.path())
    }
}

/// The spans of a target's windows, in order.
fn windows(daemon: &Daemon, target: &str) -> Result<Vec<(u64, u64)>> {
    let of_target = |path: &&PathBuf| path.to_string_lossy().contains(&format!("_{target}_"));
    let mut spans =
        daemon.files()?.iter().filter(of_target).map(|path| span_ms(path)).collect::<Result<Vec<_>>>()?;
    spans.sort_unstable();
    Ok(spans)
}

fn ensure_gapless(spans: &[(u64, u64)]) -> Result<()> {
    for pair in spans.windows(2) {
        ensure!(
            pair[0].1.abs_diff(pair[1].0) <= CLOCKS_MS,
            "a gap or an overlap between {:?} and {:?}",
            pair[0],
            pair[1]
        );
    }
    Ok(())
}

fn wait_for_windows(daemon: &Daemon, target: &str, count: usize) -> Result<()> {
    wait_until("windows", || windows(daemon, target).is_ok_and(|spans| spans.len() >= count))
}

/// CPU time of a program's functions in a target's profile (s).
fn work_s(daemon: &Daemon, busy: &Busy, target: &str) -> Result<f64> {
    Ok(work_and_all_s(daemon, busy, target)?.0)
}

/// The same, and the CPU time of all functions (s).
fn work_and_all_s(daemon: &Daemon, busy: &Busy, target: &str) -> Result<(f64, f64)> {
    let ended =
        daemon.report(&["--from", "-1h", "--target", target, "--format", "json"])?.expect_status(0)?;
    let profile: Value = serde_json::from_str(&ended.stdout)?;
    let functions = profile["functions"].as_array().context("functions")?;
    let is_its = |function: &&Value| {
        function["module"] == busy.name.as_str()
            && function["name"].as_str().is_some_and(|name| name.starts_with("work_"))
    };
    let cpu_s = |function: &Value| function["cpu_s"].as_f64();
    let work_s = functions.iter().filter(is_its).filter_map(cpu_s).sum();
    Ok((work_s, functions.iter().filter_map(cpu_s).sum()))
}

/// Ends a daemon in which "busy" is sampled, and starts it again. Returns the windows until its end, the one that was open then among
/// them: those that had no names by then get them from the next daemon.
fn restarted(
    daemon: &mut Daemon,
    found: impl Fn(&Daemon) -> Result<Vec<(u64, u64)>>,
) -> Result<Vec<(u64, u64)>> {
    let samples = |daemon: &Daemon| Ok::<_, anyhow::Error>(daemon.target("busy")?["samples"].as_u64());
    // The open window may be a few milliseconds old, and empty.
    let (sampled, then_ms) = (samples(daemon)?, monotonic_ms()?);
    wait_until_told("samples in the open window", || samples(daemon).is_ok_and(|samples| samples > sampled))?;
    daemon.stop(Signal::SIGTERM)?.expect_status(0)?;
    let to_ms = monotonic_ms()?;
    daemon.start_again()?;
    let until_then = || -> Result<Vec<(u64, u64)>> {
        Ok(found(daemon)?.into_iter().filter(|(begin, _)| *begin < to_ms).collect())
    };
    wait_until("the names of all windows", || {
        let has_open_one = |spans: &Vec<(u64, u64)>| spans.iter().any(|(_, end)| end + CLOCKS_MS >= then_ms);
        until_then().is_ok_and(|spans| has_open_one(&spans) && ensure_gapless(&spans).is_ok())
    })
    .with_context(|| {
        format!("the window that was open at {then_ms} ms and those before: {:?}", until_then())
    })?;
    until_then()
}

fn find(name: &str) -> Result<PathBuf> {
    let found = tests::programs::find_in_path(name).with_context(|| format!("there is no {name}"))?;
    Ok(fs::canonicalize(found)?)
}
