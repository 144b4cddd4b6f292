//! A store in a temporary folder, under a clock that the tests set.

mod beside;
mod bounds;
mod crash;
mod damage;
mod disks;
mod exports;
mod fixture;
mod merging;
mod spool;
mod week;

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use profiler_core::merge::Range;
use profiler_core::profile::{Outcome, SymbolizedProfile};
use tempfile::TempDir;

use super::time_range::TimeRange;
use super::*;
use crate::testing;

const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
/// A midnight (UTC): 2026-11-16.
const MIDNIGHT: u64 = 1_794_787_200 * SECOND;
const BOOT: &str = "5f1d2c3b-0000-4000-8000-000000000001";
/// The wall clock when the boot's clock was zero.
const BOOTED: u64 = MIDNIGHT - HOUR;

fn settings() -> StoreTerms {
    StoreTerms { age_ns: 7 * DAY, bytes: 1 << 30, hourly_after_ns: 15 * MINUTE, daily_after_ns: DAY }
}

/// A clock that runs evenly.
fn now(unix_ns: u64) -> Now {
    Now { unix_ns, boot: BOOT.to_owned(), monotonic_ns: unix_ns - BOOTED }
}

/// A child that another test forks holds what we hold for a moment, the lock of a store among it.
fn store(folder: &Path) -> Store {
    for _ in 0..200 {
        match Store::open(folder, settings(), RealDisk) {
            Err(StoreError::Busy(_)) => std::thread::sleep(std::time::Duration::from_millis(20)),
            opened => return opened.unwrap(),
        }
    }
    panic!("{} has another owner", folder.display());
}

/// A minute of a target: one stack with this much CPU time, in two windows.
fn profile(unix_ns: u64, cpu_ns: u64) -> SymbolizedProfile {
    let mut profile = testing::profile();
    profile.windows.truncate(2);
    profile.windows[0].end_ns = MINUTE / 2;
    (profile.windows[1].start_ns, profile.windows[1].end_ns) = (MINUTE / 2, MINUTE);
    profile.stacks = vec![testing::stack(&[3, 2, 1, 0], Outcome::Complete, 0..2, cpu_ns, cpu_ns)];
    profile.run.start_unix_ns = unix_ns;
    profile.run.duration_s = 60.0;
    profile.run.counts.samples = cpu_ns;
    profile
}

/// The window of a minute that begins now, of a clock that runs evenly.
fn window(target: &str, unix_ns: u64) -> TargetWindow {
    let from_ns = unix_ns - BOOTED;
    let labels = BTreeMap::from([("team".to_owned(), target.to_uppercase())]);
    TargetWindow {
        target: target.to_owned(),
        labels,
        boot: BOOT.to_owned(),
        from_ns,
        to_ns: from_ns + MINUTE,
        begin_unix_ns: unix_ns,
    }
}

/// Keeps a minute of a target.
fn keep<D: Disk>(store: &mut Store<D>, target: &str, unix_ns: u64, cpu_ns: u64) -> Result<(), NotKept> {
    store.write(&now(unix_ns + MINUTE), window(target, unix_ns), &profile(unix_ns, cpu_ns))
}

fn range(from_unix_ns: u64, to_unix_ns: u64) -> Query {
    Query::all(Range { from_unix_ns, to_unix_ns })
}

fn ever() -> Query {
    range(0, u64::MAX)
}

/// Reads for somebody who waits to the end.
fn read(folder: &Path, query: &Query) -> Result<RangeReading, StoreError> {
    super::read(folder, query, &|| true)
}

/// CPU time in a range (ns).
fn cpu_ns(folder: &Path, query: &Query) -> u64 {
    let reading = read(folder, query).unwrap();
    reading.profile.stacks.iter().map(|stack| stack.cpu_ns).sum()
}

/// The files of a store, hidden ones too, by their paths in it.
fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for day in listing::names(folder).unwrap_or_default() {
        for file in listing::names(&folder.join(&day)).unwrap_or_default() {
            found.push(format!("{day}/{file}"));
        }
    }
    found
}

/// Merges all that is due.
fn settle<D: Disk>(store: &mut Store<D>, unix_ns: u64) {
    while store.maintain(&now(unix_ns), &|| true) {}
}

#[test]
fn a_window_is_a_file_that_any_reader_opens() {
    let folder = TempDir::new().unwrap();
    let mut store = store(folder.path());
    keep(&mut store, "web@1_2/x", MIDNIGHT + 90 * SECOND, 600).unwrap();
    let files = files(folder.path());
    assert_eq!(files.len(), 1);
    assert!(
        files[0].starts_with("2026-11-16/00-01-30_window_60.000s_web@1-2-x_5f1d2c3b-3690000_"),
        "{files:?}"
    );
    let bytes = fs::read(folder.path().join(&files[0])).unwrap();
    let profile = crate::formats::pprof::read(bytes.as_slice()).unwrap();
    assert_eq!((profile.run.counts.samples, profile.run.target.as_str()), (600, "./server --port 80"));
    let mut unpacked = Vec::new();
    io::Read::read_to_end(&mut flate2::read::GzDecoder::new(bytes.as_slice()), &mut unpacked).unwrap();
    assert_eq!(store.counters().written, 1);
}

