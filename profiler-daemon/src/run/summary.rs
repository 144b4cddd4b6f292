//! The end of a run: its figures, its names, its outputs.

use anyhow::Result;
use config::SamplingSettings;
use profiler_core::profile::{OverheadParts, Run};
use profiler_core::rate::Account;

use super::engine::{End, Engine};
use super::{Setup, names};
use crate::law;

/// Stacks without outer frames, as a share of all, from which the person is told.
const TRUNCATED_WORTH_A_NOTE: f64 = 0.005;

/// Names what was collected and writes every output.
pub(crate) fn deliver(
    engine: Engine,
    setup: &Setup,
    sampling: &SamplingSettings,
    target: String,
) -> Result<()> {
    let (session, outputs, end) = engine.end();
    let collected = session.finish();
    let mut run = run(&end, setup, sampling, target);
    run.weight_s = collected.weight_ns * 1e-9;
    // Where the kernel is not sampled its time is missing from the weights, rightly so.
    let reconciles = end.kernel_seen && run.weight_s > 0.0 && run.target_cpu_s > 0.0;
    let scale = if reconciles { run.target_cpu_s / run.weight_s } else { 1.0 };
    let profile = names::symbolize(&collected, scale, run);
    outputs.deliver(&profile, &law::share_interval(sampling.confidence.get()))
}

fn run(end: &End, setup: &Setup, sampling: &SamplingSettings, target: String) -> Run {
    let (account, cost) = (end.controller.account(), end.controller.cost());
    let decision = end.decision.as_ref();
    Run {
        target,
        start_unix_ns: end.start_unix_ns,
        duration_s: end.duration_ns as f64 * 1e-9,
        samples: end.counts.samples,
        lost: end.counts.lost,
        truncated: end.counts.truncated,
        undecodable: end.counts.undecodable,
        throttled: end.counts.throttled,
        foreign_samples: end.counts.foreign,
        target_cpu_s: end.target_cpu_ns as f64 * 1e-9,
        weight_s: 0.0,
        self_cpu_s: end.self_cpu_ns as f64 * 1e-9,
        setup_cpu_s: end.setup_cpu_ns as f64 * 1e-9,
        overhead_us: cost.target.mean_ns * 1e-3,
        overhead_se_us: cost.target.se_ns * 1e-3,
        self_us: end.self_cpu_ns as f64 * 1e-3 / end.counts.samples.max(1) as f64,
        overhead_ratio: account.ratio(),
        overhead_parts: parts(account),
        overhead_worst_1s_ratio: account.worst_1s_ratio(),
        overhead_worst_10s_ratio: account.worst_10s_ratio(),
        budget_ratio: sampling.budget.get(),
        rate_hz: decision.map_or(0.0, |decision| decision.rate_hz),
        optimum_rate_hz: decision.map_or(0.0, |decision| decision.optimum_rate_hz),
        unbounded_rate_hz: decision.map_or(0.0, |decision| decision.unbounded_rate_hz),
        bound_by: decision.map_or("", |decision| decision.bound_by.as_str()).to_owned(),
        retunes: decision.map_or(0, |decision| decision.retunes),
        attach_mode: end.attach_mode.as_str().to_owned(),
        event: "cpu-clock".to_owned(),
        unwind: end.settings.method.as_str().to_owned(),
        stack_copy_bytes: u64::from(end.settings.copied_bytes()),
        confidence: sampling.confidence.get(),
        seed: setup.seed,
        rate_history: end.history.clone(),
        notes: notes(end),
    }
}

fn parts(account: &Account) -> OverheadParts {
    let spent = account.spent();
    let ratio = |ns: f64| if account.target_cpu_s() > 0.0 { ns * 1e-9 / account.target_cpu_s() } else { 0.0 };
    OverheadParts {
        base_ratio: ratio(spent.base_ns),
        frames_ratio: ratio(spent.frames_ns),
        stack_ratio: ratio(spent.stack_ns),
        switches_ratio: ratio(spent.switches_ns),
        side_records_ratio: ratio(spent.side_records_ns),
        foreign_ratio: ratio(spent.foreign_ns),
        self_ratio: ratio(spent.self_ns),
        fixed_ratio: ratio(spent.fixed_ns()),
    }
}

fn notes(end: &End) -> Vec<String> {
    let mut notes = end.notes.clone();
    let truncated = end.counts.truncated as f64 / end.counts.samples.max(1) as f64;
    if truncated > TRUNCATED_WORTH_A_NOTE {
        notes.push(format!(
            "{:.1}% of the stacks lack outer frames; code without unwind information or deeper stacks than \
             can be copied are the usual reasons",
            truncated * 100.0
        ));
    }
    if end.counts.lost > 0 {
        notes.push(format!("{} records were lost, and made up for by their neighbours", end.counts.lost));
    }
    notes
}
