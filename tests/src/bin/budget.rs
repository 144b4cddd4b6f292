//! Does the profiler stay within its budget? Of two processes that take turns at the same work on one CPU, one is attached
//! to; what it then takes more than its twin, and the profiler's own CPU time by the kernel, is the overhead: on the whole
//! and in every second and ten seconds. Beside it stands what the profiler says.
//!
//! `late` begins calmly and meets its first storm of context switches while it is sampled: nothing foretells it, and what it then costs to
//! leave the events of its threads is beyond the budget of a second. So it is judged by whether the profiler says so.
//!
//! Options: `--only plain|step|storm|threads|late`, `--rounds 2`, `--seconds 24` (length of a run), `--budget 1%`, `--fresh 1`
//! (further runs without the machine's calibration at hand), `--attach-mode auto`.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use tests::experiment::{option, percent, print, progress, row};
use tests::guards::{OnCpu, two_cpus};
use tests::measured::cpu_s;
use tests::run::{Sweetspot, finish, start, sweetspot};
use tests::slope::Figure;
use tests::stats::{Stats, Summary};
use tests::twins::{Alone, Spent, TURN_S, Turn, Twins, Work, excess, now_s, worst};
use tests::verdict::{Verdict, ensure_none_fails};

/// What is done, and by which work of the twins.
const KINDS: [(&str, &str, u64); 5] = [
    ("plain", "compute", 20),
    ("step", "step", 5),
    ("storm", "storm", 5),
    ("threads", "threads", 20),
    (LATE, "late", 5),
];
const LATE: &str = "late";
/// How far the worst second of it, as said, may be from the stopwatch's.
const SAID: f64 = 0.15;
/// What any second, and any ten, may cost of the budget.
const WORST_1S: f64 = 1.2;
const WORST_10S: f64 = 1.02;
/// Time between two looks at the profiler's CPU time.
const LOOK: Duration = Duration::from_millis(50);
/// Length of an unsampled stretch before and after a run, of that of a run.
const UNSAMPLED: f64 = 0.5;

/// The worst second and the worst ten.
#[derive(Clone, Copy, Default, Serialize)]
struct Worst {
    ratio_1s: Option<f64>,
    ratio_10s: Option<f64>,
}

/// Where the worst second is.
#[derive(Clone, Copy, Serialize)]
struct Second {
    /// Since the run began (s).
    from_s: f64,
    /// The profiler's own part of it (ratio).
    own_ratio: f64,
}

/// One run by the stopwatch, and by the profiler.
#[derive(Serialize)]
struct Run {
    /// What the process took more than its twin (ratio).
    slowdown: Figure,
    /// CPU time of the profiler while it was attached, over the twin's time.
    own_ratio: f64,
    stopwatch: Worst,
    worst_second: Option<Second>,
    /// The same without sampling.
    noise: Worst,
    said_ratio: f64,
    said: Worst,
    samples: u64,
    attach_mode: String,
}

#[derive(Serialize)]
struct Found {
    kind: &'static str,
    budget_ratio: f64,
    runs: Vec<Run>,
    fresh: Vec<Run>,
    verdicts: Vec<Verdict>,
}

fn main() -> Result<()> {
    let only = option("--only", String::new())?;
    let known = KINDS.map(|(kind, _, _)| kind);
    ensure!(only.is_empty() || known.contains(&only.as_str()), "--only takes one of {}", known.join(", "));
    sweetspot(); // built before this is bound to one CPU
    let (target_cpu, own_cpu) = two_cpus()?;
    let _here = OnCpu::new(own_cpu)?;
    let kinds = KINDS.into_iter().filter(|(kind, _, _)| only.is_empty() || only == *kind);
    let found = kinds
        .map(|(kind, work, depth)| {
            measure(kind, Work { kind: work, depth, step_at: 0, cpu: target_cpu, program: "twins_nofp" })
        })
        .collect::<Result<Vec<_>>>()?;
    report(&found, target_cpu == own_cpu)?;
    ensure_none_fails(found.iter().flat_map(|found| &found.verdicts))
}

fn measure(kind: &'static str, work: Work) -> Result<Found> {
    let (rounds, fresh) = (option("--rounds", 2)?, option("--fresh", 1)?);
    ensure!(rounds > 0, "--rounds needs at least 1");
    let repeat = |runs: usize, calibrated: bool| {
        (0..runs)
            .map(|run| {
                let without = if calibrated { "" } else { " without a calibration" };
                progress(&format!("{kind}{without}: run {} of {runs}", run + 1));
                measure_once(work, calibrated)
            })
            .collect::<Result<Vec<(f64, Run)>>>()
    };
    let (runs, fresh) = (repeat(rounds, true)?, repeat(fresh, false)?);
    let budget_ratio = runs[0].0;
    let only_runs = |runs: Vec<(f64, Run)>| runs.into_iter().map(|(_, run)| run).collect();
    let mut found =
        Found { kind, budget_ratio, runs: only_runs(runs), fresh: only_runs(fresh), verdicts: Vec::new() };
    found.verdicts = found.judge();
    Ok(found)
}

