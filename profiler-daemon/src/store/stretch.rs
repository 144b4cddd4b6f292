//! Which time a file counts, by a clock that never jumps.
//!
//! The wall clock can be set back, so that a minute comes twice. What a file holds is therefore told by the monotonic clock
//! of the boot it was sampled in: the same stretch of it is never counted twice, whatever the wall clock said.

use std::collections::BTreeMap;

use profiler_core::merge::Range;
use serde::{Deserialize, Serialize};

/// How far wall clock and monotonic clock may drift apart within one stretch (ns).
const DRIFT_NS: u64 = 1_000_000_000;

/// A stretch of one boot's time; its end is outside.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stretch {
    /// Identity of the boot, as the kernel tells it.
    pub(crate) boot: String,
    /// Its start (ns of the monotonic clock).
    pub(crate) from_ns: u64,
    /// Its end.
    pub(crate) to_ns: u64,
    /// The wall clock at its start (ns since the Unix epoch).
    pub(crate) begin_unix_ns: u64,
}

impl Stretch {
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

/// Stretches in order, none of which goes on in another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub(crate) struct Stretches(Vec<Stretch>);

impl Stretches {
    /// These; overlaps are not looked for.
    pub(crate) fn new(mut stretches: Vec<Stretch>) -> Self {
        stretches.sort();
        stretches.dedup_by(|next, last| {
            let joined = last.goes_on(next);
            if joined {
                last.to_ns = next.to_ns;
            }
            joined
        });
        Self(stretches)
    }

    /// All of them together.
    pub(crate) fn union<'s>(all: impl Iterator<Item = &'s Self>) -> Self {
        Self::new(all.flat_map(|stretches| stretches.0.iter().cloned()).collect())
    }

    /// In order of boot and time.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Stretch> {
        self.0.iter()
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Time in all of them (ns).
    pub(crate) fn length_ns(&self) -> u64 {
        self.0.iter().fold(0, |sum, stretch| sum.saturating_add(stretch.to_ns - stretch.from_ns))
    }
}

/// What stretches are in a file: each boot once.
#[derive(Clone, Serialize, Deserialize)]
struct Written {
    boots: Vec<String>,
    /// Index of the boot, start, end, wall clock at the start.
    stretches: Vec<(usize, u64, u64, u64)>,
}

impl From<Stretches> for Written {
    fn from(stretches: Stretches) -> Self {
        let mut boots: Vec<String> = Vec::new();
        let written = stretches.0.into_iter().map(|stretch| {
            let at = boots.iter().position(|boot| *boot == stretch.boot).unwrap_or_else(|| {
                boots.push(stretch.boot);
                boots.len() - 1
            });
            (at, stretch.from_ns, stretch.to_ns, stretch.begin_unix_ns)
        });
        let stretches = written.collect();
        Self { boots, stretches }
    }
}

impl TryFrom<Written> for Stretches {
    type Error = &'static str;

    fn try_from(written: Written) -> Result<Self, Self::Error> {
        let stretch = |(boot, from_ns, to_ns, begin_unix_ns): (usize, u64, u64, u64)| {
            let boot = written.boots.get(boot).cloned().filter(|_| from_ns < to_ns);
            boot.map(|boot| Stretch { boot, from_ns, to_ns, begin_unix_ns })
        };
        let stretches: Option<Vec<_>> = written.stretches.iter().copied().map(stretch).collect();
        match stretches {
            Some(stretches) if !stretches.is_empty() => Ok(Self::new(stretches)),
            _ => Err("no stretch of time"),
        }
    }
}

/// Time that is counted already, by target.
#[derive(Debug, Default)]
pub(crate) struct Taken<'e> {
    /// End by target, boot and start; disjoint.
    taken: BTreeMap<(&'e str, &'e str, u64), u64>,
}

/// How stretches stand to those that are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// They share nothing.
    Free,
    /// All of them are taken.
    Held,
    /// Part of them is taken.
    Overlapping,
}

impl<'e> Taken<'e> {
    /// Takes the stretches if they are free.
    pub(crate) fn take(&mut self, target: &'e str, stretches: &'e Stretches) -> Standing {
        let standing = self.standing(target, stretches);
        if standing == Standing::Free {
            for stretch in stretches.iter() {
                self.taken.insert((target, &stretch.boot, stretch.from_ns), stretch.to_ns);
            }
        }
        standing
    }

