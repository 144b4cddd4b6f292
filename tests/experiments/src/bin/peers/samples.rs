//! What a sample costs: fixed work at a fixed rate.

use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use tests::experiment::{option, percent, progress, row};
use tests::figures::{median, median_interval};
use tests::folded::Stack;
use tests::guards::Running;
use tests::measured::{self, measured};
use tests::peers::{Profiler, Recording};
use tests::run::finish;
use tests::twins::{Turn, Twins, Work, excess, now_s};
use tests::verdict::Verdict;

use super::Runs;

/// With `_start`, its two callees, `main`, `descend` once more, `take_turns`, `work` and the work itself: 20 frames.
const DEPTH: u64 = 12;
const FRAMES: usize = 20;
/// Bounds on sweetspot's cost: on the target, over that of an interrupt without stacks; own CPU time and sum, over samply's.
const TARGET_OF_BARE: f64 = 1.10;
const OWN_OF_SAMPLY: f64 = 0.5;
const SUM_OF_SAMPLY: f64 = 0.7;
const MAX_RSS_MIB: f64 = 32.0;

/// One run under one profiler; times per sample (µs).
#[derive(Clone, Copy)]
pub(super) struct Run {
    samples: f64,
    lost: f64,
    /// Extra CPU time of the target over its unsampled twin.
    target_us: f64,
    /// All CPU time of the profiler.
    own_us: f64,
    /// The same without naming and writing the finished file, where that can be separated.
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

/// Runs each profiler once a round; the order rotates.
pub(super) fn measure(present: &[Profiler], rounds: usize, cpu: usize) -> Result<Runs<Run>> {
    let (seconds, rate) = (option("--seconds", 8.0)?, option("--rate", 5000)?);
    let mut runs: Runs<Run> = present.iter().map(|profiler| (*profiler, Vec::new())).collect();
    for round in 0..rounds {
        progress(&format!("samples, round {} of {rounds}", round + 1));
        for turn in 0..present.len() {
            let at = (round + turn) % present.len();
            runs[at].1.push(run_under(present[at], seconds, rate, cpu)?.per_sample());
        }
    }
    Ok(runs)
}

/// The totals of a run.
struct Raw {
    /// Extra CPU time of the target over its twin (s).
    extra_s: f64,
    used: measured::Used,
    recording: Recording,
    complete_ratio: Option<f64>,
}

/// Two processes take turns at the same work, first unsampled; then one of them is profiled until it ends.
fn run_under(profiler: Profiler, seconds: f64, rate_hz: u32, cpu: usize) -> Result<Raw> {
    let folder = tempfile::tempdir()?;
    let used = folder.path().join("used.json");
    let twins = Twins::start(Work { kind: "compute", depth: DEPTH, step_at: 0, cpu, program: "twins_nofp" })?;
    sleep(Duration::from_secs_f64(seconds / 2.0));
    let attached_s = now_s()?;
    let attach = profiler.attach(twins.pid, rate_hz, folder.path())?;
    let mut attached = Running::start(
        measured(&attach, &used)?.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()),
    )?;
    sleep(Duration::from_secs_f64(seconds));
    let early = attached.try_wait()?;
    let turns = twins.end()?;
    let ended = finish(attached)?;
    ensure!(ended.status == 0 && early.is_none(), "{} failed: {}", profiler.name(), ended.stderr);
    let recording = profiler
        .read(folder.path(), &ended.stderr)
        .with_context(|| format!("{}'s recording", profiler.name()))?;
    ensure!(recording.samples > 0, "{} took no samples: {}", profiler.name(), ended.stderr);
    let (before, during): (Vec<Turn>, Vec<Turn>) = turns.iter().partition(|turn| turn.over_s < attached_s);
    let usual = excess(&before).context("--seconds is too short")?;
    let twin_s: f64 = during.iter().map(|turn| turn.twin_s).sum();
    let extra_s = (excess(&during).context("--seconds is too short")?.mean - usual.mean) * twin_s;
    let complete_ratio = complete_ratio(profiler, &recording);
    Ok(Raw { extra_s, used: measured::read(&used)?, recording, complete_ratio })
}

/// Share of the stacks that reach from the work to the root; judged by their depth where they have no names.
fn complete_ratio(profiler: Profiler, recording: &Recording) -> Option<f64> {
    let stacks = &recording.stacks;
    let ratio = match profiler {
        Profiler::Bare => return None,
        Profiler::Samply => {
            stacks.weight_of(|stack| stack.frames.len() >= FRAMES) / stacks.weight_of(|_| true)
        }
        Profiler::Sweetspot | Profiler::Dwarf => {
            let is_work = |stack: &Stack| stack.frames.last().is_some_and(|leaf| leaf == "compute");
            let descends = |stack: &Stack| stack.frames.iter().filter(|frame| *frame == "descend").count();
            let is_whole =
                |stack: &Stack| is_work(stack) && stack.has("main") && descends(stack) == DEPTH as usize + 1;
            stacks.weight_of(is_whole) / stacks.weight_of(is_work)
        }
    };
    ratio.is_finite().then_some(ratio)
}

impl Raw {
    fn per_sample(&self) -> Run {
        let samples = self.recording.samples as f64;
        let us = |cpu_s: f64| cpu_s / samples * 1e6;
        Run {
            samples,
            lost: self.recording.lost as f64,
            target_us: us(self.extra_s),
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

/// Compares the costs round by round: the runs of one round found the machine in the same state.
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
