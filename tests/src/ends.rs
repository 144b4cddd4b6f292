//! A daemon that is ended repeatedly, by `kill -9` or by a regular signal: which of its windows are in the store afterwards.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde::Serialize;

use crate::daemon::{Daemon, monotonic_ms, span_ms};

/// Time to write a window once it is handed over, on an overloaded machine.
const WRITTEN: Duration = Duration::from_millis(500);

/// The two clocks of a file's name are read one after the other.
const SLACK_MS: u64 = 20;

/// A daemon from its start to its end.
#[derive(Debug, Serialize)]
pub struct Life {
    from_ms: u64,
    signal_ms: u64,
    to_ms: u64,
    /// Windows that had ended by then, by target.
    windows: BTreeMap<String, u64>,
    /// From the signal to the end (s).
    pub end_s: f64,
    /// Exit status.
    pub status: i32,
    /// Windows of earlier daemons that it has named.
    pub recovered: u64,
    /// Windows that waited for names when it ended.
    pub unnamed: u64,
}

impl Life {
    /// Runs a daemon for a while, and ends it.
    pub fn of(daemon: &mut Daemon, from_ms: u64, lasts: Duration, signal: Signal) -> Result<Life> {
        sleep(lasts);
        let targets = daemon.targets()?;
        let ended = |target: &serde_json::Value| {
            Some((target["name"].as_str()?.to_owned(), target["windows"].as_u64()?))
        };
        let windows =
            targets.iter().map(|target| ended(target).context("no window")).collect::<Result<_>>()?;
        let store = daemon.ctl_json(&["status"])?["store"].clone();
        let count = |key: &str| store[key].as_u64().with_context(|| format!("no {key}: {store}"));
        let (recovered, unnamed) = (count("recovered")?, count("unnamed_files")?);
        sleep(WRITTEN);
        let (begun, signal_ms) = (Instant::now(), monotonic_ms()?);
        let status = daemon.stop(signal)?.status;
        let (end_s, to_ms) = (begun.elapsed().as_secs_f64(), monotonic_ms()?);
        Ok(Life { from_ms, signal_ms, to_ms, windows, end_s, status, recovered, unnamed })
    }

    /// Windows that had ended by its end.
    pub fn ended(&self) -> u64 {
        self.windows.values().sum()
    }

    /// Windows of it that are not in the store, by target.
    pub fn missing(&self, daemon: &Daemon) -> Result<BTreeMap<String, u64>> {
        let spans = spans_ms(daemon)?;
        let mut missing = BTreeMap::new();
        for (target, &ended) in &self.windows {
            let of_life = |(begin, _): &&(u64, u64)| (self.from_ms..self.to_ms).contains(begin);
            let there = spans.get(target).map_or(0, |spans| spans.iter().filter(of_life).count());
            if (there as u64) < ended {
                missing.insert(target.clone(), ended - there as u64);
            }
        }
        Ok(missing)
    }

    /// Whether the window is there that was open when the signal came, of a target that is always busy.
    pub fn has_open_window(&self, daemon: &Daemon, target: &str) -> Result<bool> {
        let spans = spans_ms(daemon)?;
        let ends = |(begin, end): &(u64, u64)| *begin < self.to_ms && end + SLACK_MS >= self.signal_ms;
        Ok(spans.get(target).is_some_and(|spans| spans.iter().any(ends)))
    }
}

/// Begin and end of all windows (ms of the monotonic clock), by the file's name of their target.
pub fn spans_ms(daemon: &Daemon) -> Result<BTreeMap<String, Vec<(u64, u64)>>> {
    let mut spans: BTreeMap<String, Vec<(u64, u64)>> = BTreeMap::new();
    for path in daemon.files()? {
        let name = path.file_name().context("a name")?.to_string_lossy().into_owned();
        let target = name.split('_').nth(3).context("a target")?.to_owned();
        spans.entry(target).or_default().push(span_ms(&path)?);
    }
    spans.values_mut().for_each(|spans| spans.sort_unstable());
    Ok(spans)
}

/// An error if a reader finds damage, or two windows of a target share any time.
pub fn ensure_sound(daemon: &Daemon) -> Result<()> {
    for (target, spans) in spans_ms(daemon)? {
        let overlap = spans.windows(2).find(|pair| pair[0].1 > pair[1].0 + SLACK_MS);
        ensure!(overlap.is_none(), "windows of {target} overlap: {overlap:?}");
    }
    let ended = daemon.report(&["--from", "-1h"])?.expect_status(0)?;
    ensure!(!ended.stderr.contains("damaged"), "{}", ended.stderr);
    Ok(())
}
