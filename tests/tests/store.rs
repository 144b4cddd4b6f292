//! The daemon's folder on real disks: one that is full, one that cannot be written to. Mounts them, so root alone runs it.

#![allow(clippy::print_stderr, reason = "a test that skips says why")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use profiler_core::merge::Range;
use profiler_core::profile::{
    Function, FunctionIndex, Line, Location, LocationIndex, ModuleIndex, ModuleInfo, Outcome, ProcessIndex,
    ProcessInfo, Run, StackWindow, SymbolizedProfile, WeightedStack, Window as Span,
};
use store::{Counters, Now, Query, RealDisk, Settings, Store, StoreError, Window};
use tempfile::TempDir;

// The daemon is a program and no library; what is tested of it is taken in here. Its own tests run elsewhere.
#[allow(dead_code, unused_imports)]
#[path = "../../profiler-daemon/src/export/mod.rs"]
mod export;
#[allow(dead_code, unused_imports)]
#[path = "../../profiler-daemon/src/store/mod.rs"]
mod store;

const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const BEGIN: u64 = 1_794_787_200 * SECOND;
/// Less than the settings allow.
const DISK: &str = "size=1m";

/// A file system in memory that goes with the test.
struct SmallDisk {
    folder: TempDir,
}

impl SmallDisk {
    /// Nothing where this may not be done.
    fn new() -> Result<Option<Self>> {
        let folder = TempDir::new()?;
        match mount(Some("tmpfs"), folder.path(), Some("tmpfs"), MsFlags::empty(), Some(DISK)) {
            Ok(()) => Ok(Some(Self { folder })),
            Err(error) => {
                eprintln!("skipped: no file system can be mounted ({error})");
                Ok(None)
            }
        }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn set_read_only(&self, read_only: bool) -> Result<()> {
        let read_only = if read_only { MsFlags::MS_RDONLY } else { MsFlags::empty() };
        let flags = MsFlags::MS_REMOUNT | read_only;
        mount(Some("tmpfs"), self.path(), Some("tmpfs"), flags, Some(DISK)).context("remount")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = umount2(self.folder.path(), MntFlags::MNT_DETACH);
    }
}

fn settings() -> Settings {
    Settings { age_ns: 1 << 60, bytes: 1 << 30, hourly_after_ns: 0, daily_after_ns: 1 << 60 }
}

fn open(folder: &Path) -> Result<Store, StoreError> {
    Store::open(folder, settings(), RealDisk)
}

fn now(unix_ns: u64) -> Now {
    Now { unix_ns, boot: "a boot".to_owned(), monotonic_ns: unix_ns - BEGIN + 1 }
}

/// A minute of a program whose names take this many bytes, in which nothing repeats.
fn minute(at: u64, bytes: usize) -> SymbolizedProfile {
    let mut random = fastrand::Rng::with_seed(at);
    let name: String = (0..bytes).map(|_| random.alphanumeric()).collect();
    SymbolizedProfile {
        processes: vec![ProcessInfo { pid: 1, comm: "web".to_owned() }],
        modules: vec![ModuleInfo { name: "web".to_owned(), path: "/bin/web".to_owned(), build_id: None }],
        functions: vec![Function { system_name: name.clone(), name, module: ModuleIndex(0), file: None }],
        locations: vec![Location {
            module: ModuleIndex(0),
            address: at,
            lines: vec![Line { function: FunctionIndex(0), line: 1 }],
            unknown: None,
        }],
        stacks: vec![WeightedStack {
            process: ProcessIndex(0),
            frames: vec![LocationIndex(0)],
            outcome: Outcome::Complete,
            samples: 1,
            cpu_ns: 1,
            windows: vec![StackWindow { window: 0, cpu_ns: 1, samples: 1 }],
        }],
        windows: vec![Span { start_ns: 0, end_ns: MINUTE }],
        run: Run { start_unix_ns: BEGIN + at * MINUTE, duration_s: 60.0, samples: 1, ..Run::default() },
    }
}

/// Whether a minute was kept.
fn keep(store: &mut Store, at: u64, bytes: usize) -> bool {
    let (begin, end) = (now(BEGIN + at * MINUTE), now(BEGIN + (at + 1) * MINUTE));
    let (from_ns, to_ns) = (begin.monotonic_ns, end.monotonic_ns);
    let window =
        Window { target: "web".to_owned(), labels: BTreeMap::new(), boot: begin.boot, from_ns, to_ns };
    store.write(&end, window, &minute(at, bytes)).is_ok()
}

fn samples(folder: &Path) -> Result<u64> {
    let range = Range { from_unix_ns: 0, to_unix_ns: u64::MAX };
    let reading = store::read(folder, &Query { range, targets: Vec::new(), labels: BTreeMap::new() })?;
    ensure!(reading.damaged.is_empty(), "{:?}", reading.damaged);
    Ok(reading.profile.run.samples)
}

/// Hidden files in the folders of days.
fn unfinished(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for day in fs::read_dir(folder)? {
        let Ok(files) = fs::read_dir(day?.path()) else { continue };
        for file in files {
            found.extend(Some(file?.path()).filter(|path| path.to_string_lossy().contains("/.")));
        }
    }
    Ok(found)
}

#[test]
fn a_full_disk_costs_windows_that_are_counted_and_nothing_else() -> Result<()> {
    let Some(disk) = SmallDisk::new()? else { return Ok(()) };
    let folder = disk.path().join("store");
    let mut store = open(&folder)?;
    let kept = (0..60).filter(|at| keep(&mut store, *at, 30_000)).count() as u64;
    let Counters { written, dropped_full, dropped_refused, .. } = store.counters();
    ensure!((written, dropped_full, dropped_refused) == (kept, 60 - kept, 0), "{:?}", store.counters());
    ensure!((10..60).contains(&kept), "the disk was not filled: {kept} of 60");
    ensure!(samples(&folder)? == kept && unfinished(&folder)?.is_empty(), "what was kept is there");

    // Nothing can be merged on a full disk; nothing is lost by trying.
    while store.maintain(&now(BEGIN + 7200 * SECOND)) {}
    ensure!(samples(&folder)? == kept, "merging lost something");
    ensure!(store.counters().unmerged == 1 && unfinished(&folder)?.is_empty(), "{:?}", store.counters());

    // Within a bound that the disk has room for, it goes on.
    let mut room = open_anew(store, &folder, Settings { bytes: 300 << 10, ..settings() })?;
    ensure!(keep(&mut room, 61, 30_000), "room is made by the oldest");
    ensure!(room.size().1 <= 300 << 10 && room.counters().evicted > 0, "{:?}", room.counters());
    while room.maintain(&now(BEGIN + 7200 * SECOND)) {}
    ensure!(room.counters().merged == 1, "{:?}", room.counters());
    Ok(())
}

fn open_anew(store: Store, folder: &Path, settings: Settings) -> Result<Store, StoreError> {
    drop(store);
    Store::open(folder, settings, RealDisk)
}

#[test]
fn a_disk_that_turns_read_only_is_read_on_and_written_later() -> Result<()> {
    let Some(disk) = SmallDisk::new()? else { return Ok(()) };
    let mut store = open(disk.path())?;
    ensure!(keep(&mut store, 0, 10) && keep(&mut store, 1, 10));
    disk.set_read_only(true)?;
    ensure!(!keep(&mut store, 2, 10) && store.counters().dropped_refused == 1, "{:?}", store.counters());
    while store.maintain(&now(BEGIN + 7200 * SECOND)) {}
    ensure!(samples(disk.path())? == 2, "a reader needs no right to write");
    disk.set_read_only(false)?;
    ensure!(keep(&mut store, 3, 10) && samples(disk.path())? == 3);
    drop(store);
    disk.set_read_only(true)?;
    let error = open(disk.path()).err().context("a store that nothing can be written to was opened")?;
    ensure!(error.to_string().contains("profiles cannot be kept in"), "{error}");
    Ok(())
}
