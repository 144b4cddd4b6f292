//! Is a profile worth having from the first second? First in simulation: the controller, which does not know how long a run
//! lasts, and fixed rates, on 16 programs for runs of .1 to 60 s, over the least possible error of each length. Then live:
//! a program of known shares under the defaults of this profiler, of samply and of `perf record -F HZ -g`, each run between
//! two unsampled ones, or beside one on its CPU; errors over the best way of each length.
//!
//! Options: `--rounds 1` (a multiple of the usual runs: 24 of .1 s to 2 of 60 s), `--shortest 0` and `--longest 60` (leave
//! out shorter and longer runs, s), `--only simulated|live`.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Serialize;
use tests::experiment::{option, percent, print, progress};
use tests::first_seconds::{Judged, Observed, Subject, WAYS, Way, judge};
use tests::guards::{Sysctl, is_root};
use tests::portfolio::{Known, Score, adaptive, chosen, programs_of};
use tests::verdict::{Verdict, ensure_none_fails};

/// Length of a run (s of CPU time), and how many of each way.
const LENGTHS: [(f64, usize); 6] = [(0.1, 24), (0.3, 20), (1.0, 16), (3.0, 8), (10.0, 4), (60.0, 2)];
const FIXED_HZ: [f64; 5] = [99.0, 499.0, 999.0, 4_000.0, 10_000.0];
/// What the controller may lose at each length: in simulation over the least possible error, live over the best way.
const SIMULATED_LOSS: f64 = 1.06;
const LIVE_LOSS: f64 = 1.15;

#[derive(Default, Serialize)]
struct Report {
    simulated: Vec<(f64, BTreeMap<String, Score>)>,
    live: Vec<(f64, BTreeMap<String, Judged>)>,
}

fn main() -> Result<()> {
    let only: String = option("--only", String::new())?;
    let wanted = option("--shortest", 0.0)?..=option("--longest", 60.0)?;
    let lengths: Vec<(f64, usize)> =
        LENGTHS.into_iter().filter(|(length_s, _)| wanted.contains(length_s)).collect();
    let mut report = Report::default();
    let (mut rows, mut verdicts) = (Vec::new(), Vec::new());
    if only != "live" {
        report.simulated = lengths.iter().map(|(length_s, _)| (*length_s, simulated(*length_s))).collect();
        rows.extend(simulated_rows(&report.simulated));
        verdicts.extend(judge_simulated(&report.simulated));
        rows.push(Vec::new());
    }
    if only != "simulated" {
        for (length_s, count) in lengths {
            report.live.push((length_s, live(length_s, count * option("--rounds", 1)?)?));
        }
        rows.extend(live_rows(&report.live));
        verdicts.extend(judge_live(&report.live));
    }
    let remarks: Vec<String> = verdicts.iter().map(|verdict| verdict.line().to_string()).collect();
    print(&rows, &remarks, &report)?;
    ensure_none_fails(&verdicts)
}

const ANYTIME: &str = "anytime";

fn simulated(length_s: f64) -> BTreeMap<String, Score> {
    let programs = programs_of(&[length_s], &[0.0]);
    let fixed = FIXED_HZ.map(|hz| (format!("{hz}/s"), chosen(&programs, |_| hz)));
    [(ANYTIME.to_owned(), adaptive(&programs, Known::Nothing, 20))].into_iter().chain(fixed).collect()
}

fn simulated_rows(found: &[(f64, BTreeMap<String, Score>)]) -> Vec<Vec<String>> {
    let names: Vec<&String> = found.first().map(|(_, ways)| ways.keys().collect()).unwrap_or_default();
    let head = ["simulated, s"].into_iter().chain(names.iter().map(|name| name.as_str()));
    let row = |(length_s, ways): &(f64, BTreeMap<String, Score>)| {
        let scores = names.iter().map(|name| format!("{:.3} ({:.2})", ways[*name].mean, ways[*name].worst));
        [length_s.to_string()].into_iter().chain(scores).collect()
    };
    [head.map(str::to_owned).collect()].into_iter().chain(found.iter().map(row)).collect()
}

