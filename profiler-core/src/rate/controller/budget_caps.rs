//! What the token buckets make of the rate: a cap for the next step.

use super::super::Reading;
use super::super::account::TARGET_FLOOR_CPUS;
use super::super::bucket::TRICKLE;
use super::super::decision::RateReason;
use super::super::limit::OPEN;
use super::super::meter::Spend;
use super::super::model::BoundBy;
use super::super::rate_target::threads_held_up;
use super::super::sample_cost::OWN_COST_FLOOR_CPUS;
use super::{ONE_CPU, RateController};

/// Assumed length of a step when computing what one may overspend (s).
const STEP_S: f64 = 0.1;
/// A step's samples of non-targets are harmless below this share of what a second of an idle target may cost.
const HARMLESS: f64 = 0.25;

impl RateController {
    /// The rate until the next step, after the token bucket.
    pub(super) fn throttle(&mut self, retuned: RateReason) -> RateReason {
        let was = self.retuning.throttled;
        self.retuning.throttled = self.bucket_cap_hz() < self.retuning.rate_hz;
        match (was, self.retuning.throttled) {
            (_, true) => RateReason::Throttle,
            (true, false) => RateReason::Release,
            (false, false) => retuned,
        }
    }

    pub(super) fn bucket_cap_hz(&self) -> f64 {
        let (slowdown_hz, beside_hz) = self.bucket_caps_hz();
        self.settings.within_limits(slowdown_hz.min(beside_hz))
    }

    /// What the bucket of the slowdown allows, and that of own CPU time or of everything.
    fn bucket_caps_hz(&self) -> (f64, f64) {
        let (meter, current) = (&self.meter, &self.current);
        let held_up = self.threads().count;
        let usual_ns = held_up * meter.cost().target.upper_ns().max(1.0);
        let recent_ns = (held_up * current.recent_charge_ns()).max(usual_ns);
        let slowdown_hz = self.budgets.slowdown.cap_hz(
            held_up * meter.events_ratio(),
            current.busy_cpus(),
            usual_ns,
            recent_ns,
        );
        let beside_hz = match &self.budgets.own {
            Some(own) => {
                let per_hz_ns = current.own_per_hz_ns(meter, current.busy_cpus()).max(f64::MIN_POSITIVE);
                own.cap_hz(meter.own_fixed_cpus(), ONE_CPU, per_hz_ns, per_hz_ns)
            }
            None => self.granted_cap_hz(),
        };
        (slowdown_hz, beside_hz)
    }

    /// The cap by the bucket of everything that sampling costs.
    fn granted_cap_hz(&self) -> f64 {
        let current = &self.current;
        let budget_ratio = self.granted().at(current.busy_cpus());
        let fixed_ratio = current.fixed_ratio(&self.meter);
        let (allowed, least) = (budget_ratio * self.budgets.bucket.allowed_part(), TRICKLE * budget_ratio);
        // A full bucket is a reserve for a jump of the cost, not to be spent on purpose.
        let expected = (allowed.min(OPEN * budget_ratio) - fixed_ratio).max(least);
        let by_level = (expected / current.sample_ns(&self.meter))
            .min((allowed - fixed_ratio).max(least) / current.recent_sample_ns(&self.meter));
        let affordable = self.account.affordable_ratio(current.busy_cpus()) - fixed_ratio;
        let by_account = (affordable / current.sample_ns(&self.meter)).max(self.trickle_per_ns());
        by_level.min(by_account) * 1e9
    }

    /// The rate while a debt is paid back (samples per nanosecond of CPU time). A busy target is still sampled. One that rests can wait
    /// where other processes are sampled with it; where none are, its samples cost nothing until it works again, and its next burst
    /// shall not begin unseen.
    fn trickle_per_ns(&self) -> f64 {
        let busy_cpus = self.current.cpus_when_awake();
        let least = TRICKLE * self.granted().at(busy_cpus) * (busy_cpus / OWN_COST_FLOOR_CPUS).min(1.0);
        least / self.current.sample_ns_at(busy_cpus, &self.meter)
    }

