//! Checks whether a sample by timer signal costs what the run reports, by the program's own clock. Pieces of work in which a tick
//! came with a signal are compared with those in which one came without, of the same thread in the same seconds. The program
//! detects below its own stack whether a handler has run (`programs/ticked.c`).
//!
//! Also checks the signals after the profiler was killed: they must cost nothing, and end within sixteen seconds.
//!
//! Options: `--seconds 40` (of a run), `--only cost|killed`.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use tests::experiment::{option, percent, print, progress, row};
use tests::guards::Running;
use tests::programs::program;
use tests::run::{Sweetspot, run};
use tests::slope::Figure;
use tests::stats::{Stats, Summary};
use tests::ticked::{Piece, at_the_tick, middle, tick_ns};

/// How far the cost of a sample may be off.
const GOAL: f64 = 0.15;
/// Time after which an agent gives up a profiler that was killed (s).
const QUIET_AFTER_S: usize = 16;
/// Half of the ticks bring a signal.
const PART_OF_TICKS: f64 = 0.5;

#[derive(Clone, Copy, Serialize)]
struct Cell {
    kind: &'static str,
    depth: u64,
}

const CELLS: [Cell; 4] = [
    Cell { kind: "compute", depth: 0 },
    Cell { kind: "compute", depth: 100 },
    Cell { kind: "memory", depth: 0 },
    Cell { kind: "memory", depth: 100 },
];

#[derive(Serialize)]
struct Cost {
    #[serde(flatten)]
    cell: Cell,
    with_signal: usize,
    without: usize,
    measured_us: Figure,
    said_us: Figure,
    ratio: Figure,
    /// Overhead of the whole run, as reported and as measured (both with the profiler's own time as reported).
    overhead_ratio: f64,
    overhead_measured: f64,
    verdict: &'static str,
}

/// A second of a busy program: pieces of work done, and signals that came.
#[derive(Clone, Copy, Debug, Serialize)]
struct Second {
    pieces: f64,
    signals: u64,
}

#[derive(Serialize)]
struct Killed {
    alone: Figure,
    sampled: Figure,
    killed: Figure,
    /// Signals in each second after the kill.
    signals: Vec<u64>,
}

#[derive(Serialize)]
struct Found {
    costs: Vec<Cost>,
    killed: Option<Killed>,
}

fn main() -> Result<()> {
    let (seconds, only): (f64, String) = (option("--seconds", 40.0)?, option("--only", String::new())?);
    let cells = if only == "killed" { &[][..] } else { &CELLS[..] };
    let costs = cells.iter().map(|cell| cost(*cell, seconds)).collect::<Result<Vec<_>>>()?;
    let killed = (only != "cost").then(killed).transpose()?;
    let found = Found { costs, killed };
    report(&found)?;
    let (off, unsure) = (count(&found.costs, "off"), count(&found.costs, "unsure"));
    ensure!(off == 0, "{off} of {} costs are beyond {}", found.costs.len(), percent(GOAL));
    ensure!(
        unsure == 0,
        "{unsure} of {} costs are not known well enough: give more --seconds",
        found.costs.len()
    );
    found.killed.as_ref().map_or(Ok(()), Killed::judge)
}

fn count(costs: &[Cost], verdict: &str) -> usize {
    costs.iter().filter(|cost| cost.verdict == verdict).count()
}

impl Killed {
    /// Whether the program works as fast as alone, and nothing interrupts it once the agent has given up the profiler.
    fn judge(&self) -> Result<()> {
        let lost = self.alone.minus(self.killed);
        ensure!(
            lost.mean <= 2.0 * lost.se,
            "after the profiler was killed {:.1} ± {:.1} pieces of work in a second are missing",
            lost.mean,
            lost.se
        );
        let late: u64 = self.signals.iter().skip(QUIET_AFTER_S).sum();
        ensure!(late == 0, "{late} signals came {QUIET_AFTER_S} s after the profiler was killed and later");
        ensure!(self.signals.len() > QUIET_AFTER_S, "the program was not watched for {QUIET_AFTER_S} s");
        Ok(())
    }
}

