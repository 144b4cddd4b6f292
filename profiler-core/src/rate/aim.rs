//! What the law asks for under the budget and the caps: for a run, and for one that is only thought of.

use super::RateSettings;
use super::anytime::Schedule;
use super::model::{BoundBy, Caps, Law, MixCaps, Optimum, Tick};
use super::sample_cost::SampleCost;

/// Share of the budget that the controller aims at; the rest absorbs what it did not foresee.
pub(super) const BUDGET_MARGIN: f64 = 0.9;
/// Being above the budget's cap is never excused, so the rate is set this much below: noise must not cross it.
const CAP_MARGIN: f64 = 0.96;

/// Samples of the clock that audit the kernel's tick, at least (samples per CPU-second): a program that is locked to it is found
/// within five seconds of its CPU time, and within ten where one in three ticks is sampled (`just audit`).
pub const AUDIT_HZ: f64 = 50.0;
/// Share of the budget that samples at the kernel's tick may take.
const TICK_BUDGET: f64 = 0.5;

/// Horizon of a run that is only thought of, and that has none (CPU-seconds).
pub(super) const DEFAULT_HORIZON_S: f64 = 60.0;

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
    /// Samples at the kernel's tick that come now (per CPU-second).
    pub(super) tick_hz: f64,
    /// What the two budgets are kept with.
    pub(super) load: BudgetLoad,
    /// What everything that sampling costs may take, where own time has no budget of its own (ratio of the target's CPU time).
    pub(super) granted_ratio: f64,
    /// How far a run without a horizon has come.
    pub(super) schedule: Option<Schedule>,
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
    /// CPU time for each hertz: own time for what arrives, and samples of other processes (s).
    pub(super) own_per_hz_cpus: f64,
    /// Above the budget, what a start may use (CPUs).
    pub(super) own_spare_cpus: f64,
}

/// The rate that is asked for (samples per CPU-second).
#[derive(Clone, Copy, Debug)]
pub(super) struct Aim {
    pub(super) unbounded_hz: f64,
    pub(super) optimum_hz: f64,
    pub(super) caps: Caps,
    pub(super) bound_by: BoundBy,
    /// Of the kernel's tick, beside (samples per CPU-second).
    pub(super) tick_hz: f64,
}

impl Aim {
    /// The law's rate within `budget_share` of the budget and within the caps.
    pub(super) fn new(settings: &RateSettings, now: &Circumstances, budget_share: f64) -> Self {
        let o_s = now.cost.target.mean_ns * 1e-9;
        let caps = caps(settings, now, budget_share);
        let horizon_s = settings.horizon_s.or(now.schedule.map(|schedule| schedule.horizon_s()));
        let law = Law::new(settings.criterion, now.spread, o_s, horizon_s.unwrap_or(DEFAULT_HORIZON_S));
        let beside_tick = settings.tick_hz.and_then(|hz| beside_tick(&law, hz, now, &caps, settings));
        let (optimum, tick_hz) = beside_tick.unwrap_or_else(|| (within(&law, now.schedule, &caps), 0.0));
        let floored = optimum.rate_hz < settings.floor_hz;
        let bound_by = match optimum.bound_by {
            BoundBy::Kernel if settings.clock_tick_ns == Some(settings.min_period_ns) => BoundBy::Tick,
            bound_by => bound_by,
        };
        Aim {
            unbounded_hz: optimum.unbounded_hz,
            optimum_hz: settings.within_limits(optimum.rate_hz),
            caps,
            bound_by: if floored { BoundBy::Floor } else { bound_by },
            tick_hz: if settings.fixed_rate_hz.is_some() { settings.tick_hz.unwrap_or(0.0) } else { tick_hz },
        }
    }

    /// Where a retune goes: a little below the budget's cap.
    pub(super) fn target_hz(&self, settings: &RateSettings) -> f64 {
        settings.within_limits(self.optimum_hz.min(CAP_MARGIN * self.caps.budget_hz.min(self.caps.own_hz)))
    }
}

/// The rates of clock and tick where there are up to `hz` ticks; what those take that come already is in `fixed_ratio`.
fn beside_tick(
    law: &Law,
    hz: f64,
    now: &Circumstances,
    caps: &Caps,
    settings: &RateSettings,
) -> Option<(Optimum, f64)> {
    let seconds = |ns: f64| ns.max(1.0) * 1e-9;
    let clock_s = seconds(now.cost.total_hi_ns);
    // Of whole CPUs, strangers' ticks are sampled too, and are the target's to pay for.
    let as_seen_s = if now.tick_hz > 0.0 { now.cost.ticks_ratio / now.tick_hz } else { 0.0 };
    let tick_s = seconds(now.cost.tick_hi_ns).max(as_seen_s);
    let tick = Tick {
        hz: hz.min(TICK_BUDGET * now.granted_ratio / tick_s),
        overhead_s: seconds(now.cost.tick.mean_ns),
        overhead_se_s: seconds(now.cost.tick.se_ns),
        audit_hz: AUDIT_HZ,
    };
    let both = MixCaps {
        budget_ratio: caps.budget_hz * clock_s + now.cost.ticks_ratio,
        tick_s,
        clock_s,
        kernel_hz: caps.kernel_hz,
        bytes_hz: caps.bytes_hz,
    };
    let mix = law.mix(&tick, &both).ok()?;
    let (rate_hz, cap) = caps.bound(mix.clock_hz);
    let bound_by = if cap == BoundBy::Law { mix.bound_by } else { cap };
    Some((Optimum { unbounded_hz: mix.unbounded_hz, rate_hz, bound_by }, mix.tick_hz))
}

/// The law's rate, what is owed included, within the caps.
fn within(law: &Law, schedule: Option<Schedule>, caps: &Caps) -> Optimum {
    let optimum = law.optimum(caps);
    let Some(schedule) = schedule else { return optimum };
    let unbounded_hz = schedule.made_good_hz(optimum.unbounded_hz);
    let (rate_hz, bound_by) = caps.bound(unbounded_hz);
    Optimum { unbounded_hz, rate_hz: rate_hz.max(0.0), bound_by }
}

fn caps(settings: &RateSettings, now: &Circumstances, budget_share: f64) -> Caps {
    let bytes_per_cpu_s = now.record_bytes * now.utilisation_cpus.max(1.0);
    let (load, budget) = (&now.load, budget_share * settings.budget_ratio);
    let slowdown = (budget + load.slowdown_spare_ratio - load.slowdown_fixed_ratio).max(0.0);
    let slowdown_hz = slowdown * 1e9 / now.cost.target.upper_ns().max(1.0);
    let (budget_hz, own_hz) = match settings.own_cpu_ratio {
        Some(own) => {
            let left = (budget_share * own + load.own_spare_cpus - load.own_fixed_cpus).max(0.0);
            (slowdown_hz, left / load.own_per_hz_cpus.max(f64::MIN_POSITIVE))
        }
        None => {
            let left = (budget_share * now.granted_ratio - now.cost.fixed_ratio).max(0.0);
            (slowdown_hz.min(left * 1e9 / now.cost.total_hi_ns.max(1.0)), f64::INFINITY)
        }
    };
    Caps {
        budget_hz,
        own_hz,
        kernel_hz: settings.ceiling_hz(),
        bytes_hz: settings.max_bytes_per_s / bytes_per_cpu_s,
    }
}
