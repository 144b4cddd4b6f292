//! What being followed costs a pair of threads that does nothing but switch.

use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use serde::Serialize;
use tests::experiment::{option, percent, progress, row};
use tests::figures::{median, median_interval};
use tests::fixed::{Done, Work};
use tests::peers::Profiler;
use tests::verdict::Verdict;

use super::{Runs, run_attached, start_on};

/// What ours may slow a switching pair down, of perf's slowdown.
const OF_PERF: f64 = 0.25;
/// A profiler may take so long to find its way with a switching pair (s).
const SETTLED_S: f64 = 2.0;

/// What being followed cost, profiler by profiler.
#[derive(Serialize)]
pub(super) struct Found {
    switches_per_s: f64,
    /// By how much two unsampled runs of a round differ (median).
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
    wall_ratio: f64,
}

/// Each profiler once a round, in an order that turns, between two unsampled runs.
pub(super) fn measure(present: &[Profiler], rounds: usize, cpu: usize) -> Result<Found> {
    let work = Work::lasting("pair", option("--cpu", 8.0)?, cpu)?;
    let mut runs: Runs<(f64, f64)> = present.iter().map(|profiler| (*profiler, Vec::new())).collect();
    let (mut rates, mut noises) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        progress(&format!("switching pair, round {} of {rounds}", round + 1));
        let unsampled = work.unsampled()?;
        rates.push(unsampled.switches as f64 / unsampled.wall_s());
        let before = pace(&unsampled)?;
        let mut under = Vec::new();
        for turn in 0..present.len() {
            let at = (round + turn) % present.len();
            under.push((at, pace(&follow(present[at], &work)?)?));
        }
        let after = pace(&work.unsampled()?)?;
        noises.push((after.0 / before.0 - 1.0).abs());
        let (cpu_s, wall_s) = ((before.0 + after.0) / 2.0, (before.1 + after.1) / 2.0);
        under
            .into_iter()
            .for_each(|(at, pace)| runs[at].1.push((pace.0 / cpu_s - 1.0, pace.1 / wall_s - 1.0)));
    }
    let slowdowns = runs.iter().map(|(profiler, runs)| Slowdown::of(*profiler, runs)).collect();
    Ok(Found { switches_per_s: median(&rates), noise_ratio: median(&noises), slowdowns })
}

/// Seconds (CPU, wall-clock) that a mark of work took, once settled.
fn pace(done: &Done) -> Result<(f64, f64)> {
    let settled_s = done.marks[0].0 + SETTLED_S;
    let settled: Vec<_> = done.marks.iter().filter(|(at_s, _)| *at_s >= settled_s).collect();
    ensure!(settled.len() > 10, "--cpu is too short: a pair takes {SETTLED_S} s to settle");
    let (first, last, count) = (settled[0], settled[settled.len() - 1], settled.len() as f64 - 1.0);
    Ok(((last.1 - first.1) / count, (last.0 - first.0) / count))
}

fn follow(profiler: Profiler, work: &Work) -> Result<Done> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("done.json");
    let words = work.words(&out)?;
    let mut target = start_on(work.cpu, Command::new(&words[0]).args(&words[1..]))?;
    let mut attach = profiler.attach_as_usual(target.id(), folder.path())?;
    run_attached(
        profiler,
        &mut target,
        attach.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()),
    )?;
    Done::read(&out)
}

impl Slowdown {
    fn of(profiler: Profiler, runs: &[(f64, f64)]) -> Slowdown {
        let (cpu, wall): (Vec<f64>, Vec<f64>) = runs.iter().copied().unzip();
        let (low_ratio, high_ratio) = median_interval(&cpu);
        let profiler = profiler.name();
        Slowdown { profiler, cpu_ratio: median(&cpu), low_ratio, high_ratio, wall_ratio: median(&wall) }
    }
}

impl Found {
    /// Holds our slowdown against perf's; what unsampled runs differ by is noise of both.
    pub(super) fn judge(&self) -> Option<Verdict> {
        let of = |profiler: Profiler| self.slowdowns.iter().find(|one| one.profiler == profiler.name());
        let (ours, perf) = (of(Profiler::Sweetspot)?, of(Profiler::Bare)?);
        let interval = (ours.low_ratio - self.noise_ratio, ours.high_ratio + self.noise_ratio);
        let bound = OF_PERF * perf.cpu_ratio;
        Some(Verdict::new("slowdown of the pair", ours.cpu_ratio, interval, bound, percent))
    }

    /// For a person.
    pub(super) fn rows(&self) -> Vec<Vec<String>> {
        let heads = ["switching pair", "CPU slowdown", "95% interval", "wall"];
        let mut rows = vec![heads.map(str::to_string).to_vec()];
        rows.extend(self.slowdowns.iter().map(|one| {
            let interval = format!("{} … {}", percent(one.low_ratio), percent(one.high_ratio));
            row([&one.profiler, &percent(one.cpu_ratio), &interval, &percent(one.wall_ratio)])
        }));
        rows
    }

    /// What else there is to say.
    pub(super) fn remark(&self) -> String {
        let (rate, noise) = (self.switches_per_s, percent(self.noise_ratio));
        format!("the pair switches {rate:.0} times a second unsampled; noise ±{noise}")
    }
}
