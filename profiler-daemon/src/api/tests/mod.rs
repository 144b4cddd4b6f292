//! The interface against a loop that plays its part, and clients of every kind.

#![allow(clippy::print_stdout, reason = "a test that skips says why")]

mod document;
mod network;
mod profiles;
mod refusals;
mod slow;
mod socket;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use config::DaemonSettings;
use profiler_core::rate::Decision;
use tempfile::TempDir;

use super::bounds::ApiBounds;
use super::{Server, start_within};
use crate::service::command::{
    self, AttachRequest, Attached, CommandReceiver, CommandRefused, DaemonCommand, Flush, Publisher,
};
use crate::service::recent::RecentDecisions;
use crate::service::state::{DecisionEntry, Status, TargetStatus};
use crate::service::status_snapshot::{StatusSnapshot, TargetDecisions};
use crate::sys::clock;

/// A token.
pub(super) const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A daemon whose loop plays its part.
pub(super) struct Daemon {
    pub(super) server: Option<Server>,
    pub(super) settings: DaemonSettings,
    pub(super) folder: TempDir,
    pub(super) heard: Arc<Heard>,
}

/// What the loop was asked.
#[derive(Default)]
pub(super) struct Heard {
    pub(super) flushes: AtomicUsize,
    pub(super) flushed: Mutex<Vec<Flush>>,
    pub(super) attached: Mutex<Vec<AttachRequest>>,
    pub(super) suspects: Mutex<Vec<PathBuf>>,
    pub(super) ready: std::sync::atomic::AtomicBool,
    /// It answers nothing while this is so.
    pub(super) deaf: std::sync::atomic::AtomicBool,
    /// It keeps no window.
    pub(super) keeps_nothing: std::sync::atomic::AtomicBool,
    unanswered: Mutex<Vec<command::ReplySender<Result<(), CommandRefused>>>>,
}

/// An answer.
#[derive(Debug)]
pub(super) struct Got {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: Vec<u8>,
}

impl Got {
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }
}

impl Daemon {
    pub(super) fn new() -> Self {
        Self::with(ApiBounds::default(), |_, _| {})
    }

    pub(super) fn with(bounds: ApiBounds, change: impl FnOnce(&mut DaemonSettings, &TempDir)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = DaemonSettings::default();
        settings.listen.socket = folder.path().join("run/sweetspot.sock");
        settings.store.folder = folder.path().join("store");
        std::fs::create_dir(&settings.store.folder).unwrap();
        change(&mut settings, &folder);
        let heard = Arc::new(Heard::default());
        let (sender, commands, publisher) = command::channel();
        let loops = Arc::clone(&heard);
        std::thread::spawn(move || play(commands, &loops, &publisher));
        let server = start_within(&settings, sender, bounds).unwrap();
        Self { server: Some(server), settings, folder, heard }
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.settings.listen.socket.clone()
    }

    /// Sends these bytes, and reads until the other end is done.
    pub(super) fn send(&self, bytes: impl AsRef<[u8]>) -> Got {
        exchange(UnixStream::connect(self.socket()).unwrap(), bytes.as_ref())
    }

    pub(super) fn ask(&self, method: &str, path: &str) -> Got {
        self.send(format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
    }

    pub(super) fn get(&self, path: &str) -> Got {
        self.ask("GET", path)
    }

    pub(super) fn post(&self, path: &str, body: &str) -> Got {
        self.send(format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n{body}",
            body.len()
        ))
    }
}

/// Sends these bytes, and reads until the other end is done.
pub(super) fn exchange(mut stream: impl Read + Write, bytes: &[u8]) -> Got {
    let _ = stream.write_all(bytes); // it may be refused before it is read
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    parse(&answer)
}

pub(super) fn parse(answer: &[u8]) -> Got {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let Some(end) = end else { return Got { status: 0, head: String::new(), body: answer.to_vec() } };
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Got { status, head, body: answer[end + 4..].to_vec() }
}

pub(super) fn target(name: &str) -> TargetStatus {
    TargetStatus { name: name.to_owned(), budget_ratio: 0.01, ..TargetStatus::default() }
}

