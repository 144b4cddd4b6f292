//! Checks whether a sample costs what the calibration says, and whether a run reports its true overhead. Two processes take turns at
//! the same work on one CPU, and one is profiled at several fixed rates. Its extra time over its twin, by its own clock, divided by
//! the samples, is the cost of a sample.
//!
//! The calibrated costs of a program that computes, and of one that waits for memory, are compared with test programs that do just
//! that. Their mean, which a run assumes for an unknown program, is compared with real programs.
//!
//! Options: `--rounds 1`, `--seconds 6` (length of a run), `--depths 5,50,300`, `--only spin|real`.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::Value;
use tests::experiment::{option, percent, print, progress, row};
use tests::run::{Sweetspot, run};
use tests::slope::{Figure, mean_of, through_origin};
use tests::stats::Summary;
use tests::twins::{REAL, TURN_S, Turn, Twins, Work, excess, now_s};

/// Overheads that the fixed rates are chosen for.
const OVERHEADS: [f64; 3] = [0.01, 0.03, 0.10];
/// How far the cost of a sample may be off, and a run's own account of its overhead.
const COST_GOAL: f64 = 0.10;
const ACCOUNT_GOAL: f64 = 0.15;
/// Standard errors beyond the goal from which a figure counts as off: at two, some two of fifty comparisons would be false alarms.
const CERTAIN: f64 = 3.0;
/// Frames and bytes assumed before the first run, to choose a rate: a program of depth D has a few more frames.
const START_UP_FRAMES: f64 = 5.0;
const BYTES_PER_FRAME: f64 = 48.0;
/// Frames and bytes assumed for the script's stacks.
const REAL_FRAMES: u64 = 20;
/// Assumed own CPU time of the profiler for a sample (µs).
const OWN_US: f64 = 5.0;
/// Length of an unsampled range, of that of a run.
const UNSAMPLED: f64 = 0.5;

/// What is measured: the way to unwind, the depth, and what the program waits for.
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

/// A reported figure, over the measured one.
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
    /// As calibrated, for this kind of work.
    calibrated_us: Option<Compared>,
    /// As the runs report.
    cost_us: Compared,
    /// At each of the overheads.
    overhead_ratio: Vec<Compared>,
}

fn main() -> Result<()> {
    let place = place()?;
    let calibration = calibrated()?;
    let (rounds, seconds) = (option("--rounds", 1)?, option("--seconds", 6.0)?);
    let found: Vec<Found> = cells()?
        .into_iter()
        .map(|cell| measure(cell, place, &calibration, rounds, seconds))
        .collect::<Result<_>>()?;
    report(&found)?;
    let missed = |compared: &Compared| compared.verdict == "off";
    let off = found
        .iter()
        .filter(|found| {
            // What a run says of a program that it knows nothing of is the middle of two kinds, and says how unsure it is.
            let cost = found.calibrated_us.as_ref().unwrap_or(&found.cost_us);
            missed(cost) || found.overhead_ratio.iter().any(missed)
        })
        .count();
    ensure!(off == 0, "{off} of {} programs are beyond the goals", found.len());
    Ok(())
}

fn cells() -> Result<Vec<Cell>> {
    let only: String = option("--only", String::new())?;
    ensure!(["", "spin", "real"].contains(&only.as_str()), "--only takes spin or real");
    let mut cells = if only == "real" { Vec::new() } else { spinning()? };
    if only != "spin" {
        let real = ["objects", "compress", "database"];
        cells.extend(real.map(|kind| Cell { unwind: "auto", kind, depth: REAL_FRAMES }));
    }
    Ok(cells)
}

fn spinning() -> Result<Vec<Cell>> {
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
    let sweetspot = Sweetspot::new();
    let ended = run(&mut sweetspot.command("calibrate", &["--json"]))?.expect_status(0)?;
    let calibration: Value = serde_json::from_str(&ended.stdout)?;
    for note in calibration["notes"].as_array().into_iter().flatten() {
        progress(note.as_str().unwrap_or_default());
    }
    Ok(calibration)
}

