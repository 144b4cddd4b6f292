//! `just store`: a week of ten targets, as fast as it can be written, and how long it takes to read ranges of it.
//!
//! The last two hours and the first of all come in windows of a minute, as the daemon writes them; the others in windows of
//! ten that are kept minute by minute, of which merged files are the same. `--folder F` keeps the week there, and reads one
//! that is there already.

#![allow(clippy::print_stdout, reason = "this is what it is for")]

// The daemon is a program and no library; what is measured of it is taken in here. Its tests run elsewhere.
#[allow(dead_code, unused_imports)]
#[path = "../../../profiler-daemon/src/export/mod.rs"]
mod export;
mod program;
#[allow(dead_code, unused_imports)]
#[path = "../../../profiler-daemon/src/store/mod.rs"]
mod store;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use profiler_core::merge::Range;
use program::Program;
use store::{Now, Query, RealDisk, Settings, Store, Window};

const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
const TARGETS: u64 = 10;
/// A Monday's midnight (UTC): 2026-11-16.
const BEGIN: u64 = 1_794_787_200 * SECOND;
/// After so many days it is short of two o'clock: as much of the last hour as can be is in windows.
const BEYOND: u64 = HOUR + 54 * MINUTE;
/// The boot's clock at the begin.
const BOOTED: u64 = BEGIN - DAY;
const READS: usize = 5;
/// Samples per second of each target, which is busy on one CPU.
const RATE_HZ: u64 = 50;

fn main() -> Result<()> {
    let temporary = tempfile::tempdir()?;
    let (mut folder, mut days) = (temporary.path().join("store"), 7);
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    while let Some(word) = words.next() {
        match (word.as_str(), words.next()) {
            ("--folder", Some(path)) => folder = PathBuf::from(path),
            ("--days", Some(number)) => days = number.parse().context("--days")?,
            _ => anyhow::bail!("give --folder FOLDER, --days NUMBER (2 at least) or nothing"),
        }
    }
    let end = BEGIN + days * DAY + BEYOND;
    if !folder.exists() {
        write(&folder, end)?;
    }
    disk(&folder)?;
    read_ranges(&folder, end)
}

fn write(folder: &Path, end: u64) -> Result<()> {
    let settings =
        Settings { age_ns: 7 * DAY, bytes: 2 << 30, hourly_after_ns: 5 * MINUTE, daily_after_ns: DAY };
    let mut store = Store::open(folder, settings, RealDisk)?;
    let programs: Vec<Program> = (0..TARGETS).map(Program::new).collect();
    let mut spent = Spent::default();
    let mut at = BEGIN;
    while at < end {
        let length = if (BEGIN + HOUR..end - BEYOND).contains(&at) { 10 * MINUTE } else { MINUTE };
        let now = Now { unix_ns: at + length, boot: "bench".to_owned(), monotonic_ns: at + length - BOOTED };
        for program in &programs {
            let profile = program.profile(at, length, RATE_HZ);
            let target = program.name();
            let (from_ns, to_ns) = (at - BOOTED, now.monotonic_ns);
            let window = Window { target, labels: BTreeMap::new(), boot: now.boot.clone(), from_ns, to_ns };
            spent.writing.time(|| store.write(&now, window, &profile)).context("a window")?;
        }
        while spent.merging.time(|| store.maintain(&now)) {}
        at += length;
    }
    let counters = store.counters();
    println!("written: {} windows, {} merges, {counters:?}", counters.written, counters.merged);
    println!("a window takes {} to write; merging took {} in all", spent.writing.mean(), spent.merging.all());
    ensure!(counters.evicted == 0 && counters.unmerged == 0, "{counters:?}");
    Ok(())
}

/// Time that something took.
#[derive(Default)]
struct Spent {
    writing: Sum,
    merging: Sum,
}

#[derive(Default)]
struct Sum {
    time: Duration,
    count: u32,
}

impl Sum {
    fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let done = work();
        self.time += begin.elapsed();
        self.count += 1;
        done
    }

    fn mean(&self) -> String {
        format!("{:.2} ms", self.time.as_secs_f64() * 1e3 / f64::from(self.count.max(1)))
    }

    fn all(&self) -> String {
        format!("{:.1} s", self.time.as_secs_f64())
    }
}

/// Files and bytes by level.
fn disk(folder: &Path) -> Result<()> {
    let mut levels: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for day in std::fs::read_dir(folder)? {
        let Ok(files) = std::fs::read_dir(day?.path()) else { continue };
        for file in files {
            let file = file?;
            let name = file.file_name().to_string_lossy().into_owned();
            let level =
                ["window", "hour", "day"].into_iter().find(|level| name.contains(level)).unwrap_or("other");
            let (count, bytes) = levels.entry(level).or_default();
            *count += 1;
            *bytes += file.metadata()?.len().next_multiple_of(4096);
        }
    }
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    for (level, (count, bytes)) in &levels {
        println!(
            "{count:>5} files of a {level}: {:.1} MiB, {:.0} KiB each",
            mib(*bytes),
            mib(*bytes) * 1024.0 / *count as f64
        );
    }
    println!("on disk: {:.1} MiB", mib(levels.values().map(|(_, bytes)| bytes).sum()));
    Ok(())
}

fn read_ranges(folder: &Path, end: u64) -> Result<()> {
    let yesterday = end - BEYOND - DAY;
    let ranges = [
        ("the last hour, partly in windows", end - HOUR, end),
        ("an hour of yesterday, in hours", yesterday + 9 * HOUR, yesterday + 10 * HOUR),
        ("an hour across two files", yesterday + 9 * HOUR + 30 * MINUTE, yesterday + 10 * HOUR + 30 * MINUTE),
        ("an hour of the first day, in days", BEGIN + 9 * HOUR, BEGIN + 10 * HOUR),
        ("the last 24 hours", end - DAY, end),
        ("yesterday, in hours", yesterday, yesterday + DAY),
        ("the first day, in days", BEGIN, BEGIN + DAY),
        ("all of it", BEGIN, end),
    ];
    for (what, from_unix_ns, to_unix_ns) in ranges {
        read(folder, what, Range { from_unix_ns, to_unix_ns }, Vec::new())?;
    }
    let first = Range { from_unix_ns: BEGIN, to_unix_ns: BEGIN + DAY };
    read(folder, "the first day, one target", first, vec![Program::new(3).name()])
}

fn read(folder: &Path, what: &str, range: Range, targets: Vec<String>) -> Result<()> {
    let seconds = (range.to_unix_ns - range.from_unix_ns) / SECOND;
    let watched = if targets.is_empty() { TARGETS } else { targets.len() as u64 };
    let query = Query { range, targets, labels: BTreeMap::new() };
    let mut times = Vec::new();
    let mut stacks = 0;
    for _ in 0..READS {
        let begin = Instant::now();
        let reading = store::read(folder, &query)?;
        times.push(begin.elapsed().as_secs_f64());
        stacks = reading.profile.stacks.len();
        let samples = reading.profile.run.samples;
        ensure!(samples == watched * seconds * RATE_HZ, "{what}: {samples} samples");
        ensure!(reading.gaps.is_empty() && reading.damaged.is_empty(), "{what}: {:?}", reading.gaps);
    }
    times.sort_by(f64::total_cmp);
    let (middle, worst) = (times[READS / 2], times[READS - 1]);
    println!("{what}: {middle:.3} s, worst of {READS} {worst:.3} s ({stacks} stacks)");
    Ok(())
}
