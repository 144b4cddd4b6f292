//! Does a sample cost what the calibration says, and a run what it says itself? A program of fixed work, on a CPU of its
//! own, tells by its own clock what it took at several fixed rates, unsampled runs among them; the slope of that over
//! the samples is what one costs.
//!
//! Options: `--rounds 3`, `--cpu 2` (seconds of work a run), `--depths 5,50,300`, `--quick` (believe a quick
//! calibration).

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use serde_json::Value;
use tests::experiment::{option, percent, print, progress, row};
use tests::programs::program;
use tests::run::{Sweetspot, run};
use tests::slope::{Figure, slope};
use tests::stats::{Stats, Summary};
use tests::truth::Truth;

/// Overheads that the fixed rates are chosen for.
const OVERHEADS: [f64; 3] = [0.01, 0.03, 0.10];
/// How far the cost of a sample may be off, and a run's own account of its overhead.
const COST_GOAL: f64 = 0.10;
const ACCOUNT_GOAL: f64 = 0.15;
/// Standard errors beyond the goal from which a figure is off: of some fifty comparisons, two would cry wolf at two.
const CERTAIN: f64 = 3.0;
/// Frames and bytes that a rate is chosen by before any run told: a program of depth D has a few more frames.
const START_UP_FRAMES: f64 = 5.0;
const BYTES_PER_FRAME: f64 = 48.0;
/// What the profiler itself is taken to need for a sample (µs).
const OWN_US: f64 = 5.0;
/// Iterations that tell how long one takes: tens of milliseconds of multiplications, a tenth of a second of reads.
const TRIAL_ITERATIONS: f64 = 20e6;
const TRIAL_READS: f64 = 2e6;

/// What is measured: how the stacks are found, how deep they are, what the program waits for.
#[derive(Clone, Copy, Debug, Serialize)]
struct Cell {
    unwind: &'static str,
    kind: &'static str,
    depth: u64,
}

/// Where program and profiler run.
#[derive(Clone, Copy)]
struct Place {
    program: usize,
    profiler: usize,
}

/// One run: what the program took, and what the profiler says, if there was one.
struct Run {
    cpu_s: f64,
    /// Without its start.
    work_cpu_s: f64,
    summary: Option<Summary>,
}

/// A figure said over the same measured.
#[derive(Serialize)]
struct Compared {
    said: f64,
    measured: f64,
    ratio: Figure,
    verdict: &'static str,
}

#[derive(Serialize)]
struct Found {
    #[serde(flatten)]
    cell: Cell,
    cost_us: Compared,
    /// At each of the overheads.
    overhead_ratio: Vec<Compared>,
}

fn main() -> Result<()> {
    let place = place()?;
    let model = calibrated()?;
    let (rounds, cpu_s) = (option("--rounds", 3)?, option("--cpu", 2.0)?);
    let found: Vec<Found> = cells()?
        .into_iter()
        .map(|cell| measure(cell, place, &model, rounds, cpu_s))
        .collect::<Result<_>>()?;
    report(&found)?;
    let missed = |compared: &Compared| compared.verdict == "off";
    let off = found
        .iter()
        .filter(|found| missed(&found.cost_us) || found.overhead_ratio.iter().any(missed))
        .count();
    ensure!(off == 0, "{off} of {} programs are beyond the goals", found.len());
    Ok(())
}

fn cells() -> Result<Vec<Cell>> {
    let depths: String = option("--depths", "5,50,300".to_string())?;
    let depths: Vec<u64> = depths.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let mut cells = Vec::new();
    for unwind in ["fp", "dwarf"] {
        for kind in ["compute", "memory"] {
            cells.extend(depths.iter().map(|&depth| Cell { unwind, kind, depth }));
        }
    }
    Ok(cells)
}

/// The last CPU for the program, the first for the profiler: one and the same where there is but one.
fn place() -> Result<Place> {
    let allowed = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0))?;
    let cpus: Vec<usize> =
        (0..nix::sched::CpuSet::count()).filter(|&cpu| allowed.is_set(cpu).unwrap_or(false)).collect();
    let (&profiler, &program) = cpus.first().zip(cpus.last()).context("no CPU to run on")?;
    if program == profiler {
        progress("there is but one CPU: the profiler disturbs the program, and the figures are worth little");
    }
    Ok(Place { program, profiler })
}

