//! What does a sample cost, with us and with others? A program of fixed work, 20 frames deep and without
//! frame pointers, runs unsampled and under each profiler in turn, at the same fixed rate.
//!
//! Recording only: `perf script` and what samply does when it shows a profile are left out. Ours symbolizes
//! and writes a finished profile before it ends; its figure is given with that and without.
//!
//! Options: `--rounds 5`, `--cpu 8` (seconds of work a run), `--rate 5000`.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use tests::experiment::{option, print, progress, row};
use tests::figures::median;
use tests::guards::{Running, Sysctl, is_root};
use tests::measured::{self, measure_if_asked, measured};
use tests::peers::{Profiler, Recording};
use tests::programs::program;
use tests::run::finish;
use tests::truth::Truth;

/// With `_start`, its two callees, `main`, `bottom`, `run`, `run_calls` and the work: 20 frames.
const DEPTH: &str = "11";

/// One run under one profiler.
struct Run {
    target_cpu_s: f64,
    used: measured::Used,
    recording: Recording,
}

#[derive(Serialize)]
struct Found {
    profiler: &'static str,
    samples: f64,
    lost: f64,
    /// CPU time the target took longer, per sample.
    target_us: f64,
    /// CPU time of the profiler per sample, all it did.
    self_us: f64,
    /// The same without symbolizing and writing, where it can be told apart.
    self_sampling_us: Option<f64>,
    peak_rss_mib: f64,
    written_mib: f64,
}

fn main() -> Result<()> {
    measure_if_asked()?;
    let (rounds, cpu, rate) = (option("--rounds", 5)?, option("--cpu", 8.0)?, option("--rate", 5000)?);
    let calls = calls_for(cpu)?;
    // samply refuses to run at more than 1, even as root; the level makes no other difference to root.
    let _paranoid = is_root().then(|| Sysctl::kernel("perf_event_paranoid", "1")).transpose()?;
    let (present, missing): (Vec<_>, Vec<_>) =
        Profiler::ALL.into_iter().partition(|profiler| profiler.find().is_some());
    let mut unsampled = Vec::new();
    let mut runs: Vec<Vec<Run>> = present.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        progress(&format!("round {} of {rounds}", round + 1));
        unsampled.push(run_unsampled(&calls)?);
        for (profiler, runs) in present.iter().zip(&mut runs) {
            runs.push(run_under(*profiler, &calls, rate)?);
        }
        unsampled.push(run_unsampled(&calls)?);
    }
    let baseline = median(&unsampled);
    let found: Vec<Found> =
        present.iter().zip(&runs).map(|(profiler, runs)| found(*profiler, runs, baseline)).collect();
    report(&found, &missing, &unsampled)
}

/// So many calls take so many seconds of CPU time here.
fn calls_for(cpu_s: f64) -> Result<String> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("truth.json");
    let status =
        Command::new(program("mix_nofp")?).args(["--calls", "40000", "--out"]).arg(&path).status()?;
    ensure!(status.success(), "the program failed");
    let calls = 40_000.0 * cpu_s / Truth::read(&path)?.work_cpu_s;
    Ok(format!("{}", (calls / 100.0) as u64 * 100))
}

fn target(calls: &str, truth: &Path) -> Result<Command> {
    let mut command = Command::new(program("mix_nofp")?);
    command.args(["--calls", calls, "--depth", DEPTH, "--out"]).arg(truth);
    Ok(command)
}

fn run_unsampled(calls: &str) -> Result<f64> {
    let folder = tempfile::tempdir()?;
    let truth = folder.path().join("truth.json");
    let status = target(calls, &truth)?.status()?;
    ensure!(status.success(), "the program failed");
    Ok(Truth::read(&truth)?.cpu_s)
}

fn run_under(profiler: Profiler, calls: &str, rate_hz: u32) -> Result<Run> {
    let folder = tempfile::tempdir()?;
    let (truth, used) = (folder.path().join("truth.json"), folder.path().join("used.json"));
    let mut target = Running::start(target(calls, &truth)?.stdout(Stdio::null()))?;
    let attach = profiler.attach(target.id(), rate_hz, folder.path())?;
    let attached = Running::start(&mut measured(&attach, &used)?)?;
    target.wait()?;
    let ended = finish(attached)?;
    ensure!(ended.status == 0, "{} failed: {}", profiler.name(), ended.stderr);
    let recording = profiler
        .read(folder.path(), &ended.stderr)
        .with_context(|| format!("{}'s recording", profiler.name()))?;
    ensure!(recording.samples > 0, "{} took no samples: {}", profiler.name(), ended.stderr);
    Ok(Run { target_cpu_s: Truth::read(&truth)?.cpu_s, used: measured::read(&used)?, recording })
}

fn found(profiler: Profiler, runs: &[Run], baseline_cpu_s: f64) -> Found {
    let of = |figure: &dyn Fn(&Run) -> f64| median(&runs.iter().map(figure).collect::<Vec<_>>());
    let per_sample_us = |run: &Run, cpu_s: f64| cpu_s / run.recording.samples as f64 * 1e6;
    let tells = runs.iter().all(|run| run.recording.sampling_cpu_s.is_some());
    Found {
        profiler: profiler.name(),
        samples: of(&|run| run.recording.samples as f64),
        lost: of(&|run| run.recording.lost as f64),
        target_us: of(&|run| per_sample_us(run, run.target_cpu_s - baseline_cpu_s)),
        self_us: of(&|run| per_sample_us(run, run.used.cpu_s)),
        self_sampling_us: tells
            .then(|| of(&|run| per_sample_us(run, run.recording.sampling_cpu_s.unwrap_or(0.0)))),
        peak_rss_mib: of(&|run| run.used.peak_rss_kib as f64 / 1024.0),
        written_mib: of(&|run| run.recording.bytes as f64 / f64::from(1 << 20)),
    }
}

fn report(found: &[Found], missing: &[Profiler], unsampled: &[f64]) -> Result<()> {
    let heads =
        ["profiler", "samples", "lost", "target µs", "own µs", "sum µs", "× ours", "RSS MiB", "written MiB"];
    let mut rows = vec![heads.map(str::to_string).to_vec()];
    let sum = |found: &Found| found.target_us + found.self_us;
    for one in found {
        rows.push(row([
            &one.profiler,
            &one.samples,
            &one.lost,
            &format!("{:.2}", one.target_us),
            &format!("{:.2}", one.self_us),
            &format!("{:.2}", sum(one)),
            &format!("{:.2}", sum(one) / sum(&found[0])),
            &format!("{:.1}", one.peak_rss_mib),
            &format!("{:.2}", one.written_mib),
        ]));
    }
    let mut remarks = vec![
        "µs of CPU time per sample, medians; recording only, without perf script and samply's symbols"
            .to_string(),
    ];
    if let Some(us) = found[0].self_sampling_us {
        remarks.push(format!("sweetspot's own {us:.2} µs without symbolizing and writing the profile"));
    }
    let noise = unsampled.iter().map(|cpu_s| (cpu_s - median(unsampled)).abs()).collect::<Vec<_>>();
    let noise_us = median(&noise) / found[0].samples * 1e6;
    remarks.push(format!("noise of the unsampled runs: ±{noise_us:.2} µs per sample (median deviation)"));
    let lacks = |profiler: &Profiler| format!("{} is missing: {}", profiler.name(), profiler.how_to_get());
    remarks.extend(missing.iter().map(lacks));
    print(&rows, &remarks, &found)
}