    fn standing(&self, target: &str, stretches: &Stretches) -> Standing {
        let (mut held, mut free) = (true, true);
        for stretch in stretches.iter() {
            let boot = stretch.boot.as_str();
            // The last one that begins before this one ends.
            let before = self.taken.range(..(target, boot, stretch.to_ns)).next_back();
            let near = before.filter(|((of, in_boot, _), _)| (*of, *in_boot) == (target, boot));
            let overlaps = near.is_some_and(|(_, to_ns)| *to_ns > stretch.from_ns);
            held &= near.is_some_and(|((_, _, from_ns), to_ns)| {
                *from_ns <= stretch.from_ns && *to_ns >= stretch.to_ns
            });
            free &= !overlaps;
        }
        match (held, free) {
            (_, true) => Standing::Free,
            (true, false) => Standing::Held,
            (false, false) => Standing::Overlapping,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stretch(boot: &str, from_ns: u64, to_ns: u64) -> Stretch {
        Stretch { boot: boot.to_owned(), from_ns, to_ns, begin_unix_ns: from_ns + 1_000_000 }
    }

    #[test]
    fn what_goes_on_is_one_stretch_unless_the_clock_jumped() {
        let mut jumped = stretch("a", 30, 40);
        jumped.begin_unix_ns = 7_200_000_000_000;
        let all =
            Stretches::new(vec![jumped, stretch("a", 20, 30), stretch("a", 10, 20), stretch("b", 40, 50)]);
        let ends: Vec<(u64, u64)> = all.iter().map(|stretch| (stretch.from_ns, stretch.to_ns)).collect();
        assert_eq!(ends, [(10, 30), (30, 40), (40, 50)]);
        let json = serde_json::to_string(&all).unwrap();
        assert_eq!(serde_json::from_str::<Stretches>(&json).unwrap(), all);
        for bad in
            ["{}", r#"{"boots":[],"stretches":[[0,1,2,3]]}"#, r#"{"boots":["a"],"stretches":[[0,2,2,3]]}"#]
        {
            assert!(serde_json::from_str::<Stretches>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn time_is_taken_once_by_target_and_boot() {
        let hour = Stretches::new(vec![stretch("a", 0, 60), stretch("a", 70, 90)]);
        let window = |boot, from, to| Stretches::new(vec![stretch(boot, from, to)]);
        let (inside, outside, across, other) =
            (window("a", 10, 20), window("a", 60, 70), window("a", 50, 65), window("b", 10, 20));
        let mut taken = Taken::default();
        assert_eq!(taken.take("web", &hour), Standing::Free);
        assert_eq!(taken.take("web", &inside), Standing::Held);
        assert_eq!(taken.take("web", &across), Standing::Overlapping);
        assert_eq!(taken.take("web", &other), Standing::Free);
        assert_eq!(taken.take("db", &inside), Standing::Free);
        assert_eq!(taken.take("web", &outside), Standing::Free);
        assert_eq!(taken.take("web", &hour), Standing::Held);
    }

    proptest! {
        /// Against a set of single moments.
        #[test]
        fn nothing_is_taken_twice(cuts in prop::collection::vec((0..3_u64, 0..40_u64, 1..20_u64), 1..20)) {
            let all: Vec<(String, Stretches)> = cuts.iter().map(|(boot, from, length)| {
                let boot = boot.to_string();
                (boot.clone(), Stretches::new(vec![stretch(&boot, *from, from + length)]))
            }).collect();
            let mut taken = Taken::default();
            let mut moments = std::collections::BTreeSet::new();
            for (boot, stretches) in &all {
                let of = stretches.iter().next().unwrap();
                let own: Vec<_> = (of.from_ns..of.to_ns).map(|at| (boot, at)).collect();
                let known = own.iter().filter(|moment| moments.contains(*moment)).count();
                match taken.take("web", stretches) {
                    Standing::Free => { prop_assert_eq!(known, 0); moments.extend(own); }
                    Standing::Held => prop_assert_eq!(known, own.len()),
                    Standing::Overlapping => prop_assert!(known > 0),
                }
            }
        }
    }
}
