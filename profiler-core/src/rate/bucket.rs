//! A token bucket on spent overhead: never over budget for long, even while the model is wrong.

/// Depth in seconds of a busy CPU, times the budget.
const DEPTH_NS: f64 = 0.2e9;
/// On many CPUs the bucket must hold what two ticks bring, or it would only ever be empty or full.
const DEPTH_TICKS: f64 = 2.0;
/// Debt that is remembered: ten seconds' worth, the longest window that overhead is judged over.
const DEBT_NS: f64 = 10e9;
/// Share of the budget that sampling keeps while a debt is paid back, so that there is no hole in the profile.
const TRICKLE: f64 = 0.1;

/// Holds the overhead that may be spent, in CPU nanoseconds.
///
/// The target's CPU time fills it, `budget_ratio` for each nanosecond, up to a depth of .2 s of one CPU; what
/// sampling cost empties it. It answers with a cap on the rate of the next tick instead of a pause: half full
/// and more leaves the budget open, below it the cap falls with the level, and a debt leaves a tenth. So over
/// any window the spend is at most budget + depth + what one tick overshot before it was seen. An idle target
/// neither fills nor, as it is not sampled, empties it.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    budget_ratio: f64,
    level_ns: f64,
    tick_cpu_ns: f64,
}

impl TokenBucket {
    /// A half full bucket for a budget (ratio of the target's CPU time).
    pub fn new(budget_ratio: f64) -> Self {
        TokenBucket { budget_ratio, level_ns: 0.5 * budget_ratio * DEPTH_NS, tick_cpu_ns: 0.0 }
    }

    /// Accounts for a tick: the target used `cpu_ns`, sampling spent `spent_ns`.
    pub fn settle(&mut self, cpu_ns: f64, spent_ns: f64) {
        self.tick_cpu_ns = cpu_ns.max(0.9 * self.tick_cpu_ns);
        let debt = self.budget_ratio * DEBT_NS.max(10.0 * self.tick_cpu_ns);
        self.level_ns = (self.level_ns + self.accrual_ns(cpu_ns) - spent_ns).clamp(-debt, self.depth_ns());
    }

    /// What `cpu_ns` of the target's CPU time let flow in (ns).
    pub fn accrual_ns(&self, cpu_ns: f64) -> f64 {
        self.budget_ratio * cpu_ns
    }

    /// What it holds (ns); negative while a debt is paid back.
    pub fn level_ns(&self) -> f64 {
        self.level_ns
    }

    /// What it can hold (ns).
    pub fn depth_ns(&self) -> f64 {
        self.budget_ratio * DEPTH_NS.max(DEPTH_TICKS * self.tick_cpu_ns)
    }

    /// The highest rate for the next tick (samples per CPU-second) at `cost_ns` a sample, everything included.
    pub fn rate_cap_hz(&self, cost_ns: f64) -> f64 {
        let allowed = self.budget_ratio * (2.0 * self.level_ns / self.depth_ns()).max(TRICKLE);
        allowed * 1e9 / cost_ns.max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: f64 = 0.1e9;

    #[test]
    fn within_the_budget_it_does_not_bind() {
        let mut bucket = TokenBucket::new(0.01);
        for _ in 0..100 {
            bucket.settle(TICK, 0.009 * TICK);
            assert!(bucket.rate_cap_hz(10_000.0) >= 900.0);
        }
    }

    #[test]
    fn spend_at_the_cap_never_passes_budget_and_depth() {
        let mut bucket = TokenBucket::new(0.01);
        let mut spent = 0.0;
        for tick in 0..1_000 {
            let spend = bucket.rate_cap_hz(10_000.0) * 10_000.0 * 1e-9 * TICK;
            bucket.settle(TICK, spend);
            spent += spend;
            assert!(spent <= 0.01 * TICK * f64::from(tick + 1) + bucket.depth_ns());
        }
    }

    #[test]
    fn a_debt_is_paid_back_at_a_trickle() {
        let mut bucket = TokenBucket::new(0.01);
        bucket.settle(TICK, 0.1 * TICK);
        assert!(bucket.level_ns() < 0.0);
        assert_eq!(bucket.rate_cap_hz(10_000.0), 100.0);
        for _ in 0..100 {
            bucket.settle(TICK, 0.001 * TICK);
        }
        assert_eq!(bucket.level_ns(), bucket.depth_ns());
    }
}
