//! Counters of each target by name since the daemon began. A target that is created again (detached and requested
//! again, or after a reload) continues with the counts of the earlier one.

use std::collections::BTreeMap;

use crate::service::state::TargetStatus;

/// Most names that are remembered. Beyond it, the name that has been gone longest is forgotten, and would begin at zero
/// again.
const MOST_NAMES: usize = 4096;

/// Counters of a target: CPU time and overhead (s); samples, lost, truncated, unnamed and windows.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    seconds: [f64; 2],
    numbers: [u64; 5],
}

/// A name.
#[derive(Debug, Default)]
struct Account {
    /// Sum of the earlier targets of this name.
    before: Counts,
    last: Counts,
    /// The last round in which a target had this name.
    round: u64,
}

/// The counters of all names.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    of: BTreeMap<String, Account>,
    round: u64,
}

impl Counts {
    fn of(target: &TargetStatus) -> Self {
        let TargetStatus { cpu_s, overhead_s, samples, lost, truncated, unnamed, windows, .. } = *target;
        Self { seconds: [cpu_s, overhead_s], numbers: [samples, lost, truncated, unnamed, windows] }
    }

    fn show(self, target: &mut TargetStatus) {
        [target.cpu_s, target.overhead_s] = self.seconds;
        [target.samples, target.lost, target.truncated, target.unnamed, target.windows] = self.numbers;
    }

    fn plus(mut self, other: &Self) -> Self {
        self.seconds.iter_mut().zip(other.seconds).for_each(|(sum, more)| *sum += more);
        self.numbers.iter_mut().zip(other.numbers).for_each(|(sum, more)| *sum = sum.saturating_add(more));
        self
    }

    /// Whether a counter is lower than before: then it belongs to another target.
    fn is_below(&self, other: &Self) -> bool {
        let seconds = self.seconds.iter().zip(other.seconds).any(|(now, before)| *now < before);
        seconds || self.numbers.iter().zip(other.numbers).any(|(now, before)| *now < before)
    }
}

impl Ledger {
    /// Adds the counts of earlier targets of the same name to the counters of all present ones.
    pub(super) fn settle<'t>(&mut self, targets: impl Iterator<Item = &'t mut TargetStatus>) {
        self.round += 1;
        for target in targets {
            let (counts, account) = (Counts::of(target), self.of.entry(target.name.clone()).or_default());
            if account.round + 1 != self.round || counts.is_below(&account.last) {
                account.before = account.before.plus(&account.last);
            }
            (account.last, account.round) = (counts, self.round);
            account.before.plus(&counts).show(target);
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
        TargetStatus { name: name.to_owned(), samples, cpu_s, ..TargetStatus::default() }
    }

    fn settled(ledger: &mut Ledger, mut target: TargetStatus) -> (u64, f64) {
        ledger.settle(std::iter::once(&mut target));
        (target.samples, target.cpu_s)
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
    fn names_are_remembered_within_a_bound_and_none_that_is_there_is_forgotten() {
        let mut ledger = Ledger::default();
        for at in 0..2 * MOST_NAMES {
            let mut both = [target("web", at as u64, 0.0), target(&format!("{at}"), 1, 0.0)];
            ledger.settle(both.iter_mut());
            assert_eq!(both[0].samples, at as u64);
        }
        assert_eq!(ledger.of.len(), MOST_NAMES);
    }
}
