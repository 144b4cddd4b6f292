//! Targets that come and go, and settings that change which there are.

use super::*;

#[test]
fn a_target_that_is_restarted_is_the_same_target() -> Result<()> {
    privileged!();
    let busy = Busy::new()?;
    let daemon = Daemon::start_ample(2, &busy.section("busy", ""))?;
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
    let daemon = Daemon::start_ample(600, &busy.section("job", ""))?;
    let jobs = format!("while :; do {} --cpu 0.8; sleep 0.4; done", busy.path().display());
    let _jobs = start(Command::new("sh").args(["-c", &jobs]))?;
    // The first window comes soon, whatever the length of windows.
    wait_until_told("its first window", || daemon.target("job").is_ok_and(|job| job["windows"] == 1))?;
    let before = daemon.target("job")?;
    ensure!(before["samples"].as_u64() > Some(10), "{before}");
    std::thread::sleep(Duration::from_secs(6));
    // A busy host may leave a sample or two a second to it.
    let used_s = |target: &Value| target["cpu_s"].as_f64().unwrap_or(0.0);
    let goes_on = |after: &Value| {
        after["samples"].as_u64() > before["samples"].as_u64() && used_s(after) - used_s(&before) > 0.5
    };
    wait_until_told("more samples", || daemon.target("job").is_ok_and(|after| goes_on(&after)))?;
    // A window ends with the events that it was sampled by.
    let after = daemon.target("job")?;
    ensure!(after["windows"] == before["windows"], "{before} {after}");
    Ok(())
}

#[test]
fn settings_are_read_again_without_a_gap_and_a_bad_file_changes_nothing() -> Result<()> {
    privileged!();
    let busy = Busy::new()?;
    let mut daemon = Daemon::start_ample(2, &busy.section("busy", ""))?;
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
    wait_until_told("samples", || {
        daemon.target("busy").is_ok_and(|busy| busy["samples"].as_u64() > Some(20))
    })?;
    let before = daemon.ctl_json(&["decisions", "busy"])?;
    daemon.write_settings(2, &busy.section("busy", "budget = \"0.5%\""))?;
    daemon.signal(Signal::SIGHUP)?;
    wait_until_told("the other budget", || {
        daemon.target("busy").is_ok_and(|busy| busy["own_budget_ratio"] == 0.005)
    })?;
    ensure!(daemon.ctl_json(&["status"])?["settings"]["problem"].is_null());
    let after = daemon.ctl_json(&["decisions", "busy"])?;
    let counted = |all: &Value| {
        let last =
            all["decisions"].as_array().and_then(|decisions| decisions.last()).context("a decision")?;
        last["samples"].as_u64().context("samples")
    };
    ensure!(counted(&after)? >= counted(&before)?, "{before} {after}");
    // Another way to unwind is sampled anew.
    let section = busy.section("busy", "budget = \"0.5%\"") + "[sampling]\nunwind = \"fp\"\n";
    daemon.write_settings(2, &section)?;
    daemon.ctl(&["reload"])?.expect_status(0)?;
    wait_until_told("the other way", || daemon.target("busy").is_ok_and(|busy| busy["unwind"] == "fp"))?;
    let kept = windows(&daemon, "busy")?.len();
    wait_for_windows(&daemon, "busy", kept + 2)?;
    // What is not in the settings any more is kept until then, and watched no more.
    daemon.write_settings(2, "[[target]]\nname = \"other\"\npid = 1")?;
    daemon.ctl(&["reload"])?.expect_status(0)?;
    wait_until_told("the target to go", || daemon.target("busy").is_err())?;
    daemon.stop(Signal::SIGTERM)?;
    ensure_gapless(&windows(&daemon, "busy")?)
}

#[test]
fn targets_are_asked_for_and_dropped_while_it_runs() -> Result<()> {
    privileged!();
    let busy = Busy::new()?;
    let running = busy.start()?;
    let daemon = Daemon::start_ample(60, "target = []")?;
    let pid = running.id().to_string();
    daemon.ctl(&["attach", &pid, "--as", "asked", "--duration", "60s"])?.expect_status(0)?;
    daemon.wait_for("asked", "sampled")?;
    wait_until_told("samples", || {
        daemon.target("asked").is_ok_and(|asked| asked["samples"].as_u64() > Some(20))
    })?;
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
fn over_the_limit_the_more_active_targets_are_sampled() -> Result<()> {
    privileged!();
    let (busy, idle) = (Busy::new()?, Busy::new()?);
    copy_program(&find("sleep")?, &idle.path())?;
    let _idle = start(Command::new(idle.path()).arg("300"))?;
    let sections =
        "[limits]\ntargets = 1\n".to_owned() + &idle.section("idle", "") + &busy.section("busy", "");
    let daemon = Daemon::start_ample(60, &sections)?;
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
    let daemon = Daemon::start_ample(60, &sections(3))?;
    let sampled = |count: u64| {
        wait_until_told("targets", || {
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
