//! Attaches to real servers repeatedly while clients send them requests: `just injections`.

mod clients;
mod servers;

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::Serialize;

pub use self::clients::Clients;
pub use self::servers::Server;
use crate::experiment::progress;
use crate::host::Holdings;
use crate::run::{Ended, Sweetspot, run};
use crate::stats::{Stats, Summary};

/// Results of one server.
#[derive(Debug, Serialize)]
pub struct Found {
    /// Its name.
    pub server: String,
    /// Times that it was attached to and detached from.
    pub attached: usize,
    /// Refusals, by message.
    pub refused: BTreeMap<String, usize>,
    /// Its processes.
    pub processes: Vec<Process>,
    /// Requests of its clients.
    pub requests: u64,
    /// Those that failed, or were answered wrongly.
    pub failed: u64,
    /// The slowest of them (ms).
    pub slowest_ms: f64,
    /// What differs between the first time it was left and the last.
    pub left_behind: Vec<String>,
    /// Resident memory then and now (KiB).
    pub rss_kib: [u64; 2],
    /// Whether it ended properly when asked to.
    pub ended_well: bool,
}

/// What was seen of one of its processes.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Process {
    /// Its process id.
    pub pid: u32,
    /// CPU time that it used while it was attached to (s).
    pub cpu_s: f64,
    /// Samples of it.
    pub samples: u64,
}

/// Attaches to a server this many times, each time for this long.
pub fn attach_often(mut server: Server, times: usize, stay: Duration) -> Result<Found> {
    let name = server.name().to_owned();
    let mut clients = Clients::start(&server)?;
    let targets = server.processes()?;
    ensure!(!targets.is_empty(), "{name} has no process");
    let mut refused = BTreeMap::new();
    let mut processes: Vec<Process> =
        targets.iter().map(|&pid| Process { pid, ..Process::default() }).collect();
    let mut attach = |process: &mut Process| -> Result<bool> {
        let (ended, summary) = attach(process.pid, stay)?;
        match summary {
            Some(summary) => {
                process.cpu_s += summary.target_cpu_s;
                process.samples += summary.samples;
                Ok(true)
            }
            None => {
                let why = ended.stderr.trim().replace(&process.pid.to_string(), "PID");
                *refused.entry(why).or_insert(0) += 1;
                Ok(false)
            }
        }
    };
    for process in &mut processes {
        attach(process)?; // after which the library stays
    }
    let first = targets.iter().map(|&pid| Holdings::of(pid)).collect::<Result<Vec<_>>>()?;
    let (begun, mut attached) = (Instant::now(), 0);
    for round in 0..times {
        let at = round % processes.len();
        attached += usize::from(attach(&mut processes[at])?);
        ensure!(server.is_alive(), "{name} has ended in round {round}");
        if round % 100 == 99 {
            progress(&format!("{name}: {} in {:.0} s", round + 1, begun.elapsed().as_secs_f64()));
        }
    }
    let last = targets.iter().map(|&pid| Holdings::of(pid)).collect::<Result<Vec<_>>>()?;
    let sum = |all: &[Holdings]| all.iter().map(|held| held.rss_kib).sum();
    let asked = clients.stop()?;
    Ok(Found {
        attached,
        refused,
        processes,
        requests: asked.requests,
        failed: asked.failed,
        slowest_ms: asked.slowest_ms,
        left_behind: first.iter().zip(&last).flat_map(|(first, last)| differences(first, last)).collect(),
        rss_kib: [sum(&first), sum(&last)],
        ended_well: server.end()?,
        server: name,
    })
}

/// How it ended, and what it says of the run if it came to one.
fn attach(pid: u32, stay: Duration) -> Result<(Ended, Option<Summary>)> {
    let sweetspot = Sweetspot::new().options(&["--backend", "timer-signal", "--rate", "250"]);
    let mut words = sweetspot.outputs();
    words.extend(["--duration".to_owned(), format!("{}ms", stay.as_millis()), pid.to_string()]);
    let ended = run(&mut sweetspot.command("attach", &words))?;
    if ended.status != 0 {
        return Ok((ended, None));
    }
    let stats = Stats::parse(&fs::read_to_string(sweetspot.file("stats.jsonl"))?)?;
    Ok((ended, Some(stats.summary)))
}

/// What remains of the profiler, and what should be as before: connections come and go, and so do a runtime's threads.
fn differences(first: &Holdings, last: &Holdings) -> Vec<String> {
    let ours = |held: &Holdings| held.files.keys().filter(|file| file.contains("sweetspot")).count();
    let pairs = [
        ("our mappings", first.our_mappings.len(), last.our_mappings.len()),
        ("our files", ours(first), ours(last)),
        ("timers", first.timers, last.timers),
        ("handlers", 0, usize::from(first.handled != last.handled)),
    ];
    let differ = pairs.into_iter().filter(|(_, first, last)| first != last);
    differ.map(|(what, first, last)| format!("{what}: {first} and then {last}")).collect()
}
