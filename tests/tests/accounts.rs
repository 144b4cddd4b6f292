//! Whose samples and CPU time are whose, where a daemon has many targets. Live, as root.

#![allow(clippy::print_stderr, reason = "a test that skips says why")]

use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use tests::daemon::Daemon;
use tests::guards::is_root;
use tests::programs::{copy_program, program};
use tests::run::{start, wait_until};

/// A user that nobody is.
const USER: &str = "44017";

/// A shell becomes the program that works, long after it was found: as before, it belongs to the target of its user.
#[test]
fn a_process_that_begins_another_program_and_stays_in_its_target_is_not_the_rests() -> Result<()> {
    if !is_root() {
        eprintln!("skipped: the daemon samples other users' processes, which needs root");
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))?;
    let path = folder.path().join("becomes");
    copy_program(&program("mix_nofp")?, &path)?;
    let sections = format!(
        "[[target]]\nname = \"theirs\"\nuser = \"{USER}\"\n[[target]]\nname = \"rest\"\neverything = true\n"
    );
    let daemon = Daemon::start(60, &sections)?;
    daemon.wait_for("rest", "sampled")?;
    // It has nothing to do until it becomes the other program.
    let go = folder.path().join("go");
    let script =
        format!("while [ ! -e {} ]; do sleep .1; done; exec {} --cpu 300", go.display(), path.display());
    let mut shell = Command::new("setpriv");
    shell.args(["--reuid", USER, "--regid", USER, "--clear-groups", "sh", "-c", &script]);
    let shell = start(&mut shell)?;
    daemon.wait_for("theirs", "sampled")?;
    sleep(Duration::from_secs(3)); // three looks, each of which finds it where it is
    std::fs::write(&go, "")?;
    let figure = |key: &str| -> Result<f64> { Ok(daemon.target("theirs")?[key].as_f64().unwrap_or(0.0)) };
    wait_until("what it does", || figure("cpu_s").is_ok_and(|cpu_s| cpu_s > 2.0))?;
    let used_s = tests::measured::cpu_s(shell.id())?;
    let (counted_s, samples) = (figure("cpu_s")?, figure("samples")?);
    // A look is a second old at most, on a machine that has time for it.
    ensure!(counted_s > 0.5 * used_s && counted_s <= used_s + 0.1, "{counted_s} s of {used_s} s");
    ensure!(samples > 20.0, "{samples} samples in {counted_s} s");
    ensure!(daemon.target("theirs")?["processes"] == 1);
    Ok(())
}
