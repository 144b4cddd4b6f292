//! How the service ends, and what the next one finds.

use super::*;

#[test]
fn after_a_kill_everything_but_the_open_window_is_there_and_the_next_one_goes_on() -> Result<()> {
    privileged!();
    let busy = Busy::new()?;
    let mut daemon = Daemon::start_ample(2, &busy.section("busy", ""))?;
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
    // The usual budget, by which some windows have no names yet.
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
fn it_stops_when_it_is_asked_to_and_saves_what_it_has() -> Result<()> {
    privileged!();
    let busy = Busy::new()?;
    let _busy = busy.start()?;
    // Saving has a second and a half, which a busy machine may need for something else.
    attempts(|| {
        let mut daemon = Daemon::start_ample(2, &busy.section("busy", ""))?;
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
    let mut daemon = Daemon::start_ample_in(disk.path().join("store"), 60, &busy.section("busy", ""))?;
    wait_until_told("samples", || {
        daemon.target("busy").is_ok_and(|busy| busy["samples"].as_u64() > Some(20))
    })?;
    let _ = fs::write(disk.path().join("filler"), vec![1; 128 << 10]); // as much as there is room for
    let begun = std::time::Instant::now();
    let ended = daemon.stop(Signal::SIGTERM)?;
    ensure!(ended.status == 3 && ended.stderr.contains("before all windows were kept"), "{ended:?}");
    ensure!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    Ok(())
}

#[test]
fn a_second_daemon_on_the_same_folder_is_refused_in_a_line() -> Result<()> {
    privileged!();
    let daemon = Daemon::start_ample(60, "target = []")?;
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
