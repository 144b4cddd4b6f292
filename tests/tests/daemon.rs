//! The service as an operator meets it: targets that come and go, windows that are kept, settings that change, and bad days.
//! Live, as root.

#![allow(clippy::print_stderr, reason = "a test that skips says why")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tests::attempts::attempts;
use tests::daemon::{Daemon, monotonic_ms, span_ms};
use tests::ends::{Life, ensure_sound};
use tests::guards::{Deaf, Running, SmallDisk};
use tests::programs::{copy_program, program};
use tests::run::{run, start, wait_until};

/// The two clocks are read one after the other, with a neighbour's turn in between, and one of them is slewed. A tick that is missing is
/// a tenth of a second.
const CLOCKS_MS: u64 = 20;

/// Leaves the test where the daemon cannot sample.
macro_rules! privileged {
    () => {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: the daemon samples other users' processes, which needs root");
            return Ok(());
        }
    };
}

/// A program of known functions under a path of its own, so that no other test's is taken for it.
struct Busy {
    folder: TempDir,
    name: String,
}

impl Busy {
    fn new() -> Result<Busy> {
        Busy::of("mix_nofp")
    }

    fn of(build: &str) -> Result<Busy> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let name = format!("busy{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let folder = tempfile::tempdir()?;
        copy_program(&program(build)?, &folder.path().join(&name))?;
        Ok(Busy { folder, name })
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join(&self.name)
    }

    fn start(&self) -> Result<Running> {
        start(Command::new(self.path()).args(["--cpu", "300"]))
    }

    /// A section of the settings that is this program, with more lines.
    fn section(&self, name: &str, more: &str) -> String {
        format!("[[target]]\nname = {name:?}\nexecutable = {:?}\n{more}\n", self.path())
    }
}

/// The spans of a target's windows, in order.
fn windows(daemon: &Daemon, target: &str) -> Result<Vec<(u64, u64)>> {
    let of_target = |path: &&PathBuf| path.to_string_lossy().contains(&format!("_{target}_"));
    let mut spans =
        daemon.files()?.iter().filter(of_target).map(|path| span_ms(path)).collect::<Result<Vec<_>>>()?;
    spans.sort_unstable();
    Ok(spans)
}

fn ensure_gapless(spans: &[(u64, u64)]) -> Result<()> {
    for pair in spans.windows(2) {
        ensure!(
            pair[0].1.abs_diff(pair[1].0) <= CLOCKS_MS,
            "a gap or an overlap between {:?} and {:?}",
            pair[0],
            pair[1]
        );
    }
    Ok(())
}

fn wait_for_windows(daemon: &Daemon, target: &str, count: usize) -> Result<()> {
    wait_until("windows", || windows(daemon, target).is_ok_and(|spans| spans.len() >= count))
}

/// Ends a daemon in which "busy" is sampled, and starts it again. Returns the windows until its end, the one that was open then among
/// them: those that had no names by then get them from the next daemon.
fn restarted(
    daemon: &mut Daemon,
    found: impl Fn(&Daemon) -> Result<Vec<(u64, u64)>>,
) -> Result<Vec<(u64, u64)>> {
    let samples = |daemon: &Daemon| Ok::<_, anyhow::Error>(daemon.target("busy")?["samples"].as_u64());
    // The open window may be a few milliseconds old, and empty.
    let (sampled, then_ms) = (samples(daemon)?, monotonic_ms()?);
    wait_until("samples in the open window", || samples(daemon).is_ok_and(|samples| samples > sampled))?;
    daemon.stop(Signal::SIGTERM)?.expect_status(0)?;
    let to_ms = monotonic_ms()?;
    daemon.start_again()?;
    let until_then = || -> Result<Vec<(u64, u64)>> {
        Ok(found(daemon)?.into_iter().filter(|(begin, _)| *begin < to_ms).collect())
    };
    wait_until("the names of all windows", || {
        let has_open_one = |spans: &Vec<(u64, u64)>| spans.iter().any(|(_, end)| end + CLOCKS_MS >= then_ms);
        until_then().is_ok_and(|spans| has_open_one(&spans) && ensure_gapless(&spans).is_ok())
    })
    .with_context(|| {
        format!("the window that was open at {then_ms} ms and those before: {:?}", until_then())
    })?;
    until_then()
}

/// CPU time of a program's functions in a target's profile (s).
fn work_s(daemon: &Daemon, busy: &Busy, target: &str) -> Result<f64> {
    let ended =
        daemon.report(&["--from", "-1h", "--target", target, "--format", "json"])?.expect_status(0)?;
    let profile: Value = serde_json::from_str(&ended.stdout)?;
    let functions = profile["functions"].as_array().context("functions")?;
    let is_its = |function: &&Value| {
        function["module"] == busy.name.as_str()
            && function["name"].as_str().is_some_and(|name| name.starts_with("work_"))
    };
    let work = functions.iter().filter(is_its);
    Ok(work.filter_map(|function| function["cpu_s"].as_f64()).sum())
}

/// What is parted from everything has its own CPU time, and not the machine's.
#[test]
fn each_of_everything_is_a_target_of_its_own() -> Result<()> {
    privileged!();
    let busy = Busy::new()?;
    let running = busy.start()?;
    let daemon = Daemon::start(60, "[[target]]\nname = \"all\"\neverything = true\neach = \"process\"")?;
    let name = format!("all:{}", busy.name);
    daemon.wait_for(&name, "sampled")?;
    wait_until("CPU time", || daemon.target(&name).is_ok_and(|found| found["cpu_s"].as_f64() > Some(0.5)))?;
    let target = daemon.target(&name)?;
    let used = tests::measured::cpu_s(running.id())?;
    ensure!(target["processes"] == 1 && target["cpu_s"].as_f64() <= Some(used), "{used}: {target}");
    Ok(())
}

