//! One budget: a token bucket for the moment, and the spending of the last ten seconds.

use super::bucket::{TRICKLE, TokenBucket};
use super::budget_grant::Grant;
use super::spending::{Spending, SpendingSpan};

/// While costs are as expected, up to this multiple of the budget is spent; the rest of the bucket is a reserve
/// for a jump in cost.
pub(super) const OPEN: f64 = 1.15;
/// Time over which a start spends what it may spend beforehand (ns): twice the longest step.
const SPREAD_NS: f64 = 0.2e9;
/// A base that has rested for this long since the start may spend nothing beforehand: nothing says that its work goes on (ns).
const RESTED_NS: f64 = 1e9;

/// A bound on spending: `ratio` of a base, which is the target's CPU time for the slowdown and wall time for the
/// profiler's own CPU time.
#[derive(Clone, Debug)]
pub(super) struct Limit {
    ratio: f64,
    bucket: TokenBucket,
    spending: Spending,
    floor_cpus: f64,
    /// What is left of what the start may spend beforehand, and what that was (ns).
    ahead_ns: f64,
    most_ahead_ns: f64,
    /// How long the base has rested since the start (ns).
    rested_ns: f64,
}

impl Limit {
    /// A budget of `ratio`; a base of less than `floor_cpus` counts as that much.
    pub(super) fn new(ratio: f64, floor_cpus: f64) -> Self {
        let bucket = TokenBucket::new(ratio).with_floor(floor_cpus);
        Limit {
            ratio,
            bucket,
            spending: Spending::default(),
            floor_cpus,
            ahead_ns: 0.0,
            most_ahead_ns: 0.0,
            rested_ns: 0.0,
        }
    }

    /// Sets the ratio from now on. Earlier spending counts against the ratio of its time.
    pub(super) fn set_ratio(&mut self, ratio: f64) {
        self.ratio = ratio;
        self.bucket.set_budget(Grant::of_ratio(ratio));
    }

    /// Lets the start spend so much beforehand (ns), so that a short run gets the samples that it needs. Later calls take back what
    /// is no longer needed; what was spent does not come again.
    pub(super) fn allow_ahead(&mut self, most_ns: f64) {
        if self.spending.latest_first().next().is_some() {
            self.ahead_ns = self.ahead_ns.min(most_ns);
        } else {
            (self.ahead_ns, self.most_ahead_ns) = (most_ns, most_ns);
            self.bucket.fill();
        }
    }

    /// Books `wall_ns` in which the base was `base_ns`, and `spent_ns` were spent, by the upper estimate.
    pub(super) fn book(&mut self, wall_ns: f64, base_ns: f64, spent_ns: f64) {
        let granted_ns = self.bucket.accrual_ns(wall_ns, base_ns);
        self.spending.book(SpendingSpan { wall_ns, spent_ns, granted_ns });
        let taken_ns = (spent_ns - granted_ns).clamp(0.0, self.ahead_ns);
        self.rested_ns += (wall_ns - base_ns).max(0.0);
        let most_ns = self.most_ahead_ns * (1.0 - self.rested_ns / RESTED_NS).max(0.0);
        self.ahead_ns = (self.ahead_ns - taken_ns).min(most_ns);
        self.bucket.settle(wall_ns, base_ns, spent_ns - taken_ns);
    }

    /// What the next step of a start may spend above the budget (ratio of the base).
    pub(super) fn spare_ratio(&self) -> f64 {
        self.ahead_ns / SPREAD_NS
    }

    /// The highest rate within the budget (samples per second of the base). `fixed_ratio` is spent at any rate; a
    /// sample usually costs `usual_ns`, or `recent_ns` if all cost as much as the last ones; `base_cpus` is the
    /// expected base.
    pub(super) fn cap_hz(&self, fixed_ratio: f64, base_cpus: f64, usual_ns: f64, recent_ns: f64) -> f64 {
        let least = TRICKLE * self.ratio;
        let most = self.ratio * self.bucket.allowed_part() + self.spare_ratio();
        let expected = (most.min(OPEN * self.ratio + self.spare_ratio()) - fixed_ratio).max(least);
        let base_cpus = base_cpus.max(self.floor_cpus);
        let evenly = self.spending.affordable_cpus_of_bursts(self.ratio * base_cpus) / base_cpus;
        // A start may spend now what the rest of its ten seconds will then lack.
        let at_once =
            self.spending.room_ns((1.0 - TRICKLE) * self.ratio * base_cpus) / (SPREAD_NS * base_cpus);
        let affordable = (evenly + self.spare_ratio()).min(at_once).max(evenly);
        let affordable = (affordable - fixed_ratio).max(least);
        let by_level = (expected / usual_ns).min((most - fixed_ratio).max(least) / recent_ns.max(usual_ns));
        1e9 * by_level.min(affordable / usual_ns)
    }

