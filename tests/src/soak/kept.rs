//! Checks that all sampled time was stored exactly once.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::Value;

use super::cover::{Span, Spans, shared_ms};
use super::judge::{Line, Run, at_ms, line};
use super::spent::targets;

/// Tolerance for clocks: two are read one after the other, one of them is slewed, and file names are rounded.
const CLOCKS_MS: u64 = 20;
/// Tolerance for the end of a window: windows are ended once a second, and later on a loaded machine.
const LATE_MS: u64 = 3_000;
/// Time between the end of a target's process and the first sample of the next one.
const AGAIN_MS: u64 = 6_000;
/// Overlap of two ways to sample when the settings change the way; the wall-clock time of a file may be off by as much.
const RESAMPLED_MS: u64 = 500;
/// Time after a start until all targets are attached to.
const POLL_MS: u64 = 6_000;

/// Lost time, by cause.
#[derive(Default)]
struct Lost {
    /// Kills, each with the longest window that was open then.
    kills: Vec<(u64, u64)>,
    restarts: u64,
    dropped: Vec<u64>,
    rest: Vec<(String, Span)>,
}

/// The lines.
///
/// # Errors
///
/// If the record is not one of a whole run.
pub(super) fn lines(run: &Run<'_>) -> Result<Vec<Line>> {
    let (claimed, kept) = (claimed(run), windows(run));
    let (mut lost, mut claimed_ms, mut shared) = (Lost::default(), 0, 0);
    for (target, spans) in &claimed {
        let spans = Spans::of(spans.clone(), 0);
        claimed_ms += spans.length_ms();
        let of_target = kept.get(target).cloned().unwrap_or_default();
        shared += shared_ms(of_target.clone(), CLOCKS_MS);
        let missing = spans.without(&Spans::of(of_target, CLOCKS_MS));
        for span in missing.iter().filter(|(from, to)| to - from > CLOCKS_MS) {
            sort_out(run, target, span, &mut lost);
        }
    }
    let dropped = ["dropped_full", "dropped_refused", "dropped_queue"].map(|key| run.counted(key));
    let seconds = |ms: u64| format!("{:.1} s", ms as f64 * 1e-3);
    let most = |lost: &[u64]| seconds(lost.iter().copied().max().unwrap_or(0));
    let window_ms = longest_window_ms(run);
    lost.rest.sort_by_key(|(_, (from, to))| std::cmp::Reverse(to - from));
    let rest_ms: u64 = lost.rest.iter().map(|(_, (from, to))| to - from).sum();
    let named: Vec<String> = lost
        .rest
        .iter()
        .take(4)
        .map(|(target, (from, to))| format!("{target} {from}+{}", to - from))
        .collect();
    let all: usize = kept.values().map(Vec::len).sum();
    Ok(vec![
        line(
            "every moment that was sampled is kept",
            format!(
                "{all} windows, {:.2} h of targets; {} missing at restarts and reloads, {} elsewhere ({} pieces) {}",
                claimed_ms as f64 / 3.6e6,
                seconds(lost.restarts),
                seconds(rest_ms),
                lost.rest.len(),
                named.join(", ")
            ),
            lost.rest.is_empty() && claimed_ms > 0,
        ),
        line(
            "a kill costs at most a window of each target",
            {
                let (length, window) = lost.kills.iter().copied().max().unwrap_or_default();
                format!("{} pieces, longest {} of {}", lost.kills.len(), seconds(length), seconds(window))
            },
            lost.kills.iter().all(|(length, window)| *length <= window + LATE_MS),
        ),
        line(
            "what a full disk costs is counted",
            format!(
                "{} pieces, longest {}; counted: {} full, {} refused, {} queue; {} evicted, {} merged, {} not merged",
                lost.dropped.len(),
                most(&lost.dropped),
                dropped[0],
                dropped[1],
                dropped[2],
                run.counted("evicted"),
                run.counted("merged"),
                run.counted("unmerged")
            ),
            lost.dropped.iter().map(|length| length.div_ceil(window_ms + LATE_MS)).sum::<u64>()
                <= dropped.iter().sum(),
        ),
        line("no moment is kept twice", format!("{} in two windows", seconds(shared)), shared == 0),
        again(run)?,
    ])
}

/// Time in which targets were sampled, as the daemon says: between two answers of one process that both say so.
fn claimed(run: &Run<'_>) -> BTreeMap<String, Vec<Span>> {
    let mut claimed: BTreeMap<String, Vec<Span>> = BTreeMap::new();
    for pair in run.lives().iter().flat_map(|life| life.windows(2)) {
        let (before, after) = (pair[0], pair[1]);
        if at_ms(after) - at_ms(before) > POLL_MS {
            continue;
        }
        let sampled =
            |poll| targets(poll).filter(|(_, target): &(&str, &Value)| target["state"] == "sampled");
        for (name, _) in sampled(before).filter(|(name, _)| sampled(after).any(|(other, _)| other == *name)) {
            claimed.entry(name.to_owned()).or_default().push((at_ms(before), at_ms(after)));
        }
    }
    claimed
}

