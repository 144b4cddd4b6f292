//! Checks whether stacks are complete: programs with every kind of unwind information and of stack, under sweetspot, `perf` and
//! samply, at one rate: the share of complete stacks, of named frames, and of samples that show the chain of callers
//! that is known beforehand. Ends with an error where ours is below another's, or a known chain is not whole.
//!
//! Options: `--only WORDS` (of a row's name), `--cpu 2` (seconds of a row), `--rate 999`, `--peers sweetspot,perf,samply`.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use serde::Serialize;
use tests::cases::{Case, Found, Peer, Recording, is_below, rows};
use tests::experiment::{option, percent, print, progress};
use tests::guards::{Sysctl, is_root};
use tests::runtimes::remove_perf_maps;

/// The findings for a row.
#[derive(Serialize)]
struct Row {
    name: &'static str,
    found: BTreeMap<&'static str, Found>,
    truncated_by: BTreeMap<String, u64>,
    failures: Vec<String>,
    /// Why a figure is missing.
    remarks: Vec<String>,
}

fn main() -> Result<()> {
    let (only, cpu_s) = (option("--only", String::new())?, option("--cpu", 2.0)?);
    let (rate_hz, asked) = (option("--rate", 999)?, option("--peers", "sweetspot,perf,samply".to_string())?);
    let wanted: Vec<Peer> =
        Peer::ALL.into_iter().filter(|peer| asked.split(',').any(|name| name == peer.name())).collect();
    ensure!(wanted.contains(&Peer::Sweetspot), "--peers must name sweetspot");
    let (peers, missing): (Vec<Peer>, Vec<Peer>) = wanted.into_iter().partition(|peer| peer.find().is_some());
    let mut remarks: Vec<String> =
        missing.iter().map(|peer| format!("{} is missing: {}", peer.name(), peer.how_to_get())).collect();
    let mut found = Vec::new();
    for case in rows().filter(|case| case.name.contains(&only)) {
        progress(case.name);
        match case.prepare(cpu_s)? {
            Ok(target) => found.push(row(case, &target.words, rate_hz, &peers)?),
            Err(reason) => remarks.push(format!("{}: skipped, {reason}", case.name)),
        }
        remove_perf_maps();
    }
    let failures = |row: &Row| {
        row.failures.iter().chain(&row.remarks).map(|text| format!("{}: {text}", row.name)).collect()
    };
    remarks.extend(found.iter().flat_map::<Vec<String>, _>(failures));
    print(&cells(&found, &peers), &remarks, &found)?;
    let failed = found.iter().filter(|row| !row.failures.is_empty()).count();
    ensure!(failed == 0, "{failed} of {} rows fail", found.len());
    Ok(())
}

fn row(case: &Case, words: &[String], rate_hz: u32, peers: &[Peer]) -> Result<Row> {
    let mut row = Row {
        name: case.name,
        found: BTreeMap::new(),
        truncated_by: BTreeMap::new(),
        failures: Vec::new(),
        remarks: Vec::new(),
    };
    for &peer in peers {
        // samply refuses to run at more than 1, even as root.
        let lower = peer == Peer::Samply && is_root();
        let _paranoid = lower.then(|| Sysctl::kernel("perf_event_paranoid", "1")).transpose()?;
        match peer.record(words, rate_hz, case.has_jitdump) {
            Ok(recording) => row.note(case, peer, &recording),
            Err(error) if peer == Peer::Sweetspot => return Err(error),
            Err(error) => {
                let error = format!("{error:#}");
                let line = error.lines().next().unwrap_or_default().chars().take(200).collect::<String>();
                row.remarks.push(format!("{} failed: {line}", peer.name()));
            }
        }
    }
    row.judge(case);
    Ok(row)
}

impl Row {
    fn note(&mut self, case: &Case, peer: Peer, recording: &Recording) {
        self.found.insert(peer.name(), case.look_at(recording));
        if peer == Peer::Sweetspot {
            self.truncated_by.clone_from(&recording.truncated_by);
        }
    }

    fn judge(&mut self, case: &Case) {
        let Some(&ours) = self.found.get(Peer::Sweetspot.name()) else { return };
        self.failures.extend(case.judge(&ours, &self.truncated_by));
        let others: Vec<(&str, Found)> = self
            .found
            .iter()
            .filter(|(name, _)| **name != "sweetspot")
            .map(|(name, found)| (*name, *found))
            .collect();
        for (name, theirs) in others {
            let figures = [
                ("complete", Some(ours.complete_ratio), Some(theirs.complete_ratio)),
                ("named", Some(ours.named_ratio), Some(theirs.named_ratio)),
                ("chains", ours.chain_ratio, theirs.chain_ratio),
            ];
            for (what, mine, other) in figures {
                let (Some(mine), Some(other)) = (mine, other) else { continue };
                let names_more = what == "named" && ours.named_frames >= theirs.named_frames;
                if is_below((mine, ours.samples), (other, theirs.samples)) && !names_more {
                    self.failures.push(format!(
                        "{what}: {} is below {name}'s {}",
                        percent(mine),
                        percent(other)
                    ));
                }
            }
        }
    }
}

fn cells(rows: &[Row], peers: &[Peer]) -> Vec<Vec<String>> {
    let mut head = vec!["row".to_string()];
    for peer in peers {
        head.extend(["samples", "complete", "named", "chain"].map(|what| format!("{} {what}", peer.name())));
    }
    head.push("ours end by".to_string());
    let mut table = vec![head];
    for row in rows {
        let mut line = vec![row.name.to_string()];
        for peer in peers {
            let Some(found) = row.found.get(peer.name()) else {
                line.extend(["-"; 4].map(str::to_string));
                continue;
            };
            line.push(found.samples.to_string());
            line.extend([found.complete_ratio, found.named_ratio].map(percent));
            line.push(found.chain_ratio.map_or("-".to_string(), percent));
        }
        let reasons = row.truncated_by.iter().map(|(reason, count)| format!("{count} {reason}"));
        line.push(reasons.collect::<Vec<_>>().join(", "));
        table.push(line);
    }
    table
}
