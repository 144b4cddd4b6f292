//! A token bucket on spent overhead: never over budget for long, even while the model is wrong.

use super::budget_grant::Grant;
use super::sample_cost::OWN_COST_FLOOR_CPUS;

/// Depth in wall time, times the budget and the CPUs kept busy: what two steps bring.
const DEPTH_NS: f64 = 0.2e9;
/// Debt that is remembered: ten seconds' worth, the longest window that overhead is judged over.
const DEBT_NS: f64 = 10e9;
/// Share of the budget that sampling keeps while a debt is paid back, so that there is no hole in the profile.
pub(super) const TRICKLE: f64 = 0.1;

/// Holds the overhead that may be spent, in CPU nanoseconds.
///
/// It is filled by the target's CPU time: the budget's ratio for each nanosecond, or for a tenth of a CPU if the target
/// uses less, as [`Account`](super::Account) counts, and by what the budget grants in any case. The cost of sampling empties it. Its answer is a cap on the rate
/// of the next step, not a pause: from half full up the cap is open, below that it falls with the level, and in debt a
/// tenth of the budget is left. So over any window at most the budget, the depth, and what one step overshot before it
/// was seen are spent.
///
/// Its depth follows the current load, so that credit from a busy minute isn't spent on a target that fell idle. When
/// the load changes, a positive level stays the same share of the depth; a debt stays the same in ns, up to ten
/// seconds' worth of the budget.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    budget: Grant,
    level_ns: f64,
    /// CPUs that the target kept busy in the last step.
    busy_cpus: f64,
    /// CPUs that the target is taken to use at least.
    floor_cpus: f64,
}

impl TokenBucket {
    /// A bucket for a budget (ratio of the target's CPU time), and one busy CPU. It holds a quarter, which allows for what a
    /// first guess takes: the first step finds everything cold and overdraws it.
    pub fn new(budget_ratio: f64) -> Self {
        TokenBucket {
            budget: Grant::of_ratio(budget_ratio),
            level_ns: 0.25 * budget_ratio * DEPTH_NS,
            busy_cpus: 1.0,
            floor_cpus: OWN_COST_FLOOR_CPUS,
        }
    }

    /// This bucket for a target that is assumed to use at least `floor_cpus`.
    pub(super) fn with_floor(self, floor_cpus: f64) -> Self {
        TokenBucket { floor_cpus, ..self }
    }

    /// Fills it.
    pub(super) fn fill(&mut self) {
        self.level_ns = self.depth_ns();
    }

    /// Keeps the relative level after the depth changed from `before_ns`.
    fn rescale(&mut self, before_ns: f64) {
        self.level_ns *= if self.level_ns > 0.0 { self.depth_ns() / before_ns } else { 1.0 };
    }

    /// Sets the budget. The relative level stays; a debt stays as it is.
    pub(super) fn set_budget(&mut self, budget: Grant) {
        let before_ns = self.depth_ns();
        self.budget = budget;
        self.rescale(before_ns);
    }

    /// Accounts for a step of `wall_ns`: the target used `cpu_ns`, sampling spent `spent_ns`.
    pub fn settle(&mut self, wall_ns: f64, cpu_ns: f64, spent_ns: f64) {
        if wall_ns > 0.0 {
            let before_ns = self.depth_ns();
            self.busy_cpus = cpu_ns / wall_ns;
            self.rescale(before_ns);
        }
        let debt_ns = self.accrual_ns(DEBT_NS, self.busy_cpus * DEBT_NS);
        let level_ns = self.level_ns + self.accrual_ns(wall_ns, cpu_ns) - spent_ns;
        self.level_ns = level_ns.clamp(-debt_ns, self.depth_ns());
    }

    /// What flows in during `wall_ns` in which the target uses `cpu_ns` (ns).
    pub fn accrual_ns(&self, wall_ns: f64, cpu_ns: f64) -> f64 {
        self.budget.over_ns(wall_ns, cpu_ns.max(self.floor_cpus * wall_ns))
    }

    /// What it holds (ns); negative while a debt is paid back.
    pub fn level_ns(&self) -> f64 {
        self.level_ns
    }

