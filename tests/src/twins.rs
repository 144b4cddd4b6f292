//! Twins at work: two processes take turns at the same work on one CPU, and one of them is sampled.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use profiler_core::stats::twins;
use serde::{Deserialize, Serialize};

use crate::figures::median;
use crate::guards::Running;
use crate::programs::program;
use crate::slope::Figure;

/// Length of a turn (s): short against what disturbs, long against what the hand-over costs.
pub const TURN_S: f64 = 0.004;
/// Work of the first turns, which find out how much work fills a turn, and how long they go on.
const TRIAL_ITERATIONS: u64 = 200_000;
const TRIAL: Duration = Duration::from_millis(500);
/// Time that the twin has to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Twins that run typical work of an interpreter and its libraries.
pub const REAL: &str = "twins.py";

/// The file of the knobs, in the twins' folder.
const KNOBS: &str = "knobs";

/// Writes them atomically: the twin may read at any time.
fn write_knobs(folder: &Path, Knobs { duty, depth, threads }: Knobs) -> Result<()> {
    let mut file =
        fs::OpenOptions::new().create(true).truncate(false).write(true).open(folder.join(KNOBS))?;
    Ok(file.write_all(format!("{duty:>3} {depth:>5} {threads:>3}\n").as_bytes())?)
}

fn scripted() -> Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(REAL);
    let runs = Command::new("python3").args(["-c", "import sqlite3, zlib"]).output();
    ensure!(runs.is_ok_and(|ended| ended.status.success()), "python3 with sqlite3 and zlib is missing");
    Ok(script)
}

/// What the twins work at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// `compute`, `memory`, `step`, `storm`, `late`, `pair` or `threads`, and for the script `objects`, `compress` or `database`; the
    /// programs say what they are.
    pub kind: &'static str,
    /// Frames above it.
    pub depth: u64,
    /// The turn that `step` happens at, or the storms of `late` begin.
    pub step_at: u64,
    /// CPU of both.
    pub cpu: usize,
    /// How it is built: `twins`, `twins_nofp` without frame pointers, or the script [`REAL`].
    pub program: &'static str,
}

/// One turn of each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Turn {
    /// Which one it is.
    pub number: u64,
    /// CPU time of the unsampled twin (s).
    pub twin_s: f64,
    /// CPU time of the other (s).
    pub process_s: f64,
    /// When it was over (s on the monotonic clock).
    pub over_s: f64,
}

impl Turn {
    fn times(&self) -> twins::Turn {
        twins::Turn { twin_s: self.twin_s, process_s: self.process_s }
    }
}

/// What twins of the kind `steps` do at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knobs {
    /// Share of the time that both together are busy (%); 0 is a pause.
    pub duty: u32,
    /// Frames above each turn.
    pub depth: u32,
    /// Threads that take the turns one after the other, 1 to 199.
    pub threads: u32,
}

/// Twins at work.
pub struct Twins {
    running: Running,
    folder: tempfile::TempDir,
    iterations: u64,
    /// The process to be sampled.
    pub pid: u32,
}

impl Twins {
    /// Starts twins whose turns take some milliseconds.
    pub fn start(work: Work) -> Result<Twins> {
        let trial = Twins::with_iterations(work, TRIAL_ITERATIONS, None)?;
        sleep(TRIAL);
        let turns = trial.end()?;
        let took: Vec<f64> = turns.iter().map(|turn| turn.twin_s).collect();
        ensure!(!took.is_empty(), "the twins took no turn within {TRIAL:?}");
        let iterations = TRIAL_ITERATIONS as f64 * TURN_S / median(&took);
        Twins::with_iterations(work, (iterations as u64).max(1), None)
    }

    /// Starts twins on a CPU that follow the knobs. Their turns have the usual length or this part of it: twins that rest most of the
    /// time have few turns.
    pub fn turning(cpu: usize, knobs: Knobs, part: f64, like: Option<&Twins>) -> Result<Twins> {
        let work = Work { kind: "compute", depth: 0, step_at: 0, cpu, program: "twins_nofp" };
        let iterations = match like {
            Some(twins) => twins.iterations,
            None => {
                let measured = Twins::start(work)?;
                let iterations = ((measured.iterations as f64 * part) as u64).max(8);
                measured.end()?;
                iterations
            }
        };
        Twins::with_iterations(Work { kind: "steps", ..work }, iterations, Some(knobs))
    }

    /// Changes what they do from their next turn on.
    pub fn turn(&self, knobs: Knobs) -> Result<()> {
        write_knobs(self.folder.path(), knobs)
    }