fn windows(run: &Run<'_>) -> BTreeMap<String, Vec<Span>> {
    let mut kept: BTreeMap<String, Vec<Span>> = BTreeMap::new();
    for file in run.of("file").filter(|file| file["level"] == "window") {
        let span = (file["from_ms"].as_u64().unwrap_or(0), file["to_ms"].as_u64().unwrap_or(0));
        kept.entry(file["target"].as_str().unwrap_or("").to_owned()).or_default().push(span);
    }
    kept
}

/// Why a time range is missing.
fn sort_out(run: &Run<'_>, target: &str, (from, to): Span, lost: &mut Lost) {
    let near = |kind: &'static str, of: &'static str, before_ms: u64, after_ms: u64| {
        let target = target.to_owned();
        run.of(kind)
            .filter(move |event| of.is_empty() || event[of] == *target)
            .any(|event| from <= at_ms(event) + after_ms && to + before_ms >= at_ms(event))
    };
    let window_ms = longest_window_ms(run) + LATE_MS;
    let full = run.of("disk_full").any(|full| {
        let free = run.of("disk_free").map(at_ms).find(|free| *free >= at_ms(full));
        from <= free.unwrap_or(u64::MAX) && to + window_ms >= at_ms(full)
    });
    let of_target = |kind| near(kind, "target", LATE_MS, AGAIN_MS);
    let is_short = |length_ms: u64| {
        length_ms <= RESAMPLED_MS && near("reload", "", LATE_MS, LATE_MS)
            || length_ms <= 2 * AGAIN_MS && (of_target("target_killed") || of_target("target_started"))
    };
    // A target that ended before has windows that wait for names, too.
    let killed = run.of("kill").map(at_ms).map(|kill| (kill, window_before_ms(run, kill)));
    let killed =
        killed.filter(|(kill, _)| from <= *kill).find(|(kill, window)| to + window + LATE_MS >= *kill);
    if let Some((_, window)) = killed {
        let open_ms = if full { (to - from).min(window) } else { to - from };
        lost.kills.push((open_ms, window));
        lost.dropped.extend((to - from > open_ms).then_some(to - from - open_ms));
    } else if full {
        lost.dropped.push(to - from);
    } else if is_short(to - from) {
        lost.restarts += to - from;
    } else {
        lost.rest.push((target.to_owned(), (from, to)));
    }
}

/// Length of windows in the minute and a half before a kill: at least the configured one, and the daemon may report it late.
fn window_before_ms(run: &Run<'_>, kill_ms: u64) -> u64 {
    const LATELY_MS: u64 = 90_000;
    let polls = run.of("poll").filter(|poll| at_ms(poll) <= kill_ms && at_ms(poll) + LATELY_MS >= kill_ms);
    (1e3 * polls.filter_map(|poll| poll["status"]["store"]["window_s"].as_f64()).fold(10.0, f64::max)) as u64
}

/// The configured length, or a longer one if the host's budget does not allow more windows.
fn longest_window_ms(run: &Run<'_>) -> u64 {
    let asked_s = run.of("reload").filter_map(|event| event["terms"][0].as_f64());
    let in_force_s = run.of("poll").filter_map(|poll| poll["status"]["store"]["window_s"].as_f64());
    (1e3 * asked_s.chain(in_force_s).fold(10.0, f64::max)) as u64
}

/// Checks that the store's sum equals that of its sound files.
fn again(run: &Run<'_>) -> Result<Line> {
    let counted = run.of("counted_again").last().context("the run was cut off: nothing was counted again")?;
    let damaged: Vec<&Value> = run.of("damaged").map(|event| &event["path"]).collect();
    let files: Vec<&Value> = counted["files"].as_array().context("files")?.iter().collect();
    let sound: Vec<&&Value> = files.iter().filter(|file| !damaged.contains(&&file["path"])).collect();
    let unread = sound.iter().filter(|file| file["samples"].is_null()).count();
    let sum: u64 = sound.iter().filter_map(|file| file["samples"].as_u64()).sum();
    let whole = counted["of_store"].as_u64();
    Ok(line(
        "the store sums up to what its files hold",
        format!("{} files, {unread} unreadable: {sum} samples, together {}", files.len(), whole.unwrap_or(0)),
        unread == 0 && whole == Some(sum),
    ))
}