/// Takes the twins through all rates, up and down in each round, with unsampled ranges between.
fn measure(cell: Cell, place: Place, calibration: &Value, rounds: usize, seconds: f64) -> Result<Found> {
    let rates = rates(cell, &calibration["model"])?;
    let program = if calibrated_kind(cell).is_some() { "twins" } else { REAL };
    let work = Work { kind: cell.kind, depth: cell.depth, step_at: 0, cpu: place.program, program };
    let twins = Twins::start(work)?;
    let mut ranges = Vec::new();
    for round in 0..rounds {
        let Cell { unwind, kind, depth } = cell;
        progress(&format!("{unwind} {kind} at depth {depth}: round {} of {rounds}", round + 1));
        for level in [0, 1, 2, 2, 1, 0] {
            ranges.push(unsampled(seconds * UNSAMPLED)?);
            ranges.push(sampled(cell, place, &twins, (level, rates[level]), seconds)?);
        }
    }
    ranges.push(unsampled(seconds * UNSAMPLED)?);
    let runs = runs(&ranges, &twins.end()?)?;
    let overhead_ratio = (0..OVERHEADS.len()).map(|level| compare_overhead(&runs, level)).collect();
    let measured = measured_cost(&runs)?;
    let calibrated_us = calibrated_kind(cell)
        .map(|kind| calibrated_cost(&calibration["parts"][kind], &runs))
        .transpose()?
        .map(|said| compared(said, measured, COST_GOAL));
    let cost_us = compared(said_cost(&runs), measured, COST_GOAL);
    Ok(Found { cell, calibrated_us, cost_us, overhead_ratio })
}

/// The calibration's name for this kind of work; `None` for real programs.
fn calibrated_kind(cell: Cell) -> Option<&'static str> {
    ["compute", "memory"].into_iter().find(|kind| *kind == cell.kind)
}

/// What the samples of these runs cost according to the calibration, for a kind of work (µs).
fn calibrated_cost(costs: &Value, runs: &[Run]) -> Result<Figure> {
    let cost = |name: &str, figure: &str| {
        costs[name][figure].as_f64().with_context(|| format!("the calibration has no {name}"))
    };
    let of_run = |run: &Run, figure: &str| -> Result<f64> {
        let of_sample = |sum: u64| sum as f64 / run.summary.samples.max(1) as f64;
        let (frames, bytes) = (of_sample(run.summary.walked_frames), of_sample(run.summary.copied_bytes));
        let stack = cost("per_frame_ns", figure)? * frames + cost("per_byte_ns", figure)? * bytes;
        Ok((cost("per_sample_ns", figure)? + stack) * 1e-3)
    };
    let mean = |figure| -> Result<f64> {
        let all: Vec<f64> = runs.iter().map(|run| of_run(run, figure)).collect::<Result<_>>()?;
        Ok(all.iter().sum::<f64>() / all.len() as f64)
    };
    Ok(Figure { mean: mean("mean_ns")?, se: mean("se_ns")? })
}

/// The rates that should cause these overheads.
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

/// A range of the twins' work (s on their clock), and the profiler's report if it was sampled, with its level.
struct TimeRange {
    from_s: f64,
    to_s: f64,
    said: Option<(usize, Summary)>,
}

fn unsampled(seconds: f64) -> Result<TimeRange> {
    let from_s = now_s()?;
    sleep(Duration::from_secs_f64(seconds));
    Ok(TimeRange { from_s, to_s: now_s()?, said: None })
}

fn sampled(
    cell: Cell,
    place: Place,
    twins: &Twins,
    (level, rate_hz): (usize, f64),
    seconds: f64,
) -> Result<TimeRange> {
    let rate_hz = rate_hz.to_string();
    let options = ["--rate", &rate_hz, "--unwind", cell.unwind, "--attach-mode", "task"];
    let cpu = place.profiler.to_string();
    let sweetspot = Sweetspot::new().through(&["taskset", "-c", &cpu]).options(&options);
    let from_s = now_s()?;
    let recorded = sweetspot.attach(twins.pid, seconds)?;
    Ok(TimeRange { from_s, to_s: now_s()?, said: Some((level, recorded.stats.summary)) })
}

/// A run, and the extra time that it cost the process over its twin.
struct Run {
    level: usize,
    summary: Summary,
    /// CPU time (s).
    extra: Figure,
}

