//! Does the profiler stay within its budget? A program of fixed work runs unsampled and sampled in the order
//! A B B A, and the slowdown is the program's own account of it. Then the worst second and the worst ten
//! seconds of further runs, computed here from the kernel's CPU times: with the machine's calibration at
//! hand, and without.
//!
//! Options: `--pairs 12`, `--cpu 10` (seconds of work a run), `--budget 1%`, `--runs 3` (of each kind, for
//! the windows), `--window-cpu 20`.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::{thread, time::Duration};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use tests::experiment::{option, percent, print, progress, row};
use tests::figures::{median, median_interval};
use tests::guards::Running;
use tests::measured::{self, measure_if_asked, measured};
use tests::programs::program;
use tests::run::{Sweetspot, finish, start, wait_until};
use tests::stats::Stats;
use tests::truth::Truth;
use tests::windows::{Point, cpu_s, monotonic_s, worst_ratio};

const DEPTH: &str = "20";

#[derive(Serialize)]
struct Slowdown {
    pairs: usize,
    /// Median, and its 95% bootstrap interval, which is the noise of this experiment.
    median_ratio: f64,
    low_ratio: f64,
    high_ratio: f64,
}

#[derive(Serialize)]
struct Windows {
    calibration: &'static str,
    worst_1s_ratio: f64,
    worst_10s_ratio: f64,
    said_worst_1s_ratio: f64,
    said_worst_10s_ratio: f64,
    setup_cpu_s: f64,
    rate_hz: f64,
}

#[derive(Serialize)]
struct Found {
    budget: String,
    cpu: Slowdown,
    wall: Slowdown,
    /// CPU time of the profiler, from start to end, over that of the program.
    own: Slowdown,
    said_overhead_ratio: f64,
    windows: Vec<Windows>,
}

/// One run of the program.
#[derive(Clone, Copy, Default)]
struct Run {
    cpu_s: f64,
    wall_s: f64,
    own_cpu_s: f64,
    said_overhead_ratio: f64,
}

fn main() -> Result<()> {
    measure_if_asked()?;
    let budget = option("--budget", "1%".to_string())?;
    let calls = calls_for(option("--cpu", 10.0)?)?;
    let pairs = measure_pairs(&budget, &calls, option("--pairs", 12)?)?;
    let of = |ratio: fn(&(Run, Run)) -> f64| slowdown(&pairs.iter().map(ratio).collect::<Vec<_>>());
    let said: Vec<f64> = pairs.iter().map(|(_, sampled)| sampled.said_overhead_ratio).collect();
    let mut windows = Vec::new();
    let long = calls_for(option("--window-cpu", 20.0)?)?;
    for calibration in ["present", "absent"] {
        for _ in 0..option("--runs", 3)? {
            windows.push(measure_windows(&budget, &long, calibration)?);
        }
    }
    let found = Found {
        cpu: of(|(unsampled, sampled)| sampled.cpu_s / unsampled.cpu_s - 1.0),
        wall: of(|(unsampled, sampled)| sampled.wall_s / unsampled.wall_s - 1.0),
        own: of(|(unsampled, sampled)| sampled.own_cpu_s / unsampled.cpu_s),
        said_overhead_ratio: median(&said),
        budget,
        windows,
    };
    report(&found)
}

fn slowdown(ratios: &[f64]) -> Slowdown {
    let (low_ratio, high_ratio) = median_interval(ratios);
    Slowdown { pairs: ratios.len(), median_ratio: median(ratios), low_ratio, high_ratio }
}

/// So many calls take so many seconds of CPU time here.
fn calls_for(cpu_s: f64) -> Result<String> {
    let per_call = run_program(&["--calls", "40000"])?.cpu_s / 40_000.0;
    Ok(format!("{}", (cpu_s / per_call / 100.0) as u64 * 100))
}

fn run_program(arguments: &[&str]) -> Result<Run> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("truth.json");
    let status = Command::new(program("mix_nofp")?).args(arguments).arg("--out").arg(&path).status()?;
    ensure!(status.success(), "the program failed");
    let truth = Truth::read(&path)?;
    Ok(Run { cpu_s: truth.cpu_s, wall_s: truth.wall_s, ..Run::default() })
}

/// Pairs of an unsampled and a sampled run, in the order A B B A.
fn measure_pairs(budget: &str, calls: &str, pairs: usize) -> Result<Vec<(Run, Run)>> {
    let unsampled = || run_program(&["--calls", calls, "--depth", DEPTH]);
    run_sampled(budget, calls)?; // leaves the calibration for those that count
    let mut found = Vec::new();
    for pair in 0..pairs {
        progress(&format!("pair {} of {pairs}", pair + 1));
        found.push(if pair % 2 == 0 {
            let first = unsampled()?;
            (first, run_sampled(budget, calls)?)
        } else {
            let first = run_sampled(budget, calls)?;
            (unsampled()?, first)
        });
    }
    Ok(found)
}

