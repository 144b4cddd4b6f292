//! Windows follow each other without a gap, whatever is asked for meanwhile.

use tests::run::Ended;

use super::*;

#[test]
fn windows_follow_each_other_without_a_gap_and_the_open_one_is_saved_at_the_end() -> Result<()> {
    privileged!();
    let busy = Busy::new()?;
    let deaf = Deaf::new()?;
    // The usual budget, by which names come late.
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

/// Of few samples a second, too: the time before the first one and after the last was sampled as well.
#[test]
fn a_profile_lasts_as_long_as_was_asked_and_no_thread_used_more_cpu_time() -> Result<()> {
    privileged!();
    let busy = Busy::new()?;
    let _busy = busy.start()?;
    let daemon = Daemon::start_ample(60, &busy.section("busy", "budget = \"0.01%\""))?;
    daemon.wait_for("busy", "sampled")?;
    wait_until_told("calm steps", || {
        daemon.target("busy").is_ok_and(|busy| busy["cpu_s"].as_f64() > Some(5.0))
    })?;
    for _ in 0..4 {
        let asked = daemon.ctl(&["profile", "--duration", "2s", "--target", "busy", "--json"])?;
        let profile: Value = serde_json::from_str(&asked.expect_status(0)?.stdout)?;
        let lasted_s = profile["duration_s"].as_f64().context("no such key")?;
        ensure!(lasted_s >= 1.99, "{lasted_s} s of the two that were asked for");
    }
    let files = daemon.files()?;
    ensure!(!files.is_empty(), "no window was kept");
    for path in files {
        let path = path.display().to_string();
        let window = run(&mut Sweetspot::new().command("report", &[&path, "--format", "json"]))?;
        let window: Value = serde_json::from_str(&window.expect_status(0)?.stdout)?;
        let (used_s, lasted_s) = (window["target_cpu_s"].as_f64(), window["duration_s"].as_f64());
        let (used_s, lasted_s) = used_s.zip(lasted_s).context("no such keys")?;
        ensure!(used_s > 0.0 && used_s <= 1.02 * lasted_s, "{used_s} s of CPU time in {lasted_s} s");
    }
    Ok(())
}

/// Whoever asks for a time that is over ends no window that has begun since.
#[test]
fn a_request_for_the_past_ends_no_later_window() -> Result<()> {
    privileged!();
    let busy = Busy::new()?;
    let _busy = busy.start()?;
    let daemon = Daemon::start_ample(3, &busy.section("busy", ""))?;
    wait_for_windows(&daemon, "busy", 2)?;
    let mut refused = None;
    wait_until("windows", || {
        std::thread::sleep(Duration::from_millis(300));
        let asked = daemon.ctl(&["profile", "--from", "-6s", "--to", "-5s", "--format", "json"]);
        // Whether it is named by then does not matter.
        let is_answer = |asked: &Ended| {
            asked.status == 0 || asked.status == 1 && asked.stderr.contains("no such profile")
        };
        if !asked.as_ref().is_ok_and(is_answer) {
            refused = Some(asked);
        }
        refused.is_some() || windows(&daemon, "busy").is_ok_and(|windows| windows.len() >= 5)
    })?;
    ensure!(refused.is_none(), "{refused:?}");
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
    let mut daemon = Daemon::start_ample(2, &busy.section("busy", ""))?;
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
fn a_full_disk_costs_windows_that_are_counted_and_nothing_else() -> Result<()> {
    privileged!();
    let busy = Busy::new()?;
    let _busy = busy.start()?;
    let disk = SmallDisk::new(64)?;
    let filler = disk.path().join("filler");
    let daemon = Daemon::start_ample_in(disk.path().join("store"), 1, &busy.section("busy", ""))?;
    daemon.wait_for("busy", "sampled")?;
    let written = || -> Result<(u64, u64)> {
        let store = daemon.ctl_json(&["status"])?["store"].clone();
        Ok((
            store["written"].as_u64().context("written")?,
            store["dropped_full"].as_u64().context("dropped")?,
        ))
    };
    let _ = fs::write(&filler, vec![1; 128 << 10]); // as much as there is room for
    wait_until_told("dropped windows", || written().is_ok_and(|(_, dropped)| dropped > 0))?;
    ensure!(daemon.ctl_json(&["status"])?["degraded"].as_array().is_some_and(|lines| !lines.is_empty()));
    ensure!(daemon.target("busy")?["state"] == "sampled");
    fs::remove_file(&filler)?;
    let (before, _) = written()?;
    wait_until_told("windows again", || written().is_ok_and(|(now, _)| now > before + 1))?;
    wait_until_told("it is ready", || {
        daemon.ctl_json(&["status"]).is_ok_and(|status| status["ready"] == true)
    })
}
