//! Samples by timer signals, live: as true as those of perf events, and a good neighbour. Needs no privilege.
//!
//! Where the machine is busy, the budget of a sparing run would be spent on our own wake-ups: the rate is fixed where samples are
//! counted.

#![allow(clippy::print_stderr, reason = "a test that skips says why")]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tests::attempts::{attempts, attempts_of};
use tests::checks::{C, RUST_THREAD, check, check_truth, check_weight_sum, check_weights};
use tests::programs::{program, why_not};
use tests::run::{Ended, Recorded, Sweetspot, run, start, wait_until};
use tests::stats::{Function, Stats};
use tests::truth::Truth;

fn by_timers() -> Sweetspot {
    Sweetspot::new().options(&["--backend", "timer-signal", "--rate", "250", "--confidence", "99.99%"])
}

fn note<'a>(recorded: &'a Recorded, words: &str) -> Option<&'a String> {
    recorded.stats.summary.notes.iter().find(|note| note.contains(words))
}

#[test]
fn the_profile_is_true_and_its_weights_are_cpu_time() -> Result<()> {
    attempts(|| {
        let recorded = by_timers().record("mix_nofp", &["--cpu", "5", "--depth", "50"])?;
        ensure!(recorded.stats.summary.bound_by == "fixed" && note(&recorded, "timer signals").is_some());
        check(&recorded, &C, 50)
    })
}

/// In one table the intervals of the two hold together, so the same program's must meet.
#[test]
fn perf_events_say_the_same_within_the_intervals() -> Result<()> {
    let arguments = ["--cpu", "4", "--depth", "20"];
    let perf = Sweetspot::new().options(&["--backend", "perf", "--rate", "250", "--confidence", "99.99%"]);
    if run(&mut perf.command("record", &["--", "true"]))?.status == 77 {
        eprintln!("skipped: perf events are not permitted here");
        return Ok(());
    }
    let perf = perf.record("mix_nofp", &arguments)?;
    let interval = |function: &Function| function.cpu_s_low.zip(function.cpu_s_high);
    attempts(|| {
        let timers = by_timers().record("mix_nofp", &arguments)?;
        let (perf, timers) = (&perf.stats.summary, &timers.stats.summary);
        let mut compared = 0;
        for ours in &timers.functions {
            let theirs = perf.functions.iter().find(|theirs| theirs.name == ours.name);
            let (Some((low, high)), Some((other_low, other_high))) =
                (interval(ours), theirs.and_then(interval))
            else {
                continue;
            };
            ensure!(low <= other_high && other_low <= high, "{ours:?} and {theirs:?} do not meet");
            compared += 1;
        }
        ensure!(compared >= 4, "only {compared} functions are in both");
        Ok(())
    })
}

/// What a program uses that the library does not come into is not shared out among those that it is in.
#[test]
fn what_nobody_samples_is_told_and_becomes_nobody_elses() -> Result<()> {
    attempts(|| {
        let (alone, sampled) = (program("mix_static_pie")?, program("mix_nofp")?);
        let sweetspot = by_timers();
        let truth = sweetspot.file("truth.json");
        let mut words = sweetspot.outputs();
        words.extend(
            [
                "--",
                "sh",
                "-c",
                "\"$1\" --cpu 4 >/dev/null & \"$2\" --cpu 4 --depth 20 --out \"$3\"; wait",
                "sh",
            ]
            .map(str::to_owned),
        );
        words.extend([
            alone.to_string_lossy().into_owned(),
            sampled.to_string_lossy().into_owned(),
            truth.clone(),
        ]);
        run(&mut sweetspot.command("record", &words))?.expect_status(0)?;
        let summary = Stats::parse(&fs::read_to_string(sweetspot.file("stats.jsonl"))?)?.summary;
        for compared in Truth::read(Path::new(&truth))?.compare(&summary, 4)? {
            ensure!(compared.inside(), "the interval misses the truth: {compared:?}");
        }
        let not_sampled = summary.not_sampled_cpu_s / summary.target_cpu_s;
        ensure!((0.4..0.6).contains(&not_sampled), "{not_sampled} was not sampled: {summary:?}");
        ensure!(summary.notes.iter().any(|note| note.contains("was not sampled")), "{:?}", summary.notes);
        Ok(())
    })
}