/// A shell that waits for a subshell, that waits for a program of another target: the time of that one is in no other's. `more` is for the
/// sections of both. The figures are those of the last look, which may be a second old.
fn a_shell_and_what_it_waits_for(more: &str, most_of_shell_s: f64) -> Result<()> {
    let (busy, folder) = (Busy::new()?, tempfile::tempdir()?);
    let shell = folder.path().join(format!("shell{}", busy.name));
    fs::copy("/bin/bash", &shell)?;
    let sections = format!(
        "[budget]\nhost = \"20%\"\ntarget = \"10%\"\n[[target]]\nname = \"shell\"\nexecutable = {shell:?}\n{more}\n{}",
        busy.section("work", more)
    );
    let daemon = Daemon::start(60, &sections)?;
    let script = format!("sleep 2; (timeout 60 {:?} --cpu 6; true); sleep 2; true", busy.path());
    let _shell = start(Command::new(&shell).args(["-c", &script]))?;
    let cpu_s = |name: &str| Ok::<_, anyhow::Error>(daemon.target(name)?["cpu_s"].as_f64().unwrap_or(0.0));
    wait_until("the work", || cpu_s("work").is_ok_and(|used| used > 1.0))?;
    wait_until("the end of it", || daemon.target("work").is_ok_and(|target| target["processes"] == 0))?;
    std::thread::sleep(Duration::from_secs(3)); // until the shell has waited for it, and its account was read
    let (of_shell, of_work) = (cpu_s("shell")?, cpu_s("work")?);
    // The kernel's account of the shell's children would add all six.
    ensure!(
        of_shell < most_of_shell_s,
        "the shell is reported to have used {of_shell} s, and the work {of_work} s: {}",
        daemon.target("shell")?
    );
    // After the last reading of its clock there are only samples.
    ensure!(
        (4.0..7.0).contains(&of_work),
        "the work used 6 s, and {of_work} s are reported: {}",
        daemon.target("work")?
    );
    Ok(())
}

#[test]
fn a_shell_has_none_of_the_time_of_what_it_waits_for_where_they_share_a_sampler() -> Result<()> {
    privileged!();
    a_shell_and_what_it_waits_for("", 0.6)
}

#[test]
fn a_shell_has_none_of_the_time_of_what_it_waits_for_where_each_has_its_own() -> Result<()> {
    privileged!();
    // Until a scan finds the work, after a second at most, its time counts for the shell.
    a_shell_and_what_it_waits_for("horizon = \"50s\"", 1.1)
}

/// Processes that begin and end all the time, under shells of theirs: all targets together have used what the machine has.
#[test]
fn the_time_of_all_targets_is_the_machines() -> Result<()> {
    privileged!();
    attempts(the_time_of_targets_and_of_the_machine)
}

/// The figures are those of the last look, which may be a second old.
fn the_time_of_targets_and_of_the_machine() -> Result<()> {
    let busy = Busy::new()?;
    let daemon = Daemon::start(
        60,
        "[[target]]\nname = \"each\"\nprocess = \".\"\neach = \"process\"\n\n[[target]]\nname = \"rest\"\neverything = true",
    )?;
    daemon.wait_for("rest", "sampled")?;
    let sum = |key: &str| -> Result<f64> {
        Ok(daemon.targets()?.iter().filter_map(|target| target[key].as_f64()).sum())
    };
    let samples = sum("samples")?;
    let before = (sum("cpu_s")?, tests::measured::machine_busy_s()?, daemon.own_cpu_s()?);
    let script = format!(
        "for i in $(seq 40); do ( {:?} --cpu 0.1; true ) & {:?} --cpu 0.1; done; wait",
        busy.path(),
        busy.path()
    );
    run(Command::new("sh").args(["-c", &script]))?.expect_status(0)?;
    let after = (sum("cpu_s")?, tests::measured::machine_busy_s()?, daemon.own_cpu_s()?);
    let used = after.1 - before.1 - (after.2 - before.2);
    let told = after.0 - before.0;
    ensure!(used > 7.0, "eighty programs of .1 s used {used} s");
    // Most of the programs end before their clocks are read, and are known by their samples; what the kernel does for one at its end has
    // none.
    let error = 3.0 / (sum("samples")? - samples).max(1.0).sqrt();
    let is_true = (0.8 - error..1.03 + error).contains(&(told / used));
    ensure!(is_true, "the targets are said to have used {told} s of {used} s ± {error}");
    Ok(())
}

#[test]
fn windows_follow_each_other_without_a_gap_and_the_open_one_is_saved_at_the_end() -> Result<()> {
    privileged!();
    let busy = Busy::new()?;
    let deaf = Deaf::new()?;
    let mut daemon = Daemon::start(2, &busy.section("busy", "labels = { team = \"search\" }"))?;
    drop(deaf);
    daemon.wait_for("busy", "waiting")?; // it answers before its first look
    let _busy = busy.start()?;
    daemon.wait_for("busy", "sampled")?;
    wait_for_windows(&daemon, "busy", 2)?;
    restarted(&mut daemon, |daemon| windows(daemon, "busy"))?;
    ensure!(work_s(&daemon, &busy, "busy")? > 0.0);
    let by_label = daemon.report(&["--from", "-1h", "--label", "team=search"])?;
    ensure!(by_label.expect_status(0)?.stdout.contains("work_a"));
    Ok(())
}

