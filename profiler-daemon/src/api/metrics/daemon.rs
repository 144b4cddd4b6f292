//! Metrics of the daemon as a whole.

use std::fmt;

use super::{MetricFigure, MetricKind, Out, counter, gauge};
use crate::containers::RuntimeStatus;
use crate::fleet::FleetStatus;
use crate::service::state::{ExportStatus, Status};

const FIGURES: &[MetricFigure<Status>] = &[
    gauge("status_age_seconds", "Age of these figures; the loop publishes them every second.", |s| {
        Some(s.age_s)
    }),
    gauge("uptime_seconds", "Time since the daemon started.", |s| Some(s.uptime_s)),
    gauge("ready", "Whether the daemon samples what it can and keeps what it samples.", |s| {
        Some(flag(s.ready))
    }),
    gauge("degraded", "Problems; `sweetspot ctl status` lists them.", |s| Some(s.degraded.len() as f64)),
    gauge("settings_read_timestamp_seconds", "When the settings in force were read.", |s| {
        Some(s.settings.read_unix_s)
    }),
    gauge("settings_refused", "Whether the last reload of the settings failed.", |s| {
        Some(flag(s.settings.problem.is_some()))
    }),
    counter("settings_reloads", "Reloads of the settings.", |s| Some(s.settings.reloads as f64)),
    counter("settings_reloads_failed", "Reloads of the settings that failed.", |s| {
        Some(s.settings.reloads_failed as f64)
    }),
    gauge("host_cpus", "CPUs that are online.", |s| Some(s.host.cpus as f64)),
    gauge("host_budget_ratio", "Share of the CPU time of all CPUs that profiling may cost.", |s| {
        Some(s.host.budget_ratio)
    }),
    gauge("host_overhead_last_10s_ratio", "Share that profiling cost in the last ten seconds.", |s| {
        Some(s.host.overhead_last_10s_ratio)
    }),
    gauge("host_overhead_worst_10s_ratio", "Largest share that profiling cost in any ten seconds.", |s| {
        Some(s.host.overhead_worst_10s_ratio)
    }),
    counter("host_charged_cpu_seconds", "CPU time that samples took from targets and others.", |s| {
        Some(s.host.charged_s)
    }),
    counter("self_cpu_seconds", "CPU time of the daemon and its symbolizer process.", |s| {
        Some(s.host.self_cpu_s)
    }),
    counter("housekeeping_cpu_seconds", "CPU time of the daemon that belongs to no target.", |s| {
        Some(s.host.housekeeping_cpu_s)
    }),
    counter("host_busy_cpu_seconds", "CPU time of all programs of the host but the daemon.", |s| {
        Some(s.host.busy_cpu_s)
    }),
    counter("targets_cpu_seconds", "CPU time of all targets together.", |s| Some(s.host.targets_cpu_s)),
    gauge("memory_resident_bytes", "Resident memory of the daemon and its symbolizer process.", |s| {
        Some(s.memory.resident_bytes as f64)
    }),
    gauge("memory_rings_bytes", "Memory of rings, which is not in the resident memory.", |s| {
        Some(s.memory.ring_bytes as f64)
    }),
    gauge("memory_limit_bytes", "Memory limit of the daemon.", |s| Some(s.memory.limit_bytes as f64)),
    gauge("memory_symbols_bytes", "Memory of unwind tables and names.", |s| {
        Some(s.memory.symbol_bytes as f64)
    }),
    counter("memory_pressed", "Times that something was dropped because of the memory limit.", |s| {
        Some(s.memory.pressed as f64)
    }),
    gauge("symbolizer_apart", "Whether symbols are read in a confined process.", |s| {
        Some(flag(s.symbolizer.apart))
    }),
    counter("symbolizer_started", "Starts of the symbolizer process.", |s| Some(s.symbolizer.started as f64)),
    counter("symbolizer_broken", "Files that crashed or stalled the symbolizer process.", |s| {
        Some(s.symbolizer.broken as f64)
    }),
    gauge("open_files", "Open file descriptors.", |s| Some(s.memory.open_files as f64)),
    gauge("store_failing", "Whether the store cannot be written to at present.", |s| {
        Some(flag(s.store.problem.is_some()))
    }),
    gauge("store_files", "Files in the store.", |s| Some(s.store.files as f64)),
    gauge("store_size_bytes", "Size of the store.", |s| Some(s.store.bytes as f64)),
    gauge("store_limit_bytes", "Size limit of the store.", |s| Some(s.store.limit_bytes as f64)),
    gauge("store_window_seconds", "Current length of a target's windows.", |s| Some(s.store.window_s)),
    gauge("store_queued_bytes", "Approximate size of the windows that wait for the disk.", |s| {
        Some(s.store.queued_bytes as f64)
    }),
    counter("store_windows_written", "Windows that were written.", |s| Some(s.store.counters.written as f64)),
    counter("store_merges", "Merged files that were written.", |s| Some(s.store.counters.merged as f64)),
    counter("store_merges_failed", "Merges that failed.", |s| Some(s.store.counters.unmerged as f64)),
    gauge("store_unmerged_files", "Files that could not be merged and will be tried again.", |s| {
        Some(s.store.waiting.files as f64)
    }),
    gauge("store_unmerged_needed_bytes", "Space that is missing for the largest of these merges.", |s| {
        Some(s.store.waiting.needed_bytes as f64)
    }),
    gauge("store_unmerged_retry_seconds", "Time until the next attempt to merge.", |s| {
        Some(s.store.waiting.retry_s)
    }),
    counter("store_files_expired", "Files removed for their age.", |s| Some(s.store.counters.expired as f64)),
    counter("store_files_evicted", "Files removed to make room.", |s| Some(s.store.counters.evicted as f64)),
    counter("store_files_evicted_disk_full", "Files removed because other data had filled the disk.", |s| {
        Some(s.store.counters.evicted_disk_full as f64)
    }),
    counter("store_files_vanished", "Files that were removed by others.", |s| {
        Some(s.store.counters.vanished as f64)
    }),
    counter(
        "store_remade",
        "Times that the store's folder was removed or replaced, and created again.",
        |s| Some(s.store.counters.remade as f64),
    ),
    gauge("store_files_left_alone", "Files in the folder that cannot be read.", |s| {
        Some(s.store.left_alone_files as f64)
    }),
    counter("store_files_damaged", "Damaged files set aside.", |s| Some(s.store.counters.damaged as f64)),
    counter(
        "store_files_cleaned",
        "Files removed that an earlier process left half written or merged.",
        |s| Some(s.store.counters.cleaned as f64),
    ),
    counter("store_windows_recovered", "Windows of an earlier process that were named and stored.", |s| {
        Some(s.store.counters.recovered as f64)
    }),
    gauge("store_windows_unnamed", "Windows on disk that wait for names.", |s| {
        Some(s.store.unnamed_files as f64)
    }),
    counter("store_windows_unspooled", "Windows that waited for names in memory only.", |s| {
        Some(s.store.unspooled as f64)
    }),
    gauge(
        "fleet_answer_age_seconds",
        "Age of the last answer of the Prometheus that knows the fleet.",
        |s| asked_fleet(s)?.age_s,
    ),
    gauge("fleet_services", "Services in that answer.", |s| Some(asked_fleet(s)?.services as f64)),
    counter("fleet_requests", "Queries of the fleet's CPU time.", |s| Some(asked_fleet(s)?.asked as f64)),
    counter("fleet_failures", "Queries without a usable answer.", |s| Some(asked_fleet(s)?.failed as f64)),
    gauge("fleet_failing", "Whether the last query failed.", |s| {
        Some(flag(asked_fleet(s)?.problem.is_some()))
    }),
    counter("store_unsynced", "Changes that the disk did not confirm.", |s| {
        Some(s.store.counters.unsynced as f64)
    }),
];