/// The budget and a run, with unsampled stretches around it.
fn measure_once(work: Work, calibrated: bool) -> Result<(f64, Run)> {
    let seconds = option("--seconds", 24.0)?;
    let quiet_s = seconds * UNSAMPLED;
    let step_at = ((quiet_s + seconds / 2.0) / (2.0 * TURN_S)) as u64;
    let twins = Twins::start(Work { step_at, ..work })?;
    let began_s = now_s()?;
    sleep(Duration::from_secs_f64(quiet_s));
    let attached_s = now_s()?;
    let (summary, own) = attach(twins.pid, seconds, calibrated)?;
    let detached_s = now_s()?;
    sleep(Duration::from_secs_f64(quiet_s));
    let turns = twins.end()?;
    let between = |from_s: f64, to_s: f64| {
        let is_between = |turn: &&Turn| turn.over_s - TURN_S > from_s && turn.over_s < to_s;
        turns.iter().filter(is_between).copied().collect::<Vec<Turn>>()
    };
    let (before, during) = (between(began_s, attached_s), between(attached_s, detached_s));
    let after = between(detached_s, f64::INFINITY);
    let usual = excess(&[&before[..], &after[..]].concat()).context("too few unsampled turns")?;
    let found = excess(&during).context("too few sampled turns")?;
    let twin_s: f64 = during.iter().map(|turn| turn.twin_s).sum();
    let spent_s = own.last().map_or(0.0, |last| last.1) - own.first().map_or(0.0, |first| first.1);
    let worst_of = |spent: &Spent<'_>| {
        let ratio = |length_s| Some(worst(spent, length_s)?.ratio);
        Worst { ratio_1s: ratio(1.0), ratio_10s: ratio(10.0) }
    };
    let quiet = [&before[..], &after[..]].concat();
    let alone = match work.kind {
        "late" => Alone::new(&quiet, &during, step_at),
        _ => None,
    };
    let spent = |turns, own, alone| Spent { turns, own, usual: usual.mean, alone };
    let of = |turns, own, alone| worst_of(&spent(turns, own, alone));
    let begun_s = own.first().map_or(attached_s, |first| first.0);
    let worst_second = worst(&spent(&during, &own, alone), 1.0)
        .map(|found| Second { from_s: found.from_s - begun_s, own_ratio: found.own_ratio });
    let unsampled = alone.and_then(|alone: Alone| alone.undisturbed(&quiet));
    let run = Run {
        slowdown: Figure { mean: found.mean - usual.mean, se: found.se.hypot(usual.se) },
        own_ratio: spent_s / twin_s,
        stopwatch: of(&during, &own, alone),
        worst_second,
        noise: of(&before, &[], unsampled).or_more(of(&after, &[], unsampled)),
        said_ratio: summary.overhead_ratio,
        said: Worst {
            ratio_1s: Some(summary.overhead_worst_1s_ratio),
            ratio_10s: (seconds >= 10.0).then_some(summary.overhead_worst_10s_ratio),
        },
        samples: summary.samples,
        attach_mode: summary.attach_mode,
    };
    Ok((summary.budget_ratio, run))
}

/// Attaches for so long. Returns what the profiler says, and its CPU time while it sampled: moments and what it had
/// used (s).
fn attach(pid: u32, seconds: f64, calibrated: bool) -> Result<(Summary, Vec<(f64, f64)>)> {
    let (budget, mode) =
        (option("--budget", "1%".to_string())?, option("--attach-mode", "auto".to_string())?);
    let sweetspot = Sweetspot::new().options(&["--budget", &budget, "--attach-mode", &mode]);
    let mut words = sweetspot.outputs();
    words.extend(["--duration".to_string(), format!("{seconds}s"), pid.to_string()]);
    let mut command = sweetspot.command("attach", &words);
    if !calibrated {
        command.env("XDG_CACHE_HOME", sweetspot.path());
    }
    let mut profiler = start(&mut command)?;
    let mut own = Vec::new();
    while profiler.try_wait()?.is_none() {
        own.push((now_s()?, cpu_s(profiler.id())?));
        sleep(LOOK);
    }
    let ended = finish(profiler)?.expect_status(0)?;
    let lines = std::fs::read_to_string(sweetspot.file("stats.jsonl")).context(ended.stderr)?;
    let stats = Stats::parse(&lines)?;
    // Its start and its end, the names and the files, are no part of sampling.
    let at_s = |line: Option<&serde_json::Value>| line.and_then(|line| Some(line["at_ns"].as_f64()? * 1e-9));
    let decisions = || stats.lines.iter().filter(|line| line["at_ns"].is_number());
    let (first, last) = (at_s(decisions().next()), at_s(decisions().next_back()));
    let (first_s, last_s) = first.zip(last).context("no decisions")?;
    own.retain(|(at_s, _)| (first_s..=last_s).contains(at_s));
    Ok((stats.summary, own))
}

