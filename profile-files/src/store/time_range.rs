//! Which time a file counts, by a clock that never jumps.
//!
//! The wall clock can be set back, so that a minute comes twice. What a file holds is therefore told by the monotonic clock
//! of the boot it was sampled in: the same time range of it is never counted twice, whatever the wall clock said.

use std::collections::{BTreeMap, BTreeSet};

use profiler_core::merge::Range;
use serde::{Deserialize, Serialize};

/// How far wall clock and monotonic clock may drift apart within one time range (ns).
const DRIFT_NS: u64 = 1_000_000_000;

/// A range of one boot's time; its end is outside.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TimeRange {
    /// Identity of the boot, as the kernel tells it.
    pub(crate) boot: String,
    /// Its start (ns of the monotonic clock).
    pub(crate) from_ns: u64,
    /// Its end.
    pub(crate) to_ns: u64,
    /// The wall clock at its start (ns since the Unix epoch).
    pub(crate) begin_unix_ns: u64,
}

impl TimeRange {
    /// Its wall-clock time.
    pub(crate) fn span(&self) -> Range {
        let length_ns = self.to_ns.saturating_sub(self.from_ns);
        Range { from_unix_ns: self.begin_unix_ns, to_unix_ns: self.begin_unix_ns.saturating_add(length_ns) }
    }

    /// Whether `next` goes on where this ends, by both clocks.
    fn goes_on(&self, next: &Self) -> bool {
        self.boot == next.boot
            && self.to_ns == next.from_ns
            && self.span().to_unix_ns.abs_diff(next.begin_unix_ns) < DRIFT_NS
    }
}

/// TimeRanges in order, none of which goes on in another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct TimeRanges(Vec<TimeRange>);

impl TimeRanges {
    /// These; overlaps are not looked for.
    pub(crate) fn new(mut time_ranges: Vec<TimeRange>) -> Self {
        time_ranges.sort();
        time_ranges.dedup_by(|next, last| {
            let joined = last.goes_on(next);
            if joined {
                last.to_ns = next.to_ns;
            }
            joined
        });
        Self(time_ranges)
    }

    /// All of them together.
    pub(crate) fn union<'s>(all: impl Iterator<Item = &'s Self>) -> Self {
        Self::new(all.flat_map(|time_ranges| time_ranges.0.iter().cloned()).collect())
    }

    /// In order of boot and time.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &TimeRange> {
        self.0.iter()
    }

    /// Whether they share any time with `others`.
    pub(crate) fn overlap(&self, others: &Self) -> bool {
        let shares = |time_range: &TimeRange| {
            let begins_before = |other: &TimeRange| {
                (other.boot.as_str(), other.from_ns) < (time_range.boot.as_str(), time_range.to_ns)
            };
            let before = others.0.partition_point(begins_before);
            let last = before.checked_sub(1).map(|at| &others.0[at]);
            last.is_some_and(|last| last.boot == time_range.boot && last.to_ns > time_range.from_ns)
        };
        self.0.iter().any(shares)
    }

    /// Forgets those that are not `kept`; whether any is left.
    pub(crate) fn retain(&mut self, kept: impl FnMut(&TimeRange) -> bool) -> bool {
        self.0.retain(kept);
        !self.0.is_empty()
    }

    /// What they take in a header (bytes).
    pub(crate) fn written_bytes(&self) -> usize {
        let digits = |number: u64| number.checked_ilog10().unwrap_or_default() as usize + 1;
        let boots: BTreeSet<&str> = self.0.iter().map(|time_range| time_range.boot.as_str()).collect();
        let of_boots: usize = boots.iter().map(|boot| boot.len() + "'',".len()).sum();
        let index = digits(boots.len() as u64);
        let written = |time_range: &TimeRange| {
            let TimeRange { from_ns, to_ns, begin_unix_ns, .. } = *time_range;
            index + digits(from_ns) + digits(to_ns) + digits(begin_unix_ns) + "[,,,],".len()
        };
        of_boots + self.0.iter().map(written).sum::<usize>()
    }

    /// Time in all of them (ns).
    pub(crate) fn length_ns(&self) -> u64 {
        self.0.iter().fold(0, |sum, time_range| sum.saturating_add(time_range.to_ns - time_range.from_ns))
    }
}

/// What time ranges are in a file: each boot once.
#[derive(Clone, Serialize, Deserialize)]
struct Written {
    boots: Vec<String>,
    /// Index of the boot, start, end, wall clock at the start.
    #[serde(rename = "stretches")]
    time_ranges: Vec<(usize, u64, u64, u64)>,
}

