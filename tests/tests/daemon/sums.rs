//! Whose CPU time is whose.

use std::path::Path;

use tests::groups::{Group, hierarchy};
use tests::measured::cpu_s;

use super::*;

/// What is parted from everything has its own CPU time, and not the machine's.
#[test]
fn each_of_everything_is_a_target_of_its_own() -> Result<()> {
    privileged!();
    let busy = Busy::new()?;
    let running = busy.start()?;
    let daemon =
        Daemon::start_ample(60, "[[target]]\nname = \"all\"\neverything = true\neach = \"process\"")?;
    let name = format!("all:{}", busy.name);
    daemon.wait_for(&name, "sampled")?;
    wait_until_told("CPU time", || {
        daemon.target(&name).is_ok_and(|found| found["cpu_s"].as_f64() > Some(0.5))
    })?;
    let target = daemon.target(&name)?;
    let used = tests::measured::cpu_s(running.id())?;
    let told = target["cpu_s"].as_f64().context("cpu_s")?;
    ensure!(target["processes"] == 1 && told <= used, "{used}: {target}");
    Ok(())
}

/// A shell that waits for a subshell, that waits for a program of another target: the time of that one is in no other's. `more` is for the
/// sections of both. The figures are those of the last look, which may be a second old.
fn a_shell_and_what_it_waits_for(more: &str, most_of_shell_s: f64) -> Result<()> {
    let (busy, folder) = (Busy::new()?, tempfile::tempdir()?);
    let shell = folder.path().join(format!("shell{}", busy.name));
    copy_program(Path::new("/bin/bash"), &shell)?;
    let sections = format!(
        "[budget]\nhost = \"20%\"\ntarget = \"10%\"\n[[target]]\nname = \"shell\"\nexecutable = {shell:?}\n{more}\n{}",
        busy.section("work", more)
    );
    let daemon = Daemon::start_ample(60, &sections)?;
    let script = format!("sleep 2; (timeout 60 {:?} --cpu 6; true); sleep 2; true", busy.path());
    let _shell = start(Command::new(&shell).args(["-c", &script]))?;
    let cpu_s = |name: &str| Ok::<_, anyhow::Error>(daemon.target(name)?["cpu_s"].as_f64().unwrap_or(0.0));
    wait_until_told("the work", || cpu_s("work").is_ok_and(|used| used > 1.0))?;
    wait_until_told("the end of it", || daemon.target("work").is_ok_and(|target| target["processes"] == 0))?;
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
    let daemon = Daemon::start_ample(
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
        let mut daemon = Daemon::start_ample(2, &sections)?;
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

/// Has a target of its own, `taken`, sample one of the two processes of a target.
fn take_from(daemon: &Daemon, target: &str, process: &Running) -> Result<()> {
    let pid = process.id().to_string();
    // A horizon of its own means events of its own.
    daemon
        .ctl(&["attach", &pid, "--as", "taken", "--horizon", "20s", "--duration", "1h"])?
        .expect_status(0)?;
    daemon.wait_for("taken", "sampled")?;
    wait_until_told("the target without it", || {
        daemon.target(target).is_ok_and(|target| target["processes"] == 1)
    })
}

/// A process that another target takes from a control group counts for that target alone, although events of the group would count it too.
#[test]
fn a_process_that_is_taken_from_a_group_counts_once() -> Result<()> {
    privileged!();
    let Some((group, top)) = Group::new().zip(hierarchy()) else {
        eprintln!("skipped: control groups need root, and cgroup v2 mounted for writing");
        return Ok(());
    };
    let (stays, leaves) = (Busy::new()?, Busy::new()?);
    let start_in = |busy: &Busy| start(&mut group.command("", &busy.path(), &["--cpu", "300"])?);
    let (staying, leaving) = (start_in(&stays)?, start_in(&leaves)?);
    let path = Path::new("/").join(group.path().strip_prefix(top)?);
    // A horizon of its own means events of its own.
    let target = format!("[[target]]\nname = \"group\"\ncgroup = {path:?}\nhorizon = \"20s\"\n");
    let daemon = Daemon::start_ample(60, &format!("[sampling]\nattach_mode = \"cgroup\"\n{target}"))?;
    wait_until_told("events of the group", || {
        daemon.target("group").is_ok_and(|group| group["attach_mode"] == "cgroup")
    })?;
    take_from(&daemon, "group", &leaving)?;
    // Figures are those of the last look, which may be a second old.
    let told = |name: &str| Ok::<_, anyhow::Error>(daemon.target(name)?["cpu_s"].as_f64().unwrap_or(0.0));
    let figures = || {
        Ok::<_, anyhow::Error>([told("group")?, cpu_s(staying.id())?, told("taken")?, cpu_s(leaving.id())?])
    };
    let before = figures()?;
    wait_until_told("its work", || cpu_s(leaving.id()).is_ok_and(|used_s| used_s > before[3] + 3.0))?;
    let after = figures()?;
    let [group_s, staying_s, taken_s, leaving_s] = std::array::from_fn(|at| after[at] - before[at]);
    let is_true = (group_s - staying_s).abs() < 1.5 && (taken_s - leaving_s).abs() < 1.5;
    ensure!(
        is_true,
        "the group {group_s} s of {staying_s} s, the process taken from it {taken_s} s of {leaving_s} s"
    );
    Ok(())
}

/// The first target samples threads one by one, and its clocks do not follow the process.
#[test]
fn a_process_that_is_taken_from_a_target_is_sampled_by_the_other_alone() -> Result<()> {
    privileged!();
    let busy = Busy::new()?;
    let (_staying, leaving) = (busy.start()?, busy.start()?);
    // A horizon of its own means events of its own.
    let target = busy.section("first", "horizon = \"20s\"");
    let daemon = Daemon::start_ample(60, &format!("[sampling]\nattach_mode = \"task\"\n{target}"))?;
    // At first clocks are renewed for other reasons.
    wait_until_told("settled clocks of the first", || {
        let is_settled = |first: &Value| {
            first["attach_mode"] == "task" && first["processes"] == 2 && first["cpu_s"].as_f64() > Some(10.0)
        };
        daemon.target("first").is_ok_and(|first| is_settled(&first))
    })?;
    take_from(&daemon, "first", &leaving)?;
    // Clocks are renewed soon, and a window that begins after that has samples of its own process alone.
    wait_until_told("windows of the first without samples of the other", || {
        let asked = daemon.ctl(&["profile", "--duration", "2s", "--target", "first", "--json"]);
        let profile = asked.ok().and_then(|asked| serde_json::from_str::<Value>(&asked.stdout).ok());
        profile.is_some_and(|profile| {
            let count = |key: &str| profile[key].as_u64().unwrap_or(0);
            count("samples") > 20 && count("foreign_samples") * 20 < count("samples")
        })
    })
}

#[test]
fn everything_is_what_belongs_to_no_other_target() -> Result<()> {
    privileged!();
    let busy = Busy::new()?;
    let _busy = busy.start()?;
    attempts(|| {
        let sections = busy.section("busy", "") + "[[target]]\nname = \"rest\"\neverything = true\n";
        let mut daemon = Daemon::start_ample(2, &sections)?;
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

/// Each process lives for some milliseconds, and most are never seen by a look at `/proc`.
#[test]
fn processes_that_come_and_go_quickly_belong_to_their_target() -> Result<()> {
    privileged!();
    let folder = tempfile::tempdir()?;
    copy_program(&find("sh")?, &folder.path().join("brood"))?;
    let shell = folder.path().join("brood");
    let section = format!("[[target]]\nname = \"brood\"\nexecutable = {shell:?}\n");
    let daemon = Daemon::start_ample(60, &section)?;
    let script = "while :; do /bin/true; (i=0; while [ $i -lt 300 ]; do i=$((i+1)); done); done";
    let _brood = start(Command::new(&shell).args(["-c", script]))?;
    daemon.wait_for("brood", "sampled")?;
    wait_until_told("samples", || {
        daemon.target("brood").is_ok_and(|brood| brood["samples"].as_u64() > Some(30))
    })?;
    std::thread::sleep(Duration::from_secs(2)); // looks at who is there, after some hundreds have come and gone
    let brood = daemon.target("brood")?;
    let processes = brood["processes"].as_u64().context("processes")?;
    ensure!(brood["state"] == "sampled" && processes < 20, "{brood}");
    Ok(())
}

/// Hundreds of programs a second map thousands of times, which would take the whole budget of everything. Both CPUs run
/// them, and each maps many libraries: else what others compute meanwhile would make room for the records.
#[test]
fn under_a_storm_of_programs_mappings_are_read_and_no_longer_told_and_that_is_said() -> Result<()> {
    const LIBRARIES: &str = "libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1 libutil.so.1 libresolv.so.2 libanl.so.1 \
                             libBrokenLocale.so.1 libthread_db.so.1 libnss_files.so.2 libnss_dns.so.2";
    privileged!();
    // Little for the records, and enough for names to come soon after the storm.
    let budget = "[budget]\nhost = \"10%\"\ntarget = \"0.3%\"\n";
    let daemon = Daemon::start(2, &format!("{budget}[[target]]\nname = \"rest\"\neverything = true\n"))?;
    daemon.wait_for("rest", "sampled")?;
    let mut storm = Command::new(find("sh")?);
    storm.args(["-c", &format!("while :; do LD_PRELOAD={LIBRARIES:?} /bin/true; done")]);
    let storms = [start(&mut storm)?, start(&mut storm)?];
    // A report of a storm takes a CPU for long: asked for again at once, it would be a part of the storm.
    let pause = || std::thread::sleep(Duration::from_secs(1));
    wait_until("the note", || {
        pause();
        let said = daemon.report(&["--from", "-1h", "--target", "rest", "--format", "json"]);
        said.is_ok_and(|said| said.stdout.contains("records of their mappings"))
    })
    .with_context(|| format!("{:?}", daemon.target("rest")))?;
    // Its mappings are told by nobody. Names come when the host has room for them, which it need not have in the storm.
    let busy = Busy::of("mix_static_pie")?;
    let running = busy.start()?;
    wait_until("its CPU time", || cpu_s(running.id()).is_ok_and(|used_s| used_s > 5.0))?;
    drop(storms);
    wait_until("its names", || {
        pause();
        work_s(&daemon, &busy, "rest").is_ok_and(|named_s| named_s > 1.0)
    })
}