    /// The level for a target that keeps `busy_cpus` busy, assuming at least half of the depth (ns).
    pub fn holds_ns(&self, busy_cpus: f64) -> f64 {
        let depth_ns = self.depth_at(busy_cpus);
        self.level_ns.clamp(0.5 * depth_ns, depth_ns)
    }

    /// The largest level: what the budget grants in 0.2 s at the present load (ns).
    pub fn depth_ns(&self) -> f64 {
        self.depth_at(self.busy_cpus)
    }

    fn depth_at(&self, busy_cpus: f64) -> f64 {
        self.accrual_ns(DEPTH_NS, busy_cpus * DEPTH_NS)
    }

    /// What may be spent in the next step, everything included, over what the budget grants in it.
    pub fn allowed_part(&self) -> f64 {
        (2.0 * self.level_ns / self.depth_ns()).max(TRICKLE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: f64 = 0.1e9;

    #[test]
    fn within_the_budget_it_does_not_bind() {
        let mut bucket = TokenBucket::new(0.01);
        bucket.settle(STEP, STEP, 0.005 * STEP); // at first it allows for half of it
        for _ in 0..100 {
            bucket.settle(STEP, STEP, 0.009 * STEP);
            assert!(0.01 * bucket.allowed_part() >= 0.009);
        }
    }

    #[test]
    fn spend_at_the_cap_never_passes_budget_and_depth() {
        let mut bucket = TokenBucket::new(0.01);
        let mut spent = 0.0;
        for step in 0..1_000 {
            let spend = 0.01 * bucket.allowed_part() * STEP;
            bucket.settle(STEP, STEP, spend);
            spent += spend;
            assert!(spent <= 0.01 * STEP * f64::from(step + 1) + bucket.depth_ns());
        }
    }

    #[test]
    fn another_budget_leaves_it_as_full_and_a_debt_as_large() {
        let mut bucket = TokenBucket::new(0.01);
        bucket.settle(STEP, STEP, 0.005 * STEP);
        let open = bucket.allowed_part();
        bucket.set_budget(Grant::of_ratio(0.002));
        assert!((bucket.allowed_part() - open).abs() < 1e-12);
        bucket.settle(STEP, STEP, 0.02 * STEP);
        let debt_ns = bucket.level_ns();
        bucket.set_budget(Grant::of_ratio(0.01));
        assert!(debt_ns < 0.0 && bucket.level_ns() == debt_ns);
    }

    #[test]
    fn a_debt_is_paid_back_at_a_trickle() {
        let mut bucket = TokenBucket::new(0.01);
        bucket.settle(STEP, STEP, 0.1 * STEP);
        assert!(bucket.level_ns() < 0.0);
        assert_eq!(bucket.allowed_part(), TRICKLE);
        for _ in 0..100 {
            bucket.settle(STEP, STEP, 0.001 * STEP);
        }
        assert_eq!(bucket.level_ns(), bucket.depth_ns());
    }

    #[test]
    fn what_a_busy_time_left_over_is_not_spent_on_an_idle_one() {
        let mut bucket = TokenBucket::new(0.01);
        (0..100).for_each(|_| bucket.settle(STEP, 64.0 * STEP, 0.0));
        assert_eq!(bucket.level_ns(), 0.01 * 64.0 * DEPTH_NS);
        assert!((bucket.holds_ns(0.0) - 0.01 * 0.1 * DEPTH_NS).abs() < 1e-6);
        bucket.settle(STEP, 0.0, 0.0);
        assert!((bucket.level_ns() - 0.01 * 0.1 * DEPTH_NS).abs() < 1e-6, "{}", bucket.level_ns());
        // A burst finds it as full as it was, and a debt of an idle time as small.
        bucket.settle(STEP, 64.0 * STEP, 0.01 * 64.0 * STEP);
        assert!((bucket.level_ns() - bucket.depth_ns()).abs() < 1.0);
        bucket.settle(STEP, 0.0, 0.01 * STEP);
        let debt_ns = bucket.level_ns();
        bucket.settle(STEP, 64.0 * STEP, 0.01 * 64.0 * STEP);
        assert!(debt_ns < 0.0 && (bucket.level_ns() - debt_ns).abs() < 1.0, "{debt_ns}");
    }
}