impl From<TimeRanges> for Written {
    fn from(time_ranges: TimeRanges) -> Self {
        let mut boots: Vec<String> = Vec::new();
        let written = time_ranges.0.into_iter().map(|time_range| {
            let at = boots.iter().position(|boot| *boot == time_range.boot).unwrap_or_else(|| {
                boots.push(time_range.boot);
                boots.len() - 1
            });
            (at, time_range.from_ns, time_range.to_ns, time_range.begin_unix_ns)
        });
        let time_ranges = written.collect();
        Self { boots, time_ranges }
    }
}

impl TryFrom<Written> for TimeRanges {
    type Error = &'static str;

    fn try_from(written: Written) -> Result<Self, Self::Error> {
        let time_range = |(boot, from_ns, to_ns, begin_unix_ns): (usize, u64, u64, u64)| {
            let boot = written.boots.get(boot).cloned().filter(|_| from_ns < to_ns);
            boot.map(|boot| TimeRange { boot, from_ns, to_ns, begin_unix_ns })
        };
        let time_ranges: Option<Vec<_>> = written.time_ranges.iter().copied().map(time_range).collect();
        match time_ranges {
            Some(time_ranges) if !time_ranges.is_empty() => Ok(Self::new(time_ranges)),
            _ => Err("no stretch of time"),
        }
    }
}

/// Time that is counted already, by target.
#[derive(Debug, Default)]
pub(crate) struct CountedTime<'e> {
    /// End, and who took it, by target, boot and start; disjoint.
    taken: BTreeMap<(&'e str, &'e str, u64), (u64, usize)>,
}

/// How time ranges overlap with those that are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overlap {
    /// They share nothing.
    None,
    /// All of them are taken.
    Full,
    /// Part of them is taken.
    Partial,
}

impl<'e> CountedTime<'e> {
    /// Takes the time ranges for `by` if they are free.
    pub(crate) fn take(&mut self, target: &'e str, time_ranges: &'e TimeRanges, by: usize) -> Overlap {
        let standing = self.standing(target, time_ranges);
        if standing == Overlap::None {
            for time_range in time_ranges.iter() {
                self.taken.insert((target, &time_range.boot, time_range.from_ns), (time_range.to_ns, by));
            }
        }
        standing
    }

