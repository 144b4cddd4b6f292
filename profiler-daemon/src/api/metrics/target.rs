//! Metrics of each target.

use std::fmt;

use super::{MetricFigure, MetricKind, Out, SeriesLabels, counter, gauge};
use crate::fleet::ReplicaSource;
use crate::service::state::{Origin, TargetState, TargetStatus};

const FIGURES: &[MetricFigure<TargetStatus>] = &[
    gauge("target_ends_in_seconds", "Time until the target ends.", |t| t.ends_in_s),
    gauge("target_processes", "Processes of the target.", |t| Some(t.processes as f64)),
    gauge("target_rate_hertz", "Samples per CPU-second.", |t| t.sampling.rate_hz),
    gauge("target_optimum_rate_hertz", "The rate that would minimise its error.", |t| {
        t.sampling.optimum_rate_hz
    }),
    gauge("target_sample_cost_seconds", "Cost of a sample to the target.", |t| {
        t.sampling.overhead_us.map(seconds)
    }),
    gauge("target_sample_cost_error_seconds", "Standard error of the cost of a sample.", |t| {
        t.sampling.overhead_se_us.map(seconds)
    }),
    gauge("target_overhead_last_1s_ratio", "Share of its CPU time spent on it in the last second.", |t| {
        t.sampling.overhead_last_1s_ratio
    }),
    gauge("target_overhead_worst_1s_ratio", "The largest such share of any second.", |t| {
        t.sampling.overhead_worst_1s_ratio
    }),
    gauge("target_slowdown_ratio", "Share of its CPU time taken from it in the last ten seconds.", |t| {
        t.sampling.slowdown_ratio
    }),
    gauge("target_slowdown_worst_10s_ratio", "The largest such share of any ten seconds.", |t| {
        t.sampling.slowdown_worst_10s_ratio
    }),
    gauge("target_own_budget_ratio", "Bound on its slowdown, as a share of its CPU time.", |t| {
        Some(t.own_budget_ratio)
    }),
    gauge(
        "target_own_cpu_ratio",
        "Share of one CPU that the profiler used for it in the last ten seconds.",
        |t| t.sampling.own_cpu_ratio,
    ),
    gauge(
        "target_budget_ratio",
        "Share of its CPU time that everything spent on it may take under the host's budget.",
        |t| Some(t.budget_ratio),
    ),
    gauge("fleet_replicas", "CPU time of its service on all hosts over that of the target.", |t| {
        t.fleet.as_ref().map(|fleet| fleet.replicas)
    }),
    gauge("fleet_alone", "Whether its number of replicas is unknown, so that it counts as one.", |t| {
        t.fleet.as_ref().map(|fleet| f64::from(u8::from(fleet.source == ReplicaSource::None)))
    }),
    counter("target_cpu_seconds", "CPU time of the target while it was profiled.", |t| Some(t.totals.cpu_s)),
    counter("target_overhead_cpu_seconds", "CPU time spent on profiling it.", |t| Some(t.totals.overhead_s)),
    counter("target_samples", "Samples that were taken.", |t| Some(t.totals.samples as f64)),
    counter("target_samples_lost", "Records that the kernel dropped.", |t| Some(t.totals.lost as f64)),
    counter("target_samples_truncated", "Samples without outer frames.", |t| Some(t.totals.truncated as f64)),
    counter("target_samples_unnamed", "Samples whose innermost function has no name.", |t| {
        Some(t.totals.unnamed as f64)
    }),
    counter("target_windows", "Windows that were handed to the store.", |t| Some(t.totals.windows as f64)),
];

fn seconds(us: f64) -> f64 {
    us / 1e6
}

fn state(state: TargetState) -> &'static str {
    match state {
        TargetState::Waiting => "waiting",
        TargetState::Sampled => "sampled",
        TargetState::LeftOut => "left_out",
        TargetState::Failed => "failed",
    }
}

/// What a target is, in labels of a series of its own: they change, and every other series should not end then.
fn info(target: &TargetStatus) -> SeriesLabels<'static> {
    let origin = match target.origin {
        Origin::Settings => "settings",
        Origin::Request => "request",
    };
    let attach_mode = target.sampling.attach_mode.map_or("", |mode| mode.as_str());
    let unwind = target.sampling.unwind.map_or("", |method| method.as_str());
    vec![
        ("target", target.name.clone()),
        ("state", state(target.state).to_owned()),
        ("origin", origin.to_owned()),
        ("attach_mode", attach_mode.to_owned()),
        ("unwind", unwind.to_owned()),
    ]
}

/// What labels are called in metrics: of letters, digits and _, each once.
fn label_names<'k>(keys: impl Iterator<Item = &'k String>) -> Vec<String> {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let mut names: Vec<String> = Vec::new();
    for key in keys {
        let mut name: String = "label_".chars().chain(key.chars().map(plain)).collect();
        while names.contains(&name) {
            name.push('_');
        }
        names.push(name);
    }
    names
}

/// What the overhead is made of.
fn parts(target: &TargetStatus) -> Vec<(SeriesLabels<'static>, f64)> {
    let Some(parts) = &target.sampling.overhead_parts else { return Vec::new() };
    let parts = [
        ("base", parts.base_ratio),
        ("frames", parts.frames_ratio),
        ("stack", parts.stack_ratio),
        ("unseen", parts.unseen_ratio),
        ("switches", parts.switches_ratio),
        ("side_records", parts.side_records_ratio),
        ("foreign", parts.foreign_ratio),
        ("self", parts.self_ratio),
    ];
    let labels = |part: &str| vec![("target", target.name.clone()), ("part", part.to_owned())];
    parts.map(|(part, ratio)| (labels(part), ratio)).to_vec()
}

/// Writes all of them.
pub(super) fn encode(targets: &[TargetStatus], out: &mut Out<'_>) -> fmt::Result {
    let infos = targets.iter().map(|target| (info(target), 1.0));
    out.series("target_info", MetricKind::Gauge, "Information about the target; always 1.", infos)?;
    let names: Vec<Vec<String>> = targets.iter().map(|target| label_names(target.labels.keys())).collect();
    let labels = targets.iter().zip(&names).map(|(target, names)| {
        let own = std::iter::once(("target", target.name.clone()));
        let given =
            names.iter().zip(target.labels.values()).map(|(name, text)| (name.as_str(), text.clone()));
        (own.chain(given).collect(), 1.0)
    });
    out.series("target_labels", MetricKind::Gauge, "Labels of the target; always 1.", labels)?;
    let figures = FIGURES.iter();
    for figure in figures {
        let series = targets
            .iter()
            .filter_map(|target| Some((vec![("target", target.name.clone())], (figure.value)(target)?)));
        out.series(figure.name, figure.kind, figure.help, series)?;
    }
    let help = "Share of its CPU time that each part of the overhead took since it was attached to.";
    out.series("target_overhead_part_ratio", MetricKind::Gauge, help, targets.iter().flat_map(parts))?;
    let fixed = targets.iter().filter_map(|target| {
        Some((vec![("target", target.name.clone())], target.sampling.overhead_parts.as_ref()?.fixed_ratio))
    });
    out.series(
        "target_overhead_fixed_ratio",
        MetricKind::Gauge,
        "Part of the overhead that no sample causes.",
        fixed,
    )
}
