//! `ctl targets`: a line for each target, and below the table once what several have in common.

use std::cmp::Ordering;
use std::fmt::Write;

use profile_files::names::visible;

use super::shown::{ShownMembership, ShownTarget, ShownTotals, Targets};
use super::tables::{one_of_many, percent, time};
use super::{TargetList, TargetOrder};

/// An interval stands beside a CPU time if it is wider than this share of it.
const SHOWN_RATIO: f64 = 0.01;
/// Targets that a note names.
const NAMED: usize = 3;
/// Columns of a name that the others are aligned to: longer ones push their own line to the right.
const WIDEST: usize = 40;

/// The table and its notes.
pub(super) fn table(targets: &Targets, list: TargetList) -> String {
    if targets.targets.is_empty() {
        return "no targets: write some into the settings, or `sweetspot ctl attach`\n".to_owned();
    }
    let (waiting, mut rows): (Vec<&ShownTarget>, Vec<&ShownTarget>) =
        targets.targets.iter().partition(|target| target.state == "waiting" && target.processes == 0);
    rows.sort_by(|one, other| order(one, other, list.order).then_with(|| one.name.cmp(&other.name)));
    let mut out = lines(&rows, list.top);
    let mut notes = methods(&rows);
    // Of those that wait as well: one may wait since its processes are watched as another's.
    let all: Vec<&ShownTarget> = rows.iter().chain(&waiting).copied().collect();
    notes.extend(reasons(&all));
    notes.extend(lost(&all));
    if list.labels {
        // Of the rows that are shown; those that wait have none.
        let shown = if rows.len() > list.top { &rows[..list.top] } else { &all };
        notes.extend(shown.iter().filter_map(|target| labels(target)));
    }
    if !waiting.is_empty() {
        let waits = if waiting.len() == 1 { "waits" } else { "wait" };
        notes.push(format!(
            "{} {waits} for a process: {}",
            waiting.len(),
            some(waiting.iter().map(|t| name(t)))
        ));
    }
    if !notes.is_empty() && !out.is_empty() {
        out.push('\n');
    }
    notes.iter().for_each(|note| {
        let _ = writeln!(out, "{note}");
    });
    out
}

fn order(one: &ShownTarget, other: &ShownTarget, by: TargetOrder) -> Ordering {
    let figure = |target: &ShownTarget| match by {
        TargetOrder::Cpu => target.totals.cpu_s,
        TargetOrder::Samples => target.totals.samples as f64,
        TargetOrder::Slowdown => target.sampling.slowdown_ratio.unwrap_or(-1.0),
        TargetOrder::Own => target.sampling.own_cpu_ratio.unwrap_or(-1.0),
        TargetOrder::Name => 0.0,
    };
    figure(other).total_cmp(&figure(one))
}

fn lines(rows: &[&ShownTarget], top: usize) -> String {
    let mut out = String::new();
    let (shown, hidden) = rows.split_at(top.min(rows.len()));
    if shown.is_empty() {
        return out;
    }
    let length = |target: &&ShownTarget| name(target).chars().count();
    let width = shown.iter().map(length).filter(|length| *length <= WIDEST).max().unwrap_or(0).max(6);
    let cpu_width = shown.iter().map(|target| cpu_s(target).chars().count()).max().unwrap_or(0).max(9);
    let _ = writeln!(
        out,
        "{:<width$} {:>cpu_width$} {:>9} {:>8} {:>8} {:>7} {:>7} {:>5} state",
        "target", "CPU s", "samples", "rate/s", "slowdown", "at most", "own CPU", "procs"
    );
    for target in shown {
        let _ = writeln!(
            out,
            "{:<width$} {:>cpu_width$} {:>9} {:>8} {:>8} {:>7} {:>7} {:>5} {}",
            name(target),
            cpu_s(target),
            target.totals.samples,
            target.sampling.rate_hz.map_or("-".to_owned(), |rate| format!("{rate:.1}")),
            target.sampling.slowdown_ratio.map_or("-".to_owned(), percent),
            percent(target.own_budget_ratio),
            target.sampling.own_cpu_ratio.map_or("-".to_owned(), percent),
            target.processes,
            state(target),
        );
    }
    if !hidden.is_empty() {
        let cpu_s: f64 = hidden.iter().map(|target| target.totals.cpu_s).sum();
        let (targets, them) = if hidden.len() == 1 { ("target", "it") } else { ("targets", "them") };
        let _ =
            writeln!(out, "…and {} more {targets} ({cpu_s:.1} CPU s); --top 0 shows {them}", hidden.len());
    }
    out
}

