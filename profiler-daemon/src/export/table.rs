//! The profile for a person: functions by their own CPU time, and below them what the run was and cost.

use std::fmt::Write;

use config::Ratio;
use profiler_core::profile::{Run, SymbolizedProfile};

use super::functions::{FunctionCost, FunctionTable};
use super::intervals::Reached;
use super::names::{shorten, visible};
use super::unknown::UnknownList;

/// How much of the profile there is room for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    /// Columns.
    pub(crate) width: usize,
    /// Most functions to list.
    pub(crate) top: usize,
}

/// The columns before the name: CPU time, interval, share, total, mark.
const FIGURES: usize = 38;

/// Share of the CPU time without a name from which the person is told.
const NAMELESS_WORTH_A_LINE: f64 = 0.01;
/// The same of the CPU time that nobody sampled.
const NOT_SAMPLED_WORTH_A_WORD: f64 = 0.01;

/// The table as text.
pub(crate) fn render(profile: &SymbolizedProfile, table: &FunctionTable, view: View) -> String {
    let functions = &table.functions;
    let mut out = String::new();
    header(&mut out, &profile.run, functions);
    for function in functions.iter().take(view.top) {
        row(&mut out, function, view.width);
    }
    let hidden = functions.len().saturating_sub(view.top);
    if hidden > 0 {
        let _ = writeln!(out, "…and {hidden} more");
    }
    if functions.is_empty() {
        let _ = writeln!(out, "no samples: the target used too little CPU time");
    }
    out.push('\n');
    for (label, text) in footer(profile, table) {
        wrapped(&mut out, label, &text, view.width);
    }
    out
}

fn header(out: &mut String, run: &Run, functions: &[FunctionCost]) {
    let level = Ratio::new(run.confidence).ok().filter(|_| functions.iter().any(|f| f.cpu_s_low.is_some()));
    let interval = level.map(|level| format!("± {level}")).unwrap_or_default();
    let (share, total) = ("share", "total");
    let _ = writeln!(out, "{:>9} {interval:<9} {share:>7} {total:>7}   function [module]", "CPU s");
}

fn row(out: &mut String, function: &FunctionCost, width: usize) {
    let name = named(&function.name, &function.module, width.saturating_sub(FIGURES));
    let share = percent(function.share, 2);
    let total = percent(function.total_share, 1);
    let mark = if function.tied == Some(true) { '~' } else { ' ' };
    let margin = margin(function);
    let _ = writeln!(out, "{:>9.3} {margin:<9} {share:>7} {total:>7} {mark} {name}", function.cpu_s);
}

/// Half the width of the interval, the larger half where it is not symmetric.
fn margin(function: &FunctionCost) -> String {
    match (function.cpu_s_low, function.cpu_s_high) {
        (Some(low), Some(high)) => {
            format!("±{:.3}", (high - function.cpu_s).max(function.cpu_s - low).max(0.0))
        }
        _ => String::new(),
    }
}

/// `name [module]` in at most `width` columns; the module gets a third where there is too little room.
fn named(name: &str, module: &str, width: usize) -> String {
    let (name, module) = (visible(name), visible(module));
    // `[kernel]` and `[vdso]` have their brackets.
    let module = if module.starts_with('[') { module } else { format!("[{module}]") };
    let wanted = name.chars().count() + module.chars().count() + 1;
    let module = if wanted <= width { module } else { shorten(&module, width / 3) };
    let left = width.saturating_sub(module.chars().count() + 1);
    format!("{} {module}", shorten(&name, left))
}

/// The lines below the table. A figure that another tool's file does not hold has no line.
fn footer(profile: &SymbolizedProfile, table: &FunctionTable) -> Vec<(&'static str, String)> {
    let (run, functions) = (&profile.run, &table.functions);
    let mut lines = vec![("target", target(run))];
    if run.rate_hz > 0.0 {
        lines.push(("rate", rate(run)));
    }
    lines.push(("samples", samples(run)));
    if run.samples > 0 && (run.confidence > 0.0 || run.truncated > 0) {
        lines.push(("stacks", stacks(run)));
    }
    lines.extend(nameless(profile).map(|text| ("nameless", text)));
    if run.confidence > 0.0 {
        lines.push(("overhead", overhead(run)));
        if run.predicted_rate_hz > 0.0 {
            lines.push(("predicted", predicted(run)));
        }
        lines.push(("weights", weights(run)));
    }
    if let Some(reached) = table.reached.filter(|_| !functions.is_empty()) {
        lines.push(("precision", precision(run, &reached)));
    }
    if functions.iter().any(|function| function.tied == Some(true)) {
        lines.push(("order", "~ in another run it may well take no more than the next".to_owned()));
    }
    if !functions.is_empty() && functions.iter().all(|function| function.cpu_s_low.is_none()) {
        let reason = if profile.windows.is_empty() {
            "the file does not say what was sampled when"
        } else {
            "too few samples"
        };
        lines.push(("note", format!("no intervals: {reason}")));
    }
    lines.extend(run.notes.iter().map(|note| ("note", visible(note))));
    lines
}

fn target(run: &Run) -> String {
    let name = visible(&run.target);
    let mut text = format!("{name}, {:.2} s of CPU time in {:.2} s", run.target_cpu_s, run.duration_s);
    if run.sampling_cpu_s > 0.0 {
        let _ = write!(text, ", {:.3} s of it sampling, taken out", run.sampling_cpu_s);
    }
    if run.not_sampled_cpu_s > NOT_SAMPLED_WORTH_A_WORD * run.target_cpu_s {
        let _ = write!(text, ", {:.3} s not sampled, in no function", run.not_sampled_cpu_s);
    }
    text
}

