//! Faults at random times, in random order: every kind comes once before any comes again.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fastrand::Rng;
use nix::sys::signal::Signal;
use serde_json::json;

use super::load::Load;
use super::observe::{Observer, PATIENCE};
use super::record::{Record, monotonic_ms};
use super::service::{Service, Terms};

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The daemon is killed and started again.
    Kill,
    /// It is ended by a signal, and started again.
    Terminate,
    /// It is ended by `ctl stop`, and started again.
    Stop,
    /// Its settings change.
    Reload,
    /// Its settings become invalid.
    BadReload,
    /// The disk is full for a minute.
    FullDisk,
    /// A target is killed.
    KillTarget,
    /// A target is stopped for a while.
    StopTarget,
    /// A byte of a stored file changes.
    Damage,
    /// A request adds a process as a target for some seconds.
    Attach,
}

/// Those that leave the daemon's process alone, so that its growth can be seen.
const GENTLE: [Fault; 10] = [
    Fault::Reload,
    Fault::Reload,
    Fault::BadReload,
    Fault::FullDisk,
    Fault::KillTarget,
    Fault::KillTarget,
    Fault::StopTarget,
    Fault::Damage,
    Fault::Damage,
    Fault::Attach,
];
/// All of them.
const ALL: [Fault; 13] = [
    Fault::Kill,
    Fault::Kill,
    Fault::Terminate,
    Fault::Stop,
    Fault::Stop,
    Fault::Kill,
    Fault::Reload,
    Fault::BadReload,
    Fault::FullDisk,
    Fault::KillTarget,
    Fault::StopTarget,
    Fault::Damage,
    Fault::Attach,
];
/// Time between two of them (s).
const PAUSE_S: std::ops::Range<u64> = 15..45;
const FULL_MS: u64 = 60_000;
const STILL_MS: u64 = 20_000;
/// How long it may take until settings are read.
const READ: Duration = Duration::from_secs(10);

/// Faults that end later.
enum After {
    Room(PathBuf),
    Continue(&'static str),
}

/// Those that are to come.
pub(super) struct Faults {
    random: Rng,
    deck: Vec<Fault>,
    is_gentle: bool,
    next_ms: u64,
    after: Vec<(u64, After)>,
    record: Record,
}

/// What faults act on.
pub(super) struct Victims<'v> {
    /// The daemon.
    pub(super) service: &'v mut Service,
    /// Its targets.
    pub(super) load: &'v mut Load,
    /// What is known of its files.
    pub(super) observer: &'v Observer,
    /// Where its disk is mounted.
    pub(super) disk: &'v Path,
}

impl Faults {
    /// None has come yet.
    pub(super) fn new(seed: u64, record: Record) -> Faults {
        let next_ms = monotonic_ms() + 20_000;
        let (random, deck, after) = (Rng::with_seed(seed), Vec::new(), Vec::new());
        Faults { random, deck, is_gentle: true, next_ms, after, record }
    }

    /// Causes the faults that are due; `gently` leaves the daemon's process alone.
    pub(super) fn tick(&mut self, victims: &mut Victims<'_>, gently: bool) -> Result<()> {
        let now_ms = monotonic_ms();
        self.end_due(victims, now_ms)?;
        if now_ms < self.next_ms {
            return Ok(());
        }
        self.next_ms = now_ms + 1000 * self.random.u64(PAUSE_S);
        let fault = self.draw(gently);
        self.record.tell("fault", json!({ "fault": format!("{fault:?}") }));
        self.happen(fault, victims).with_context(|| format!("{fault:?}"))
    }

    /// Ends what has begun.
    pub(super) fn end(&mut self, victims: &Victims<'_>) -> Result<()> {
        self.end_due(victims, u64::MAX)
    }

    fn draw(&mut self, gently: bool) -> Fault {
        if self.deck.is_empty() || self.is_gentle != gently {
            self.deck = if gently { GENTLE.to_vec() } else { ALL.to_vec() };
            self.is_gentle = gently;
            self.random.shuffle(&mut self.deck);
        }
        self.deck.pop().unwrap_or(Fault::Reload)
    }

    fn end_due(&mut self, victims: &Victims<'_>, now_ms: u64) -> Result<()> {
        let (due, later) = std::mem::take(&mut self.after).into_iter().partition(|(at, _)| *at <= now_ms);
        self.after = later;
        for (_, after) in due {
            match after {
                After::Room(filler) => {
                    fs::remove_file(filler)?;
                    self.record.tell("disk_free", json!({}));
                }
                After::Continue(name) => victims.load.signal(name, Signal::SIGCONT)?,
            }
        }
        Ok(())
    }

