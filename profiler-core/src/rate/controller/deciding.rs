//! Collects what a decision reports: the rate, and all its inputs.

use super::super::decision::{DecidedCost, Decision, LawInForce, LawTerms, RateCaps, RateReason, SoFar};
use super::super::rate_target::{BUDGET_MARGIN, RateTarget, horizon_s};
use super::RateController;

impl RateController {
    pub(super) fn decision(&self, at_ns: u64, reason: RateReason) -> Decision {
        let (target, rate_hz) = (self.rate_target(BUDGET_MARGIN), self.rate_hz());
        Decision {
            at_ns,
            rate_hz,
            period_ns: (1e9 / rate_hz).round() as u64,
            reason,
            bound_by: self.bound_by(),
            cost: self.decided_cost(),
            terms: self.law_terms(&target),
            caps: self.rate_caps(&target),
            so_far: self.so_far(),
        }
    }

    fn decided_cost(&self) -> DecidedCost {
        let cost = self.meter.cost();
        DecidedCost {
            overhead_us: cost.target.mean_ns * 1e-3,
            overhead_se_us: cost.target.se_ns * 1e-3,
            frames_us: cost.frames_ns * 1e-3,
            stack_us: cost.stack_ns * 1e-3,
            self_us: cost.self_ns * 1e-3,
            foreign_us: cost.foreign_ns * 1e-3,
            total_hi_us: cost.total_hi_ns * 1e-3,
            interrupt_us: self.meter.interrupt().map(|cost| cost.mean_ns * 1e-3),
            interrupt_ratio: self.meter.interrupt_ratio(),
            fixed_ratio: cost.fixed_ratio,
        }
    }

    fn law_terms(&self, target: &RateTarget) -> LawTerms {
        LawTerms {
            spread_ratio: self.shares.spread(),
            variance_ratio: self.variance_ratio(),
            law: match (self.settings.fixed_rate_hz, self.settings.horizon_s) {
                (Some(_), _) => LawInForce::Fixed,
                (None, Some(_)) => LawInForce::Horizon,
                (None, None) => LawInForce::Anytime,
            },
            law_samples: self.law_samples(),
            horizon_cpu_s: horizon_s(&self.settings, self.schedule),
            replicas: self.replicas().get(),
            unbounded_rate_hz: target.unbounded_hz,
            optimum_rate_hz: target.optimum_hz,
        }
    }

    fn rate_caps(&self, target: &RateTarget) -> RateCaps {
        let budgets = &self.budgets;
        let bucket =
            if budgets.own.is_some() { budgets.slowdown.level_ns() } else { budgets.bucket.level_ns() };
        RateCaps {
            budget_cap_hz: target.caps.budget_hz,
            own_cap_hz: target.caps.own_hz.min(f64::MAX),
            bucket_cap_hz: self.bucket_cap_hz(),
            bucket_level_us: bucket * 1e-3,
            budget_ratio: self.budget_ratio(),
            granted_ratio: budgets.own.is_none().then(|| self.granted_ratio()),
            own_cpu_budget_ratio: self.settings.own_cpu_ratio,
        }
    }

    fn so_far(&self) -> SoFar {
        SoFar {
            slowdown_ratio: self.account.slowdown_ratio(),
            own_cpu_ratio: self.account.own_cpu_ratio(),
            overhead_1s_ratio: self.account.last_1s_ratio(),
            utilisation_cpus: self.meter.utilisation_cpus(),
            target_cpu_s: self.account.target_cpu_s(),
            samples: self.samples,
            retunes: self.retuning.retunes,
        }
    }
}
