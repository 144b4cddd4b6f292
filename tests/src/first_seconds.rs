//! How good a profile the shortest command gives: the error of the CPU seconds of a program's largest functions, with each
//! profiler's defaults and at usual fixed rates, for runs of a tenth of a second to a minute.
//!
//! Sampled runs take turns with unsampled ones, so that what sampling adds is known to a fraction of a percent. Long
//! ones, during which a machine's speed drifts, share their CPU with an unsampled one.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::Value;

use crate::figures::median;
use crate::programs::{find_in_path, program};
use crate::run::{Sweetspot, finish, run, start};
use crate::truth::Truth;

/// The program: eight functions of equal cost, called in shuffled order with known counts.
const PROGRAM: &str = "mix_fp";
/// Number of its functions that are judged.
const TOP: usize = 4;
/// Runs of this length (s) have their twin beside them.
const LONG_S: f64 = 3.0;
/// The CPU that they share.
const SHARED_CPU: &str = "0";

/// A way to profile a command.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Way {
    /// `sweetspot record -- PROGRAM`.
    Sweetspot,
    /// `samply record PROGRAM`.
    Samply,
    /// `perf record -F HZ -g PROGRAM`.
    Perf(u32),
}

/// All ways that are compared.
pub const WAYS: [Way; 6] =
    [Way::Sweetspot, Way::Samply, Way::Perf(99), Way::Perf(499), Way::Perf(999), Way::Perf(4_000)];

/// A profiler's report of a run.
#[derive(Clone, Debug, Default)]
struct Said {
    samples: u64,
    /// Samples or seconds of each function of the program.
    parts: BTreeMap<String, f64>,
    /// CPU seconds of all of them together, as a reader gets them; `None` where these are all that the program used.
    total_s: Option<f64>,
}

/// A sampled run beside those that nobody sampled.
#[derive(Clone, Debug)]
pub struct Observed {
    /// Samples taken.
    pub samples: u64,
    /// Seconds that the profiler states for the work over the true ones.
    pub total_ratio: f64,
    /// CPU time of the work over that of unsampled runs.
    pub slowdown_ratio: f64,
    /// Share of each of the largest functions over the true one.
    share_ratios: Vec<f64>,
}

/// A way's runs of one length.
#[derive(Clone, Debug, Serialize)]
pub struct Judged {
    /// Mean of the samples taken.
    pub samples: f64,
    /// Median slowdown of the program.
    pub slowdown_ratio: f64,
    /// Median of the error of all seconds together: what sampling added, less what the profiler took out.
    pub bias_ratio: f64,
    /// Sum over the largest functions of the mean error of their seconds, relative to the truth.
    pub error_ratio: f64,
}

impl Way {
    /// Its name in the table.
    pub fn name(self) -> String {
        match self {
            Way::Sweetspot => "sweetspot".to_owned(),
            Way::Samply => "samply".to_owned(),
            Way::Perf(hz) => format!("perf {hz}/s"),
        }
    }

    /// Whether the profiler is installed.
    pub fn is_present(self) -> bool {
        match self {
            Way::Sweetspot => true,
            Way::Samply => find_in_path("samply").is_some(),
            Way::Perf(_) => find_in_path("perf").is_some(),
        }
    }

    /// Runs the program under the profiler.
    fn record(self, target: &Path, arguments: &[String]) -> Result<Said> {
        let sweetspot = Sweetspot::new();
        let file = sweetspot.file("recording");
        match self {
            Way::Sweetspot => {
                let mut words = sweetspot.outputs();
                words.extend(["--".to_owned(), target.to_string_lossy().into_owned()]);
                words.extend_from_slice(arguments);
                run(&mut sweetspot.command("record", &words))?.expect_status(0)?;
                by_sweetspot(&fs::read_to_string(sweetspot.file("stats.jsonl"))?)
            }
            Way::Samply => {
                let mut samply = Command::new("samply");
                samply.args(["record", "--save-only", "-o", &file, "--"]).arg(target).args(arguments);
                run(&mut samply)?.expect_status(0)?;
                by_samply(&fs::read(&file)?, target)
            }
            Way::Perf(hz) => {
                let mut perf = Command::new("perf");
                perf.args([
                    "record",
                    "-q",
                    "-e",
                    "cpu-clock",
                    "-F",
                    &hz.to_string(),
                    "-g",
                    "-o",
                    &file,
                    "--",
                ]);
                run(perf.arg(target).args(arguments))?.expect_status(0)?;
                let script = ["script", "-G", "-F", "period,ip,sym", "-i", &file];
                Ok(by_perf(&run(Command::new("perf").args(script))?.expect_status(0)?.stdout))
            }
        }
    }
}

