//! Sweetspot and other profilers: how each is attached to a running process, and what it records.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::folded::{Folded, Stack};
use crate::programs::find_in_path;
use crate::run::sweetspot;
use crate::stats::Stats;

/// A profiler that can be attached to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profiler {
    /// This one.
    Sweetspot,
    /// `perf record` without stacks: little more than the interrupt.
    Bare,
    /// `perf record` with copies of the stack.
    Dwarf,
    /// `samply record`.
    Samply,
}

/// What a recording holds.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// Samples in it.
    pub samples: u64,
    /// Samples the kernel dropped.
    pub lost: u64,
    /// Size of what was written.
    pub bytes: u64,
    /// Of the profiler's CPU time, the part while it sampled, where it says so (s).
    pub sampling_cpu_s: Option<f64>,
    /// Its stacks; names where the profiler gives some. Of a perf recording, only those of a tenth of the time.
    pub stacks: Folded,
}

impl Profiler {
    /// All of them.
    pub const ALL: [Profiler; 4] = [Profiler::Sweetspot, Profiler::Bare, Profiler::Dwarf, Profiler::Samply];

    /// Its name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Profiler::Sweetspot => "sweetspot",
            Profiler::Bare => "perf, no stacks",
            Profiler::Dwarf => "perf, dwarf",
            Profiler::Samply => "samply",
        }
    }

    /// How to get it where it is missing.
    pub fn how_to_get(self) -> &'static str {
        match self {
            Profiler::Sweetspot => "cargo build --release",
            Profiler::Bare | Profiler::Dwarf => "apt-get install linux-perf",
            Profiler::Samply => "cargo install --locked samply",
        }
    }

    /// Its executable.
    pub fn find(self) -> Option<PathBuf> {
        match self {
            Profiler::Sweetspot => Some(sweetspot().to_path_buf()),
            Profiler::Bare | Profiler::Dwarf => find_in_path("perf").or_else(newest_numbered_perf),
            Profiler::Samply => find_in_path("samply"),
        }
    }

    /// Attaches to a process until it exits and leaves a recording in a folder. Only sweetspot symbolizes
    /// here, before it ends.
    pub fn attach(self, pid: u32, rate_hz: u32, folder: &Path) -> Result<Command> {
        let mut command = self.sample(pid, folder)?;
        let rate = rate_hz.to_string();
        match self {
            Profiler::Sweetspot => command.args(["--rate", &rate]),
            Profiler::Bare => command.args(["-F", &rate]),
            Profiler::Dwarf => command.args(["-F", &rate, "--call-graph", "dwarf"]),
            Profiler::Samply => command.args(["--rate", &rate]),
        };
        Ok(command)
    }

    /// The same at its default rate, or at 99 a second where it has none.
    pub fn attach_as_usual(self, pid: u32, folder: &Path) -> Result<Command> {
        match self {
            Profiler::Sweetspot => self.sample(pid, folder),
            _ => self.attach(pid, 99, folder),
        }
    }

    fn sample(self, pid: u32, folder: &Path) -> Result<Command> {
        let mut command = Command::new(self.find().with_context(|| format!("no {}", self.name()))?);
        let pid = pid.to_string();
        command.current_dir(folder);
        match self {
            Profiler::Sweetspot => command
                .args(["attach", &pid, "--duration", "300s", "--stats", "stats.jsonl"])
                .args(["-o", "profile.pb.gz", "-o", "profile.folded"]),
            Profiler::Bare | Profiler::Dwarf => {
                command.args(["record", "-e", "cpu-clock", "-o", "perf.data", "-p", &pid])
            }
            Profiler::Samply => command.args(["record", "--save-only", "-o", "profile.json.gz", "-p", &pid]),
        };
        Ok(command)
    }

    /// Reads what it left in the folder and printed.
    pub fn read(self, folder: &Path, stderr: &str) -> Result<Recording> {
        match self {
            Profiler::Sweetspot => read_sweetspot(folder),
            Profiler::Bare => read_perf(&self.find().context("no perf")?, folder),
            Profiler::Dwarf => {
                let perf = self.find().context("no perf")?;
                Ok(Recording { stacks: read_perf_stacks(&perf, folder)?, ..read_perf(&perf, folder)? })
            }
            Profiler::Samply => read_samply(&folder.join("profile.json.gz"), stderr),
        }
    }
}