/// Of each export.
const EXPORT_FIGURES: &[MetricFigure<ExportStatus>] = &[
    counter("export_windows_pushed", "Windows that the backend acknowledged.", |e| Some(e.pushed as f64)),
    counter("export_windows_refused", "Windows that the backend did not take.", |e| Some(e.refused as f64)),
    counter("export_windows_left_out", "Windows that the export's relabelling rules drop.", |e| {
        Some(e.left_out as f64)
    }),
    counter("export_windows_dropped", "Windows that were removed or damaged before they were sent.", |e| {
        Some(e.dropped as f64)
    }),
    counter(
        "export_sent_bytes",
        "Size of the windows that were acknowledged (by gRPC, before compression).",
        |e| Some(e.sent_bytes as f64),
    ),
    gauge("export_windows_pending", "Windows that wait to be sent.", |e| Some(e.pending as f64)),
    gauge("export_lag_seconds", "Age of the oldest window that waits to be sent.", |e| Some(e.lag_s)),
    gauge("export_failing", "Whether the last attempt to send failed.", |e| Some(flag(e.problem.is_some()))),
    gauge("export_retry_seconds", "Time until the next attempt.", |e| e.retry_s),
];

/// Of each container runtime that is asked.
const RUNTIME_FIGURES: &[MetricFigure<RuntimeStatus>] = &[
    gauge("runtime_containers", "Containers in the runtime's last response.", |r| Some(r.containers as f64)),
    counter("runtime_requests", "Requests to the container runtime.", |r| Some(r.asked as f64)),
    counter("runtime_failures", "Requests to the container runtime without a response.", |r| {
        Some(r.failed as f64)
    }),
    gauge("runtime_failing", "Whether the last request to the container runtime failed.", |r| {
        Some(flag(r.problem.is_some()))
    }),
];

