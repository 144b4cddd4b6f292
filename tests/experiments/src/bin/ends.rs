//! Checks that the daemon loses no windows when it is ended at random moments under load, with many targets. After `kill -9`, all
//! windows that had ended must be in the store. After SIGTERM it must exit with status 0 within two seconds and lose nothing.
//! Ends with an error otherwise.
//!
//! Options: `--kills 20`, `--terms 5`, `--targets 20`, `--load 7` (of the targets, those that are always busy), `--window 5` (s).

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use tests::daemon::{Daemon, monotonic_ms};
use tests::ends::{Life, ensure_sound};
use tests::experiment::{option, print, progress, row};
use tests::guards::is_root;
use tests::programs::{copy_program, find_in_path, program};
use tests::run::{start, wait_until};

const MOST_S: f64 = 2.0;
/// A few percent of a CPU.
const LIGHT: &str = "while :; do i=0; while [ $i -lt 10000 ]; do i=$((i+1)); done; sleep 1; done";

fn main() -> Result<()> {
    ensure!(is_root(), "the daemon samples other users' processes, which needs root");
    let (kills, terms): (usize, usize) = (option("--kills", 20)?, option("--terms", 5)?);
    let (targets, load): (usize, usize) = (option("--targets", 20)?, option("--load", 7)?);
    let folder = tempfile::tempdir()?;
    let mut sections = String::new();
    let mut running = Vec::new();
    for at in 0..targets {
        let path = folder.path().join(format!("t{at}"));
        let is_busy = at < load;
        copy_program(
            &if is_busy { program("mix_nofp")? } else { find_in_path("sh").context("no shell")? },
            &path,
        )?;
        let mut command = Command::new(&path);
        running.push(start(if is_busy {
            command.args(["--cpu", "36000"])
        } else {
            command.args(["-c", LIGHT])
        })?);
        sections += &format!("[[target]]\nname = \"t{at}\"\nexecutable = {path:?}\n");
    }
    let mut random = fastrand::Rng::with_seed(option("--seed", 1)?);
    let mut lives: Vec<(&str, Life)> = Vec::new();
    let mut from_ms = monotonic_ms()?;
    let mut daemon = Daemon::start(option("--window", 5)?, &sections)?;
    for at in 0..kills + terms {
        let (name, signal) =
            if at < kills { ("kill -9", Signal::SIGKILL) } else { ("SIGTERM", Signal::SIGTERM) };
        let life = Life::of(&mut daemon, from_ms, Duration::from_millis(random.u64(3_000..15_000)), signal)?;
        progress(&format!("{name} {}: {life:?}", at + 1));
        lives.push((name, life));
        from_ms = monotonic_ms()?;
        daemon.start_again()?;
    }
    let mut rows =
        vec![["end", "windows", "without names", "lost", "took", "status"].map(str::to_owned).to_vec()];
    let mut lost = 0;
    for (name, life) in &lives {
        // A regular end keeps the open windows as well.
        let kept_open = if *name == "SIGTERM" { 0..load } else { 0..0 };
        let missing = || -> Result<u64> {
            let mut missing = life.missing(&daemon)?.values().sum();
            for at in kept_open.clone() {
                missing += u64::from(!life.has_open_window(&daemon, &format!("t{at}"))?);
            }
            Ok(missing)
        };
        drop(wait_until("names", || missing().is_ok_and(|missing| missing == 0)));
        let missing = missing()?;
        lost += missing;
        let took = format!("{:.2} s", life.end_s);
        rows.push(row([name, &life.ended(), &life.unnamed, &missing, &took, &life.status]));
    }
    daemon.stop(Signal::SIGTERM)?;
    let ends: Vec<&Life> =
        lives.iter().filter(|(name, _)| *name == "SIGTERM").map(|(_, life)| life).collect();
    let longest_s = ends.iter().map(|life| life.end_s).fold(0.0, f64::max);
    let windows: u64 = lives.iter().map(|(_, life)| life.ended()).sum();
    let remark = format!("{lost} of {windows} windows were lost; the longest end took {longest_s:.2} s");
    print(&rows, &[remark], &lives)?;
    ensure_sound(&daemon)?;
    ensure!(lost == 0, "{lost} windows were lost");
    ensure!(ends.iter().all(|life| life.status == 0), "an end had another status than 0");
    ensure!(longest_s <= MOST_S, "an end took {longest_s:.2} s");
    Ok(())
}
