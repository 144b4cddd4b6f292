//! Their clients, which check every answer.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::Server;
use crate::guards::Running;
use crate::run::{finish, run};

/// Clients at a time.
const CLIENTS: usize = 3;
/// Between two requests of one.
const PAUSE: Duration = Duration::from_millis(2);
/// Timeout of a request.
const PATIENCE: Duration = Duration::from_secs(20);
/// Requests over one connection.
const PER_CONNECTION: u64 = 500;

/// What the clients have observed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    /// Requests.
    pub requests: u64,
    /// Those that failed.
    pub failed: u64,
    /// The slowest (ms).
    pub slowest_ms: f64,
}

/// The same while they ask.
#[derive(Default)]
pub struct Seen {
    done: AtomicBool,
    requests: AtomicU64,
    failed: AtomicU64,
    slowest_us: AtomicU64,
}

/// Clients of one server.
pub enum Clients {
    /// Our own.
    Threads(Vec<JoinHandle<()>>, Arc<Seen>),
    /// PostgreSQL's.
    Bench(Option<Bench>),
}

impl Clients {
    /// Starts them.
    pub fn start(server: &Server) -> Result<Clients> {
        if server.name() == "postgres" {
            return Bench::start(server.port()).map(|bench| Clients::Bench(Some(bench)));
        }
        let shared = Arc::new(Seen::default());
        let (port, is_redis) = (server.port(), server.name() == "redis-server");
        let threads = (0..CLIENTS).map(|client| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || ask(client, port, is_redis, &shared))
        });
        Ok(Clients::Threads(threads.collect(), shared))
    }

    /// Stops them, and returns what they have observed.
    pub fn stop(&mut self) -> Result<Asked> {
        match self {
            Clients::Threads(threads, shared) => {
                shared.done.store(true, Ordering::Relaxed);
                for thread in threads.drain(..) {
                    ensure!(thread.join().is_ok(), "a client has panicked");
                }
                Ok(Asked {
                    requests: shared.requests.load(Ordering::Relaxed),
                    failed: shared.failed.load(Ordering::Relaxed),
                    slowest_ms: shared.slowest_us.load(Ordering::Relaxed) as f64 / 1e3,
                })
            }
            Clients::Bench(bench) => bench.take().context("stopped before")?.stop(),
        }
    }
}

fn ask(client: usize, port: u16, is_redis: bool, shared: &Seen) {
    while !shared.done.load(Ordering::Relaxed) {
        if converse(client, port, is_redis, shared).is_err() {
            shared.failed.fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(50));
        }
    }
}

fn converse(client: usize, port: u16, is_redis: bool, shared: &Seen) -> Result<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    for request in 0..PER_CONNECTION {
        if shared.done.load(Ordering::Relaxed) {
            break;
        }
        let value = format!("{client}-{request}");
        let (question, expected) = match is_redis {
            true => (
                format!("SET k{client} {value}\r\nGET k{client}\r\n"),
                format!("+OK\r\n${}\r\n{value}\r\n", value.len()),
            ),
            false => (value.repeat(10), value.repeat(10)),
        };
        let begun = Instant::now();
        stream.write_all(question.as_bytes())?;
        let mut answer = vec![0; expected.len()];
        stream.read_exact(&mut answer)?;
        ensure!(answer == expected.as_bytes(), "another answer");
        shared.requests.fetch_add(1, Ordering::Relaxed);
        shared.slowest_us.fetch_max(begun.elapsed().as_micros() as u64, Ordering::Relaxed);
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// A row that all transactions change and keep for a while, so that most wait for a lock of the server's.
const CONTENDED: &str = "BEGIN;
UPDATE pgbench_branches SET bbalance = bbalance + 1 WHERE bid = 1;
SELECT pg_sleep(0.004);
END;
";

/// PostgreSQL's own client.
pub struct Bench {
    running: Running,
    /// Holds its script, and what each transaction took.
    folder: TempDir,
}

impl Bench {
    fn start(port: u16) -> Result<Bench> {
        let port = port.to_string();
        let base = ["-h", "127.0.0.1", "-p", &port, "-U", "postgres"];
        run(Command::new("pgbench").args(base).args(["-i", "-q", "postgres"]))?.expect_status(0)?;
        let folder = tempfile::tempdir()?;
        fs::write(folder.path().join("contended"), CONTENDED)?;
        let mut command = Command::new("pgbench");
        command.args(base).args(["-c", "6", "-R", "100", "-T", "86400", "--failures-detailed"]);
        command.args(["-b", "tpcb-like@1", "-f", "contended@3", "--log", "--log-prefix=took", "postgres"]);
        // Ended by a signal, it reports nothing but what it has told each second.
        let command = command.current_dir(folder.path()).args(["--progress", "1"]);
        let running = Running::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()))?;
        Ok(Bench { running, folder })
    }

    fn stop(self) -> Result<Asked> {
        kill(Pid::from_raw(self.running.id() as i32), Signal::SIGINT)?;
        let asked = counted(&finish(self.running)?.stderr)?;
        let logs = fs::read_dir(self.folder.path())?.flatten().map(|entry| entry.path());
        let logs = logs
            .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("took")));
        let told = logs.map(fs::read_to_string).collect::<std::io::Result<String>>()?;
        let slowest_us = slowest_us(&told).context("pgbench has not told what its transactions took")?;
        Ok(Asked { slowest_ms: slowest_us as f64 / 1e3, ..asked })
    }
}

/// The slowest of transactions, each a line such as `0 199 2241 0 1175850568 995598`; the last may be cut off.
fn slowest_us(told: &str) -> Option<u64> {
    let whole = told.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().filter_map(|line| line.split(' ').nth(2)?.parse().ok()).max()
}

/// Sums up lines such as `progress: 2.0 s, 149.0 tps, lat 1.254 ms stddev 0.427, 0 failed`.
fn counted(told: &str) -> Result<Asked> {
    let mut asked = Asked::default();
    for line in told.lines() {
        let before = |unit: &str| {
            let part = line.split(", ").find_map(|part| part.strip_suffix(unit))?;
            part.trim().parse::<f64>().ok()
        };
        match before(" tps").zip(before(" failed")) {
            Some((answered, failed)) => {
                asked.requests += answered as u64;
                asked.failed += failed as u64;
            }
            None => asked.failed += u64::from(line.contains("aborted") || line.contains("error")),
        }
    }
    ensure!(asked.requests > 0, "pgbench has told nothing: {told}");
    Ok(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_pgbench_tells_is_added_up() {
        let told = "progress: 1.0 s, 149.0 tps, lat 1.254 ms stddev 0.427, 0 failed\n\
                    progress: 2.0 s, 151.0 tps, lat 1.254 ms stddev 0.427, 2 failed\n\
                    pgbench: error: client 2 aborted in command 5\n";
        let asked = counted(told).unwrap();
        assert_eq!((asked.requests, asked.failed), (300, 3));
        assert!(counted("").is_err());
        let took = "0 199 2241 0 1175850568 995598 7\n1 5 9241 0 1175850568 995598 9\n0 200 999999";
        assert_eq!((slowest_us(took), slowest_us("0 1 2")), (Some(9241), None));
    }
}