/// Under its own number there is somebody else here.
#[test]
fn a_process_in_a_pid_namespace_of_its_own_is_not_taken_for_another() -> Result<()> {
    let in_namespace = ["unshare", "--pid", "--fork"];
    let may = run(Command::new(in_namespace[0]).args(&in_namespace[1..]).arg("true"));
    if !may.is_ok_and(|ended| ended.status == 0) {
        eprintln!("skipped: no PID namespace may be made here");
        return Ok(());
    }
    let sweetspot = by_timers();
    let target = program("mix_nofp")?.to_string_lossy().into_owned();
    let mut words = sweetspot.outputs();
    words.push("--".to_owned());
    words.extend(in_namespace.map(str::to_owned));
    words.extend([target, "--cpu".to_owned(), "1".to_owned()]);
    run(&mut sweetspot.command("record", &words))?.expect_status(0)?;
    let summary = Stats::parse(&fs::read_to_string(sweetspot.file("stats.jsonl"))?)?.summary;
    let said = |words: &str| summary.notes.iter().any(|note| note.contains(words));
    ensure!(said("in PID namespaces of their own") && said("was not sampled"), "{:?}", summary.notes);
    ensure!(summary.functions.iter().all(|one| one.module != "mix_nofp"), "{:?}", summary.functions);
    Ok(())
}

/// Limits are the command's, and ours an error.
#[test]
fn a_limit_on_files_is_told_in_a_line_and_signals_are_the_commands() -> Result<()> {
    let limited = by_timers().through(&["sh", "-c", "ulimit -f 100; exec \"$0\" \"$@\""]);
    let ended = run(&mut limited.command("record", &["--", "true"]))?.expect_status(1)?;
    ensure!(ended.stderr.lines().count() == 1 && ended.stderr.contains("ulimit -f"), "{ended:?}");
    let ignored = run(&mut by_timers().command("record", &["--", "grep", "SigIgn", "/proc/self/status"]))?;
    let mask = ignored.stdout.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = u64::from_str_radix(mask.context("grep has found nothing")?.trim(), 16)?;
    for ours in [Signal::SIGPIPE, Signal::SIGXFSZ] {
        ensure!(mask >> (ours as i32 - 1) & 1 == 0, "{ours} is ignored: {ignored:?}");
    }
    Ok(())
}

#[test]
fn threads_are_sampled_from_their_beginning() -> Result<()> {
    attempts(|| {
        let recorded = by_timers().record("threads", &["--cpu", "4", "--threads", "4", "--depth", "20"])?;
        check_truth(&recorded)?;
        check_weights(&recorded)?;
        let complete = RUST_THREAD.complete_ratio(&recorded.folded, 20);
        ensure!(complete >= 0.995, "{complete} of the stacks reach the thread's start");
        Ok(())
    })
}

#[test]
fn children_of_a_fork_and_the_programs_they_become_are_sampled() -> Result<()> {
    attempts(|| {
        let recorded = by_timers().record("mix_fp", &["--cpu", "6", "--children", "3"])?;
        check_weight_sum(&recorded, 0.05)?;
        check_truth(&recorded)
    })?;
    attempts(|| {
        let next = program("mix_fp")?.to_string_lossy().into_owned();
        let recorded = by_timers().record("mix_nofp", &["--cpu", "1", "--then-exec", &next])?;
        let functions = &recorded.stats.summary.functions;
        let of = |module: &str| {
            functions.iter().filter(|one| one.module == module).map(|one| one.cpu_s).sum::<f64>()
        };
        ensure!(of("mix_nofp") > 0.5 && of("mix_fp") > 0.5, "{functions:?}");
        check_weight_sum(&recorded, 0.05)
    })
}