/// The CPU time, with the larger side of its interval where that shows.
fn cpu_s(target: &ShownTarget) -> String {
    let ShownTotals { cpu_s, cpu_s_low, cpu_s_high, .. } = target.totals;
    let unsure_s = (cpu_s - cpu_s_low).max(cpu_s_high - cpu_s);
    match cpu_s_high > 0.0 && unsure_s > SHOWN_RATIO * cpu_s && unsure_s >= 0.05 {
        true => format!("{cpu_s:.1} ± {unsure_s:.1}"),
        false => format!("{cpu_s:.1}"),
    }
}

fn name(target: &ShownTarget) -> String {
    visible(&target.name)
}

fn state(target: &ShownTarget) -> String {
    visible(&target.state).replace('_', " ")
}

/// How targets are sampled, the usual way first.
fn methods(rows: &[&ShownTarget]) -> Vec<String> {
    let sampled = rows.iter().filter(|target| target.state == "sampled");
    let mut groups = grouped(sampled.filter_map(|target| Some((method(target)?, name(target)))));
    groups.sort_by_key(|(_, names)| std::cmp::Reverse(names.len())); // stable
    if let [(method, names)] = &groups[..] {
        let all = if names.len() == 1 { String::new() } else { format!(" ({} targets)", names.len()) };
        return vec![format!("sampled by {method}{all}")];
    }
    groups.iter().map(|(method, names)| about(names, &format!("sampled by {method}"))).collect()
}

fn method(target: &ShownTarget) -> Option<String> {
    let events = match target.sampling.attach_mode.as_deref()? {
        "task" => "events for each thread",
        "cpu" => "events on whole CPUs",
        "cgroup" => "events of the control group",
        other => return Some(visible(other)),
    };
    let stacks = match target.sampling.unwind.as_deref() {
        Some("fp") => ", stacks by frame pointers",
        Some("dwarf") => ", stacks by unwind tables",
        Some("trial") => ", stacks both ways, to compare them",
        _ => "",
    };
    Some(format!("{events}{stacks}"))
}

/// What is not as it should be, each reason once.
fn reasons(all: &[&ShownTarget]) -> Vec<String> {
    let told = all.iter().flat_map(|target| {
        let taken = (!target.taken_by.is_empty()).then(|| {
            format!(
                "some of its processes count for {} until that ends",
                some(target.taken_by.iter().map(|by| visible(by)))
            )
        });
        let ends = target.ends_in_s.map(|seconds| format!("profiled for another {}", time(seconds)));
        let reason = target.reason.as_deref().map(visible);
        let notes = [reason, taken, ends, target.fleet.as_ref().and_then(fleet)].into_iter().flatten();
        notes.map(|note| (note, name(target))).collect::<Vec<_>>()
    });
    grouped(told).iter().map(|(reason, names)| about(names, reason)).collect()
}

/// How many replicas there are, or why it is taken for the only one.
fn fleet(member: &ShownMembership) -> Option<String> {
    let alone = member.reason.as_deref().map(|reason| format!("a fleet of one: {}", visible(reason)));
    let by = if member.source == "settings" { "by the settings" } else { "by Prometheus" };
    alone.or_else(|| Some(format!("{}, {by}", one_of_many(member.replicas)?)))
}

/// Samples that the kernel dropped.
fn lost(all: &[&ShownTarget]) -> Option<String> {
    let lost: Vec<&&ShownTarget> = all.iter().filter(|target| target.totals.lost > 0).collect();
    let sum: u64 = lost.iter().fold(0, |sum, target| target.totals.lost.saturating_add(sum));
    let of_each = lost.iter().map(|target| match lost.len() {
        1 => name(target),
        _ => format!("{} {}", name(target), target.totals.lost),
    });
    (sum > 0).then(|| format!("{sum} samples lost: {}", some(of_each)))
}

fn labels(target: &ShownTarget) -> Option<String> {
    let labels: Vec<String> = target.labels.iter().map(|(key, text)| format!("{key}={text}")).collect();
    (!labels.is_empty()).then(|| format!("{}: {}", name(target), visible(&labels.join(" "))))
}

/// Names by what they have in common, in the order in which that came.
fn grouped(all: impl Iterator<Item = (String, String)>) -> Vec<(String, Vec<String>)> {
    let mut groups: Vec<(String, Vec<String>)> = Vec::new();
    for (what, name) in all {
        match groups.iter_mut().find(|(known, _)| *known == what) {
            Some((_, names)) => names.push(name),
            None => groups.push((what, vec![name])),
        }
    }
    groups
}

/// What holds for these targets.
fn about(names: &[String], what: &str) -> String {
    let count = if names.len() == 1 { String::new() } else { format!("{} targets: ", names.len()) };
    format!("{count}{}: {what}", some(names.iter().cloned()))
}

/// The first few, and how many more there are.
fn some(names: impl ExactSizeIterator<Item = String>) -> String {
    let more = names.len().saturating_sub(NAMED);
    let named = names.take(NAMED).collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{named} and {more} more") } else { named }
}
