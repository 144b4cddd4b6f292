//! Test suites of other projects, run alone and while they are sampled.

mod read;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::programs::find_in_path;
use crate::run::{Ended, Sweetspot, finish_within, start};
use crate::stats::{Stats, Summary};

/// No suite takes longer.
const PATIENCE: Duration = Duration::from_secs(1200);
/// Of CPython's own tests, those that deal with signals, processes, threads and limits.
const PYTHON: [&str; 10] = [
    "test_signal",
    "test_subprocess",
    "test_threading",
    "test_os",
    "test_posix",
    "test_faulthandler",
    "test_fork1",
    "test_threadsignals",
    "test_wait4",
    "test_resource",
];
/// Of stress-ng's, the same.
const STRESSORS: [&str; 24] = [
    "clone",
    "context",
    "exec",
    "fork",
    "futex",
    "itimer",
    "kill",
    "longjmp",
    "mlock",
    "poll",
    "pthread",
    "seccomp",
    "sigabrt",
    "sigchld",
    "sigfd",
    "sigfpe",
    "signal",
    "sigpending",
    "sigq",
    "sigrt",
    "sigsegv",
    "sigsuspend",
    "timer",
    "vfork",
];
/// Of Redis's, those that do not take minutes; `--redis-all` takes all.
const REDIS: [&str; 12] = [
    "unit/type/string",
    "unit/type/list",
    "unit/type/hash",
    "unit/type/zset",
    "unit/expire",
    "unit/scripting",
    "unit/multi",
    "unit/pubsub",
    "unit/other",
    "unit/lazyfree",
    "integration/rdb",
    "integration/aof",
];

/// The verdict on the failures of several rounds.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Blame {
    /// Tests that failed at least twice more often while they were sampled.
    pub ours: BTreeSet<String>,
    /// Those that did so once more.
    pub doubtful: BTreeSet<String>,
}

/// Compares failures by their counts, over as many rounds alone as sampled; after one round, any new failure counts against sweetspot.
pub fn blame(alone: &[BTreeSet<String>], sampled: &[BTreeSet<String>]) -> Blame {
    let enough = sampled.len().min(2);
    let count =
        |rounds: &[BTreeSet<String>], test| rounds.iter().filter(|failed| failed.contains(test)).count();
    let mut found = Blame::default();
    for test in sampled.iter().flatten() {
        match count(sampled, test).saturating_sub(count(alone, test)) {
            0 => continue,
            more if more >= enough => found.ours.insert(test.clone()),
            _ => found.doubtful.insert(test.clone()),
        };
    }
    found
}

/// A command that runs tests and says how they went.
pub struct Suite {
    /// What it is called.
    pub name: String,
    words: Vec<String>,
    folder: Option<PathBuf>,
    environment: Vec<(&'static str, String)>,
    read: fn(&Ended) -> Outcome,
}

/// How its tests went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Tests that were run.
    pub run: usize,
    /// Those that failed; a suite that did not come to its end has failed as `(the suite)`.
    pub failed: BTreeSet<String>,
}

impl Suite {
    fn new(name: &str, words: &[&str], read: fn(&Ended) -> Outcome) -> Self {
        let words = words.iter().map(ToString::to_string).collect();
        Self { name: name.to_owned(), words, folder: None, environment: Vec::new(), read }
    }

    fn inside(mut self, folder: &Path) -> Self {
        self.folder = Some(folder.to_owned());
        self
    }

    fn with(mut self, name: &'static str, value: &str) -> Self {
        self.environment.push((name, value.to_owned()));
        self
    }

    /// Runs it by itself.
    pub fn alone(&self) -> Result<Outcome> {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]);
        Ok((self.read)(&self.finish(command)?))
    }

    /// Runs it while it is sampled at the highest rate that there is.
    pub fn sampled(&self) -> Result<(Outcome, Summary)> {
        let options = ["--backend", "timer-signal", "--rate", "250", "--quiet"];
        let sweetspot = Sweetspot::new().options(&options);
        let mut words = sweetspot.outputs();
        words.push("--".to_owned());
        words.extend(self.words.iter().cloned());
        let ended = self.finish(sweetspot.command("record", &words))?;
        let stats = std::fs::read_to_string(sweetspot.file("stats.jsonl"))
            .with_context(|| format!("{} was not sampled: {ended:?}", self.name))?;
        Ok(((self.read)(&ended), Stats::parse(&stats)?.summary))
    }

    fn finish(&self, mut command: Command) -> Result<Ended> {
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        command.envs(self.environment.iter().map(|(name, value)| (*name, value)));
        finish_within(start(&mut command)?, PATIENCE).with_context(|| self.name.clone())
    }
}

