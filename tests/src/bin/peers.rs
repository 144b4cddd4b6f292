//! What does a sample cost, with us and with others? A program of fixed work, 20 frames deep and without
//! frame pointers, runs unsampled and under each profiler in turn, at the same fixed rate. Then a pair of
//! threads that does nothing but switch: what does it cost to be followed, at the rate usual for each profiler?
//!
//! The target has a CPU to itself and the profiler another. Recording only: `perf script` and what samply
//! does when it shows a profile are left out. Ours finds the names and writes a finished profile before it
//! ends; its figure is given with that and without.
//!
//! Options: `--only sample|pair`, `--rounds 5`, `--cpu 8` (seconds of work a run), `--rate 5000`.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use tests::checks::C;
use tests::experiment::{option, percent, print, progress, row};
use tests::figures::{median, median_interval};
use tests::fixed::{Done, Work};
use tests::guards::{OnCpu, Running, Sysctl, is_root, two_cpus};
use tests::measured::{self, measure_if_asked, measured};
use tests::peers::{Profiler, Recording};
use tests::programs::program;
use tests::run::{finish, sweetspot};
use tests::truth::Truth;
use tests::verdict::{Verdict, ensure_none_fails};

/// With `_start`, its two callees, `main`, `bottom`, `run`, `run_calls` and the work: 20 frames.
const DEPTH: usize = 11;
const FRAMES: usize = 20;
/// What ours may take of theirs: on the target of an interrupt without stacks, itself and in sum of samply's.
const TARGET_OF_BARE: f64 = 1.15;
const OWN_OF_SAMPLY: f64 = 0.5;
const SUM_OF_SAMPLY: f64 = 0.8;
const MAX_RSS_MIB: f64 = 32.0;
/// What ours may slow a switching pair down, of perf's slowdown.
const PAIR_OF_PERF: f64 = 0.25;
/// A profiler may take so long to find its way with a switching pair (s).
const SETTLED_S: f64 = 2.0;