    /// Whether `spent_ns` in `wall_ns` over a base of `base_ns` are more than the bucket holds.
    pub(super) fn is_overdrawn(&self, wall_ns: f64, base_ns: f64, spent_ns: f64) -> bool {
        let inflow_ns = self.bucket.accrual_ns(wall_ns, base_ns);
        spent_ns - inflow_ns > self.bucket.holds_ns(base_ns / wall_ns.max(1.0)) + self.ahead_ns
    }

    /// Whether `cost_ns` more can be spent without slowing sampling down.
    pub(super) fn has_room_for(&self, cost_ns: f64) -> bool {
        self.bucket.level_ns() - cost_ns >= 0.5 * self.bucket.depth_ns()
    }

    /// What an idle target is granted in `wall_ns` (ns).
    pub(super) fn idle_grant_ns(&self, wall_ns: f64) -> f64 {
        self.bucket.accrual_ns(wall_ns, 0.0)
    }

    /// What the bucket holds (ns); negative in debt.
    pub(super) fn level_ns(&self) -> f64 {
        self.bucket.level_ns()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: f64 = 0.1e9;

    /// Spends at the cap with samples of `cost_ns` that are believed to cost `believed_ns`; says what was spent in each step.
    fn play(limit: &mut Limit, steps: usize, wanted_hz: f64, cost_ns: f64, believed_ns: f64) -> Vec<f64> {
        (0..steps)
            .map(|_| {
                let hz = limit.cap_hz(0.0, 1.0, believed_ns, believed_ns).min(wanted_hz);
                let spent_ns = hz * 0.1 * cost_ns;
                limit.book(STEP, STEP, spent_ns);
                spent_ns / STEP
            })
            .collect()
    }

    fn worst(spent: &[f64], steps: usize) -> f64 {
        spent.windows(steps).map(|window| window.iter().sum::<f64>() / steps as f64).fold(0.0, f64::max)
    }

    #[test]
    fn ten_seconds_hold_and_a_start_may_spend_something_beforehand() {
        for (ahead_ns, first_second) in [(0.0, 0.011), (5e6, 0.016), (10e6, 0.021)] {
            let mut limit = Limit::new(0.01, 0.01);
            limit.allow_ahead(ahead_ns);
            let spent = play(&mut limit, 600, 1e9, 25_000.0, 25_000.0);
            assert!(worst(&spent, 100) <= 0.01 * 1.02, "{ahead_ns}: {}", worst(&spent, 100));
            let first = spent[..10].iter().sum::<f64>() / 10.0;
            assert!((first / first_second - 1.0).abs() < 0.1, "{ahead_ns}: {first}");
        }
    }

    #[test]
    fn only_the_start_spends_beforehand() {
        let burst = |limit: &mut Limit| play(limit, 20, 1e9, 25_000.0, 25_000.0).iter().sum::<f64>() / 20.0;
        let mut limit = Limit::new(0.01, 0.01);
        limit.allow_ahead(5e6);
        let first = burst(&mut limit);
        (0..200).for_each(|_| limit.book(STEP, 0.0, 0.0));
        limit.allow_ahead(5e6);
        let second = burst(&mut limit);
        assert!(first > 0.012 && second <= 0.011, "{first} and {second}");
        // Nor does one that rested at first.
        let mut limit = Limit::new(0.01, 0.01);
        limit.allow_ahead(5e6);
        (0..10).for_each(|_| limit.book(STEP, 0.0, 0.0));
        let first = burst(&mut limit);
        assert!(first <= 0.011, "{first}");
    }

    #[test]
    fn a_cost_that_is_ten_times_the_expected_is_held_once_it_is_seen() {
        let mut limit = Limit::new(0.05, 0.01);
        let spent = play(&mut limit, 600, 3_000.0, 100_000.0, 10_000.0);
        // Never corrected, so the bucket alone holds it, step by step.
        assert!(worst(&spent, 100) <= 0.05 * 1.05, "{}", worst(&spent, 100));
    }
}
