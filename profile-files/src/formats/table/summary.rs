//! The lines around the functions. A figure that the file does not hold has no line.

use std::fmt::Write;

use config::Ratio;
use profiler_core::profile::{Run, SymbolizedProfile};
use profiler_core::rate::Replicas;
use profiler_core::stats::{Confidence, Goal};

use super::{WORTH_SAMPLING_S, few, percent, seconds};
use crate::functions::{FunctionCost, FunctionTable};
use crate::intervals::Reached;
use crate::names::visible;
use crate::unknown::UnknownList;

/// Share of the CPU time without a name from which the person is told.
const NAMELESS_WORTH_A_LINE: f64 = 0.01;
/// The same of the CPU time that nobody sampled.
const NOT_SAMPLED_WORTH_A_WORD: f64 = 0.01;
/// The time over which a budget holds (s).
const BUDGET_SPAN_S: f64 = 10.0;
const TIED: &str = "~ in another run it may well take no more than the next";
const TOO_SHORT: &str = "~ this run does not show which takes more in another: it was too short, or its functions ran on for too long";
/// How far the weights may be from the scheduler's figure before the person is told.
const WEIGHTS_WORTH_A_LINE: f64 = 0.02;
/// Share of a function from which it is one of the largest, as in [`Goal`].
const LARGE: f64 = 0.01;
/// CPU time of the target from which a share of it is worth printing (s).
const WORTH_A_SHARE_S: f64 = 0.01;