fn is_work(name: &str) -> bool {
    name.starts_with("work_")
}

fn by_sweetspot(stats: &str) -> Result<Said> {
    let summary: Value = serde_json::from_str(stats.lines().last().context("no summary")?)?;
    let functions = summary["functions"].as_array().context("no functions")?;
    let parts: BTreeMap<String, f64> = functions
        .iter()
        .filter_map(|function| Some((function["name"].as_str()?.to_owned(), function["cpu_s"].as_f64()?)))
        .filter(|(name, _)| is_work(name))
        .collect();
    let total_s = Some(parts.values().sum());
    Ok(Said { samples: summary["samples"].as_u64().unwrap_or(0), parts, total_s })
}

/// Lines of `period ip symbol`.
fn by_perf(script: &str) -> Said {
    let mut said = Said::default();
    for line in script.lines() {
        let [_, _, name, ..] = line.split_whitespace().collect::<Vec<_>>()[..] else { continue };
        said.samples += 1;
        if is_work(name) {
            *said.parts.entry(name.to_owned()).or_default() += 1.0;
        }
    }
    said
}

/// A profile without names: the addresses of its innermost frames are looked up in the program's symbol table.
fn by_samply(profile: &[u8], target: &Path) -> Result<Said> {
    let profile: Value = serde_json::from_slice(profile)?;
    let symbols = work_symbols(target)?;
    let mut said = Said::default();
    for thread in profile["threads"].as_array().context("no threads")? {
        let column = |table: &str, name: &str| thread[table][name].as_array().cloned().unwrap_or_default();
        let (frames, addresses) = (column("stackTable", "frame"), column("frameTable", "address"));
        for stack in column("samples", "stack").iter().filter_map(Value::as_u64) {
            said.samples += 1;
            let frame = frames.get(stack as usize).and_then(Value::as_u64).unwrap_or(u64::MAX);
            let address = addresses.get(frame as usize).and_then(Value::as_u64).unwrap_or(0);
            let name = symbols.iter().find(|(start, end, _)| (*start..*end).contains(&address));
            if let Some((_, _, name)) = name {
                *said.parts.entry(name.clone()).or_default() += 1.0;
            }
        }
    }
    Ok(said)
}

/// Beginning, end and name of the program's functions.
fn work_symbols(target: &Path) -> Result<Vec<(u64, u64, String)>> {
    let listed = run(Command::new("nm").arg("-S").arg(target))?.expect_status(0)?.stdout;
    let symbols = listed.lines().filter_map(|line| {
        let [start, size, _, name] = line.split_whitespace().collect::<Vec<_>>()[..] else { return None };
        let (start, size) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(size, 16).ok()?);
        is_work(name).then(|| (start, start + size, name.to_owned()))
    });
    Ok(symbols.collect())
}

/// The program's calls for some CPU time, and runs of it.
pub struct Subject {
    target: std::path::PathBuf,
    calls: u64,
    seed: u64,
    /// Whether a run is so long that its twin runs beside it.
    is_long: bool,
    /// CPU time of a call in the latest unsampled run (s).
    call_s: f64,
}

impl Subject {
    /// The program with as many calls as take `cpu_s`.
    pub fn new(cpu_s: f64) -> Result<Subject> {
        let is_long = cpu_s >= LONG_S;
        let mut subject = Subject { target: program(PROGRAM)?, calls: 20_000, seed: 1, is_long, call_s: 0.0 };
        subject.unsampled()?;
        subject.unsampled()?; // the first one read the file
        subject.calls = (cpu_s / subject.call_s) as u64;
        ensure!(subject.calls > 100, "{cpu_s} s is too short for this program");
        if !is_long {
            subject.unsampled()?;
        }
        Ok(subject)
    }

