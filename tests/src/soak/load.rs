//! The targets: programs of different kinds, whose load changes in steps, and which are killed, stopped and restarted.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use fastrand::Rng;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use super::record::{Record, monotonic_ms};
use crate::guards::Running;
use crate::programs::{copy_program, find_in_path, program, source};

/// How long a target that was killed stays away.
const AWAY: Duration = Duration::from_secs(3);
/// The service that is restarted, and the one whose load comes in bouts.
const RESTARTING: &str = "restarting";
const BURSTY: &str = "bursty";

/// What a target runs, and the load that it may have (per cent of a CPU, or as `load.c` says).
struct Kind {
    name: &'static str,
    words: &'static [&'static str],
    levels: &'static [u32],
}

const SHARES: &[u32] = &[0, 2, 5, 10, 20];
const KINDS: &[Kind] = &[
    Kind { name: "steady", words: &["busy"], levels: &[10, 20, 30] },
    Kind { name: "python", words: &[], levels: SHARES },
    Kind { name: RESTARTING, words: &["busy"], levels: SHARES },
    Kind { name: "threads", words: &["threads"], levels: SHARES },
    Kind { name: "churn", words: &["churn"], levels: &[0, 50, 50] },
    Kind { name: "sleeper", words: &["86400"], levels: &[0] },
    Kind { name: "mappings", words: &["mappings"], levels: &[0, 10, 100] },
    Kind { name: BURSTY, words: &["busy"], levels: &[10, 20, 40] },
    Kind { name: "named", words: &["busy"], levels: SHARES },
];
/// The target of all other processes.
pub(super) const REST: &str = "rest";

/// One of them.
struct Target {
    kind: &'static Kind,
    program: PathBuf,
    level: u32,
    running: Option<Running>,
    starts_ms: u64,
}

/// All of them.
pub(super) struct Load {
    folder: PathBuf,
    targets: Vec<Target>,
    record: Record,
    restart_ms: u64,
}

impl Load {
    /// Starts them.
    pub(super) fn start(folder: &Path, record: Record) -> Result<Load> {
        let folder = folder.join("programs");
        fs::create_dir_all(&folder)?;
        let mut load = Load { folder, targets: Vec::new(), record, restart_ms: 0 };
        for kind in KINDS {
            let program = load.make(kind)?;
            fs::write(load.level_file(kind.name), "0")?;
            load.targets.push(Target { kind, program, level: 0, running: None, starts_ms: 0 });
        }
        load.start_due()?;
        Ok(load)
    }

    fn make(&self, kind: &Kind) -> Result<PathBuf> {
        let (from, to) = match kind.name {
            "python" => (source("load.py"), self.folder.join("python.py")),
            "sleeper" => {
                let sleep = find_in_path("sleep").context("there is no sleep")?;
                (fs::canonicalize(sleep)?, self.folder.join("sleeper"))
            }
            name => (program("load")?, self.folder.join(format!("soak-{name}"))),
        };
        copy_program(&from, &to)?;
        Ok(to)
    }

    fn level_file(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.level"))
    }

    /// The sections of the settings.
    pub(super) fn sections(&self) -> String {
        let mut text = String::new();
        for target in &self.targets {
            let (name, path) = (target.kind.name, &target.program);
            let which = match name {
                "python" => format!("command = '{}'", path.display()),
                "named" => "process = \"^soak-named$\"".to_owned(),
                _ => format!("executable = {path:?}"),
            };
            text += &format!("[[target]]\nname = {name:?}\n{which}\nlabels = {{ soak = \"yes\" }}\n\n");
        }
        text + &format!("[[target]]\nname = {REST:?}\neverything = true\n")
    }

    /// Other levels for all, at random.
    pub(super) fn step(&mut self, random: &mut Rng) -> Result<()> {
        for at in 0..self.targets.len() {
            let levels = self.targets[at].kind.levels;
            self.set(at, levels[random.usize(..levels.len())])?;
        }
        let levels: Vec<u32> = self.targets.iter().map(|target| target.level).collect();
        self.record.tell("levels", json!({ "levels": levels }));
        Ok(())
    }

    fn set(&mut self, at: usize, level: u32) -> Result<()> {
        self.targets[at].level = level;
        Ok(fs::write(self.level_file(self.targets[at].kind.name), level.to_string())?)
    }

    /// Carries out what is scheduled: bouts, restarts, and the return of killed targets.
    pub(super) fn tick(&mut self, random: &mut Rng) -> Result<()> {
        let now_ms = monotonic_ms();
        let pause = (now_ms / 10_000).is_multiple_of(2);
        let bursty = self.find(BURSTY)?;
        let level = if pause { 0 } else { self.targets[bursty].level };
        fs::write(self.level_file(BURSTY), level.to_string())?;
        if now_ms >= self.restart_ms {
            if self.restart_ms > 0 {
                self.kill(RESTARTING)?;
            }
            self.restart_ms = now_ms + random.u64(20_000..40_000);
        }
        self.start_due()
    }

    fn start_due(&mut self) -> Result<()> {
        let now_ms = monotonic_ms();
        let folder = self.folder.clone();
        for target in &mut self.targets {
            if target.running.is_some() || now_ms < target.starts_ms {
                continue;
            }
            let name = target.kind.name;
            let mut command = match name {
                "python" => {
                    let mut python = Command::new("python3");
                    python.arg(&target.program);
                    python
                }
                _ => Command::new(&target.program),
            };
            command.args(target.kind.words);
            if name != "sleeper" {
                command.arg(folder.join(format!("{name}.level")));
            }
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let running = Running::start(&mut command)?;
            self.record.tell("target_started", json!({ "target": name, "pid": running.id() }));
            target.running = Some(running);
        }
        Ok(())
    }

    fn find(&self, name: &str) -> Result<usize> {
        self.targets.iter().position(|target| target.kind.name == name).context("no such target")
    }

    /// Kills one; it comes back soon.
    pub(super) fn kill(&mut self, name: &str) -> Result<()> {
        let at = self.find(name)?;
        self.record.tell("target_killed", json!({ "target": name }));
        self.targets[at].running = None; // which kills it
        self.targets[at].starts_ms = monotonic_ms() + AWAY.as_millis() as u64;
        Ok(())
    }

    /// Sends one a signal.
    pub(super) fn signal(&self, name: &str, signal: Signal) -> Result<()> {
        if let Some(running) = &self.targets[self.find(name)?].running {
            kill(Pid::from_raw(running.id() as i32), signal)?;
            self.record.tell("target_signalled", json!({ "target": name, "signal": signal.as_str() }));
        }
        Ok(())
    }

    /// A target that may be killed or stopped.
    pub(super) fn any(&self, random: &mut Rng) -> &'static str {
        self.targets[random.usize(..self.targets.len())].kind.name
    }
}
