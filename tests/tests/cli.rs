//! The command line as a contract: what scripts rely on.

#![allow(clippy::print_stderr, reason = "a test that skips says why")]

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use profile_files::Format;
use serde_json::Value;
use tests::folded::Folded;
use tests::programs::program;
use tests::run::{Ended, Sweetspot, finish, finish_within, run, start, sweetspot, wait_until};
use tests::stats::Stats;

/// An evaluation is some fifty runs; a busy machine takes a second and more for each.
const EVALUATION: Duration = Duration::from_secs(900);

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
        &["top", "--window", "1s"],
        &["record", "--no-such-option", "--", "true"],
        &["record", "--confidence", "100%", "--", "true"],
        &["record", "--unwind", "magic", "--", "true"],
        &["report"],
        &["compare", "one.pb.gz"],
        &["plan"],
        &["plan", "--pid", "1", "--share", "20%"],
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
    let files: Vec<String> = Format::written().map(|format| format!("p.{format}")).collect();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    recorded(&sweetspot, &files)?;
    let read = |name: &str| fs::read(sweetspot.file(name)).with_context(|| name.to_string());
    for file in files {
        ensure!(!read(file)?.is_empty(), "{file} is empty");
    }
    ensure!(read("p.pb.gz")?.starts_with(&[0x1f, 0x8b]), "no gzip");
    let folded = Folded::parse(&String::from_utf8(read("p.folded")?)?)?;
    ensure!(folded.weight_of(|stack| stack.has("work_a")) > 0.0);
    ensure!(String::from_utf8(read("p.svg")?)?.contains("work_a"));
    let speedscope: Value = serde_json::from_slice(&read("p.speedscope.json")?)?;
    ensure!(speedscope["$schema"].as_str().is_some_and(|schema| schema.contains("speedscope")));
    let firefox: Value = serde_json::from_slice(&read("p.firefox.json")?)?;
    ensure!(firefox["meta"]["product"] == "sweetspot");
    let names = firefox["threads"][0]["stringArray"].as_array().context("no strings")?;
    ensure!(names.iter().any(|name| name.as_str().is_some_and(|name| name.contains("work_a"))));
    let markdown = String::from_utf8(read("p.md")?)?;
    ensure!(
        markdown.starts_with("## `")
            && markdown.lines().any(|line| line.starts_with('|') && line.contains("work_a"))
    );
    let page = String::from_utf8(read("p.html")?)?;
    ensure!(page.contains("<svg") && page.contains("<code>work_a"), "no graph, or no functions");
    Ok(())
}

