//! Does the profiler stay within its budget? Programs of fixed work run unsampled and sampled in the order
//! A B B A, the program on one CPU and the profiler on another. The slowdown is the program's own account of
//! it, on the whole and for every second and ten seconds of its work; beside it stands what the profiler says.
//!
//! Options: `--only plain|step|storm|threads`, `--pairs 8`, `--cpu 12` (seconds of work a run), `--budget 1%`,
//! `--fresh 2` (further runs without the machine's calibration at hand).

use anyhow::{Result, ensure};
use serde::Serialize;
use tests::experiment::{option, percent, print, progress, row};
use tests::figures::{median, median_interval};
use tests::fixed::{Done, Sampled, Work};
use tests::guards::{OnCpu, two_cpus};
use tests::run::sweetspot;
use tests::slices::{noise, worst_slowdown};
use tests::verdict::{Verdict, ensure_none_fails};
use tests::windows::worst_ratio;

const KINDS: [&str; 4] = ["plain", "step", "storm", "threads"];
/// What any second, and any ten, may cost of the budget.
const WORST_1S: f64 = 1.2;
const WORST_10S: f64 = 1.02;

/// Median over the pairs, and its 95% bootstrap interval, which is the noise of this experiment.
#[derive(Serialize)]
struct Slowdown {
    median_ratio: f64,
    low_ratio: f64,
    high_ratio: f64,
}

/// The worst second and the worst ten.
#[derive(Clone, Copy, Serialize)]
struct Worst {
    ratio_1s: Option<f64>,
    ratio_10s: Option<f64>,
}

#[derive(Serialize)]
struct Found {
    kind: &'static str,
    pairs: usize,
    switches_per_cpu_s: f64,
    cpu: Slowdown,
    wall: Slowdown,
    /// CPU time of the profiler while it sampled, over that of the unsampled program.
    own: Slowdown,
    /// The program's slowdown and the profiler's CPU time while it sampled.
    sum: Slowdown,
    /// The same with the profiler's start, names and file.
    sum_with_ends: Slowdown,
    said_ratio: f64,
    /// What the profiler says, of all runs.
    said: Worst,
    /// The same for runs without a calibration.
    said_fresh: Worst,
    /// The profiler's CPU time by the kernel, and its samples at the cost it says, of all runs.
    outside: Worst,
    /// By the stopwatch: medians over the runs.
    stopwatch: Worst,
    /// The same of unsampled runs against one another.
    noise: Worst,
    budget_ratio: f64,
    verdicts: Vec<Verdict>,
}

fn main() -> Result<()> {
    let only = option("--only", String::new())?;
    ensure!(only.is_empty() || KINDS.contains(&only.as_str()), "--only takes one of {}", KINDS.join(", "));
    sweetspot(); // built before this is bound to one CPU
    let (target_cpu, own_cpu) = two_cpus()?;
    let _here = OnCpu::new(own_cpu)?;
    let kinds = KINDS.into_iter().filter(|kind| only.is_empty() || only == *kind);
    let found = kinds.map(|kind| measure(kind, target_cpu)).collect::<Result<Vec<_>>>()?;
    report(&found, target_cpu == own_cpu)?;
    ensure_none_fails(found.iter().flat_map(|found| &found.verdicts))
}

fn measure(kind: &'static str, cpu: usize) -> Result<Found> {
    let budget = option("--budget", "1%".to_string())?;
    let (pairs, fresh) = (option("--pairs", 8)?, option("--fresh", 2)?);
    ensure!(pairs > 0, "--pairs needs at least 1");
    let work = Work::lasting(kind, option("--cpu", 12.0)?, cpu)?;
    let pairs = measure_pairs(&work, &budget, pairs)?;
    let mut without = Vec::new();
    for _ in 0..fresh {
        progress(&format!("{kind}: without a calibration"));
        without.push(work.sampled(&budget, false)?);
    }
    Ok(Found::of(kind, &pairs, &without))
}