#[test]
fn a_target_that_is_restarted_is_the_same_target() -> Result<()> {
    privileged!();
    let busy = Busy::new()?;
    let daemon = Daemon::start(2, &busy.section("busy", ""))?;
    let first = busy.start()?;
    daemon.wait_for("busy", "sampled")?;
    wait_for_windows(&daemon, "busy", 1)?;
    drop(first);
    daemon.wait_for("busy", "waiting")?;
    let kept = windows(&daemon, "busy")?.len();
    let _second = busy.start()?;
    daemon.wait_for("busy", "sampled")?;
    wait_for_windows(&daemon, "busy", kept + 1)?;
    let target = daemon.target("busy")?;
    ensure!(target["processes"] == 1 && target["samples"].as_u64() > Some(0), "{target}");
    Ok(())
}

/// To attach costs more than such a program does.
#[test]
fn a_job_that_runs_every_second_stays_attached_to() -> Result<()> {
    privileged!();
    let busy = Busy::new()?;
    let daemon = Daemon::start(60, &busy.section("job", ""))?;
    let jobs = format!("while :; do {} --cpu 0.8; sleep 0.4; done", busy.path().display());
    let _jobs = start(Command::new("sh").args(["-c", &jobs]))?;
    // The first window comes soon, whatever the length of windows.
    wait_until("its first window", || daemon.target("job").is_ok_and(|job| job["windows"] == 1))?;
    let before = daemon.target("job")?;
    ensure!(before["samples"].as_u64() > Some(10), "{before}");
    std::thread::sleep(Duration::from_secs(6));
    let after = daemon.target("job")?;
    // A window ends with the events that it was sampled by.
    ensure!(after["windows"] == before["windows"], "{before} {after}");
    ensure!(after["samples"].as_u64() > before["samples"].as_u64(), "{before} {after}");
    let used_s = |target: &Value| target["cpu_s"].as_f64().unwrap_or(0.0);
    ensure!(used_s(&after) - used_s(&before) > 0.5, "{before} {after}");
    Ok(())
}

/// Whoever creates a process follows it, until it turns out to be another target.
#[test]
fn a_child_that_is_a_target_itself_is_none_of_its_creators() -> Result<()> {
    privileged!();
    let busy = Busy::new()?;
    let marker = format!("exit-of-{}", busy.name);
    attempts(|| {
        let script = format!("sleep 4; {} --cpu 60 & wait # {marker}", busy.path().display());
        let sections = busy.section("child", "")
            + &format!("[[target]]\nname = \"creator\"\ncommand = {:?}\n", format!("wait # {marker}"));
        let mut daemon = Daemon::start(2, &sections)?;
        let _creator = start(Command::new("sh").args(["-c", &script]))?;
        daemon.wait_for("creator", "sampled")?;
        daemon.wait_for("child", "sampled")?;
        let kept = windows(&daemon, "child")?.len();
        wait_for_windows(&daemon, "child", kept + 5)?;
        daemon.stop(Signal::SIGTERM)?;
        let (own_s, foreign_s) = (work_s(&daemon, &busy, "child")?, work_s(&daemon, &busy, "creator")?);
        ensure!(
            own_s > 0.0 && foreign_s < 0.4 * own_s,
            "{own_s} s of its own, {foreign_s} s of its creator's"
        );
        Ok(())
    })
}

#[test]
fn after_a_kill_everything_but_the_open_window_is_there_and_the_next_one_goes_on() -> Result<()> {
    privileged!();
    let busy = Busy::new()?;
    let mut daemon = Daemon::start(2, &busy.section("busy", ""))?;
    let _busy = busy.start()?;
    wait_for_windows(&daemon, "busy", 2)?;
    let before = windows(&daemon, "busy")?;
    let ended = daemon.stop(Signal::SIGKILL)?;
    ensure!(ended.status == 137);
    daemon.start_again()?;
    wait_for_windows(&daemon, "busy", before.len() + 2)?;
    let spans = windows(&daemon, "busy")?;
    ensure!(spans.starts_with(&before), "{before:?} was there before, and now {spans:?}");
    ensure!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0 + CLOCKS_MS), "{spans:?} overlap");
    let ended = daemon.report(&["--from", "-1h"])?.expect_status(0)?;
    ensure!(!ended.stderr.contains("damaged"), "{}", ended.stderr);
    Ok(())
}

