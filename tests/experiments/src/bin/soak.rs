//! Runs the daemon under churn, load and faults for two hours, and checks what must hold.
//!
//! Options: `--minutes 120`, `--seed N`, `--folder F` (what happened stays there); `--judge F` judges a run again that left its
//! record there.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use tests::experiment::{option, print, row};
use tests::guards::is_root;
use tests::soak;

fn main() -> Result<()> {
    let judged: String = option("--judge", String::new())?;
    let mut folder = PathBuf::from(option("--folder", judged.clone())?);
    let temporary = tempfile::tempdir()?;
    if folder.as_os_str().is_empty() {
        folder = temporary.path().to_owned();
    }
    if judged.is_empty() {
        ensure!(is_root(), "the daemon samples other users' processes, which needs root");
        let minutes: f64 = option("--minutes", 120.0)?;
        soak::run(&folder, Duration::from_secs_f64(60.0 * minutes), option("--seed", 1)?)?;
    }
    let lines = soak::judge_folder(&folder)?;
    let mut rows = vec![row([&"what has to hold", &"found", &""])];
    let verdict = |holds| if holds { "holds" } else { "DOES NOT HOLD" };
    rows.extend(lines.iter().map(|line| row([&line.what, &line.found, &verdict(line.holds)])));
    print(&rows, &[], &lines)?;
    let broken = lines.iter().filter(|line| !line.holds).count();
    ensure!(broken == 0, "{broken} of {} lines do not hold", lines.len());
    Ok(())
}
