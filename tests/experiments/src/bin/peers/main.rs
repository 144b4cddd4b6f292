//! Compares what a sample costs with sweetspot and with other profilers. Two processes take turns at the same work on one CPU, 20
//! frames deep and without frame pointers; each profiler in turn samples one of them, at the same fixed rate. Then a pair of
//! threads that only switch contexts is profiled, at each profiler's usual rate.
//!
//! The target has a CPU to itself and the profiler another. Recording only: `perf script` and what samply
//! does when it shows a profile are left out. Ours finds the names and writes a finished profile before it
//! ends; its figure is given with that and without.
//!
//! Options: `--only sample|pair`, `--rounds 5`, `--seconds 8` (a run), `--rate 5000`.

mod pair;
mod samples;

use anyhow::{Result, ensure};
use serde::Serialize;
use tests::experiment::{option, print, progress};
use tests::guards::{OnCpu, Sysctl, is_root, two_cpus};
use tests::measured::measure_if_asked;
use tests::peers::Profiler;
use tests::run::sweetspot;
use tests::verdict::{Verdict, ensure_none_fails};

/// The installed profilers, each with its runs.
type Runs<T> = Vec<(Profiler, Vec<T>)>;

/// All findings.
#[derive(Default, Serialize)]
struct Report {
    samples: Vec<samples::Found>,
    pair: Option<pair::Found>,
    verdicts: Vec<Verdict>,
    #[serde(skip)]
    rows: Vec<Vec<String>>,
    #[serde(skip)]
    remarks: Vec<String>,
}

fn main() -> Result<()> {
    measure_if_asked()?;
    let (only, rounds) = (option("--only", String::new())?, option("--rounds", 5)?);
    let parts = ["sample", "pair"];
    ensure!(only.is_empty() || parts.contains(&only.as_str()), "--only takes one of {}", parts.join(", "));
    let is_asked_for = |part| only.is_empty() || only == part;
    ensure!(rounds > 0, "--rounds needs at least 1");
    sweetspot(); // built before this is bound to one CPU
    let (target_cpu, own_cpu) = two_cpus()?;
    let _here = OnCpu::new(own_cpu)?;
    let present = present();
    // samply refuses to run at more than 1, even as root; the level makes no other difference to root.
    let lower = present.contains(&Profiler::Samply) && is_root();
    let _paranoid = lower.then(|| Sysctl::kernel("perf_event_paranoid", "1")).transpose()?;
    let mut report = Report::default();
    if is_asked_for("sample") {
        report.add_samples(&present, rounds, target_cpu)?;
    }
    if is_asked_for("pair") {
        report.add_pair(&present, rounds, target_cpu)?;
    }
    report.remarks.extend(report.verdicts.iter().map(|verdict| verdict.line().to_string()));
    print(&report.rows, &report.remarks, &report)?;
    ensure_none_fails(&report.verdicts)
}

/// The profilers that are installed; prints how to install the others.
fn present() -> Vec<Profiler> {
    let (present, missing): (Vec<_>, Vec<_>) =
        Profiler::ALL.into_iter().partition(|profiler| profiler.find().is_some());
    for profiler in missing {
        progress(&format!("{} is missing: {}", profiler.name(), profiler.how_to_get()));
    }
    present
}

impl Report {
    fn add_samples(&mut self, present: &[Profiler], rounds: usize, cpu: usize) -> Result<()> {
        let runs = samples::measure(present, rounds, cpu)?;
        self.samples = samples::found(&runs);
        self.verdicts.extend(samples::judge(&runs));
        self.rows.extend(samples::rows(&self.samples));
        self.rows.push(Vec::new());
        let remark = "µs of CPU time per sample, medians; the sum and the gates leave out finding names";
        self.remarks.push(remark.to_string());
        Ok(())
    }

    fn add_pair(&mut self, present: &[Profiler], rounds: usize, cpu: usize) -> Result<()> {
        let usual: Vec<_> = present.iter().copied().filter(|one| *one != Profiler::Dwarf).collect();
        let found = pair::measure(&usual, rounds, cpu)?;
        self.verdicts.extend(found.judge());
        self.rows.extend(found.rows());
        self.remarks.push(found.remark());
        self.pair = Some(found);
        Ok(())
    }
}
