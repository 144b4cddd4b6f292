//! The profile for a person: what the run was, what it cost and what is missing, then functions by their own CPU time.

mod few;
mod summary;

pub(crate) use self::summary::{SummaryLine, complete};
pub(super) use self::summary::{about_rows, about_run};

use std::fmt::Write;

use config::Ratio;
use profiler_core::profile::{Measure, Run, SymbolizedProfile};

use crate::functions::{FunctionCost, FunctionTable};
use crate::names::{shorten, visible, with_module};

/// How much of the profile there is room for.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// Columns.
    pub width: usize,
    /// Most functions to list.
    pub top: usize,
}

impl Default for View {
    /// All functions, as wide as a page.
    fn default() -> Self {
        Self { width: 120, top: usize::MAX }
    }
}

/// CPU time from which a target without samples is no longer taken to have done nothing (s).
const WORTH_SAMPLING_S: f64 = 0.05;
/// CPU time of the target below which functions are shown in milliseconds (s).
const SHORT_S: f64 = 0.1;
/// Width of an interval from which its ends need one decimal alone.
const WIDE: f64 = 0.01;

/// The table as text.
pub fn render(profile: &SymbolizedProfile, table: &FunctionTable, view: View) -> String {
    render_as(profile, table, view, true)
}

/// [`render`] for a small screen: each line around the functions is cut to the width.
pub fn render_brief(profile: &SymbolizedProfile, table: &FunctionTable, view: View) -> String {
    render_as(profile, table, view, false)
}

fn render_as(profile: &SymbolizedProfile, table: &FunctionTable, view: View, is_whole: bool) -> String {
    let block = if is_whole { block } else { brief_block };
    let mut parts = vec![block(&summary::about_run(profile, table), view.width)];
    if table.functions.is_empty() {
        let mut text = String::new();
        wrapped(&mut text, "", 0, &nothing(&profile.run), view.width);
        parts.insert(0, text);
    } else {
        let mut text = String::new();
        list(&mut text, &profile.run, &table.functions, view, is_whole);
        parts.push(text);
        parts.push(block(&summary::about_rows(&profile.run, table, view.top), view.width));
    }
    parts.retain(|part| !part.is_empty());
    parts.join("\n")
}

/// Lines with their labels.
pub(crate) fn block(lines: &[SummaryLine], width: usize) -> String {
    let mut out = String::new();
    lines.iter().for_each(|(label, text)| wrapped(&mut out, label, INDENT, text, width));
    out
}

/// [`block`] with one line each.
fn brief_block(lines: &[SummaryLine], width: usize) -> String {
    let brief = |(label, text): &SummaryLine| {
        format!("{label:<INDENT$}{}\n", start_of(text, width.saturating_sub(INDENT)))
    };
    lines.iter().map(brief).collect()
}