/// CPython's own tests, of the `python3` that is in the path.
///
/// # Errors
///
/// If there is none, or it came without its tests.
pub fn python() -> Result<Vec<Suite>> {
    let say = "import sys, test.support; print(sys.executable)";
    let asked = Command::new("python3").args(["-c", say]).output().context("there is no python3")?;
    ensure!(asked.status.success(), "this python3 came without its tests (libpython3-testsuite)");
    let python = String::from_utf8(asked.stdout)?.trim().to_owned();
    let suite = |test: &&str| {
        let words = [&python, "-m", "test", "-v", test];
        Suite::new(&format!("python {test}"), &words, read::python).with("PYTHONDONTWRITEBYTECODE", "1")
    };
    Ok(PYTHON.iter().map(suite).collect())
}

/// Redis's own tests, in a folder where it was built from its source.
///
/// # Errors
///
/// If there is none, or nothing to run them with.
pub fn redis(folder: &Path, all: bool) -> Result<Vec<Suite>> {
    let folder = folder.canonicalize().context("--redis takes a folder where redis was built")?;
    ensure!(folder.join("src/redis-server").is_file(), "redis was not built there (make)");
    let tcl =
        find_in_path("tclsh8.6").or_else(|| find_in_path("tclsh")).context("there is no tclsh (tcl)")?;
    let tcl = tcl.to_string_lossy();
    let base = [&tcl, "tests/test_helper.tcl", "--clients", "2", "--durable"];
    if all {
        return Ok(vec![Suite::new("redis", &base, read::redis).inside(&folder)]);
    }
    let suite = |test: &&str| {
        let words = [&base[..], &["--single", test]].concat();
        Suite::new(&format!("redis {test}"), &words, read::redis).inside(&folder)
    };
    Ok(REDIS.iter().map(suite).collect())
}

/// Bash's own tests, in a folder where it was built from its source, its tests' programs too.
///
/// # Errors
///
/// If there is none.
pub fn bash(folder: &Path) -> Result<Vec<Suite>> {
    let folder = folder.canonicalize().context("--bash takes a folder where bash was built")?;
    let built = ["bash", "recho", "zecho", "printenv"].iter().all(|program| folder.join(program).is_file());
    ensure!(built, "bash and its tests' programs were not built there (make; make tests)");
    let (shell, build) = (folder.join("bash"), folder.to_string_lossy());
    let path = format!("{build}:.:{}", std::env::var("PATH")?);
    let suite = Suite::new("bash", &["sh", "./run-all"], read::bash).inside(&folder.join("tests"));
    Ok(vec![suite.with("THIS_SH", &shell.to_string_lossy()).with("BUILD_DIR", &build).with("PATH", &path)])
}

/// stress-ng's tests of signals, processes, threads and limits, with its self-checks.
///
/// # Errors
///
/// If it is not installed.
pub fn stress() -> Result<Vec<Suite>> {
    find_in_path("stress-ng").context("there is no stress-ng (stress-ng)")?;
    let suite = |name: &&str| {
        let (one, count) = (format!("--{name}"), "2");
        let words = ["stress-ng", &one, count, "--timeout", "3", "--verify", "--metrics-brief", "--oomable"];
        Suite::new(&format!("stress-ng {name}"), &words, read::stress)
    };
    Ok(STRESSORS.iter().map(suite).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_more_often_while_it_is_sampled_is_ours() {
        let rounds = |all: &[&[&str]]| -> Vec<BTreeSet<String>> {
            all.iter().map(|failed| failed.iter().map(ToString::to_string).collect()).collect()
        };
        let alone = rounds(&[&["bad"], &["bad", "moody"], &["bad", "shy"]]);
        let sampled =
            rounds(&[&["bad", "ours", "half", "moody"], &["bad", "ours"], &["bad", "ours", "half", "once"]]);
        let found = blame(&alone, &sampled);
        assert!(found.ours.iter().eq(["half", "ours"]), "{found:?}");
        assert!(found.doubtful.iter().eq(["once"]), "{found:?}");
        assert_eq!(blame(&rounds(&[&["bad"]]), &rounds(&[&["bad"]])), Blame::default());
    }
}