    fn with_iterations(work: Work, iterations: u64, knobs: Option<Knobs>) -> Result<Twins> {
        let folder = tempfile::tempdir()?;
        let program = if work.program == REAL { scripted()? } else { program(work.program)? };
        let mut command = Command::new(program);
        command.arg(work.kind).args(["--iterations", &iterations.to_string()]);
        command.args(["--depth", &work.depth.to_string(), "--step-at", &work.step_at.to_string()]);
        command.args(["--on", &work.cpu.to_string(), "--out"]).arg(folder.path().join("turns.json"));
        if let Some(knobs) = knobs {
            write_knobs(folder.path(), knobs)?;
            command.arg("--control").arg(folder.path().join(KNOBS));
        }
        let mut running = Running::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let mut line = String::new();
        BufReader::new(running.stdout.take().context("no output")?).read_line(&mut line)?;
        let pid = line.trim().parse().with_context(|| format!("no process in {line:?}"))?;
        Ok(Twins { running, folder, iterations, pid })
    }

    /// Ends them, and returns the length of each turn.
    pub fn end(mut self) -> Result<Vec<Turn>> {
        drop(self.running.stdin.take());
        let asked = Instant::now();
        while self.running.try_wait()?.is_none() {
            ensure!(asked.elapsed() < PATIENCE, "the twins go on");
            sleep(Duration::from_millis(5));
        }
        #[derive(Deserialize)]
        struct Out {
            turns: Vec<(u64, u64, u64)>,
        }
        let out: Out = serde_json::from_str(&fs::read_to_string(self.folder.path().join("turns.json"))?)?;
        let s = |ns: u64| ns as f64 * 1e-9;
        let turn = |(number, &(twin, process, over)): (u64, &(u64, u64, u64))| Turn {
            number,
            twin_s: s(twin),
            process_s: s(process),
            over_s: s(over),
        };
        Ok((0..).zip(&out.turns).map(turn).collect())
    }
}

/// Now, on the clock of the turns (s).
pub fn now_s() -> Result<f64> {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)?;
    Ok(now.tv_sec() as f64 + now.tv_nsec() as f64 * 1e-9)
}

/// Extra time of the process over its twin, as a ratio to the twin's time. `None` for too few turns.
pub fn excess(turns: &[Turn]) -> Option<Figure> {
    let found = twins::excess(&turns.iter().map(Turn::times).collect::<Vec<_>>())?;
    Some(Figure { mean: found.ratio, se: found.se })
}

/// Leaves out pairs of turns of which one was disturbed by something other than samples.
pub fn calm(turns: &[Turn]) -> Vec<Turn> {
    let times: Vec<twins::Turn> = turns.iter().map(Turn::times).collect();
    twins::undisturbed(&times).into_iter().map(|at| turns[at]).collect()
}

/// CPU time of a range of turns, and of the profiler.
pub struct Spent<'a> {
    /// The turns, in order.
    pub turns: &'a [Turn],
    /// The profiler's CPU time: moments (s on the turns' clock), and what it had used (s).
    pub own: &'a [(f64, f64)],
    /// Extra time of the process over its twin when neither is sampled (ratio).
    pub usual: f64,
    /// Length of turns when nothing is sampled; `None` to use the twin's.
    pub alone: Option<Alone>,
}

/// Turns of a hundred each that `storm` and `late` are made of.
const STORM_TURNS: u64 = 100;

/// What turns take while nothing on the machine is sampled. While there are events of any thread, the kernel looks for some at the
/// switches of all, and those of a twin that nobody samples become dearer too: the two of them together do not show it.
#[derive(Clone, Copy, Debug)]
pub struct Alone {
    calm_s: f64,
    storm_s: f64,
    /// The first turn that can be a storm.
    from: u64,
    /// How much longer calm turns took while it was sampled (ratio to before and after): the machine's doing.
    drift: f64,
}

impl Alone {
    /// From turns that nobody sampled, and those `during` which the other was; `None` without both calm turns and storms.
    pub fn new(unsampled: &[Turn], during: &[Turn], from: u64) -> Option<Alone> {
        let typical = |turns: &[Turn], storm: bool| {
            let times: Vec<f64> =
                turns.iter().filter(|turn| is_storm(turn, from) == storm).map(|turn| turn.twin_s).collect();
            (!times.is_empty()).then(|| median(&times))
        };
        let (calm_s, storm_s) = (typical(unsampled, false)?, typical(unsampled, true)?);
        Some(Alone { calm_s, storm_s, from, drift: typical(during, false)? / calm_s })
    }

    /// The same for the unsampled turns themselves: how much they scatter around it.
    pub fn undisturbed(self, unsampled: &[Turn]) -> Option<Alone> {
        Alone::new(unsampled, unsampled, self.from)
    }

    fn takes_s(&self, turn: &Turn) -> f64 {
        self.drift * if is_storm(turn, self.from) { self.storm_s } else { self.calm_s }
    }
}

fn is_storm(turn: &Turn, from: u64) -> bool {
    turn.number >= from && turn.number / STORM_TURNS % 2 == 1
}

impl Spent<'_> {
    /// What the turn would have taken the process unsampled (s).
    fn unsampled_s(&self, turn: &Turn) -> f64 {
        (1.0 + self.usual) * self.alone.map_or(turn.twin_s, |alone| alone.takes_s(turn))
    }
}