/// What a command left that was run under sweetspot.
fn neighbour(what: &str) -> Result<(Ended, Stats)> {
    let sweetspot = by_timers();
    let target = program("neighbour")?.to_string_lossy().into_owned();
    let mut words = sweetspot.outputs();
    words.extend(["--".to_owned(), target, what.to_owned()]);
    let ended = run(&mut sweetspot.command("record", &words))?;
    let stats = fs::read_to_string(sweetspot.file("stats.jsonl")).context("no statistics")?;
    Ok((ended, Stats::parse(&stats)?))
}

/// The program checks itself, each time; here it is only seen to that it was sampled meanwhile, which a busy machine may keep us from.
fn undisturbed(what: &str, least_samples: u64) -> Result<Stats> {
    let run = || {
        let (ended, stats) = neighbour(what)?;
        let ended = ended.expect_status(0)?;
        ensure!(ended.stdout.contains("fine"), "{ended:?}");
        Ok(stats)
    };
    attempts_of(run, |stats| {
        let summary = &stats.summary;
        ensure!(summary.samples >= least_samples, "{} samples of `{what}`", summary.samples);
        ensure!(summary.lost == 0, "{} samples were lost", summary.lost);
        Ok(())
    })
}

#[test]
fn errno_is_kept() -> Result<()> {
    undisturbed("errno", 20).map(drop)
}

#[test]
fn interrupted_system_calls_are_restarted() -> Result<()> {
    undisturbed("restart", 10).map(drop)
}

#[test]
fn a_program_has_sigprof_and_its_own_timers_to_itself() -> Result<()> {
    undisturbed("prof", 30).map(drop)
}

#[test]
fn every_signal_is_the_programs_to_handle_ignore_and_reset() -> Result<()> {
    undisturbed("actions", 20).map(drop)
}

#[test]
fn a_thread_that_blocks_every_signal_is_sampled_all_the_same() -> Result<()> {
    let stats = undisturbed("masks", 20)?;
    let seen = stats.summary.weight_s / stats.summary.target_cpu_s;
    ensure!(seen > 0.8, "only {seen} of the CPU time was seen");
    Ok(())
}

#[test]
fn every_signal_is_the_programs_by_the_calls_of_system_v_too() -> Result<()> {
    undisturbed("sysv", 20).map(drop)
}

/// Three quarters of the time; by its own clock.
#[test]
fn a_handler_that_blocks_every_signal_has_its_own_time() -> Result<()> {
    let stats = undisturbed("inside", 30)?;
    let functions = stats.summary.functions;
    let inside: f64 = functions.iter().filter(|f| f.name == "in_handler").map(|f| f.share).sum();
    ensure!((inside - 0.75).abs() < 0.15, "{inside} of the time in the handler: {functions:?}");
    Ok(())
}

/// On a stack of its own, behind which there is no memory.
#[test]
fn a_handler_on_its_own_stack_is_sampled_there() -> Result<()> {
    let stats = undisturbed("altstack", 20)?;
    ensure!(stats.summary.truncated > 0, "none of {} samples was on it", stats.summary.samples);
    Ok(())
}

#[test]
fn children_of_every_kind_come_to_their_end() -> Result<()> {
    undisturbed("children", 1).map(drop)
}

/// Ended by a return, by itself and by others; hundreds at a time.
#[test]
fn threads_end_as_they_would() -> Result<()> {
    let stats = undisturbed("threads", 1)?;
    let notes = &stats.summary.notes;
    ensure!(!notes.iter().any(|note| note.contains("were not sampled")), "{notes:?}");
    Ok(())
}

#[test]
fn threads_of_c11_are_sampled_and_have_their_results() -> Result<()> {
    let stats = undisturbed("c11", 100)?;
    let seen = stats.summary.weight_s / stats.summary.target_cpu_s;
    ensure!(seen > 0.8, "only {seen} of the CPU time was seen");
    Ok(())
}

/// It is left alone, and told of.
#[test]
fn a_thread_that_is_made_past_the_c_library_is_told_of() -> Result<()> {
    let stats = undisturbed("cloned", 100)?;
    let notes = &stats.summary.notes;
    ensure!(notes.iter().any(|note| note.contains("created without the C library")), "{notes:?}");
    Ok(())
}

