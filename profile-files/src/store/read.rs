//! A range of time out of a store's folder, merged, and what is missing of it. Anyone who may read the folder can do so
//! while its owner writes to it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use jiff::civil::Date;
use profiler_core::merge::{Merger, Range};
use profiler_core::profile::SymbolizedProfile;

use super::StoreError;
use super::listing::{self, Listing, StoredFile};
use super::name::{Name, date_of, slug};
use super::plan;
use super::seal::Damage;
use super::time_range::TimeRange;
use super::unpack::{NotRead, each_opened, hold};

/// A file holds a day, and begins up to a window before what it holds of the next.
const LONGEST_S: u64 = 2 * 86_400;
/// How often a folder is looked at anew whose files are being merged or removed meanwhile.
const ATTEMPTS: usize = 10;

/// What to read.
#[derive(Clone, Debug)]
pub struct Query {
    /// When.
    pub range: Range,
    /// Whose; empty: every target's.
    pub targets: Vec<String>,
    /// Labels that the targets have, all of them.
    pub labels: BTreeMap<String, String>,
}

/// What was read.
#[derive(Debug)]
pub struct RangeReading {
    /// The sum.
    pub profile: SymbolizedProfile,
    /// Time that was watched, by target (ns).
    pub targets: BTreeMap<String, u64>,
    /// Spans of the range in which no target was watched.
    pub gaps: Vec<Range>,
    /// Files that were left out since they are damaged.
    pub damaged: Vec<(PathBuf, Damage)>,
    /// Files that were left out since the disk does not give them to us.
    pub unreadable: Vec<(PathBuf, io::Error)>,
    /// Files that were left out since others count a part of their time.
    pub overlapping: Vec<PathBuf>,
}

/// Why no answer came of an attempt.
enum Failed {
    /// Files were merged or removed meanwhile.
    Changed,
    Store(StoreError),
}

impl Query {
    /// Every target in this range.
    pub fn all(range: Range) -> Self {
        Self { range, targets: Vec::new(), labels: BTreeMap::new() }
    }

    fn may_want(&self, name: &Name) -> bool {
        let span = name.span();
        let in_time = span.from_unix_ns < self.range.to_unix_ns && span.to_unix_ns > self.range.from_unix_ns;
        in_time && (self.targets.is_empty() || self.targets.iter().any(|target| slug(target) == name.slug))
    }

    fn wants(&self, entry: &StoredFile) -> bool {
        let stamp = &entry.stamp;
        let has = |(label, text): (&String, &String)| stamp.labels.get(label) == Some(text);
        (self.targets.is_empty() || self.targets.contains(&stamp.target)) && self.labels.iter().all(has)
    }

    /// The days whose folders may hold something.
    fn days(&self) -> (Date, Date) {
        let seconds = |ns: u64| ns / 1_000_000_000;
        let first = seconds(self.range.from_unix_ns).saturating_sub(LONGEST_S);
        (date_of(first), date_of(seconds(self.range.to_unix_ns)))
    }
}

/// Says whether somebody still waits for what is read; asked before each file.
pub type IsWanted<'a> = &'a (dyn Fn() -> bool + Sync);

/// Reads a range from the store in `folder`, as long as it is wanted.
///
/// # Errors
///
/// If the folder cannot be read, or nobody wants it any more. A file that is damaged or cannot be read is none: that is told
/// beside what is sound.
pub fn read(folder: &Path, query: &Query, is_wanted: IsWanted<'_>) -> Result<RangeReading, StoreError> {
    for _ in 0..ATTEMPTS {
        match attempt(folder, query, is_wanted) {
            Ok(reading) => return Ok(reading),
            Err(Failed::Changed) => {}
            Err(Failed::Store(error)) => return Err(error),
        }
    }
    Err(StoreError::Restless(folder.to_owned()))
}