/// Names wait for CPU time after a start: what has none yet is written without, and the next daemon names it.
#[test]
fn however_it_ends_no_window_is_lost_that_had_ended() -> Result<()> {
    privileged!();
    let busy = (0..3).map(|_| Busy::new()).collect::<Result<Vec<_>>>()?;
    let _busy = busy.iter().map(Busy::start).collect::<Result<Vec<_>>>()?;
    let sections: Vec<String> = busy.iter().map(|busy| busy.section(&busy.name, "")).collect();
    let mut from_ms = monotonic_ms()?;
    let mut daemon = Daemon::start(2, &sections.concat())?;
    let mut lives = Vec::new();
    for (ms, signal) in [
        (7_300, Signal::SIGKILL),
        (5_100, Signal::SIGTERM),
        (8_700, Signal::SIGKILL),
        (6_400, Signal::SIGKILL),
    ] {
        let life = Life::of(&mut daemon, from_ms, Duration::from_millis(ms), signal)?;
        let expected = if signal == Signal::SIGKILL { 137 } else { 0 };
        ensure!(life.status == expected, "{life:?}");
        lives.push(life);
        from_ms = monotonic_ms()?;
        daemon.start_again()?;
    }
    ensure!(lives.iter().map(Life::ended).sum::<u64>() > 0, "no window had ended: {lives:?}");
    wait_until("all windows to be named", || {
        let is_whole = |life: &Life| {
            life.missing(&daemon).is_ok_and(|missing| missing.is_empty())
                && (life.status != 0
                    || busy.iter().all(|busy| life.has_open_window(&daemon, &busy.name).unwrap_or(false)))
        };
        lives.iter().all(is_whole)
    })
    .with_context(|| format!("{lives:?} {:?}", tests::ends::spans_ms(&daemon)))?;
    daemon.stop(Signal::SIGTERM)?.expect_status(0)?;
    ensure_sound(&daemon)
}

#[test]
fn settings_are_read_again_without_a_gap_and_a_bad_file_changes_nothing() -> Result<()> {
    privileged!();
    let busy = Busy::new()?;
    let mut daemon = Daemon::start(2, &busy.section("busy", ""))?;
    let _busy = busy.start()?;
    daemon.wait_for("busy", "sampled")?;
    daemon.write_settings(2, "[[target]]\nnam = \"busy\"")?;
    let ended = daemon.ctl(&["reload"])?;
    ensure!(ended.status != 0 && ended.stderr.contains("sweetspot.toml:"), "{ended:?}");
    ensure!(daemon.target("busy")?["state"] == "sampled");
    let status = daemon.ctl_json(&["status"])?;
    ensure!(
        status["settings"]["reloads_failed"] == 1 && status["settings"]["problem"].is_string(),
        "{status}"
    );
    // By the signal, too; another budget needs no other events, and what was counted goes on. (What the host grants of it may be less.)
    wait_until("samples", || daemon.target("busy").is_ok_and(|busy| busy["samples"].as_u64() > Some(20)))?;
    let before = daemon.ctl_json(&["decisions", "busy"])?;
    daemon.write_settings(2, &busy.section("busy", "budget = \"0.5%\""))?;
    daemon.signal(Signal::SIGHUP)?;
    wait_until("the other budget", || {
        daemon.target("busy").is_ok_and(|busy| busy["own_budget_ratio"] == 0.005)
    })?;
    ensure!(daemon.ctl_json(&["status"])?["settings"]["problem"].is_null());
    let after = daemon.ctl_json(&["decisions", "busy"])?;
    let counted = |all: &Value| all["decisions"].as_array()?.last()?["samples"].as_u64();
    ensure!(counted(&after) >= counted(&before), "{before} {after}");
    // Another way to unwind is sampled anew.
    let section = busy.section("busy", "budget = \"0.5%\"") + "[sampling]\nunwind = \"fp\"\n";
    daemon.write_settings(2, &section)?;
    daemon.ctl(&["reload"])?.expect_status(0)?;
    wait_until("the other way", || daemon.target("busy").is_ok_and(|busy| busy["unwind"] == "fp"))?;
    let kept = windows(&daemon, "busy")?.len();
    wait_for_windows(&daemon, "busy", kept + 2)?;
    // What is not in the settings any more is kept until then, and watched no more.
    daemon.write_settings(2, "[[target]]\nname = \"other\"\npid = 1")?;
    daemon.ctl(&["reload"])?.expect_status(0)?;
    wait_until("the target to go", || daemon.target("busy").is_err())?;
    daemon.stop(Signal::SIGTERM)?;
    ensure_gapless(&windows(&daemon, "busy")?)
}

#[test]
fn everything_is_what_belongs_to_no_other_target() -> Result<()> {
    privileged!();
    let busy = Busy::new()?;
    let _busy = busy.start()?;
    attempts(|| {
        let sections = busy.section("busy", "") + "[[target]]\nname = \"rest\"\neverything = true\n";
        let mut daemon = Daemon::start(2, &sections)?;
        daemon.wait_for("busy", "sampled")?;
        daemon.wait_for("rest", "sampled")?;
        wait_for_windows(&daemon, "busy", 3)?;
        daemon.stop(Signal::SIGTERM)?;
        let (own_s, foreign_s) = (work_s(&daemon, &busy, "busy")?, work_s(&daemon, &busy, "rest")?);
        ensure!(
            own_s > 0.0 && foreign_s < 0.05 * own_s,
            "{own_s} s of its own, {foreign_s} s of everything's"
        );
        Ok(())
    })
}

/// Names are shared between targets, but not for what a file says of itself.
#[test]
fn programs_that_say_they_are_of_one_build_have_their_own_names_in_each_target() -> Result<()> {
    privileged!();
    let programs = ["namesake_a", "namesake_b"];
    let mut sections = String::new();
    for name in programs {
        let target = name.replace('_', "-"); // of which windows are found by their files
        sections += &format!("[[target]]\nname = {target:?}\nexecutable = {:?}\n", program(name)?);
    }
    let begin = |name: &str| start(Command::new(program(name)?).arg("300000"));
    let _running = programs.map(begin).into_iter().collect::<Result<Vec<_>>>()?;
    let mut daemon = Daemon::start(2, &sections)?;
    for name in programs {
        let target = name.replace('_', "-");
        daemon.wait_for(&target, "sampled")?;
        wait_for_windows(&daemon, &target, 2)?;
    }
    daemon.stop(Signal::SIGTERM)?;
    for [name, other] in [programs, [programs[1], programs[0]]] {
        ensure_named(&daemon, &name.replace('_', "-"), name, other)?;
    }
    Ok(())
}

