//! Samples at the kernel's own tick, live, as root: of a program that has nothing to do with it, and of one that is in step with it.

#![allow(clippy::print_stderr, reason = "a test that skips says why")]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::attempts::attempts;
use tests::checks::{C, check, within};
use tests::guards::is_root;
use tests::programs::program;
use tests::run::{Sweetspot, start, wait_until};

/// Leaves the test unless the tick can be sampled.
macro_rules! needs_ticks {
    () => {
        if !is_root() || !Path::new("/sys/kernel/tracing/events/timer/hrtimer_expire_entry").exists() {
            eprintln!("skipped: samples at the tick need root, and tracefs at /sys/kernel/tracing");
            return Ok(());
        }
    };
}

/// Programs that share a CPU are switched at ticks: each then has more of them, or fewer, than of the time.
static ALONE: Mutex<()> = Mutex::new(());

fn at_the_tick(options: &[&str]) -> Sweetspot {
    Sweetspot::new().options(&["--source", "tick", "--confidence", "99.99%"]).options(options)
}

/// Has the profiler find in its cache that a sample at the tick is cheap: on a busy host it may cost more than it is worth.
fn with_cheap_ticks(cache: &Path, options: &[&str]) -> Result<Sweetspot> {
    let place = format!("XDG_CACHE_HOME={}", cache.display());
    let kept = cache.join("sweetspot/ticks.json");
    at_the_tick(&[]).through(&["env", &place]).record("mix_nofp", &["--cpu", "0.2", "--depth", "20"])?;
    let mut calibration: Value = serde_json::from_slice(&fs::read(&kept).context("not measured")?)?;
    calibration["load_ratio"] = json!(0.0);
    calibration["model"]["per_tick_ns"] = json!({ "mean_ns": 5_000.0, "se_ns": 300.0 });
    fs::write(&kept, calibration.to_string())?;
    Ok(at_the_tick(options).through(&["env", &place]))
}

#[test]
fn ticks_and_clock_make_one_profile() -> Result<()> {
    needs_ticks!();
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    attempts(|| {
        for (mode, unwind, program) in
            [("task", "dwarf", "mix_nofp"), ("task", "fp", "mix_fp"), ("cpu", "dwarf", "mix_nofp")]
        {
            let options = ["--attach-mode", mode, "--unwind", unwind, "--rate", "300"];
            let recorded = at_the_tick(&options).record(program, &["--cpu", "4", "--depth", "20"])?;
            let summary = &recorded.stats.summary;
            ensure!(summary.tick_audit == "believed", "{mode}: {}, {:?}", summary.tick_audit, summary.notes);
            ensure!(summary.tick_rate_hz > 0.0 && summary.tick_overhead_us > 0.0, "{mode}: {summary:?}");
            let tick_hz = summary.tick_samples as f64 / summary.target_cpu_s;
            ensure!(
                [100.0, 250.0, 300.0, 1000.0].iter().any(|hz| (tick_hz / hz - 1.0).abs() < 0.05),
                "{tick_hz}"
            );
            ensure!(summary.samples > summary.tick_samples, "{} {}", summary.samples, summary.tick_samples);
            check(&recorded, &C, 20)?;
        }
        Ok(())
    })
}

#[test]
fn a_long_horizon_takes_some_of_the_ticks() -> Result<()> {
    needs_ticks!();
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    attempts(|| {
        let cache = tempfile::tempdir()?;
        let recorded = with_cheap_ticks(cache.path(), &["--horizon", "40000s", "--budget", "5%"])?
            .record("mix_nofp", &["--cpu", "6", "--depth", "20"])?;
        let summary = &recorded.stats.summary;
        ensure!(summary.tick_audit == "believed", "{}, {:?}", summary.tick_audit, summary.notes);
        let tick_hz = summary.tick_samples as f64 / summary.target_cpu_s;
        ensure!((10.0..230.0).contains(&tick_hz), "{tick_hz}");
        check(&recorded, &C, 20)
    })
}

/// An event for each thread and CPU can be had, and not two.
#[test]
fn where_files_are_few_the_clock_goes_without_ticks() -> Result<()> {
    needs_ticks!();
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cpus = std::thread::available_parallelism()?.get();
    let target = start(Command::new(program("sleepers")?).args(["300", "30"]))?;
    wait_until("the threads to be there", || {
        fs::read_dir(format!("/proc/{}/task", target.id())).is_ok_and(|threads| threads.count() >= 300)
    })?;
    // 256 are kept for everything else.
    let files = format!("--nofile={0}:{0}", 300 * cpus * 3 / 2 + 256);
    let recorded = at_the_tick(&["--attach-mode", "task", "--rate", "500"])
        .through(&["prlimit", &files])
        .attach(target.id(), 2.0)?;
    let summary = &recorded.stats.summary;
    ensure!(summary.tick_audit.contains("files may be open"), "{}", summary.tick_audit);
    ensure!(summary.notes.iter().any(|note| note.contains("tick")), "{:?}", summary.notes);
    ensure!(summary.tick_samples == 0 && summary.tick_rate_hz == 0.0 && summary.samples > 0, "{summary:?}");
    Ok(())
}

#[test]
fn a_program_in_step_with_the_tick_is_left_to_the_clock() -> Result<()> {
    needs_ticks!();
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // Of the shortest, waking up late takes most of `early`; and the scheduler's account of a program that wakes a thousand times a
    // second has some percent more than any clock sees of it (four to nine, in a virtual machine).
    for (period_us, work_us, least, off) in
        [("4000", "850", 0.1, 0.1), ("8000", "850", 0.1, 0.1), ("1000", "300", 0.0, 0.15)]
    {
        attempts(|| {
            let target = start(Command::new(program("locked")?).args(["60", period_us, work_us, "700"]))?;
            let recorded = at_the_tick(&["--rate", "500"]).attach(target.id(), 12.0)?;
            let summary = &recorded.stats.summary;
            ensure!(summary.tick_audit.starts_with("dropped"), "{period_us}: {}", summary.tick_audit);
            ensure!(
                summary.tick_rate_hz == 0.0 && summary.tick_overhead_us == 0.0,
                "{period_us}: {summary:?}"
            );
            ensure!(summary.truncated <= summary.samples, "{period_us}: {summary:?}");
            ensure!(summary.notes.iter().any(|note| note.contains("tick")), "{:?}", summary.notes);
            let of = |name: &str| {
                recorded.folded.weight_of(|stack| stack.frames.iter().any(|frame| frame == name))
            };
            // What waking up takes is in `early`, which ends at a fixed time.
            let early = of("early") / (of("early") + of("late"));
            ensure!((least..=0.4).contains(&early), "{period_us}: {early}");
            within("weight_s and target_cpu_s", summary.weight_s, summary.target_cpu_s, off)
                .with_context(|| format!("{period_us}: {summary:?}"))
        })?;
    }
    Ok(())
}