fn attempt(folder: &Path, query: &Query, is_wanted: IsWanted<'_>) -> Result<RangeReading, Failed> {
    let unreadable = |cause| Failed::Store(StoreError::Unreadable { path: folder.to_owned(), cause });
    let may_want = |name: &Name| query.may_want(name) && is_wanted();
    let listing = listing::list(folder, query.days(), may_want).map_err(unreadable)?;
    still(is_wanted)?;
    let Listing { mut entries, mut damaged, mut unreadable, has_changed, .. } = listing;
    if has_changed {
        return Err(Failed::Changed);
    }
    loop {
        let choice = listing::choose(&entries);
        let counted =
            choice.counted.iter().map(|&at| &entries[at]).filter(|entry| query.wants(entry)).collect();
        let mut sum = Sum::of(folder, query, counted, is_wanted)?;
        let left_out: BTreeSet<PathBuf> = sum.left_out().cloned().collect();
        damaged.append(&mut sum.damaged);
        unreadable.append(&mut sum.unreadable);
        if left_out.is_empty() {
            let overlapping = choice.overlapping.iter().map(|&at| entries[at].path.clone()).collect();
            return Ok(sum.into_reading(query, damaged, unreadable, overlapping));
        }
        // Once more without them: smaller files may hold their time.
        entries.retain(|entry| !left_out.contains(&entry.path));
    }
}

fn still(is_wanted: IsWanted<'_>) -> Result<(), Failed> {
    if is_wanted() { Ok(()) } else { Err(Failed::Store(StoreError::Unwanted)) }
}

/// What the files add up to.
struct Sum {
    merger: Merger,
    spans: Vec<Range>,
    targets: BTreeMap<String, u64>,
    damaged: Vec<(PathBuf, Damage)>,
    unreadable: Vec<(PathBuf, io::Error)>,
}

/// The part of a range in which these files have something: much of it may be older than the store.
fn covered(range: Range, entries: &[&StoredFile]) -> Range {
    let spans = entries.iter().flat_map(|entry| entry.stamp.time_ranges.iter().map(TimeRange::span));
    spans.reduce(Range::with).map_or(range, |all| all.part_in(range))
}

impl Sum {
    fn of(
        folder: &Path,
        query: &Query,
        entries: Vec<&StoredFile>,
        is_wanted: IsWanted<'_>,
    ) -> Result<Self, Failed> {
        let merger = Merger::new(query.range, covered(query.range, &entries).bin_ns());
        let mut sum = Self {
            merger,
            spans: Vec::new(),
            targets: BTreeMap::new(),
            damaged: Vec::new(),
            unreadable: Vec::new(),
        };
        let chosen = hold(folder, entries).ok_or(Failed::Changed)?;
        each_opened(folder, chosen, |entry, opened| {
            still(is_wanted)?;
            match opened {
                Ok(profile) => sum.add(query, entry, &profile),
                Err(NotRead::Gone) => return Err(Failed::Changed),
                Err(NotRead::Refused(cause)) => sum.unreadable.push((entry.path.clone(), cause)),
                Err(NotRead::Damaged(damage)) => sum.damaged.push((entry.path.clone(), damage)),
            }
            Ok(())
        })?;
        Ok(sum)
    }

    fn left_out(&self) -> impl Iterator<Item = &PathBuf> {
        let damaged = self.damaged.iter().map(|(path, _)| path);
        damaged.chain(self.unreadable.iter().map(|(path, _)| path))
    }

    /// What a file holds was kept, also where the middle of its window is not in the range.
    fn add(&mut self, query: &Query, entry: &StoredFile, profile: &SymbolizedProfile) {
        let spans = entry.stamp.time_ranges.iter().map(|time_range| time_range.span().part_in(query.range));
        let spans: Vec<Range> = spans.filter(|span| span.from_unix_ns < span.to_unix_ns).collect();
        if self.merger.add(profile) && !spans.is_empty() {
            let length_ns =
                spans.iter().map(|span| span.to_unix_ns - span.from_unix_ns).fold(0, u64::saturating_add);
            let watched = self.targets.entry(entry.stamp.target.clone()).or_default();
            *watched = watched.saturating_add(length_ns);
        }
        self.spans.extend(spans);
    }

    fn into_reading(
        self,
        query: &Query,
        damaged: Vec<(PathBuf, Damage)>,
        unreadable: Vec<(PathBuf, io::Error)>,
        overlapping: Vec<PathBuf>,
    ) -> RangeReading {
        RangeReading {
            profile: self.merger.finish(),
            targets: self.targets,
            gaps: plan::gaps(query.range, self.spans),
            damaged,
            unreadable,
            overlapping,
        }
    }
}
