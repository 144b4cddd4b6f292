//! Checks of settings that parse but are invalid, alone or together.

mod exports;
mod fleet;
mod relabel;
mod targets;

pub(super) use targets::check as targets;

use std::path::{Component, Path};

use super::{DaemonSettings, TargetSettings};
use crate::problem::Log;
use crate::sampling::InvalidSetting;
use crate::{MAX_BUDGET, Ratio, Span};

/// Longest path of a Unix socket (`sun_path` less its end).
const MAX_SOCKET: usize = 107;
/// Least room for profiles: a window of a big program takes a tenth of it.
const MIN_STORE_BYTES: u64 = 16 << 20;
/// Least memory: a sampler with its tables takes about half of it.
const MIN_MEMORY: u64 = 64 << 20;
/// Least memory for names, of which one big program takes half.
const MIN_SYMBOLS: u64 = 16 << 20;
/// Least room for profiles that wait.
const MIN_QUEUE: u64 = 1 << 20;
/// Most container runtimes.
const MAX_RUNTIMES: usize = 16;
/// Most labels of pods that become labels of profiles: each is in a series of metrics.
const MAX_POD_LABELS: usize = 16;
/// Longest parts of a pod label's key, as Kubernetes has it.
const MAX_LABEL_PREFIX: usize = 253;
const MAX_LABEL_NAME: usize = 63;
/// What is said of a key that is none.
const NO_POD_LABEL: &str =
    "`{}` is not a valid key of a pod label; write one such as app or app.kubernetes.io/name";
/// Most targets at a time: each takes events, memory and a share of the budget.
const MAX_TARGETS: u32 = 2000;
/// Most requests at a time: each holds a profile.
const MAX_REQUESTS: u32 = 1000;

/// Says in `log` what cannot be meant.
pub(super) fn combinations(settings: &DaemonSettings, log: &mut Log) {
    budget(settings, log);
    sampling(settings, log);
    store(settings, log);
    listen(settings, log);
    symbols(settings, log);
    containers(settings, log);
    fleet::check(settings, log);
    limits(settings, log);
    targets(settings, log);
    relabel::check(&settings.relabel, "relabel", &targets::OWN_LABELS, log);
    exports::check(settings, log);
}

/// A budget that can be kept. A target's may be above the host's: the one is a share of the target's own CPU time, the other
/// of all CPUs, and both hold.
fn check_budget(path: &str, budget: Ratio, log: &mut Log) {
    if budget.get() <= 0.0 || budget.get() > MAX_BUDGET {
        log.wrong_key(path, InvalidSetting::Budget(budget).to_string());
    }
}

fn budget(settings: &DaemonSettings, log: &mut Log) {
    check_budget("budget.host", settings.budget.host, log);
    check_budget("budget.target", settings.budget.target, log);
}

fn sampling(settings: &DaemonSettings, log: &mut Log) {
    let how = crate::SamplingSettings {
        rate: settings.sampling.rate,
        horizon: Some(settings.sampling.horizon),
        confidence: settings.sampling.confidence,
        ..crate::SamplingSettings::default()
    };
    if let Some(reason) = settings.sampling.backend.refused_by_service() {
        log.wrong_key("sampling.backend", reason.to_owned());
    }
    for problem in how.problems() {
        log.wrong_key(&format!("sampling.{}", problem.key()), problem.to_string());
    }
}

fn store(settings: &DaemonSettings, log: &mut Log) {
    let store = &settings.store;
    absolute("store.folder", &store.folder, log);
    let range = Span::from_secs(1)..=Span::from_secs(3600);
    if !range.contains(&store.window) {
        log.wrong_key(
            "store.window",
            format!("{} is not a valid window length; write 1s to 1h", store.window),
        );
    } else if store.age < store.window && log.are_read(&["store.age", "store.window"]) {
        let text =
            format!("{} is shorter than a window of {}; write a time such as 7d", store.age, store.window);
        log.wrong_key("store.age", text);
    }
    if store.bytes.get() < MIN_STORE_BYTES {
        log.wrong_key("store.bytes", format!("{} is too little; give at least 16MiB", store.bytes));
    }
    if store.daily_after < store.hourly_after && log.are_read(&["store.daily_after", "store.hourly_after"]) {
        let text = format!(
            "days are merged from hours, which take {} themselves; write at least that",
            store.hourly_after
        );
        log.wrong_key("store.daily_after", text);
    }
}

fn listen(settings: &DaemonSettings, log: &mut Log) {
    let listen = &settings.listen;
    absolute("listen.socket", &listen.socket, log);
    if listen.socket.as_os_str().len() > MAX_SOCKET {
        let text = format!("a socket's path has at most {MAX_SOCKET} bytes; write a shorter one");
        log.wrong_key("listen.socket", text);
    }
    if listen.mode.bits() & 0o007 != 0 {
        let text = format!(
            "{} gives every user access, and profiles are confidential; write 0660 or less",
            listen.mode
        );
        log.wrong_key("listen.mode", text);
    }
    if listen.group.is_empty() || listen.group.contains(|c: char| c.is_whitespace() || c == ':' || c == '/') {
        log.wrong_key("listen.group", "this is not a valid group name; `getent group` lists them");
    }
    tcp(settings, log);
}

