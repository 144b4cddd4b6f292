//! Checks whether the profiler stays within its two budgets. Two processes (twins) take turns at the same work on one CPU, and one
//! of them is profiled. The extra time that it takes is the slowdown; the profiler's own CPU time is read from the kernel. Both are
//! measured over the whole run and in any ten seconds, and printed beside the profiler's own figures.
//!
//! `late` begins calmly and has its first storm of context switches while it is sampled. The profiler cannot foresee the storm, and
//! leaving the events of the threads then costs more than the budget of one second. So `late` passes if the profiler reports this.
//!
//! Options: `--only plain|step|storm|threads|late`, `--rounds 2`, `--seconds 24` (length of a run), `--budget 5%`, `--own-cpu 10%`, `--fresh 1`
//! (further runs without the machine's calibration at hand), `--attach-mode auto`.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use tests::experiment::{option, percent, print, progress, row};
use tests::guards::{OnCpu, two_cpus};
use tests::measured::cpu_s;
use tests::run::{Sweetspot, finish, start, sweetspot};
use tests::stats::{Stats, Summary};
use tests::twins::{Alone, Spent, TURN_S, Turn, Twins, Work, excess, now_s, worst};
use tests::verdict::{Verdict, ensure_none_fails};

/// The cases, with the work that the twins do in each.
const KINDS: [(&str, &str, u64); 5] = [
    ("plain", "compute", 20),
    ("step", "step", 5),
    ("storm", "storm", 5),
    ("threads", "threads", 20),
    (LATE, "late", 5),
];
const LATE: &str = "late";
/// How far the reported worst second may be from the measured one.
const SAID: f64 = 0.15;
/// The part of a budget that any ten seconds may cost.
const WORST_10S: f64 = 1.05;
const SPAN_S: f64 = 10.0;
/// Time between two readings of the profiler's CPU time.
const LOOK: Duration = Duration::from_millis(50);
/// Length of the unsampled time before and after a run, as a share of the run's.
const UNSAMPLED: f64 = 0.5;

/// A share over the whole run and in the worst ten seconds, as measured and as the profiler reports.
#[derive(Clone, Copy, Serialize)]
struct Cost {
    ratio: f64,
    worst_10s_ratio: Option<f64>,
    said_ratio: f64,
    budget_ratio: f64,
}

/// One run, as measured and as the profiler reports.
#[derive(Serialize)]
struct Run {
    /// Extra time of the sampled process (ratio to its twin's time).
    slowdown: Cost,
    slowdown_se_ratio: f64,
    /// By how much ten unsampled seconds differ (ratio).
    noise_10s_ratio: f64,
    /// CPU time of the profiler while it was attached, as a share of one CPU.
    own: Cost,
    /// The slowdown in the worst second: measured, reported, and its noise (ratio to the twin's time).
    worst_1s: [Option<f64>; 3],
    samples: u64,
    law_samples: f64,
    bound_by: String,
    attach_mode: String,
}

#[derive(Serialize)]
struct Found {
    kind: &'static str,
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
            .collect::<Result<Vec<Run>>>()
    };
    let (runs, fresh) = (repeat(rounds, true)?, repeat(fresh, false)?);
    let mut found = Found { kind, runs, fresh, verdicts: Vec::new() };
    found.verdicts = found.judge();
    Ok(found)
}

/// Runs the profiler once, with unsampled time before and after.
fn measure_once(work: Work, calibrated: bool) -> Result<Run> {
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
    let quiet = [&before[..], &after[..]].concat();
    let alone = match work.kind {
        LATE => Alone::new(&quiet, &during, step_at),
        _ => None,
    };
    let unsampled = alone.and_then(|alone: Alone| alone.undisturbed(&quiet));
    let worst_of = |turns, own, alone, length_s| {
        Some(worst(&Spent { turns, own, usual: usual.mean, alone }, length_s)?.ratio)
    };
    let noise = |length_s| {
        let of = |turns| worst_of(turns, &[], unsampled, length_s);
        of(&before).into_iter().chain(of(&after)).reduce(f64::max)
    };
    Ok(Run {
        slowdown: Cost {
            ratio: found.mean - usual.mean,
            worst_10s_ratio: worst_of(&during, &[], alone, SPAN_S),
            said_ratio: summary.slowdown_ratio,
            budget_ratio: summary.slowdown_budget_ratio,
        },
        slowdown_se_ratio: found.se.hypot(usual.se),
        noise_10s_ratio: noise(SPAN_S).unwrap_or(f64::INFINITY).max(0.0),
        own: Cost {
            ratio: most_within(&own, 0.0).context("the profiler was not seen")?,
            worst_10s_ratio: most_within(&own, SPAN_S),
            said_ratio: summary.own_cpu_ratio,
            budget_ratio: summary.own_cpu_budget_ratio,
        },
        worst_1s: [
            worst_of(&during, &own, alone, 1.0),
            Some(summary.overhead_worst_1s_ratio),
            noise(1.0).map(f64::abs),
        ],
        samples: summary.samples,
        law_samples: summary.law_samples,
        bound_by: summary.bound_by,
        attach_mode: summary.attach_mode,
    })
}