/// The last CPU for the program, the first for the profiler.
fn places() -> Result<(String, String)> {
    let allowed = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0))?;
    let mut cpus = (0..nix::sched::CpuSet::count()).filter(|&cpu| allowed.is_set(cpu).unwrap_or(false));
    let first = cpus.next().context("no CPU")?;
    Ok((cpus.next_back().unwrap_or(first).to_string(), first.to_string()))
}

fn cost(cell: Cell, seconds: f64) -> Result<Cost> {
    progress(&format!("{} at depth {}", cell.kind, cell.depth));
    let (place, profiler) = places()?;
    let rate = (PART_OF_TICKS * 1e9 / tick_ns()?).to_string();
    let options = ["--backend", "timer-signal", "--rate", &rate, "--quiet"];
    let sweetspot = Sweetspot::new().through(&["taskset", "-c", &profiler]).options(&options);
    let mut words = sweetspot.outputs();
    let target = program("ticked")?.to_string_lossy().into_owned();
    let (seconds, depth) = (seconds.to_string(), cell.depth.to_string());
    words.extend(["--", "taskset", "-c", &place, &target, cell.kind, &seconds, &depth].map(str::to_owned));
    let ended = run(&mut sweetspot.command("record", &words))?.expect_status(0)?;
    let summary = Stats::parse(&std::fs::read_to_string(sweetspot.file("stats.jsonl"))?)?.summary;
    judge(cell, &ended.stdout, &summary)
}

fn judge(cell: Cell, said: &str, summary: &Summary) -> Result<Cost> {
    let pieces = Piece::parse_all(said);
    // Signals come at ticks alone.
    let signals = pieces.iter().filter(|piece| piece.has_signal);
    let is_tick = at_the_tick(signals.map(|piece| piece.at_ns), tick_ns()?);
    let at_ticks = |has_signal| {
        let is_one = move |piece: &&Piece| piece.has_signal == has_signal;
        pieces.iter().filter(is_one).filter(|piece| is_tick(piece.at_ns)).collect::<Vec<_>>()
    };
    let (with_signal, without) = (at_ticks(true), at_ticks(false));
    let measured_us = middle(with_signal.iter().copied())
        .context("ticks with a signal")?
        .minus(middle(without.iter().copied()).context("ticks without a signal")?)
        .scaled(1e-3);
    let hits = (summary.samples + summary.lost) as f64;
    let parts = summary.overhead_parts;
    let charged = parts.base_ratio + parts.frames_ratio + parts.stack_ratio;
    let said_us = Figure { mean: charged * summary.target_cpu_s * 1e6 / hits, se: summary.overhead_se_us };
    let ratio = Figure { se: 0.0, ..said_us }.over(measured_us);
    let miss = (ratio.mean - 1.0).abs();
    Ok(Cost {
        cell,
        with_signal: with_signal.len(),
        without: without.len(),
        measured_us,
        said_us,
        ratio,
        overhead_ratio: summary.overhead_ratio,
        overhead_measured: (measured_us.mean * 1e-6 * hits + summary.self_cpu_s) / summary.target_cpu_s,
        verdict: match () {
            () if miss <= GOAL && ratio.se <= GOAL / 2.0 => "good",
            () if miss - 2.0 * ratio.se > GOAL => "off",
            () => "unsure",
        },
    })
}