/// The machine's calibration, taken now; the runs that follow find it in the cache.
fn calibrated() -> Result<Value> {
    progress("calibrating");
    let quick = std::env::args().any(|word| word == "--quick");
    let sweetspot = Sweetspot::new();
    let words: &[&str] = if quick { &["--quick", "--json"] } else { &["--json"] };
    let ended = run(&mut sweetspot.command("calibrate", words))?.expect_status(0)?;
    let calibration: Value = serde_json::from_str(&ended.stdout)?;
    for note in calibration["notes"].as_array().into_iter().flatten() {
        progress(note.as_str().unwrap_or_default());
    }
    Ok(calibration["model"].clone())
}

fn measure(cell: Cell, place: Place, model: &Value, rounds: usize, cpu_s: f64) -> Result<Found> {
    let iterations = iterations_for(cell, place, cpu_s)?;
    let rates = rates(cell, model)?;
    let mut taken: Vec<Vec<Run>> = Vec::new();
    for round in 0..rounds {
        progress(&format!(
            "{} {} at depth {}: round {} of {rounds}",
            cell.unwind,
            cell.kind,
            cell.depth,
            round + 1
        ));
        let order = [0, 1, 2, 3, 3, 2, 1, 0].map(|i: usize| i.checked_sub(1).map(|i| rates[i]));
        taken.push(
            order.into_iter().map(|rate| run_once(cell, place, &iterations, rate)).collect::<Result<_>>()?,
        );
    }
    let overhead_ratio = (0..OVERHEADS.len()).map(|i| compare_overhead(&taken, i)).collect();
    Ok(Found { cell, cost_us: compare_cost(&taken)?, overhead_ratio })
}

fn iterations_for(cell: Cell, place: Place, cpu_s: f64) -> Result<String> {
    let trial = if cell.kind == "memory" { TRIAL_READS } else { TRIAL_ITERATIONS };
    let took_s = run_once(cell, place, &trial.to_string(), None)?.work_cpu_s;
    Ok(format!("{:.0}", trial * cpu_s / took_s))
}

/// The rates that should make the overheads.
fn rates(cell: Cell, model: &Value) -> Result<[f64; 3]> {
    let ns = |cost: &str| model[cost]["mean_ns"].as_f64().with_context(|| format!("no {cost}"));
    let frames = cell.depth as f64 + START_UP_FRAMES;
    let stack_ns = match cell.unwind {
        "fp" => ns("per_frame_ns")? * frames.min(127.0),
        _ => ns("per_byte_ns")? * frames * BYTES_PER_FRAME,
    };
    let sample_s = (ns("per_sample_ns")? + stack_ns) * 1e-9 + OWN_US * 1e-6;
    Ok(OVERHEADS.map(|overhead| (overhead / sample_s).clamp(1.0, 40_000.0).round()))
}

/// Runs the program, sampled at a rate or not at all.
fn run_once(cell: Cell, place: Place, iterations: &str, rate_hz: Option<f64>) -> Result<Run> {
    let sweetspot = Sweetspot::new().through(&["taskset", "-c", &place.profiler.to_string()]);
    let program = program("spin")?.to_string_lossy().into_owned();
    let (truth, depth, cpu) =
        (sweetspot.file("truth.json"), cell.depth.to_string(), place.program.to_string());
    let work = [
        "--iterations",
        iterations,
        "--kind",
        cell.kind,
        "--depth",
        &depth,
        "--on-cpu",
        &cpu,
        "--out",
        &truth,
    ];
    let mut command = match rate_hz {
        None => {
            let mut command = Command::new(&program);
            command.args(work);
            command
        }
        Some(rate_hz) => {
            let mut words = sweetspot.outputs();
            let rate_hz = rate_hz.to_string();
            let options =
                ["--rate", &rate_hz, "--unwind", cell.unwind, "--attach-mode", "task", "--", &program];
            words.extend(options.map(str::to_string));
            words.extend(work.map(str::to_string));
            sweetspot.command("record", &words)
        }
    };
    let ended = run(&mut command)?.expect_status(0)?;
    let truth = Truth::read(Path::new(&truth)).context(ended.stderr)?;
    let stats = || Stats::parse(&fs::read_to_string(sweetspot.file("stats.jsonl"))?);
    let summary = rate_hz.map(|_| stats()).transpose()?.map(|stats| stats.summary);
    Ok(Run { cpu_s: truth.cpu_s, work_cpu_s: truth.work_cpu_s, summary })
}

