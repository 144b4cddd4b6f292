//! Control groups: as targets, for commands, and as a way to attach. Live, as root, where cgroup v2 is mounted.

#![allow(clippy::print_stderr, reason = "a test that skips says why")]

use std::fs;
use std::path::Path;
use std::sync::{PoisonError, RwLock};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tests::attempts::attempts;
use tests::checks::{C, check, check_stacks, check_weight_sum};
use tests::groups::{Group, hierarchy};
use tests::guards::Running;
use tests::measured::cpu_s;
use tests::programs::{find_in_path, program};
use tests::run::{Sweetspot, finish, run, start, wait_until, wait_until_told};
use tests::stats::{Stats, Summary};
use tests::truth::Truth;

/// Which way to attach costs least depends on who else runs on the CPU: a test that asks it runs alone.
static TURN: RwLock<()> = RwLock::new(());

/// A group, and with others or alone the test's turn; or leaves the test.
macro_rules! group {
    ($with:ident) => {
        match Group::new() {
            Some(group) => (TURN.$with().unwrap_or_else(PoisonError::into_inner), group),
            None => {
                eprintln!("skipped: control groups need root, and cgroup v2 mounted for writing");
                return Ok(());
            }
        }
    };
}

fn fixed() -> Sweetspot {
    Sweetspot::new().options(&["--rate", "1000", "--confidence", "99.99%"])
}

fn summary_of(sweetspot: &Sweetspot) -> Result<Summary> {
    Ok(Stats::parse(&fs::read_to_string(sweetspot.file("stats.jsonl"))?)?.summary)
}

/// Records a command under the group's own events, and says what the run says of itself.
fn recorded(sweetspot: &Sweetspot, command: &[&str]) -> Result<Summary> {
    let mut words = sweetspot.outputs();
    words.push("--".to_string());
    words.extend(command.iter().map(ToString::to_string));
    run(&mut sweetspot.command("record", &words))?.expect_status(0)?;
    summary_of(sweetspot)
}

/// Groups that a profiler has made for commands.
fn made_for_commands() -> Result<Vec<String>> {
    let hierarchy = hierarchy().context("no hierarchy")?;
    let own = fs::read_to_string("/proc/self/cgroup")?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).context("no group")?.to_string();
    let names =
        fs::read_dir(hierarchy.join(own))?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    Ok(names.filter(|name| name.starts_with("sweetspot-")).collect())
}

/// Nothing runs in the group at first but a sleeper; the program and its children come later, by themselves.
#[test]
fn who_comes_into_a_group_and_goes_is_profiled() -> Result<()> {
    let _turn = group!(read);
    attempts(|| {
        let group = Group::new().context("a group")?;
        let sleeper = start(&mut group.command("", Path::new("sleep"), &["100"])?)?;
        wait_until("the sleeper", || group.processes() == [sleeper.id()])?;
        let sweetspot = fixed();
        let attached = sweetspot.start_attach(&["--cgroup", &group.argument()])?;
        let truth = sweetspot.file("truth.json");
        let arguments = ["--cpu", "3", "--children", "24", "--depth", "20", "--out", &truth];
        run(&mut group.command("below", &program("mix_nofp")?, &arguments)?)?.expect_status(0)?;
        drop(sleeper);
        let truth = Truth::read(Path::new(&truth))?;
        let recorded = sweetspot.finish(attached, Some(truth))?;
        let summary = &recorded.stats.summary;
        ensure!(summary.attach_mode == "cgroup" && summary.stopped == "target_ended", "{summary:?}");
        // Beside the program, only what comes into the group is sampled, and all of that is the target.
        ensure!(summary.foreign_samples * 200 <= summary.samples, "{} strangers", summary.foreign_samples);
        check(&recorded, &C, 20)
    })
}

#[test]
fn a_command_in_a_group_of_its_own() -> Result<()> {
    let _turn = group!(read);
    attempts(|| {
        let options = ["--attach-mode", "cgroup"];
        let arguments = ["--cpu", "3", "--children", "48"];
        let recorded = fixed().options(&options).record("mix_nofp", &arguments)?;
        let summary = &recorded.stats.summary;
        ensure!(summary.attach_mode == "cgroup" && summary.foreign_samples == 0, "{summary:?}");
        check(&recorded, &C, 5)
    })
}

