//! `just store`: a week of ten targets, as fast as it can be written, and what it takes to read hours and days of it.
//!
//! The first three hours and the last two come in windows of a minute, as the daemon writes them: of the first, writing and
//! merging are measured. The time in between comes in windows of an hour that are kept minute by minute, as merged hours
//! are. The bounds are held to after every step. CPU time counts all threads, and is set against what `gzip -dc` takes for the same
//! files; wall-clock time is the machine's of the moment. `--folder F` keeps the week there, and reads one that is there
//! already; `--days 2` is shorter.

#![allow(clippy::print_stdout, reason = "this is what it is for")]

mod program;
mod reads;
mod spent;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use config::DaemonSettings;
use profile_files::store::{Now, RealDisk, Store, StoreTerms, TargetWindow};
use program::Program;
use spent::Spent;

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
/// Samples per second of each target, which is busy on one CPU.
const RATE_HZ: u64 = 50;
/// So much is written as the daemon does it, and measured.
const MEASURED: u64 = 3 * HOUR;

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
    ensure!(days >= 2, "--days: give 2 at least");
    let end = BEGIN + days * DAY + BEYOND;
    if !folder.exists() {
        write(&folder, end)?;
    }
    disk(&folder)?;
    reads::hours_and_days(&folder, end)
}

/// What the daemon is shipped with.
fn settings() -> StoreTerms {
    let store = DaemonSettings::default().store;
    let ns = |span: config::Span| span.duration().as_nanos() as u64;
    StoreTerms {
        age_ns: ns(store.age),
        bytes: store.bytes.get(),
        hourly_after_ns: ns(store.hourly_after),
        daily_after_ns: ns(store.daily_after),
    }
}

fn write(folder: &Path, end: u64) -> Result<()> {
    let settings = settings();
    let mut store = Store::open(folder, settings, RealDisk)?;
    let programs: Vec<Program> = (0..TARGETS).map(Program::new).collect();
    let (mut writing, mut merging, mut days) = (Spent::default(), Spent::default(), Spent::default());
    let (mut at, mut most_bytes) = (BEGIN, 0);
    while at < end {
        let in_minutes = at < BEGIN + MEASURED || at >= end - BEYOND;
        let length = if in_minutes { MINUTE } else { HOUR };
        let now = Now { unix_ns: at + length, boot: "bench".to_owned(), monotonic_ns: at + length - BOOTED };
        for program in &programs {
            let profile = program.profile(at, length, RATE_HZ);
            let target = program.name();
            let window = TargetWindow {
                target,
                labels: BTreeMap::new(),
                boot: now.boot.clone(),
                from_ns: at - BOOTED,
                to_ns: now.monotonic_ns,
                begin_unix_ns: at,
            };
            let spent = if at < BEGIN + MEASURED { &mut writing } else { &mut Spent::default() };
            spent.on(|| store.write(&now, window, &profile)).context("a window")?;
        }
        let spent = if at < BEGIN + MEASURED { &mut merging } else { &mut days };
        while spent.on(|| store.maintain(&now, &|| true)) {}
        let (files, bytes) = store.size();
        ensure!(bytes <= settings.bytes, "{files} files of {bytes} bytes");
        most_bytes = most_bytes.max(bytes);
        at += length;
    }
    let counters = store.counters();
    ensure!(counters.evicted == 0 && counters.unmerged == 0 && counters.damaged == 0, "{counters:?}");
    println!("{counters:?}, never more than {:.1} MiB of {:.0}", mib(most_bytes), mib(settings.bytes));
    let a_day = |spent: &Spent| spent.cpu.as_secs_f64() * (DAY / MEASURED) as f64;
    let days_merged = ((end - BEGIN) / DAY - 1) as f64;
    println!(
        "a day of windows takes {:.0} s of CPU time to write, {:.1} ms each",
        a_day(&writing),
        writing.mean_ms()
    );
    println!(
        "and {:.0} s to merge into hours, and these {:.1} s to merge into a day",
        a_day(&merging),
        days.cpu.as_secs_f64() / days_merged
    );
    Ok(())
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
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
    for (level, (count, bytes)) in &levels {
        let each = mib(*bytes) * 1024.0 / *count as f64;
        println!("{count:>5} files of a {level}: {:.1} MiB, {each:.0} KiB each", mib(*bytes));
    }
    let (files, bytes) = levels.values().fold((0, 0), |sum, level| (sum.0 + level.0, sum.1 + level.1));
    println!("on disk: {files} files, {:.1} MiB", mib(bytes));
    Ok(())
}
