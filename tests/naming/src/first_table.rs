//! How long after the last sample the table begins: what a person waits for names.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{env, fs, thread};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The program has touched its code by then.
const WARM_UP: Duration = Duration::from_millis(500);

/// One run's figures.
pub struct Waited {
    /// From the end of sampling to the first line of the table (s).
    pub wait_s: f64,
    /// Samples that were taken.
    pub samples: u64,
    /// Lines of the table.
    pub lines: usize,
}

/// The profiler: `$SWEETSPOT`, or the workspace's release build, brought up to date.
pub fn sweetspot(workspace: &Path) -> Result<PathBuf> {
    if let Some(path) = env::var_os("SWEETSPOT") {
        return Ok(PathBuf::from(path));
    }
    let status = Command::new("cargo")
        .args(["build", "--release", "--quiet", "-p", "profiler-daemon"])
        .current_dir(workspace)
        .status()?;
    ensure!(status.success(), "the profiler does not build");
    Ok(workspace.join("target/release/sweetspot"))
}

/// Profiles the program for a second, and waits for the table.
pub fn wait(sweetspot: &Path, program: &Path, folder: &Path) -> Result<Waited> {
    let mut target = Ended(Command::new(program).arg("60").spawn()?);
    thread::sleep(WARM_UP);
    let stats = folder.join("stats.jsonl");
    let mut command = Command::new(sweetspot);
    command.args(["attach", "--duration", "1s", "--rate", "2000", "--stats"]).arg(&stats);
    command.arg(target.0.id().to_string()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut profiler = Ended(command.spawn()?);
    let mut table = profiler.0.stdout.take().context("a pipe")?;
    let mut text = vec![0];
    table.read_exact(&mut text).context("no table")?;
    let first_s = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
    table.read_to_end(&mut text)?;
    ensure!(profiler.0.wait()?.success(), "sweetspot failed");
    target.0.kill()?;
    let summary = fs::read_to_string(&stats)?;
    let summary: Value = serde_json::from_str(summary.lines().last().context("no summary")?)?;
    let number = |key: &str| summary[key].as_f64().with_context(|| format!("no {key} in the summary"));
    let end_s = number("start_unix_ns")? * 1e-9 + number("duration_s")?;
    let lines = text.iter().filter(|&&byte| byte == b'\n').count();
    Ok(Waited { wait_s: first_s - end_s, samples: number("samples")? as u64, lines })
}

/// A process that does not outlive its owner.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
