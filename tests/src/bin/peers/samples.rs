//! What a sample costs: fixed work at a fixed rate.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use tests::checks::C;
use tests::experiment::{option, percent, progress, row};
use tests::figures::{median, median_interval};
use tests::measured::{self, measured};
use tests::peers::{Profiler, Recording};
use tests::programs::program;
use tests::truth::Truth;
use tests::verdict::Verdict;

use super::{Runs, run_attached, start_on};

/// With `_start`, its two callees, `main`, `bottom`, `run`, `run_calls` and the work: 20 frames.
const DEPTH: usize = 11;
const FRAMES: usize = 20;
/// What ours may take of theirs: on the target of an interrupt without stacks, itself and in sum of samply's.
const TARGET_OF_BARE: f64 = 1.15;
const OWN_OF_SAMPLY: f64 = 0.5;
const SUM_OF_SAMPLY: f64 = 0.8;
const MAX_RSS_MIB: f64 = 32.0;

/// One run under one profiler; times per sample (µs).
#[derive(Clone, Copy)]
pub(super) struct Run {
    samples: f64,
    lost: f64,
    /// CPU time that the target took longer than in the round's unsampled runs.
    target_us: f64,
    /// CPU time of the profiler, all it did.
    own_us: f64,
    /// The same without names and the finished file, where it can be told apart.
    own_sampling_us: f64,
    peak_rss_mib: f64,
    written_mib: f64,
    complete_ratio: Option<f64>,
}

#[derive(Serialize)]
pub(super) struct Found {
    profiler: &'static str,
    samples: f64,
    lost: f64,
    target_us: f64,
    own_us: f64,
    own_sampling_us: f64,
    sum_us: f64,
    sum_of_ours: f64,
    target_of_bare: Option<f64>,
    peak_rss_mib: f64,
    written_mib: f64,
    complete_ratio: Option<f64>,
}

/// Each profiler once a round, in an order that turns, between two unsampled runs.
pub(super) fn measure(present: &[Profiler], rounds: usize, cpu: usize) -> Result<Runs<Run>> {
    let (calls, rate) = (calls_for(option("--cpu", 8.0)?, cpu)?, option("--rate", 5000)?);
    let mut runs: Runs<Run> = present.iter().map(|profiler| (*profiler, Vec::new())).collect();
    for round in 0..rounds {
        progress(&format!("samples, round {} of {rounds}", round + 1));
        let before_s = run_unsampled(&calls, cpu)?;
        let mut under = Vec::new();
        for turn in 0..present.len() {
            let at = (round + turn) % present.len();
            under.push((at, run_under(present[at], &calls, rate, cpu)?));
        }
        let unsampled_s = (before_s + run_unsampled(&calls, cpu)?) / 2.0;
        under.into_iter().for_each(|(at, run)| runs[at].1.push(run.per_sample(unsampled_s)));
    }
    Ok(runs)
}

/// So many calls take so many seconds of CPU time here.
fn calls_for(cpu_s: f64, cpu: usize) -> Result<String> {
    let calls = 40_000.0 * cpu_s / run_unsampled("40000", cpu)?;
    Ok(format!("{}", (calls / 100.0) as u64 * 100))
}

fn target(calls: &str, truth: &Path) -> Result<Command> {
    let mut command = Command::new(program("mix_nofp")?);
    command.args(["--calls", calls, "--depth", &DEPTH.to_string(), "--out"]).arg(truth);
    Ok(command)
}

fn run_unsampled(calls: &str, cpu: usize) -> Result<f64> {
    let folder = tempfile::tempdir()?;
    let truth = folder.path().join("truth.json");
    let status = start_on(cpu, &mut target(calls, &truth)?)?.wait()?;
    ensure!(status.success(), "the program failed");
    Ok(Truth::read(&truth)?.cpu_s)
}

/// A run before it is compared with unsampled ones.
struct Raw {
    target_cpu_s: f64,
    used: measured::Used,
    recording: Recording,
    complete_ratio: Option<f64>,
}

fn run_under(profiler: Profiler, calls: &str, rate_hz: u32, cpu: usize) -> Result<Raw> {
    let folder = tempfile::tempdir()?;
    let (truth, used) = (folder.path().join("truth.json"), folder.path().join("used.json"));
    let mut target = start_on(cpu, &mut target(calls, &truth)?)?;
    let attach = profiler.attach(target.id(), rate_hz, folder.path())?;
    let stderr = run_attached(profiler, &mut target, &mut measured(&attach, &used)?)?;
    let recording =
        profiler.read(folder.path(), &stderr).with_context(|| format!("{}'s recording", profiler.name()))?;
    ensure!(recording.samples > 0, "{} took no samples: {stderr}", profiler.name());
    let complete_ratio = complete_ratio(profiler, &recording);
    Ok(Raw {
        target_cpu_s: Truth::read(&truth)?.cpu_s,
        used: measured::read(&used)?,
        recording,
        complete_ratio,
    })
}

/// Share of the stacks that reach from the work to the root; judged by their depth where they have no names.
fn complete_ratio(profiler: Profiler, recording: &Recording) -> Option<f64> {
    let stacks = &recording.stacks;
    let ratio = match profiler {
        Profiler::Bare => return None,
        Profiler::Samply => {
            stacks.weight_of(|stack| stack.frames.len() >= FRAMES) / stacks.weight_of(|_| true)
        }
        Profiler::Sweetspot | Profiler::Dwarf => C.complete_ratio(stacks, DEPTH),
    };
    ratio.is_finite().then_some(ratio)
}