    fn happen(&mut self, fault: Fault, victims: &mut Victims<'_>) -> Result<()> {
        match fault {
            Fault::Kill => {
                // What was sampled until here is known to be sampled.
                victims.observer.poll(victims.service);
                self.record.tell("kill", json!({}));
                victims.service.signal(Signal::SIGKILL)?;
                victims.service.ended("kill")?;
                victims.service.start_again()
            }
            Fault::Terminate => {
                end(victims, &self.record, false)?;
                victims.service.start_again()
            }
            Fault::Stop => {
                end(victims, &self.record, true)?;
                victims.service.start_again()
            }
            Fault::Reload => self.reload(victims),
            Fault::BadReload => self.bad_reload(victims),
            Fault::FullDisk => self.fill(victims.disk),
            Fault::KillTarget => victims.load.kill(victims.load.any(&mut self.random)),
            Fault::StopTarget => {
                let name = victims.load.any(&mut self.random);
                self.after.push((monotonic_ms() + STILL_MS, After::Continue(name)));
                victims.load.signal(name, Signal::SIGSTOP)
            }
            Fault::Damage => self.damage(victims),
            Fault::Attach => {
                let me = std::process::id().to_string();
                let ended = victims.service.ctl(&["attach", &me, "--duration", "20s"])?;
                self.record.tell("attach", json!({ "status": ended.status, "said": ended.stderr }));
                Ok(())
            }
        }
    }

    fn reload(&mut self, victims: &mut Victims<'_>) -> Result<()> {
        let pick = |random: &mut Rng, list: &[u32]| list[random.usize(..list.len())];
        let terms = Terms {
            window_s: pick(&mut self.random, &super::WINDOWS_S),
            budget_percent: f64::from(pick(&mut self.random, &[5, 7, 10])) / 10.0,
            store_kib: pick(&mut self.random, &super::STORE_KIB),
            hourly_after_s: pick(&mut self.random, &[60, 1800, 1800]),
        };
        let before = reloads(victims.service);
        victims.service.write_settings(terms)?;
        victims.service.signal(Signal::SIGHUP)?;
        let (done, failed) = self.read_again(victims.service, before);
        let terms = json!([terms.window_s, terms.budget_percent, terms.store_kib, terms.hourly_after_s]);
        self.record.tell("reload", json!({ "good": true, "done": done, "failed": failed, "terms": terms }));
        Ok(())
    }

    fn bad_reload(&mut self, victims: &mut Victims<'_>) -> Result<()> {
        let nonsense = [
            "[stroe]\nfolder = 3\n",
            "[[target]]\nnam = \"a\"\n",
            "\u{0}\u{1}=",
            "[budget]\nhost = \"-4%\"\n",
        ];
        let before = reloads(victims.service);
        fs::write(victims.service.settings(), nonsense[self.random.usize(..nonsense.len())])?;
        victims.service.signal(Signal::SIGHUP)?;
        let (done, failed) = self.read_again(victims.service, before);
        self.record.tell("reload", json!({ "good": false, "done": done, "failed": failed }));
        victims.service.write_settings(victims.service.terms)
    }

    /// Waits until the settings were read again; whether they were, and whether that failed.
    fn read_again(&self, service: &Service, before: (u64, u64)) -> (bool, bool) {
        let begun = Instant::now();
        while begun.elapsed() < READ {
            let (reloads, failed) = reloads(service);
            if reloads > before.0 {
                return (true, failed > before.1);
            }
            sleep(Duration::from_millis(50));
        }
        (false, false)
    }

    fn fill(&mut self, disk: &Path) -> Result<()> {
        if self.after.iter().any(|(_, after)| matches!(after, After::Room(_))) {
            return Ok(());
        }
        let path = disk.join("filler");
        let mut filler = File::create(&path)?;
        let piece = vec![1_u8; 4096];
        while filler.write_all(&piece).is_ok() {}
        self.record.tell("disk_full", json!({ "filler_bytes": filler.metadata()?.len() }));
        self.after.push((monotonic_ms() + FULL_MS, After::Room(path)));
        Ok(())
    }

    /// Flips a bit, and checks whether a reader detects it.
    fn damage(&mut self, victims: &Victims<'_>) -> Result<()> {
        let files: Vec<&PathBuf> = victims.observer.files().iter().collect();
        if files.is_empty() {
            return Ok(());
        }
        let path = files[self.random.usize(..files.len())];
        let Ok(file) = File::options().read(true).write(true).open(path) else { return Ok(()) };
        let length = file.metadata()?.len();
        let mut byte = [0];
        let at = self.random.u64(..length.max(1));
        file.read_exact_at(&mut byte, at)?;
        file.write_all_at(&[byte[0] ^ (1 << self.random.u32(..8))], at)?;
        self.record.tell("damaged", json!({ "path": path, "offset": at }));
        let ended = victims.service.report(&[])?;
        let facts = json!({
            "path": path, "still_there": path.exists(),
            "status": ended.status, "said": ended.stderr.lines().next().unwrap_or_default(),
        });
        self.record.tell("damage_read", facts);
        Ok(())
    }
}

/// Ends the daemon regularly.
pub(super) fn end(victims: &mut Victims<'_>, record: &Record, by_ctl: bool) -> Result<()> {
    victims.observer.poll(victims.service);
    record.tell("end", json!({}));
    if by_ctl {
        let ended = victims.service.ctl(&["stop"])?;
        record.tell("ctl_stop", json!({ "status": ended.status, "said": ended.stderr }));
        victims.service.ended("ctl stop")
    } else {
        victims.service.signal(Signal::SIGTERM)?;
        victims.service.ended("SIGTERM")
    }
}

fn reloads(service: &Service) -> (u64, u64) {
    let status = service.status(PATIENCE).unwrap_or_default();
    let count = |key: &str| status["settings"][key].as_u64().unwrap_or(0);
    (count("reloads"), count("reloads_failed"))
}
