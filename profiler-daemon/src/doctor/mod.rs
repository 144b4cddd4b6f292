//! `doctor`: what this machine allows, and the command that fixes what it does not.

mod diagnose;
mod facts;

use std::io;
use std::process::ExitCode;

use anyhow::Result;

use crate::terminal::Terminal;
use diagnose::{Check, Severity, diagnose};
use facts::HostFacts;

/// Look at the machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DoctorJob {
    /// Print JSON.
    pub(crate) json: bool,
}

/// Prints every check. The exit status is 77 if one of them forbids sampling.
///
/// `try_open` opens a sampling event on our own process and closes it again.
pub(crate) fn run(
    job: DoctorJob,
    terminal: Terminal,
    try_open: impl Fn() -> io::Result<()>,
) -> Result<ExitCode> {
    let checks = diagnose(&HostFacts::read(try_open));
    terminal.print(&if job.json { json(&checks)? } else { text(&checks) })?;
    let forbidden = checks.iter().any(|check| check.level == Severity::Fail);
    Ok(if forbidden { ExitCode::from(77) } else { ExitCode::SUCCESS })
}

fn json(checks: &[Check]) -> Result<String> {
    let mut out = String::new();
    for check in checks {
        out.push_str(&serde_json::to_string(check)?);
        out.push('\n');
    }
    Ok(out)
}

/// A line for each check, and one for what mends it.
fn text(checks: &[Check]) -> String {
    let lines = checks.iter().map(|check| {
        let remedy = check.remedy.as_ref().map(|command| format!("      → {command}\n")).unwrap_or_default();
        format!("{:<5} {}: {}\n{remedy}", check.level.word(), check.name, check.finding)
    });
    lines.collect()
}

#[cfg(test)]
mod tests;