fn rate(run: &Run) -> String {
    let last = format!("{:.0}/s of CPU time", run.rate_hz);
    if run.confidence == 0.0 {
        return last;
    }
    let bound = match run.bound_by.as_str() {
        "law" => "bound by nothing else".to_owned(),
        "fixed" => "fixed by --rate".to_owned(),
        other => format!("bound by the {}", visible(other)),
    };
    let unbounded = run.unbounded_rate_hz;
    let optimum = if unbounded > 0.0 && run.bound_by != "law" {
        format!("optimum {:.0}/s ({unbounded:.0}/s without bounds)", run.optimum_rate_hz)
    } else {
        format!("optimum {:.0}/s", run.optimum_rate_hz)
    };
    format!("{last}, {optimum}, {bound}, {} retunes", run.retunes)
}

fn samples(run: &Run) -> String {
    let mut text = format!("{}, lost {}, truncated {}", run.samples, run.lost, run.truncated);
    if run.truncated > 0 && run.samples > 0 {
        let _ = write!(text, " ({})", percent(run.truncated as f64 / run.samples as f64, 1));
    }
    for (count, what) in [
        (run.undecodable, "undecodable"),
        (run.throttled, "throttled"),
        (run.foreign_samples, "of other processes"),
    ] {
        if count > 0 {
            let _ = write!(text, ", {count} {what}");
        }
    }
    text
}

fn stacks(run: &Run) -> String {
    let complete = format!("{} complete", percent(run.complete_ratio, 1));
    if run.truncated == 0 { complete } else { format!("{complete}; {}", run.truncated_by.in_words()) }
}

/// What lacks names, where that matters.
fn nameless(profile: &SymbolizedProfile) -> Option<String> {
    let unknown = UnknownList::of(profile);
    let module = unknown.top_module().filter(|_| unknown.nameless_share > NAMELESS_WORTH_A_LINE)?;
    Some(format!(
        "{} of the CPU time is in code without a name, most of it in {}; `sweetspot report FILE --unknown` says what \
         would give it names",
        percent(unknown.nameless_share, 1),
        visible(module),
    ))
}

fn overhead(run: &Run) -> String {
    let own = if run.target_cpu_s > 0.0 { run.self_cpu_s / run.target_cpu_s } else { 0.0 };
    let own = own.min(run.overhead_ratio);
    format!(
        "{} of a budget of {}: target {}, profiler {}; {:.1} ± {:.1} µs a sample",
        percent(run.overhead_ratio, 2),
        percent(run.budget_ratio, 2),
        percent(run.overhead_ratio - own, 2),
        percent(own, 2),
        run.overhead_us,
        run.overhead_se_us,
    )
}

/// What was expected before it was measured.
fn predicted(run: &Run) -> String {
    let at = |overhead_us, overhead_ratio, rate_hz| {
        format!("{overhead_us:.1} µs a sample, {} overhead at {rate_hz:.0}/s", percent(overhead_ratio, 2))
    };
    format!(
        "{}; measured {}",
        at(run.predicted_overhead_us, run.predicted_overhead_ratio, run.predicted_rate_hz),
        at(run.overhead_us, run.overhead_ratio, run.rate_hz),
    )
}

fn weights(run: &Run) -> String {
    let mut text = format!("{:.2} s, the scheduler counted {:.2} s", run.weight_s, run.target_cpu_s);
    if run.target_cpu_s > 0.0 {
        let difference = (run.weight_s / run.target_cpu_s - 1.0) * 100.0;
        let _ = write!(text, " ({difference:+.2}%)");
    }
    text
}

/// Whether the largest functions are known as well as they shall be.
fn precision(run: &Run, reached: &Reached) -> String {
    let goal =
        Ratio::new(run.precision_goal_ratio).map_or_else(|_| "±?".to_owned(), |goal| format!("±{goal}"));
    if reached.precision_ratio >= 1.0 {
        return format!("too little is known of another run to say; the goal is {goal}");
    }
    let known = format!("the largest functions are known to ±{}", percent(reached.precision_ratio, 1));
    let stopped = run.stopped == "precise";
    match reached.cpu_s_to_converge {
        _ if reached.converged && stopped => format!("{known}, within {goal}: sampling stopped"),
        _ if reached.converged => format!("{known}: converged (goal {goal})"),
        _ if stopped => {
            format!("{known}; to {goal} together with what is inlined into them, when sampling stopped")
        }
        Some(cpu_s) => format!("{known}; {goal} takes {cpu_s:.0} s more of CPU time at this rate"),
        None => format!("{known}; nobody can say yet how long {goal} takes"),
    }
}

fn percent(share: f64, decimals: usize) -> String {
    format!("{:.decimals$}%", share * 100.0)
}

/// Columns of a label below the table.
const INDENT: usize = 10;

/// A line of the footer, broken at blanks and indented under its label.
fn wrapped(out: &mut String, label: &str, text: &str, width: usize) {
    // A word longer than a line: shortened, since a target is a command line and may hold anything.
    let words = text.split(' ').map(|word| shorten(word, width - INDENT));
    paragraph(out, label, &words.collect::<Vec<_>>().join(" "), width);
}

/// Text broken at blanks and indented under its label. A word longer than a line stays whole.
pub(super) fn paragraph(out: &mut String, label: &str, text: &str, width: usize) {
    let mut column = INDENT;
    let _ = write!(out, "{label:<INDENT$}");
    for (at, word) in text.split(' ').enumerate() {
        let length = word.chars().count();
        if at > 0 && column + 1 + length > width {
            let _ = write!(out, "\n{:INDENT$}", "");
            column = INDENT;
        } else if at > 0 {
            out.push(' ');
            column += 1;
        }
        column += length;
        out.push_str(word);
    }
    out.push('\n');
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