impl Worst {
    fn or_more(self, other: Worst) -> Worst {
        let more = |a: Option<f64>, b: Option<f64>| a.into_iter().chain(b).reduce(f64::max);
        Worst {
            ratio_1s: more(self.ratio_1s, other.ratio_1s),
            ratio_10s: more(self.ratio_10s, other.ratio_10s),
        }
    }

    fn show(&self) -> String {
        let show = |ratio: Option<f64>| ratio.map_or("-".to_string(), percent);
        format!("{} / {}", show(self.ratio_1s), show(self.ratio_10s))
    }
}

impl Second {
    fn show(&self) -> String {
        format!("{}, {:.1} s", percent(self.own_ratio), self.from_s)
    }
}

/// The worst of all runs.
fn most(runs: &[Run], figure: fn(&Run) -> Worst) -> Worst {
    runs.iter().map(figure).fold(Worst::default(), Worst::or_more)
}

impl Found {
    fn judge(&self) -> Vec<Verdict> {
        let (kind, budget) = (self.kind, self.budget_ratio);
        if kind == LATE {
            return self.runs.iter().chain(&self.fresh).filter_map(as_said).collect();
        }
        let mut verdicts = Vec::new();
        for run in &self.runs {
            let sum = run.slowdown.mean + run.own_ratio;
            let interval = (sum - 2.0 * run.slowdown.se, sum + 2.0 * run.slowdown.se);
            verdicts.push(Verdict::new(
                &format!("{kind}: slowdown and own CPU"),
                sum,
                interval,
                budget,
                percent,
            ));
        }
        for (what, runs) in [("said", &self.runs), ("said, no calibration", &self.fresh)] {
            let said = most(runs, |run| run.said);
            for (span, ratio, factor) in
                [("1 s", said.ratio_1s, WORST_1S), ("10 s", said.ratio_10s, WORST_10S)]
            {
                let what = format!("{kind}: any {span}, {what}");
                verdicts.extend(ratio.map(|ratio| Verdict::exact(&what, ratio, factor * budget, percent)));
            }
        }
        let (stopwatch, noise) = (most(&self.runs, |run| run.stopwatch), most(&self.runs, |run| run.noise));
        for (span, ratio, noise, factor) in [
            ("1 s", stopwatch.ratio_1s, noise.ratio_1s, WORST_1S),
            ("10 s", stopwatch.ratio_10s, noise.ratio_10s, WORST_10S),
        ] {
            let what = format!("{kind}: any {span}, by the stopwatch");
            let noise = noise.unwrap_or(f64::INFINITY).max(0.0);
            verdicts.extend(
                ratio.map(|ratio| {
                    Verdict::new(&what, ratio, (ratio - noise, ratio), factor * budget, percent)
                }),
            );
        }
        verdicts
    }
}

/// Whether the worst second was as bad as the profiler says.
fn as_said(run: &Run) -> Option<Verdict> {
    let (said, stopwatch) = (run.said.ratio_1s?, run.stopwatch.ratio_1s?);
    let (off, noise) = ((said - stopwatch).abs(), run.noise.ratio_1s.unwrap_or(f64::INFINITY).abs());
    let interval = ((off - noise).max(0.0), off + noise);
    Some(Verdict::new("late: worst second, said less measured", off, interval, SAID * stopwatch, percent))
}

fn report(found: &[Found], one_cpu: bool) -> Result<()> {
    let heads = [
        "work",
        "run",
        "attached",
        "samples",
        "slowdown",
        "own CPU",
        "sum",
        "said",
        "worst 1 s / 10 s",
        "own part, from",
        "said",
        "noise",
    ];
    let mut rows = vec![heads.map(str::to_string).to_vec()];
    for Found { kind, runs, fresh, .. } in found {
        let all = runs.iter().map(|run| ("calibrated", run)).chain(fresh.iter().map(|run| ("fresh", run)));
        rows.extend(all.map(|(which, run)| {
            row([
                kind,
                &which,
                &run.attach_mode,
                &run.samples,
                &format!("{} ± {}", percent(run.slowdown.mean), percent(run.slowdown.se)),
                &percent(run.own_ratio),
                &percent(run.slowdown.mean + run.own_ratio),
                &percent(run.said_ratio),
                &run.stopwatch.show(),
                &run.worst_second.map_or("-".to_string(), |second| second.show()),
                &run.said.show(),
                &run.noise.show(),
            ])
        }));
    }
    let mut remarks: Vec<String> =
        found.iter().flat_map(|found| &found.verdicts).map(|verdict| verdict.line().to_string()).collect();
    if one_cpu {
        remarks.push("one CPU: target and profiler share it".to_string());
    }
    print(&rows, &remarks, &found)
}