/// A target has functions of one of the namesakes, and none of the other.
fn ensure_named(daemon: &Daemon, target: &str, own: &str, other: &str) -> Result<()> {
    let words = ["--from", "-1h", "--target", target, "--format", "json"];
    let profile: Value = serde_json::from_str(&daemon.report(&words)?.expect_status(0)?.stdout)?;
    let functions = profile["functions"].as_array().context("functions")?;
    let has = |name: &str| {
        functions.iter().any(|function| function["name"].as_str() == Some(&format!("{name}_inner")))
    };
    ensure!(has(own) && !has(other), "{target}: {functions:?}");
    Ok(())
}

/// What containers of one image share is named once; a file that was put in the place of such a one is not.
#[test]
fn containers_of_one_image_have_their_own_names() -> Result<()> {
    privileged!();
    let folder = tempfile::tempdir()?;
    let (image, seen) = (folder.path().join("image"), folder.path().join("seen"));
    fs::create_dir(&image)?;
    fs::create_dir(&seen)?;
    copy_program(&program("namesake_a")?, &image.join("prog"))?;
    let begin = |number: usize, replace: &str| {
        let upper = folder.path().join(format!("upper{number}"));
        let script = format!(
            "mkdir -p {upper}/files {upper}/work && mount -t overlay none {seen} \
             -o lowerdir={image},upperdir={upper}/files,workdir={upper}/work && {replace} \
             && exec {seen}/prog 30000{number}",
            upper = upper.display(),
            seen = seen.display(),
            image = image.display()
        );
        start(Command::new("unshare").args(["--mount", "--propagation", "private", "sh", "-c", &script]))
    };
    let forge =
        format!("cp --remove-destination {} {}/prog", program("namesake_b")?.display(), seen.display());
    let mut running = [(1, "true"), (2, "true"), (3, forge.as_str()), (4, "true")]
        .map(|(number, replace)| begin(number, replace))
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    std::thread::sleep(Duration::from_millis(300));
    if running.iter_mut().any(|program| program.try_wait().is_ok_and(|ended| ended.is_some())) {
        eprintln!("skipped: making containers needs `unshare`, and overlayfs");
        return Ok(());
    }
    let section =
        |number: u32| format!("[[target]]\nname = \"box{number}\"\ncommand = \"prog 30000{number}$\"\n");
    let mut daemon = Daemon::start(2, &(1..=4).map(section).collect::<String>())?;
    for number in 1..=4 {
        let name = format!("box{number}");
        daemon.wait_for(&name, "sampled")?;
        wait_for_windows(&daemon, &name, 2)?;
    }
    daemon.stop(Signal::SIGTERM)?;
    for number in 1..=4 {
        let (own, other) =
            if number == 3 { ("namesake_b", "namesake_a") } else { ("namesake_a", "namesake_b") };
        ensure_named(&daemon, &format!("box{number}"), own, other)?;
    }
    Ok(())
}

/// What a process has open, by what it leads to.
fn open_files(pid: u32) -> Result<Vec<String>> {
    let files = fs::read_dir(format!("/proc/{pid}/fd"))?;
    let leads_to = |file: std::io::Result<fs::DirEntry>| fs::read_link(file.ok()?.path()).ok();
    Ok(files.filter_map(leads_to).map(|path| path.to_string_lossy().into_owned()).collect())
}

/// The process that reads symbols for a daemon, while it runs.
fn symbolizer_of(daemon: &Daemon) -> Result<Option<u32>> {
    let threads = fs::read_dir(format!("/proc/{}/task", daemon.pid()?))?;
    let children = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("children")).ok());
    let children: String = children.collect();
    let reads_symbols = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(b"symbolizer")
    };
    Ok(children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(reads_symbols))
}

fn wait_for_symbolizer(daemon: &Daemon) -> Result<u32> {
    wait_until("a process that reads symbols", || symbolizer_of(daemon).is_ok_and(|pid| pid.is_some()))?;
    symbolizer_of(daemon)?.context("it has ended")
}

/// Whether all threads of a process have no capabilities and a filter of system calls.
fn is_shut_in(pid: u32) -> Result<bool> {
    let mut statuses = Vec::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        statuses.push(fs::read_to_string(thread?.path().join("status"))?);
    }
    let wanted = ["CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "Seccomp:\t2", "NoNewPrivs:\t1"];
    let has_all = |status: &String| wanted.iter().all(|line| status.lines().any(|found| found == *line));
    Ok(!statuses.is_empty() && statuses.iter().all(has_all))
}