#[test]
fn without_an_output_there_is_a_table() -> Result<()> {
    let ended = recorded(&at_1_khz(), &[])?;
    for word in ["work_a", "work_b", "samples", "overhead", "slowdown"] {
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

/// Counts, shares and the like.
const WITHOUT_UNIT: &[&str] = &[
    "samples",
    "law_samples",
    "anytime_samples",
    "horizon_samples",
    "most_samples",
    "handler_samples",
    "lost",
    "truncated",
    // The reasons.
    "copy_too_short",
    "chain_too_long",
    "no_tables",
    "other_stack",
    "narrow",
    "stack_absent",
    "too_many_frames",
    "broken",
    "no_user_stack",
    "not_kept",
    "undecodable",
    "throttled",
    "foreign_samples",
    "unseen_interrupts",
    "walked_frames",
    "objects",
    "files_lost",
    "outer_frames_from_earlier",
    "maps_reread",
    "mappings_dropped",
    "symbol_evictions",
    "symbol_rereads",
    "retunes",
    "merged_windows",
    "replicas",
    "clocks",
    "seed",
    "confidence",
    "share",
    "total_share",
    "total_share_low",
    "total_share_high",
    "kernel_share",
    "kernel_share_low",
    "kernel_share_high",
];
/// Figures that may be missing: what cannot be known of few samples.
const MAY_BE_NULL: &[&str] = &[
    "cpu_s_low",
    "cpu_s_high",
    "long_run_cpu_s_low",
    "long_run_cpu_s_high",
    "cpu_s_to_converge",
    "tied",
    "handler_us",
    "handler_se_us",
    "interrupt_us",
    "total_share_low",
    "total_share_high",
    "kernel_share",
    "kernel_share_low",
    "kernel_share_high",
];

/// Numbers have a unit in their name; a figure that is not finite would be written as null.
fn check_figures(name: &str, value: &Value) -> Result<()> {
    let has_unit = || {
        let is_unit = |word| ["ns", "us", "s", "hz", "ratio", "bytes", "cpus"].contains(&word);
        name.split('_').skip(1).any(is_unit) || WITHOUT_UNIT.contains(&name)
    };
    match value {
        Value::Object(keys) => keys.iter().try_for_each(|(key, value)| check_figures(key, value))?,
        Value::Array(values) => values.iter().try_for_each(|value| check_figures(name, value))?,
        Value::Number(_) => ensure!(has_unit(), "{name} has no unit in its name"),
        Value::Null => ensure!(MAY_BE_NULL.contains(&name), "{name} is not finite"),
        Value::String(_) | Value::Bool(_) => {}
    }
    Ok(())
}

#[test]
fn every_key_of_the_statistics_has_its_unit_in_its_name() -> Result<()> {
    let sweetspot = at_1_khz();
    recorded(&sweetspot, &["p.folded"])?;
    let text = fs::read_to_string(sweetspot.file("stats.jsonl"))?;
    for line in text.lines() {
        check_figures("", &serde_json::from_str(line)?)?;
    }
    let stats = Stats::parse(&text)?;
    ensure!(!stats.lines.is_empty(), "no decisions");
    ensure!(stats.lines.iter().all(|line| line["type"] == "decision"), "{:?}", stats.lines);
    let summary = stats.summary;
    ensure!(summary.budget_ratio == 0.05 && summary.bound_by == "fixed", "{summary:?}");
    ensure!((summary.rate_hz - 1000.0).abs() < 50.0, "{}", summary.rate_hz);
    ensure!(summary.predicted_rate_hz == 1000.0 && summary.predicted_overhead_us > 0.0, "{summary:?}");
    ensure!(summary.predicted_overhead_ratio > 1e-3 * summary.predicted_overhead_us, "{summary:?}");
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

/// A program beside itself, and beside a shell that has none of its functions.
#[test]
fn what_changed_between_two_profiles_is_told() -> Result<()> {
    let sweetspot = at_1_khz();
    recorded(&sweetspot, &["old.pb.gz"])?;
    let (old, new) = (sweetspot.file("old.pb.gz"), sweetspot.file("new.pb.gz"));
    let count = "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done";
    run(&mut sweetspot.command("record", &["-o", &new, "--", "sh", "-c", count]))?.expect_status(0)?;
    let compare = |new: &str, words: &[&str]| {
        let words = [&["compare", &old, new], words].concat();
        Ok::<_, anyhow::Error>(
            run(Command::new(tests::run::sweetspot()).args(words))?.expect_status(0)?.stdout,
        )
    };
    let same = compare(&old, &[])?;
    ensure!(same.contains("none of ") && same.contains("+0.00") && same.contains("work_a"), "{same}");
    let other: serde_json::Value = serde_json::from_str(&compare(&new, &["--json"])?)?;
    ensure!(other["old"]["tells_of_others"] == true && other["new"]["tells_of_others"] == true, "{other}");
    let functions = other["functions"].as_array().context("functions")?;
    let work = functions.iter().find(|function| function["name"] == "work_a").context("work_a")?;
    ensure!(work["is_changed"] == true && work["new_share"] == 0.0, "{work}");
    ensure!(
        work["change_high"].as_f64() < Some(0.0)
            && work["change"].as_f64() == work["old_share"].as_f64().map(|share| -share),
        "{work}"
    );
    let total = compare(&new, &["--total", "--top", "0"])?;
    ensure!(total.contains("what it called") && !total.contains("--top 0 shows"), "{total}");
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
    let stats = fs::read_to_string(sweetspot.file("stats.jsonl"))?;
    let reported = report("json")?;
    ensure!(Stats::parse(&reported)?.summary.functions.iter().any(|f| f.cpu_s_low.is_some()), "{reported}");
    // To the last digit: nothing is lost on the way through the file.
    ensure!(stats.lines().last() == reported.lines().last(), "{stats}\n{reported}");
    Ok(())
}

/// A blunt goal is soon reached; the profile is there while the command still runs.
#[test]
fn a_command_goes_on_when_the_profile_is_precise() -> Result<()> {
    let sweetspot = Sweetspot::new().options(&["--rate", "5000", "--until-precision", "50%"]);
    let profile = sweetspot.file("p.folded");
    let script = "\"$0\" --cpu 70 --out /dev/null & busy=$!
                  while [ ! -e \"$1\" ] && kill -0 $busy; do sleep 0.5; done
                  kill $busy; [ -e \"$1\" ] && exit 7";
    let mix = program("mix_nofp")?;
    let words = ["-o", &profile, "--stats", &sweetspot.file("stats.jsonl"), "--", "sh", "-c", script];
    let ended = run(sweetspot.command("record", &words).arg(mix).arg(&profile))?.expect_status(7)?;
    ensure!(ended.stderr.contains("the command continues"), "{ended:?}");
    let summary = Stats::parse(&fs::read_to_string(sweetspot.file("stats.jsonl"))?)?.summary;
    ensure!(summary.stopped == "precise" && summary.samples > 100, "{summary:?}");
    Ok(())
}

#[test]
fn attaching_ends_when_the_profile_is_precise() -> Result<()> {
    let sweetspot = Sweetspot::new().options(&["--rate", "5000", "--until-precision", "50%"]);
    let mut target = start(Command::new(program("mix_nofp")?).args(["--cpu", "80", "--out", "/dev/null"]))?;
    let stats = sweetspot.file("stats.jsonl");
    let words = ["--stats", &*stats, "--duration", "80s", &*target.id().to_string()];
    run(&mut sweetspot.command("attach", &words))?.expect_status(0)?;
    ensure!(target.try_wait()?.is_none(), "the target is gone");
    let summary = Stats::parse(&fs::read_to_string(&stats)?)?.summary;
    ensure!(summary.stopped == "precise" && summary.samples > 100, "{summary:?}");
    Ok(())
}

/// What cannot be written is told, and the command is waited for all the same.
#[test]
fn a_command_is_waited_for_though_its_profile_is_lost() -> Result<()> {
    let sweetspot = Sweetspot::new().options(&["--rate", "5000", "--until-precision", "50%"]);
    let (folder, done) = (sweetspot.file("gone"), sweetspot.file("done"));
    fs::create_dir(&folder)?;
    let script = "rmdir \"$1\" && \"$0\" --cpu 6 --out /dev/null && touch \"$2\"";
    let words = ["-o", &format!("{folder}/p.svg"), "--", "sh", "-c", script];
    let mut command = sweetspot.command("record", &words);
    command.arg(program("mix_nofp")?).args([&folder, &done]).env("TMPDIR", sweetspot.path());
    let ended = run(&mut command)?.expect_status(1)?;
    ensure!(ended.stderr.contains("create its folder first"), "{ended:?}");
    ensure!(fs::exists(&done)?, "the command was left behind: {ended:?}");
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

#[test]
fn a_plan_is_drawn_and_has_its_figures_as_json() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("plan.svg");
    let words = [
        "plan",
        "--horizon",
        "300s",
        "--share",
        "0.2",
        "--overhead",
        "250us",
        "--budget",
        "1%",
        "--json",
        "-o",
    ];
    let ended = run(Command::new(sweetspot()).args(words).arg(&file))?.expect_status(0)?;
    let plan: Value = serde_json::from_str(&ended.stdout)?;
    ensure!((plan["optimum_samples"].as_f64().context("a number")? - 17_685.8).abs() < 0.1, "{plan}");
    ensure!(plan["bound_by"] == "budget" && plan["budget_rate_hz"] == 40.0, "{plan}");
    ensure!((plan["anytime_error_ratio"].as_f64().context("a number")? - 1.040).abs() < 1e-3, "{plan}");
    let svg = fs::read_to_string(&file)?;
    ensure!(svg.contains("measured CPU time (s)") && svg.contains("budget of 1%: 40/s"));
    ensure!(fs::read_dir(folder.path())?.count() == 1, "something else was left behind");
    Ok(())
}

/// Numbers of the prediction that have no unit.
const COUNTS: &[&str] =
    &["pid", "threads", "switches", "new_threads", "unseen_threads", "ended_threads", "new_mappings"];

#[test]
fn a_process_is_predicted_in_words_as_a_curve_and_as_json() -> Result<()> {
    if !may_sample()? {
        return Ok(());
    }
    let sweetspot = Sweetspot::new();
    let target = start(Command::new(program("mix_nofp")?).args(["--cpu", "100", "--out", "/dev/null"]))?;
    let (pid, svg) = (target.id().to_string(), sweetspot.file("plan.svg"));
    let words = ["--pid", &pid, "--duration", "200ms"];
    let text = run(&mut sweetspot.command("plan", &words))?.expect_status(0)?.stdout;
    for word in ["mix_nofp", "a sample", "attach", "at any rate", "bound by", "slowdown", "of at most 5%"] {
        ensure!(text.contains(word), "no {word} in:\n{text}");
    }
    let words = [&words[..], &["--rate", "250", "--attach-mode", "task", "--json", "-o", &svg]].concat();
    let json = run(&mut sweetspot.command("plan", &words))?.expect_status(0)?.stdout;
    let plan: Value = serde_json::from_str(&json)?;
    for (key, value) in plan.as_object().context("an object")? {
        let may_miss = value.is_null() && key == "stack_bytes";
        ensure!(may_miss || COUNTS.contains(&&**key) || check_figures(key, value).is_ok(), "{key}: {value}");
    }
    let figure = |key: &str| plan[key].as_f64().with_context(|| format!("{key} in {plan}"));
    ensure!(plan["bound_by"] == "fixed" && plan["attach_mode"] == "task", "{plan}");
    ensure!(figure("predicted_rate_hz")? == 250.0 && figure("predicted_rate_se_hz")? == 0.0, "{plan}");
    // Own time is part of it, so it is more than what the samples cost.
    let of_samples = 250.0 * figure("predicted_overhead_us")? * 1e-6;
    ensure!(figure("predicted_overhead_ratio")? > of_samples, "{plan}");
    ensure!(figure("predicted_overhead_se_us")? > 0.0, "{plan}");
    ensure!(fs::read_to_string(&svg)?.contains("mix_nofp"), "another picture");
    Ok(())
}

/// Runs of 50 ms: too short to judge anything, long enough for every part of it.
#[test]
fn an_evaluation_delivers_a_table_a_chart_and_its_figures() -> Result<()> {
    if !may_sample()? {
        return Ok(());
    }
    let sweetspot = Sweetspot::new();
    let (svg, json) = (sweetspot.file("evaluation.svg"), sweetspot.file("evaluation.json"));
    let words = ["--quick", "--rounds", "1", "--cpu", "50ms", "-o", &svg, "-o", &json];
    let running = tests::run::start(&mut sweetspot.command("evaluate", &words))?;
    let ended = finish_within(running, EVALUATION)?;
    if ended.status == 1 && ended.stderr.contains("on a quieter machine") {
        ensure!(fs::read_dir(sweetspot.path())?.count() == 0, "files without a result");
        return Ok(());
    }
    let ended = ended.expect_status(0)?;
    for word in ["39999/s", "adaptive", "a sample costs", "wanted"] {
        ensure!(ended.stdout.contains(word), "no {word} in:\n{}", ended.stdout);
    }
    ensure!(fs::read_to_string(&svg)?.contains("samples per CPU-second"));
    let found: Value = serde_json::from_slice(&fs::read(&json)?)?;
    ensure!(found["figures"]["cost"]["overhead_us"].is_f64(), "{found}");
    let runs = found["runs"].as_array().context("runs")?;
    ensure!(!runs.is_empty() && runs.iter().all(|run| run["cpu_s"].is_f64()), "{runs:?}");
    let claims = found["claims"].as_array().context("claims")?;
    ensure!(!claims.is_empty() && claims.iter().all(|claim| claim["value_ratio"].is_f64()), "{claims:?}");
    Ok(())
}

#[test]
fn an_evaluation_that_is_stopped_says_so_and_leaves_nothing() -> Result<()> {
    if !may_sample()? {
        return Ok(());
    }
    let sweetspot = Sweetspot::new();
    let temporary = sweetspot.path().join("tmp");
    fs::create_dir(&temporary)?;
    let file = sweetspot.path().join("evaluation.svg");
    let mut evaluate = sweetspot.command("evaluate", &["-o".as_ref(), file.as_os_str()]);
    let running = tests::run::start(evaluate.env("TMPDIR", &temporary))?;
    let files = || fs::read_dir(&temporary).map_or(0, Iterator::count);
    wait_until("a folder for temporary files", || files() > 0)?;
    kill(Pid::from_raw(running.id().try_into()?), Signal::SIGINT)?;
    let ended = finish(running)?.expect_status(130)?;
    ensure!(ended.stderr.lines().count() == 1 && ended.stderr.contains("stopped"), "{ended:?}");
    ensure!(ended.stdout.is_empty() && !file.exists() && files() == 0, "{ended:?}");
    Ok(())
}

/// Whether the kernel lets us sample; says so where it does not.
fn may_sample() -> Result<bool> {
    let may = run(Command::new(sweetspot()).arg("doctor"))?.status == 0;
    if !may {
        eprintln!("skipped: `sweetspot doctor` says what forbids sampling here");
    }
    Ok(may)
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
    ensure!(model.len() == 10, "{model:?}");
    // The kernel's handler is timed where its tracepoints may be read, and tells what else depends on it; a thread that spins may not
    // have found what interrupts it.
    let unsure = ["per_handler_ns", "coldness", "per_interrupt_ns"];
    for (name, cost) in model.iter().filter(|(name, _)| !unsure.contains(&name.as_str())) {
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
    command.env("XDG_CACHE_HOME", sweetspot.path());
    let running = tests::run::start(&mut tests::run::interruptible(&command))?;
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