    /// Who took what these share with others.
    pub(crate) fn takers<'s>(
        &'s self,
        target: &'s str,
        time_ranges: &'s TimeRanges,
    ) -> impl Iterator<Item = usize> + 's {
        let taker = move |time_range: &TimeRange| {
            self.near(target, time_range)
                .filter(|(_, to_ns, _)| *to_ns > time_range.from_ns)
                .map(|(.., by)| by)
        };
        time_ranges.iter().filter_map(taker)
    }

    /// Start, end and taker of the last one that begins before this one ends.
    fn near(&self, target: &str, time_range: &TimeRange) -> Option<(u64, u64, usize)> {
        let boot = time_range.boot.as_str();
        let before = self.taken.range(..(target, boot, time_range.to_ns)).next_back();
        let near = before.filter(|((of, in_boot, _), _)| (*of, *in_boot) == (target, boot));
        near.map(|((_, _, from_ns), (to_ns, by))| (*from_ns, *to_ns, *by))
    }

    fn standing(&self, target: &str, time_ranges: &TimeRanges) -> Overlap {
        let (mut held, mut free) = (true, true);
        for time_range in time_ranges.iter() {
            let near = self.near(target, time_range);
            held &= near.is_some_and(|(from_ns, to_ns, _)| {
                from_ns <= time_range.from_ns && to_ns >= time_range.to_ns
            });
            free &= near.is_none_or(|(_, to_ns, _)| to_ns <= time_range.from_ns);
        }
        match (held, free) {
            (_, true) => Overlap::None,
            (true, false) => Overlap::Full,
            (false, false) => Overlap::Partial,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn time_range(boot: &str, from_ns: u64, to_ns: u64) -> TimeRange {
        TimeRange { boot: boot.to_owned(), from_ns, to_ns, begin_unix_ns: from_ns + 1_000_000 }
    }

    #[test]
    fn what_goes_on_is_one_time_range_unless_the_clock_jumped() {
        let mut jumped = time_range("a", 30, 40);
        jumped.begin_unix_ns = 7_200_000_000_000;
        let all = TimeRanges::new(vec![
            jumped,
            time_range("a", 20, 30),
            time_range("a", 10, 20),
            time_range("b", 40, 50),
        ]);
        let ends: Vec<(u64, u64)> =
            all.iter().map(|time_range| (time_range.from_ns, time_range.to_ns)).collect();
        assert_eq!(ends, [(10, 30), (30, 40), (40, 50)]);
        let json = serde_json::to_string(&all).unwrap();
        assert_eq!(serde_json::from_str::<TimeRanges>(&json).unwrap(), all);
        for bad in
            ["{}", r#"{"boots":[],"stretches":[[0,1,2,3]]}"#, r#"{"boots":["a"],"stretches":[[0,2,2,3]]}"#]
        {
            assert!(serde_json::from_str::<TimeRanges>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn time_ranges_overlap_by_boot_and_time() {
        let some =
            TimeRanges::new(vec![time_range("a", 10, 20), time_range("a", 30, 40), time_range("b", 10, 20)]);
        let overlaps =
            |boot, from_ns, to_ns| TimeRanges::new(vec![time_range(boot, from_ns, to_ns)]).overlap(&some);
        assert!(
            overlaps("a", 19, 21) && overlaps("a", 5, 50) && overlaps("b", 11, 12) && overlaps("a", 35, 36)
        );
        assert!(
            !overlaps("a", 20, 30)
                && !overlaps("a", 40, 50)
                && !overlaps("b", 30, 40)
                && !overlaps("c", 10, 20)
        );
        assert!(!overlaps("a", 0, 10) && !some.overlap(&TimeRanges::default()));
    }

    #[test]
    fn what_they_take_in_a_header_is_known() {
        let boot = |at: u64| format!("{at:08x}-0000-4000-8000-000000000001");
        let many = |count: u64| {
            TimeRanges::new(
                (0..count).map(|at| time_range(&boot(at % 7), at * 70_000, at * 70_000 + 9)).collect(),
            )
        };
        for count in [1, 9, 10, 11, 100, 1000] {
            let (all, json) = (many(count), serde_json::to_string(&many(count)).unwrap());
            let bytes = all.written_bytes() + "{'boots':[],'stretches':[]}".len();
            assert!(
                (json.len()..json.len() + json.len() / 20 + 4).contains(&bytes),
                "{bytes} for {}",
                json.len()
            );
        }
    }

    #[test]
    fn time_is_taken_once_by_target_and_boot() {
        let hour = TimeRanges::new(vec![time_range("a", 0, 60), time_range("a", 70, 90)]);
        let window = |boot, from, to| TimeRanges::new(vec![time_range(boot, from, to)]);
        let late = window("a", 90, 99);
        let (inside, outside, across, other) =
            (window("a", 10, 20), window("a", 60, 70), window("a", 50, 65), window("b", 10, 20));
        let mut taken = CountedTime::default();
        assert_eq!(taken.take("web", &hour, 0), Overlap::None);
        assert_eq!(taken.take("web", &inside, 0), Overlap::Full);
        assert_eq!(taken.take("web", &across, 0), Overlap::Partial);
        assert_eq!(taken.take("web", &other, 0), Overlap::None);
        assert_eq!(taken.take("db", &inside, 0), Overlap::None);
        assert_eq!(taken.take("web", &outside, 0), Overlap::None);
        assert_eq!(taken.take("web", &hour, 1), Overlap::Full);
        assert_eq!(taken.take("web", &late, 2), Overlap::None);
        assert_eq!(taken.takers("web", &inside).collect::<Vec<_>>(), [0]);
        assert_eq!(taken.takers("web", &window("a", 95, 96)).collect::<Vec<_>>(), [2]);
        assert_eq!(taken.takers("db", &window("a", 95, 96)).count(), 0);
    }

    proptest! {
        /// Against a set of single moments.
        #[test]
        fn nothing_is_taken_twice(cuts in prop::collection::vec((0..3_u64, 0..40_u64, 1..20_u64), 1..20)) {
            let all: Vec<(String, TimeRanges)> = cuts.iter().map(|(boot, from, length)| {
                let boot = boot.to_string();
                (boot.clone(), TimeRanges::new(vec![time_range(&boot, *from, from + length)]))
            }).collect();
            let mut taken = CountedTime::default();
            let mut moments = std::collections::BTreeSet::new();
            for (boot, time_ranges) in &all {
                let of = time_ranges.iter().next().unwrap();
                let own: Vec<_> = (of.from_ns..of.to_ns).map(|at| (boot, at)).collect();
                let known = own.iter().filter(|moment| moments.contains(*moment)).count();
                match taken.take("web", time_ranges, 0) {
                    Overlap::None => { prop_assert_eq!(known, 0); moments.extend(own); }
                    Overlap::Full => prop_assert_eq!(known, own.len()),
                    Overlap::Partial => prop_assert!(known > 0),
                }
            }
        }
    }
}