/// Label and text.
pub(crate) type SummaryLine = (&'static str, String);

/// What the run was and cost, and what is missing of it.
pub(in crate::formats) fn about_run(profile: &SymbolizedProfile, table: &FunctionTable) -> Vec<SummaryLine> {
    let run = &profile.run;
    let is_idle = table.functions.is_empty() && run.cpu.target_cpu_s < WORTH_SAMPLING_S;
    let mut lines = if is_idle { Vec::new() } else { figures(profile, table) };
    lines.extend(run.notes.iter().map(|note| ("note", visible(note))));
    lines
}

fn figures(profile: &SymbolizedProfile, table: &FunctionTable) -> Vec<SummaryLine> {
    let (run, functions) = (&profile.run, table.functions.as_slice());
    let mut lines = vec![("target", target(run))];
    lines.extend(rate(run).map(|text| ("rate", text)));
    lines.push(("samples", samples(run)));
    lines.extend(nameless(profile).map(|text| ("nameless", text)));
    lines.extend(overhead(run).map(|text| ("overhead", text)));
    lines.extend(weights(run).map(|text| ("weights", text)));
    lines.extend(few::why(run, functions).map(|text| ("note", text)));
    lines.extend(no_intervals(profile, functions).map(|text| ("note", text)));
    lines
}

/// How sure the first `shown` rows are.
pub(in crate::formats) fn about_rows(run: &Run, table: &FunctionTable, shown: usize) -> Vec<SummaryLine> {
    let mut lines: Vec<SummaryLine> =
        precision(run, table).map(|text| ("precision", text)).into_iter().collect();
    let shown = table.functions.iter().take(shown);
    let mut tied = shown.filter(|function| function.tied == Some(true)).peekable();
    if tied.peek().is_some() {
        let is_known = tied.any(|function| function.long_run_cpu_s_low.is_some());
        let text = if is_known { TIED } else { TOO_SHORT };
        lines.push(("order", text.to_owned()));
    }
    lines
}

pub(super) fn target(run: &Run) -> String {
    let name = visible(&run.target);
    let mut text = name;
    if run.cpu.target_cpu_s > 0.0 {
        let _ = write!(text, ": {} of {}", seconds(run.cpu.target_cpu_s), visible(&run.measure.in_words()));
    }
    // Other tools do not always tell how long they looked.
    if run.cpu.target_cpu_s > 0.0 && (run.duration_s > 0.0 || run.how.confidence > 0.0) {
        let _ = write!(text, " in {}", seconds(run.duration_s));
    }
    if run.cpu.not_sampled_cpu_s > NOT_SAMPLED_WORTH_A_WORD * run.cpu.target_cpu_s {
        let _ = write!(text, ", {} not sampled, in no function", seconds(run.cpu.not_sampled_cpu_s));
    }
    text
}

/// The rate, what the law asks for, and what keeps the rate from it.
pub(super) fn rate(run: &Run) -> Option<String> {
    if run.rate.rate_hz <= 0.0 {
        return None;
    }
    let when = if run.merged_windows > 1 { "on average" } else { "now" };
    let mut text = format!("{:.0}/s of CPU time {when}", run.rate.rate_hz);
    if run.rate.law_samples >= 1.0 && !is_fixed(run) {
        let _ =
            write!(text, "; {} samples, the law asks for {:.0}", run.counts.samples, run.rate.law_samples);
        let law = Some(&run.rate.law).filter(|law| ["anytime", "horizon"].contains(&law.as_str()));
        let _ = law.map_or(Ok(()), |law| write!(text, " ({law} law)"));
    }
    if run.rate.replicas > 1.0 && !is_fixed(run) {
        let factor = Replicas::new(run.rate.replicas).rate_ratio();
        let _ =
            write!(text, "; one of {:.1} replicas: {factor:.2} of the rate of one alone", run.rate.replicas);
    }
    // A bound that left the law all that it asks for is no news.
    let has_all = run.rate.law_samples >= 1.0 && run.counts.samples as f64 >= run.rate.law_samples;
    if let Some(bound) = bound(run).filter(|bound| !(has_all && bound.starts_with("limited"))) {
        let _ = write!(text, "; {bound}");
    }
    Some(text)
}

pub(super) fn is_fixed(run: &Run) -> bool {
    run.rate.bound_by == "fixed" || run.rate.law == "fixed"
}

/// What set the rate.
pub(super) fn bound(run: &Run) -> Option<String> {
    let words = match run.rate.bound_by.as_str() {
        // Of another tool, or of several runs.
        "" | "several" => return None,
        "law" => "set by the law",
        "fixed" => "fixed by --rate",
        "floor" => "the lowest rate that yields a profile",
        "budget" | "bucket" => "limited by the slowdown budget",
        "host" => "limited by the host's budget",
        "own_cpu" | "own" | "self" => "limited by the profiler's own CPU time",
        "kernel" => "limited by the kernel's highest rate",
        "tick" => "limited by the kernel's tick",
        "bytes" => "limited by the data that samples bring",
        other => return Some(format!("limited by the {}", visible(other))),
    };
    Some(words.to_owned())
}

pub(super) fn samples(run: &Run) -> String {
    let mut text = run.counts.samples.to_string();
    if !run.measure.is_cpu() {
        let _ = write!(text, " {}", visible(run.measure.counted()));
    }
    if run.counts.samples > 0 && (run.how.confidence > 0.0 || run.counts.truncated > 0) {
        let _ = write!(text, ": {} with complete stacks", complete(run));
    }
    if run.counts.outer_frames_from_earlier > 0 {
        let _ = write!(
            text,
            " ({} with outer frames from an earlier sample)",
            run.counts.outer_frames_from_earlier
        );
    }
    if run.how.confidence > 0.0 || run.counts.lost > 0 {
        let _ = write!(text, ", {} lost", run.counts.lost);
        let _ =
            if run.counts.lost > 0 { write!(text, " and made up for by those around them") } else { Ok(()) };
    }
    for (count, what) in [
        (run.counts.undecodable, "undecodable"),
        (run.counts.throttled, "throttled"),
        (run.counts.foreign_samples, "of other processes"),
    ] {
        if count > 0 {
            let _ = write!(text, ", {count} {what}");
        }
    }
    if run.counts.truncated > 0 {
        let _ = write!(text, "; incomplete: {}", run.counts.truncated_by.in_words());
    }
    text
}

/// What lacks names, where that matters.
fn nameless(profile: &SymbolizedProfile) -> Option<String> {
    let unknown = UnknownList::of(profile);
    let module = unknown.top_module().filter(|_| unknown.nameless_share > NAMELESS_WORTH_A_LINE)?;
    Some(format!(
        "{} of the {} is in code without a name, most of it in {}; `sweetspot report FILE --unknown` says what \
         would give it names",
        percent(unknown.nameless_share, 1),
        visible(&profile.run.measure.in_words()),
        visible(module),
    ))
}

/// The share of complete stacks: not all of them, if one lacks something.
pub(crate) fn complete(run: &Run) -> String {
    const NOT_ALL: f64 = 0.999;
    let most = if run.counts.truncated > 0 { NOT_ALL } else { 1.0 };
    percent(run.counts.complete_ratio.min(most), 1)
}

/// What the run cost the target and the machine.
pub(super) fn overhead(run: &Run) -> Option<String> {
    if run.cpu.target_cpu_s < WORTH_A_SHARE_S {
        return None;
    }
    let mut shares = Vec::new();
    if run.overhead.slowdown_budget_ratio > 0.0 {
        let budget_ratio = if is_fixed(run) { 0.0 } else { run.overhead.slowdown_budget_ratio };
        let relative = run.cpu.sampling_cpu_se_s / run.cpu.sampling_cpu_s.max(f64::MIN_POSITIVE);
        let half_ratio = score(run) * relative * run.overhead.slowdown_ratio;
        let unsure = if half_ratio > 0.0 { format!(" ± {}", percent(half_ratio, 2)) } else { String::new() };
        let ratio = run.overhead.slowdown_ratio;
        let bound = within(run, ratio, budget_ratio);
        shares.push(format!("slowdown {}{unsure}{bound}", percent(ratio, 2)));
    }
    if run.overhead.own_cpu_ratio > 0.0 {
        let ratio = run.overhead.own_cpu_ratio;
        let budget_ratio = if is_fixed(run) { 0.0 } else { run.overhead.own_cpu_budget_ratio };
        let bound = within(run, ratio, budget_ratio);
        shares.push(format!("own CPU time {} of a CPU{bound}", percent(ratio, 1)));
    }
    if run.cpu.setup_cpu_s > 0.0 {
        shares.push(format!("set-up {}", seconds(run.cpu.setup_cpu_s)));
    }
    let mut parts = vec![shares.join(", ")];
    if run.cost.overhead_us > 0.0 {
        let sample_us = charged_us(run).unwrap_or(run.cost.overhead_us);
        let half_us = score(run) * run.cost.overhead_se_us * sample_us / run.cost.overhead_us;
        parts.push(format!("{sample_us:.1} ± {half_us:.1} µs a sample"));
    }
    parts.retain(|part| !part.is_empty());
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// What a sample was charged at on average (µs), which is what the slowdown is made of; the run's own figure is the one at its end.
fn charged_us(run: &Run) -> Option<f64> {
    let parts = &run.overhead.overhead_parts;
    let taken = run.counts.samples.saturating_add(run.counts.lost);
    let charged_s = (parts.base_ratio + parts.frames_ratio + parts.stack_ratio) * run.cpu.target_cpu_s;
    (taken > 0 && charged_s > 0.0).then(|| charged_s * 1e6 / taken as f64)
}

/// A bound of a share, if there is one. A short run may spend at once what ten seconds are granted.
fn within(run: &Run, ratio: f64, bound_ratio: f64) -> String {
    let is_ahead = bound_ratio > 0.0 && ratio > bound_ratio && run.duration_s < BUDGET_SPAN_S;
    format!("{}{}", at_most(bound_ratio), if is_ahead { " over ten seconds" } else { "" })
}

/// Standard errors in half an interval of the run's level.
fn score(run: &Run) -> f64 {
    Confidence::new(run.how.confidence).normal_score()
}

fn at_most(budget_ratio: f64) -> String {
    let budget = Ratio::new(budget_ratio).ok().filter(|_| budget_ratio > 0.0);
    budget.map_or_else(String::new, |budget| format!(" of at most {budget}"))
}

/// What the samples stand for, where that is not what the scheduler counted while they were taken.
pub(super) fn weights(run: &Run) -> Option<String> {
    let sampled_s = run.cpu.target_cpu_s - run.cpu.not_sampled_cpu_s;
    if run.cpu.weight_s <= 0.0 || sampled_s <= 0.0 {
        return None;
    }
    let difference = run.cpu.weight_s / sampled_s - 1.0;
    (difference.abs() > WEIGHTS_WORTH_A_LINE).then(|| {
        format!(
            "the samples stand for {}, the scheduler counted {} ({:+.1}%)",
            seconds(run.cpu.weight_s),
            seconds(sampled_s),
            difference * 100.0
        )
    })
}

/// How well the largest functions are known; by the goal of the run, if it has one.
fn precision(run: &Run, table: &FunctionTable) -> Option<String> {
    let reached = table.reached.filter(|_| !table.functions.is_empty())?;
    let has_goal = run.how.precision_goal_ratio > 0.0 || run.how.stopped == "precise";
    if has_goal { Some(goal(run, &reached)) } else { largest(run, &table.functions) }
}

/// The widest interval of the largest functions, relative to its function.
pub(super) fn largest(run: &Run, functions: &[FunctionCost]) -> Option<String> {
    let large = |(rank, function): &(usize, &FunctionCost)| *rank == 0 || function.share >= LARGE;
    let top = functions.iter().enumerate().take(Goal::default().top).take_while(large);
    let widest: Option<Vec<f64>> = top.map(|(_, function)| half_width(function)).collect();
    let widest = widest?;
    let ratio = widest.iter().copied().fold(0.0, f64::max);
    let level = Ratio::new(run.how.confidence).ok().filter(|_| ratio < 1.0)?;
    let known = percent(ratio, if ratio < 0.0995 { 1 } else { 0 });
    Some(match widest.len() {
        1 => format!("the largest function is known to ±{known} ({level})"),
        count => format!("the {count} largest functions are known to ±{known} ({level}, all together)"),
    })
}

/// The longer half of the interval of the CPU time, relative to it.
fn half_width(function: &FunctionCost) -> Option<f64> {
    let (low, high) = function.cpu_s_low.zip(function.cpu_s_high)?;
    Some((high - function.cpu_s).max(function.cpu_s - low) / function.cpu_s)
}

/// Whether the largest functions are known as well as they shall be.
pub(super) fn goal(run: &Run, reached: &Reached) -> String {
    let goal =
        Ratio::new(run.how.precision_goal_ratio).map_or_else(|_| "±?".to_owned(), |goal| format!("±{goal}"));
    if reached.precision_ratio >= 1.0 {
        return format!("too little is known about other runs; the goal is {goal}");
    }
    let known = format!("the largest functions are known to ±{}", percent(reached.precision_ratio, 1));
    let stopped = run.how.stopped == "precise";
    match reached.cpu_s_to_converge {
        _ if reached.converged && stopped => format!("{known}, within {goal}: sampling stopped"),
        _ if reached.converged => format!("{known}: converged (goal {goal})"),
        _ if stopped => {
            format!("{known}; to {goal} together with what is inlined into them, when sampling stopped")
        }
        Some(cpu_s) => format!("{known}; {goal} takes {} more of CPU time at this rate", roughly(cpu_s)),
        None => format!("{known}; it is not known yet how long {goal} takes"),
    }
}

/// Seconds of an estimate.
fn roughly(time_s: f64) -> String {
    if time_s < 10.0 { seconds(time_s) } else { format!("{time_s:.0} s") }
}

fn no_intervals(profile: &SymbolizedProfile, functions: &[FunctionCost]) -> Option<String> {
    if functions.is_empty() || functions.iter().any(|function| function.cpu_s_low.is_some()) {
        return None;
    }
    let is_silent = profile.windows.is_empty();
    let reason = if is_silent { "the file does not say what was sampled when" } else { "too few samples" };
    Some(format!("no intervals: {reason}"))
}
