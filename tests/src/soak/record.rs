//! The record of a run, one JSON line for each event with its time by the monotonic clock: enough to judge the run again later.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

/// The file, shared by all threads that record events.
#[derive(Clone)]
pub(super) struct Record(Arc<Mutex<File>>);

impl Record {
    /// A new one.
    pub(super) fn create(path: &Path) -> Result<Record> {
        Ok(Record(Arc::new(Mutex::new(File::create(path)?))))
    }

    /// Records an event now.
    pub(super) fn tell(&self, kind: &str, facts: Value) {
        self.tell_at(monotonic_ms(), kind, facts);
    }

    /// Records an event at a moment (ms).
    pub(super) fn tell_at(&self, at_ms: u64, kind: &str, mut facts: Value) {
        facts["at_ms"] = json!(at_ms);
        facts["kind"] = json!(kind);
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A record that cannot be written shows as polls that are missing.
        let _ = file.write_all(format!("{facts}\n").as_bytes());
    }
}

/// Everything that was recorded; a last line that was cut off is left out.
pub(super) fn read(path: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

/// Now, by the monotonic clock (ms).
pub(super) fn monotonic_ms() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from);
    now.map_or(0, |now| now.as_millis() as u64)
}
