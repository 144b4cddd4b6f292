//! Runs the daemon under churn, load and faults for hours, records what happens, and checks it.

pub(crate) mod client;
mod clients;
mod cover;
mod faults;
mod growth;
mod judge;
mod kept;
mod load;
mod observe;
mod record;
mod service;
mod spent;

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use fastrand::Rng;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use serde_json::json;

use self::clients::Clients;
use self::faults::{Faults, Victims};
use self::load::Load;
use self::observe::Observer;
use self::record::Record;
use self::service::{Service, Terms};
use crate::experiment::progress;
use crate::guards::SmallDisk;

pub use self::judge::Line;
use self::judge::judge;

/// Size of the disk for profiles, and bounds on their size that the settings use (KiB): always less than the disk, down to the least
/// that is allowed.
const DISK_KIB: u32 = 24 << 10;
const STORE_KIB: [u32; 3] = [16 << 10, 17 << 10, 20 << 10];
/// Lengths of a window (s): short ones, so that much happens and the store fills up.
const WINDOWS_S: [u32; 3] = [5, 10, 20];
/// Share of the run in which the daemon's process is left alone.
const GENTLE_SHARE: f64 = 0.6;
const TICK: Duration = Duration::from_millis(250);
const LOOK_EVERY: Duration = Duration::from_millis(500);
const POLL_EVERY: Duration = Duration::from_secs(2);
const CTL_EVERY: Duration = Duration::from_secs(10);
const STEP_EVERY: Duration = Duration::from_secs(60);

/// Judges the run that left its record in a folder.
///
/// # Errors
///
/// If there is none, or the run was cut off.
pub fn judge_folder(folder: &Path) -> Result<Vec<Line>> {
    judge(&record::read(&record_file(folder))?)
}

fn record_file(folder: &Path) -> PathBuf {
    folder.join("record.jsonl")
}

/// Runs for so long, or until it is asked to end, and leaves what happened in a folder.
pub fn run(folder: &Path, time: Duration, seed: u64) -> Result<()> {
    fs::create_dir_all(folder)?;
    let asked_to_end = listen()?; // before there are threads
    let record = Record::create(&record_file(folder))?;
    record.tell("begin", json!({ "seed": seed, "seconds": time.as_secs() }));
    let disk = SmallDisk::new(DISK_KIB)?;
    let mut random = Rng::with_seed(seed);
    let mut load = Load::start(folder, record.clone())?;
    let terms =
        Terms { window_s: WINDOWS_S[0], budget_percent: 1.0, store_kib: STORE_KIB[0], hourly_after_s: 1800 };
    let store = disk.path().join("store");
    let mut service = Service::start(folder, store, load.sections(), terms, record.clone())?;
    let mut faults = Faults::new(random.u64(..), record.clone());
    let mut observer = Observer::new(record.clone());
    let clients = Clients::start(&service.socket(), &record);
    let begun = Instant::now();
    let mut clock = Clock::default();
    while begun.elapsed() < time && asked_to_end.read_signal()?.is_none() {
        let gently = begun.elapsed().as_secs_f64() < GENTLE_SHARE * time.as_secs_f64();
        load.tick(&mut random)?;
        if clock.due(3, STEP_EVERY) {
            load.step(&mut random)?;
            progress(&format!("{} of {} s", begun.elapsed().as_secs(), time.as_secs()));
        }
        if clock.due(0, LOOK_EVERY) {
            observer.look(service.store());
        }
        if clock.due(1, POLL_EVERY) {
            observer.poll(&service);
        }
        if clock.due(2, CTL_EVERY) {
            observer.ctl_status(&service);
        }
        if let Some(status) = service.has_ended() {
            record.tell("crashed", json!({ "status": status }));
            service.start_again()?;
        }
        let mut victims =
            Victims { service: &mut service, load: &mut load, observer: &observer, disk: disk.path() };
        faults.tick(&mut victims, gently)?;
        sleep(TICK);
    }
    drop(clients);
    let mut victims =
        Victims { service: &mut service, load: &mut load, observer: &observer, disk: disk.path() };
    faults.end(&victims)?;
    faults::end(&mut victims, &record, false)?;
    observer.look(service.store());
    count_again(&service, &observer, &record)?;
    fs::read_to_string(service.log()).map(|log| record.tell("log", json!({ "lines": notable(&log) })))?;
    Ok(())
}

/// A run that is ended early is still judged.
fn listen() -> Result<SignalFd> {
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
    signals.thread_block()?; // and so for all that is started: the daemon has to listen to them all the same
    Ok(SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?)
}

/// The store's sum, beside the sum of its files one by one.
fn count_again(service: &Service, observer: &Observer, record: &Record) -> Result<()> {
    let samples = |ended: &crate::run::Ended| -> Option<u64> {
        serde_json::from_str::<serde_json::Value>(&ended.stdout).ok()?["samples"].as_u64()
    };
    let whole = service.report(&[])?;
    let mut files = Vec::new();
    for file in observer.files() {
        files.push(json!({ "path": file, "samples": samples(&service.report_file(file)?) }));
    }
    let steady = service.report(&["--target", "steady"])?;
    let facts = json!({
        "files": files, "of_store": samples(&whole), "status": whole.status,
        "said": whole.stderr, "steady": serde_json::from_str::<serde_json::Value>(&steady.stdout).ok(),
    });
    record.tell("counted_again", facts);
    Ok(())
}

/// Lines of the log that are not routine.
fn notable(log: &str) -> Vec<&str> {
    log.lines().filter(|line| !line.trim_start().starts_with("INFO")).collect()
}

/// When each periodic task was last done.
#[derive(Default)]
struct Clock([Option<Instant>; 4]);

impl Clock {
    fn due(&mut self, which: usize, every: Duration) -> bool {
        let due = self.0[which].is_none_or(|last| last.elapsed() >= every);
        if due {
            self.0[which] = Some(Instant::now());
        }
        due
    }
}
