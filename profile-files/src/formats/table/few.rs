//! Runs of too few samples: why there are few, and what brings more.

use config::{MAX_BUDGET, MAX_OWN_CPU, Ratio};
use profiler_core::profile::Run;

use super::seconds;
use super::summary::{bound, is_fixed};
use crate::functions::FunctionCost;

/// Part of the samples that the law asks for below which there are few.
const FEW: f64 = 0.5;
/// So many are never few where the law's are taken: a program without large functions has none that is known.
const MANY: u64 = 1_000;
/// Width of a function's interval, relative to the function, below which something is known.
const KNOWN: f64 = 0.5;
/// CPU time below which nothing but a longer run helps (s).
const SHORT_S: f64 = 1.0;

/// Why there are few samples, where there are.
pub(super) fn why(run: &Run, functions: &[FunctionCost]) -> Option<String> {
    // Of a file that another tool wrote or filtered, it is not known what would bring more.
    let is_ours = run.how.confidence > 0.0 && run.cpu.target_cpu_s > 0.0 && !run.rate.bound_by.is_empty();
    (is_ours && is_few(run, functions)).then(|| format!("few samples: {}", reason(run)))
}

fn is_few(run: &Run, functions: &[FunctionCost]) -> bool {
    !functions.iter().any(is_known) && (misses_the_law(run) || run.counts.samples < MANY)
}

fn misses_the_law(run: &Run) -> bool {
    !is_fixed(run) && (run.counts.samples as f64) < FEW * run.rate.law_samples
}

fn is_known(function: &FunctionCost) -> bool {
    function.cpu_s_low.zip(function.cpu_s_high).is_some_and(|(low, high)| high - low < KNOWN * function.cpu_s)
}

fn reason(run: &Run) -> String {
    let bound = bound(run).filter(|_| run.cpu.target_cpu_s >= SHORT_S && run.rate.bound_by != "law");
    match bound {
        None if run.cpu.target_cpu_s >= SHORT_S && misses_the_law(run) => {
            "the rate was below the law's for part of the time; profile a longer run".to_owned()
        }
        None => {
            format!("the target used {} of CPU time; profile a longer run", seconds(run.cpu.target_cpu_s))
        }
        Some(bound) => format!("{bound}; {}", remedy(run)),
    }
}

fn remedy(run: &Run) -> String {
    match run.rate.bound_by.as_str() {
        "fixed" => "a higher --rate brings more".to_owned(),
        "own_cpu" => match larger(run.overhead.own_cpu_budget_ratio, MAX_OWN_CPU) {
            Some(own) => format!("--own-cpu {own} allows more"),
            None => "profile a longer run".to_owned(),
        },
        "budget" | "bucket" => match larger(run.overhead.budget_ratio, MAX_BUDGET) {
            Some(budget) if run.how.stopped == "window" => format!("a budget of {budget} allows more"),
            Some(budget) => format!("--budget {budget} allows more"),
            None => "profile a longer run".to_owned(),
        },
        _ => "profile a longer run".to_owned(),
    }
}

/// Twice the budget, or the most that may be given.
fn larger(budget_ratio: f64, most: f64) -> Option<Ratio> {
    Ratio::new((2.0 * budget_ratio).min(most))
        .ok()
        .filter(|larger| budget_ratio > 0.0 && larger.get() > budget_ratio)
}