/// Debian's wrapper looks for the perf of the running kernel; one of another version will do.
fn newest_numbered_perf() -> Option<PathBuf> {
    let entries = fs::read_dir("/usr/bin").ok()?.flatten();
    let numbered =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("perf_"));
    entries.map(|entry| entry.path()).filter(numbered).max()
}

fn read_sweetspot(folder: &Path) -> Result<Recording> {
    let summary = Stats::parse(&fs::read_to_string(folder.join("stats.jsonl"))?)?.summary;
    Ok(Recording {
        samples: summary.samples,
        lost: summary.lost,
        bytes: fs::metadata(folder.join("profile.pb.gz"))?.len(),
        sampling_cpu_s: Some(summary.self_cpu_s + summary.setup_cpu_s),
        stacks: Folded::parse(&fs::read_to_string(folder.join("profile.folded"))?)?,
    })
}

fn read_perf(perf: &Path, folder: &Path) -> Result<Recording> {
    let output =
        Command::new(perf).args(["report", "--stats", "-i", "perf.data"]).current_dir(folder).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let count = |event: &str| {
        let line = text.lines().rfind(|line| line.trim_start().starts_with(event));
        line.and_then(|line| line.split_whitespace().find_map(|word| word.parse().ok())).unwrap_or(0)
    };
    Ok(Recording {
        samples: count("SAMPLE events:"),
        lost: count("LOST_SAMPLES events:").max(count("LOST events:")),
        bytes: fs::metadata(folder.join("perf.data"))?.len(),
        ..Recording::default()
    })
}

fn read_perf_stacks(perf: &Path, folder: &Path) -> Result<Folded> {
    let mut script = Command::new(perf);
    script.args(["script", "--no-inline", "-F", "ip,sym", "--time", "45%-55%", "-i", "perf.data"]);
    let output = script.current_dir(folder).output()?;
    Ok(Folded::of_perf_script(&String::from_utf8_lossy(&output.stdout)))
}

/// It prints what was lost in words: `Lost 144 events.`
fn lost_in(stderr: &str) -> u64 {
    let after = stderr.split("Lost ").nth(1);
    after.and_then(|after| after.split(' ').next()?.parse().ok()).unwrap_or(0)
}

fn read_samply(path: &Path, stderr: &str) -> Result<Recording> {
    let mut text = String::new();
    flate2::read::GzDecoder::new(fs::File::open(path)?).read_to_string(&mut text)?;
    let profile: Value = serde_json::from_str(&text)?;
    let threads = profile["threads"].as_array().context("no threads in the profile")?;
    let samples = threads.iter().filter_map(|thread| thread["samples"]["length"].as_u64()).sum();
    let bytes = fs::metadata(path)?.len();
    let stacks = Folded(threads.iter().flat_map(samply_stacks).collect());
    Ok(Recording { samples, lost: lost_in(stderr), bytes, sampling_cpu_s: None, stacks })
}

/// The stacks of a thread; their frames have no names before samply shows them.
fn samply_stacks(thread: &Value) -> Vec<Stack> {
    let prefixes = thread["stackTable"]["prefix"].as_array().map_or(&[][..], Vec::as_slice);
    let parent = |stack: &u64| prefixes.get(*stack as usize).and_then(Value::as_u64);
    let depth = |stack: &Value| std::iter::successors(stack.as_u64(), parent).take(prefixes.len()).count();
    let stacks = thread["samples"]["stack"].as_array().map_or(&[][..], Vec::as_slice);
    stacks.iter().map(|stack| Stack { frames: vec![String::new(); depth(stack)], weight: 1.0 }).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{lost_in, samply_stacks};

    #[test]
    fn stacks_are_read_from_a_table_of_prefixes() {
        let thread = json!({"stackTable": {"prefix": [null, 0, 1]}, "samples": {"stack": [2, 0, null, 9]}});
        let depths: Vec<_> = samply_stacks(&thread).into_iter().map(|stack| stack.frames.len()).collect();
        assert_eq!(depths, [3, 1, 0, 1]);
        let circle = json!({"stackTable": {"prefix": [1, 0]}, "samples": {"stack": [0]}});
        assert_eq!(samply_stacks(&circle)[0].frames.len(), 2);
    }

    #[test]
    fn losses_are_read_from_words() {
        assert_eq!(lost_in("Recording…\nLost 144 events.\n"), 144);
        assert_eq!(lost_in("Recording…\n"), 0);
    }
}
