//! Badly behaved clients: they send nothing, or send requests all the time.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use serde_json::json;

use super::client::{Unanswered, get};
use super::record::Record;

/// How long a client waits for a profile.
const PATIENCE: Duration = Duration::from_secs(40);
/// Connections that say nothing, at a time.
const SILENT: usize = 12;
/// Requests of the busy clients, each with the pause after it (ms).
const ASKED: [(&str, u64); 6] = [
    ("/metrics", 900),
    ("/v1/status", 700),
    ("/v1/targets", 1_300),
    ("/v1/profile?from=-2m&target=steady&format=svg", 25_000),
    ("/v1/profile?from=-5m&format=pb.gz", 40_000),
    ("/debug/pprof/profile?seconds=3&target=python", 60_000),
];

/// Clients, which stop when dropped. Those that still wait for an answer are abandoned.
pub(super) struct Clients(Arc<AtomicBool>);

impl Clients {
    /// Starts them.
    pub(super) fn start(socket: &Path, record: &Record) -> Clients {
        let stop = Arc::new(AtomicBool::new(false));
        silent(socket.to_owned(), Arc::clone(&stop));
        for (path, pause_ms) in ASKED {
            asking(socket.to_owned(), path, pause_ms, record.clone(), Arc::clone(&stop));
        }
        Clients(stop)
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Holds silent connections open, and opens others when they are closed.
fn silent(socket: PathBuf, stop: Arc<AtomicBool>) {
    thread::spawn(move || {
        let mut held: Vec<UnixStream> = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            held.retain_mut(|stream| {
                let mut piece = [0; 512];
                // Whatever is said to them, they are still there until the other side has closed.
                stream.read(&mut piece).map_or_else(|_| true, |count| count > 0)
            });
            if held.len() < SILENT
                && let Ok(stream) = UnixStream::connect(&socket)
                && stream.set_nonblocking(true).is_ok()
            {
                held.push(stream);
            }
            sleep(Duration::from_millis(200));
        }
    });
}

fn asking(socket: PathBuf, path: &'static str, pause_ms: u64, record: Record, stop: Arc<AtomicBool>) {
    thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            let begun = Instant::now();
            let answer = match get(&socket, path, PATIENCE) {
                Ok((status, _)) => status.to_string(),
                Err(Unanswered::Absent) => "absent".to_owned(),
                Err(Unanswered::Late) => "late".to_owned(),
                Err(Unanswered::Broken) => "broken".to_owned(),
            };
            let took_ms = begun.elapsed().as_millis() as u64;
            record.tell("asked", json!({ "path": path, "answer": answer, "took_ms": took_ms }));
            sleep(Duration::from_millis(pause_ms));
        }
    });
}
