//! A controller under a changing budget: its target's part of the host's budget.

use super::budget_division::Demand;
use super::controller::{ONE_CPU, SETTLED};
use super::fleet::Replicas;
use super::limit::Limit;
use super::rate_target::horizon_s;
use super::sample_cost::OWN_COST_FLOOR_CPUS;
use super::{RateController, RateSettings};

/// The least that may be granted: what is left then is the lowest rate.
const LEAST_RATIO: f64 = 1e-6;
/// The most (ratio of the target's CPU time).
const MOST_RATIO: f64 = 64.0;

/// A budget for everything that sampling costs: so much in any case, and a part of the target's CPU time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Grant {
    /// For what is spent whatever the rate and the load (CPUs).
    pub(super) fixed_cpus: f64,
    /// Ratio of the target's CPU time, or of a tenth of a CPU if it uses less.
    pub(super) ratio: f64,
}

impl Grant {
    /// A ratio of the target's CPU time, and nothing beside.
    pub(super) fn of_ratio(ratio: f64) -> Self {
        Grant { fixed_cpus: 0.0, ratio }
    }

    /// All of it, while the target keeps `busy_cpus` busy (ratio of its CPU time).
    pub(super) fn at(self, busy_cpus: f64) -> f64 {
        self.ratio + self.fixed_cpus / busy_cpus.max(OWN_COST_FLOOR_CPUS)
    }

    /// What it grants in `wall_ns`, in which the target's CPU time counts as `counted_ns` (ns).
    pub(super) fn over_ns(self, wall_ns: f64, counted_ns: f64) -> f64 {
        self.fixed_cpus * wall_ns + self.ratio * counted_ns
    }
}

impl RateController {
    /// What the host's budget leaves for everything that sampling costs, own time included (ratio of the CPU time that the
    /// target is expected to use), from the next step on. The part of it that is spent whatever the rate stays as large
    /// where the target uses less; the rest follows its load. The slowdown stays within the settings' budget all the same.
    /// What was spent before counts against what was granted in its time. Changes nothing where own time has a budget of
    /// its own.
    pub fn grant(&mut self, granted_ratio: f64) {
        let ratio = granted_ratio.clamp(LEAST_RATIO, MOST_RATIO);
        let fixed_ratio = (self.meter.fixed_cpus() / self.counted_cpus()).min(ratio - LEAST_RATIO);
        let fixed_cpus = fixed_ratio * self.counted_cpus();
        self.budgets.granted =
            Some(Grant { fixed_cpus, ratio: ratio - fixed_ratio }).filter(|_| !ratio.is_nan());
        self.budgets.bucket.set_budget(self.granted());
        self.account.set_budget(self.granted());
        if !self.started {
            self.guess();
        }
    }

    /// What everything that sampling costs may take: the last grant, or, before the first, the budget of the slowdown.
    pub(super) fn granted(&self) -> Grant {
        self.budgets.granted.unwrap_or(Grant::of_ratio(self.settings.budget_ratio))
    }

    /// What everything that sampling costs may take (ratio of the CPU time that the target is expected to use).
    pub fn granted_ratio(&self) -> f64 {
        self.granted().at(self.counted_cpus())
    }

    /// CPUs that the target is expected to keep busy, over the ten seconds in which it is busiest.
    fn expected_cpus(&self) -> f64 {
        let is_known = self.last_ns.is_some();
        if is_known { self.current.expected().busy_cpus } else { self.meter.utilisation_cpus() }
    }

    /// CPUs that its costs are set against.
    fn counted_cpus(&self) -> f64 {
        self.expected_cpus().max(OWN_COST_FLOOR_CPUS)
    }

    /// Continues with other settings from the next step on. What was learned of costs and shares stays, and so does the
    /// host's grant.
    pub fn adopt(&mut self, settings: RateSettings) {
        self.settings = settings.sane();
        self.budgets.slowdown.set_ratio(self.settings.budget_ratio);
        self.budgets.own = self.settings.own_cpu_ratio.map(|ratio| {
            let mut own = self.budgets.own.take().unwrap_or_else(|| Limit::new(ratio, ONE_CPU));
            own.set_ratio(ratio);
            own
        });
        self.schedule = self.settings.horizon_s.is_none().then(|| self.schedule.unwrap_or_default());
        self.retuning.settled = false;
        self.grant(self.budgets.granted.map_or(f64::NAN, |granted| granted.at(self.counted_cpus())));
    }

