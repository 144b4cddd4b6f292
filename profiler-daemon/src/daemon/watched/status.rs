//! The status of a target, for requests.

use profiler_core::rate::{Account, RateController};

use super::super::window_writer::StoredWindows;
use super::{RecentDecisions, Watched};
use crate::run::{Engine, ShareStatus, summary};
use crate::service::state::{SamplingStatus, TargetState, TargetStatus, TargetTotals};

impl Watched {
    /// The status of the target.
    pub(in super::super) fn status(
        &self,
        kept: StoredWindows,
        now_ns: u64,
        shared: Option<(&Engine<RecentDecisions>, ShareStatus<'_>)>,
    ) -> TargetStatus {
        let totals = self.totals();
        let sampler =
            self.sampled.as_ref().map(|sampled| &sampled.engine).or(shared.map(|(engine, _)| engine));
        let weight_ns = sampler.map_or(0.0, |engine| 1e9 / engine.controller.rate_hz());
        let cpu_s = totals.cpu_s_interval(weight_ns);
        let mut status = TargetStatus {
            name: self.identity.name.clone(),
            labels: self.identity.labels.clone(),
            origin: self.identity.origin,
            state: self.shown_state(),
            reason: self.reason.clone(),
            ends_in_s: self.ends_ns.map(|ends_ns| ends_ns.saturating_sub(now_ns) as f64 * 1e-9),
            processes: self.processes.len(),
            budget_ratio: budget_ratio(self.sampling.budget.get(), sampler.map(|engine| &engine.controller)),
            own_budget_ratio: self.sampling.budget.get(),
            totals: TargetTotals {
                cpu_s: totals.cpu_ns as f64 * 1e-9,
                cpu_s_low: cpu_s.low,
                cpu_s_high: cpu_s.high,
                overhead_s: (totals.charged_ns + totals.turns_ns) as f64 * 1e-9,
                samples: totals.samples,
                lost: totals.lost,
                truncated: totals.truncated,
                unnamed: kept.unnamed,
                windows: self.windows,
            },
            ..TargetStatus::default()
        };
        if let Some(sampled) = &self.sampled {
            status.sampling = sampling_status(&sampled.engine, sampled.engine.controller.account());
            if !sampled.engine.notes.is_empty() {
                status.reason = Some(sampled.engine.notes.join("; "));
            }
        }
        if let Some((engine, share)) = shared {
            let all = sampling_status(engine, share.account);
            let overhead_us = share.sample_ns * 1e-3;
            // As uncertain, relative to it, as that of all: both are measured by the same probes.
            let relative_error = all.overhead_se_us.zip(all.overhead_us).map(|(se, mean)| se / mean);
            status.sampling = SamplingStatus {
                overhead_us: Some(overhead_us),
                overhead_se_us: relative_error.map(|ratio| ratio * overhead_us).filter(|se| se.is_finite()),
                ..all
            };
        }
        status
    }
}

impl Watched {
    /// The state to show: a target that stays attached to without a process counts as waiting.
    pub(in super::super) fn shown_state(&self) -> TargetState {
        if self.state == TargetState::Sampled && !self.has_processes() {
            return TargetState::Waiting;
        }
        self.state
    }
}

/// What everything that is spent on a target may take (ratio of CPU time): what its sampler was granted of the host's budget,
/// whether it is its own or shared. Without one, what its settings say.
fn budget_ratio(own: f64, sampler: Option<&RateController>) -> f64 {
    sampler.map_or(own, RateController::granted_ratio)
}

/// The figures of a sampler, and those of the one target that `account` is for.
fn sampling_status(engine: &Engine<RecentDecisions>, account: &Account) -> SamplingStatus {
    let cost = engine.controller.cost();
    SamplingStatus {
        attach_mode: Some(engine.attach_mode()),
        unwind: Some(engine.method()),
        rate_hz: Some(engine.controller.rate_hz()),
        optimum_rate_hz: engine.optimum_rate_hz(),
        overhead_us: Some(cost.target.mean_ns * 1e-3),
        overhead_se_us: Some(cost.target.se_ns * 1e-3),
        overhead_last_1s_ratio: Some(account.last_1s_ratio()),
        overhead_worst_1s_ratio: Some(account.worst_1s_ratio()),
        overhead_parts: Some(summary::parts(account)),
        slowdown_ratio: Some(account.last_10s_slowdown_ratio()),
        slowdown_worst_10s_ratio: Some(account.worst_10s_slowdown_ratio()),
        own_cpu_ratio: Some(account.last_10s_own_cpu_ratio()),
    }
}

#[cfg(test)]
mod tests {
    use profiler_core::rate::{CostModel, RateSettings};

    use super::*;

    #[test]
    fn the_budget_of_a_sampled_target_is_what_its_sampler_was_granted() {
        let mut controller = RateController::new(RateSettings::default(), CostModel::default());
        controller.grant(0.034);
        let granted = controller.granted_ratio();
        assert!((granted - 0.034).abs() < 1e-9, "{granted}");
        assert_eq!((budget_ratio(0.01, Some(&controller)), budget_ratio(0.01, None)), (granted, 0.01));
    }
}
