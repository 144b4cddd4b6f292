//! What a sample at the kernel's tick costs: the program's own clock (`programs/ticked.c`) tells what each tick took of it that
//! brought a sample, and each that did not, and what a clock's interrupt takes that came for a sample alone.

use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use tests::experiment::{option, percent, progress, row};
use tests::guards::Running;
use tests::measured::{self, measured};
use tests::peers::Profiler;
use tests::programs::program;
use tests::run::finish;
use tests::slope::Figure;
use tests::stats::Stats;
use tests::ticked::{Piece, Pieces, at_the_tick, at_usual_places, middle, tick_ns};
use tests::twins::now_s;
use tests::verdict::Verdict;

/// Frames of the program below its work.
const DEPTH: &str = "12";
/// What a sample at the tick may take of the target, of one of the clock.
const OF_CLOCK: f64 = 0.3;
/// How far what the profiler says of it may lie from that, as a share.
const SAID_OFF: f64 = 0.15;
/// A profiler may take so long until it samples, and stops a little later than it says (s).
const BEGINS_S: f64 = 1.0;
const ENDS_S: f64 = 0.5;
/// Samples of the clock beside the tick's (samples per CPU-second).
const BESIDE_HZ: u32 = 50;

/// How samples are taken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Tick,
    Clock,
}

/// One run of a profiler.
struct Attached {
    how: How,
    from_ns: f64,
    to_ns: f64,
    samples: f64,
    own_s: f64,
    /// What it says that a sample at the tick took of the target (µs).
    said_us: Option<f64>,
}

/// What was found, all of it per sample (µs).
#[derive(Serialize)]
pub(super) struct Found {
    kind: &'static str,
    tick_us: Figure,
    said_us: f64,
    clock_us: Figure,
    tick_own_us: f64,
    clock_own_us: f64,
}

/// Ticks and the clock for some seconds in turn, with as long a pause.
pub(super) fn measure(rounds: usize, cpu: usize) -> Result<Vec<Found>> {
    ["compute", "memory"].map(|kind| measure_kind(kind, rounds, cpu)).into_iter().collect()
}

fn measure_kind(kind: &'static str, rounds: usize, cpu: usize) -> Result<Found> {
    let seconds: f64 = option("--seconds", 8.0)?;
    let hows = [How::Tick, How::Clock];
    let all_s = (2.0 * seconds + 3.0) * (rounds * hows.len() + 1) as f64;
    let mut command = Command::new("taskset");
    command.args(["-c", &cpu.to_string()]).arg(program("ticked")?).args([kind, &all_s.to_string(), DEPTH]);
    let target = Running::start(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()))?;
    let end_s = now_s()? + all_s;
    let mut runs = Vec::new();
    for round in 0..rounds {
        progress(&format!("ticks, {kind}, round {} of {rounds}", round + 1));
        for turn in 0..hows.len() {
            sleep(Duration::from_secs_f64(seconds));
            runs.push(attach(hows[(round + turn) % hows.len()], target.id(), seconds)?);
        }
    }
    ensure!(now_s()? < end_s, "the program ended too early: --seconds is too short for this machine");
    sleep(Duration::from_secs_f64((end_s - now_s()?).max(0.0)));
    found(kind, &Pieces::parse(&finish(target)?.stdout), &runs)
}

fn attach(how: How, pid: u32, seconds: f64) -> Result<Attached> {
    let folder = tempfile::tempdir()?;
    let (pid, duration) = (pid.to_string(), seconds.to_string());
    let hz = 1e9 / tick_ns()?;
    let profiler = Profiler::Sweetspot;
    let mut command = Command::new(profiler.find().context("it was there")?);
    let (source, rate) = match how {
        How::Tick => ("tick", BESIDE_HZ.to_string()),
        How::Clock => ("clock", hz.to_string()),
    };
    command
        .current_dir(folder.path())
        .args(["attach", &pid, "--duration", &format!("{duration}s"), "--stats", "stats.jsonl"])
        .args(["--source", source, "--rate", &rate, "-o", "profile.pb.gz", "-o", "profile.folded"]);
    let used = folder.path().join("used.json");
    let began_s = now_s()?;
    let attached = Running::start(&mut measured(&command, &used)?)?;
    let ended = finish(attached)?;
    ensure!(ended.status == 0, "{} failed: {}", profiler.name(), ended.stderr);
    let recording = profiler.read(folder.path(), &ended.stderr)?;
    let mut said_us = None;
    if how == How::Tick {
        let said = std::fs::read_to_string(folder.path().join("stats.jsonl"))?;
        let summary = Stats::parse(&said)?.summary;
        ensure!(summary.tick_audit == "believed", "no samples at the tick: {}", summary.tick_audit);
        said_us = Some(summary.tick_overhead_us);
    }
    Ok(Attached {
        how,
        from_ns: (began_s + BEGINS_S) * 1e9,
        to_ns: (began_s + seconds - ENDS_S).min(now_s()?) * 1e9,
        samples: recording.samples as f64,
        own_s: recording.sampling_cpu_s.unwrap_or(measured::read(&used)?.cpu_s),
        said_us,
    })
}

