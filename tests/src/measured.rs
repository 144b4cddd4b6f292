//! What a command costs: CPU time and peak memory, its children's included.
//!
//! The kernel reports these only as a sum over all children that were waited for. So the command runs under a
//! small process that has no other child: this executable, started once more.

use std::path::Path;
use std::process::{Command, Stdio};
use std::{env, fs};

use anyhow::{Context, Result};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

const FLAG: &str = "--measure-into";

/// What a command used.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Used {
    /// User and system CPU time (s).
    pub cpu_s: f64,
    /// Largest resident set (KiB).
    pub peak_rss_kib: i64,
    /// Whether it exited with status 0.
    pub succeeded: bool,
}

/// Call it first in `main`: if this process was started to measure a command, it does so and exits.
pub fn measure_if_asked() -> Result<()> {
    let mut words = env::args_os().skip(1);
    if words.next().is_none_or(|first| first != FLAG) {
        return Ok(());
    }
    let into = words.next().context("no file to measure into")?;
    let status = Command::new(words.next().context("no command")?).args(words).status()?;
    let peak_rss_kib = getrusage(UsageWho::RUSAGE_CHILDREN)?.max_rss();
    let used = Used { cpu_s: children_cpu_s()?, peak_rss_kib, succeeded: status.success() };
    fs::write(into, serde_json::to_vec(&used)?)?;
    std::process::exit(status.code().unwrap_or(1));
}

/// CPU time of all children that were waited for so far, and of theirs (s).
pub fn children_cpu_s() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    Ok((usage.user_time() + usage.system_time()).num_microseconds() as f64 * 1e-6)
}

/// The command, to be started so that its use can be [`read`] from `into` once it has ended.
pub fn measured(command: &Command, into: &Path) -> Result<Command> {
    let mut measured = Command::new(env::current_exe()?);
    measured.arg(FLAG).arg(into).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => measured.env(name, value),
            None => measured.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        measured.current_dir(folder);
    }
    measured.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    Ok(measured)
}

/// What a measured command used.
pub fn read(from: &Path) -> Result<Used> {
    let bytes = fs::read(from).with_context(|| format!("no measurement in {}", from.display()))?;
    Ok(serde_json::from_slice(&bytes)?)
}

/// CPU time of all threads of a process so far, of those that ended too (s).
pub fn cpu_s(pid: u32) -> Result<f64> {
    let used = clock_gettime(clock_getcpuclockid(Pid::from_raw(pid as i32))?)?;
    Ok(used.tv_sec() as f64 + used.tv_nsec() as f64 * 1e-9)
}

/// The same with its children's, as long as these live (s): a daemon has one that reads symbols for it.
pub fn cpu_with_children_s(pid: u32) -> Result<f64> {
    let mut used_s = cpu_s(pid)?;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end meanwhile, and so may what it started.
        let children = fs::read_to_string(thread?.path().join("children")).unwrap_or_default();
        let of_children = children.split_whitespace().filter_map(|child| cpu_s(child.parse().ok()?).ok());
        used_s += of_children.sum::<f64>();
    }
    Ok(used_s)
}

/// CPU time of all programs that ran on this machine until now (s): in user code and in the kernel for them.
pub fn machine_busy_s() -> Result<f64> {
    let stat = fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().context("/proc/stat is empty")?;
    let ticks: Vec<u64> =
        line.split_whitespace().skip(1).take(3).map(str::parse).collect::<Result<_, _>>()?;
    let per_second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK)?.context("no clock tick")?;
    Ok(ticks.iter().sum::<u64>() as f64 / per_second as f64)
}
