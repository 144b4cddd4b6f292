//! Which time a file counts, by a clock that never jumps.
//!
//! The wall clock can be set back, so that a minute comes twice. What a file holds is therefore told by the monotonic clock
//! of the boot it was sampled in: the same stretch of it is never counted twice, whatever the wall clock said.

use std::collections::{BTreeMap, BTreeSet};

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
pub struct Stretches(Vec<Stretch>);

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

    /// Whether they share any time with `others`.
    pub(crate) fn overlap(&self, others: &Self) -> bool {
        let shares = |stretch: &Stretch| {
            let begins_before = |other: &Stretch| {
                (other.boot.as_str(), other.from_ns) < (stretch.boot.as_str(), stretch.to_ns)
            };
            let before = others.0.partition_point(begins_before);
            let last = before.checked_sub(1).map(|at| &others.0[at]);
            last.is_some_and(|last| last.boot == stretch.boot && last.to_ns > stretch.from_ns)
        };
        self.0.iter().any(shares)
    }

    /// Forgets those that are not `kept`; whether any is left.
    pub(crate) fn retain(&mut self, kept: impl FnMut(&Stretch) -> bool) -> bool {
        self.0.retain(kept);
        !self.0.is_empty()
    }

    /// What they take in a header (bytes).
    pub(crate) fn written_bytes(&self) -> usize {
        let digits = |number: u64| number.checked_ilog10().unwrap_or_default() as usize + 1;
        let boots: BTreeSet<&str> = self.0.iter().map(|stretch| stretch.boot.as_str()).collect();
        let of_boots: usize = boots.iter().map(|boot| boot.len() + "'',".len()).sum();
        let index = digits(boots.len() as u64);
        let written = |stretch: &Stretch| {
            let Stretch { from_ns, to_ns, begin_unix_ns, .. } = *stretch;
            index + digits(from_ns) + digits(to_ns) + digits(begin_unix_ns) + "[,,,],".len()
        };
        of_boots + self.0.iter().map(written).sum::<usize>()
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
    /// End, and who took it, by target, boot and start; disjoint.
    taken: BTreeMap<(&'e str, &'e str, u64), (u64, usize)>,
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
    /// Takes the stretches for `by` if they are free.
    pub(crate) fn take(&mut self, target: &'e str, stretches: &'e Stretches, by: usize) -> Standing {
        let standing = self.standing(target, stretches);
        if standing == Standing::Free {
            for stretch in stretches.iter() {
                self.taken.insert((target, &stretch.boot, stretch.from_ns), (stretch.to_ns, by));
            }
        }
        standing
    }

    /// Who took what these share with others.
    pub(crate) fn takers<'s>(
        &'s self,
        target: &'s str,
        stretches: &'s Stretches,
    ) -> impl Iterator<Item = usize> + 's {
        let taker = move |stretch: &Stretch| {
            self.near(target, stretch).filter(|(_, to_ns, _)| *to_ns > stretch.from_ns).map(|(.., by)| by)
        };
        stretches.iter().filter_map(taker)
    }

    /// Start, end and taker of the last one that begins before this one ends.
    fn near(&self, target: &str, stretch: &Stretch) -> Option<(u64, u64, usize)> {
        let boot = stretch.boot.as_str();
        let before = self.taken.range(..(target, boot, stretch.to_ns)).next_back();
        let near = before.filter(|((of, in_boot, _), _)| (*of, *in_boot) == (target, boot));
        near.map(|((_, _, from_ns), (to_ns, by))| (*from_ns, *to_ns, *by))
    }

    fn standing(&self, target: &str, stretches: &Stretches) -> Standing {
        let (mut held, mut free) = (true, true);
        for stretch in stretches.iter() {
            let near = self.near(target, stretch);
            held &=
                near.is_some_and(|(from_ns, to_ns, _)| from_ns <= stretch.from_ns && to_ns >= stretch.to_ns);
            free &= near.is_none_or(|(_, to_ns, _)| to_ns <= stretch.from_ns);
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
    fn stretches_overlap_by_boot_and_time() {
        let some = Stretches::new(vec![stretch("a", 10, 20), stretch("a", 30, 40), stretch("b", 10, 20)]);
        let overlaps =
            |boot, from_ns, to_ns| Stretches::new(vec![stretch(boot, from_ns, to_ns)]).overlap(&some);
        assert!(
            overlaps("a", 19, 21) && overlaps("a", 5, 50) && overlaps("b", 11, 12) && overlaps("a", 35, 36)
        );
        assert!(
            !overlaps("a", 20, 30)
                && !overlaps("a", 40, 50)
                && !overlaps("b", 30, 40)
                && !overlaps("c", 10, 20)
        );
        assert!(!overlaps("a", 0, 10) && !some.overlap(&Stretches::default()));
    }

    #[test]
    fn what_they_take_in_a_header_is_known() {
        let boot = |at: u64| format!("{at:08x}-0000-4000-8000-000000000001");
        let many = |count: u64| {
            Stretches::new(
                (0..count).map(|at| stretch(&boot(at % 7), at * 70_000, at * 70_000 + 9)).collect(),
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
        let hour = Stretches::new(vec![stretch("a", 0, 60), stretch("a", 70, 90)]);
        let window = |boot, from, to| Stretches::new(vec![stretch(boot, from, to)]);
        let late = window("a", 90, 99);
        let (inside, outside, across, other) =
            (window("a", 10, 20), window("a", 60, 70), window("a", 50, 65), window("b", 10, 20));
        let mut taken = Taken::default();
        assert_eq!(taken.take("web", &hour, 0), Standing::Free);
        assert_eq!(taken.take("web", &inside, 0), Standing::Held);
        assert_eq!(taken.take("web", &across, 0), Standing::Overlapping);
        assert_eq!(taken.take("web", &other, 0), Standing::Free);
        assert_eq!(taken.take("db", &inside, 0), Standing::Free);
        assert_eq!(taken.take("web", &outside, 0), Standing::Free);
        assert_eq!(taken.take("web", &hour, 1), Standing::Held);
        assert_eq!(taken.take("web", &late, 2), Standing::Free);
        assert_eq!(taken.takers("web", &inside).collect::<Vec<_>>(), [0]);
        assert_eq!(taken.takers("web", &window("a", 95, 96)).collect::<Vec<_>>(), [2]);
        assert_eq!(taken.takers("db", &window("a", 95, 96)).count(), 0);
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
                match taken.take("web", stretches, 0) {
                    Standing::Free => { prop_assert_eq!(known, 0); moments.extend(own); }
                    Standing::Held => prop_assert_eq!(known, own.len()),
                    Standing::Overlapping => prop_assert!(known > 0),
                }
            }
        }
    }
}
