//! Observes the daemon from outside: its process, its answers, and its files as they come and go.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};

use super::client::{Unanswered, get_json};
use super::record::Record;
use super::service::Service;
use crate::daemon::span_ms;
use crate::measured::cpu_with_children_s;

/// Timeout of a request for the status.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
const DAMAGED: &str = "damaged";
/// The unit of `/proc/stat` (s).
const TICK_S: f64 = 0.01;

/// Remembers earlier observations, to detect what is new.
pub(super) struct Observer {
    record: Record,
    files: BTreeSet<PathBuf>,
    damaged: BTreeSet<PathBuf>,
}

impl Observer {
    /// One that has seen nothing.
    pub(super) fn new(record: Record) -> Observer {
        Observer { record, files: BTreeSet::new(), damaged: BTreeSet::new() }
    }

    /// Reads the state of the process, and requests the status.
    pub(super) fn poll(&self, service: &Service) {
        let Some(pid) = service.pid() else { return };
        let begun = Instant::now();
        let status = get_json(&service.socket(), "/v1/status", PATIENCE);
        let took_ms = begun.elapsed().as_millis() as u64;
        let targets = get_json(&service.socket(), "/v1/targets", PATIENCE);
        match (status, targets) {
            (Ok(status), Ok(targets)) => {
                let mut facts = process(pid).unwrap_or_else(|_| json!({}));
                facts["took_ms"] = json!(took_ms);
                facts["status"] = status;
                facts["targets"] = targets;
                self.record.tell("poll", facts);
            }
            (Err(why), _) | (_, Err(why)) => self.unanswered("poll", why),
        }
    }

    /// `ctl status`, as an operator asks.
    pub(super) fn ctl_status(&self, service: &Service) {
        let begun = Instant::now();
        let Ok(ended) = service.ctl(&["status"]) else { return };
        let facts = json!({ "status": ended.status, "took_ms": begun.elapsed().as_millis() as u64, "said": ended.stderr });
        self.record.tell("ctl_status", facts);
    }

    fn unanswered(&self, who: &str, why: Unanswered) {
        self.record.tell("unanswered", json!({ "who": who, "why": format!("{why:?}") }));
    }

    /// Finds files that were added, removed and set aside.
    pub(super) fn look(&mut self, store: &Path) {
        // While the disk is being changed, a look may fail: the next one sees all.
        let Ok((files, damaged)) = list(store) else { return };
        for path in files.difference(&self.files) {
            if let Ok((from_ms, to_ms)) = span_ms(path) {
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let parts: Vec<&str> = name.split('_').collect();
                let bytes = fs::metadata(path).map_or(0, |found| found.len());
                let facts = json!({
                    "path": path, "level": parts[1], "target": parts[3],
                    "from_ms": from_ms, "to_ms": to_ms, "bytes": bytes,
                });
                self.record.tell("file", facts);
            }
        }
        for path in self.files.difference(&files) {
            self.record.tell("gone", json!({ "path": path }));
        }
        for path in damaged.difference(&self.damaged) {
            self.record.tell("set_aside", json!({ "path": path }));
        }
        (self.files, self.damaged) = (files, damaged);
    }

    /// Files of the store at the last observation, except those set aside.
    pub(super) fn files(&self) -> &BTreeSet<PathBuf> {
        &self.files
    }
}

fn list(store: &Path) -> Result<(BTreeSet<PathBuf>, BTreeSet<PathBuf>)> {
    let (mut files, mut damaged) = (BTreeSet::new(), BTreeSet::new());
    for folder in fs::read_dir(store)? {
        let folder = folder?.path();
        if !folder.is_dir() || folder.ends_with("unnamed") {
            continue; // what waits for its names is no file of the store yet
        }
        let list = if folder.ends_with(DAMAGED) { &mut damaged } else { &mut files };
        let found = fs::read_dir(&folder)?.flatten().map(|file| file.path());
        list.extend(found.filter(|path| path.to_string_lossy().ends_with(".pb.gz")));
    }
    Ok((files, damaged))
}

fn process(pid: u32) -> Result<Value> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let figure = |key: &str| -> Option<u64> {
        status.lines().find_map(|line| line.strip_prefix(key))?.split_whitespace().next()?.parse().ok()
    };
    Ok(json!({
        "pid": pid,
        "rss_kib": figure("VmRSS:"),
        "threads": figure("Threads:"),
        "descriptors": fs::read_dir(format!("/proc/{pid}/fd"))?.count(),
        "cpu_s": cpu_with_children_s(pid)?,
        "machine_s": machine_s()?,
    }))
}

/// CPU time of all processes since boot (s): user, nice, system.
fn machine_s() -> Result<f64> {
    let stat = fs::read_to_string("/proc/stat")?;
    let ticks = stat.split_whitespace().skip(1).take(3).map(str::parse::<f64>);
    Ok(ticks.sum::<Result<f64, _>>()? * TICK_S)
}