/// Work in each second of a program that runs alone, is sampled, and has lost its profiler.
fn killed() -> Result<Killed> {
    const EACH: usize = 10;
    progress("a profiler that is killed");
    let (place, profiler) = places()?;
    let target = program("ticked")?.to_string_lossy().into_owned();
    let mut alone = Command::new("taskset");
    let alone = seconds_of(alone.args(["-c", &place, &target, "pace", "11"]), EACH, None)?;
    let sweetspot = Sweetspot::new().through(&["taskset", "-c", &profiler]).options(&[
        "--backend",
        "timer-signal",
        "--rate",
        "250",
        "--quiet",
    ]);
    let mut words = sweetspot.outputs();
    words.extend(["--", "taskset", "-c", &place, &target, "pace", "52"].map(str::to_owned));
    let all = seconds_of(&mut sweetspot.command("record", &words), 5 * EACH, Some(EACH))?;
    let (sampled, after) = all.split_at(EACH);
    let pieces =
        |seconds: &[Second]| Figure::of(&seconds.iter().map(|second| second.pieces).collect::<Vec<_>>());
    Ok(Killed {
        alone: pieces(&alone),
        sampled: pieces(sampled),
        killed: pieces(&after[2..]), // less what the kill itself disturbed
        signals: after.iter().map(|second| second.signals).collect(),
    })
}

/// Runs a program for some seconds, and kills the process that started it after a number of them.
fn seconds_of(command: &mut Command, count: usize, kill_after: Option<usize>) -> Result<Vec<Second>> {
    let mut running = Running::start(command.stdout(Stdio::piped()).stderr(Stdio::null()))?;
    let said = BufReader::new(running.stdout.take().context("no output")?);
    let mut seconds = Vec::new();
    for line in said.lines().take(count) {
        let line = line?;
        let (pieces, signals) = line.split_once(' ').context("no second")?;
        seconds.push(Second { pieces: pieces.parse()?, signals: signals.parse()? });
        if kill_after == Some(seconds.len()) {
            running.kill()?;
        }
    }
    ensure!(seconds.len() == count, "the program ended after {} seconds", seconds.len());
    Ok(seconds)
}

fn report(found: &Found) -> Result<()> {
    let heads = [
        "program",
        "depth",
        "signals",
        "ticks without",
        "o measured",
        "o said",
        "said / measured",
        "overhead said",
        "measured",
        "",
    ];
    let mut rows = vec![heads.map(str::to_string).to_vec()];
    let figure = |figure: &Figure, unit: &str| format!("{:.2} ± {:.2}{unit}", figure.mean, figure.se);
    rows.extend(found.costs.iter().map(|cost| {
        row([
            &cost.cell.kind,
            &cost.cell.depth,
            &cost.with_signal,
            &cost.without,
            &figure(&cost.measured_us, " µs"),
            &figure(&cost.said_us, " µs"),
            &figure(&cost.ratio, ""),
            &percent(cost.overhead_ratio),
            &percent(cost.overhead_measured),
            &cost.verdict,
        ])
    }));
    let mut remarks = Vec::new();
    if let Some(Killed { alone, sampled, killed, signals }) = &found.killed {
        let [alone, sampled, after] = [alone, sampled, killed].map(|pieces| figure(pieces, ""));
        remarks.push(format!("pieces of work in a second: {alone} alone, {sampled} sampled, {after} after the profiler was killed"));
        remarks.push(format!("signals in each second after that: {signals:?}"));
    }
    print(&rows, &remarks, found)
}

#[cfg(test)]
mod judged {
    use super::*;

    #[test]
    fn what_is_left_of_a_killed_profiler_is_judged() {
        let killed = |pieces: f64, late: u64| {
            let figure = |mean| Figure { mean, se: 3.0 };
            let mut signals = vec![1; QUIET_AFTER_S];
            signals.push(late);
            Killed { alone: figure(1000.0), sampled: figure(980.0), killed: figure(pieces), signals }.judge()
        };
        assert!(killed(1000.0, 0).is_ok() && killed(994.0, 0).is_ok() && killed(1010.0, 0).is_ok());
        assert!(killed(980.0, 0).is_err() && killed(1000.0, 1).is_err() && killed(f64::NAN, 0).is_err());
    }
}