/// A text, or its start and `…` if it has more than `most` characters.
fn start_of(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some(_) => text.chars().take(most.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// Said in place of the functions where there are none.
pub(super) fn nothing(run: &Run) -> String {
    match run.cpu.target_cpu_s {
        _ if run.how.confidence == 0.0 => "no samples".to_owned(),
        cpu_s if cpu_s >= WORTH_SAMPLING_S => format!("no samples of {} of CPU time", seconds(cpu_s)),
        cpu_s => {
            let used = if cpu_s > 0.0 { seconds(cpu_s) } else { "no".to_owned() };
            let of = if cpu_s > 0.0 { "of " } else { "" };
            format!("{} used {used} {of}CPU time: nothing to sample", visible(&run.target))
        }
    }
}

/// The functions as cells: what every table of them shows.
pub(super) struct Cells {
    /// Titles of the figures: time, share, interval (where functions have one) and total.
    pub(super) titles: Vec<String>,
    /// One for each function.
    pub(super) rows: Vec<Row>,
}

/// The cells of a function.
pub(super) struct Row {
    /// As many as there are titles.
    pub(super) figures: Vec<String>,
    /// `~` if it may take no more than the next, else empty.
    pub(super) mark: &'static str,
    name: String,
    module: String,
}

/// Title of the column of names.
pub(super) const NAME_TITLE: &str = "function [module]";

impl Cells {
    pub(super) fn of(run: &Run, functions: &[FunctionCost]) -> Self {
        let has_intervals = functions.iter().any(|function| function.share_ends.is_some());
        let level = Ratio::new(run.how.confidence).ok().filter(|_| has_intervals);
        // Of a short run, seconds with three decimals would all be 0.
        let (unit, per_s, decimals) = if (f64::MIN_POSITIVE..SHORT_S).contains(&run.cpu.target_cpu_s) {
            ("ms", 1e3, 2)
        } else {
            ("s", 1.0, 3)
        };
        let figures = |time: String, share: String, interval: String, total: String| {
            let interval = has_intervals.then_some(interval);
            [time, share].into_iter().chain(interval).chain([total]).collect()
        };
        let row = |function: &FunctionCost| Row {
            figures: figures(
                format!("{:.decimals$}", function.cpu_s * per_s),
                percent(function.share, 2),
                interval(function),
                percent(function.total_share, 1),
            ),
            mark: if function.tied == Some(true) { "~" } else { "" },
            name: visible(&function.name),
            module: visible(&function.module),
        };
        let interval = level.map_or_else(String::new, |level| format!("{level} interval"));
        let titles = figures(column(&run.measure, unit), "share".to_owned(), interval, "total".to_owned());
        Self { titles, rows: functions.iter().map(row).collect() }
    }
}

impl Row {
    /// The function and its module in at most `width` columns.
    pub(super) fn name(&self, width: usize) -> String {
        with_module(&self.name, &self.module, width)
    }
}

fn list(out: &mut String, run: &Run, functions: &[FunctionCost], view: View, is_whole: bool) {
    let (shown, hidden) = functions.split_at(view.top.min(functions.len()));
    let Cells { titles, rows } = Cells::of(run, shown);
    let widths: &[usize] = if titles.len() == 4 { &[9, 7, 0, 7] } else { &[9, 7, 7] };
    let widest = |at: usize, least: usize| {
        let cells = rows.iter().map(|row| &row.figures[at]).chain([&titles[at]]);
        cells.map(|cell| cell.chars().count()).fold(least, usize::max)
    };
    let widths: Vec<usize> = widths.iter().enumerate().map(|(at, least)| widest(at, *least)).collect();
    let line = |figures: &[String], mark: &str| {
        let cells = figures.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$} "));
        format!("{}{mark:1} ", cells.collect::<String>())
    };
    let _ = writeln!(out, "{}{NAME_TITLE}", line(&titles, ""));
    for row in &rows {
        let figures = line(&row.figures, row.mark);
        let name = row.name(view.width.saturating_sub(figures.chars().count()));
        let _ = writeln!(out, "{figures}{name}");
    }
    if !hidden.is_empty() {
        let remedy = match hidden.len() {
            _ if !is_whole => "",
            1 => "; --top 0 shows it",
            _ => "; --top 0 shows them",
        };
        let _ = writeln!(out, "{}{remedy}", more(hidden, &run.measure));
    }
}

/// The interval of a function's share: `38.2–43.1%`.
fn interval(function: &FunctionCost) -> String {
    let Some((low, high)) = function.share_ends else { return String::new() };
    let decimals = if high - low < WIDE { 2 } else { 1 };
    format!("{:.decimals$}–{}", low * 100.0, percent(high, decimals))
}

/// The title of the column of times: `CPU s`, `delay ms`.
pub(crate) fn column(measure: &Measure, unit: &str) -> String {
    match measure {
        Measure::CpuTime => format!("CPU {unit}"),
        Measure::Other { time, .. } if time.len() + unit.len() < 9 => format!("{} {unit}", visible(time)),
        Measure::Other { .. } => format!("time {unit}"),
    }
}

/// What functions that are not listed took, in a line.
pub(super) fn more(hidden: &[FunctionCost], measure: &Measure) -> String {
    let share = percent(hidden.iter().map(|function| function.share).sum(), 1);
    let functions = if hidden.len() == 1 { "function" } else { "functions" };
    format!("…and {} more {functions} ({share} of the {})", hidden.len(), visible(&measure.in_words()))
}

pub(crate) fn percent(share: f64, decimals: usize) -> String {
    format!("{:.decimals$}%", share * 100.0)
}

/// A time in seconds, or in milliseconds where it is short.
pub(crate) fn seconds(time_s: f64) -> String {
    match time_s {
        short if short < 0.001 => format!("{:.1} ms", short * 1e3),
        short if short < 0.1 => format!("{:.0} ms", short * 1e3),
        long => format!("{long:.2} s"),
    }
}

/// Columns of a label.
const INDENT: usize = 10;

/// Text broken at blanks and indented under its label.
fn wrapped(out: &mut String, label: &str, indent: usize, text: &str, width: usize) {
    // A word longer than a line: shortened, since a target is a command line and may hold anything.
    let words = text.split(' ').map(|word| shorten(word, width - indent));
    indented(out, label, indent, &words.collect::<Vec<_>>().join(" "), width);
}

/// Text broken at blanks and indented under its label. A word longer than a line stays whole.
pub(crate) fn paragraph(out: &mut String, label: &str, text: &str, width: usize) {
    indented(out, label, INDENT, text, width);
}

fn indented(out: &mut String, label: &str, indent: usize, text: &str, width: usize) {
    let mut column = indent;
    let _ = write!(out, "{label:<indent$}");
    for (at, word) in text.split(' ').enumerate() {
        let length = word.chars().count();
        if at > 0 && column + 1 + length > width {
            let _ = write!(out, "\n{:indent$}", "");
            column = indent;
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