    fn arguments(&mut self, truth: &str) -> Vec<String> {
        self.seed += 1;
        let (calls, seed) = (self.calls.to_string(), self.seed.to_string());
        let mut words = ["--calls", &calls, "--seed", &seed, "--out", truth].map(str::to_owned).to_vec();
        if self.is_long {
            words.extend(["--only-on", SHARED_CPU].map(str::to_owned));
        }
        words
    }

    /// CPU time of a call where nobody samples (s).
    fn unsampled(&mut self) -> Result<f64> {
        let folder = tempfile::tempdir()?;
        let truth = folder.path().join("truth.json");
        let arguments = self.arguments(&truth.to_string_lossy());
        run(Command::new(&self.target).args(arguments))?.expect_status(0)?;
        self.call_s = call_s(&Truth::read(&truth)?);
        Ok(self.call_s)
    }

    /// A run between two unsampled ones, or beside one.
    pub fn observe(&mut self, way: Way) -> Result<Observed> {
        let folder = tempfile::tempdir()?;
        let truth = folder.path().join("truth.json");
        let arguments = self.arguments(&truth.to_string_lossy());
        let (said, call_s) = match self.is_long {
            true => self.beside_a_twin(way, &arguments, folder.path())?,
            false => {
                let before_s = self.call_s;
                let said = way.record(&self.target, &arguments)?;
                (said, 0.5 * (before_s + self.unsampled()?))
            }
        };
        let truth = Truth::read(&truth)?;
        let calls = truth.calls.values().sum::<u64>() as f64;
        let slowdown_ratio = truth.work_cpu_s / (calls * call_s);
        let all: f64 = said.parts.values().sum();
        let share = |name: &str| said.parts.get(name).copied().unwrap_or(0.0) / all.max(f64::MIN_POSITIVE);
        Ok(Observed {
            samples: said.samples,
            total_ratio: said.total_s.map_or(slowdown_ratio, |total_s| total_s / (calls * call_s)),
            slowdown_ratio,
            share_ratios: truth.top(TOP).into_iter().map(|name| share(name) / truth.share(name)).collect(),
        })
    }

    /// What the profiler says of a run, and the CPU time of a call of its twin (s).
    fn beside_a_twin(&mut self, way: Way, arguments: &[String], folder: &Path) -> Result<(Said, f64)> {
        let truth = folder.join("twin.json");
        let twin = self.arguments(&truth.to_string_lossy());
        let twin = start(Command::new(&self.target).args(twin))?;
        let said = way.record(&self.target, arguments)?;
        finish(twin)?.expect_status(0)?;
        Ok((said, call_s(&Truth::read(&truth)?)))
    }
}

/// CPU time of a call (s).
fn call_s(truth: &Truth) -> f64 {
    truth.work_cpu_s / truth.calls.values().sum::<u64>() as f64
}

/// What runs of one way and length come to.
pub fn judge(runs: &[Observed]) -> Judged {
    let count = runs.len() as f64;
    let total = median(&runs.iter().map(|run| run.total_ratio).collect::<Vec<_>>());
    let error =
        |run: &Observed| run.share_ratios.iter().map(|share| (share * total - 1.0).abs()).sum::<f64>();
    Judged {
        samples: runs.iter().map(|run| run.samples as f64).sum::<f64>() / count,
        slowdown_ratio: median(&runs.iter().map(|run| run.slowdown_ratio - 1.0).collect::<Vec<_>>()),
        bias_ratio: total - 1.0,
        error_ratio: runs.iter().map(error).sum::<f64>() / count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bias_and_a_wrong_share_both_count() {
        let run = |share: f64, total_ratio| Observed {
            samples: 10,
            total_ratio,
            slowdown_ratio: 1.05,
            share_ratios: vec![share, 1.0],
        };
        let judged = judge(&[run(1.1, 1.0), run(0.9, 1.0)]);
        assert!((judged.error_ratio - 0.1).abs() < 1e-9, "{judged:?}");
        let judged = judge(&[run(1.0, 1.05), run(1.0, 1.05)]);
        assert!((judged.error_ratio - 0.1).abs() < 1e-9, "both functions are off by 5%: {judged:?}");
    }

    #[test]
    fn what_perf_prints_is_read() {
        let said = by_perf("  250000  401136 work_a\n  250000  7f00 __libc_start\n");
        assert_eq!((said.samples, said.parts["work_a"]), (2, 1.0));
    }
}
