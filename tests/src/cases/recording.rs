//! One program profiled by each profiler, and its stacks in one form.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::folded::{Folded, Stack};
use crate::peers::Profiler;
use crate::run::{Sweetspot, run};
use crate::stats::Stats;

/// A profiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// This profiler.
    Sweetspot,
    /// `perf record --call-graph dwarf`, with the biggest copy.
    Perf,
    /// `samply record`.
    Samply,
}

/// What a profiler found.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// Samples.
    pub samples: u64,
    /// Their stacks.
    pub stacks: Folded,
    /// For sweetspot: the reported ends of its incomplete stacks.
    pub truncated_by: BTreeMap<String, u64>,
}

impl Peer {
    /// All of them, ours first.
    pub const ALL: [Peer; 3] = [Peer::Sweetspot, Peer::Perf, Peer::Samply];

    /// Its name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Peer::Sweetspot => "sweetspot",
            Peer::Perf => "perf",
            Peer::Samply => "samply",
        }
    }

    fn profiler(self) -> Profiler {
        match self {
            Peer::Sweetspot => Profiler::Sweetspot,
            Peer::Perf => Profiler::Dwarf,
            Peer::Samply => Profiler::Samply,
        }
    }

    /// Its executable, if it is installed.
    pub fn find(self) -> Option<PathBuf> {
        self.profiler().find()
    }

    /// How to get it.
    pub fn how_to_get(self) -> &'static str {
        self.profiler().how_to_get()
    }

    /// Profiles a command from its start to its end.
    pub fn record(self, words: &[String], rate_hz: u32, has_jitdump: bool) -> Result<Recording> {
        match self {
            Peer::Sweetspot => by_sweetspot(words, rate_hz, &[]),
            Peer::Perf => by_perf(&self.find().context("no perf")?, words, rate_hz, has_jitdump),
            Peer::Samply => by_samply(&self.find().context("no samply")?, words, rate_hz),
        }
    }
}

/// Profiles a command with sweetspot, with more options.
pub fn by_sweetspot(words: &[String], rate_hz: u32, options: &[&str]) -> Result<Recording> {
    let rate = rate_hz.to_string();
    let sweetspot = Sweetspot::new().options(&["--rate", &rate]).options(options);
    let mut arguments = sweetspot.outputs();
    arguments.push("--".to_string());
    arguments.extend(words.iter().cloned());
    run(&mut sweetspot.command("record", &arguments))?.expect_status(0)?;
    let stats = Stats::parse(&fs::read_to_string(sweetspot.file("stats.jsonl"))?)?;
    let mut stacks = Folded::parse(&fs::read_to_string(sweetspot.file("profile.folded"))?)?;
    // The first is the command's name.
    stacks.0.iter_mut().for_each(|stack| _ = stack.frames.drain(..1.min(stack.frames.len())));
    let truncated_by = stats.summary.truncated_by.into_iter().filter(|(_, count)| *count > 0).collect();
    Ok(Recording { samples: stats.summary.samples, stacks, truncated_by })
}

/// The stacks of `perf script`, with what is inlined, as it prints them.
fn by_perf(perf: &Path, words: &[String], rate_hz: u32, has_jitdump: bool) -> Result<Recording> {
    let folder = tempfile::tempdir()?;
    let perf = |words: &[&str]| {
        let mut command = Command::new(perf);
        command.args(words).current_dir(folder.path());
        command
    };
    let mut record = perf(&["record", "-e", "cpu-clock", "-F", &rate_hz.to_string(), "--call-graph"]);
    // The clock of jitdumps.
    record.args(["dwarf,61440", "-k", "mono", "-m", "16M", "-o", "perf.data", "--"]);
    run(record.args(words))?.expect_status(0)?;
    if has_jitdump {
        run(&mut perf(&["inject", "--jit", "-i", "perf.data", "-o", "perf.jit.data"]))?.expect_status(0)?;
    }
    let input = if has_jitdump { "perf.jit.data" } else { "perf.data" };
    let mut script = perf(&["script", "--max-stack", "8192", "-F", "ip,sym", "-i", input]);
    let output = run(&mut script)?.expect_status(0)?;
    let stacks = Folded::of_perf_script(&output.stdout);
    Ok(Recording { samples: stacks.0.len() as u64, stacks, ..Recording::default() })
}

fn by_samply(samply: &Path, words: &[String], rate_hz: u32) -> Result<Recording> {
    let folder = tempfile::tempdir()?;
    let mut record = Command::new(samply);
    record.args(["record", "--save-only", "--unstable-presymbolicate", "-o", "profile.json"]);
    record.args(["--rate", &rate_hz.to_string(), "--"]).args(words).current_dir(folder.path());
    run(&mut record)?.expect_status(0)?;
    let read = |name: &str| -> Result<Value> {
        Ok(serde_json::from_str(&fs::read_to_string(folder.path().join(name))?)?)
    };
    let names = Names::of(&read("profile.syms.json")?);
    let profile = read("profile.json")?;
    let stacks: Vec<Stack> =
        list(&profile["threads"]).iter().flat_map(|thread| stacks_of(thread, &profile, &names)).collect();
    Ok(Recording { samples: stacks.len() as u64, stacks: Folded(stacks), ..Recording::default() })
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn number(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|number| usize::try_from(number).ok())
}

