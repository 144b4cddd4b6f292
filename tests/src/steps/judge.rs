//! Checks that the budgets were kept and that the rates are the law's.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Serialize;
use serde_json::Value;

use super::figures::{Figures, HostFigures, TargetFigures, Worst};
use super::law::{Seen, rates_hz};
use super::play::{Show, taking_part};
use super::scenarios::Scenario;
use crate::experiment::percent;
use crate::slope::Figure;
use crate::verdict::Verdict;

/// The part of the budget that any ten seconds may cost.
const WORST_10S: f64 = 1.02;
/// A rate is the law's within this factor: as in simulation.
const LAW_FACTOR: f64 = 1.4;
/// How far the daemon's report of its own CPU time may be from the kernel's figure.
const OWN_FACTOR: f64 = 1.03;
/// How many times the reported cost of a target the true one may be.
const SAID_FACTOR: f64 = 1.2;

/// A phase of a round.
#[derive(Clone, Debug, Serialize)]
pub struct PhaseFound {
    /// What happens in it.
    pub what: &'static str,
    /// The host's budget, and what was spent of the host.
    pub host_budget_ratio: f64,
    /// See there.
    pub host: HostFigures,
    /// The targets.
    pub targets: Vec<TargetFigures>,
    /// The rates of the law, target by target.
    pub law_hz: BTreeMap<usize, f64>,
    /// The controllers' last decisions, with what they decided on, oldest first.
    pub decisions: BTreeMap<usize, Vec<Value>>,
    /// What the daemon says of its targets in the end.
    pub statuses: Value,
}

/// Results of one round of a scenario.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// Which one.
    pub name: &'static str,
    /// Its phases.
    pub phases: Vec<PhaseFound>,
    /// The ten seconds that slowed each target down most, by the stopwatch.
    pub worst: BTreeMap<usize, Worst>,
    /// The same as the daemon says.
    pub said_worst: BTreeMap<usize, f64>,
    /// The host's, over the CPU time of all CPUs: the worst within any phase over that phase's budget.
    pub host_worst: Vec<(f64, Worst)>,
    /// The daemon's CPU time as it says, over the kernel's figure.
    pub own_of_kernel: f64,
}

/// Computes what it cost.
pub fn find(scenario: &Scenario, show: &Show) -> Result<Found> {
    let figures = Figures::new(show)?;
    let mut phases = Vec::new();
    for (at, phase) in scenario.phases.iter().enumerate() {
        let host = figures.host(at)?;
        let targets =
            taking_part(phase).map(|number| figures.target(at, number)).collect::<Result<Vec<_>>>()?;
        let seen = |target: &TargetFigures| {
            let decision = &show.phases[at].decisions[&target.number].last();
            let decision = decision.unwrap_or(&Value::Null);
            let budget_ratio = scenario.cast[target.number].budget_ratio;
            let TargetFigures { busy_cpus, events_ratio, .. } = *target;
            (target.number, Seen { budget_ratio, busy_cpus, events_ratio, decision })
        };
        let law_hz = rates_hz(
            &targets.iter().map(seen).collect(),
            phase.host_ratio * show.cpus,
            host.housekeeping_ratio * show.cpus,
        )?;
        phases.push(PhaseFound {
            what: phase.what,
            host_budget_ratio: phase.host_ratio,
            host,
            targets,
            law_hz,
            decisions: show.phases[at].decisions.clone(),
            statuses: show.phases[at].statuses.clone(),
        });
    }
    let spans = || show.phases.iter().map(|phase| phase.span_s);
    let begin_s = spans().next().map_or(0.0, |span_s| span_s.0);
    let end_s = spans().next_back().map_or(0.0, |span_s| span_s.1);
    // A target's own budget is the same all the time.
    let numbers = 0..scenario.cast.len();
    let worst = numbers.clone().filter_map(|number| Some((number, figures.worst((begin_s, end_s), number)?)));
    let said = numbers.filter_map(|number| Some((number, figures.said_worst((begin_s, end_s), number)?)));
    let is_one_budget = scenario.phases.iter().all(|phase| phase.host_ratio == scenario.phases[0].host_ratio);
    let ranges: Vec<(f64, (f64, f64))> = match is_one_budget {
        true => vec![(scenario.phases[0].host_ratio, (begin_s, end_s))],
        false => scenario.phases.iter().map(|phase| phase.host_ratio).zip(spans()).collect(),
    };
    Ok(Found {
        name: scenario.name,
        phases,
        worst: worst.collect(),
        said_worst: said.collect(),
        host_worst: ranges
            .into_iter()
            .filter_map(|(budget, span_s)| Some((budget, figures.host_worst(span_s)?)))
            .collect(),
        own_of_kernel: figures.own_of_kernel().unwrap_or(f64::NAN),
    })
}

