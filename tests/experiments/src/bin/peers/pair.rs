//! What profiling costs a pair of threads that only switch contexts.

use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use tests::experiment::{option, percent, progress, row};
use tests::figures::{median, median_interval};
use tests::guards::Running;
use tests::peers::Profiler;
use tests::run::finish;
use tests::slope::Figure;
use tests::twins::{Turn, Twins, Work, excess, now_s};
use tests::verdict::Verdict;

use super::Runs;

/// Largest slowdown of a switching pair, relative to perf's.
const OF_PERF: f64 = 0.25;
/// Time for a profiler to settle on how to sample a switching pair (s).
const SETTLED_S: f64 = 2.0;

/// The cost of being profiled, by profiler.
#[derive(Serialize)]
pub(super) struct Found {
    switches_per_s: f64,
    /// Standard error of the slowdown of one run (median).
    noise_ratio: f64,
    slowdowns: Vec<Slowdown>,
}

/// Medians over the rounds, and the 95% interval of the first.
#[derive(Serialize)]
struct Slowdown {
    profiler: &'static str,
    cpu_ratio: f64,
    low_ratio: f64,
    high_ratio: f64,
}

/// Runs each profiler once a round; the order rotates.
pub(super) fn measure(present: &[Profiler], rounds: usize, cpu: usize) -> Result<Found> {
    let seconds = option("--seconds", 8.0)?;
    let mut runs: Runs<Run> = present.iter().map(|profiler| (*profiler, Vec::new())).collect();
    for round in 0..rounds {
        progress(&format!("switching pair, round {} of {rounds}", round + 1));
        for turn in 0..present.len() {
            let at = (round + turn) % present.len();
            runs[at].1.push(follow(present[at], seconds, cpu)?);
        }
    }
    let all = || runs.iter().flat_map(|(_, runs)| runs);
    let switches_per_s = median(&all().map(|run| run.switches_per_s).collect::<Vec<_>>());
    let noise_ratio = median(&all().map(|run| run.slowdown.se).collect::<Vec<_>>());
    let slowdowns = runs.iter().map(|(profiler, runs)| Slowdown::of(*profiler, runs)).collect();
    Ok(Found { switches_per_s, noise_ratio, slowdowns })
}

/// Extra time of a pair over its unsampled twin (ratio), and how often it switched before.
struct Run {
    slowdown: Figure,
    switches_per_s: f64,
}

fn follow(profiler: Profiler, seconds: f64, cpu: usize) -> Result<Run> {
    let folder = tempfile::tempdir()?;
    let twins = Twins::start(Work { kind: "pair", depth: 0, step_at: 0, cpu, program: "twins_nofp" })?;
    let (began_s, switches) = (now_s()?, switches(twins.pid)?);
    sleep(Duration::from_secs_f64(seconds / 2.0));
    let (attached_s, switched) = (now_s()?, self::switches(twins.pid)? - switches);
    let mut attach = profiler.attach_as_usual(twins.pid, folder.path())?;
    let attached = Running::start(attach.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()))?;
    sleep(Duration::from_secs_f64(seconds + SETTLED_S));
    let turns = twins.end()?;
    let ended = finish(attached)?;
    ensure!(ended.status == 0, "{} failed: {}", profiler.name(), ended.stderr);
    let excess = |from_s: f64, to_s: f64| {
        let within = |turn: &&Turn| turn.over_s > from_s && turn.over_s < to_s;
        excess(&turns.iter().filter(within).copied().collect::<Vec<_>>()).context("--seconds is too short")
    };
    let (usual, followed) = (excess(began_s, attached_s)?, excess(attached_s + SETTLED_S, f64::INFINITY)?);
    let slowdown = Figure { mean: followed.mean - usual.mean, se: followed.se.hypot(usual.se) };
    Ok(Run { slowdown, switches_per_s: switched / (attached_s - began_s) })
}

/// Context switches of a process so far.
fn switches(pid: u32) -> Result<f64> {
    let mut all = 0.0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let status = std::fs::read_to_string(thread?.path().join("status"))?;
        let counts = status.lines().filter_map(|line| line.split_once("_ctxt_switches:"));
        all += counts.filter_map(|(_, count)| count.trim().parse::<f64>().ok()).sum::<f64>();
    }
    Ok(all)
}

impl Slowdown {
    fn of(profiler: Profiler, runs: &[Run]) -> Slowdown {
        let ratios: Vec<f64> = runs.iter().map(|run| run.slowdown.mean).collect();
        let (low_ratio, high_ratio) = median_interval(&ratios);
        Slowdown { profiler: profiler.name(), cpu_ratio: median(&ratios), low_ratio, high_ratio }
    }
}

impl Found {
    /// Compares sweetspot's slowdown with perf's.
    pub(super) fn judge(&self) -> Option<Verdict> {
        let of = |profiler: Profiler| self.slowdowns.iter().find(|one| one.profiler == profiler.name());
        let (ours, perf) = (of(Profiler::Sweetspot)?, of(Profiler::Bare)?);
        let interval = (ours.low_ratio - self.noise_ratio, ours.high_ratio + self.noise_ratio);
        let bound = OF_PERF * perf.cpu_ratio;
        Some(Verdict::new("slowdown of the pair", ours.cpu_ratio, interval, bound, percent))
    }

    /// A readable table.
    pub(super) fn rows(&self) -> Vec<Vec<String>> {
        let heads = ["switching pair", "CPU slowdown", "95% interval"];
        let mut rows = vec![heads.map(str::to_string).to_vec()];
        rows.extend(self.slowdowns.iter().map(|one| {
            let interval = format!("{} … {}", percent(one.low_ratio), percent(one.high_ratio));
            row([&one.profiler, &percent(one.cpu_ratio), &interval])
        }));
        rows
    }

    /// Further remarks.
    pub(super) fn remark(&self) -> String {
        let (rate, noise) = (self.switches_per_s, percent(self.noise_ratio));
        format!(
            "the pair switches {rate:.0} times a second unsampled; half of them by each of the twins; noise of a run ±{noise}"
        )
    }
}