/// Pairs of an unsampled and a sampled run, in the order A B B A.
fn measure_pairs(work: &Work, budget: &str, pairs: usize) -> Result<Vec<(Done, Sampled)>> {
    Work { units: work.units.min(50_000), ..*work }.sampled(budget, true)?; // leaves the calibration for those that count
    let mut found = Vec::new();
    for pair in 0..pairs {
        progress(&format!("{}: pair {} of {pairs}", work.kind, pair + 1));
        found.push(if pair % 2 == 0 {
            let first = work.unsampled()?;
            (first, work.sampled(budget, true)?)
        } else {
            let first = work.sampled(budget, true)?;
            (work.unsampled()?, first)
        });
    }
    Ok(found)
}

impl Found {
    fn of(kind: &'static str, pairs: &[(Done, Sampled)], fresh: &[Sampled]) -> Found {
        let over = |figure: fn(&Done, &Sampled) -> f64| {
            Slowdown::of(&pairs.iter().map(|(a, b)| figure(a, b)).collect::<Vec<_>>())
        };
        let sampled = || pairs.iter().map(|(_, sampled)| sampled);
        let said: Vec<f64> = sampled().map(|run| run.stats.summary.overhead_ratio).collect();
        let switches: Vec<f64> = pairs.iter().map(|(a, _)| a.switches as f64 / a.cpu_s).collect();
        let sampled_marks: Vec<_> = sampled().map(Sampled::cpu_at_marks_s).collect();
        let unsampled_marks: Vec<_> = pairs.iter().map(|(a, _)| a.cpu_at_marks_s()).collect();
        let mut found = Found {
            kind,
            pairs: pairs.len(),
            switches_per_cpu_s: median(&switches),
            cpu: over(|a, b| b.done.cpu_s / a.cpu_s - 1.0),
            wall: over(|a, b| b.done.wall_s() / a.wall_s() - 1.0),
            own: over(|a, b| b.stats.summary.self_cpu_s / a.cpu_s),
            sum: over(|a, b| (b.done.cpu_s + b.stats.summary.self_cpu_s) / a.cpu_s - 1.0),
            sum_with_ends: over(|a, b| (b.done.cpu_s + b.own_cpu_s) / a.cpu_s - 1.0),
            said_ratio: median(&said),
            said: Worst::said(sampled()),
            said_fresh: Worst::said(fresh.iter()),
            outside: Worst::of(|length_s| worst_outside(sampled().chain(fresh), length_s)),
            stopwatch: Worst::of(|length_s| worst_slowdown(&sampled_marks, &unsampled_marks, length_s)),
            noise: Worst::of(|length_s| noise(&unsampled_marks, length_s)),
            budget_ratio: pairs[0].1.stats.summary.budget_ratio,
            verdicts: Vec::new(),
        };
        found.verdicts = found.judge();
        found
    }

    fn judge(&self) -> Vec<Verdict> {
        let (kind, budget) = (self.kind, self.budget_ratio);
        let interval = (self.sum.low_ratio, self.sum.high_ratio);
        let what = format!("{kind}: slowdown and own CPU");
        let mut verdicts = vec![Verdict::new(&what, self.sum.median_ratio, interval, budget, percent)];
        for (what, worst) in [("said", self.said), ("said, no calibration", self.said_fresh)] {
            verdicts.extend(worst.each(budget).map(|(span, ratio, bound)| {
                Verdict::exact(&format!("{kind}: any {span}, {what}"), ratio, bound, percent)
            }));
        }
        let noises = [self.noise.ratio_1s, self.noise.ratio_10s];
        let by_stopwatch = self.stopwatch.each(budget).zip(noises).map(|((span, ratio, bound), noise)| {
            let noise = noise.unwrap_or(f64::INFINITY);
            let what = format!("{kind}: any {span}, by the stopwatch");
            Verdict::new(&what, ratio, (ratio - noise, ratio), bound, percent)
        });
        verdicts.extend(by_stopwatch);
        verdicts
    }
}

