//! Attaching by timer signals, live: what becomes of the agent and of threads that come and go while a process is sampled.

#![allow(clippy::print_stderr, reason = "a test that skips says why")]

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use procfs::process::Process;
use tests::guards::{Running, may_trace};
use tests::host::Holdings;
use tests::measured::cpu_s;
use tests::programs::{find_in_path, program};
use tests::run::{Ended, Sweetspot, finish, run, start, sweetspot, wait_until, wait_until_ready};

fn by_timers() -> Sweetspot {
    Sweetspot::new().options(&["--backend", "timer-signal", "--rate", "250", "--confidence", "99.99%"])
}

/// Attaches for some milliseconds.
fn attach(sweetspot: &Sweetspot, pid: u32, ms: u32) -> Result<Ended> {
    let mut words = sweetspot.outputs();
    words.extend(["--duration".to_owned(), format!("{ms}ms"), pid.to_string()]);
    run(&mut sweetspot.command("attach", &words))
}

/// At any moment from when the agent is loaded: also before the first sample.
#[test]
fn a_profiler_that_is_asked_to_stop_while_it_attaches_leaves_nothing_at_work() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    if find_in_path("python3").is_none() {
        eprintln!("skipped: there is no python3 (apt-get install python3)");
        return Ok(());
    }
    sweetspot(); // is built before anybody computes
    let script = "print('ready', flush=True)\nwhile True: sum(range(1000))";
    let mut target = start(Command::new("python3").args(["-c", script]))?;
    wait_until_ready(&mut target)?;
    let sweetspot = by_timers();
    attach(&sweetspot, target.id(), 50)?.expect_status(0)?; // after which the library stays
    let before = Holdings::of(target.id())?;
    let mut random = fastrand::Rng::with_seed(9);
    // Under `nohup` a run goes on.
    let ignored = Process::myself()?.status()?.sigign;
    let is_caught = |signal: &Signal| ignored >> (*signal as i32 - 1) & 1 == 0;
    let signals = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().filter(is_caught);
    for (round, signal) in signals.collect::<Vec<_>>().repeat(4).into_iter().enumerate() {
        let mut words = sweetspot.outputs();
        words.push(target.id().to_string());
        let profiler = start(&mut sweetspot.command("attach", &words))?;
        wait_until("memory", || Holdings::of(target.id()).is_ok_and(|held| held.is_sampled()))?;
        thread::sleep(Duration::from_micros(random.u64(0..60_000)));
        kill(Pid::from_raw(profiler.id() as i32), signal)?;
        let ended = finish(profiler)?;
        let after = Holdings::of(target.id())?;
        ensure!(
            (&after.our_mappings, &after.handled, after.timers, &after.files)
                == (&before.our_mappings, &before.handled, before.timers, &before.files),
            "round {round}, by {signal}: {before:?} {after:?} {ended:?}"
        );
    }
    Ok(())
}

/// The `latecomers` program, until its input ends.
fn latecomers(what: &str) -> Result<Running> {
    sweetspot(); // is built before anybody computes
    let mut command = Command::new(program("latecomers")?);
    let command = command.arg(what).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running::start(command)?;
    wait_until_ready(&mut running)?;
    Ok(running)
}

fn end(mut target: Running) -> Result<Ended> {
    drop(target.stdin.take());
    finish(target)?.expect_status(0)
}

/// Threads that came while it was attached: nobody signals them while they sleep.
#[test]
fn sleep_of_threads_that_come_later_is_not_interrupted() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    let mut target = latecomers("sleepers")?;
    let sweetspot = by_timers();
    let during = sweetspot.start_attach(&["--duration", "5s", &target.id().to_string()])?;
    target.stdin.as_mut().context("no input")?.write_all(b"x")?;
    let recorded = sweetspot.finish(during, None)?;
    let ended = end(target)?;
    ensure!(ended.stdout.contains("fine, 0 calls"), "{ended:?}");
    ensure!(recorded.stats.summary.samples > 100, "{:?}", recorded.stats.summary);
    Ok(())
}