/// A decision, with every figure another.
pub(super) fn decision() -> DecisionEntry {
    use profiler_core::rate::model::BoundBy;
    use profiler_core::rate::{DecidedCost, LawInForce, LawTerms, RateCaps, RateReason, SoFar};
    let decision = Decision {
        at_ns: 1,
        rate_hz: 2.0,
        period_ns: 3,
        reason: RateReason::Retune,
        bound_by: BoundBy::Law,
        cost: DecidedCost {
            overhead_us: 4.0,
            overhead_se_us: 5.0,
            frames_us: 6.0,
            stack_us: 7.0,
            self_us: 8.0,
            foreign_us: 9.0,
            total_hi_us: 10.0,
            interrupt_us: None,
            interrupt_ratio: 1.0,
            fixed_ratio: 11.0,
        },
        terms: LawTerms {
            spread_ratio: 12.0,
            variance_ratio: 1.0,
            law: LawInForce::Horizon,
            law_samples: 25.0,
            horizon_cpu_s: 13.0,
            replicas: 1.0,
            unbounded_rate_hz: 14.0,
            optimum_rate_hz: 15.0,
        },
        caps: RateCaps {
            budget_cap_hz: 16.0,
            own_cap_hz: 28.0,
            bucket_cap_hz: f64::INFINITY,
            bucket_level_us: 18.0,
            budget_ratio: 19.0,
            granted_ratio: Some(29.0),
            own_cpu_budget_ratio: None,
        },
        so_far: SoFar {
            slowdown_ratio: 26.0,
            own_cpu_ratio: 27.0,
            overhead_1s_ratio: 20.0,
            utilisation_cpus: 21.0,
            target_cpu_s: 22.0,
            samples: 23,
            retunes: 24,
        },
    };
    DecisionEntry { at_unix_s: 1_760_000_000.5, decision }
}

/// How everything is: just old enough for whoever asks to want it anew.
fn snapshot(heard: &Heard) -> StatusSnapshot {
    let decisions = TargetDecisions { log: RecentDecisions::default(), shared_by: 3 };
    decisions.log.remember(decision());
    let ready = heard.ready.load(Ordering::Relaxed);
    StatusSnapshot {
        at_ns: clock::monotonic_ns() - 2_000_000_000,
        status: Status { ready, pid: 7, version: "9.9".to_owned(), ..Status::default() },
        targets: vec![(target("web"), decisions), (target("db@1:x"), TargetDecisions::default())],
    }
}

/// Answers as the loop does, at once.
fn play(mut commands: CommandReceiver, heard: &Heard, publisher: &Publisher) {
    while let Some(command) = commands.0.blocking_recv() {
        while heard.deaf.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
        answer(command, heard, publisher);
    }
}

fn answer(command: DaemonCommand, heard: &Heard, publisher: &Publisher) {
    match command {
        DaemonCommand::Show => publisher.publish(snapshot(heard)),
        DaemonCommand::Attach(wanted, reply) => {
            let attached =
                |name: &str| Attached { name: name.to_owned(), takes_from: vec!["web".to_owned()] };
            let made = match wanted.target.name.as_str() {
                "web" => Err(CommandRefused::Conflict(
                    "a target is called web already; choose another name".to_owned(),
                )),
                "" => Ok(attached("asked-1")),
                name => Ok(attached(name)),
            };
            heard.attached.lock().unwrap().push(*wanted);
            let _ = reply.send(made);
        }
        DaemonCommand::Detach(name, reply) => {
            let done = match name.as_str() {
                "web" => {
                    Err(CommandRefused::Conflict("web stands in the settings; remove it there".to_owned()))
                }
                "asked-1" => Ok(()),
                _ => Err(CommandRefused::Unknown(name)),
            };
            let _ = reply.send(done);
        }
        DaemonCommand::Flush(flush, reply) => {
            heard.flushes.fetch_add(1, Ordering::Relaxed);
            let is_begin = flush.is_begin;
            heard.flushed.lock().unwrap().push(flush);
            if is_begin || !heard.keeps_nothing.load(Ordering::Relaxed) {
                let _ = reply.send(Ok(()));
            } else {
                heard.unanswered.lock().unwrap().push(reply);
            }
        }
        DaemonCommand::Reload(reply) => {
            let _ = reply.send(Ok("the settings are in force".to_owned()));
        }
        DaemonCommand::Stop(reply) => {
            let _ = reply.send(());
        }
        DaemonCommand::Suspect(paths) => heard.suspects.lock().unwrap().extend(paths),
    }
}