/// Each lives for less than a period: the group's clock runs on from one to the next.
#[test]
fn short_lived_processes_are_weighed_right() -> Result<()> {
    let _turn = group!(read);
    let script = "i=0; while [ $i -lt 2000 ]; do /bin/true; i=$((i+1)); done";
    attempts(|| {
        let sweetspot = fixed().options(&["--attach-mode", "cgroup"]);
        let summary = recorded(&sweetspot, &["sh", "-c", script])?;
        let off = (summary.weight_s - summary.target_cpu_s).abs() / summary.target_cpu_s;
        ensure!(off < 0.05, "{} s of {}", summary.weight_s, summary.target_cpu_s);
        Ok(())
    })
}

/// Two threads on one CPU hand a byte to and fro: each turn costs something under events of threads. The group is left for
/// the profiler alone.
#[test]
fn switches_within_a_group_cost_nothing() -> Result<()> {
    let _turn = group!(write);
    if find_in_path("taskset").is_none() {
        eprintln!("skipped: there is no taskset (apt-get install util-linux)");
        return Ok(());
    }
    let pingpong = program("pingpong")?;
    let command = ["taskset", "-c", "0", &*pingpong.to_string_lossy(), "2"];
    attempts(|| {
        let ratio = |mode: &str| {
            let summary = recorded(&fixed().options(&["--attach-mode", mode]), &command)?;
            ensure!(summary.attach_mode == mode);
            anyhow::Ok(summary.overhead_parts.switches_ratio)
        };
        let (task, cgroup) = (ratio("task")?, ratio("cgroup")?);
        ensure!(
            task > 0.01 && cgroup < 0.1 * task,
            "{cgroup} of the CPU time, and {task} by events of threads"
        );
        Ok(())
    })
}

#[test]
fn processes_that_have_a_group_to_themselves_are_attached_to_by_it_where_that_costs_less() -> Result<()> {
    let (_turn, group) = group!(write);
    if find_in_path("taskset").is_none() {
        eprintln!("skipped: there is no taskset (apt-get install util-linux)");
        return Ok(());
    }
    let pingpong = program("pingpong")?;
    let words = ["-c", "0", &*pingpong.to_string_lossy(), "60"];
    let target = start(&mut group.command("", Path::new("taskset"), &words)?)?;
    wait_until("the work", || cpu_s(target.id()).is_ok_and(|used| used > 0.3))?;
    attempts(|| {
        let recorded = fixed().attach(target.id(), 3.0)?;
        let summary = &recorded.stats.summary;
        ensure!(summary.attach_mode == "cgroup", "{}: {:?}", summary.attach_mode, summary.overhead_parts);
        check_weight_sum(&recorded, 0.02)
    })?;
    // With a stranger in it, it is no longer theirs.
    let _stranger = start(&mut group.command("", Path::new("sleep"), &["60"])?)?;
    wait_until("the stranger", || group.processes().len() == 2)?;
    let words = ["--attach-mode", "cgroup", "--duration", "1s", &target.id().to_string()];
    let ended = run(&mut Sweetspot::new().command("attach", &words))?.expect_status(2)?;
    ensure!(ended.stderr.contains("--cgroup PATH"), "{}", ended.stderr);
    Ok(())
}

/// The members may be attached to in the other ways, too.
#[test]
fn a_group_by_events_of_threads_and_of_whole_cpus() -> Result<()> {
    let (_turn, group) = group!(read);
    let arguments = ["--cpu", "100", "--depth", "20"];
    let target = start(&mut group.command("a/b", &program("mix_nofp")?, &arguments)?)?;
    wait_until("the work", || cpu_s(target.id()).is_ok_and(|used| used > 0.3))?;
    for mode in ["task", "cpu"] {
        attempts(|| {
            let sweetspot = fixed().options(&["--attach-mode", mode]);
            let words = ["--duration", "3s", "--cgroup", &group.argument()];
            let attached = sweetspot.start_attach(&words)?;
            let recorded = sweetspot.finish(attached, None)?;
            ensure!(recorded.stats.summary.attach_mode == mode);
            check_weight_sum(&recorded, 0.02)?;
            check_stacks(&recorded, &C, 20)
        })?;
    }
    Ok(())
}