impl Raw {
    fn per_sample(&self, unsampled_cpu_s: f64) -> Run {
        let samples = self.recording.samples as f64;
        let us = |cpu_s: f64| cpu_s / samples * 1e6;
        Run {
            samples,
            lost: self.recording.lost as f64,
            target_us: us(self.target_cpu_s - unsampled_cpu_s),
            own_us: us(self.used.cpu_s),
            own_sampling_us: us(self.recording.sampling_cpu_s.unwrap_or(self.used.cpu_s)),
            peak_rss_mib: self.used.peak_rss_kib as f64 / 1024.0,
            written_mib: self.recording.bytes as f64 / f64::from(1 << 20),
            complete_ratio: self.complete_ratio,
        }
    }
}

impl Run {
    fn sum_us(&self) -> f64 {
        self.target_us + self.own_sampling_us
    }
}

fn runs_of(runs: &Runs<Run>, profiler: Profiler) -> Option<&[Run]> {
    runs.iter().find(|(other, _)| *other == profiler).map(|(_, runs)| runs.as_slice())
}

pub(super) fn found(runs: &Runs<Run>) -> Vec<Found> {
    let of = |runs: &[Run], figure: fn(&Run) -> f64| median(&runs.iter().map(figure).collect::<Vec<_>>());
    let ours_us = runs_of(runs, Profiler::Sweetspot).map_or(f64::NAN, |ours| of(ours, Run::sum_us));
    let bare_us = runs_of(runs, Profiler::Bare).map(|bare| of(bare, |run| run.target_us));
    let line = |(profiler, runs): &(Profiler, Vec<Run>)| Found {
        profiler: profiler.name(),
        samples: of(runs, |run| run.samples),
        lost: of(runs, |run| run.lost),
        target_us: of(runs, |run| run.target_us),
        own_us: of(runs, |run| run.own_us),
        own_sampling_us: of(runs, |run| run.own_sampling_us),
        sum_us: of(runs, Run::sum_us),
        sum_of_ours: of(runs, Run::sum_us) / ours_us,
        target_of_bare: bare_us.map(|bare_us| of(runs, |run| run.target_us) / bare_us),
        peak_rss_mib: of(runs, |run| run.peak_rss_mib),
        written_mib: of(runs, |run| run.written_mib),
        complete_ratio: runs.iter().filter_map(|run| run.complete_ratio).reduce(f64::min),
    };
    runs.iter().map(line).collect()
}

fn times(ratio: f64) -> String {
    format!("{ratio:.2} ×")
}

fn mib(size: f64) -> String {
    format!("{size:.1} MiB")
}

/// Holds our cost against theirs, round by round: two runs of one round met the same machine.
pub(super) fn judge(runs: &Runs<Run>) -> Vec<Verdict> {
    let Some(ours) = runs_of(runs, Profiler::Sweetspot) else { return Vec::new() };
    let against = |what: &str, other: Profiler, bound: f64, figure: fn(&Run) -> f64| {
        let theirs = runs_of(runs, other)?;
        // Where noise leaves nothing of theirs, there is no ratio that speaks for us.
        let ratio = |a: f64, b: f64| if b > 0.0 { a / b } else { f64::INFINITY };
        let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(a, b)| ratio(figure(a), figure(b))).collect();
        let what = format!("{what}, of {}'s", other.name());
        Some(Verdict::new(&what, median(&ratios), median_interval(&ratios), bound, times))
    };
    let rss_mib = ours.iter().map(|run| run.peak_rss_mib).fold(0.0, f64::max);
    let compared = [
        against("on the target", Profiler::Bare, TARGET_OF_BARE, |run| run.target_us),
        against("own CPU time", Profiler::Samply, OWN_OF_SAMPLY, |run| run.own_sampling_us),
        against("in sum", Profiler::Samply, SUM_OF_SAMPLY, Run::sum_us),
    ];
    let rss = Verdict::exact("memory", rss_mib, MAX_RSS_MIB, mib);
    compared.into_iter().flatten().chain([rss]).collect()
}

pub(super) fn rows(found: &[Found]) -> Vec<Vec<String>> {
    let heads = [
        "profiler",
        "samples",
        "lost",
        "target µs",
        "own µs",
        "+ names",
        "sum µs",
        "× ours",
        "target × bare",
        "RSS MiB",
        "written MiB",
        "complete ≥",
    ];
    let mut rows = vec![heads.map(str::to_string).to_vec()];
    let or_dash = |figure: Option<String>| figure.unwrap_or("-".to_string());
    rows.extend(found.iter().map(|one| {
        row([
            &one.profiler,
            &one.samples,
            &one.lost,
            &format!("{:.2}", one.target_us),
            &format!("{:.2}", one.own_sampling_us),
            &format!("{:.2}", one.own_us - one.own_sampling_us),
            &format!("{:.2}", one.sum_us),
            &format!("{:.2}", one.sum_of_ours),
            &or_dash(one.target_of_bare.map(|ratio| format!("{ratio:.2}"))),
            &format!("{:.1}", one.peak_rss_mib),
            &format!("{:.2}", one.written_mib),
            &or_dash(one.complete_ratio.map(percent)),
        ])
    }));
    rows
}
