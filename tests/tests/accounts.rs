//! Whose samples and CPU time are whose, where a daemon has many targets. Live, as root.

#![allow(clippy::print_stderr, reason = "a test that skips says why")]

use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tests::daemon::Daemon;
use tests::guards::is_root;
use tests::programs::{copy_program, program};
use tests::run::{start, wait_until_told};

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
    let daemon = Daemon::start_ample(60, &sections)?;
    daemon.wait_for("rest", "sampled")?;
    // It has nothing to do until it becomes the other program, and begins no other: of one that has ended, samples are all there is,
    // and one of them may stand for a second.
    let go = folder.path().join("go");
    nix::unistd::mkfifo(&go, nix::sys::stat::Mode::from_bits_truncate(0o666))?;
    let script = format!("read line < {}; exec {} --cpu 300", go.display(), path.display());
    let mut shell = Command::new("setpriv");
    shell.args(["--reuid", USER, "--regid", USER, "--clear-groups", "sh", "-c", &script]);
    let shell = start(&mut shell)?;
    daemon.wait_for("theirs", "sampled")?;
    sleep(Duration::from_secs(3)); // three looks, each of which finds it where it is
    std::fs::write(&go, "go\n")?;
    let figure = |key: &str| -> Result<f64> { Ok(daemon.target("theirs")?[key].as_f64().unwrap_or(0.0)) };
    // A figure is a second old at most on a machine that has time for it, and a sample or two ahead: what is counted twice stays so.
    let mut seen = (0.0, 0.0);
    let is_counted = wait_until_told("what it does", || {
        let Ok(used_s) = tests::measured::cpu_s(shell.id()) else { return false };
        seen = (figure("cpu_s").unwrap_or(0.0), used_s);
        used_s > 2.0 && seen.0 > 0.6 * used_s && seen.0 < 1.2 * used_s
    });
    is_counted.with_context(|| format!("{} s are counted, {} s were used", seen.0, seen.1))?;
    wait_until_told("its samples", || figure("samples").is_ok_and(|samples| samples > 20.0))?;
    ensure!(daemon.target("theirs")?["processes"] == 1);
    Ok(())
}