/// Where a Prometheus is asked.
fn asked_fleet(status: &Status) -> Option<&FleetStatus> {
    status.fleet.as_ref().filter(|fleet| fleet.prometheus.is_some())
}

fn flag(is_so: bool) -> f64 {
    f64::from(u8::from(is_so))
}

/// Writes all of them.
pub(super) fn encode(status: &Status, out: &mut Out<'_>) -> fmt::Result {
    let build = [(vec![("version", status.version.clone())], 1.0)];
    out.series("build_info", MetricKind::Gauge, "Version of the daemon.", build)?;
    for figure in FIGURES {
        if let Some(value) = (figure.value)(status) {
            out.one(figure.name, figure.kind, figure.help, value)?;
        }
    }
    let counts = &status.targets;
    let by_state = [
        ("sampled", counts.sampled),
        ("waiting", counts.waiting),
        ("left_out", counts.left_out),
        ("failed", counts.failed),
        ("dropped", counts.dropped),
    ];
    let by_state = by_state.map(|(state, count)| (vec![("state", state.to_owned())], count as f64));
    out.series(
        "targets",
        MetricKind::Gauge,
        "Targets by state; relabelling rules drop those that are dropped.",
        by_state,
    )?;
    let store = &status.store;
    let by_reason = [
        ("queue", store.dropped_queue),
        ("full", store.counters.dropped_full),
        ("refused", store.counters.dropped_refused),
    ];
    let by_reason = by_reason.map(|(reason, count)| (vec![("reason", reason.to_owned())], count as f64));
    let help = "Windows that were dropped, by reason: the queue was full, the disk was full, or the disk \
                refused.";
    out.series("store_windows_dropped", MetricKind::Counter, help, by_reason)?;
    EXPORT_FIGURES.iter().try_for_each(|figure| {
        let labels = |export: &ExportStatus| vec![("export", export.name.clone())];
        let of_all =
            status.exports.iter().filter_map(|export| Some((labels(export), (figure.value)(export)?)));
        out.series(figure.name, figure.kind, figure.help, of_all)
    })?;
    RUNTIME_FIGURES.iter().try_for_each(|figure| {
        let labels = |runtime: &RuntimeStatus| vec![("socket", runtime.socket.clone())];
        let of_all =
            status.runtimes.iter().filter_map(|runtime| Some((labels(runtime), (figure.value)(runtime)?)));
        out.series(figure.name, figure.kind, figure.help, of_all)
    })
}
