//! Responses as text.

use std::fmt::Write;

use profile_files::names::visible;
use profile_files::when;
use profiler_core::rate::Replicas;

use super::shown::{
    Decisions, Message, ShownAttached, ShownDecision, ShownExport, ShownFleet, ShownStatus, ShownStore,
};

/// What the daemon says, on a line.
pub(super) fn message(message: &Message) -> String {
    visible(&message.message) + "\n"
}

/// What is watched now, and which targets lack processes for that time.
pub(super) fn attached(attached: &ShownAttached) -> String {
    let name = visible(&attached.name);
    let mut text = format!("profiling {name}; `sweetspot ctl detach {name}` ends it early\n");
    if !attached.takes_from.is_empty() {
        let from: Vec<String> = attached.takes_from.iter().map(|from| visible(from)).collect();
        let _ = writeln!(text, "until it ends, its processes are not counted in {}", from.join(", "));
    }
    text
}

/// The state of the daemon.
pub(super) fn status(status: &ShownStatus) -> String {
    let ready = if status.ready { "ready" } else { "NOT READY" };
    let (settings, counts, host, memory) = (&status.settings, &status.targets, &status.host, &status.memory);
    let file = settings.file.as_deref().map_or("the defaults".to_owned(), visible);
    let mut lines = vec![
        (
            "sweetspot",
            format!(
                "{}, process {}, {ready}, up {}",
                visible(&status.version),
                status.pid,
                time(status.uptime_s)
            ),
        ),
        ("settings", format!("{file}, read {}", moment(settings.read_unix_s))),
        (
            "targets",
            format!(
                "{} sampled, {} waiting, {} left out, {} failed{}",
                counts.sampled,
                counts.waiting,
                counts.left_out,
                counts.failed,
                if counts.dropped > 0 {
                    format!("; {} dropped by relabelling rules", counts.dropped)
                } else {
                    String::new()
                }
            ),
        ),
        (
            "overhead",
            format!(
                "{} of {} CPUs in the last 10 s, worst {}, budget {}; own CPU time {:.1} s, of it set-up {:.1} s",
                percent(host.overhead_last_10s_ratio),
                host.cpus,
                percent(host.overhead_worst_10s_ratio),
                percent(host.budget_ratio),
                host.self_cpu_s,
                host.setup_cpu_s,
            ),
        ),
        (
            "memory",
            format!(
                "{} and {} of rings, of {}, names {}, {} open files{}",
                size(memory.resident_bytes),
                size(memory.ring_bytes),
                size(memory.limit_bytes),
                size(memory.symbol_bytes),
                memory.open_files,
                if memory.pressed > 0 {
                    format!(", short of it {} times", memory.pressed)
                } else {
                    String::new()
                }
            ),
        ),
        ("store", store(&status.store)),
    ];
    lines.extend(status.exports.iter().map(|one| ("export", export(one))));
    let all = counts.sampled + counts.waiting + counts.left_out + counts.failed;
    lines.extend(status.fleet.iter().map(|one| ("fleet", fleet(one, all))));
    lines.extend(settings.problem.iter().map(|problem| ("problem", visible(problem))));
    lines.extend(status.store.problem.iter().map(|problem| ("problem", visible(problem))));
    let told = [settings.problem.as_ref(), status.store.problem.as_ref()];
    let others = status.degraded.iter().filter(|problem| !told.contains(&Some(*problem)));
    lines.extend(others.map(|problem| ("problem", visible(problem))));
    lines.iter().map(|(what, text)| format!("{what:<10} {text}\n")).collect()
}

fn store(store: &ShownStore) -> String {
    let mut text = format!(
        "{}, {} files, {} of {}",
        visible(&store.folder),
        store.files,
        size(store.bytes),
        size(store.limit_bytes)
    );
    if store.queued_bytes > 0 {
        let _ = write!(text, ", {} wait", size(store.queued_bytes));
    }
    if store.unnamed_files > 0 {
        let _ = write!(text, ", {} windows without names yet", store.unnamed_files);
    }
    let dropped = store.dropped_queue + store.dropped_full + store.dropped_refused;
    if dropped > 0 {
        let _ = write!(text, ", {dropped} windows dropped");
    }
    if store.damaged > 0 {
        let _ = write!(text, ", {} damaged files", store.damaged);
    }
    text
}

