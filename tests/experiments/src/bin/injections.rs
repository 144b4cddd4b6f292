//! Checks that attaching and detaching disturbs no server. Sweetspot attaches to real servers by timer signals and detaches, many
//! times, while clients send requests and check the answers. Ends with an error if a server is missing, ended, or mostly refused the
//! library; if a request failed or was answered late; if a busy process was not sampled; or if something of the profiler remains.
//!
//! Options: `--times 1000` (of each), `--stay-ms 50`, `--server redis-server` (all that are installed without it).

use std::time::Duration;

use anyhow::{Result, ensure};
use tests::experiment::{option, print, progress, row};
use tests::guards::is_root;
use tests::injections::{Server, attach_often};

/// By how much a server's memory may grow (KiB): its own caches fill.
const MOST_GROWTH_KIB: u64 = 16 << 10;

/// Share of the attempts that must succeed.
const LEAST_ATTACHED: f64 = 0.99;
/// A process that used this much CPU time while attached must have samples (s).
const BUSY_S: f64 = 0.2;
/// Time within which every request must be answered (ms), whatever lock of the server it waits for.
const MOST_MS: f64 = 200.0;

fn main() -> Result<()> {
    ensure!(is_root(), "other users' processes are traced by root alone");
    let (times, stay_ms) = (option("--times", 1000)?, option("--stay-ms", 50)?);
    let only: String = option("--server", String::new())?;
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for (name, port) in
        Server::NAMES.into_iter().zip(7400..).filter(|(name, _)| only.is_empty() || only == *name)
    {
        match Server::start(name, port) {
            Ok(server) => found.push(attach_often(server, times, Duration::from_millis(stay_ms))?),
            Err(error) => {
                progress(&format!("{name} does not start ({error:#})"));
                missing.push(name);
            }
        }
    }
    let heads = [
        "server",
        "attached",
        "refused",
        "samples",
        "requests",
        "failed",
        "slowest",
        "memory",
        "left behind",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(found.iter().map(|one| {
        row([
            &one.server,
            &one.attached,
            &one.refused.values().sum::<usize>(),
            &one.processes.iter().map(|process| process.samples).sum::<u64>(),
            &one.requests,
            &one.failed,
            &format!("{:.0} ms", one.slowest_ms),
            &format!("{} to {} KiB", one.rss_kib[0], one.rss_kib[1]),
            &one.left_behind.join(", "),
        ])
    }));
    let remarks: Vec<String> = found
        .iter()
        .flat_map(|one| one.refused.iter().map(|(why, times)| format!("{times} times: {why}")))
        .collect();
    print(&rows, &remarks, &found)?;
    ensure!(missing.is_empty() && !found.is_empty(), "not tried, since they do not start: {missing:?}");
    for one in &found {
        ensure!(one.attached as f64 >= LEAST_ATTACHED * times as f64, "{} refused too often", one.server);
        for process in one.processes.iter().filter(|process| process.cpu_s >= BUSY_S) {
            ensure!(
                process.samples > 0,
                "process {} of {} works and was not sampled",
                process.pid,
                one.server
            );
        }
        ensure!(one.slowest_ms < MOST_MS, "a request of {} took {:.0} ms", one.server, one.slowest_ms);
        ensure!(one.failed == 0 && one.ended_well, "{} was harmed", one.server);
        ensure!(one.left_behind.is_empty(), "{} is not as it was", one.server);
        ensure!(one.rss_kib[1] <= one.rss_kib[0] + MOST_GROWTH_KIB, "{} has grown", one.server);
    }
    Ok(())
}
