//! What it takes to read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;
use nix::sys::resource::UsageWho;
use profile_files::store::{self, Query};
use profiler_core::merge::Range;

use crate::program::Program;
use crate::spent::{Spent, cpu_time};
use crate::{BEGIN, DAY, HOUR, MINUTE, RATE_HZ, SECOND, TARGETS};

/// Hours and days that are read, spread over all the time there is, the last ones among them.
const RANGES: u64 = 20;

/// A range that was read.
struct Read {
    range: Range,
    spent: Spent,
    stacks: usize,
}

pub(crate) fn hours_and_days(folder: &Path, end: u64) -> Result<()> {
    for (what, length) in [("hour", HOUR), ("day", DAY)] {
        let mut reads = Vec::new();
        for at in 0..RANGES {
            let back = (end - BEGIN - length) / (RANGES - 1) * at / MINUTE * MINUTE;
            reads.push(read(
                folder,
                Range { from_unix_ns: end - back - length, to_unix_ns: end - back },
                None,
            )?);
        }
        tell(folder, &format!("the last {what}"), &reads[0])?;
        reads.sort_by_key(|read| read.spent.cpu);
        tell(folder, &format!("the middle one of {RANGES} {what}s"), &reads[reads.len() / 2])?;
        tell(folder, "the worst by CPU time", &reads[reads.len() - 1])?;
        reads.sort_by_key(|read| read.spent.wall);
        tell(folder, "the worst by the clock", &reads[reads.len() - 1])?;
    }
    let first = Range { from_unix_ns: BEGIN, to_unix_ns: BEGIN + DAY };
    tell(folder, "the first day of one target", &read(folder, first, Some(Program::new(3).name()))?)?;
    let all = Range { from_unix_ns: BEGIN, to_unix_ns: end };
    tell(folder, "all of it", &read(folder, all, None)?)
}

fn read(folder: &Path, range: Range, target: Option<String>) -> Result<Read> {
    let seconds = (range.to_unix_ns - range.from_unix_ns) / SECOND;
    let watched = if target.is_none() { TARGETS } else { 1 };
    let query = Query { range, targets: target.into_iter().collect(), labels: BTreeMap::new() };
    let mut spent = Spent::default();
    let reading = spent.on(|| store::read(folder, &query, &|| true))?;
    // Merged days keep ten minutes: what is cut at another one is on one side of it.
    let (samples, asked) = (reading.profile.run.counts.samples, watched * seconds * RATE_HZ);
    ensure!(samples.abs_diff(asked) <= watched * 20 * 60 * RATE_HZ, "{samples} samples of {asked}");
    ensure!(
        reading.gaps.is_empty() && reading.damaged.is_empty(),
        "{:?} {:?}",
        reading.gaps,
        reading.damaged
    );
    Ok(Read { range, spent, stacks: reading.profile.stacks.len() })
}

/// Says what a range took, beside `gzip -dc`.
fn tell(folder: &Path, what: &str, read: &Read) -> Result<()> {
    let files = files(folder, read.range)?;
    let gzip = unpacked_in(&files)?;
    let ratio = read.spent.cpu.as_secs_f64() / gzip.as_secs_f64().max(1e-3);
    println!(
        "{what}: {}; {} files, which gzip -dc unpacks in {:.2} s of CPU time: {ratio:.1} times that; {} stacks",
        read.spent,
        files.len(),
        gzip.as_secs_f64(),
        read.stacks,
    );
    Ok(())
}

/// The files that hold a part of the range.
fn files(folder: &Path, range: Range) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for day in std::fs::read_dir(folder)? {
        let day = day?;
        let Ok(date) = day.file_name().to_string_lossy().parse::<Date>() else { continue };
        for file in std::fs::read_dir(day.path())? {
            let file = file?;
            let name = file.file_name().to_string_lossy().into_owned();
            let (from, to) = span(date, &name).with_context(|| name.clone())?;
            if from < range.to_unix_ns && to > range.from_unix_ns {
                found.push(file.path());
            }
        }
    }
    Ok(found)
}

/// Begin and end of the file of this name.
fn span(date: Date, name: &str) -> Option<(u64, u64)> {
    let mut parts = name.split('_');
    let time = Time::strptime("%H-%M-%S", parts.next()?).ok()?;
    let from = date.to_datetime(time).to_zoned(TimeZone::UTC).ok()?.timestamp().as_second() as u64 * SECOND;
    let length: f64 = parts.nth(1)?.strip_suffix('s')?.parse().ok()?;
    Some((from, from + (length * SECOND as f64) as u64))
}

fn unpacked_in(files: &[PathBuf]) -> Result<Duration> {
    let before = cpu_time(UsageWho::RUSAGE_CHILDREN);
    let ended = Command::new("gzip").arg("-dc").args(files).stdout(Stdio::null()).status();
    ensure!(ended.context("gzip")?.success(), "gzip found a file damaged");
    Ok(cpu_time(UsageWho::RUSAGE_CHILDREN) - before)
}