fn found(kind: &'static str, pieces: &Pieces, runs: &[Attached]) -> Result<Found> {
    let pieces_of = |how: Option<How>| {
        let during = move |piece: &&Piece| {
            let mut attached = runs.iter().filter(|run| {
                let margin_ns = if how.is_some() { 0.0 } else { (BEGINS_S + 2.0 * ENDS_S) * 1e9 };
                (run.from_ns - margin_ns..run.to_ns + margin_ns).contains(&piece.at_ns)
            });
            match how {
                Some(how) => attached.any(|run| run.how == how),
                None => attached.next().is_none(),
            }
        };
        pieces.interrupted.iter().filter(during)
    };
    let is_tick = at_the_tick(pieces_of(None).map(|piece| piece.at_ns), tick_ns()?);
    let is_usual = at_usual_places(pieces_of(None).map(|piece| piece.at_ns), tick_ns()?);
    let bare = middle(pieces_of(None).filter(|piece| is_tick(piece.at_ns))).context("ticks by themselves")?;
    let usual = Figure { mean: pieces.usual_ns, se: 0.0 };
    let of_clock = |how| {
        let took = middle(pieces_of(Some(how)).filter(|piece| !is_usual(piece.at_ns)));
        Ok::<_, anyhow::Error>(took.context("interrupts of a clock")?.minus(usual).scaled(1e-3))
    };
    let own_us = |how: How| {
        let of = |part: fn(&Attached) -> f64| runs.iter().filter(|run| run.how == how).map(part).sum::<f64>();
        of(|run| run.own_s) / of(|run| run.samples) * 1e6
    };
    let with_sample = middle(pieces_of(Some(How::Tick)).filter(|piece| is_tick(piece.at_ns)));
    Ok(Found {
        kind,
        tick_us: with_sample.context("ticks with a sample")?.minus(bare).scaled(1e-3),
        said_us: {
            let said: Vec<f64> = runs.iter().filter_map(|run| run.said_us).collect();
            said.iter().sum::<f64>() / said.len() as f64
        },
        clock_us: of_clock(How::Clock)?,
        tick_own_us: own_us(How::Tick),
        clock_own_us: own_us(How::Clock),
    })
}

impl Found {
    pub(super) fn judge(&self) -> [Verdict; 2] {
        [self.judge_cost(), self.judge_said()]
    }

    fn judge_said(&self) -> Verdict {
        let said = Figure { mean: self.said_us, se: 0.0 }.over(self.tick_us);
        let (off, doubt) = ((said.mean - 1.0).abs(), 2.0 * said.se);
        let what = format!("what is said of a sample at the tick ({}), off what it takes", self.kind);
        Verdict::new(&what, off, ((off - doubt).max(0.0), off + doubt), SAID_OFF, percent)
    }

    fn judge_cost(&self) -> Verdict {
        let ratio = self.tick_us.over(self.clock_us);
        let interval = (ratio.mean - 2.0 * ratio.se, ratio.mean + 2.0 * ratio.se);
        let what = format!("a sample at the tick on the target ({}), of one of the clock", self.kind);
        Verdict::new(&what, ratio.mean, interval, OF_CLOCK, |ratio| format!("{ratio:.2} ×"))
    }
}

pub(super) fn rows(found: &[Found]) -> Vec<Vec<String>> {
    let mut rows =
        vec![["samples of", "program", "target µs", "said µs", "own µs"].map(str::to_string).to_vec()];
    let target = |figure: &Figure| format!("{:.2} ± {:.2}", figure.mean, figure.se);
    for one in found {
        let own = |us: f64| format!("{us:.2}");
        rows.push(row([
            &"the tick",
            &one.kind,
            &target(&one.tick_us),
            &own(one.said_us),
            &own(one.tick_own_us),
        ]));
        rows.push(row([&"the clock", &one.kind, &target(&one.clock_us), &"", &own(one.clock_own_us)]));
    }
    rows
}
