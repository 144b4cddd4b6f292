//! The end of a run: its figures, its names, its outputs.

use anyhow::Result;
use config::SamplingSettings;
use profiler_core::profile::Run;

use super::{Setup, names};
use super::engine::Engine;

/// Names what was collected and writes every output.
pub(crate) fn deliver(engine: Engine, setup: &Setup, sampling: &SamplingSettings, target: String) -> Result<()> {
    let end = engine.end();
    let collected = end.session.finish();
    let target_cpu_ns = end.target_cpu_ns as f64;
    let scale = if end.kernel_seen && collected.weight_ns > 0.0 { target_cpu_ns / collected.weight_ns } else { 1.0 };
    let run = Run {
        target,
        samples: end.counts.samples,
        lost: end.counts.lost,
        truncated: end.counts.truncated,
        undecodable: end.counts.undecodable,
        throttled: end.counts.throttled,
        foreign_samples: end.counts.foreign,
        target_cpu_s: target_cpu_ns / 1e9,
        weight_s: collected.weight_ns / 1e9,
        self_cpu_s: end.self_cpu_ns as f64 / 1e9,
        setup_cpu_s: setup.cpu_ns as f64 / 1e9,
        budget_ratio: sampling.budget.get(),
        rate_hz: end.controller.rate_hz(),
        overhead_ratio: end.controller.overhead_ratio(),
        overhead_us: setup.calibration.model.per_sample_ns.mean / 1e3,
        attach_mode: format!("{:?}", end.attach_to).to_lowercase(),
        unwind: format!("{:?}", end.settings.method).to_lowercase(),
        stack_copy_bytes: u64::from(end.settings.copied_bytes()),
        event: "cpu-clock".to_owned(),
        confidence: sampling.confidence.get(),
        seed: setup.seed,
        duration_s: end.duration_ns as f64 / 1e9,
        rate_history: end.history,
        notes: end.notes,
        ..Run::default()
    };
    let profile = names::symbolize(&collected, scale, run);
    end.outputs.deliver(&profile, &crate::law::share_interval(sampling.confidence.get()))
}
