//! Outputs that cannot be written, ends that come early, and command lines that cannot be meant.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tests::attempts::attempts;
use tests::folded::Folded;
use tests::guards::{Deaf, SmallDisk, is_root};
use tests::programs::program;
use tests::run::{Ended, Sweetspot, finish, interruptible, run, start};

use crate::{busy, fine, refused, sweetspot};

/// Refused before the command runs: a long run must not end in this.
#[test]
fn an_output_folder_that_does_not_exist() -> Result<()> {
    let sweetspot = Sweetspot::new();
    let ran = sweetspot.file("ran");
    let output = sweetspot.file("missing/profile.folded");
    let ended = run(&mut sweetspot.command("record", &["-o", &output, "--", "touch", &ran]))?;
    ensure!(!Path::new(&ran).exists(), "the command ran");
    let status = if ended.status == 2 { 2 } else { 1 };
    refused(ended, status, &["no such file or directory", "does not exist", "no folder", "no directory"])
}

#[test]
fn a_full_disk() -> Result<()> {
    needs_root!("mounting a small disk");
    for ending in ["folded", "pb.gz", "svg"] {
        let disk = SmallDisk::new(16)?;
        let filled = fs::write(disk.path().join("filler"), vec![1; 64 << 10]);
        ensure!(filled.is_err(), "the disk should be full");
        let output = disk.path().join("profile").with_extension(ending);
        let mix = program("mix_nofp")?;
        let words = ["-o", &*output.to_string_lossy(), "--", &*mix.to_string_lossy(), "--cpu", "0.3"];
        let sweetspot = Sweetspot::new();
        // What cannot be written there is kept there.
        let mut command = sweetspot.command("record", &words);
        let ended = run(command.env("TMPDIR", sweetspot.path()))?;
        refused(ended, 1, &["no space left", "disk is full"])?;
        ensure!(!output.exists(), "a half-written {} is left", output.display());
        let mut kept = fs::read_dir(sweetspot.path())?.flatten().map(|file| file.path());
        ensure!(
            kept.any(|path| path.extension().is_some_and(|ending| ending == "gz")),
            "the profile is lost"
        );
    }
    Ok(())
}

#[test]
fn standard_output_closed_early() -> Result<()> {
    let mix = program("mix_nofp")?;
    for reader in ["head -1 >/dev/null", "true"] {
        // The status of a pipe is its reader's; that of the profiler goes around it.
        let script = format!(
            "exec 3>&1; {{ \"$0\" record -- \"$1\" --cpu 0.3 --out /dev/null 3>&-; echo $? >&3; }} | {reader}"
        );
        let ended = run(Command::new("sh").args(["-c", &script]).arg(tests::run::sweetspot()).arg(&mix))?;
        ensure!(ended.stdout.trim() == "0", "{ended:?}");
        let said = ended.stderr.to_lowercase();
        ensure!(!said.contains("panic") && !said.contains("broken pipe"), "{said}");
    }
    Ok(())
}

/// Sends a signal to a profiler that has been at work for a second, and was started with signals blocked; returns its end and what it wrote.
fn interrupted(signal: Signal) -> Result<(Ended, Result<Folded>)> {
    let mut target = busy("60")?;
    let sweetspot = Sweetspot::new().options(&["--rate", "500"]);
    let mut words = sweetspot.outputs();
    words.extend(["--duration".to_string(), "60s".to_string(), target.id().to_string()]);
    let deaf = Deaf::new()?;
    let profiler = start(&mut sweetspot.command("attach", &words))?;
    drop(deaf);
    sleep(Duration::from_millis(2000));
    kill(Pid::from_raw(profiler.id() as i32), signal)?;
    let ended = finish(profiler)?;
    ensure!(target.try_wait()?.is_none(), "the target is gone");
    let left = fs::read_to_string(sweetspot.file("profile.folded")).context("no profile");
    Ok((ended, left.and_then(|text| Folded::parse(&text))))
}

#[test]
fn ctrl_c_leaves_the_profile_so_far() -> Result<()> {
    needs_root!("attaching to any process");
    attempts(|| {
        for signal in [Signal::SIGINT, Signal::SIGTERM] {
            let (ended, folded) = interrupted(signal)?;
            let ended = fine(ended)?;
            ensure!(folded?.weight_of(|stack| stack.has("main")) > 0.0, "no stacks: {ended:?}");
        }
        Ok(())
    })
}

#[test]
fn kill_9_leaves_the_target_running_and_no_profile() -> Result<()> {
    needs_root!("attaching to any process");
    let (ended, folded) = interrupted(Signal::SIGKILL)?;
    ensure!(ended.status == 128 + 9, "{ended:?}");
    ensure!(folded.is_err(), "a profile under its final name");
    Ok(())
}

/// A terminal sends Ctrl-C to the profiler and the command alike.
#[test]
fn ctrl_c_while_recording_leaves_the_profile_and_the_status_of_the_command() -> Result<()> {
    attempts(|| {
        let sweetspot = Sweetspot::new().options(&["--rate", "500"]);
        let mut words = sweetspot.outputs();
        words.extend(["--", &*program("mix_nofp")?.to_string_lossy(), "--cpu", "60"].map(str::to_string));
        let profiler = start(interruptible(&sweetspot.command("record", &words)).process_group(0))?;
        sleep(Duration::from_millis(2000));
        kill(Pid::from_raw(-(profiler.id() as i32)), Signal::SIGINT)?;
        finish(profiler)?.expect_status(128 + 2)?;
        let folded = Folded::parse(&fs::read_to_string(sweetspot.file("profile.folded"))?)?;
        ensure!(folded.weight_of(|stack| stack.has("main")) > 0.0, "no stacks");
        Ok(())
    })
}

#[test]
fn a_command_that_does_not_exist() -> Result<()> {
    refused(sweetspot("record", &["--", "no-such-command-xyz"])?, 127, &["not found", "no such file"])
}

#[test]
fn a_command_that_is_not_executable() -> Result<()> {
    refused(sweetspot("record", &["--", "/etc/passwd"])?, 126, &["permission denied", "not executable"])
}

#[test]
fn the_status_of_the_command_is_passed_on() -> Result<()> {
    sweetspot("record", &["--", "sh", "-c", "exit 3"])?.expect_status(3)?;
    sweetspot("record", &["--", "sh", "-c", "kill -9 $$"])?.expect_status(128 + 9)?;
    sweetspot("record", &["--", "sh", "-c", "kill -TERM $$"])?.expect_status(128 + 15)?;
    Ok(())
}

#[test]
fn a_rate_of_zero() -> Result<()> {
    refused(sweetspot("record", &["--rate", "0", "--", "true"])?, 2, &["rate"])
}

#[test]
fn a_budget_above_all() -> Result<()> {
    refused(sweetspot("record", &["--budget", "200%", "--", "true"])?, 2, &["budget"])
}

#[test]
fn an_unknown_ending() -> Result<()> {
    let ended = sweetspot("record", &["-o", "profile.xyz", "--", "true"])?;
    refused(ended, 2, &[".pb.gz"])
}
