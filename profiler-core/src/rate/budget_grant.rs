//! A controller under a changing budget: its target's part of the host's budget.

use super::controller::{ONE_CPU, SETTLED};
use super::fleet::Replicas;
use super::limit::Limit;
use super::rate_target::horizon_s;
use super::sample_cost::OWN_COST_FLOOR_CPUS;
use super::share::Demand;
use super::{RateController, RateSettings};

/// The least that may be granted: what is left then is the lowest rate.
const LEAST_RATIO: f64 = 1e-6;
/// The most (ratio of the target's CPU time).
const MOST_RATIO: f64 = 64.0;

impl RateController {
    /// What the host's budget leaves for everything that sampling costs, own time included (ratio of the target's CPU time),
    /// from the next step on. The slowdown stays within the settings' budget all the same. What was spent before counts
    /// against what was granted in its time. Changes nothing where own time has a budget of its own.
    pub fn grant(&mut self, granted_ratio: f64) {
        self.budgets.granted =
            Some(granted_ratio.clamp(LEAST_RATIO, MOST_RATIO)).filter(|ratio| !ratio.is_nan());
        self.budgets.bucket.set_budget(self.granted_ratio());
        self.account.set_budget(self.granted_ratio());
        if !self.started {
            self.guess();
        }
    }

    /// What everything that sampling costs may take (ratio of the target's CPU time): the last grant, or, before the
    /// first, the budget of the slowdown.
    pub fn granted_ratio(&self) -> f64 {
        self.budgets.granted.unwrap_or(self.settings.budget_ratio)
    }

    /// Continues with other settings from the next step on. What was learned of costs and shares stays, and so does the
    /// host's grant if it is below the target's own budget.
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
        self.grant(self.budgets.granted.unwrap_or(f64::NAN));
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
        let utilisation_cpus = self.meter.utilisation_cpus();
        let expected = self.current.expected();
        let busy_cpus = if self.last_ns.is_some() { expected.busy_cpus } else { utilisation_cpus };
        let sample_s = cost.total_hi_ns * 1e-9;
        let fixed_cpus = self.meter.fixed_cpus();
        let r_s = self.settings.criterion.r() * self.spread();
        let demand = Demand {
            slowdown_ratio: self.settings.budget_ratio,
            busy_cpus,
            counted_cpus: busy_cpus.max(OWN_COST_FLOOR_CPUS),
            sample_s,
            target_s: cost.target.mean_ns * 1e-9,
            fixed_cpus,
            error: 2.0 * r_s / (self.replicas().get() * horizon_s(&self.settings, self.schedule)).sqrt(),
            weight,
            cap_hz: rate_target.caps.kernel_hz.min(rate_target.caps.bytes_hz),
            pace: expected.pace,
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
