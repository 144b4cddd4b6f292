//! What the experiments share: their options and how they print.

use std::fmt::Display;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::figures::table;

/// The value after `--name` on the command line, or a default.
pub fn option<T>(name: &str, default: T) -> Result<T>
where
    T: FromStr<Err: Display>,
{
    if std::env::args().any(|word| word == "--help") {
        let program = std::env::args().next().unwrap_or_default();
        let program = Path::new(&program).file_stem().unwrap_or_default().to_string_lossy().into_owned();
        anyhow::bail!(
            "the options of {program} are described at the top of its source, tests/experiments/src/bin or tests/benches"
        );
    }
    let mut words = std::env::args().skip_while(|word| word != name);
    if words.next().is_none() {
        return Ok(default);
    }
    let value = words.next().with_context(|| format!("{name} needs a value"))?;
    value.parse().map_err(|error| anyhow::anyhow!("{name} {value}: {error}"))
}

/// A row of a table.
pub fn row<const N: usize>(cells: [&dyn Display; N]) -> Vec<String> {
    cells.iter().map(ToString::to_string).collect()
}

/// A share as a percentage.
pub fn percent(ratio: f64) -> String {
    format!("{:.2}%", ratio * 100.0)
}

/// What an experiment found, for a person and then, in one line, for a program.
#[allow(clippy::print_stdout, reason = "printing is what an experiment is for")]
pub fn print(rows: &[Vec<String>], remarks: &[String], found: &impl Serialize) -> Result<()> {
    println!("{}", table(rows));
    remarks.iter().for_each(|remark| println!("{remark}"));
    println!("{}", serde_json::to_string(found)?);
    Ok(())
}

/// A line about what is going on, on standard error.
#[allow(clippy::print_stderr, reason = "experiments take minutes; the person sees that they go on")]
pub fn progress(line: &str) {
    eprintln!("{line}");
}