fn tcp(settings: &DaemonSettings, log: &mut Log) {
    let listen = &settings.listen;
    let files = [
        ("listen.token_file", &listen.token_file),
        ("listen.metrics_token_file", &listen.metrics_token_file),
        ("listen.tls_certificate", &listen.tls_certificate),
        ("listen.tls_key", &listen.tls_key),
    ];
    for (path, file) in files {
        let Some(file) = file else { continue };
        absolute(path, file, log);
        if listen.tcp.is_none() && log.are_read(&["listen.tcp"]) {
            log.wrong_key(path, "this is for TCP, and there is no listen.tcp; write it too, or remove this");
        }
    }
    if listen.tcp.is_some() && listen.token_file.is_none() && log.are_read(&["listen.token_file"]) {
        log.wrong_key("listen.tcp", "TCP needs a token; write listen.token_file too");
    }
    match (&listen.tls_certificate, &listen.tls_key) {
        _ if !log.are_read(&["listen.tls_certificate", "listen.tls_key"]) => {}
        (Some(_), None) => log.wrong_key("listen.tls_certificate", "TLS needs listen.tls_key too"),
        (None, Some(_)) => log.wrong_key("listen.tls_key", "TLS needs listen.tls_certificate too"),
        _ => {}
    }
}

fn symbols(settings: &DaemonSettings, log: &mut Log) {
    for url in &settings.symbols.debuginfod {
        let host = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
        if host.is_none_or(|host| host.is_empty() || host.contains(char::is_whitespace)) {
            let text =
                format!("`{url}` is not a server address; write one such as https://debuginfod.debian.net/");
            log.wrong_key("symbols.debuginfod", text);
        }
    }
    if settings.symbols.memory.get() < MIN_SYMBOLS {
        let text = format!("{} is too little for names; give at least 16MiB", settings.symbols.memory);
        log.wrong_key("symbols.memory", text);
    }
}

fn containers(settings: &DaemonSettings, log: &mut Log) {
    let containers = &settings.containers;
    if containers.sockets.len() > MAX_RUNTIMES {
        log.wrong_key(
            "containers.sockets",
            format!("at most {MAX_RUNTIMES} sockets are queried; remove some"),
        );
    }
    for socket in &containers.sockets {
        if socket.as_os_str().len() > MAX_SOCKET {
            let text = format!("a socket's path has at most {MAX_SOCKET} bytes; write a shorter one");
            log.wrong_key("containers.sockets", text);
        } else {
            absolute("containers.sockets", socket, log);
        }
    }
    if containers.pod_labels.len() > MAX_POD_LABELS {
        let text = format!("at most {MAX_POD_LABELS} labels of pods are kept; remove some");
        log.wrong_key("containers.pod_labels", text);
    }
    for key in containers.pod_labels.iter().filter(|key| !is_pod_label(key)) {
        log.wrong_key("containers.pod_labels", NO_POD_LABEL.replace("{}", &key.escape_debug().to_string()));
    }
    let needs = settings.targets.iter().position(TargetSettings::needs_runtimes);
    if let Some(at) = needs.filter(|_| containers.sockets.is_empty() && log.are_read(&["containers.sockets"]))
    {
        let text = format!("target[{at}] needs a container runtime; name its socket");
        log.wrong_key("containers.sockets", text);
    }
}

/// Whether Kubernetes allows this key of a label: a name, after a prefix and a slash perhaps.
fn is_pod_label(key: &str) -> bool {
    let is_part = |part: &str, most: usize| {
        let is_inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let ends = [part.chars().next(), part.chars().next_back()];
        let ends_well = ends.iter().all(|end| end.is_some_and(|end| end.is_ascii_alphanumeric()));
        ends_well && part.len() <= most && part.chars().all(is_inner)
    };
    match key.split_once('/') {
        Some((prefix, name)) => is_part(prefix, MAX_LABEL_PREFIX) && is_part(name, MAX_LABEL_NAME),
        None => is_part(key, MAX_LABEL_NAME),
    }
}

fn limits(settings: &DaemonSettings, log: &mut Log) {
    let limits = &settings.limits;
    for (path, count, most) in
        [("limits.targets", limits.targets, MAX_TARGETS), ("limits.requests", limits.requests, MAX_REQUESTS)]
    {
        if !(1..=most).contains(&count) {
            log.wrong_key(path, format!("{count} is out of range; write 1 to {most}"));
        }
    }
    if limits.memory.get() < MIN_MEMORY {
        log.wrong_key("limits.memory", format!("{} is too little; give at least 64MiB", limits.memory));
    }
    if limits.queue.get() < MIN_QUEUE {
        log.wrong_key("limits.queue", format!("{} is too little; give at least 1MiB", limits.queue));
    }
    let known = log.are_read(&["limits.memory", "limits.queue", "symbols.memory"]);
    let parts = settings.symbols.memory.get().saturating_add(limits.queue.get());
    if known && parts >= limits.memory.get() {
        let text = format!(
            "names ({}) and profiles that wait ({}) leave nothing of {} for the rest; raise it, or lower symbols.memory \
             or limits.queue",
            settings.symbols.memory, limits.queue, limits.memory
        );
        let written =
            ["limits.memory", "symbols.memory", "limits.queue"].into_iter().find(|at| log.is_written(at));
        log.wrong_key(written.unwrap_or("limits.memory"), text);
    }
}

/// A path from the root, without steps back.
fn absolute(path: &str, file: &Path, log: &mut Log) {
    let from_the_root = file.is_absolute() && file.components().count() > 1;
    if !from_the_root || file.components().any(|part| part == Component::ParentDir) {
        let text = format!(
            "`{}` is not an absolute path; write one that begins with / and has no ..",
            file.display()
        );
        log.wrong_key(path, text);
    } else if file.as_os_str().as_encoded_bytes().contains(&0) {
        log.wrong_key(path, "a path cannot contain a zero byte; remove it");
    }
}