fn factor(value: f64) -> String {
    format!("{value:.2}")
}

fn bounded(what: &str, figure: Figure, bound: f64) -> Verdict {
    let interval = (figure.mean - 2.0 * figure.se, figure.mean + 2.0 * figure.se);
    Verdict::new(what, figure.mean, interval, bound, percent)
}

fn bounded_worst(what: &str, Worst { ratio, noise }: Worst, bound: f64) -> Verdict {
    Verdict::new(what, ratio, (ratio - noise, ratio), bound, percent)
}

/// Compares rounds of a scenario with the budgets and the law.
pub fn judge(scenario: &Scenario, rounds: &[Found]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for (at, phase) in scenario.phases.iter().enumerate() {
        let of = |what: &str| format!("{}, {}: {what}", scenario.name, phase.what);
        let host: Vec<Figure> = rounds.iter().map(|found| found.phases[at].host.overhead).collect();
        verdicts.push(bounded(&of("the host, on the whole"), crate::slope::mean_of(&host), phase.host_ratio));
        for (place, number) in taking_part(phase).enumerate() {
            let mine: Vec<&TargetFigures> =
                rounds.iter().map(|found| &found.phases[at].targets[place]).collect();
            let slowdown =
                crate::slope::mean_of(&mine.iter().map(|target| target.slowdown).collect::<Vec<_>>());
            let budget = scenario.cast[number].budget_ratio;
            verdicts.push(bounded(&of(&format!("t{number}, on the whole")), slowdown, budget));
            let said = mine.iter().map(|target| target.said_ratio).sum::<f64>() / mine.len() as f64;
            let of_said = Figure { mean: slowdown.mean / said, se: slowdown.se / said };
            let interval = (of_said.mean - 2.0 * of_said.se, of_said.mean + 2.0 * of_said.se);
            let what = of(&format!("t{number}, of what is said"));
            verdicts.push(Verdict::new(&what, of_said.mean, interval, SAID_FACTOR, factor));
            let off = rounds.iter().map(|found| {
                let found = &found.phases[at];
                (found.targets[place].rate_hz / found.law_hz[&number]).ln().abs()
            });
            let off = (off.sum::<f64>() / rounds.len() as f64).exp();
            verdicts.push(Verdict::exact(
                &of(&format!("t{number}, off the law's rate")),
                off,
                LAW_FACTOR,
                factor,
            ));
        }
    }
    for found in rounds {
        let of = |what: &str| format!("{}: any 10 s of {what}", scenario.name);
        for (number, worst) in &found.worst {
            let bound = WORST_10S * scenario.cast[*number].budget_ratio;
            verdicts.push(bounded_worst(&of(&format!("t{number}")), *worst, bound));
        }
        for (number, ratio) in &found.said_worst {
            let bound = WORST_10S * scenario.cast[*number].budget_ratio;
            verdicts.push(Verdict::exact(&of(&format!("t{number}, said")), *ratio, bound, percent));
        }
        for (budget, worst) in &found.host_worst {
            verdicts.push(bounded_worst(&of("the host"), *worst, WORST_10S * budget));
        }
        let off = found.own_of_kernel.max(1.0 / found.own_of_kernel);
        let what = format!("{}: own CPU time said, off the kernel's", scenario.name);
        verdicts.push(Verdict::exact(&what, off, OWN_FACTOR, factor));
    }
    verdicts
}
