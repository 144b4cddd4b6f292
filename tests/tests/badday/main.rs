//! Bad days: whatever goes wrong, there is an exit status that says so and one line on standard error that
//! says what happened and what to do about it; no panic, no half-written file, and no harm to the target.

#![allow(clippy::print_stderr, reason = "a test that skips says why")]

use std::process::Command;

use anyhow::{Result, ensure};
use tests::guards::Running;
use tests::programs::program;
use tests::run::{Ended, Sweetspot, run, start};

/// Leaves a test that needs root where this is not root.
macro_rules! needs_root {
    ($why:literal) => {
        if !is_root() {
            eprintln!("skipped: {} needs root", $why);
            return Ok(());
        }
    };
}

mod ends;
mod files;
mod groups;
mod targets;

/// The run failed with this status and one line, which has one of these words and ends in `; what to do`.
fn refused(ended: Ended, status: i32, words: &[&str]) -> Result<()> {
    let ended = ended.expect_status(status)?;
    let lines: Vec<&str> = ended.stderr.lines().filter(|line| !line.trim().is_empty()).collect();
    ensure!(lines.len() == 1, "{} lines instead of one: {ended:#?}", lines.len());
    let line = lines[0].to_lowercase();
    ensure!(!line.contains("panicked"), "{line}");
    ensure!(words.iter().any(|word| line.contains(word)), "none of {words:?} in: {line}");
    let advice = line.split_once("; ").map_or("", |(_, advice)| advice);
    ensure!(advice.split_whitespace().count() > 1, "it does not say what to do: {line}");
    Ok(())
}

/// The run did its job, whatever it had to say about it.
fn fine(ended: Ended) -> Result<Ended> {
    let ended = ended.expect_status(0)?;
    ensure!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    Ok(ended)
}

fn sweetspot(verb: &str, arguments: &[&str]) -> Result<Ended> {
    run(&mut Sweetspot::new().command(verb, arguments))
}

fn busy(seconds: &str) -> Result<Running> {
    start(Command::new(program("mix_nofp")?).args(["--cpu", seconds, "--depth", "20"]))
}
