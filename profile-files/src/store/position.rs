//! What an export has of a store: since when it gets windows, which targets', and what time of each is settled.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use config::Pattern;
use serde::{Deserialize, Serialize};

use super::parts::PartsLeft;
use super::plan::Now;
use super::time_range::{TimeRange, TimeRanges};

/// What is settled is remembered for so much longer than a file is kept (ns): a day's goes a day later.
const REMEMBERED_NS: u64 = 2 * 86_400_000_000_000;
/// Files of an export that are sent in parts at a time, at most: of others all parts are sent again.
const MOST_IN_PARTS: usize = 256;

/// An export, as far as the store is concerned.
#[derive(Clone, Debug, PartialEq)]
pub struct Export {
    /// Its name.
    pub name: String,
    /// Patterns of the names of its targets; without any, it gets all.
    pub targets: Vec<Pattern>,
}

impl Export {
    pub(super) fn wants(&self, target: &str) -> bool {
        wants(&self.targets, target)
    }
}

pub(super) fn wants(patterns: &[Pattern], target: &str) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(target.as_bytes()))
}

/// What an export has of a store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Position {
    /// It gets no window that ended before this moment.
    since: Now,
    /// Patterns of the targets that it gets.
    pub(super) targets: Vec<String>,
    /// What was sent, refused or left out, by target.
    pub(super) settled: BTreeMap<String, TimeRanges>,
    /// What is left of each file that was acknowledged in part.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) in_parts: BTreeMap<PathBuf, PartsLeft>,
}

impl Position {
    /// A new export's.
    pub(super) fn new(since: Now, export: &Export) -> Self {
        Self { since, targets: texts(&export.targets), settled: BTreeMap::new(), in_parts: BTreeMap::new() }
    }

    /// The same in a later boot: what ends in it comes after, whatever the wall clock said when the export was new.
    pub(super) fn in_boot(mut self, now: &Now) -> Self {
        if self.since.boot != now.boot {
            self.since = Now { unix_ns: self.since.unix_ns, boot: now.boot.clone(), monotonic_ns: 0 };
        }
        self
    }

    /// Whether all of this is to be sent.
    pub(super) fn awaits(&self, target: &str, time_ranges: &TimeRanges) -> bool {
        let is_settled = self.settled.get(target).is_some_and(|settled| time_ranges.overlap(settled));
        !is_settled && time_ranges.iter().all(|time_range| is_after(time_range, &self.since))
    }

    /// This was sent, refused or left out.
    pub fn settle(&mut self, target: &str, time_ranges: &TimeRanges) {
        let settled = self.settled.entry(target.to_owned()).or_default();
        *settled = TimeRanges::union([&*settled, time_ranges].into_iter());
    }

    /// Notes what is left of a file that was acknowledged in part.
    pub(super) fn leave(&mut self, path: &Path, left: PartsLeft) {
        self.in_parts.insert(path.to_owned(), left);
        if self.in_parts.len() > MOST_IN_PARTS {
            self.in_parts.pop_first(); // the oldest: it may be gone
        }
    }

    /// Forgets what is too old to be in the store.
    pub(super) fn prune(&mut self, now: &Now, age_ns: u64) {
        let long_ns = age_ns.saturating_add(REMEMBERED_NS);
        let (unix_ns, monotonic_ns) =
            (now.unix_ns.saturating_sub(long_ns), now.monotonic_ns.saturating_sub(long_ns));
        let before = Now { unix_ns, boot: now.boot.clone(), monotonic_ns };
        self.settled.retain(|_, time_ranges| time_ranges.retain(|time_range| is_after(time_range, &before)));
        if self.since.unix_ns < before.unix_ns {
            self.since = before;
        }
    }
}

/// Whether a time range ends after a moment: by the clock that cannot jump, where it is of the same boot.
fn is_after(time_range: &TimeRange, moment: &Now) -> bool {
    if time_range.boot == moment.boot {
        time_range.to_ns > moment.monotonic_ns
    } else {
        time_range.span().to_unix_ns > moment.unix_ns
    }
}

pub(super) fn texts(patterns: &[Pattern]) -> Vec<String> {
    patterns.iter().map(|pattern| pattern.as_str().to_owned()).collect()
}