/// The window of a length in which most was spent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Worst {
    /// What the process took more than its twin, and the profiler's time, over the twin's.
    pub ratio: f64,
    /// The profiler's part of it.
    pub own_ratio: f64,
    /// When the window begins (s on the turns' clock).
    pub from_s: f64,
}

/// The window of this length (s) in which most was spent. `None` of shorter stretches.
pub fn worst(spent: &Spent<'_>, length_s: f64) -> Option<Worst> {
    let calm = calm(spent.turns);
    let (mut worst, mut to) = (None, 0);
    let (mut extra_s, mut twin_s) = (0.0, 0.0);
    for first in &calm {
        while to < calm.len() && calm[to].over_s - first.over_s < length_s {
            extra_s += calm[to].process_s - spent.unsampled_s(&calm[to]);
            twin_s += calm[to].twin_s;
            to += 1;
        }
        let last = calm.get(to)?;
        let own_s = used_at(spent.own, last.over_s) - used_at(spent.own, first.over_s);
        let window =
            Worst { ratio: (extra_s + own_s) / twin_s, own_ratio: own_s / twin_s, from_s: first.over_s };
        worst = worst.filter(|worst: &Worst| worst.ratio >= window.ratio).or(Some(window));
        extra_s -= first.process_s - spent.unsampled_s(first);
        twin_s -= first.twin_s;
        if to + 1 == calm.len() {
            break;
        }
    }
    worst
}

/// CPU time used up to a moment, on the line between the two looks around it.
fn used_at(looks: &[(f64, f64)], at_s: f64) -> f64 {
    let after = looks.partition_point(|(look_s, _)| *look_s <= at_s);
    match (after.checked_sub(1).map(|before| looks[before]), looks.get(after)) {
        (Some((t0, c0)), Some((t1, c1))) => c0 + (c1 - c0) * (at_s - t0) / (t1 - t0),
        (Some((_, cpu_s)), None) | (None, Some(&(_, cpu_s))) => cpu_s,
        (None, None) => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns of 4 ms, of which one is disturbed now and then.
    fn turns(n: usize) -> Vec<Turn> {
        let mut random = fastrand::Rng::with_seed(5);
        let mut took_s = || {
            let disturbed = if random.f64() < 0.002 { 1.0 + random.f64() } else { 1.0 };
            TURN_S * disturbed * (1.0 + 0.01 * (random.f64() - 0.5))
        };
        let turn = |i: usize| Turn {
            number: i as u64,
            twin_s: took_s(),
            process_s: took_s(),
            over_s: i as f64 * 0.008,
        };
        (0..n).map(turn).collect()
    }

    #[test]
    fn the_worst_window_is_found_wherever_it_lies() {
        let mut turns = turns(2_500);
        turns
            .iter_mut()
            .filter(|turn| (7.0..8.0).contains(&turn.over_s))
            .for_each(|turn| turn.process_s *= 1.05);
        let own: Vec<(f64, f64)> =
            (0..400).map(|i| f64::from(i) * 0.05).map(|s| (s, if s < 12.0 { 0.0 } else { 0.01 })).collect();
        let spent = |own| Spent { turns: &turns, own, usual: 0.0, alone: None };
        let found = worst(&spent(&own[..1]), 1.0).unwrap();
        assert!((found.ratio - 0.05).abs() < 0.003 && found.own_ratio == 0.0, "{found:?}");
        assert!((7.0..7.1).contains(&found.from_s), "{found:?}");
        // Ten seconds of wall-clock time are five of the twin's: 25 ms more in the process, and 10 ms of the profiler's.
        let found = worst(&spent(&own), 10.0).unwrap();
        assert!((found.ratio - 0.007).abs() < 0.001, "{found:?}");
        assert!((found.own_ratio - 0.002).abs() < 0.0002, "{found:?}");
        assert_eq!(worst(&spent(&own), 30.0), None);
    }

    #[test]
    fn what_makes_the_switches_of_both_dearer_is_seen_beside_unsampled_turns() {
        let all = turns(4_000);
        let (unsampled, during) = all.split_at(1_500);
        let mut during = during.to_vec();
        for turn in during.iter_mut().filter(|turn| is_storm(turn, 0)) {
            (turn.twin_s, turn.process_s) = (1.1 * turn.twin_s, 1.1 * turn.process_s);
        }
        let alone = Alone::new(unsampled, &during, 0);
        let found = |alone| worst(&Spent { turns: &during, own: &[], usual: 0.0, alone }, 0.7).unwrap().ratio;
        assert!(found(None) < 0.01, "{}", found(None));
        assert!((found(alone) - 0.1).abs() < 0.01, "{}", found(alone));
        assert!(Alone::new(&unsampled[..100], &during, 0).is_none());
    }
}