fn judge_simulated(found: &[(f64, BTreeMap<String, Score>)]) -> Vec<Verdict> {
    let show = |loss: f64| format!("{loss:.3}");
    let mut verdicts: Vec<Verdict> = found
        .iter()
        .map(|(length_s, ways)| {
            let what = format!("simulated, {length_s} s: mean error over the least possible");
            Verdict::exact(&what, ways[ANYTIME].mean, SIMULATED_LOSS, show)
        })
        .collect();
    let worst = |name: &str| found.iter().map(|(_, ways)| ways[name].mean).fold(0.0, f64::max);
    let best_fixed = FIXED_HZ.map(|hz| worst(&format!("{hz}/s"))).into_iter().fold(f64::INFINITY, f64::min);
    verdicts.push(Verdict::exact(
        "simulated: worst length, over that of the best fixed rate",
        worst(ANYTIME) / best_fixed,
        1.0,
        show,
    ));
    verdicts
}

fn live(length_s: f64, count: usize) -> Result<BTreeMap<String, Judged>> {
    let ways: Vec<Way> = WAYS.into_iter().filter(|way| way.is_present()).collect();
    // samply refuses to run at more than 1, even as root.
    let lower = ways.contains(&Way::Samply) && is_root();
    let _paranoid = lower.then(|| Sysctl::kernel("perf_event_paranoid", "1")).transpose()?;
    let mut subject = Subject::new(length_s)?;
    let mut runs: Vec<Vec<Observed>> = vec![Vec::new(); ways.len()];
    for round in 0..count {
        progress(&format!("{length_s} s, round {} of {count}", round + 1));
        for turn in 0..ways.len() {
            let at = (round + turn) % ways.len();
            runs[at].push(subject.observe(ways[at])?);
        }
    }
    Ok(ways.iter().zip(&runs).map(|(way, runs)| (way.name(), judge(runs))).collect())
}

fn best(ways: &BTreeMap<String, Judged>) -> f64 {
    ways.values().map(|judged| judged.error_ratio).fold(f64::INFINITY, f64::min)
}

fn live_rows(found: &[(f64, BTreeMap<String, Judged>)]) -> Vec<Vec<String>> {
    let heads = ["live, s", "way", "samples", "slowdown", "bias", "error", "of the best"];
    let rows = found.iter().flat_map(|(length_s, ways)| {
        ways.iter().map(move |(name, judged)| {
            vec![
                length_s.to_string(),
                name.clone(),
                format!("{:.0}", judged.samples),
                percent(judged.slowdown_ratio),
                percent(judged.bias_ratio),
                percent(judged.error_ratio),
                format!("{:.2}", judged.error_ratio / best(ways)),
            ]
        })
    });
    [heads.map(str::to_owned).to_vec()].into_iter().chain(rows).collect()
}

fn judge_live(found: &[(f64, BTreeMap<String, Judged>)]) -> Vec<Verdict> {
    let show = |loss: f64| format!("{loss:.2}");
    let ours = Way::Sweetspot.name();
    let loss = |ways: &BTreeMap<String, Judged>, name: &str| ways[name].error_ratio / best(ways);
    let mean = |name: &str| found.iter().map(|(_, ways)| loss(ways, name)).sum::<f64>() / found.len() as f64;
    let mut verdicts: Vec<Verdict> = found
        .iter()
        .map(|(length_s, ways)| {
            let what = format!("live, {length_s} s: error over that of the best way");
            Verdict::exact(&what, loss(ways, &ours), LIVE_LOSS, show)
        })
        .collect();
    let others = found.first().into_iter().flat_map(|(_, ways)| ways.keys()).filter(|name| **name != ours);
    verdicts.extend(others.map(|name| {
        let what = format!("live: mean over the lengths, over that of {name}");
        Verdict::exact(&what, mean(&ours) / mean(name), 1.0, show)
    }));
    verdicts
}
