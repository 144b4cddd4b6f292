//! Checks the record of a run.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::Value;

use super::growth::{Growth, growth};
use super::kept;
use super::spent;

/// A line of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// The requirement.
    pub what: String,
    /// What was found.
    pub found: String,
    /// Whether it holds.
    pub holds: bool,
}

pub(super) fn line(what: impl Into<String>, found: impl Into<String>, holds: bool) -> Line {
    Line { what: what.into(), found: found.into(), holds }
}

/// The fastest growth of the daemon that passes, less its error (KiB and descriptors in an hour).
const MOST_KIB_HOUR: f64 = 4096.0;
const MOST_DESCRIPTORS_HOUR: f64 = 8.0;
const WARM_UP_MS: u64 = 600_000;
/// Longest time for a regular end.
const END_MS: u64 = 2_000;
/// How far the share of a function may be from what the program does.
const MOST_OFF: f64 = 0.03;
const TRUE_SHARE: f64 = 0.6;

/// The events of a run.
pub(super) struct Run<'r>(&'r [Value]);

impl<'r> Run<'r> {
    /// Those of a kind, in order.
    pub(super) fn of(&self, kind: &'r str) -> impl Iterator<Item = &'r Value> + use<'r> {
        let events = self.0;
        events.iter().filter(move |event| event["kind"] == kind)
    }

    /// Polls by the daemon's process: each process has its own counters.
    pub(super) fn lives(&self) -> Vec<Vec<&'r Value>> {
        let polls: Vec<&Value> = self.of("poll").collect();
        polls.chunk_by(|a, b| a["pid"] == b["pid"]).map(<[&Value]>::to_vec).collect()
    }

    /// By how much a counter of the store rose, over all processes of the daemon.
    pub(super) fn counted(&self, key: &str) -> u64 {
        let last = |life: &Vec<&Value>| life.last().and_then(|poll| poll["status"]["store"][key].as_u64());
        self.lives().iter().filter_map(last).sum()
    }
}

pub(super) fn at_ms(event: &Value) -> u64 {
    event["at_ms"].as_u64().unwrap_or(0)
}

/// Every line.
///
/// # Errors
///
/// If the record is not one of a whole run.
pub(super) fn judge(record: &[Value]) -> Result<Vec<Line>> {
    let run = Run(record);
    let mut lines = spent::lines(&run);
    lines.extend(grown(&run));
    lines.extend(kept::lines(&run)?);
    lines.push(damage(&run));
    lines.extend(settings(&run));
    lines.extend(answers(&run));
    lines.extend(ends(&run)?);
    lines.push(truth(&run));
    Ok(lines)
}

/// Memory and descriptors of the daemon's processes that lived long enough.
fn grown(run: &Run<'_>) -> Vec<Line> {
    let mut lines = Vec::new();
    for life in run.lives() {
        let begin_ms = life.first().map_or(0, |poll| at_ms(poll));
        let warm: Vec<&Value> =
            life.into_iter().filter(|poll| at_ms(poll) >= begin_ms + WARM_UP_MS).collect();
        if warm.is_empty() {
            continue;
        }
        let series = |key: &str| -> Growth {
            let values: Vec<(u64, f64)> =
                warm.iter().filter_map(|poll| Some((at_ms(poll), poll[key].as_f64()?))).collect();
            growth(&values)
        };
        let minutes = (at_ms(warm[warm.len() - 1]) - at_ms(warm[0])) / 60_000;
        let (rss, descriptors, threads) = (series("rss_kib"), series("descriptors"), series("threads"));
        // Tables and names are kept until their room is full, which takes hours where programs come and go.
        let cache_kib = |poll: &Value| poll["status"]["memory"]["symbol_bytes"].as_f64().map(|b| b / 1024.0);
        let beside = |poll: &&Value| Some((at_ms(poll), poll["rss_kib"].as_f64()? - cache_kib(poll)?));
        let beside = growth(&warm.iter().filter_map(beside).collect::<Vec<_>>());
        let cache_most_kib = warm.iter().filter_map(|poll| cache_kib(poll)).fold(0.0, f64::max);
        let limit_kib = warm[0]["status"]["memory"]["limit_bytes"].as_f64().unwrap_or(0.0) / 1024.0;
        let mib = |kib: f64| kib / 1024.0;
        lines.push(line(
            format!("no memory is lost ({minutes} min after the warm-up)"),
            format!(
                "{:+.1} ± {:.1} MiB/h beside tables and names, most {:.0} MiB; with these (most {:.0}) {:+.1} ± {:.1}, most {:.0}",
                mib(beside.slope),
                mib(beside.half),
                mib(beside.most),
                mib(cache_most_kib),
                mib(rss.slope),
                mib(rss.half),
                mib(rss.most)
            ),
            beside.slope - beside.half <= MOST_KIB_HOUR && rss.most <= limit_kib,
        ));
        lines.push(line(
            "no descriptors are lost",
            format!(
                "{:+.0} ± {:.0} /h, most {:.0}; most threads {:.0}",
                descriptors.slope, descriptors.half, descriptors.most, threads.most
            ),
            descriptors.slope - descriptors.half <= MOST_DESCRIPTORS_HOUR,
        ));
    }
    if lines.is_empty() {
        lines.push(line("no memory is lost", "no life was longer than the warm-up", false));
    }
    lines
}