/// The library is gone with the program that it was loaded into.
#[test]
fn a_process_that_becomes_another_program_is_told_of_and_left_alone() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    let mut target = latecomers("becomes")?;
    let pid = target.id();
    let sweetspot = by_timers();
    let during = sweetspot.start_attach(&["--duration", "60s", &pid.to_string()])?;
    let works_for = |more_s: f64| -> Result<()> {
        let before_s = cpu_s(pid)?;
        wait_until("its work", || cpu_s(pid).is_ok_and(|used_s| used_s > before_s + more_s))
    };
    works_for(0.3)?;
    target.stdin.as_mut().context("no input")?.write_all(b"x")?;
    let words = format!("/proc/{pid}/cmdline");
    wait_until("the other program", || fs::read(&words).is_ok_and(|words| words == b"latecomers\0alone\0"))?;
    works_for(1.0)?;
    kill(Pid::from_raw(during.running.id() as i32), Signal::SIGINT)?;
    let recorded = sweetspot.finish(during, None)?;
    let summary = &recorded.stats.summary;
    ensure!(summary.notes.iter().any(|note| note.contains("became another program")), "{:?}", summary.notes);
    // What the next one used is not the first one's.
    let (known, all) = (summary.functions.iter().map(|one| one.cpu_s).sum::<f64>(), summary.target_cpu_s);
    ensure!(known < 0.6 * all && summary.not_sampled_cpu_s > 0.4 * all, "{known} of {all}: {summary:?}");
    ensure!(!Holdings::of(pid)?.is_host(), "something was loaded again");
    end(target).map(drop)
}

#[test]
fn a_process_without_its_first_thread_is_refused_for_that() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    let target = latecomers("headless")?;
    let stat = format!("/proc/{}/stat", target.id());
    wait_until("the first thread's end", || {
        fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") Z "))
    })?;
    let ended = attach(&by_timers(), target.id(), 50)?;
    ensure!(ended.status == 1 && ended.stderr.lines().count() == 1, "{ended:?}");
    ensure!(
        ended.stderr.contains("the first thread of process") && ended.stderr.contains("has ended"),
        "{ended:?}"
    );
    end(target).map(drop)
}

/// Threads of a process that have a timer.
fn with_timers(pid: u32) -> Result<BTreeSet<u32>> {
    let timers = fs::read_to_string(format!("/proc/{pid}/timers"))?;
    let tids = timers.lines().filter_map(|line| line.rsplit_once("/tid.")?.1.trim().parse().ok());
    Ok(tids.collect())
}

/// Lists of threads leave some out while others end.
#[test]
fn every_thread_is_sampled_that_was_there_before_whoever_comes_and_goes() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    if !Path::new("/proc/self/timers").exists() {
        eprintln!("skipped: this kernel does not list timers (CONFIG_CHECKPOINT_RESTORE)");
        return Ok(());
    }
    let target = latecomers("crowd")?;
    let is_old = |tid: &u32| {
        fs::read_to_string(format!("/proc/{}/task/{tid}/comm", target.id()))
            .is_ok_and(|name| name.trim() == "old")
    };
    wait_until("three hundred threads", || {
        let tasks = fs::read_dir(format!("/proc/{}/task", target.id())).into_iter().flatten().flatten();
        let tids = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok());
        tids.filter(is_old).collect::<BTreeSet<u32>>().len() == 300
    })?;
    let tasks = fs::read_dir(format!("/proc/{}/task", target.id()))?.flatten();
    let tids = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok());
    let all: BTreeSet<u32> = tids.filter(is_old).collect();
    for round in 0..10 {
        let sweetspot = by_timers();
        let during = sweetspot.start_attach(&["--duration", "60s", &target.id().to_string()])?;
        // They sleep: whoever is missed at the beginning gets no timer later.
        let until = Instant::now() + Duration::from_secs(20);
        let mut sampled = with_timers(target.id())?;
        while !all.is_subset(&sampled) && Instant::now() < until {
            thread::sleep(Duration::from_millis(50));
            sampled = with_timers(target.id())?;
        }
        kill(Pid::from_raw(during.running.id() as i32), Signal::SIGINT)?;
        sweetspot.finish(during, None)?;
        let missed: Vec<&u32> = all.difference(&sampled).collect();
        ensure!(missed.is_empty(), "round {round}: {missed:?} of {} have no timer", all.len());
    }
    end(target).map(drop)
}
