//! The experiments of Stoker's dissertation, run again: the ordering of two functions in an array of a million members
//! (Table 3.4), the run of 300 s with 900 to 44,400 samples (section 4.3), and the figures that follow from its
//! equations. Fails if one of them differs.
//!
//! Options: `--trials 10000` (of each ordering), `--runs 1000` (of each size), `--seed 1`.

use anyhow::{Result, ensure};
use tests::experiment::{option, print, row};
use tests::paper::{Line, lines};

fn main() -> Result<()> {
    let found = lines(option("--trials", 10_000)?, option("--runs", 1_000)?, option("--seed", 1)?);
    let mut rows = vec![["experiment", "paper", "here", "allowed", ""].map(str::to_string).to_vec()];
    rows.extend(found.iter().map(to_row));
    let off = found.iter().filter(|line| !line.holds).count();
    print(&rows, &[format!("{off} of {} are off", found.len())], &found)?;
    ensure!(off == 0, "{off} of {} figures are off", found.len());
    Ok(())
}

fn to_row(line: &Line) -> Vec<String> {
    let verdict = if line.holds { "holds" } else { "OFF" };
    row([&line.what, &line.paper, &line.here, &line.allowed, &verdict])
}
