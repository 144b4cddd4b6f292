//! A calibration as text and as JSON.

use std::fmt::Write;
use std::io;
use std::path::PathBuf;

use anyhow::Result;
use profiler_core::rate::Cost;
use serde::Serialize;

use super::LOADED_FROM;
use super::cache::{StoredCalibration, Thoroughness, cpu_model};
use super::full::Characterised;
use super::place::CpuPair;
use crate::explain::KERNEL_UNSEEN;
use crate::sampler::access::Access;

/// What became of the calibration.
#[derive(Debug)]
pub(super) enum Keeping {
    /// Later runs use it.
    Kept(PathBuf),
    /// Its errors are too large to be of use.
    TooUnsure,
    /// Later runs use a better one.
    BetterThere(PathBuf),
    /// It could not be written.
    Failed(PathBuf, io::Error),
    /// There is no folder for it.
    Nowhere,
}

/// A calibration and its circumstances.
#[derive(Debug)]
pub(super) struct Report<'a> {
    pub(super) kept: &'a StoredCalibration,
    /// What a thorough calibration found out beside the model.
    pub(super) parts: Option<&'a Characterised>,
    pub(super) access: Access,
    pub(super) place: CpuPair,
    pub(super) keeping: Keeping,
}

/// The object that `--json` prints; the model's costs are means and standard errors in ns.
#[derive(Serialize)]
struct Json<'a> {
    r#type: &'static str,
    #[serde(flatten)]
    kept: &'a StoredCalibration,
    loaded: bool,
    kernel: bool,
    work_cpu: u32,
    profiler_cpu: Option<u32>,
    parts: Option<&'a Characterised>,
    kept_in: Option<&'a PathBuf>,
    notes: Vec<String>,
}

impl Report<'_> {
    /// One JSON object.
    pub(super) fn json(&self) -> Result<String> {
        let kept_in = match &self.keeping {
            Keeping::Kept(path) => Some(path),
            _ => None,
        };
        let json = Json {
            r#type: "calibration",
            kept: self.kept,
            loaded: self.kept.is_loaded(),
            kernel: self.access.kernel,
            work_cpu: self.place.work,
            profiler_cpu: self.place.profiler,
            parts: self.parts,
            kept_in,
            notes: self.notes(),
        };
        Ok(serde_json::to_string(&json)? + "\n")
    }

    /// A table of costs with their standard errors, and the circumstances below.
    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        let model = &self.kept.model;
        let kib = |cost: Cost| Cost::new(cost.mean_ns * 1024.0, cost.se_ns * 1024.0);
        let _ = writeln!(out, "{:<34}{:>9} ± standard error", "what happens", "costs");
        let mut row = |what: &str, cost: Cost| {
            let (unit_ns, unit) = if cost.mean_ns < 999.5 { (1.0, "ns") } else { (1e3, "µs") };
            let (mean, se) = (cost.mean_ns / unit_ns, cost.se_ns / unit_ns);
            let _ = writeln!(out, "{what:<34}{mean:>9.2} ± {se:.2} {unit}");
        };
        row("a sample", model.per_sample_ns);
        if let Some(handler) = model.per_handler_ns {
            row("  of it in the kernel's handler", handler);
        }
        if let Some(parts) = self.parts {
            row("  while the program computes", parts.compute.per_sample_ns);
            row("    a quarter as often, few frames", parts.rare);
            row("  while it waits for memory", parts.memory.per_sample_ns);
        }
        row("a frame, walked", model.per_frame_ns);
        row("a KiB of stack, copied", kib(model.per_byte_ns));
        row("a context switch with events", model.per_switch_ns);
        row("a mapping or a name, reported", model.per_side_record_ns);
        row("a new task with events", model.per_fork_ns);
        if let Some(parts) = self.parts {
            row("the profiler: a sample", parts.own.per_sample_ns);
            row("the profiler: a frame", parts.own.per_frame_ns);
            row("the profiler: a KiB of stack", kib(parts.own.per_byte_ns));
        }
        let _ = writeln!(out, "\nmachine   {}", self.machine());
        for note in self.notes() {
            let _ = writeln!(out, "note      {note}");
        }
        out
    }

    fn machine(&self) -> String {
        let cpu = cpu_model(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default());
        let load = self.kept.load_ratio * 100.0;
        format!("{cpu}; {load:.1}% of it busy with something else")
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.kept.is_loaded() {
            notes.push(format!(
                "the machine was busy (from {:.0}% on): the figures are less sure than they look; run `sweetspot \
                 calibrate` again when it is quiet",
                LOADED_FROM * 100.0
            ));
        }
        if self.kept.thoroughness == Thoroughness::Quick {
            if self.kept.quick.len() > 1 {
                let count = self.kept.quick.len();
                notes.push(format!("the median of the last {count} quick measurements, this one included"));
            }
            notes.push(
                "mappings, names and new tasks are guesses; `sweetspot calibrate` measures them".to_owned(),
            );
        }
        if self.place.profiler.is_none() {
            notes.push("there is but one CPU: the work and the profiler shared it".to_owned());
        }
        if !self.access.kernel {
            notes.push(KERNEL_UNSEEN.to_owned());
        }
        notes.push(match &self.keeping {
            Keeping::Kept(path) => format!("kept in {} for later runs", path.display()),
            Keeping::TooUnsure => {
                "not kept: the errors are too large; run `sweetspot calibrate` again".to_owned()
            }
            Keeping::BetterThere(path) => {
                format!("not kept: {} holds one from a quieter time or a longer measurement", path.display())
            }
            Keeping::Failed(path, error) => {
                format!("not kept: {} cannot be written ({error}); set XDG_CACHE_HOME", path.display())
            }
            Keeping::Nowhere => "not kept: neither HOME nor XDG_CACHE_HOME is set".to_owned(),
        });
        notes
    }
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