/// The largest share of a CPU that was used in any time range of this length, or in the whole run if it is 0. Computed from readings of
/// the CPU time used (moment, s). `None` if the run was shorter.
fn most_within(looks: &[(f64, f64)], length_s: f64) -> Option<f64> {
    let (first, last) = (looks.first()?, looks.last()?);
    let share = |from: &(f64, f64), to: &(f64, f64)| (to.1 - from.1) / (to.0 - from.0);
    if length_s == 0.0 {
        return (last.0 > first.0).then(|| share(first, last));
    }
    let ranges = looks.iter().filter_map(|from| {
        let to = looks.get(looks.partition_point(|look| look.0 < from.0 + length_s))?;
        Some(share(from, to))
    });
    ranges.reduce(f64::max)
}

/// Attaches for this long. Returns the profiler's report and the readings of its CPU time while it sampled (moment, s).
fn attach(pid: u32, seconds: f64, calibrated: bool) -> Result<(Summary, Vec<(f64, f64)>)> {
    let [budget, own_cpu, mode] = [("--budget", "5%"), ("--own-cpu", "10%"), ("--attach-mode", "auto")]
        .map(|(name, default)| option(name, default.to_string()));
    let options = ["--budget", &budget?, "--own-cpu", &own_cpu?, "--attach-mode", &mode?];
    let sweetspot = Sweetspot::new().options(&options);
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

impl Cost {
    fn show(&self) -> String {
        let worst = self.worst_10s_ratio.map_or("-".to_string(), percent);
        format!("{} / {worst} (said {})", percent(self.ratio), percent(self.said_ratio))
    }
}

impl Found {
    fn judge(&self) -> Vec<Verdict> {
        let kind = self.kind;
        let all = self.runs.iter().chain(&self.fresh);
        if kind == LATE {
            return all.filter_map(as_said).collect();
        }
        let mut verdicts = Vec::new();
        for (run, number) in all.zip(1..) {
            let what = |figure: &str| format!("{kind}, run {number}: {figure}");
            let (slowdown, own) = (&run.slowdown, &run.own);
            let around = |ratio: f64, noise: f64| (ratio - noise, ratio + noise);
            let on_the_whole = around(slowdown.ratio, 2.0 * run.slowdown_se_ratio);
            let bound = slowdown.budget_ratio;
            verdicts.push(Verdict::new(&what("slowdown"), slowdown.ratio, on_the_whole, bound, percent));
            if let Some(worst) = slowdown.worst_10s_ratio {
                // Of many stretches the worst is above what was spent, by its noise.
                let interval = (worst - run.noise_10s_ratio, worst);
                let bound = WORST_10S * bound;
                verdicts.push(Verdict::new(&what("slowdown in any 10 s"), worst, interval, bound, percent));
            }
            verdicts.push(Verdict::exact(&what("own CPU time"), own.ratio, own.budget_ratio, percent));
            for (figure, cost) in [("slowdown, as said", slowdown), ("own CPU time, as said", own)] {
                verdicts.push(Verdict::exact(&what(figure), cost.said_ratio, cost.budget_ratio, percent));
            }
            let worst = own.worst_10s_ratio.into_iter();
            let bound = WORST_10S * own.budget_ratio;
            verdicts.extend(
                worst.map(|worst| Verdict::exact(&what("own CPU time in any 10 s"), worst, bound, percent)),
            );
        }
        verdicts
    }
}

/// Whether the worst second was as bad as the profiler reports.
fn as_said(run: &Run) -> Option<Verdict> {
    let [stopwatch, said, noise] = run.worst_1s;
    let (stopwatch, noise) = (stopwatch?, noise.unwrap_or(f64::INFINITY));
    let off = (said? - stopwatch).abs();
    let interval = ((off - noise).max(0.0), off + noise);
    Some(Verdict::new("late: worst second, said less measured", off, interval, SAID * stopwatch, percent))
}

fn report(found: &[Found], one_cpu: bool) -> Result<()> {
    let heads = [
        "work",
        "run",
        "attached",
        "samples of the law's",
        "bound by",
        "slowdown / worst 10 s",
        "±",
        "noise of 10 s",
        "own CPU / worst 10 s",
        "worst 1 s, said",
    ];
    let mut rows = vec![heads.map(str::to_string).to_vec()];
    for Found { kind, runs, fresh, .. } in found {
        let all = runs.iter().map(|run| ("calibrated", run)).chain(fresh.iter().map(|run| ("fresh", run)));
        rows.extend(all.map(|(which, run)| {
            row([
                kind,
                &which,
                &run.attach_mode,
                &format!("{} of {:.0}", run.samples, run.law_samples),
                &run.bound_by,
                &run.slowdown.show(),
                &percent(run.slowdown_se_ratio),
                &percent(run.noise_10s_ratio),
                &run.own.show(),
                &run.worst_1s[..2]
                    .iter()
                    .map(|ratio| ratio.map_or("-".to_string(), percent))
                    .collect::<Vec<_>>()
                    .join(", "),
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
