//! The command line as a contract: what scripts rely on.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::folded::Folded;
use tests::programs::program;
use tests::run::{Ended, Sweetspot, finish, run, sweetspot};
use tests::stats::Stats;

/// A short run that leaves a file in each format.
fn recorded(sweetspot: &Sweetspot, files: &[&str]) -> Result<Ended> {
    let mut words = Vec::new();
    for file in files {
        words.extend(["-o".to_string(), sweetspot.file(file)]);
    }
    let mix = program("mix_nofp")?.to_string_lossy().into_owned();
    words.extend(["--stats".to_string(), sweetspot.file("stats.jsonl"), "--".to_string(), mix]);
    words.extend(["--cpu", "0.5", "--out", "/dev/null"].map(str::to_string));
    run(&mut sweetspot.command("record", &words))?.expect_status(0)
}

fn at_1_khz() -> Sweetspot {
    Sweetspot::new().options(&["--rate", "1000"])
}

#[test]
fn help_and_version_go_to_standard_output() -> Result<()> {
    for word in ["--help", "--version", "help"] {
        let ended = run(Command::new(sweetspot()).arg(word))?.expect_status(0)?;
        ensure!(ended.stdout.contains("sweetspot") && ended.stderr.is_empty(), "{ended:?}");
    }
    Ok(())
}

#[test]
fn mistakes_are_usage_errors() -> Result<()> {
    let mistakes: &[&[&str]] = &[
        &[],
        &["no-such-verb"],
        &["record"],
        &["attach"],
        &["attach", "not-a-pid"],
        &["record", "--no-such-option", "--", "true"],
        &["record", "--confidence", "100%", "--", "true"],
        &["record", "--unwind", "magic", "--", "true"],
        &["report"],
    ];
    for words in mistakes {
        let ended = run(Command::new(sweetspot()).args(*words))?.expect_status(2)?;
        ensure!(ended.stdout.is_empty() && !ended.stderr.is_empty(), "{words:?}: {ended:?}");
    }
    Ok(())
}

#[test]
fn every_ending_is_written_in_its_format() -> Result<()> {
    let sweetspot = at_1_khz();
    let files = ["p.pb.gz", "p.folded", "p.svg", "p.speedscope.json"];
    recorded(&sweetspot, &files)?;
    let read = |name: &str| fs::read(sweetspot.file(name)).with_context(|| name.to_string());
    ensure!(read("p.pb.gz")?.starts_with(&[0x1f, 0x8b]), "no gzip");
    let folded = Folded::parse(&String::from_utf8(read("p.folded")?)?)?;
    ensure!(folded.weight_of(|stack| stack.has("work_a")) > 0.0);
    ensure!(String::from_utf8(read("p.svg")?)?.contains("work_a"));
    let speedscope: Value = serde_json::from_slice(&read("p.speedscope.json")?)?;
    ensure!(speedscope["$schema"].as_str().is_some_and(|schema| schema.contains("speedscope")));
    Ok(())
}

/// Firefox's format is written, or refused by name before the command runs.
#[test]
fn the_format_of_firefox_is_written_or_refused() -> Result<()> {
    let sweetspot = at_1_khz();
    let file = sweetspot.file("p.firefox.json");
    let ended = run(&mut sweetspot.command("record", &["-o", &file, "--", "true"]))?;
    if ended.status == 2 {
        ensure!(ended.stderr.contains(".firefox.json is not available"), "{ended:?}");
        return Ok(());
    }
    let firefox: Value = serde_json::from_slice(&fs::read(file)?)?;
    ensure!(firefox["meta"]["version"].is_number() && firefox["threads"].is_array());
    Ok(())
}

#[test]
fn without_an_output_there_is_a_table() -> Result<()> {
    let ended = recorded(&at_1_khz(), &[])?;
    for word in ["work_a", "work_b", "samples", "overhead", "budget"] {
        ensure!(ended.stdout.to_lowercase().contains(word), "no {word} in:\n{}", ended.stdout);
    }
    Ok(())
}