/// The names that samply stores beside its profile, by library and relative address: the innermost inlined call first.
struct Names(BTreeMap<(String, u64), Vec<String>>);

impl Names {
    fn of(symbols: &Value) -> Names {
        let strings = list(&symbols["string_table"]);
        let mut names = BTreeMap::new();
        for library in list(&symbols["data"]) {
            let id = plain_id(library["debug_id"].as_str().unwrap_or_default());
            for known in list(&library["known_addresses"]) {
                let symbol = number(&known[1]).and_then(|at| library["symbol_table"].get(at));
                let text = |at: &Value| Some(strings.get(number(at)?)?.as_str()?.to_string());
                let Some((symbol, address)) = symbol.zip(known[0].as_u64()) else { continue };
                let inlined = list(&symbol["frames"]).iter().map(|frame| text(&frame["function"]));
                let mut chain: Vec<String> = inlined.map(Option::unwrap_or_default).collect();
                if chain.is_empty() {
                    chain.extend(text(&symbol["symbol"]));
                }
                names.insert((id.clone(), address), chain);
            }
        }
        Names(names)
    }
}

/// The digits of a library's number, which are written `0A1B-…` and, with its age behind it, `0a1b…0`.
fn plain_id(id: &str) -> String {
    const DIGITS: usize = 32;
    id.chars().filter(char::is_ascii_hexdigit).take(DIGITS).collect::<String>().to_lowercase()
}

fn stacks_of(thread: &Value, profile: &Value, names: &Names) -> Vec<Stack> {
    let prefixes = list(&thread["stackTable"]["prefix"]);
    let frames = list(&thread["stackTable"]["frame"]);
    let parent = |stack: &usize| prefixes.get(*stack).and_then(number);
    let chain = |stack: usize| {
        let frame = frames.get(stack).and_then(number);
        frame.and_then(|frame| frame_names(thread, profile, names, frame)).unwrap_or(vec![String::new()])
    };
    let samples = list(&thread["samples"]["stack"]).iter();
    let stack = |innermost: &Value| {
        let stacks = std::iter::successors(number(innermost), parent).take(prefixes.len());
        let mut frames: Vec<String> = stacks.flat_map(chain).collect();
        frames.reverse();
        Stack { frames, weight: 1.0 }
    };
    samples.filter(|innermost| !innermost.is_null()).map(stack).collect()
}

fn frame_names(thread: &Value, profile: &Value, names: &Names, frame: usize) -> Option<Vec<String>> {
    let function = number(&thread["frameTable"]["func"][frame])?;
    let resource = number(&thread["funcTable"]["resource"][function]);
    let library = resource.and_then(|resource| number(&thread["resourceTable"]["lib"][resource]));
    let id = library.and_then(|library| profile["libs"][library]["breakpadId"].as_str());
    let address = thread["frameTable"]["address"][frame].as_u64();
    if let (Some(id), Some(address)) = (id, address) {
        return names.0.get(&(plain_id(id), address)).cloned();
    }
    // Names that samply has found itself, of run-time compilers and labels.
    let strings = match list(&thread["stringArray"]) {
        [] => list(&profile["shared"]["stringArray"]),
        strings => strings,
    };
    Some(vec![strings.get(number(&thread["funcTable"]["name"][function])?)?.as_str()?.to_string()])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn samplys_frames_are_named_by_library_and_address() {
        let names = Names::of(&json!({
            "string_table": ["UNKNOWN", "main", "leaf", "inlined"],
            "data": [{"debug_id": "0a1b2c3d-0000-0000-0000-000000000001", "symbol_table": [
                          {"rva": 16, "symbol": 1, "frames": [{"function": 3}, {"function": 1}]},
                          {"rva": 32, "symbol": 2}],
                      "known_addresses": [[20, 0], [40, 1]]}],
        }));
        let profile = json!({"libs": [{"breakpadId": "0A1B2C3D0000000000000000000000010"}]});
        let thread = json!({
            "samples": {"stack": [1, null]},
            "stackTable": {"prefix": [null, 0], "frame": [0, 1]},
            "frameTable": {"func": [0, 1], "address": [20, 40]},
            "funcTable": {"resource": [0, 0], "name": [0, 0]},
            "resourceTable": {"lib": [0]},
        });
        let stacks = stacks_of(&thread, &profile, &names);
        assert_eq!(stacks.len(), 1);
        assert_eq!(stacks[0].frames, ["main", "inlined", "leaf"]);
    }
}