fn export(export: &ShownExport) -> String {
    let ShownExport { name, to, pushed, refused, left_out, dropped, sent_bytes, pending, .. } = export;
    let mut text =
        format!("{} to {}: {pushed} windows sent, {}", visible(name), visible(to), size(*sent_bytes));
    if *pending > 0 {
        let _ = write!(text, ", {pending} wait, the oldest for {}", time(export.lag_s));
    }
    for (count, what) in [(refused, "refused"), (left_out, "left out"), (dropped, "dropped")] {
        if *count > 0 {
            let _ = write!(text, ", {count} {what}");
        }
    }
    if let Some(problem) = &export.problem {
        let _ = write!(text, "; {}", visible(problem));
        let _ = write!(text, "; tried again in {}", time(export.retry_s.unwrap_or_default()));
    }
    text
}

fn fleet(fleet: &ShownFleet, targets: u64) -> String {
    let ShownFleet { prometheus, label, age_s, services, members } = fleet;
    let mut text = format!("{members} of {targets} targets have replicas elsewhere that are known");
    let Some(prometheus) = prometheus else { return text + " from the settings" };
    let _ = write!(text, ", by {} at {}", visible(label), visible(prometheus));
    let _ = match age_s {
        Some(age_s) => write!(text, ": {services} services {} ago", time(*age_s)),
        None => write!(text, ", which has not answered yet"),
    };
    text
}

/// That a rate is the law's for many, where it is.
pub(super) fn one_of_many(replicas: f64) -> Option<String> {
    let ratio = Replicas::new(replicas).rate_ratio();
    (replicas > 1.0).then(|| {
        format!("one of {replicas:.1} replicas, for which the law's rate is {ratio:.2} of that of one alone")
    })
}

/// The decisions, oldest first.
pub(super) fn decisions(decisions: &Decisions) -> String {
    let mut out = match decisions.shared_by {
        targets @ 2.. => {
            format!("one sampler for {targets} targets: the figures are of all of them together\n")
        }
        _ => String::new(),
    };
    out += &format!(
        "{:<25} {:>9} {:>9} {:<12} {:<8} {:>13} {:>8} {:>8} {:>6}\n",
        "time", "rate/s", "optimum", "reason", "bound by", "sample µs", "slowdown", "at most", "CPUs"
    );
    for decision in &decisions.decisions {
        out += &decided(decision);
    }
    if decisions.decisions.is_empty() {
        out += "none: the target is not sampled now\n";
    }
    let last = decisions.decisions.last().and_then(|decision| one_of_many(decision.replicas));
    out.extend(last.map(|text| format!("now {text}\n")));
    out
}

fn decided(decision: &ShownDecision) -> String {
    format!(
        "{:<25} {:>9.1} {:>9.1} {:<12} {:<8} {:>13} {:>8} {:>8} {:>6.2}\n",
        moment(decision.at_unix_s),
        decision.rate_hz,
        decision.optimum_rate_hz,
        visible(&decision.reason),
        visible(&decision.bound_by),
        format!("{:.2} ± {:.2}", decision.overhead_us, 1.96 * decision.overhead_se_us),
        percent(decision.slowdown_ratio),
        percent(decision.budget_ratio),
        decision.utilisation_cpus,
    )
}

/// A share of a hundred.
pub(super) fn percent(ratio: f64) -> String {
    format!("{:.2}%", ratio * 100.0)
}

fn moment(unix_s: f64) -> String {
    when::in_words((unix_s.max(0.0) * 1e9) as u64)
}

/// A time in the two units that tell most.
pub(super) fn time(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match whole {
        0..60 => format!("{whole} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        3600..86_400 => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
        _ => format!("{} days {} h", whole / 86_400, whole % 86_400 / 3600),
    }
}

fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut amount = bytes as f64 / 1024.0;
    let mut unit = 0;
    while amount >= 1024.0 && unit + 1 < UNITS.len() {
        amount /= 1024.0;
        unit += 1;
    }
    format!("{amount:.1} {}", UNITS[unit])
}