#[test]
fn ranges_targets_and_labels_are_read() {
    let folder = TempDir::new().unwrap();
    let mut store = store(folder.path());
    for minute in 0..10 {
        keep(&mut store, "web", MIDNIGHT + minute * MINUTE, 1 << minute).unwrap();
        keep(&mut store, "db", MIDNIGHT + minute * MINUTE, 1 << (minute + 20)).unwrap();
    }
    assert_eq!(cpu_ns(folder.path(), &ever()), 0x3ff | 0x3ff << 20);
    let third = range(MIDNIGHT + 2 * MINUTE, MIDNIGHT + 3 * MINUTE);
    assert_eq!(cpu_ns(folder.path(), &third), 0b100 | 0b100 << 20);
    let of_db = Query { targets: vec!["db".to_owned()], ..third.clone() };
    assert_eq!(cpu_ns(folder.path(), &of_db), 0b100 << 20);
    let labels = BTreeMap::from([("team".to_owned(), "WEB".to_owned())]);
    assert_eq!(cpu_ns(folder.path(), &Query { labels, ..third.clone() }), 0b100);
    // Half of a minute is one of its two windows.
    assert_eq!(cpu_ns(folder.path(), &range(MIDNIGHT, MIDNIGHT + MINUTE + MINUTE / 2)), 2 | 2 << 20);
    let reading = read(folder.path(), &of_db).unwrap();
    assert_eq!((reading.targets["db"], reading.targets.len(), reading.gaps.len()), (MINUTE, 1, 0));
}

#[test]
fn nothing_is_read_for_those_who_have_left() {
    let folder = TempDir::new().unwrap();
    let mut store = store(folder.path());
    for minute in 0..40 {
        keep(&mut store, "web", MIDNIGHT + minute * MINUTE, 1).unwrap();
    }
    let asked_until = |most: usize| {
        let asked = std::sync::atomic::AtomicUsize::new(0);
        let read = super::read(folder.path(), &ever(), &|| asked.fetch_add(1, Relaxed) < most);
        (read.map(|reading| reading.profile.run.counts.samples), asked.load(Relaxed))
    };
    // Once for each header, between, and for each file.
    let (whole, most) = asked_until(usize::MAX);
    assert_eq!((whole.unwrap(), most), (40, 81));
    for until in [0, 1, 39, 40, 41, 50, 80] {
        let (read, asked) = asked_until(until);
        assert!(matches!(read, Err(StoreError::Unwanted)), "{until}: {read:?}");
        // No file is opened after the first no; of the headers, the names are passed over.
        assert!(asked <= until.max(40) + 1, "{asked} of {until}");
    }
}

/// Whoever reads a range has opened its files: what is merged or removed meanwhile is in it, and nothing is read twice.
#[test]
fn what_goes_while_it_is_read_is_read_all_the_same() {
    let folder = TempDir::new().unwrap();
    let mut store = store(folder.path());
    for minute in 0..20 {
        keep(&mut store, "web", MIDNIGHT + minute * MINUTE, 1 << minute).unwrap();
    }
    let left = std::sync::Mutex::new(files(folder.path()));
    let asked = std::sync::atomic::AtomicUsize::new(0);
    let take_away = || {
        if asked.fetch_add(1, Relaxed) > 20 {
            left.lock()
                .unwrap()
                .pop()
                .into_iter()
                .for_each(|file| fs::remove_file(folder.path().join(file)).unwrap());
        }
        true
    };
    let reading = super::read(folder.path(), &ever(), &take_away).unwrap();
    assert_eq!((reading.profile.run.counts.samples, asked.into_inner()), ((1 << 20) - 1, 41));
    assert!(files(folder.path()).len() < 2);
}

#[test]
fn what_is_missing_is_said() {
    let folder = TempDir::new().unwrap();
    let mut store = store(folder.path());
    for minute in [1, 2, 5] {
        keep(&mut store, "web", MIDNIGHT + minute * MINUTE, 1).unwrap();
    }
    let reading = read(folder.path(), &range(MIDNIGHT, MIDNIGHT + 10 * MINUTE)).unwrap();
    let gaps: Vec<(u64, u64)> = reading
        .gaps
        .iter()
        .map(|gap| ((gap.from_unix_ns - MIDNIGHT) / MINUTE, (gap.to_unix_ns - MIDNIGHT) / MINUTE))
        .collect();
    assert_eq!(gaps, [(0, 1), (3, 5), (6, 10)]);
    let before = read(folder.path(), &range(MIDNIGHT - DAY, MIDNIGHT)).unwrap();
    assert!(before.profile.stacks.is_empty() && before.gaps.len() == 1);
}