#[test]
fn whoever_reads_symbols_has_no_rights_and_ends_with_the_daemon_and_another_takes_its_place() -> Result<()> {
    privileged!();
    let (busy, later) = (Busy::new()?, Busy::new()?);
    let sections = busy.section("busy", "") + &later.section("later", "");
    let mut daemon = Daemon::start(2, &sections)?;
    let _busy = busy.start()?;
    wait_for_windows(&daemon, "busy", 1)?;
    let first = wait_for_symbolizer(&daemon)?;
    ensure!(is_shut_in(first)?, "it is not shut in");

    nix::sys::signal::kill(nix::unistd::Pid::from_raw(first as i32), Signal::SIGKILL)?;
    let _later = later.start()?;
    wait_for_windows(&daemon, "later", 2)?;
    ensure!(work_s(&daemon, &later, "later")? > 0.5, "it has no names");
    let second = wait_for_symbolizer(&daemon)?;
    let status = daemon.ctl_json(&["status"])?;
    ensure!(status["symbolizer"]["apart"] == true && status["symbolizer"]["broken"] == 0, "{status:#}");
    ensure!(second != first && status["symbolizer"]["started"] == 2, "{status:#}");

    daemon.stop(Signal::SIGKILL)?;
    let folder = format!("/proc/{second}");
    wait_until("it ends too", || !fs::exists(&folder).unwrap_or(true))
}

/// As long as a mount namespace is held, or a file in it, nothing that is mounted there can go away.
#[test]
fn the_root_of_an_ended_container_is_released_though_its_target_goes_on() -> Result<()> {
    privileged!();
    let (busy, host, seen) = (Busy::new()?, Busy::new()?, tempfile::tempdir()?);
    // What both map is met here first: libraries that are first met in a container hold it as long as others map them.
    let _host = host.start()?;
    let daemon = Daemon::start(2, "[[target]]\nname = \"all\"\neverything = true\n")?;
    let pid = daemon.pid()?;
    wait_until("the host's program is met", || {
        open_files(pid).is_ok_and(|files| files.iter().any(|file| file.contains(&host.name)))
    })?;
    let script = format!(
        "mount -t tmpfs none {seen} && cp {path} {seen}/ && exec {seen}/{name} --cpu 300",
        seen = seen.path().display(),
        path = busy.path().display(),
        name = busy.name,
    );
    let mut container = Command::new("unshare");
    let mut running = start(container.args(["--mount", "--propagation", "private", "sh", "-c", &script]))?;
    let exe = format!("/proc/{}/exe", running.id());
    let is_there = || fs::read_link(&exe).is_ok_and(|path| path.ends_with(&busy.name));
    let mut has_ended = || running.try_wait().is_ok_and(|ended| ended.is_some());
    wait_until("the container", || is_there() || has_ended())?;
    if has_ended() {
        eprintln!("skipped: making containers needs `unshare`, and tmpfs");
        return Ok(());
    }
    let namespace = fs::read_link(format!("/proc/{}/ns/mnt", running.id()))?;
    let namespace = namespace.to_string_lossy().into_owned();
    let is_held = |file: &String| *file == namespace || file.contains(&busy.name);
    let held = || -> Result<usize> {
        let reader = symbolizer_of(&daemon)?.map_or(Ok(Vec::new()), open_files).unwrap_or_default();
        Ok(open_files(pid)?.iter().chain(&reader).filter(|file| is_held(file)).count())
    };
    wait_until("the container is met", || held().is_ok_and(|held| held >= 2))?;
    running.kill()?;
    running.wait()?;
    wait_until("the container is let go", || held().is_ok_and(|held| held == 0))
}

#[test]
fn targets_are_asked_for_and_dropped_while_it_runs() -> Result<()> {
    privileged!();
    let busy = Busy::new()?;
    let running = busy.start()?;
    let daemon = Daemon::start(60, "target = []")?;
    let pid = running.id().to_string();
    daemon.ctl(&["attach", &pid, "--as", "asked", "--duration", "60s"])?.expect_status(0)?;
    daemon.wait_for("asked", "sampled")?;
    wait_until("samples", || daemon.target("asked").is_ok_and(|asked| asked["samples"].as_u64() > Some(20)))?;
    // The open window is a minute long; whoever asks for it gets it as it is.
    let profile = daemon.ctl(&["profile", "--from", "-1min", "--target", "asked", "--format", "table"])?;
    ensure!(profile.expect_status(0)?.stdout.contains("work_a"));
    daemon.ctl(&["detach", "asked"])?.expect_status(0)?;
    ensure!(daemon.target("asked").is_err());
    // Another event may be open for a millisecond, by which the cost of an interrupt is measured.
    wait_until("no events", || daemon.has_no_events().is_ok())?;
    ensure!(daemon.ctl(&["detach", "asked"])?.status == 1);
    let nobody = daemon.ctl(&["attach", "4194303", "--duration", "60s"])?;
    ensure!(nobody.status == 1 && nobody.stderr.contains("no process"), "{nobody:?}");
    Ok(())
}

#[test]
fn it_stops_when_it_is_asked_to_and_saves_what_it_has() -> Result<()> {
    privileged!();
    let busy = Busy::new()?;
    let _busy = busy.start()?;
    // Saving has a second and a half, which a busy machine may need for something else.
    attempts(|| {
        let mut daemon = Daemon::start(2, &busy.section("busy", ""))?;
        wait_for_windows(&daemon, "busy", 1)?;
        let before = windows(&daemon, "busy")?;
        daemon.ctl(&["stop"])?.expect_status(0)?;
        let ended = daemon.ended()?;
        ensure!(ended.status == 0, "{ended:?}");
        let spans = windows(&daemon, "busy")?;
        ensure!(spans.len() > before.len(), "{before:?} were there, and now {spans:?}: {ended:?}");
        ensure_gapless(&spans)?;
        ensure!(work_s(&daemon, &busy, "busy")? > 0.0, "nothing has a name");
        Ok(())
    })
}

