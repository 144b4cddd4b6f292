//! A profile in parts, for a backend that takes no request as long as all of it.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// No part is halved that has less than this fraction of the stacks: a backend that refuses it takes next to nothing.
const FINEST: usize = 64;

/// What of a profile was not acknowledged yet.
///
/// It outlives an attempt that failed midway, and the daemon, so that the next one sends nothing twice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartsLeft {
    /// Ranges of its stacks, the next one last.
    ranges: Vec<Range<usize>>,
    /// Stacks of all of it.
    stacks: usize,
    /// Parts that were acknowledged, and their bytes.
    acknowledged: usize,
    bytes: usize,
}

impl PartsLeft {
    /// All of a profile of so many stacks, as one.
    pub fn all_of(stacks: usize) -> Self {
        Self { ranges: std::iter::once(0..stacks).collect(), stacks, acknowledged: 0, bytes: 0 }
    }

    /// Whether this can be of a profile of so many stacks; a cursor may be damaged.
    pub fn fits(&self, stacks: usize) -> bool {
        let fits = |range: &Range<usize>| range.start <= range.end && range.end <= stacks;
        self.stacks == stacks && self.ranges.iter().all(fits)
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// How many parts were acknowledged; nothing is left to be sent then, or some.
    pub fn acknowledged(&self) -> usize {
        self.acknowledged
    }

    /// Bytes that were acknowledged.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The part to be sent next.
    pub fn next(&self) -> Option<Range<usize>> {
        self.ranges.last().cloned()
    }

    /// Whether this is the whole profile.
    pub fn is_whole(&self, part: &Range<usize>) -> bool {
        part.len() == self.stacks
    }

    /// The next one was acknowledged, in so many bytes.
    pub fn acknowledge(&mut self, bytes: usize) {
        self.ranges.pop();
        self.acknowledged += 1;
        self.bytes += bytes;
    }

    /// Has the halves of the next one sent instead of it. Says whether it can be halved.
    pub fn halve(&mut self) -> bool {
        let Some(part) = self.ranges.last_mut() else { return false };
        if part.len() < 2 || part.len() < self.stacks.div_ceil(FINEST) {
            return false;
        }
        let middle = part.start + part.len() / 2;
        let first = part.start..middle;
        part.start = middle;
        self.ranges.push(first);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends to a backend that takes parts of so many stacks at most; those that it took, and how often it was asked.
    fn taken(mut left: PartsLeft, most: usize) -> (Vec<Range<usize>>, usize) {
        let (mut taken, mut asked) = (Vec::new(), 0);
        while let Some(part) = left.next() {
            asked += 1;
            if part.len() <= most {
                left.acknowledge(1);
                taken.push(part);
            } else if !left.halve() {
                break;
            }
        }
        assert_eq!((left.acknowledged(), left.bytes()), (taken.len(), taken.len()));
        (taken, asked)
    }

    #[test]
    fn parts_are_as_few_as_the_backend_takes_and_miss_nothing() {
        for (stacks, most, parts) in
            [(0, 0, 1), (1, 1, 1), (1000, 1000, 1), (1000, 300, 4), (64, 1, 64), (7, 3, 3)]
        {
            let (taken, _) = taken(PartsLeft::all_of(stacks), most);
            assert_eq!(taken.len(), parts, "{stacks} in parts of {most}");
            let all: Vec<usize> = taken.into_iter().flatten().collect();
            assert!(all.into_iter().eq(0..stacks), "{stacks} in parts of {most}");
        }
    }

    #[test]
    fn a_backend_that_takes_nothing_is_not_asked_for_ever() {
        for stacks in [1, 2, 1000, 100_000] {
            let (taken, asked) = taken(PartsLeft::all_of(stacks), 0);
            assert!(taken.is_empty() && asked <= 9, "{stacks}: {asked}");
        }
    }
}
