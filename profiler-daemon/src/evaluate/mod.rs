//! `evaluate`: does the controller choose well on this machine? Programs of known shares run unsampled, at ten
//! fixed rates and at the rate that the controller chooses; the errors of their profiles are compared.
//!
//! Each program takes turns with a twin that nobody samples, so that what sampling adds is known to a fraction of a percent.
//!
//! The errors are those of CPU seconds without compensation, which is what the law makes small; shares alone
//! would not show what sampling adds. Each sampled run is a `sweetspot record` of its own, so what is judged is
//! what a person gets.

mod cost;
mod design;
mod fit;
mod picture;
mod runner;
#[cfg(test)]
mod simulated;
mod table;
mod turns;
mod verdict;
pub(crate) mod workload;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use config::Unwind;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

pub(crate) use self::design::{Design, Shape};
use self::design::{Planned, SHAPES};
use self::fit::{Observation, settle};
use self::runner::Runner;
pub(crate) use self::turns::Role;
use self::verdict::{Claim, Figures, claims, figures};
pub(crate) use self::workload::WorkloadJob;
use crate::output::{check_writable, write_text};
use crate::terminal::Terminal;
use crate::{failure, run as sampling};

/// Hold the controller's choice against fixed rates.
#[derive(Debug)]
pub(crate) struct EvaluateJob {
    /// The runs.
    pub(crate) design: Design,
    /// How stacks are unwound in them.
    pub(crate) unwind: Unwind,
    /// Where to write what was found, each path once.
    pub(crate) files: Vec<PathBuf>,
    /// Print results and errors only.
    pub(crate) quiet: bool,
}

/// Runs the experiment, prints what it found and writes the files that are asked for.
pub(crate) fn run(job: &EvaluateJob) -> Result<()> {
    let terminal = Terminal { quiet: job.quiet };
    job.files.iter().try_for_each(|file| check_writable(file))?;
    sampling::permitted()?;
    let (runs, notes) = observe(job, terminal)?;
    deliver(job, &runs, &notes, terminal)
}

/// Writes and prints what the runs showed. Where they do not suffice for figures, or a file cannot be written, there is the rest
/// all the same: they took a quarter of an hour.
fn deliver(job: &EvaluateJob, runs: &[Observation], notes: &[String], terminal: Terminal) -> Result<()> {
    let findings = figures(&runs.iter().collect::<Vec<_>>()).map(|figures| {
        let claims = claims(runs, &figures, job.design.seed);
        Findings { figures, claims }
    });
    let written = write_files(job, runs, findings.as_ref().ok(), notes, terminal);
    notes.iter().for_each(|note| terminal.say(note));
    let printed = match &findings {
        Ok(Findings { figures, claims }) => terminal.print(&table::render(runs, figures, claims)),
        Err(error) => Err((*error).into()),
    };
    match (written, printed) {
        (Err(first), Err(second)) => Err(anyhow!("{first:#}; and {second:#}")),
        (written, printed) => written.and(printed),
    }
}

/// What the runs show.
struct Findings {
    figures: Figures,
    claims: Vec<Claim>,
}

/// Writes the files that were asked for; without findings, those that hold the runs.
fn write_files(
    job: &EvaluateJob,
    runs: &[Observation],
    findings: Option<&Findings>,
    notes: &[String],
    terminal: Terminal,
) -> Result<()> {
    for file in &job.files {
        let Some(text) = content(file, job, runs, findings, notes) else { continue };
        write_text(file, &text)?;
        terminal.say(&format!("wrote {}", file.display()));
    }
    Ok(())
}

/// All runs that succeeded, and what a person should know of the others.
fn observe(job: &EvaluateJob, terminal: Terminal) -> Result<(Vec<Observation>, Vec<String>)> {
    let planned = job.design.runs();
    let progress = progress(planned.len() as u64, terminal);
    sampling::runtime()?.block_on(async {
        let mut runner = Runner::prepare(job).await?;
        let mut runs = Vec::with_capacity(planned.len());
        for (index, next) in planned.iter().enumerate() {
            show(&progress, index, next);
            match runner.run(next).await {
                Ok(Some(run)) => runs.push(run),
                Ok(None) => {}
                Err(stop) if failure::is_stop(&stop) || runs.is_empty() => return Err(stop),
                Err(error) => runner.notes.push(format!("a run is missing: {error:#}")),
            }
        }
        progress.finish_and_clear();
        settle(&mut runs);
        Ok((runs, std::mem::take(&mut runner.notes)))
    })
}

fn progress(runs: u64, terminal: Terminal) -> ProgressBar {
    if terminal.quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} run {pos} of {len}, {msg}, about {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(runs).with_style(style)
}

fn show(progress: &ProgressBar, index: usize, next: &Planned) {
    progress.set_message(format!("{} {}", SHAPES[next.shape].name, next.arm.name()));
    progress.set_position(index as u64);
}

/// What a file holds: the picture, for which there must be findings, or everything.
fn content(
    file: &Path,
    job: &EvaluateJob,
    runs: &[Observation],
    findings: Option<&Findings>,
    notes: &[String],
) -> Option<String> {
    if file.extension().is_some_and(|ending| ending == "svg") {
        return findings.map(|findings| picture::chart(runs, &findings.figures).svg());
    }
    let object = json!({
        "rounds": job.design.rounds,
        "cpu_s": job.design.cpu_s(),
        "seed": job.design.seed,
        "figures": findings.map(|findings| &findings.figures),
        "claims": findings.map_or(&[][..], |findings| &findings.claims),
        "notes": notes,
        "runs": runs,
    });
    Some(format!("{object}\n"))
}

#[cfg(test)]
mod tests;
