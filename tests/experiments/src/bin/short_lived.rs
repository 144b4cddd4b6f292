//! Checks that short-lived processes get names, without growth. Thousands of processes of a few milliseconds each, of several
//! programs, under the profiler: the share of their samples that have a name, and the profiler's memory and descriptors
//! from the first tenth of them to the last. Ends with an error below 99%, or where either has grown.
//!
//! Options: `--processes 10000`, `--ms 5` (CPU time of each), `--at-once 2`, `--rate HZ` (the controller chooses without it).

use anyhow::{Context, Result, ensure};
use tests::brood::{Brood, Held};
use tests::experiment::{option, percent, print, row};
use tests::guards::is_root;

const LEAST_NAMED: f64 = 0.99;
/// Growth of the resident set that is allowed from the first tenth to the end: pages of the heap that are touched late.
const MOST_GROWTH_KIB: u64 = 2048;
const MOST_NEW_DESCRIPTORS: usize = 16;

fn main() -> Result<()> {
    ensure!(is_root(), "profiling whole CPUs needs root");
    let rate: f64 = option("--rate", 0.0)?;
    let options = if rate > 0.0 { vec!["--rate".to_owned(), rate.to_string()] } else { Vec::new() };
    let brood = Brood {
        processes: option("--processes", 10_000)?,
        at_once: option("--at-once", 2)?,
        ms: option("--ms", 5.0)?,
        options,
    };
    let found = brood.profile()?;
    let at = |share: f64| found.held[((found.held.len() - 1) as f64 * share) as usize];
    ensure!(found.held.len() >= 3, "the run was too short to be looked at");
    let mut rows = vec![["processes", "RSS", "descriptors"].map(str::to_owned).to_vec()];
    rows.extend([0.0, 0.1, 0.5, 0.9, 1.0].map(|share| {
        let Held { processes, rss_kib, descriptors } = at(share);
        row([&processes, &format!("{} KiB", rss_kib), &descriptors])
    }));
    let key = |name: &str| format!("{name} {}", found.summary[name]);
    let keys = [
        "attach_mode",
        "rate_hz",
        "target_cpu_s",
        "overhead_ratio",
        "self_cpu_s",
        "lost",
        "objects",
        "files_lost",
    ];
    let memory = ["symbol_bytes_peak", "symbol_evictions", "symbol_rereads", "maps_reread"];
    let remarks = [
        format!(
            "{} samples: {} of them in named functions, {} of their weight; {} of the functions have a name",
            found.samples,
            percent(found.named_samples_ratio),
            percent(found.named_weight_ratio),
            percent(found.named_functions_ratio),
        ),
        format!("peak with names: {} KiB", found.peak_rss_kib),
        keys.iter().chain(&memory).map(|name| key(name)).collect::<Vec<_>>().join(", "),
        found.reasons.join("\n"),
    ];
    print(&rows, &remarks, &found)?;
    let named = found.named_samples_ratio.min(found.named_weight_ratio);
    ensure!(named >= LEAST_NAMED, "only {} of the samples have a name", percent(named));
    let (early, end) = (at(0.1), found.held.last().context("looks")?);
    ensure!(
        end.rss_kib <= early.rss_kib + MOST_GROWTH_KIB,
        "the memory grew from {} to {} KiB",
        early.rss_kib,
        end.rss_kib
    );
    ensure!(
        end.descriptors <= early.descriptors + MOST_NEW_DESCRIPTORS,
        "the descriptors grew from {} to {}",
        early.descriptors,
        end.descriptors
    );
    Ok(())
}
