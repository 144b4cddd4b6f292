//! Does anybody notice that a profiler comes and goes? Real servers are attached to and detached from by timer signals, again and
//! again, while clients ask them and check the answers. Ends with an error where a server ended, a request failed, or something of
//! ours is left.
//!
//! Options: `--times 1000` (of each), `--stay-ms 50`, `--server redis-server` (all that are installed without it).

use std::time::Duration;

use anyhow::{Result, ensure};
use tests::experiment::{option, print, progress, row};
use tests::guards::is_root;
use tests::injections::{Server, attach_often};

/// Memory that a server may have more of at the end (KiB): its own caches fill.
const MOST_GROWTH_KIB: u64 = 16 << 10;

fn main() -> Result<()> {
    ensure!(is_root(), "other users' processes are traced by root alone");
    let (times, stay_ms) = (option("--times", 1000)?, option("--stay-ms", 50)?);
    let only: String = option("--server", String::new())?;
    let mut found = Vec::new();
    for (name, port) in
        Server::NAMES.into_iter().zip(7400..).filter(|(name, _)| only.is_empty() || only == *name)
    {
        match Server::start(name, port) {
            Ok(server) => found.push(attach_often(server, times, Duration::from_millis(stay_ms))?),
            Err(error) => progress(&format!("skipped: {name} does not start ({error:#})")),
        }
    }
    let heads = ["server", "attached", "refused", "requests", "failed", "slowest", "memory", "left behind"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(found.iter().map(|one| {
        row([
            &one.server,
            &one.attached,
            &one.refused.values().sum::<usize>(),
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
    for one in &found {
        ensure!(one.failed == 0 && one.ended_well, "{} was harmed", one.server);
        ensure!(one.left_behind.is_empty(), "{} is not as it was", one.server);
        ensure!(one.rss_kib[1] <= one.rss_kib[0] + MOST_GROWTH_KIB, "{} has grown", one.server);
    }
    Ok(())
}