/// `sweetspot record` with a budget, and where the program and the profiler leave their figures.
fn sampled(sweetspot: &Sweetspot, budget: &str, calls: &str) -> Result<Command> {
    let mut words = sweetspot.outputs();
    words.extend(["--budget", budget, "--", &*program("mix_nofp")?.to_string_lossy()].map(str::to_string));
    words.extend(
        ["--calls", calls, "--depth", DEPTH, "--out", &sweetspot.file("truth.json")].map(str::to_string),
    );
    Ok(sweetspot.command("record", &words))
}

fn run_sampled(budget: &str, calls: &str) -> Result<Run> {
    let sweetspot = Sweetspot::new();
    let used = sweetspot.path().join("used.json");
    let ended =
        finish(start(&mut measured(&sampled(&sweetspot, budget, calls)?, &used)?)?)?.expect_status(0)?;
    let truth = Truth::read(Path::new(&sweetspot.file("truth.json"))).context(ended.stderr)?;
    let stats = Stats::parse(&fs::read_to_string(sweetspot.file("stats.jsonl"))?)?;
    Ok(Run {
        cpu_s: truth.cpu_s,
        wall_s: truth.wall_s,
        // The profiler waits for the program, so their CPU times come as one.
        own_cpu_s: measured::read(&used)?.cpu_s - truth.cpu_s,
        said_overhead_ratio: stats.summary.overhead_ratio,
    })
}

fn measure_windows(budget: &str, calls: &str, calibration: &'static str) -> Result<Windows> {
    progress(&format!("windows, calibration {calibration}"));
    let sweetspot = Sweetspot::new();
    let mut command = sampled(&sweetspot, budget, calls)?;
    if calibration == "absent" {
        command.env("XDG_CACHE_HOME", sweetspot.path());
    }
    let mut profiler = Running::start(command.stdout(Stdio::null()).stderr(Stdio::null()))?;
    let points = watch(&mut profiler)?;
    ensure!(profiler.wait()?.success(), "the profiler failed");
    let stats = Stats::parse(&fs::read_to_string(sweetspot.file("stats.jsonl"))?)?;
    let worst = |length_s| worst_ratio(&points, &stats, length_s).context("the run is too short");
    Ok(Windows {
        calibration,
        worst_1s_ratio: worst(1.0)?,
        worst_10s_ratio: worst(10.0)?,
        said_worst_1s_ratio: stats.summary.overhead_worst_1s_ratio,
        said_worst_10s_ratio: stats.summary.overhead_worst_10s_ratio,
        setup_cpu_s: stats.summary.setup_cpu_s,
        rate_hz: stats.summary.rate_hz,
    })
}

/// CPU times of the profiler and its command, every 50 ms from the command's start to its end.
fn watch(profiler: &mut Running) -> Result<Vec<Point>> {
    let own = profiler.id();
    let mut target = None;
    wait_until("the command", || {
        target = command_of(own);
        target.is_some() || profiler.try_wait().is_ok_and(|status| status.is_some())
    })?;
    let target = target.context("the profiler ended without a command")?;
    let mut points = Vec::new();
    while let (Ok(target_s), Ok(own_s)) = (cpu_s(target), cpu_s(own)) {
        points.push(Point { at_s: monotonic_s()?, target_s, own_s });
        if is_zombie(target) {
            break;
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(points)
}

/// The profiler's child, once it runs the program.
fn command_of(profiler: u32) -> Option<u32> {
    let tasks = fs::read_dir(format!("/proc/{profiler}/task")).ok()?.flatten();
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let pids: Vec<u32> =
        children.flat_map(|list| list.split_whitespace().flat_map(str::parse).collect::<Vec<_>>()).collect();
    pids.into_iter().find(|pid| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == "mix_nofp")
    })
}

fn is_zombie(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
}

fn report(found: &Found) -> Result<()> {
    let heads = ["slowdown", "median", "95% interval", "pairs"];
    let mut rows = vec![heads.map(str::to_string).to_vec()];
    for (name, slowdown) in [("CPU", &found.cpu), ("wall", &found.wall), ("profiler's own CPU", &found.own)] {
        let interval = format!("{} … {}", percent(slowdown.low_ratio), percent(slowdown.high_ratio));
        rows.push(row([&name, &percent(slowdown.median_ratio), &interval, &slowdown.pairs]));
    }
    rows.push(vec![]);
    rows.push(
        ["calibration", "worst 1 s", "worst 10 s", "said 1 s", "said 10 s", "setup CPU", "rate"]
            .map(str::to_string)
            .to_vec(),
    );
    for windows in &found.windows {
        rows.push(row([
            &windows.calibration,
            &percent(windows.worst_1s_ratio),
            &percent(windows.worst_10s_ratio),
            &percent(windows.said_worst_1s_ratio),
            &percent(windows.said_worst_10s_ratio),
            &format!("{:.3} s", windows.setup_cpu_s),
            &format!("{:.0}/s", windows.rate_hz),
        ]));
    }
    let remark = format!(
        "budget {}; the profiler itself says {} (median); its own CPU time above includes start and symbols",
        found.budget,
        percent(found.said_overhead_ratio)
    );
    print(&rows, &[remark], found)
}