#[test]
fn with_an_output_there_is_no_table() -> Result<()> {
    let ended = recorded(&at_1_khz(), &["p.folded"])?;
    ensure!(!ended.stdout.contains("work_a"), "{}", ended.stdout);
    Ok(())
}

#[test]
fn every_key_of_the_statistics_has_its_unit_in_its_name() -> Result<()> {
    let sweetspot = at_1_khz();
    recorded(&sweetspot, &["p.folded"])?;
    let stats = Stats::parse(&fs::read_to_string(sweetspot.file("stats.jsonl"))?)?;
    ensure!(!stats.lines.is_empty(), "no decisions");
    ensure!(stats.lines.iter().all(|line| line["type"] == "decision"), "{:?}", stats.lines);
    let summary = stats.summary;
    ensure!(summary.budget_ratio == 0.01 && summary.bound_by == "fixed", "{summary:?}");
    ensure!((summary.rate_hz - 1000.0).abs() < 50.0, "{}", summary.rate_hz);
    let parts = summary.overhead_parts;
    let of_samples = parts.base_ratio + parts.frames_ratio + parts.stack_ratio;
    let without_sample = parts.switches_ratio + parts.side_records_ratio + parts.self_ratio;
    let sum = of_samples + without_sample + parts.foreign_ratio;
    ensure!((sum - summary.overhead_ratio).abs() < 1e-9, "{parts:?} of {}", summary.overhead_ratio);
    ensure!(parts.base_ratio > 0.0 && parts.side_records_ratio > 0.0, "{parts:?}");
    ensure!((0.0..=without_sample).contains(&parts.fixed_ratio), "{parts:?}");
    let share: f64 = summary.functions.iter().map(|function| function.share).sum();
    ensure!((share - 1.0).abs() < 0.01, "the shares add up to {share}");
    Ok(())
}

#[test]
fn a_report_says_what_the_run_said() -> Result<()> {
    let sweetspot = at_1_khz();
    recorded(&sweetspot, &["p.pb.gz", "p.folded"])?;
    let report = |format: &str| {
        let ended = run(Command::new(tests::run::sweetspot()).args([
            "report",
            &sweetspot.file("p.pb.gz"),
            "--format",
            format,
        ]))?;
        Ok::<_, anyhow::Error>(ended.expect_status(0)?.stdout)
    };
    ensure!(report("table")?.contains("work_a"));
    let written = Folded::parse(&fs::read_to_string(sweetspot.file("p.folded"))?)?;
    let reported = Folded::parse(&report("folded")?)?;
    let share = |folded: &Folded| folded.weight_of(|stack| stack.has("work_a")) / folded.weight_of(|_| true);
    ensure!((share(&written) - share(&reported)).abs() < 1e-6);
    let at_the_end = Stats::parse(&fs::read_to_string(sweetspot.file("stats.jsonl"))?)?.summary;
    let reported = Stats::parse(&report("json")?)?.summary;
    ensure!(reported.samples == at_the_end.samples && reported.functions.len() == at_the_end.functions.len());
    ensure!(reported.functions[0].name == at_the_end.functions[0].name);
    Ok(())
}

#[test]
fn a_report_of_something_else_fails_and_says_so() -> Result<()> {
    let ended = run(Command::new(sweetspot()).args(["report", "/etc/passwd"]))?.expect_status(1)?;
    ensure!(ended.stderr.lines().count() == 1 && ended.stderr.contains("/etc/passwd"), "{ended:?}");
    let ended = run(Command::new(sweetspot()).args(["report", "/no/such/file.pb.gz"]))?.expect_status(1)?;
    ensure!(ended.stderr.lines().count() == 1 && ended.stderr.contains("/no/such/file"), "{ended:?}");
    Ok(())
}

/// 300 s, a share of 20%, 250 µs a sample: 17,686 samples, 59 a second.
#[test]
fn the_plan_is_the_published_example() -> Result<()> {
    let words = ["plan", "--horizon", "300s", "--share", "0.2", "--overhead", "250us", "--z", "1.96"];
    let ended = run(Command::new(sweetspot()).args(words))?.expect_status(0)?;
    let digits: String = ended.stdout.chars().filter(|character| *character != ',').collect();
    ensure!(digits.contains("17686") && digits.contains("59"), "{}", ended.stdout);
    Ok(())
}

