//! Checks that the daemon keeps its budgets while load, depth, threads, targets and budgets change in steps. Each target is measured
//! against an unsampled twin. The daemon's own figures, and the rates that the law asks for, are printed beside.
//!
//! Options: `--only load|depth|threads|targets|budgets`, `--rounds 1` (of each: five minutes; 3 take a quarter of an hour), `--seconds 12`
//! (length of most phases; at least 11), `--attach-mode task` (what the stopwatch can judge: events for whole CPUs interrupt
//! both of a pair).

use anyhow::{Result, ensure};
use serde::Serialize;
use tests::experiment::{option, percent, print, progress, row};
use tests::guards::{OnCpu, is_root, two_cpus};
use tests::run::sweetspot;
use tests::steps::judge::{Found, find, judge};
use tests::steps::play::{name, play};
use tests::steps::scenarios::{Scenario, all};
use tests::verdict::{Held, Verdict, ensure_none_fails};

/// A phase has to hold a window of ten seconds.
const SHORTEST_S: f64 = 11.0;

#[derive(Serialize)]
struct Outcome {
    name: &'static str,
    rounds: Vec<Found>,
    verdicts: Vec<Verdict>,
}

fn main() -> Result<()> {
    let (only, rounds) = (option("--only", String::new())?, option("--rounds", 1)?);
    let mode = option("--attach-mode", "task".to_string())?;
    let seconds = option("--seconds", 12.0)?;
    let scenarios: Vec<Scenario> =
        all().into_iter().filter(|scenario| only.is_empty() || scenario.name == only).collect();
    ensure!(!scenarios.is_empty(), "--only takes one of load, depth, threads, targets, budgets");
    ensure!(rounds > 0 && seconds >= SHORTEST_S, "--rounds needs 1, --seconds {SHORTEST_S} at least");
    ensure!(is_root(), "the daemon samples other processes: run this as root");
    sweetspot(); // built before this is bound to one CPU
    let cpus = two_cpus()?;
    let _here = OnCpu::new(cpus.1)?;
    let mut outcomes: Vec<Outcome> = scenarios
        .iter()
        .map(|scenario| Outcome { name: scenario.name, rounds: Vec::new(), verdicts: Vec::new() })
        .collect();
    for round in 0..rounds {
        for (scenario, outcome) in scenarios.iter().zip(&mut outcomes) {
            progress(&format!("{}, round {} of {rounds}", scenario.name, round + 1));
            outcome.rounds.push(find(scenario, &play(scenario, seconds, &mode, cpus)?)?);
        }
    }
    for (scenario, outcome) in scenarios.iter().zip(&mut outcomes) {
        outcome.verdicts = judge(scenario, &outcome.rounds);
    }
    report(&scenarios, &outcomes, cpus.0 == cpus.1)?;
    ensure_none_fails(outcomes.iter().flat_map(|outcome| &outcome.verdicts))
}

fn report(scenarios: &[Scenario], outcomes: &[Outcome], one_cpu: bool) -> Result<()> {
    let heads = [
        "scenario", "phase", "who", "CPUs", "budget", "granted", "overhead", "own part", "said", "rate",
        "law's", "bound by",
    ];
    let mut rows = vec![heads.map(str::to_string).to_vec()];
    for (scenario, outcome) in scenarios.iter().zip(outcomes) {
        rows.extend(outcome.rounds.iter().flat_map(|found| rows_of(scenario, found)));
    }
    let verdicts: Vec<&Verdict> = outcomes.iter().flat_map(|outcome| &outcome.verdicts).collect();
    let held = verdicts.iter().filter(|verdict| verdict.held() == Held::Holds).count();
    let mut remarks: Vec<String> = verdicts
        .iter()
        .filter(|verdict| verdict.held() != Held::Holds || verdict.line().contains("any 10 s"))
        .map(|verdict| verdict.line().to_string())
        .collect();
    remarks.push(format!("{held} of {} bounds hold", verdicts.len()));
    if one_cpu {
        remarks.push("one CPU: targets and daemon share it".to_string());
    }
    print(&rows, &remarks, &outcomes)
}

fn rows_of(scenario: &Scenario, found: &Found) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for phase in &found.phases {
        let host = &phase.host;
        let sure =
            |figure: tests::slope::Figure| format!("{} ± {}", percent(figure.mean), percent(figure.se));
        rows.push(row([
            &found.name,
            &phase.what,
            &"host",
            &"",
            &percent(phase.host_budget_ratio),
            &"",
            &sure(host.overhead),
            &percent(host.own_ratio),
            &percent(host.said_ratio),
            &"",
            &"",
            &"",
        ]));
        rows.extend(phase.targets.iter().map(|target| {
            row([
                &found.name,
                &phase.what,
                &name(target.number),
                &format!("{:.3}", target.busy_cpus),
                &percent(scenario.cast[target.number].budget_ratio),
                &percent(target.granted_ratio),
                &sure(target.slowdown),
                &percent(target.own_ratio),
                &percent(target.said_ratio),
                &format!("{:.0}", target.rate_hz),
                &format!("{:.0}", phase.law_hz[&target.number]),
                &phase.decisions[&target.number]
                    .last()
                    .and_then(|last| last["bound_by"].as_str())
                    .unwrap_or_default(),
            ])
        }));
    }
    rows
}
