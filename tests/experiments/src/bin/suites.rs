//! Checks that other projects' test suites pass while they are sampled by timer signals at the highest rate. Each suite runs alone and
//! under `sweetspot record`. If a test fails only under sweetspot, the suite runs twice more both ways and failures are counted: some
//! tests are flaky, and sampling may cause a failure only sometimes.
//!
//! Options: `--only python|redis|bash|stress-ng`, `--redis FOLDER`, `--redis-all 1`, `--bash FOLDER` (where they were built).

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, ensure};
use serde::Serialize;
use tests::experiment::{option, print, progress, row};
use tests::suites::{self, Blame, Suite, blame};

/// Rounds, both ways, by which a failure of the first round is judged.
const ROUNDS: usize = 3;

#[derive(Serialize)]
struct Found {
    suite: String,
    run: usize,
    run_sampled: usize,
    failed: BTreeSet<String>,
    failed_sampled: BTreeSet<String>,
    /// Those that fail more often while they are sampled.
    ours: BTreeSet<String>,
    /// Those that failed once more: this may be chance.
    doubtful: BTreeSet<String>,
    samples: u64,
    lost: u64,
    seen_ratio: f64,
}

fn main() -> Result<()> {
    let (redis, bash): (String, String) =
        (option("--redis", String::new())?, option("--bash", String::new())?);
    let (only, all): (String, u8) = (option("--only", String::new())?, option("--redis-all", 0)?);
    let kinds = [
        ("python", suites::python()),
        ("redis", suites::redis(Path::new(&redis), all > 0)),
        ("bash", suites::bash(Path::new(&bash))),
        ("stress-ng", suites::stress()),
    ];
    let mut found = Vec::new();
    for (name, suites) in kinds.into_iter().filter(|(name, _)| only.is_empty() || *name == only) {
        match suites {
            Ok(suites) => found.extend(suites.iter().map(judge).collect::<Result<Vec<_>>>()?),
            Err(why) => progress(&format!("skipped: {name}: {why}")),
        }
    }
    report(&found)?;
    let ours: Vec<&str> =
        found.iter().filter(|one| !one.ours.is_empty()).map(|one| one.suite.as_str()).collect();
    ensure!(ours.is_empty(), "these fail because they are sampled: {}", ours.join(", "));
    let unsampled = found.iter().filter(|one| one.samples == 0).count();
    ensure!(!found.is_empty() && unsampled == 0, "{unsampled} of {} suites were not sampled", found.len());
    Ok(())
}

fn judge(suite: &Suite) -> Result<Found> {
    progress(&suite.name);
    let alone = suite.alone()?;
    let (sampled, summary) = suite.sampled()?;
    let (mut all_alone, mut all_sampled) = (vec![alone.failed.clone()], vec![sampled.failed.clone()]);
    let new: Vec<&String> = sampled.failed.difference(&alone.failed).collect();
    for _ in 1..if new.is_empty() { 1 } else { ROUNDS } {
        progress(&format!("{}: again, since {new:?} failed", suite.name));
        all_alone.push(suite.alone()?.failed);
        all_sampled.push(suite.sampled()?.0.failed);
    }
    let Blame { ours, doubtful } = blame(&all_alone, &all_sampled);
    Ok(Found {
        suite: suite.name.clone(),
        run: alone.run,
        run_sampled: sampled.run,
        failed: alone.failed,
        failed_sampled: sampled.failed,
        ours,
        doubtful,
        samples: summary.samples,
        lost: summary.lost,
        seen_ratio: summary.weight_s / summary.target_cpu_s.max(1e-9),
    })
}

fn report(found: &[Found]) -> Result<()> {
    let heads =
        ["suite", "tests", "failed", "sampled: tests", "failed", "because of us", "samples", "lost", "seen"];
    let mut rows = vec![heads.map(str::to_string).to_vec()];
    rows.extend(found.iter().map(|one| {
        row([
            &one.suite,
            &one.run,
            &one.failed.len(),
            &one.run_sampled,
            &one.failed_sampled.len(),
            &one.ours.len(),
            &one.samples,
            &one.lost,
            &format!("{:.0}%", one.seen_ratio * 100.0),
        ])
    }));
    let failures = |one: &Found| {
        let all: BTreeSet<&String> = one.failed.union(&one.failed_sampled).collect();
        let doubtful = match one.doubtful.is_empty() {
            true => String::new(),
            false => format!("; once more often sampled than not: {:?}", one.doubtful),
        };
        (!all.is_empty()).then(|| format!("{}: {all:?}{doubtful}", one.suite))
    };
    let remarks: Vec<String> = found.iter().filter_map(failures).collect();
    print(&rows, &remarks, &found)
}