/// What samples cost by the meter, over the slope of the program's CPU time.
fn compare_cost(taken: &[Vec<Run>]) -> Result<Compared> {
    let hits = |run: &Run| run.summary.as_ref().map_or(0.0, |s| (s.samples + s.lost) as f64);
    let rounds: Vec<Vec<(f64, f64)>> =
        taken.iter().map(|runs| runs.iter().map(|run| (hits(run), run.cpu_s * 1e6)).collect()).collect();
    let Some(measured) = slope(&rounds) else { bail!("too few runs for a slope") };
    let said_us = |run: &Run| {
        let summary = run.summary.as_ref()?;
        let parts = summary.overhead_parts;
        let charged = parts.base_ratio + parts.frames_ratio + parts.stack_ratio;
        Some(charged * summary.target_cpu_s * 1e6 / hits(run).max(1.0))
    };
    let runs = || taken.iter().flatten();
    let mean = Figure::of(&runs().filter_map(said_us).collect::<Vec<_>>()).mean;
    let doubts = runs().filter_map(|run| Some(run.summary.as_ref()?.overhead_se_us));
    let se = Figure::of(&doubts.collect::<Vec<_>>()).mean;
    Ok(compared(Figure { mean, se }, measured, COST_GOAL))
}

/// What the runs at one rate say of their overhead, over what they took more than the unsampled runs of their round.
fn compare_overhead(taken: &[Vec<Run>], level: usize) -> Compared {
    let (mut said, mut measured) = (Vec::new(), Vec::new());
    for runs in taken {
        let unsampled_s = (runs[0].cpu_s + runs[runs.len() - 1].cpu_s) / 2.0;
        let pair = [&runs[1 + level], &runs[runs.len() - 2 - level]];
        let spent = pair.iter().map(|run| {
            let own_s = run.summary.as_ref().map_or(0.0, |summary| summary.self_cpu_s);
            (run.cpu_s + own_s) / unsampled_s - 1.0
        });
        measured.push(spent.sum::<f64>() / 2.0);
        said.extend(pair.iter().filter_map(|run| Some(run.summary.as_ref()?.overhead_ratio)));
    }
    compared(Figure { se: 0.0, ..Figure::of(&said) }, Figure::of(&measured), ACCOUNT_GOAL)
}

fn compared(said: Figure, measured: Figure, goal: f64) -> Compared {
    let ratio = said.over(measured);
    let verdict = match (ratio.mean - 1.0).abs() {
        miss if miss <= goal && ratio.se <= goal => "good",
        miss if miss - CERTAIN * ratio.se > goal => "off",
        _ => "unsure", // and what is no number
    };
    Compared { said: said.mean, measured: measured.mean, ratio, verdict }
}

fn report(found: &[Found]) -> Result<()> {
    let heads = [
        "unwind",
        "program",
        "depth",
        "o said",
        "o measured",
        "ratio",
        "",
        "overhead said / measured = ratio",
    ];
    let mut rows = vec![heads.map(str::to_string).to_vec()];
    for Found { cell, cost_us, overhead_ratio } in found {
        let ratio = |compared: &Compared| format!("{:.2} ± {:.2}", compared.ratio.mean, compared.ratio.se);
        let account = |c: &Compared| {
            format!("{} / {} = {} {}", percent(c.said), percent(c.measured), ratio(c), c.verdict)
        };
        let accounts: Vec<String> = overhead_ratio.iter().map(account).collect();
        rows.push(row([
            &cell.unwind,
            &cell.kind,
            &cell.depth,
            &format!("{:.2} µs", cost_us.said),
            &format!("{:.2} µs", cost_us.measured),
            &ratio(cost_us),
            &cost_us.verdict,
            &accounts.join("; "),
        ]));
    }
    let remark = format!(
        "good: within {} (o), {} (overhead, relative to the unsampled program, the profiler's own included), and the \
         error no larger than that; off: beyond it by more than three standard errors",
        percent(COST_GOAL),
        percent(ACCOUNT_GOAL)
    );
    print(&rows, &[remark], &found)
}