    /// Whether what came since the last step has already spent more than the bucket holds, so that the next
    /// step should not be waited for. `so_far` is a reading of the unfinished step; its CPU times may be 0
    /// where they are not known yet: how busy the target is, its samples tell.
    ///
    /// A step of 100 ms at ten times the expected cost spends the budget of a second. To be called whenever a
    /// ring is read; never true at a fixed rate.
    pub fn overdrawn(&self, so_far: &Reading) -> bool {
        let wall_ns = self.last_ns.map_or(0, |last| so_far.at_ns.saturating_sub(last)) as f64;
        let hits = so_far.samples.saturating_add(so_far.lost) as f64;
        let cpu_ns = (hits * 1e9 / self.rate_hz()).max(so_far.target_cpu_ns as f64);
        if self.settings.fixed_rate_hz.is_some() {
            return false;
        }
        let spend = self.meter.spend(so_far);
        let held_up = threads_held_up(&self.settings, cpu_ns / wall_ns.max(1.0)).count;
        let slowed_ns = held_up * spend.slowed_upper_ns();
        let is_slowed = || self.budgets.slowdown.is_overdrawn(wall_ns, cpu_ns, slowed_ns);
        if let Some(own) = &self.budgets.own {
            return is_slowed() || own.is_overdrawn(wall_ns, wall_ns, spend.own_ns());
        }
        if self.settings.are_threads_coupled && is_slowed() {
            return true;
        }
        let spend = Spend { put_off_ns: spend.self_once_ns, ..spend };
        let inflow_ns = self.budgets.bucket.accrual_ns(wall_ns, so_far.target_cpu_ns as f64);
        charge_ns(&spend, wall_ns, cpu_ns) - inflow_ns
            > self.budgets.bucket.holds_ns(cpu_ns / wall_ns.max(1.0))
    }

    /// Whether samples of non-targets would cost too much within a step if the target fell idle now, so that
    /// the rings should be read more often. Only for events of whole CPUs.
    pub fn non_targets_may_overspend(&self) -> bool {
        let step_ns = STEP_S * self.current.non_target_ns_per_s(&self.meter, self.rate_hz());
        let granted_ns = || self.budgets.bucket.accrual_ns(1e9, 0.0);
        let idle_second_ns = self.budgets.own.as_ref().map_or_else(granted_ns, |own| own.idle_grant_ns(1e9));
        self.settings.fixed_rate_hz.is_none() && step_ns > HARMLESS * idle_second_ns
    }

    /// Whether `cost_ns` more can be spent without slowing sampling down. At a fixed rate nothing is.
    pub fn has_room_for(&self, cost_ns: f64) -> bool {
        let has_room = || match self.budgets.own {
            Some(_) => self.budgets.slowdown.has_room_for(cost_ns),
            None => self.budgets.bucket.level_ns() - cost_ns >= 0.5 * self.budgets.bucket.depth_ns(),
        };
        self.settings.fixed_rate_hz.is_some() || has_room()
    }

    pub(super) fn bound_by(&self) -> BoundBy {
        match self.settings.fixed_rate_hz {
            Some(_) => BoundBy::Fixed,
            None if self.retuning.throttled => {
                let (slowdown_hz, beside_hz) = self.bucket_caps_hz();
                match self.budgets.own {
                    _ if beside_hz >= slowdown_hz => BoundBy::Bucket,
                    Some(_) => BoundBy::OwnCpu,
                    None => BoundBy::Host,
                }
            }
            None => self.retuning.bound_by,
        }
    }
}

/// What the bucket pays for `wall_ns` in which the target used `cpu_ns`: the upper end of what was charged to others, and
/// own time; what was charged to the target counts for more where [`Account`](super::super::Account) sets it against less (ns).
pub(super) fn charge_ns(spend: &Spend, wall_ns: f64, cpu_ns: f64) -> f64 {
    let counted = |floor_cpus: f64| cpu_ns.max(floor_cpus * wall_ns).max(1.0);
    let weight = counted(OWN_COST_FLOOR_CPUS) / counted(TARGET_FLOOR_CPUS);
    weight * spend.target_ns() + spend.doubt_ns + spend.foreign_ns + spend.self_ns - spend.put_off_ns
}
