//! How the rate moves towards the optimum.

use super::super::decision::RateReason;
use super::super::model::BoundBy;
use super::super::rate_target::BUDGET_MARGIN;
use super::RateController;

/// Between two retunes (ns), less the jitter of a step.
const RETUNE_NS: u64 = 950_000_000;
const FIRST_RETUNE_NS: u64 = 100_000_000;
/// What a retune needs since the last one: this many samples, or a CPU-second without them.
const RETUNE_SAMPLES: u64 = 10;
const RETUNE_CPU_NS: u64 = 1_000_000_000;
/// Gain in logarithms. With o growing as λ^η the update has slope 1 − g(1+2η/3): stable up to η = 2.25.
const GAIN: f64 = 0.8;
/// Limits for the change of the rate in one retune, as factors.
const MAX_STEP_UP: f64 = 2.0;
const MAX_STEP_DOWN: f64 = 0.25;
/// A settled rate is kept while it is within this factor of the optimum: the loss is flat, and a change is not free.
const DEAD_BAND: f64 = 1.2;
/// Once left, the optimum is approached this closely before the rate counts as settled again.
pub(in crate::rate) const SETTLED: f64 = 1.05;

/// The rate decided on, and what makes it move again.
#[derive(Clone, Debug)]
pub(in crate::rate) struct Retuning {
    /// Before the buckets (samples per CPU-second).
    pub(super) rate_hz: f64,
    pub(super) bound_by: BoundBy,
    /// Whether it has reached the optimum, and may stay in the dead band around it.
    pub(in crate::rate) settled: bool,
    pub(super) throttled: bool,
    pub(super) phase_changed: bool,
    /// The rate at the last retune of a run without a horizon.
    pub(super) noted_hz: f64,
    pub(super) retuned_ns: u64,
    /// Since the last retune.
    pub(super) samples_since: u64,
    pub(super) cpu_since_ns: u64,
    pub(super) retunes: u64,
}

impl Retuning {
    pub(super) fn new(rate_hz: f64) -> Self {
        Self {
            rate_hz,
            bound_by: BoundBy::Law,
            settled: false,
            throttled: false,
            phase_changed: false,
            noted_hz: rate_hz,
            retuned_ns: 0,
            samples_since: 0,
            cpu_since_ns: 0,
            retunes: 0,
        }
    }
}

impl RateController {
    /// Moves the rate to where the anytime law is now.
    pub(super) fn follow_schedule(&mut self, at_ns: u64) -> RateReason {
        let rate_target = self.rate_target(BUDGET_MARGIN);
        let distance = (rate_target.target_hz(&self.settings) / self.retuning.rate_hz).ln();
        self.retuning.bound_by = rate_target.bound_by;
        let factor = (GAIN * distance).exp().clamp(MAX_STEP_DOWN, MAX_STEP_UP);
        self.retuning.rate_hz = self.settings.within_limits(self.retuning.rate_hz * factor);
        let has_moved = (self.retuning.rate_hz / self.retuning.noted_hz).ln().abs() > DEAD_BAND.ln();
        if !has_moved || at_ns - self.retuning.retuned_ns < RETUNE_NS {
            return RateReason::Hold;
        }
        (self.retuning.retuned_ns, self.retuning.noted_hz) = (at_ns, self.retuning.rate_hz);
        self.count_retune()
    }

    fn count_retune(&mut self) -> RateReason {
        self.retuning.retunes = self.retuning.retunes.saturating_add(1);
        let is_another_phase = std::mem::take(&mut self.retuning.phase_changed);
        if is_another_phase { RateReason::PhaseChange } else { RateReason::Retune }
    }

    /// Moves the rate towards the law's, if it is time, there is evidence, and it is worth it.
    pub(super) fn retune(&mut self, at_ns: u64) -> RateReason {
        let rate_target = self.rate_target(BUDGET_MARGIN);
        let evidence =
            self.retuning.samples_since >= RETUNE_SAMPLES || self.retuning.cpu_since_ns >= RETUNE_CPU_NS;
        // At the start of a run everything is new, and a short run has no time to wait.
        let pause_ns =
            RETUNE_NS.min(self.retuning.retuned_ns.saturating_sub(self.began_ns).max(FIRST_RETUNE_NS));
        if !evidence || at_ns - self.retuning.retuned_ns < pause_ns {
            return RateReason::Hold;
        }
        let target_hz = rate_target.target_hz(&self.settings);
        let distance = (target_hz / self.retuning.rate_hz).ln();
        let cap_hz = rate_target.caps.budget_hz.min(rate_target.caps.own_hz);
        let over_budget = self.retuning.rate_hz > self.settings.within_limits(cap_hz);
        let band = if self.retuning.settled { DEAD_BAND } else { SETTLED };
        self.retuning.bound_by = rate_target.bound_by;
        if !over_budget && distance.abs() <= band.ln() {
            self.retuning.settled = true;
            return RateReason::Hold;
        }
        self.move_to(target_hz, distance, over_budget);
        (self.retuning.retuned_ns, self.retuning.samples_since, self.retuning.cpu_since_ns) = (at_ns, 0, 0);
        self.count_retune()
    }

    pub(super) fn move_to(&mut self, target_hz: f64, distance: f64, over_budget: bool) {
        let gain = if over_budget { 1.0 } else { GAIN };
        let factor = (gain * distance).exp().clamp(MAX_STEP_DOWN, MAX_STEP_UP);
        self.retuning.rate_hz = self.settings.within_limits(self.retuning.rate_hz * factor);
        self.retuning.settled = (target_hz / self.retuning.rate_hz).ln().abs() <= SETTLED.ln();
    }
}