impl Slowdown {
    fn of(ratios: &[f64]) -> Slowdown {
        let (low_ratio, high_ratio) = median_interval(ratios);
        Slowdown { median_ratio: median(ratios), low_ratio, high_ratio }
    }

    fn show(&self) -> String {
        let [median, low, high] = [self.median_ratio, self.low_ratio, self.high_ratio].map(percent);
        format!("{median} ({low} … {high})")
    }
}

impl Worst {
    fn of(worst: impl Fn(f64) -> Option<f64>) -> Worst {
        Worst { ratio_1s: worst(1.0), ratio_10s: worst(10.0) }
    }

    /// Of runs that were long enough.
    fn said<'a>(runs: impl Iterator<Item = &'a Sampled> + Clone) -> Worst {
        let largest = |length_s: f64, figure: fn(&Sampled) -> f64| {
            runs.clone().filter(|run| run.done.wall_s() >= length_s).map(figure).reduce(f64::max)
        };
        Worst {
            ratio_1s: largest(1.0, |run| run.stats.summary.overhead_worst_1s_ratio),
            ratio_10s: largest(10.0, |run| run.stats.summary.overhead_worst_10s_ratio),
        }
    }

    /// Span, ratio and bound of those that are known.
    fn each(self, budget: f64) -> impl Iterator<Item = (&'static str, f64, f64)> {
        let known = |span, ratio: Option<f64>, factor: f64| ratio.map(|ratio| (span, ratio, factor * budget));
        let all = [known("1 s", self.ratio_1s, WORST_1S), known("10 s", self.ratio_10s, WORST_10S)];
        all.into_iter().flatten()
    }

    fn show(&self) -> String {
        let show = |ratio: Option<f64>| ratio.map_or("-".to_string(), percent);
        format!("{} / {}", show(self.ratio_1s), show(self.ratio_10s))
    }
}

fn worst_outside<'a>(runs: impl Iterator<Item = &'a Sampled>, length_s: f64) -> Option<f64> {
    runs.filter_map(|run| worst_ratio(&run.points(), &run.stats, length_s)).reduce(f64::max)
}

/// A line for a person about a figure of each kind.
type Line = (&'static str, fn(&Found) -> String);

const LINES: &[Line] = &[
    ("context switches per CPU-second", |found| format!("{:.0}", found.switches_per_cpu_s)),
    ("slowdown, CPU time", |found| found.cpu.show()),
    ("slowdown, wall-clock", |found| found.wall.show()),
    ("profiler's CPU time, sampling", |found| found.own.show()),
    ("CPU slowdown + profiler", |found| found.sum.show()),
    ("… with start, names and file", |found| found.sum_with_ends.show()),
    ("overhead, said", |found| percent(found.said_ratio)),
    ("worst 1 s / 10 s, said", |found| found.said.show()),
    ("… without a calibration", |found| found.said_fresh.show()),
    ("… seen from outside", |found| found.outside.show()),
    ("… by the stopwatch", |found| found.stopwatch.show()),
    ("… noise of the stopwatch", |found| found.noise.show()),
];

fn report(found: &[Found], one_cpu: bool) -> Result<()> {
    let mut rows = vec![row([&"medians (95% intervals)"])];
    rows[0].extend(found.iter().map(|found| format!("{}, {} pairs", found.kind, found.pairs)));
    for (name, show) in LINES {
        let mut line = row([name]);
        line.extend(found.iter().map(show));
        rows.push(line);
    }
    let mut remarks: Vec<String> =
        found.iter().flat_map(|found| &found.verdicts).map(|verdict| verdict.line().to_string()).collect();
    if one_cpu {
        remarks.push("one CPU: target and profiler share it, and wall-clock times say little".to_string());
    }
    print(&rows, &remarks, &found)
}
