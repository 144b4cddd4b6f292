//! Whether a target's budget is used up without a single sample, by context switches, records and own CPU time.
//!
//! It is judged over half a minute. The rate is at its floor then and lowering it would not help; the target
//! stays attached, because its few samples are all that is known about it.

use super::meter::Spend;

/// Time over which it is judged (ns of wall time): a start, or many new programs at once, is over by then.
const JUDGED_NS: f64 = 30e9;
/// Shares of the budget: above the first the overhead is heavy, until it falls below the second.
const HEAVY: f64 = 0.9;
const LIGHT: f64 = 0.7;

/// Compares overhead that doesn't depend on samples with the budget, over half a minute.
#[derive(Clone, Debug, Default)]
pub(super) struct FixedOverhead {
    wall_ns: f64,
    granted_ns: f64,
    fixed_ns: f64,
    is_heavy: bool,
}

impl FixedOverhead {
    /// Takes in `wall_ns` in which the budget was `granted_ns`.
    pub(super) fn observe(&mut self, wall_ns: f64, granted_ns: f64, spend: &Spend) {
        self.wall_ns += wall_ns;
        self.granted_ns += granted_ns;
        self.fixed_ns += spend.fixed_ns();
        if self.wall_ns < JUDGED_NS {
            return;
        }
        let limit = if self.is_heavy { LIGHT } else { HEAVY };
        *self = Self { is_heavy: self.fixed_ns > limit * self.granted_ns, ..Self::default() };
    }

    /// Whether the budget leaves next to nothing for samples.
    pub(super) fn is_heavy(&self) -> bool {
        self.is_heavy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether it is heavy after each of so many seconds, of a budget of 1 ms a second.
    fn seconds(fixed_overhead: &mut FixedOverhead, count: usize, fixed_ns: f64) -> Vec<bool> {
        let spend = Spend { switches_ns: 0.5 * fixed_ns, self_fixed_ns: 0.5 * fixed_ns, ..Spend::default() };
        let mut second = || {
            fixed_overhead.observe(1e9, 1e6, &spend);
            fixed_overhead.is_heavy()
        };
        (0..count).map(|_| second()).collect()
    }

    #[test]
    fn what_lasts_is_heavy_and_what_passes_is_not() {
        let mut fixed_overhead = FixedOverhead::default();
        assert!(!seconds(&mut fixed_overhead, 10, 2e6).contains(&true), "a start");
        assert!(!seconds(&mut fixed_overhead, 50, 0.1e6).contains(&true));
        assert!(seconds(&mut fixed_overhead, 30, 0.95e6)[29]);
        assert!(seconds(&mut fixed_overhead, 60, 0.8e6)[59], "between both");
        assert!(!seconds(&mut fixed_overhead, 30, 0.6e6)[29]);
    }

    #[test]
    fn samples_are_no_fixed_overhead() {
        let mut fixed_overhead = FixedOverhead::default();
        let spend = Spend { base_ns: 2e6, self_ns: 2e6, foreign_ns: 1e6, ..Spend::default() };
        (0..100).for_each(|_| fixed_overhead.observe(1e9, 1e6, &spend));
        assert!(!fixed_overhead.is_heavy());
    }
}