/// The command has the person's input and outputs; what the profiler says is apart from them.
#[test]
fn the_command_keeps_its_input_and_output() -> Result<()> {
    let sweetspot = at_1_khz();
    let mut command = sweetspot.command("record", &["-o", &sweetspot.file("p.folded"), "--", "cat"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = tests::guards::Running::start(&mut command)?;
    running.stdin.take().context("a pipe")?.write_all(b"through\n")?;
    let ended = finish(running)?.expect_status(0)?;
    ensure!(ended.stdout == "through\n", "{ended:?}");
    Ok(())
}

/// The cost of a sample, with a folder of its own for the cache.
fn calibrated(sweetspot: &Sweetspot, words: &[&str]) -> Result<Ended> {
    let mut command = sweetspot.command("calibrate", words);
    run(command.env("XDG_CACHE_HOME", sweetspot.path()))
}

#[test]
fn a_calibration_is_a_table_or_an_object_of_finite_figures() -> Result<()> {
    let sweetspot = Sweetspot::new();
    let table = calibrated(&sweetspot, &["--quick"])?.expect_status(0)?.stdout;
    for word in ["a sample", "a frame", "KiB of stack", "context switch", "machine", "kept"] {
        ensure!(table.contains(word), "no {word} in:\n{table}");
    }
    ensure!(!table.contains("NaN") && !table.contains("inf"), "{table}");
    let object: Value = serde_json::from_str(&calibrated(&sweetspot, &["--quick", "--json"])?.stdout)?;
    let model = object["model"].as_object().context("no model")?;
    ensure!(model.len() == 6, "{model:?}");
    for (name, cost) in model {
        ensure!(name.ends_with("_ns"), "{name}");
        for figure in ["mean_ns", "se_ns"] {
            ensure!(cost[figure].as_f64().is_some_and(|ns| ns >= 0.0), "{name}: {cost}");
        }
    }
    Ok(())
}

#[test]
fn a_calibration_that_cannot_be_kept_is_one_all_the_same() -> Result<()> {
    let sweetspot = Sweetspot::new();
    let mut command = sweetspot.command("calibrate", &["--quick"]);
    let ended = run(command.env("XDG_CACHE_HOME", "/proc"))?.expect_status(0)?;
    ensure!(ended.stdout.contains("a sample") && ended.stdout.contains("not kept"), "{ended:?}");
    Ok(())
}

#[test]
fn a_calibration_that_is_interrupted_leaves_the_cache_and_no_process() -> Result<()> {
    let sweetspot = Sweetspot::new();
    let (folder, before) = (sweetspot.path().join("sweetspot"), "as it was");
    fs::create_dir(&folder)?;
    fs::write(folder.join("calibration.json"), before)?;
    let mut command = sweetspot.command("calibrate", &[] as &[&str]);
    let running = tests::run::start(command.env("XDG_CACHE_HOME", sweetspot.path()))?;
    let pid = nix::unistd::Pid::from_raw(running.id() as i32);
    tests::run::wait_until("its work to begin", || child_of(running.id()).is_some())?;
    let work = child_of(running.id()).context("its work has ended")?;
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT)?;
    finish(running)?.expect_status(130)?;
    ensure!(fs::read_to_string(folder.join("calibration.json"))? == before);
    ensure!(fs::read_dir(&folder)?.count() == 1, "something was left behind");
    tests::run::wait_until("its work to end", || has_ended(work))
}

/// The first child of a process, once there is one.
fn child_of(pid: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// Whether a process is gone, or a zombie that nobody takes notice of.
fn has_ended(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
}

#[test]
fn the_doctor_says_what_the_machine_permits() -> Result<()> {
    let ended = run(Command::new(sweetspot()).arg("doctor"))?;
    ensure!(ended.stdout.contains("perf_event_paranoid"), "{ended:?}");
    Ok(())
}
