//! Counters of each target by name since the daemon began. A target that is created again (detached and requested
//! again, or after a reload) continues with the counts of the earlier one.

use std::collections::BTreeMap;

use crate::service::state::{TargetStatus, TargetTotals};

/// Most names that are remembered. Beyond it, the name that has been gone longest is forgotten, and would begin at zero
/// again.
const MOST_NAMES: usize = 4096;

/// A name.
#[derive(Debug, Default)]
struct NameAccount {
    /// Sum of the earlier targets of this name.
    before: TargetTotals,
    last: TargetTotals,
    /// The last round in which a target had this name.
    round: u64,
}

/// The counters of all names.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    of: BTreeMap<String, NameAccount>,
    round: u64,
}

impl TargetTotals {
    fn plus(&self, other: &Self) -> Self {
        Self {
            cpu_s: self.cpu_s + other.cpu_s,
            cpu_s_low: self.cpu_s_low + other.cpu_s_low,
            cpu_s_high: self.cpu_s_high + other.cpu_s_high,
            overhead_s: self.overhead_s + other.overhead_s,
            samples: self.samples.saturating_add(other.samples),
            lost: self.lost.saturating_add(other.lost),
            truncated: self.truncated.saturating_add(other.truncated),
            unnamed: self.unnamed.saturating_add(other.unnamed),
            windows: self.windows.saturating_add(other.windows),
        }
    }

    /// Whether a counter of its sampler is lower than before: then it belongs to another target. `unnamed` is counted by the window
    /// writer, which another folder of the store replaces.
    fn is_below(&self, before: &Self) -> bool {
        self.cpu_s < before.cpu_s
            || self.overhead_s < before.overhead_s
            || self.samples < before.samples
            || self.lost < before.lost
            || self.truncated < before.truncated
            || self.windows < before.windows
    }
}

impl Ledger {
    /// Adds the counts of earlier targets of the same name to the counters of all present ones.
    pub(super) fn settle<'t>(&mut self, targets: impl Iterator<Item = &'t mut TargetStatus>) {
        self.round += 1;
        for target in targets {
            let (totals, account) = (target.totals, self.of.entry(target.name.clone()).or_default());
            if account.round + 1 != self.round || totals.is_below(&account.last) {
                account.before = account.before.plus(&TargetTotals { unnamed: 0, ..account.last });
            }
            if totals.unnamed < account.last.unnamed {
                account.before.unnamed = account.before.unnamed.saturating_add(account.last.unnamed);
            }
            (account.last, account.round) = (totals, self.round);
            target.totals = account.before.plus(&totals);
        }
        while self.of.len() > MOST_NAMES {
            let gone = self.of.iter().filter(|(_, account)| account.round != self.round);
            let Some(longest) = gone.min_by_key(|(_, account)| account.round).map(|(name, _)| name.clone())
            else {
                return;
            };
            self.of.remove(&longest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(name: &str, samples: u64, cpu_s: f64) -> TargetStatus {
        let totals = TargetTotals { samples, cpu_s, ..TargetTotals::default() };
        TargetStatus { name: name.to_owned(), totals, ..TargetStatus::default() }
    }

    fn settled(ledger: &mut Ledger, mut target: TargetStatus) -> (u64, f64) {
        ledger.settle(std::iter::once(&mut target));
        (target.totals.samples, target.totals.cpu_s)
    }

    #[test]
    fn a_target_that_is_made_again_counts_on() {
        let mut ledger = Ledger::default();
        assert_eq!(settled(&mut ledger, target("web", 5, 1.0)), (5, 1.0));
        assert_eq!(settled(&mut ledger, target("web", 7, 1.5)), (7, 1.5));
        // Detached, and attached to again.
        ledger.settle(std::iter::empty());
        assert_eq!(settled(&mut ledger, target("web", 9, 2.0)), (16, 3.5));
        assert_eq!(settled(&mut ledger, target("web", 10, 2.5)), (17, 4.0));
        // Replaced between two looks, as by other settings.
        assert_eq!(settled(&mut ledger, target("web", 0, 0.0)), (17, 4.0));
        assert_eq!(settled(&mut ledger, target("db", 3, 1.0)), (3, 1.0));
    }

    #[test]
    fn another_window_writer_begins_to_count_anew_and_its_targets_do_not() {
        let mut ledger = Ledger::default();
        let mut settled = |samples, unnamed| {
            let mut target = target("web", samples, 1.0);
            target.totals.unnamed = unnamed;
            ledger.settle(std::iter::once(&mut target));
            (target.totals.samples, target.totals.unnamed)
        };
        assert_eq!(settled(10, 4), (10, 4));
        assert_eq!(settled(12, 0), (12, 4), "the store has moved");
        assert_eq!(settled(20, 3), (20, 7));
        // Another target with this name: the writer counts its samples from zero.
        assert_eq!(settled(1, 0), (21, 7));
        assert_eq!(settled(2, 1), (22, 8));
    }

    #[test]
    fn names_are_remembered_within_a_bound_and_none_that_is_there_is_forgotten() {
        let mut ledger = Ledger::default();
        for at in 0..2 * MOST_NAMES {
            let mut both = [target("web", at as u64, 0.0), target(&format!("{at}"), 1, 0.0)];
            ledger.settle(both.iter_mut());
            assert_eq!(both[0].totals.samples, at as u64);
        }
        assert_eq!(ledger.of.len(), MOST_NAMES);
    }
}