/// On a stack that the C library knows nothing of, to its end and no further.
#[test]
fn a_coroutine_is_sampled_to_its_beginning() -> Result<()> {
    let sweetspot = by_timers();
    let target = program("neighbour")?.to_string_lossy().into_owned();
    let mut words = sweetspot.outputs();
    words.extend(["--".to_owned(), target, "coroutine".to_owned()]);
    run(&mut sweetspot.command("record", &words))?.expect_status(0)?;
    let folded = fs::read_to_string(sweetspot.file("profile.folded"))?;
    let samples =
        |line: &str| line.rsplit_once(' ').and_then(|(_, count)| count.parse::<f64>().ok()).unwrap_or(0.0);
    let all: f64 = folded.lines().map(samples).sum();
    let whole: f64 =
        folded.lines().filter(|line| line.contains("coroutine_begins;below_coroutine;")).map(samples).sum();
    ensure!(whole > 0.9 * all && all > 0.0, "{whole} of {all}: {folded}");
    Ok(())
}

/// Whatever a program writes into the memory that it shares with us: it comes to its end, we come to ours, and say what is wrong.
#[test]
fn a_program_that_lies_harms_its_profile_alone() -> Result<()> {
    for what in ["head", "slots", "rings", "all", "records", "flood"] {
        let sweetspot = by_timers();
        let target = program("scribble")?.to_string_lossy().into_owned();
        let mut words = sweetspot.outputs();
        words.extend(["--".to_owned(), target, what.to_owned(), "1.5".to_owned()]);
        let ended = run(&mut sweetspot.command("record", &words))?.expect_status(0)?;
        ensure!(ended.stdout.contains("fine") && !ended.stderr.contains("panicked"), "{what}: {ended:?}");
        let stats =
            Stats::parse(&fs::read_to_string(sweetspot.file("stats.jsonl")).context("no statistics")?)?;
        let said = |words: &str| stats.summary.notes.iter().any(|note| note.contains(words));
        ensure!(what != "head" || said("was overwritten"), "{what}: {:?}", stats.summary.notes);
    }
    Ok(())
}

#[test]
fn threads_outlive_the_first_one() -> Result<()> {
    undisturbed("exits", 10).map(drop)
}

#[test]
fn a_program_that_shuts_itself_in_is_surprised_by_nothing() -> Result<()> {
    for (what, samples) in [("strict", 10), ("stricter", 10), ("filtered", 60), ("closed", 10)] {
        let stats = undisturbed(what, samples)?;
        let notes = &stats.summary.notes;
        ensure!(notes.iter().any(|note| note.contains("no timer could be created")), "{notes:?}");
    }
    Ok(())
}

/// As in a container: no capability that matters is needed, and no flag.
#[test]
fn where_perf_events_are_refused_record_needs_no_flag_and_says_so() -> Result<()> {
    let deny = program("deny_perf")?;
    // Without any capability, where such a namespace may be made.
    let alone = run(Command::new("unshare").args(["--user", "true"])).is_ok_and(|ended| ended.status == 0);
    let deny = deny.to_string_lossy();
    let through: Vec<&str> = if alone { vec!["unshare", "--user", &deny] } else { vec![&deny] };
    attempts(|| {
        let refused = Sweetspot::new().through(&through).options(&["--rate", "250"]);
        let recorded = refused.record("mix_nofp", &["--cpu", "3"])?;
        let said = note(&recorded, "because perf events are not permitted").context("no note says so")?;
        ensure!(said.contains("per CPU-second"), "{said}");
        check_weight_sum(&recorded, 0.05)
    })?;
    let doctor = Sweetspot::new().through(&through);
    let ended = run(&mut doctor.command("doctor", &[] as &[&str]))?;
    ensure!(ended.stdout.contains("timer signals"), "{ended:?}");
    Ok(())
}