#[test]
fn a_clock_that_is_set_back_overwrites_and_loses_nothing() {
    let folder = TempDir::new().unwrap();
    let mut store = store(folder.path());
    let mut keep_at = |wall_ns: u64, monotonic_ns: u64, cpu_ns: u64| {
        let mut window = window("web", wall_ns);
        (window.from_ns, window.to_ns) = (monotonic_ns, monotonic_ns + MINUTE);
        let now =
            Now { unix_ns: wall_ns + MINUTE, boot: BOOT.to_owned(), monotonic_ns: monotonic_ns + MINUTE };
        store.write(&now, window, &profile(wall_ns, cpu_ns))
    };
    keep_at(MIDNIGHT, 100 * MINUTE, 1).unwrap();
    keep_at(MIDNIGHT, 101 * MINUTE, 2).unwrap();
    keep_at(MIDNIGHT - HOUR, 102 * MINUTE, 4).unwrap();
    keep_at(MIDNIGHT + DAY, 103 * MINUTE, 8).unwrap();
    // The same moment of the same boot is kept once, whatever the wall clock says.
    assert!(matches!(keep_at(MIDNIGHT + 2 * DAY, 103 * MINUTE, 8), Err(NotKept::Taken)));
    assert!(matches!(keep_at(MIDNIGHT, 102 * MINUTE + 1, 16), Err(NotKept::Taken)));
    assert_eq!(cpu_ns(folder.path(), &ever()), 15);
    assert_eq!(cpu_ns(folder.path(), &range(MIDNIGHT, MIDNIGHT + MINUTE)), 3);
    settle(&mut store, MIDNIGHT + 5 * DAY);
    assert_eq!(cpu_ns(folder.path(), &ever()), 15);
    assert_eq!(cpu_ns(folder.path(), &range(MIDNIGHT, MIDNIGHT + MINUTE)), 3);
    assert_eq!(store.counters().dropped_refused, 2);
}

#[test]
fn a_store_has_one_owner_and_any_number_of_readers() {
    let folder = TempDir::new().unwrap();
    let mut first = store(folder.path());
    keep(&mut first, "web", MIDNIGHT, 1).unwrap();
    let second = Store::open(folder.path(), settings(), RealDisk).unwrap_err();
    assert!(second.to_string().contains("another sweetspot"), "{second}");
    assert_eq!(cpu_ns(folder.path(), &ever()), 1);
    drop(first);
    assert_eq!(store(folder.path()).size().0, 1);
}

#[test]
fn what_is_not_ours_is_left_alone() {
    let folder = TempDir::new().unwrap();
    let mut first = store(folder.path());
    keep(&mut first, "web", MIDNIGHT, 1).unwrap();
    drop(first);
    let strange = ["notes.txt", "2026-11-16/notes.txt", "2026-11-16/.hidden", "lost+found"];
    for file in strange {
        fs::write(folder.path().join(file), "mine").unwrap();
    }
    fs::create_dir(folder.path().join("2026-11-17.old")).unwrap();
    fs::write(folder.path().join("2026-11-18"), "no folder").unwrap();
    let mut store = store(folder.path());
    settle(&mut store, MIDNIGHT + 30 * DAY);
    assert_eq!(store.counters().expired, 1);
    for file in strange {
        assert!(folder.path().join(file).exists(), "{file}");
    }
    assert_eq!(store.size(), (0, 0));
    assert!(read(folder.path(), &ever()).unwrap().profile.stacks.is_empty());
    assert!(matches!(read(&folder.path().join("none"), &ever()), Err(StoreError::Unreadable { .. })));
}

/// Its target was idle for the first hour.
#[test]
fn a_window_that_begins_before_its_run_ends_when_the_run_does() {
    let folder = TempDir::new().unwrap();
    let mut store = store(folder.path());
    let run = MIDNIGHT + HOUR;
    let end = run + MINUTE;
    let idle = || TargetWindow { to_ns: end - BOOTED, ..window("web", MIDNIGHT) };
    let spool = Spool::open(folder.path(), 1 << 20);
    let (unnamed, _) = spool.read(&spool.write(idle(), &profile(run, 1)).unwrap()).unwrap();
    assert_eq!((unnamed.begin_unix_ns, unnamed.to_ns), (MIDNIGHT, end - BOOTED));
    store.write(&now(end), idle(), &profile(run, 1)).unwrap();
    let spans: Vec<Range> = store
        .index
        .values()
        .flat_map(|entry| entry.stamp.time_ranges.iter().map(|time_range| time_range.span()))
        .collect();
    assert_eq!(spans, [Range { from_unix_ns: MIDNIGHT, to_unix_ns: end }]);
    // The next one goes on where it ends.
    keep(&mut store, "web", end, 1).unwrap();
    let stamps: Vec<_> = store.index.values().map(|entry| &entry.stamp.time_ranges).collect();
    assert_eq!(TimeRanges::union(stamps.into_iter()).iter().count(), 1);
}
