//! The state of a process before and after a library is loaded into it.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};

/// What a process holds of the kernel's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Threads.
    pub threads: usize,
    /// Open files that are in no folder, by what they are.
    pub files: BTreeMap<String, usize>,
    /// Mappings of ours.
    pub our_mappings: Vec<String>,
    /// POSIX timers; none where the kernel does not list them.
    pub timers: usize,
    /// Signals that have a handler.
    pub handled: String,
    /// Mappings of any kind.
    pub mappings: usize,
    /// Resident memory (KiB).
    pub rss_kib: u64,
}

impl Holdings {
    /// Those of a process now.
    pub fn of(pid: u32) -> Result<Holdings> {
        let read =
            |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).context("the process is gone");
        let status = read("status")?;
        let field = |name: &str| {
            let found = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            found.unwrap_or_default().trim().to_owned()
        };
        let maps = read("maps")?;
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
            let Ok(target) = fs::read_link(entry.path()) else { continue }; // closed meanwhile
            let target = target.to_string_lossy().into_owned();
            if target.starts_with('/') && !target.contains("memfd") {
                continue; // it opens and closes files as it likes
            }
            *files.entry(target.split(['[', ' ']).next().unwrap_or_default().to_owned()).or_insert(0) += 1;
        }
        Ok(Holdings {
            threads: field("Threads").parse().unwrap_or(0),
            files,
            our_mappings: maps.lines().filter(|line| line.contains("sweetspot")).map(str::to_owned).collect(),
            timers: read("timers").unwrap_or_default().matches("ID:").count(),
            handled: field("SigCgt"),
            mappings: maps.lines().count(),
            rss_kib: field("VmRSS").trim_end_matches(" kB").parse().unwrap_or(0),
        })
    }

    /// Whether there is memory for samples.
    pub fn is_sampled(&self) -> bool {
        self.our_mappings.iter().any(|line| line.contains("/memfd:sweetspot (deleted)"))
    }

    /// Whether the library is there.
    pub fn is_host(&self) -> bool {
        self.our_mappings.iter().any(|line| line.contains("sweetspot-agent"))
    }
}
