//! What the law asks for under the budget and the caps: for a run, and for one that is only thought of.

use super::RateSettings;
use super::model::{BoundBy, Caps, Law};
use super::sample_cost::SampleCost;

/// Share of the budget that the controller aims at; the rest absorbs what it did not foresee.
pub(super) const BUDGET_MARGIN: f64 = 0.9;
/// Being above the budget's cap is never excused, so the rate is set this much below: noise must not cross it.
const CAP_MARGIN: f64 = 0.96;

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
}

/// The rate that is asked for (samples per CPU-second).
#[derive(Clone, Copy, Debug)]
pub(super) struct Aim {
    pub(super) unbounded_hz: f64,
    pub(super) optimum_hz: f64,
    pub(super) caps: Caps,
    pub(super) bound_by: BoundBy,
}

impl Aim {
    /// The law's rate within `budget_share` of the budget and within the caps.
    pub(super) fn new(settings: &RateSettings, now: &Circumstances, budget_share: f64) -> Self {
        let o_s = now.cost.target.mean_ns * 1e-9;
        let caps = caps(settings, now, budget_share);
        let law = Law::new(settings.criterion, now.spread, o_s, settings.horizon_s);
        let optimum = law.optimum(&caps);
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
        }
    }

    /// Where a retune goes: a little below the budget's cap.
    pub(super) fn target_hz(&self, settings: &RateSettings) -> f64 {
        settings.within_limits(self.optimum_hz.min(CAP_MARGIN * self.caps.budget_hz))
    }
}

fn caps(settings: &RateSettings, now: &Circumstances, budget_share: f64) -> Caps {
    let left = (budget_share * settings.budget_ratio - now.cost.fixed_ratio).max(0.0);
    let bytes_per_cpu_s = now.record_bytes * now.utilisation_cpus.max(1.0);
    Caps {
        budget_hz: left * 1e9 / now.cost.total_hi_ns.max(1.0),
        kernel_hz: settings.ceiling_hz(),
        bytes_hz: settings.max_bytes_per_s / bytes_per_cpu_s,
    }
}