/// Whoever stops it learns whether everything was kept.
#[test]
fn what_is_not_kept_at_the_end_is_said() -> Result<()> {
    privileged!();
    let busy = Busy::new()?;
    let _busy = busy.start()?;
    let disk = SmallDisk::new(64)?;
    let mut daemon = Daemon::start_in(disk.path().join("store"), 60, &busy.section("busy", ""))?;
    wait_until("samples", || daemon.target("busy").is_ok_and(|busy| busy["samples"].as_u64() > Some(20)))?;
    let _ = fs::write(disk.path().join("filler"), vec![1; 128 << 10]); // as much as there is room for
    let begun = std::time::Instant::now();
    let ended = daemon.stop(Signal::SIGTERM)?;
    ensure!(ended.status == 3 && ended.stderr.contains("before all windows were kept"), "{ended:?}");
    ensure!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    Ok(())
}

/// Whoever asks for a time that is over ends no window that has begun since.
#[test]
fn a_request_for_the_past_ends_no_later_window() -> Result<()> {
    privileged!();
    let busy = Busy::new()?;
    let _busy = busy.start()?;
    let daemon = Daemon::start(3, &busy.section("busy", ""))?;
    wait_for_windows(&daemon, "busy", 2)?;
    wait_until("windows", || {
        std::thread::sleep(Duration::from_millis(300));
        // Whether it is named by then does not matter.
        daemon.ctl(&["profile", "--from", "-6s", "--to", "-5s", "--format", "json"]).is_ok()
            && windows(&daemon, "busy").is_ok_and(|windows| windows.len() >= 5)
    })?;
    let windows = windows(&daemon, "busy")?;
    let lengths: Vec<u64> = windows.iter().map(|(from_ms, to_ms)| to_ms - from_ms).collect();
    ensure!(lengths.iter().all(|length_ms| *length_ms >= 2_500), "{lengths:?}");
    Ok(())
}

/// Another folder is another store; what is sampled meanwhile is in one or the other.
#[test]
fn profiles_are_kept_in_another_folder_without_a_gap() -> Result<()> {
    privileged!();
    let busy = Busy::new()?;
    let _busy = busy.start()?;
    let mut daemon = Daemon::start(2, &busy.section("busy", ""))?;
    wait_for_windows(&daemon, "busy", 2)?;
    let (store, other) = (daemon.store(), daemon.store().with_file_name("other"));
    let text = fs::read_to_string(daemon.settings())?;
    fs::write(daemon.settings(), text.replace(&format!("{store:?}"), &format!("{other:?}")))?;
    daemon.ctl(&["reload"])?.expect_status(0)?;
    let found = || -> Result<Vec<(u64, u64)>> {
        let is_day = |day: &fs::DirEntry| day.path().is_dir() && day.file_name() != "unnamed";
        let days = fs::read_dir(&other)?.flatten().filter(is_day);
        let files = days.flat_map(|day| fs::read_dir(day.path()).into_iter().flatten().flatten());
        let paths = files.map(|file| file.path()).filter(|path| path.to_string_lossy().ends_with(".pb.gz"));
        paths.map(|path| span_ms(&path)).collect()
    };
    wait_until("windows in the other folder", || found().is_ok_and(|found| found.len() > 1))?;
    restarted(&mut daemon, |daemon| {
        let mut spans = windows(daemon, "busy")?;
        spans.extend(found()?);
        spans.sort_unstable();
        Ok(spans)
    })
    .map(drop)
}

#[test]
fn over_the_limit_the_more_active_targets_are_sampled() -> Result<()> {
    privileged!();
    let (busy, idle) = (Busy::new()?, Busy::new()?);
    copy_program(&find("sleep")?, &idle.path())?;
    let _idle = start(Command::new(idle.path()).arg("300"))?;
    let sections =
        "[limits]\ntargets = 1\n".to_owned() + &idle.section("idle", "") + &busy.section("busy", "");
    let daemon = Daemon::start(60, &sections)?;
    daemon.wait_for("idle", "sampled")?;
    let _busy = busy.start()?;
    daemon.wait_for("busy", "sampled")?;
    let idle = daemon.target("idle")?;
    ensure!(
        idle["state"] == "left_out"
            && idle["reason"].as_str().is_some_and(|why| why.contains("limits.targets")),
        "{idle}"
    );
    let status = daemon.ctl_json(&["status"])?;
    ensure!(status["targets"]["left_out"] == 1 && status["targets"]["sampled"] == 1, "{status}");
    Ok(())
}

#[test]
fn a_limit_of_targets_is_carried_out_when_settings_are_read_again() -> Result<()> {
    privileged!();
    let three = [Busy::new()?, Busy::new()?, Busy::new()?];
    let _running = [three[0].start()?, three[1].start()?, three[2].start()?];
    let sections = |limit: u32| {
        let all: String = three.iter().map(|busy| busy.section(&busy.name, "")).collect();
        format!("[limits]\ntargets = {limit}\n{all}")
    };
    let daemon = Daemon::start(60, &sections(3))?;
    let sampled = |count: u64| {
        wait_until("targets", || {
            daemon.ctl_json(&["status"]).is_ok_and(|status| status["targets"]["sampled"] == count)
        })
    };
    sampled(3)?;
    for limit in [1, 3] {
        daemon.write_settings(60, &sections(limit))?;
        daemon.ctl(&["reload"])?.expect_status(0)?;
        sampled(u64::from(limit))?;
    }
    Ok(())
}