/// Every read of the store must report each damaged file that is still there, and still read the sound ones.
fn damage(run: &Run<'_>) -> Line {
    let turned: Vec<&Value> = run.of("damage_read").collect();
    let right = |event: &&&Value| {
        let until = |kind: &'static str| {
            let before = run.of(kind).filter(|other| at_ms(other) <= at_ms(event));
            before.filter_map(|other| other["path"].as_str()).collect::<BTreeSet<&str>>()
        };
        let there = until("damaged").difference(&until("gone")).count();
        // One that was merged or removed meanwhile need not be told.
        let told = told(event["said"].as_str().unwrap_or_default());
        event["status"] == 0 && (told == there || event["still_there"] == false && told + 1 == there)
    };
    let count = turned.iter().filter(right).count();
    line(
        "damaged files are told, and the rest still read",
        format!(
            "{count} of {} times; {} set aside, {} counted",
            turned.len(),
            run.of("set_aside").count(),
            run.counted("damaged")
        ),
        count == turned.len() && count > 0,
    )
}

/// The number of files that a line reports: some by name, and a count of the others.
fn told(said: &str) -> usize {
    let more = said.rsplit_once(" and ").and_then(|(_, more)| more.strip_suffix(" more")?.parse().ok());
    said.matches(".pb.gz (").count() + more.unwrap_or(0)
}

fn settings(run: &Run<'_>) -> Vec<Line> {
    ["good", "bad"]
        .into_iter()
        .map(|which| {
            let good = which == "good";
            let all: Vec<&Value> = run.of("reload").filter(|event| event["good"] == good).collect();
            let right = |event: &&&Value| event["done"] == true && event["failed"] == !good;
            let count = all.iter().filter(right).count();
            let what = if good { "good settings are taken" } else { "bad settings are refused, and told" };
            line(what, format!("{count} of {}", all.len()), count == all.len() && count > 0)
        })
        .collect()
}

fn answers(run: &Run<'_>) -> Vec<Line> {
    let asked: Vec<&Value> = run.of("ctl_status").collect();
    let failed = asked.iter().filter(|event| event["status"] != 0).count();
    let slowest =
        |events: &[&Value]| events.iter().filter_map(|event| event["took_ms"].as_u64()).max().unwrap_or(0);
    let polls: Vec<&Value> = run.of("poll").collect();
    let unanswered = run.of("unanswered").count();
    let mut lines = vec![line(
        "`ctl status` answers",
        format!(
            "{failed} of {} failed, slowest {} ms; {unanswered} of {} polls unanswered, slowest {} ms",
            asked.len(),
            slowest(&asked),
            polls.len() + unanswered,
            slowest(&polls)
        ),
        failed == 0 && unanswered == 0 && !asked.is_empty(),
    )];
    let mut by_path: BTreeMap<&str, BTreeMap<&str, usize>> = BTreeMap::new();
    for event in run.of("asked") {
        let (path, answer) = (event["path"].as_str().unwrap_or(""), event["answer"].as_str().unwrap_or(""));
        *by_path.entry(path).or_default().entry(answer).or_default() += 1;
    }
    for (path, counts) in by_path {
        let told: Vec<String> = counts.iter().map(|(answer, count)| format!("{answer} {count}")).collect();
        // Not there and broken off is what a killed daemon is; a full disk keeps a profile from being flushed.
        let sound =
            counts.keys().all(|answer| ["200", "404", "429", "503", "absent", "broken"].contains(answer));
        lines.push(line(format!("{path} is answered"), told.join(", "), sound));
    }
    lines
}