#[test]
fn a_unit_is_found_by_its_name() -> Result<()> {
    let (_turn, group) = group!(read);
    let unit = format!("of-tests-{}.service", std::process::id());
    let target = start(&mut group.command(&unit, &program("mix_nofp")?, &["--cpu", "100"])?)?;
    wait_until("the work", || cpu_s(target.id()).is_ok_and(|used| used > 0.1))?;
    let sweetspot = fixed();
    let attached =
        sweetspot.start_attach(&["--duration", "1500ms", "--unit", unit.trim_end_matches(".service")])?;
    let summary = sweetspot.finish(attached, None)?.stats.summary;
    ensure!(summary.attach_mode == "cgroup" && summary.samples > 100, "{summary:?}");
    Ok(())
}

/// With a time to stop at, an empty group is waited for; one that is removed is not.
#[test]
fn a_group_that_is_removed_ends_the_run() -> Result<()> {
    let (_turn, group) = group!(read);
    let target = start(&mut group.command("", &program("mix_nofp")?, &["--cpu", "100"])?)?;
    wait_until("the work", || cpu_s(target.id()).is_ok_and(|used| used > 0.1))?;
    let sweetspot = fixed();
    let attached = sweetspot.start_attach(&["--duration", "200s", "--cgroup", &group.argument()])?;
    let before = cpu_s(target.id())?;
    wait_until("some work", || cpu_s(target.id()).is_ok_and(|used| used > before + 0.5))?;
    drop(target);
    drop(group);
    let summary = sweetspot.finish(attached, None)?.stats.summary;
    // What it used since the last reading went with the group.
    ensure!(
        summary.stopped == "target_ended" && summary.samples > 100 && summary.target_cpu_s > 0.1,
        "{summary:?}"
    );
    Ok(())
}

/// The group of a command is gone with it, even where processes outlive it; that of a profiler that was killed is
/// removed by the next.
#[test]
fn no_group_of_a_command_is_left() -> Result<()> {
    let _turn = group!(read);
    let words = ["--attach-mode", "cgroup", "--", "sh", "-c", "sleep 100 >&- 2>&- & echo $!; exec sleep 0.2"];
    let left = |words: &[&str]| -> Result<Running> { start(&mut Sweetspot::new().command("record", words)) };
    let running = left(&words)?;
    let name = format!("sweetspot-{}", running.id());
    let ended = finish(running)?.expect_status(0)?;
    let orphan: i32 = ended.stdout.lines().next().unwrap_or_default().trim().parse()?;
    let alive = kill(Pid::from_raw(orphan), Signal::SIGKILL);
    ensure!(!made_for_commands()?.contains(&name), "{name} is left");
    alive.context("the process that outlives the command")?;

    let mut killed = left(&["--attach-mode", "cgroup", "--", "sleep", "1"])?;
    let name = format!("sweetspot-{}", killed.id());
    wait_until("the group", || made_for_commands().is_ok_and(|groups| groups.contains(&name)))?;
    killed.kill()?;
    killed.wait()?;
    wait_until_told("the command's end, and the next profiler", || {
        let next = Sweetspot::new().command("record", &["--attach-mode", "cgroup", "--", "true"]).output();
        next.is_ok() && made_for_commands().is_ok_and(|groups| !groups.contains(&name))
    })
}

/// Whoever may not write to the hierarchy is told before the command runs.
#[test]
fn without_privilege_the_command_does_not_run() -> Result<()> {
    let _turn = group!(read);
    let nobody = Sweetspot::new().unprivileged()?;
    let mark = nobody.file("mark");
    let words = ["--attach-mode", "cgroup", "--", "touch", &mark];
    run(&mut nobody.command("record", &words))?.expect_status(77)?;
    ensure!(!Path::new(&mark).exists());
    Ok(())
}