#[test]
fn a_full_disk_costs_windows_that_are_counted_and_nothing_else() -> Result<()> {
    privileged!();
    let busy = Busy::new()?;
    let _busy = busy.start()?;
    let disk = SmallDisk::new(64)?;
    let filler = disk.path().join("filler");
    let daemon = Daemon::start_in(disk.path().join("store"), 1, &busy.section("busy", ""))?;
    daemon.wait_for("busy", "sampled")?;
    let written = || -> Result<(u64, u64)> {
        let store = daemon.ctl_json(&["status"])?["store"].clone();
        Ok((
            store["written"].as_u64().context("written")?,
            store["dropped_full"].as_u64().context("dropped")?,
        ))
    };
    let _ = fs::write(&filler, vec![1; 128 << 10]); // as much as there is room for
    wait_until("dropped windows", || written().is_ok_and(|(_, dropped)| dropped > 0))?;
    ensure!(daemon.ctl_json(&["status"])?["degraded"].as_array().is_some_and(|lines| !lines.is_empty()));
    ensure!(daemon.target("busy")?["state"] == "sampled");
    fs::remove_file(&filler)?;
    let (before, _) = written()?;
    wait_until("windows again", || written().is_ok_and(|(now, _)| now > before + 1))?;
    wait_until("it is ready", || daemon.ctl_json(&["status"]).is_ok_and(|status| status["ready"] == true))
}

/// Each process lives for some milliseconds, and most are never seen by a look at `/proc`.
#[test]
fn processes_that_come_and_go_quickly_belong_to_their_target() -> Result<()> {
    privileged!();
    let folder = tempfile::tempdir()?;
    copy_program(&find("sh")?, &folder.path().join("brood"))?;
    let shell = folder.path().join("brood");
    let section = format!("[[target]]\nname = \"brood\"\nexecutable = {shell:?}\n");
    let daemon = Daemon::start(60, &section)?;
    let script = "while :; do /bin/true; (i=0; while [ $i -lt 300 ]; do i=$((i+1)); done); done";
    let _brood = start(Command::new(&shell).args(["-c", script]))?;
    daemon.wait_for("brood", "sampled")?;
    wait_until("samples", || daemon.target("brood").is_ok_and(|brood| brood["samples"].as_u64() > Some(30)))?;
    std::thread::sleep(Duration::from_secs(2)); // looks at who is there, after some hundreds have come and gone
    let brood = daemon.target("brood")?;
    ensure!(brood["state"] == "sampled" && brood["processes"].as_u64() < Some(20), "{brood}");
    Ok(())
}

/// Hundreds of programs a second map thousands of times, which would take the whole budget of everything. Both CPUs run
/// them, and each maps many libraries: else what others compute meanwhile would make room for the records.
#[test]
fn under_a_storm_of_programs_mappings_are_read_and_no_longer_told_and_that_is_said() -> Result<()> {
    const LIBRARIES: &str = "libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1 libutil.so.1 libresolv.so.2 libanl.so.1 \
                             libBrokenLocale.so.1 libthread_db.so.1 libnss_files.so.2 libnss_dns.so.2";
    privileged!();
    let daemon = Daemon::start(2, "[[target]]\nname = \"rest\"\neverything = true\n")?;
    daemon.wait_for("rest", "sampled")?;
    let mut storm = Command::new(find("sh")?);
    storm.args(["-c", &format!("while :; do LD_PRELOAD={LIBRARIES:?} /bin/true; done")]);
    let _storms = [start(&mut storm)?, start(&mut storm)?];
    wait_until("the note", || {
        let said = daemon.report(&["--from", "-1h", "--target", "rest", "--format", "json"]);
        said.is_ok_and(|said| said.stdout.contains("records of their mappings"))
    })
    .with_context(|| format!("{:?}", daemon.target("rest")))?;
    // Its mappings are told by nobody.
    let busy = Busy::of("mix_static_pie")?;
    let _busy = busy.start()?;
    wait_until("its names", || work_s(&daemon, &busy, "rest").is_ok_and(|named_s| named_s > 1.0))
}

#[test]
fn a_second_daemon_on_the_same_folder_is_refused_in_a_line() -> Result<()> {
    privileged!();
    let daemon = Daemon::start(60, "target = []")?;
    let words = ["--config".to_owned(), daemon.settings().display().to_string()];
    let second = tests::run::run(&mut tests::run::Sweetspot::new().command("daemon", &words))?;
    ensure!(second.status == 1 && second.stderr.lines().count() == 1, "{second:?}");
    ensure!(second.stderr.contains("another sweetspot"), "{second:?}");
    daemon.ctl(&["status"])?.expect_status(0)?;
    Ok(())
}

#[test]
fn wrong_settings_end_it_before_it_begins() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("bad.toml");
    fs::write(&file, "[budget]\nhost = \"never\"\n[stroe]\n")?;
    let words = ["--config".to_owned(), file.display().to_string()];
    let ended = tests::run::run(&mut tests::run::Sweetspot::new().command("daemon", &words))?;
    ensure!(
        ended.status == 2 && ended.stderr.contains("bad.toml:2:8") && ended.stderr.contains("bad.toml:3:2"),
        "{ended:?}"
    );
    Ok(())
}

fn find(name: &str) -> Result<PathBuf> {
    let found = tests::programs::find_in_path(name).with_context(|| format!("there is no {name}"))?;
    Ok(fs::canonicalize(found)?)
}