fn ends(run: &Run<'_>) -> Result<Vec<Line>> {
    let ordered: Vec<&Value> = run.of("ended").filter(|event| event["why"] != "kill").collect();
    // On a full disk an end loses windows, and says so by its status.
    let is_full = |at: u64| {
        let last = |kind| run.of(kind).map(at_ms).filter(|&then| then <= at).max();
        last("disk_full") > last("disk_free")
    };
    let right = |event: &&&Value| {
        let status = &event["status"];
        let is_told = *status == "exit status: 0" || *status == "exit status: 3" && is_full(at_ms(event));
        is_told && event["took_ms"].as_u64().is_some_and(|took| took <= END_MS)
    };
    let slowest = ordered.iter().filter_map(|event| event["took_ms"].as_u64()).max().unwrap_or(0);
    let count = ordered.iter().filter(right).count();
    let crashed: Vec<String> = run.of("crashed").map(|event| event["status"].to_string()).collect();
    let log = run.of("log").last().context("the run was cut off: it has no log")?;
    let lines: Vec<&str> =
        log["lines"].as_array().context("lines")?.iter().filter_map(Value::as_str).collect();
    let panics = lines.iter().filter(|line| line.contains("panicked")).count();
    let kinds: BTreeSet<&str> = lines.iter().copied().collect();
    Ok(vec![
        line(
            "told to end, it does within 2 s",
            format!("{count} of {}, slowest {slowest} ms", ordered.len()),
            count == ordered.len() && count > 0,
        ),
        line(
            "no crash, no panic",
            format!(
                "{} crashes, {panics} panics; {} kinds of remarks in the log",
                crashed.len(),
                kinds.len()
            ),
            crashed.is_empty() && panics == 0,
        ),
    ])
}

/// One target's functions have a known share of its time.
fn truth(run: &Run<'_>) -> Line {
    let what = "what is kept is true: share of `load_major` in `steady`";
    let functions = run.of("counted_again").last().and_then(|event| event["steady"]["functions"].as_array());
    let sum = |name: &str, key: &str| -> f64 {
        let named = functions.into_iter().flatten().filter(|function| function["name"] == name);
        named.filter_map(|function| function[key].as_f64()).sum()
    };
    let cpu_s = sum("load_major", "cpu_s") + sum("load_minor", "cpu_s");
    let share = sum("load_major", "cpu_s") / cpu_s;
    // By the profile's own interval, where there are few samples.
    let half = 0.5 * (sum("load_major", "cpu_s_high") - sum("load_major", "cpu_s_low")) / cpu_s;
    line(
        what,
        format!("{share:.3} ± {half:.3} of {cpu_s:.1} s, true {TRUE_SHARE}"),
        (share - TRUE_SHARE).abs() <= MOST_OFF.max(half),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn files_that_are_told_are_counted() {
        assert_eq!(told(""), 0);
        assert_eq!(told("left out: a.pb.gz (its checksum is wrong), b.pb.gz (cut) and 12 more"), 14);
    }

    #[test]
    fn a_damaged_file_that_is_not_told_is_noticed() {
        let damaged = |at: u64, path: &str| json!({ "at_ms": at, "kind": "damaged", "path": path });
        let read = |at: u64, said: &str| json!({ "at_ms": at, "kind": "damage_read", "said": said, "status": 0, "still_there": true });
        let gone = json!({ "at_ms": 3, "kind": "gone", "path": "a" });
        let record =
            [damaged(1, "a"), read(2, "x.pb.gz (bad)"), gone, damaged(4, "b"), read(5, "y.pb.gz (bad)")];
        assert!(damage(&Run(&record)).holds);
        let silent = [damaged(1, "a"), read(2, "x.pb.gz (bad)"), damaged(4, "b"), read(5, "y.pb.gz (bad)")];
        assert!(!damage(&Run(&silent)).holds);
    }
}