/// Extra time of each sampled range, over that of the unsampled ones: no two twins are quite alike.
fn runs(ranges: &[TimeRange], turns: &[Turn]) -> Result<Vec<Run>> {
    let within = |range: &TimeRange| {
        let is_within = |turn: &&Turn| turn.over_s - TURN_S > range.from_s && turn.over_s < range.to_s;
        turns.iter().filter(is_within).copied().collect::<Vec<Turn>>()
    };
    let quiet = ranges.iter().filter(|range| range.said.is_none()).flat_map(within).collect::<Vec<_>>();
    let usual = excess(&quiet).context("too few unsampled turns")?;
    let run = |range: &TimeRange| {
        let (level, summary) = range.said.clone()?;
        let turns = within(range);
        let twin_s: f64 = turns.iter().map(|turn| turn.twin_s).sum();
        let found = excess(&turns)?;
        let (mean, se) = (found.mean - usual.mean, found.se.hypot(usual.se));
        Some(Run { level, summary, extra: Figure { mean: mean * twin_s, se: se * twin_s } })
    };
    Ok(ranges.iter().filter_map(run).collect())
}

/// The cost of a sample to the process (µs): the slope of its extra time over the samples.
fn measured_cost(runs: &[Run]) -> Result<Figure> {
    let points: Vec<(f64, Figure)> = runs
        .iter()
        .map(|run| (hits(run), Figure { mean: run.extra.mean * 1e6, se: run.extra.se * 1e6 }))
        .collect();
    through_origin(&points).context("too few runs for a slope")
}

/// The cost of a sample as the runs report it (µs).
fn said_cost(runs: &[Run]) -> Figure {
    let said_us = |run: &Run| {
        let parts = run.summary.overhead_parts;
        let charged = parts.base_ratio + parts.frames_ratio + parts.stack_ratio;
        charged * run.summary.target_cpu_s * 1e6 / hits(run).max(1.0)
    };
    let mean = Figure::of(&runs.iter().map(said_us).collect::<Vec<_>>()).mean;
    let se = Figure::of(&runs.iter().map(|run| run.summary.overhead_se_us).collect::<Vec<_>>()).mean;
    Figure { mean, se }
}

fn hits(run: &Run) -> f64 {
    (run.summary.samples + run.summary.lost) as f64
}

/// The overhead that the runs at one rate report, over the measured one; the profiler's own time is included.
fn compare_overhead(runs: &[Run], level: usize) -> Compared {
    let runs = || runs.iter().filter(|run| run.level == level);
    let said: Vec<f64> = runs().map(|run| run.summary.overhead_ratio).collect();
    let measured = runs().map(|run| {
        let Run { summary, extra, .. } = run;
        let unsampled_s = summary.target_cpu_s - extra.mean;
        Figure { mean: (extra.mean + summary.self_cpu_s) / unsampled_s, se: extra.se / unsampled_s }
    });
    let measured: Vec<Figure> = measured.collect();
    compared(Figure { se: 0.0, ..Figure::of(&said) }, mean_of(&measured), ACCOUNT_GOAL)
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
        "o measured",
        "calibrated = ratio",
        "said = ratio",
        "overhead said / measured = ratio",
    ];
    let mut rows = vec![heads.map(str::to_string).to_vec()];
    for Found { cell, calibrated_us, cost_us, overhead_ratio } in found {
        let ratio = |compared: &Compared| format!("{:.2} ± {:.2}", compared.ratio.mean, compared.ratio.se);
        let account = |c: &Compared| {
            format!("{} / {} = {} {}", percent(c.said), percent(c.measured), ratio(c), c.verdict)
        };
        let cost = |c: &Compared| format!("{:.2} µs = {} {}", c.said, ratio(c), c.verdict);
        let accounts: Vec<String> = overhead_ratio.iter().map(account).collect();
        rows.push(row([
            &cell.unwind,
            &cell.kind,
            &cell.depth,
            &format!("{:.2} µs", cost_us.measured),
            &calibrated_us.as_ref().map_or("-".to_string(), cost),
            &cost(cost_us),
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
