//! Measures the idle daemon: CPU time, memory and descriptors with many sleeping targets.
//!
//! Usage, as root: `idle [TARGETS] [SECONDS]`, by default 20 targets and 60 seconds.

#![allow(clippy::print_stdout, reason = "it prints what it found")]

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use tests::daemon::Daemon;
use tests::guards::Running;
use tests::programs::{copy_program, program};
use tests::run::start;

/// Left out at the start: naming the first windows and reading mapped files happens once.
const WARM_UP: Duration = Duration::from_secs(15);

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let targets: usize = words.next().map_or(Ok(20), |word| word.parse())?;
    let seconds: u64 = words.next().map_or(Ok(60), |word| word.parse())?;
    let folder = tempfile::tempdir()?;
    let mut sections = String::new();
    let mut sleepers: Vec<Running> = Vec::new();
    for number in 0..targets {
        let copy = folder.path().join(format!("idle{number}"));
        copy_program(&program("idler")?, &copy)?;
        sections += &format!("[[target]]\nname = \"idle{number}\"\nexecutable = {copy:?}\n");
        sleepers.push(start(Command::new(&copy).args(["86400", "4000"]))?);
    }
    let daemon = Daemon::start(60, &sections)?;
    for number in 0..targets {
        daemon.wait_for(&format!("idle{number}"), "sampled")?;
    }
    sleep(WARM_UP);
    let before = (daemon.own_cpu_s()?, daemon.ctl_json(&["status"])?);
    sleep(Duration::from_secs(seconds));
    let after = (daemon.own_cpu_s()?, daemon.ctl_json(&["status"])?);
    let host =
        |status: &serde_json::Value, key: &str| status["host"][key].as_f64().context("a figure of the host");
    let share = |used_s: f64| 100.0 * used_s / seconds as f64;
    let housekeeping_s = host(&after.1, "housekeeping_cpu_s")? - host(&before.1, "housekeeping_cpu_s")?;
    let own_s = host(&after.1, "self_cpu_s")? - host(&before.1, "self_cpu_s")?;
    let memory = |key: &str| after.1["memory"][key].as_f64().context("a figure of memory");
    println!("{targets} targets that sleep, {seconds} s");
    println!(
        "CPU time of the daemon    {:.3}% of a core (by its own account {:.3}%)",
        share(after.0 - before.0),
        share(own_s)
    );
    println!("  turns of targets        {:.3}%", share(own_s - housekeeping_s));
    println!("  everything else         {:.3}%", share(housekeeping_s));
    println!(
        "memory                    {:.1} MiB resident, {:.1} MiB of it tables and names; {} descriptors",
        memory("resident_bytes")? / 1048576.0,
        memory("symbol_bytes")? / 1048576.0,
        memory("open_files")?
    );
    Ok(())
}
