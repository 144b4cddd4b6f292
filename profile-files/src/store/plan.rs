//! What shall become of the files: which are too old, which make room, which are merged. Nothing here reads a clock or a
//! disk.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use profiler_core::merge::Range;
use serde::{Deserialize, Serialize};

use super::StoreTerms;
use super::index::FileIndex;
use super::listing::StoredFile;
use super::name::Level;
use super::time_range::TimeRanges;

const SECOND_NS: u64 = 1_000_000_000;
/// What pieces of time may take in one file's header (bytes): the target and its labels have the rest of it.
const MAX_STRETCHES_BYTES: usize = 48 << 10;

/// Files that are merged before their span is over: few enough to be read quickly, many enough to be worth writing what is
/// merged already anew.
const BATCH: usize = 10;

/// This moment, by both clocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Now {
    /// The wall clock (ns since the Unix epoch).
    pub unix_ns: u64,
    /// Identity of the boot.
    pub boot: String,
    /// The monotonic clock of that boot (ns).
    pub monotonic_ns: u64,
}

/// The files all of whose time is more than the age ago.
pub(crate) fn expired(index: &FileIndex, age_ns: u64, now: &Now) -> Vec<PathBuf> {
    let is_old = |entry: &&StoredFile| since(entry, now) > age_ns;
    index.values().filter(is_old).map(|entry| entry.path.clone()).collect()
}

/// How long ago a file's time ended (ns). Of this boot the monotonic clock tells, so that a wall clock that jumps ahead does
/// not make today's profiles old. Of another boot the wall clock tells, since it may be another machine's, which was moved or
/// copied to one that has been up for longer; only where it ended in the future is one of the two clocks wrong, and the file
/// as old as this boot.
fn since(entry: &StoredFile, now: &Now) -> u64 {
    let ago = entry.stamp.time_ranges.iter().map(|time_range| {
        if time_range.boot == now.boot {
            now.monotonic_ns.saturating_sub(time_range.to_ns)
        } else {
            now.unix_ns.checked_sub(time_range.span().to_unix_ns).unwrap_or(now.monotonic_ns)
        }
    });
    ago.min().unwrap_or_default()
}

/// The oldest files that together take at least this room.
pub(crate) fn oldest(index: &FileIndex, room: u64, now: &Now) -> Vec<PathBuf> {
    let mut files: Vec<&StoredFile> = index.values().collect();
    files.sort_by_cached_key(|entry| Reverse(since(entry, now)));
    let mut freed = 0;
    let enough = |entry: &&StoredFile| {
        let needed = freed < room;
        freed += entry.size;
        needed
    };
    files.into_iter().take_while(enough).map(|entry| entry.path.clone()).collect()
}

/// Files to be merged into one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MergeGroup {
    /// What they become.
    pub(crate) level: Level,
    /// Their paths, two at least.
    pub(crate) paths: Vec<PathBuf>,
}

/// Whose files are merged with each other, the span in which they begin (s since the Unix epoch), and their class.
type GroupKey<'e> = (u64, &'e str, &'e BTreeMap<String, String>, u128);

/// The next files to be merged, the oldest first; none of those at paths that shall wait. Files are merged with others of their
/// class; those of class 0 become days, and those of none stay as they are.
pub(crate) fn next_group(
    index: &FileIndex,
    settings: &StoreTerms,
    now: &Now,
    days_first: bool,
    class: impl Fn(&Path) -> Option<u128>,
    waits: impl Fn(&MergeGroup) -> bool,
) -> Option<MergeGroup> {
    let of_level = |level: Level| match level {
        Level::Day => {
            let of_none = |path: &Path| class(path).filter(|class| *class == 0);
            groups(index, level, 86_400, settings.daily_after_ns, now, &of_none)
        }
        _ => groups(index, level, 3600, settings.hourly_after_ns, now, &class),
    };
    let order = if days_first { [Level::Day, Level::Hour] } else { [Level::Hour, Level::Day] };
    order.into_iter().find_map(|level| of_level(level).into_iter().find(|group| !waits(group)))
}

/// Files that begin in the same span of `length_s`, ended `after_ns` ago, and are to be merged into one of this level: once
/// the span is over, and meanwhile in batches, so that the last hour is not read window by window.
fn groups(
    index: &FileIndex,
    level: Level,
    length_s: u64,
    after_ns: u64,
    now: &Now,
    class: &dyn Fn(&Path) -> Option<u128>,
) -> Vec<MergeGroup> {
    let is_over = |end_unix_ns: u64| end_unix_ns.saturating_add(after_ns) <= now.unix_ns;
    let mut groups: BTreeMap<GroupKey<'_>, Vec<&StoredFile>> = BTreeMap::new();
    for entry in index.values().filter(|entry| entry.name.level <= level) {
        if is_over(entry.name.span().to_unix_ns)
            && let Some(class) = class(&entry.path)
        {
            let begin_s = entry.name.begin_unix_s / length_s * length_s;
            let key = (begin_s, entry.stamp.target.as_str(), &entry.stamp.labels, class);
            groups.entry(key).or_default().push(entry);
        }
    }
    let is_due = |begin_s: u64, entries: &[&StoredFile]| {
        let smaller = entries.iter().filter(|entry| entry.name.level < level).count();
        smaller >= BATCH || is_over((begin_s + length_s).saturating_mul(SECOND_NS))
    };
    let parts = groups
        .into_iter()
        .flat_map(|((begin_s, ..), entries)| parts(entries).into_iter().map(move |part| (begin_s, part)));
    let worthwhile = parts.filter(|(begin_s, part)| part.len() > 1 && is_due(*begin_s, part));
    let group = |part: Vec<&StoredFile>| MergeGroup {
        level,
        paths: part.iter().map(|entry| entry.path.clone()).collect(),
    };
    worthwhile.map(|(_, part)| group(part)).collect()
}

/// As few parts as have room in a header each. Time that goes on from file to file is one piece of it.
fn parts(entries: Vec<&StoredFile>) -> Vec<Vec<&StoredFile>> {
    let bytes = |entry: &&StoredFile| entry.stamp.time_ranges.written_bytes();
    if entries.iter().map(bytes).sum::<usize>() <= MAX_STRETCHES_BYTES {
        return vec![entries];
    }
    let mut parts: Vec<Vec<&StoredFile>> = Vec::new();
    let mut all = TimeRanges::default();
    for entry in entries {
        let more = TimeRanges::union([&all, &entry.stamp.time_ranges].into_iter());
        match parts.last_mut() {
            Some(part) if more.written_bytes() <= MAX_STRETCHES_BYTES => {
                all = more;
                part.push(entry);
            }
            _ => {
                all = entry.stamp.time_ranges.clone();
                parts.push(vec![entry]);
            }
        }
    }
    parts
}

/// What of `range` lies in none of the `spans`, but for pieces of less than a second.
pub(crate) fn gaps(range: Range, mut spans: Vec<Range>) -> Vec<Range> {
    spans.sort_by_key(|span| span.from_unix_ns);
    let mut gaps = Vec::new();
    let mut from_unix_ns = range.from_unix_ns;
    let end = Range { from_unix_ns: range.to_unix_ns, to_unix_ns: range.to_unix_ns };
    for span in spans.into_iter().chain([end]) {
        let to_unix_ns = span.from_unix_ns.min(range.to_unix_ns);
        if to_unix_ns.saturating_sub(from_unix_ns) >= SECOND_NS {
            gaps.push(Range { from_unix_ns, to_unix_ns });
        }
        from_unix_ns = from_unix_ns.max(span.to_unix_ns);
    }
    gaps
}