/// One run under one profiler; times per sample (µs).
#[derive(Clone, Copy)]
struct Run {
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
struct Found {
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

/// What being followed cost a switching pair.
#[derive(Serialize)]
struct Pair {
    profiler: &'static str,
    cpu_slowdown_ratio: f64,
    low_ratio: f64,
    high_ratio: f64,
    wall_slowdown_ratio: f64,
}

/// Everything that was found.
#[derive(Serialize)]
struct Report {
    found: Vec<Found>,
    pairs: Vec<Pair>,
    verdicts: Vec<Verdict>,
}

/// The profilers that are there, each with its runs.
type Runs<T> = Vec<(Profiler, Vec<T>)>;

fn main() -> Result<()> {
    measure_if_asked()?;
    let (only, rounds) = (option("--only", String::new())?, option("--rounds", 5)?);
    ensure!(["", "sample", "pair"].contains(&only.as_str()), "--only takes sample or pair");
    ensure!(rounds > 0, "--rounds needs at least 1");
    // samply refuses to run at more than 1, even as root; the level makes no other difference to root.
    let _paranoid = is_root().then(|| Sysctl::kernel("perf_event_paranoid", "1")).transpose()?;
    sweetspot(); // built before this is bound to one CPU
    let (target_cpu, own_cpu) = two_cpus()?;
    let _here = OnCpu::new(own_cpu)?;
    let (present, missing): (Vec<_>, Vec<_>) =
        Profiler::ALL.into_iter().partition(|profiler| profiler.find().is_some());
    let lacks = |profiler: &Profiler| format!("{} is missing: {}", profiler.name(), profiler.how_to_get());
    let (mut rows, mut remarks) = (Vec::new(), missing.iter().map(lacks).collect::<Vec<_>>());
    let mut report = Report { found: Vec::new(), pairs: Vec::new(), verdicts: Vec::new() };
    if only != "pair" {
        let runs = measure_samples(&present, rounds, target_cpu)?;
        report.found = found(&runs);
        report.verdicts.extend(judge_samples(&runs));
        rows.extend(sample_rows(&report.found));
        remarks
            .push("µs of CPU time per sample, medians; sum and gates are without finding names".to_string());
    }
    if only != "sample" {
        let usual: Vec<_> = present.into_iter().filter(|profiler| *profiler != Profiler::Dwarf).collect();
        let (slowdowns, switches_per_s) = measure_pair(&usual, rounds, target_cpu)?;
        report.pairs = pairs(&slowdowns);
        report.verdicts.extend(judge_pair(&report.pairs));
        rows.extend(pair_rows(&report.pairs));
        remarks.push(format!("the pair switches {switches_per_s:.0} times a second unsampled"));
    }
    remarks.extend(report.verdicts.iter().map(|verdict| verdict.line().to_string()));
    print(&rows, &remarks, &report)?;
    ensure_none_fails(&report.verdicts)
}

/// Each profiler once a round, in an order that turns, between two unsampled runs.
fn measure_samples(present: &[Profiler], rounds: usize, cpu: usize) -> Result<Runs<Run>> {
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

/// Starts a command on a CPU of its own.
fn start_on(cpu: usize, command: &mut Command) -> Result<Running> {
    let _there = OnCpu::new(cpu)?;
    Running::start(command.stdin(Stdio::null()).stdout(Stdio::null()))
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

/// Lets a profiler and its target run to their ends; returns what the profiler said.
fn run_attached(profiler: Profiler, target: &mut Running, attach: &mut Command) -> Result<String> {
    let attached = Running::start(attach)?;
    ensure!(target.wait()?.success(), "the program failed under {}", profiler.name());
    let ended = finish(attached)?;
    ensure!(ended.status == 0, "{} failed: {}", profiler.name(), ended.stderr);
    Ok(ended.stderr)
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

fn found(runs: &Runs<Run>) -> Vec<Found> {
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
fn judge_samples(runs: &Runs<Run>) -> Vec<Verdict> {
    let Some(ours) = runs_of(runs, Profiler::Sweetspot) else { return Vec::new() };
    let against = |what: &str, other: Profiler, bound: f64, figure: fn(&Run) -> f64| {
        let theirs = runs_of(runs, other)?;
        let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(a, b)| figure(a) / figure(b)).collect();
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

fn sample_rows(found: &[Found]) -> Vec<Vec<String>> {
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
    rows.push(Vec::new());
    rows
}

/// Seconds (CPU, wall-clock) that a mark of work took, once settled.
fn pace(done: &Done) -> Result<(f64, f64)> {
    let settled_s = done.marks[0].0 + SETTLED_S;
    let settled: Vec<_> = done.marks.iter().filter(|(at_s, _)| *at_s >= settled_s).collect();
    ensure!(settled.len() > 10, "--cpu is too short: a pair takes {SETTLED_S} s to settle");
    let (first, last, count) = (settled[0], settled[settled.len() - 1], settled.len() as f64 - 1.0);
    Ok(((last.1 - first.1) / count, (last.0 - first.0) / count))
}

/// Slowdowns (CPU, wall-clock) of a switching pair, profiler by profiler, and its switches a second unsampled.
fn measure_pair(present: &[Profiler], rounds: usize, cpu: usize) -> Result<(Runs<(f64, f64)>, f64)> {
    let work = Work::lasting("pair", option("--cpu", 8.0)?, cpu)?;
    let mut runs: Runs<(f64, f64)> = present.iter().map(|profiler| (*profiler, Vec::new())).collect();
    let mut rates = Vec::new();
    for round in 0..rounds {
        progress(&format!("switching pair, round {} of {rounds}", round + 1));
        let unsampled = work.unsampled()?;
        rates.push(unsampled.switches as f64 / unsampled.wall_s());
        let alone = pace(&unsampled)?;
        for turn in 0..present.len() {
            let at = (round + turn) % present.len();
            let under = pace(&follow_pair(present[at], &work)?)?;
            runs[at].1.push((under.0 / alone.0 - 1.0, under.1 / alone.1 - 1.0));
        }
    }
    Ok((runs, median(&rates)))
}

fn follow_pair(profiler: Profiler, work: &Work) -> Result<Done> {
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

fn pairs(runs: &Runs<(f64, f64)>) -> Vec<Pair> {
    let pair = |(profiler, runs): &(Profiler, Vec<(f64, f64)>)| {
        let (cpu, wall): (Vec<f64>, Vec<f64>) = runs.iter().copied().unzip();
        let (low_ratio, high_ratio) = median_interval(&cpu);
        Pair {
            profiler: profiler.name(),
            cpu_slowdown_ratio: median(&cpu),
            low_ratio,
            high_ratio,
            wall_slowdown_ratio: median(&wall),
        }
    };
    runs.iter().map(pair).collect()
}

fn judge_pair(pairs: &[Pair]) -> Option<Verdict> {
    let of = |profiler: Profiler| pairs.iter().find(|pair| pair.profiler == profiler.name());
    let (ours, perf) = (of(Profiler::Sweetspot)?, of(Profiler::Bare)?);
    let interval = (ours.low_ratio, ours.high_ratio);
    let bound = PAIR_OF_PERF * perf.cpu_slowdown_ratio;
    Some(Verdict::new("slowdown of the pair", ours.cpu_slowdown_ratio, interval, bound, percent))
}

fn pair_rows(pairs: &[Pair]) -> Vec<Vec<String>> {
    let mut rows =
        vec![["switching pair", "CPU slowdown", "95% interval", "wall"].map(str::to_string).to_vec()];
    rows.extend(pairs.iter().map(|pair| {
        let interval = format!("{} … {}", percent(pair.low_ratio), percent(pair.high_ratio));
        row([
            &pair.profiler,
            &percent(pair.cpu_slowdown_ratio),
            &interval,
            &percent(pair.wall_slowdown_ratio),
        ])
    }));
    rows
}
