//! The comparison for a person.

use std::fmt::Write;

use super::{Basis, ComparedRun, Comparison, FunctionChange};
use crate::formats::table::{View, block, percent, seconds};
use crate::names::{visible, with_module};

/// The comparison as text: what was compared, what changed, then functions.
pub fn render(comparison: &Comparison, view: View) -> String {
    let Comparison { old, new, .. } = comparison;
    let measure = visible(&comparison.measure.in_words());
    let head =
        [("old", about(old, &measure)), ("new", about(new, &measure)), ("changed", changed(comparison))];
    let mut out = block(&head, view.width);
    if !comparison.functions.is_empty() {
        out.push('\n');
        list(&mut out, comparison, view);
        out.push('\n');
        out.push_str(&block(&[("columns", legend(comparison, &measure))], view.width));
    }
    out
}

fn about(run: &ComparedRun, measure: &str) -> String {
    let samples = if run.samples == 1 { "sample" } else { "samples" };
    let (time, target) = (seconds(run.target_cpu_s), visible(&run.target));
    format!("{} {samples} in {time} of {measure} of {target}", run.samples)
}

fn changed(comparison: &Comparison) -> String {
    let count = comparison.functions.iter().filter(|function| function.is_changed).count();
    let functions = match count {
        0 => format!("none of {} functions", comparison.functions.len()),
        count => format!("{count} of {} functions", comparison.functions.len()),
    };
    match comparison.basis {
        Basis::LongRun if count == 0 => format!("{functions} by more than chance brings"),
        Basis::LongRun => format!(
            "{functions} by more than chance brings; about one in {:.0} such findings is wrong",
            1.0 / comparison.false_changes_ratio
        ),
        Basis::TheseRuns => format!(
            "{functions}, between these two runs; {} not show how much runs of one program differ: they are short, or go through phases as \
             long as the run",
            silent(comparison)
        ),
        Basis::Nothing => {
            "not known: a profile of another tool, or without samples, does not show how much runs differ"
                .to_owned()
        }
    }
}

/// Which of the runs do not show how others may differ.
fn silent(comparison: &Comparison) -> &'static str {
    match (comparison.old.tells_of_others, comparison.new.tells_of_others) {
        (false, true) => "the old profile does",
        (true, false) => "the new profile does",
        _ => "the two profiles do",
    }
}

fn legend(comparison: &Comparison, measure: &str) -> String {
    let place =
        if comparison.with_called { "the function and what it called" } else { "the function itself" };
    format!(
        "shares of the {measure} in {place}; the change in percentage points; ~: no more than chance may bring"
    )
}

fn list(out: &mut String, comparison: &Comparison, view: View) {
    let (shown, hidden) = comparison.functions.split_at(view.top.min(comparison.functions.len()));
    let title = format!("{:.0}% interval", comparison.confidence * 100.0);
    let intervals: Vec<String> = shown.iter().map(interval).collect();
    let is_known = shown.iter().any(|function| function.change_low.is_some());
    let widest = intervals.iter().chain([&title]).map(|text| text.chars().count()).max().unwrap_or(0);
    let columns = |old: &str, new: &str, change: &str, interval: &str, mark: char| {
        let interval = if is_known { format!(" {interval:>widest$}") } else { String::new() };
        format!("{old:>7} {new:>7} {change:>7}{interval} {mark} ")
    };
    let _ = writeln!(out, "{}function [module]", columns("old", "new", "change", &title, ' '));
    for (function, interval) in shown.iter().zip(&intervals) {
        let mark = if function.is_changed { ' ' } else { '~' };
        let (old, new) = (percent(function.old_share, 2), percent(function.new_share, 2));
        let figures = columns(&old, &new, &points(function.change), interval, mark);
        let room = view.width.saturating_sub(figures.chars().count());
        let name = with_module(&visible(&function.name), &visible(&function.module), room);
        let _ = writeln!(out, "{figures}{name}");
    }
    if !hidden.is_empty() {
        let changed = hidden.iter().filter(|function| function.is_changed).count();
        let (functions, them) = if hidden.len() == 1 { ("function", "it") } else { ("functions", "them") };
        let _ =
            writeln!(out, "…and {} more {functions} ({changed} changed); --top 0 shows {them}", hidden.len());
    }
}

fn interval(function: &FunctionChange) -> String {
    let (Some(low), Some(high)) = (function.change_low, function.change_high) else { return String::new() };
    format!("{} to {}", points(low), points(high))
}

/// A change in percentage points: `+1.20`.
fn points(change: f64) -> String {
    format!("{:+.2}", change * 100.0)
}
