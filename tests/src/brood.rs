//! Many short-lived processes under the profiler: how many of their samples have names, and what the profiler holds
//! meanwhile.

use std::fs;
use std::time::{Duration, Instant};
use std::{process::Command, thread};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::Value;

use crate::guards::Running;
use crate::programs::program;
use crate::run::{Sweetspot, finish_within, run, start, sweetspot};

/// The programs that live briefly: dynamic, with frame pointers, static, static and position-independent.
pub const BRIEF: [&str; 4] = ["brief_a", "brief_b", "brief_c", "brief_d"];
/// Time between two readings of the profiler's state.
const LOOK: Duration = Duration::from_millis(20);
/// A reading is kept for each this many processes.
const LOOKS: u64 = 100;

/// A number of short-lived processes to run.
#[derive(Clone, Debug)]
pub struct Brood {
    /// How many.
    pub processes: u64,
    /// How many at once.
    pub at_once: u64,
    /// CPU time of each (ms).
    pub ms: f64,
    /// Options of the profiler.
    pub options: Vec<String>,
}

/// A reading of the profiler's state.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Held {
    /// Processes that had begun.
    pub processes: u64,
    /// Its resident set (KiB).
    pub rss_kib: u64,
    /// Its open descriptors.
    pub descriptors: usize,
}

/// The results.
#[derive(Debug, Serialize)]
pub struct Profiled {
    /// While the processes ran, oldest first.
    pub held: Vec<Held>,
    /// Its largest resident set, naming included (KiB).
    pub peak_rss_kib: u64,
    /// Samples.
    pub samples: u64,
    /// Share of the samples whose innermost function has a name.
    pub named_samples_ratio: f64,
    /// The same share, by weight.
    pub named_weight_ratio: f64,
    /// Share of the innermost functions that have a name.
    pub named_functions_ratio: f64,
    /// Why the others have none.
    pub reasons: Vec<String>,
    /// The summary line.
    #[serde(skip)]
    pub summary: Value,
}

impl Brood {
    /// Runs them under the profiler.
    pub fn profile(&self) -> Result<Profiled> {
        let sweetspot = Sweetspot::new();
        let progress = sweetspot.file("progress");
        let mut words = self.options.clone();
        words.extend(
            ["-o", &sweetspot.file("p.pb.gz"), "--stats", &sweetspot.file("stats.jsonl")].map(String::from),
        );
        words.extend(["--".to_owned(), path("brood")?]);
        words.extend([self.processes.to_string(), self.at_once.to_string(), self.ms.to_string()]);
        words.push(progress.clone());
        for name in BRIEF {
            words.push(path(name)?);
        }
        let mut running = start(&mut sweetspot.command("record", &words))?;
        let (held, peak_rss_kib) = self.watch(&mut running, &progress)?;
        let ended = finish_within(running, Duration::from_secs(60))?.expect_status(0)?;
        let text = fs::read_to_string(sweetspot.file("stats.jsonl")).context(ended.stderr)?;
        let summary: Value = serde_json::from_str(text.lines().last().context("no summary")?)?;
        let unknown = unknown(&sweetspot)?;
        let functions = unknown["functions"].as_array().context("functions")?;
        let nameless: u64 = functions.iter().filter_map(|function| function["samples"].as_u64()).sum();
        let samples = summary["samples"].as_u64().context("samples")?;
        let all = summary["functions"].as_array().map_or(0, Vec::len).max(1) as f64;
        Ok(Profiled {
            held,
            peak_rss_kib,
            samples,
            named_samples_ratio: 1.0 - nameless as f64 / samples.max(1) as f64,
            named_weight_ratio: 1.0 - unknown["nameless_share"].as_f64().context("nameless_share")?,
            named_functions_ratio: 1.0 - functions.len() as f64 / all,
            reasons: functions
                .iter()
                .map(|function| format!("{}: {}", function["function"], function["reason"]))
                .collect(),
            summary,
        })
    }

    /// Reads the profiler's state until it has ended.
    fn watch(&self, running: &mut Running, progress: &str) -> Result<(Vec<Held>, u64)> {
        let (mut held, mut peak_rss_kib) = (Vec::<Held>::new(), 0);
        let started = Instant::now();
        let patience =
            Duration::from_secs(120) + Duration::from_secs_f64(self.processes as f64 * self.ms * 4e-3);
        while running.try_wait()?.is_none() {
            ensure!(started.elapsed() < patience, "the run hangs");
            let began = fs::read_to_string(progress).ok().and_then(|text| text.trim().parse::<u64>().ok());
            let status = fs::read_to_string(format!("/proc/{}/status", running.id())).unwrap_or_default();
            peak_rss_kib = kib(&status, "VmHWM:").unwrap_or(0).max(peak_rss_kib);
            let due = held.last().map_or(0, |last| last.processes + self.processes.div_ceil(LOOKS));
            if let Some((processes, rss_kib)) = began.zip(kib(&status, "VmRSS:"))
                && processes >= due.min(self.processes)
                && held.last().is_none_or(|last| last.processes < processes)
            {
                let descriptors =
                    fs::read_dir(format!("/proc/{}/fd", running.id())).map_or(0, Iterator::count);
                held.push(Held { processes, rss_kib, descriptors });
            }
            thread::sleep(LOOK);
        }
        Ok((held, peak_rss_kib))
    }
}

fn path(name: &str) -> Result<String> {
    Ok(program(name)?.to_string_lossy().into_owned())
}

/// `report --unknown` of the run's file.
fn unknown(of: &Sweetspot) -> Result<Value> {
    let words = ["report", &*of.file("p.pb.gz"), "--unknown", "--format", "json"];
    let ended = run(Command::new(sweetspot()).args(words))?.expect_status(0)?;
    Ok(serde_json::from_str(&ended.stdout)?)
}

fn kib(status: &str, key: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse().ok()
}
