//! Which code lay where, and when.

use std::collections::BTreeMap;
use std::ops::Range;

/// Codes that one address is remembered to have held; the oldest are forgotten.
const MOST_VERSIONS: usize = 8;
/// Pieces of address space that are told apart.
const MOST_SEGMENTS: usize = 1 << 19;
/// Codes lie beside each other and replace a few others each: whoever covers thousands again and again makes work.
const SEGMENTS_PER_CODE: usize = 64;
/// Work beyond that, once.
const SPARE_SEGMENTS: usize = 1 << 20;

/// Codes by address and time. A code covers all that lies there from its time on, until the next one does.
#[derive(Debug, Default)]
pub(super) struct CodeSpace {
    /// Without overlap, by their first address.
    segments: BTreeMap<u64, Segment>,
    entered: usize,
    touched: usize,
    /// Of all segments together.
    versions: usize,
}

#[derive(Clone, Debug)]
struct Segment {
    end: u64,
    /// Oldest first.
    versions: Vec<Version>,
}

#[derive(Clone, Copy, Debug)]
struct Version {
    since_ns: u64,
    number: u32,
}

impl CodeSpace {
    /// Enters the code `number`, which lies in `range` from `since_ns` on. It says whether there was room.
    pub(super) fn enter(&mut self, range: Range<u64>, since_ns: u64, number: u32) -> bool {
        let spare = self.entered * SEGMENTS_PER_CODE + SPARE_SEGMENTS;
        if range.is_empty() || self.segments.len() >= MOST_SEGMENTS || self.touched > spare {
            return false;
        }
        self.entered += 1;
        self.split_at(range.start);
        self.split_at(range.end);
        let version = Version { since_ns, number };
        let mut gaps = Vec::new();
        let mut at = range.start;
        for (&start, segment) in self.segments.range_mut(range.clone()) {
            if at < start {
                gaps.push((at, Segment { end: start, versions: vec![version] }));
            }
            self.versions += usize::from(segment.enter(version));
            at = segment.end;
            self.touched += 1;
        }
        if at < range.end {
            gaps.push((at, Segment { end: range.end, versions: vec![version] }));
        }
        self.versions += gaps.len();
        self.segments.extend(gaps);
        true
    }

    /// What it takes of memory.
    pub(super) fn held_bytes(&self) -> u64 {
        (self.segments.len() * size_of::<(u64, Segment)>() + self.versions * size_of::<Version>()) as u64
    }

    /// Makes an address the first one of the segment that holds it.
    fn split_at(&mut self, address: u64) {
        let Some((_, segment)) = self.segments.range_mut(..address).next_back() else { return };
        if address < segment.end {
            let upper = segment.clone();
            segment.end = address;
            self.versions += upper.versions.len();
            self.segments.insert(address, upper);
        }
    }

    /// The code at an address at a time; before the first one had been told of, that one.
    pub(super) fn at(&self, address: u64, time_ns: u64) -> Option<u32> {
        let versions = self.versions(address)?;
        let later = versions.partition_point(|version| version.since_ns <= time_ns);
        versions.get(later.saturating_sub(1)).map(|version| version.number)
    }

    /// The code that lay at an address for most of a span of time.
    pub(super) fn during(&self, address: u64, first_ns: u64, last_ns: u64) -> Option<u32> {
        let versions = self.versions(address)?;
        let ends = versions.iter().skip(1).map(|version| version.since_ns).chain([u64::MAX]);
        let shared = |(index, (version, end)): (usize, (&Version, u64))| {
            let since = if index == 0 { 0 } else { version.since_ns };
            let shared_ns = end.min(last_ns.saturating_add(1)).saturating_sub(since.max(first_ns));
            (shared_ns, version.number)
        };
        versions.iter().zip(ends).enumerate().map(shared).max_by_key(|&(ns, _)| ns).map(|(_, number)| number)
    }

    fn versions(&self, address: u64) -> Option<&[Version]> {
        let (_, segment) = self.segments.range(..=address).next_back()?;
        (address < segment.end).then_some(&segment.versions)
    }
}

impl Segment {
    /// Whether there is one more than before.
    fn enter(&mut self, version: Version) -> bool {
        let at = self.versions.partition_point(|other| other.since_ns <= version.since_ns);
        self.versions.insert(at, version);
        let is_full = self.versions.len() > MOST_VERSIONS;
        if is_full {
            self.versions.remove(0);
        }
        !is_full
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_address_that_is_used_again_belongs_to_the_code_of_its_time() {
        let mut space = CodeSpace::default();
        assert!(space.enter(0x1000..0x1100, 10, 1) && space.enter(0x1080..0x1180, 20, 2));
        assert_eq!(
            (space.at(0x10ff, 19), space.at(0x10ff, 20), space.at(0x10ff, 0)),
            (Some(1), Some(2), Some(1))
        );
        assert_eq!(
            (space.at(0x107f, 99), space.at(0x1100, 99), space.at(0x1180, 99)),
            (Some(1), Some(2), None)
        );
        assert_eq!((space.during(0x10ff, 5, 16), space.during(0x10ff, 18, 30)), (Some(1), Some(2)));
    }

    #[test]
    fn work_that_no_compiler_makes_is_refused() {
        let mut space = CodeSpace::default();
        assert!((0..1 << 12).all(|i| space.enter(i * 2..i * 2 + 1, 0, 0)));
        let entered = (0..1 << 20).take_while(|&time| space.enter(0..1 << 13, time, 1)).count();
        assert!((10..10_000).contains(&entered), "{entered}");
    }

    proptest! {
        #[test]
        fn each_address_at_each_time_has_the_code_entered_last(
            codes in prop::collection::vec((0u64..30, 0u64..10, 0u64..MOST_VERSIONS as u64), 0..MOST_VERSIONS),
        ) {
            let mut space = CodeSpace::default();
            for (&(start, len, since), number) in codes.iter().zip(0..) {
                prop_assert_eq!(space.enter(start..start + len, since, number), len > 0);
            }
            let held: usize = space.segments.values().map(|segment| segment.versions.len()).sum();
            prop_assert_eq!(space.versions, held);
            for address in 0..40 {
                let here: Vec<(u64, u32)> = codes.iter().zip(0..)
                    .filter(|((start, len, _), _)| (*start..start + len).contains(&address))
                    .map(|(&(_, _, since), number)| (since, number))
                    .collect();
                for time in 0..MOST_VERSIONS as u64 {
                    let known = here.iter().filter(|(since, _)| *since <= time).max();
                    let first = here.iter().min_by_key(|(since, _)| *since);
                    prop_assert_eq!(space.at(address, time), known.or(first).map(|&(_, number)| number));
                    prop_assert_eq!(space.during(address, time, time), space.at(address, time));
                }
            }
        }
    }
}