    /// The target is one of `replicas` from now on, and their profiles are read as one. Has no effect unless the length
    /// of a profile is known.
    pub fn join_fleet(&mut self, replicas: Replicas) {
        let [_, settled] = self.replicas;
        let has_moved = (replicas.get() / settled.get()).ln().abs() > 3.0 * SETTLED.ln(); // the rate goes with the cube root
        self.retuning.settled &= !has_moved;
        self.replicas = [replicas, if has_moved { replicas } else { settled }];
        if !self.started {
            self.guess();
        }
    }

    /// The replicas that the law uses.
    pub(super) fn replicas(&self) -> Replicas {
        if self.settings.horizon_s.is_some() { self.replicas[0] } else { Replicas::ONE }
    }

    /// The budget of the slowdown (ratio of the target's CPU time).
    pub fn budget_ratio(&self) -> f64 {
        self.settings.budget_ratio
    }

    /// The target's demand for a share of the host's budget, with this weight among the targets. At a fixed rate, the
    /// demand is what that rate takes.
    pub fn demand(&self, weight: f64) -> Demand {
        let (rate_target, cost) = (self.rate_target(1.0), self.meter.cost());
        let busy_cpus = self.expected_cpus();
        let sample_s = cost.total_hi_ns * 1e-9;
        let fixed_cpus = self.meter.fixed_cpus();
        let r_s = self.settings.criterion.r() * self.spread();
        let demand = Demand {
            slowdown_ratio: self.settings.budget_ratio,
            busy_cpus,
            counted_cpus: self.counted_cpus(),
            sample_s,
            target_s: cost.target.mean_ns * 1e-9,
            fixed_cpus,
            error: 2.0 * r_s / (self.replicas().get() * horizon_s(&self.settings, self.schedule)).sqrt(),
            weight,
            cap_hz: rate_target.caps.kernel_hz.min(rate_target.caps.bytes_hz),
            pace: self.current.expected().pace,
        };
        match self.settings.fixed_rate_hz {
            Some(rate_hz) => {
                let fixed_cpus = fixed_cpus + rate_hz * sample_s * busy_cpus;
                Demand { fixed_cpus, cap_hz: 0.0, ..demand }
            }
            None => demand,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::budget_division::divide;
    use super::super::{CostModel, Reading, TopShares};
    use super::*;

    const STEP_NS: u64 = 100_000_000;
    /// What the profiler spends on the target whatever its rate (CPUs).
    const FIXED_CPUS: f64 = 0.000_6;
    const OWN_SAMPLE_NS: f64 = 8_000.0;

    /// The only target of a host with a budget of 1.5 ms a second, step by step.
    struct OnlyTarget {
        controller: RateController,
        now_ns: u64,
        due: f64,
    }

    impl OnlyTarget {
        fn new() -> Self {
            let settings =
                RateSettings { budget_ratio: 0.04, horizon_s: Some(1.0), ..RateSettings::default() };
            let mut controller = RateController::new(settings, CostModel::default());
            controller.start(0);
            OnlyTarget { controller, now_ns: 0, due: 0.0 }
        }

        /// The rates of so many steps at a load of `busy_cpus`.
        fn rates_hz(&mut self, steps: u64, busy_cpus: f64) -> Vec<f64> {
            let mut step = |number: u64| {
                if number.is_multiple_of(10) {
                    self.controller
                        .grant(divide(&[self.controller.demand(1.0)], 0.001_5).of[0].granted_ratio);
                }
                self.due += self.controller.rate_hz() * busy_cpus * STEP_NS as f64 * 1e-9;
                let samples = self.due as u64;
                self.due = self.due.fract();
                let own_ns = FIXED_CPUS * STEP_NS as f64 + OWN_SAMPLE_NS * samples as f64;
                self.now_ns += STEP_NS;
                let reading = Reading {
                    at_ns: self.now_ns,
                    target_cpu_ns: (busy_cpus * STEP_NS as f64) as u64,
                    self_cpu_ns: own_ns as u64,
                    samples,
                    frames: 20 * samples,
                    ..Reading::default()
                };
                let counts = (0..8).map(|function| (function, samples)).collect();
                self.controller.step(&reading, &TopShares { counts, ..TopShares::default() }).rate_hz
            };
            (0..steps).map(&mut step).collect()
        }
    }

    #[test]
    fn a_load_that_falls_leaves_as_much_for_what_is_spent_whatever_the_rate() {
        let mut target = OnlyTarget::new();
        let before_hz = target.rates_hz(300, 0.45)[299];
        let rates_hz = target.rates_hz(100, 0.1);
        let least_hz = rates_hz[5..].iter().copied().fold(f64::INFINITY, f64::min);
        assert!(least_hz >= 0.9 * before_hz, "{least_hz} of {before_hz} samples per CPU-second");
    }
}