/// A command by itself and under sweetspot: both have to say and return the same. The CPU time in the profile (s).
fn burnt_as_without_us(words: &[&str], variable: Option<(&str, &str)>) -> Result<f64> {
    let starts = program("starts")?;
    let folder = starts.parent().context("no folder")?.to_string_lossy().into_owned();
    let path = format!("{folder}:{}", std::env::var("PATH")?);
    let mut variables = vec![("PATH", path.as_str())];
    variables.extend(variable);
    let alone = run(Command::new(words[0]).args(&words[1..]).envs(variables.iter().copied()))?;
    let sweetspot = by_timers();
    let mut all = sweetspot.outputs();
    all.extend(["-q", "--"].iter().chain(words).map(ToString::to_string));
    let ended = run(sweetspot.command("record", &all).envs(variables.iter().copied()))?;
    ensure!(ended.status == alone.status, "{words:?}: {} and not {}", ended.status, alone.status);
    ensure!(ended.stderr == alone.stderr, "{words:?}: {} and not {}", ended.stderr, alone.stderr);
    // The cache is another one under our tests.
    let variables = |ended: &Ended| {
        let lines = ended.stdout.lines().filter(|line| !line.starts_with("XDG_CACHE_HOME="));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let (found, would_be) = (variables(&ended), variables(&alone));
    let differs = found.iter().zip(&would_be).find(|(one, other)| one != other);
    ensure!(found.len() == would_be.len() && differs.is_none(), "{words:?}: {differs:?}");
    let stats = Stats::parse(&fs::read_to_string(sweetspot.file("stats.jsonl")).context("no statistics")?)?;
    Ok(stats.summary.weight_s)
}

/// Of .3 s that it burns: threads are sampled at the kernel's ticks.
const MOST_OF_IT_S: f64 = 0.15;

/// The same of a command that is sampled, each time; that most of its time was seen may take some, on a busy machine.
fn burnt_and_seen(words: &[&str], variable: Option<(&str, &str)>) -> Result<()> {
    let run = || burnt_as_without_us(words, variable);
    let is_seen = |burnt_s: &f64| {
        ensure!(*burnt_s > MOST_OF_IT_S, "{words:?}: {burnt_s} s were seen");
        Ok(())
    };
    attempts_of(run, is_seen).map(drop)
}

#[test]
fn what_a_program_starts_is_sampled_and_finds_the_environment_as_it_would() -> Result<()> {
    let ways = [
        "execl",
        "execl-many",
        "execle",
        "execlp",
        "execv",
        "execvp",
        "execve",
        "vfork",
        "cleared",
        "fexecve",
        "spawn",
        "spawnp",
        "system",
        "popen",
    ];
    let starts = program("starts")?.to_string_lossy().into_owned();
    for way in ways {
        burnt_and_seen(&[&starts, way, &starts], None)?;
    }
    Ok(())
}

/// What minds a preloaded library, or cannot have one, runs as it would without.
#[test]
fn programs_that_mind_a_preloaded_library_run_as_they_would() -> Result<()> {
    let starts = program("starts")?.to_string_lossy().into_owned();
    for (name, is_sampled) in
        [("starts_static", false), ("starts_musl", false), ("starts_asan", true), ("starts_tsan", true)]
    {
        if let Some(why) = why_not(name) {
            eprintln!("skipped: {why}");
            continue;
        }
        let other = program(name)?.to_string_lossy().into_owned();
        if is_sampled {
            burnt_and_seen(&[&starts, "execve", &other], None)?;
            burnt_and_seen(&[&other, "burn"], None)?;
        } else {
            burnt_as_without_us(&[&starts, "execve", &other], None)?;
        }
    }
    Ok(())
}

/// The shell is sampled, and finds the library in the environment of the whole program.
#[test]
fn what_is_started_while_another_thread_waits_for_a_shell_finds_the_environment_as_it_would() -> Result<()> {
    if let Some(why) = why_not("starts_static") {
        eprintln!("skipped: {why}");
        return Ok(());
    }
    let [starts, other] = [program("starts")?, program("starts_static")?];
    let (starts, other) = (starts.to_string_lossy(), other.to_string_lossy());
    for way in ["beside", "beside-setenv", "beside-fork"] {
        burnt_as_without_us(&[&starts, way, &other], None)?;
    }
    Ok(())
}

#[test]
fn a_library_that_is_preloaded_anyway_stays_before_ours_and_is_all_that_a_program_finds() -> Result<()> {
    let own = program("libplugin.so")?.to_string_lossy().into_owned();
    let starts = program("starts")?.to_string_lossy().into_owned();
    for words in [&[starts.as_str(), "burn"][..], &[&starts, "execve", &starts]] {
        burnt_and_seen(words, Some(("LD_PRELOAD", &own)))?;
    }
    Ok(())
}

#[test]
fn what_nothing_can_be_preloaded_into_is_refused_in_a_line() -> Result<()> {
    let target = program("mix_static_pie")?;
    let target = target.to_string_lossy();
    let ended = run(&mut by_timers().command("record", &["--", &target, "--cpu", "1"]))?.expect_status(77)?;
    let lines = ended.stderr.lines().count();
    ensure!(lines == 1 && ended.stderr.contains("is linked statically"), "{ended:?}");
    Ok(())
}

/// Fifteen seconds without a sign of life, and then a CPU-second to a sample, on a busy machine.
const TO_BE_LEFT: Duration = Duration::from_secs(45);

fn has_timers(pid: u32) -> Result<bool> {
    Ok(fs::read_to_string(format!("/proc/{pid}/timers"))?.contains("ID:"))
}

/// The target goes on, and in some seconds none of its threads has a timer of ours.
#[test]
fn a_profiler_that_is_killed_leaves_its_target_alone() -> Result<()> {
    leaves_alone(&["spin", "600"])
}

/// Also where it has shut itself in behind a filter that lets timers be stopped.
#[test]
fn a_profiler_that_is_killed_leaves_a_target_alone_whose_filter_minds_nothing() -> Result<()> {
    leaves_alone(&["open"])
}

fn leaves_alone(what: &[&str]) -> Result<()> {
    if !Path::new("/proc/self/timers").exists() {
        eprintln!("skipped: this kernel does not list timers (CONFIG_CHECKPOINT_RESTORE)");
        return Ok(());
    }
    let sweetspot = by_timers();
    let target = program("neighbour")?.to_string_lossy().into_owned();
    let mut words = sweetspot.outputs();
    words.extend(["--", "sh", "-c", "echo $$; exec \"$@\"", "sh", &target].map(str::to_owned));
    words.extend(what.iter().map(ToString::to_string));
    let mut profiler = start(&mut sweetspot.command("record", &words))?;
    let mut line = String::new();
    let said = profiler.stdout.take().context("no output")?;
    std::io::BufRead::read_line(&mut std::io::BufReader::new(said), &mut line)?;
    let pid: u32 = line.trim().parse()?;
    let target = TargetEnds(Pid::from_raw(pid as i32));
    wait_until("a timer", || has_timers(pid).unwrap_or(false))?;
    thread::sleep(Duration::from_secs(1)); // it has shut itself in
    ensure!(has_timers(pid)?, "it is not sampled any more");
    profiler.kill()?;
    profiler.wait()?;
    let killed = Instant::now();
    wait_until("no timer", || has_timers(pid).is_ok_and(|has| !has) || killed.elapsed() > TO_BE_LEFT)?;
    ensure!(!has_timers(pid)?, "there is a timer after {TO_BE_LEFT:?}");
    let state = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    ensure!(!state.contains(") Z "), "the target has ended: {state}");
    drop(target);
    Ok(())
}

/// Ends a process that is no child of ours, also when a check fails.
struct TargetEnds(Pid);

impl Drop for TargetEnds {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGKILL); // it may be gone
    }
}

/// What is preloaded already stays, and an agent without a profiler does nothing.
#[test]
fn without_a_profiler_the_agent_is_not_there() -> Result<()> {
    let library = tests::run::sweetspot().with_file_name("libsweetspot_agent.so");
    ensure!(library.is_file(), "{} was not built", library.display());
    for place in ["", "/proc/self/fd/77", "/etc/passwd", "/dev/zero"] {
        let mut alone = Command::new(program("neighbour")?);
        let ended = run(alone.arg("threads").env("LD_PRELOAD", &library).env("SWEETSPOT_AGENT", place))?;
        ended.expect_status(0)?;
    }
    Ok(())
}
