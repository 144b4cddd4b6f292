//! The rate that the law asks for under the budgets and the caps. A prediction and a running controller call
//! the same function, with costs from one other (`sample_cost.rs`), so they can only differ in the counts.

use super::RateSettings;
use super::anytime::AnytimeSchedule;
use super::fleet::Replicas;
use super::model::{BoundBy, Caps, Law, Optimum, Threads};
use super::sample_cost::SampleCost;

/// Share of the budget that the controller aims at; the rest absorbs what it did not foresee.
pub(super) const BUDGET_MARGIN: f64 = 0.9;
/// Being above the budget's cap is never excused, so the rate is set this much below: noise must not cross it.
const CAP_MARGIN: f64 = 0.96;

/// Horizon for a predicted run without a horizon (CPU-seconds).
const DEFAULT_HORIZON_S: f64 = 60.0;

/// What a rate depends on beside the settings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Circumstances {
    pub(super) cost: SampleCost,
    /// S, of the largest functions.
    pub(super) spread: f64,
    /// Bytes that one sample brings to the ring.
    pub(super) record_bytes: f64,
    /// CPUs that the target keeps busy.
    pub(super) utilisation_cpus: f64,
    /// What spends the two budgets.
    pub(super) load: BudgetLoad,
    /// What everything that sampling costs may take, where own time has no budget of its own (ratio of the
    /// target's CPU time).
    pub(super) granted_ratio: f64,
    /// The rate at which one of several targets with a common rate would reach its slowdown budget (samples per
    /// CPU-second).
    pub(super) dearest_hz: f64,
    /// Progress of a run without a horizon.
    pub(super) schedule: Option<AnytimeSchedule>,
    /// The threads that a sample delays.
    pub(super) threads: Threads,
    /// R, for a profile of known length.
    pub(super) replicas: Replicas,
}

/// What spends the two budgets at a rate of one sample per CPU-second, and at any rate.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BudgetLoad {
    /// Share of the target's CPU time that goes to switches and to records that are no samples.
    pub(super) slowdown_fixed_ratio: f64,
    /// Above the budget, what a start may take from the target (ratio of its CPU time).
    pub(super) slowdown_spare_ratio: f64,
    /// CPUs that the profiler uses whatever the rate.
    pub(super) own_fixed_cpus: f64,
    /// CPU time per sample per CPU-second: own time for arriving samples, and samples of other processes (s).
    pub(super) own_per_hz_cpus: f64,
    /// Above the budget, what a start may use (CPUs).
    pub(super) own_spare_cpus: f64,
}

/// The rate that the law and the bounds give (samples per CPU-second).
#[derive(Clone, Copy, Debug)]
pub(super) struct RateTarget {
    pub(super) unbounded_hz: f64,
    pub(super) optimum_hz: f64,
    pub(super) caps: Caps,
    pub(super) bound_by: BoundBy,
}

impl RateTarget {
    /// The law's rate within `budget_share` of the budget and within the caps.
    pub(super) fn new(settings: &RateSettings, now: &Circumstances, budget_share: f64) -> Self {
        let o_s = now.cost.target.mean_ns * 1e-9;
        let caps = caps(settings, now, budget_share);
        let law = Law::new(settings.criterion, now.spread, o_s, horizon_s(settings, now.schedule))
            .threads(now.threads)
            .replicas(now.replicas.get());
        let optimum = within(&law, now.schedule, &caps);
        let floored = optimum.rate_hz < settings.floor_hz;
        let bound_by = match optimum.bound_by {
            BoundBy::Kernel if settings.clock_tick_ns == Some(settings.min_period_ns) => BoundBy::Tick,
            BoundBy::OwnCpu if settings.own_cpu_ratio.is_none() => BoundBy::Host,
            bound_by => bound_by,
        };
        RateTarget {
            unbounded_hz: optimum.unbounded_hz,
            optimum_hz: settings.within_limits(optimum.rate_hz),
            caps,
            bound_by: if floored { BoundBy::Floor } else { bound_by },
        }
    }

    /// The rate that a retune aims at: a little below the budget's cap.
    pub(super) fn target_hz(&self, settings: &RateSettings) -> f64 {
        settings.within_limits(self.optimum_hz.min(CAP_MARGIN * self.caps.budget_hz.min(self.caps.own_hz)))
    }
}

/// W: of the law in force (CPU-seconds). Without a horizon, that which stands for the next step.
pub(super) fn horizon_s(settings: &RateSettings, schedule: Option<AnytimeSchedule>) -> f64 {
    let of_schedule = || schedule.map(|schedule| schedule.horizon_s());
    settings.horizon_s.or_else(of_schedule).unwrap_or(DEFAULT_HORIZON_S)
}

/// The threads that a sample delays: the sampled one, or all that run.
pub(super) fn threads_held_up(settings: &RateSettings, utilisation_cpus: f64) -> Threads {
    match settings.are_threads_coupled {
        true => Threads::in_lockstep(utilisation_cpus.max(1.0)),
        false => Threads::default(),
    }
}

/// The law's rate, what is owed included, within the caps.
fn within(law: &Law, schedule: Option<AnytimeSchedule>, caps: &Caps) -> Optimum {
    let optimum = law.optimum(caps);
    let Some(schedule) = schedule else { return optimum };
    let unbounded_hz = schedule.made_good_hz(optimum.unbounded_hz);
    let (rate_hz, bound_by) = caps.bound(unbounded_hz);
    Optimum { unbounded_hz, rate_hz: rate_hz.max(0.0), bound_by }
}

fn caps(settings: &RateSettings, now: &Circumstances, budget_share: f64) -> Caps {
    let bytes_per_cpu_s = now.record_bytes * now.utilisation_cpus.max(1.0);
    let load = &now.load;
    // A margin is kept back of what is left for samples, and of what is spent at any rate. The latter is at most a tenth
    // of what is left: where that is little, samples would have nothing.
    let for_samples = |budget: f64, fixed: f64| {
        let left = (budget - fixed).max(0.0);
        budget_share * left - ((1.0 - budget_share) * fixed).min((1.0 - BUDGET_MARGIN) * left)
    };
    let slowdown = for_samples(settings.budget_ratio, load.slowdown_fixed_ratio) + load.slowdown_spare_ratio;
    let slowdown_hz = slowdown * 1e9 / (now.threads.count * now.cost.target.upper_ns().max(1.0));
    let (budget_hz, own_hz) = match settings.own_cpu_ratio {
        Some(own) => {
            let left = for_samples(own, load.own_fixed_cpus) + load.own_spare_cpus;
            (slowdown_hz, left / load.own_per_hz_cpus.max(f64::MIN_POSITIVE))
        }
        None => {
            let left = for_samples(now.granted_ratio, now.cost.fixed_ratio);
            (slowdown_hz, left * 1e9 / now.cost.total_hi_ns.max(1.0))
        }
    };
    Caps {
        budget_hz: budget_hz.min(budget_share * now.dearest_hz),
        own_hz,
        kernel_hz: settings.ceiling_hz(),
        bytes_hz: settings.max_bytes_per_s / bytes_per_cpu_s,
    }
}
