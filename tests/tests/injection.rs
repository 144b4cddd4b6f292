//! Attaching by timer signals, live: the library comes into a program that runs, and the program does not notice.

#![allow(clippy::print_stderr, reason = "a test that skips says why")]

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use object::{Object, ObjectSection};
use tests::attempts::attempts;
use tests::checks::{check_truth, check_weight_sum};
use tests::guards::{Running, is_root};
use tests::host::Holdings;
use tests::programs::{can_build, copy_program, program};
use tests::run::{Ended, Sweetspot, finish, run, start, wait_until};
use tests::truth::Truth;

fn by_timers() -> Sweetspot {
    Sweetspot::new().options(&["--backend", "timer-signal", "--rate", "250", "--confidence", "99.99%"])
}

/// A program that waits for its input to end.
struct Target(Running);

impl Target {
    fn start(name: &str, arguments: &[&str]) -> Result<Target> {
        let mut command = Command::new(program(name)?);
        let command =
            command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let target = Target(Running::start(command)?);
        thread::sleep(Duration::from_millis(50)); // it is past its beginning, where nothing is loaded yet
        Ok(target)
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    /// It ends well, and says so.
    fn check_fine(mut self) -> Result<String> {
        drop(self.0.stdin.take());
        let ended = finish(self.0)?.expect_status(0)?;
        ensure!(ended.stdout.contains("fine"), "{ended:?}");
        Ok(ended.stdout)
    }
}

/// Attaches for some milliseconds.
fn attach(sweetspot: &Sweetspot, pid: u32, ms: u32) -> Result<Ended> {
    let mut words = sweetspot.outputs();
    words.extend(["--duration".to_owned(), format!("{ms}ms"), pid.to_string()]);
    run(&mut sweetspot.command("attach", &words))
}

fn may_trace() -> bool {
    let may = is_root() && cfg!(target_arch = "x86_64");
    if !may {
        eprintln!("skipped: needs root, on x86-64");
    }
    may
}

#[test]
fn a_running_program_is_sampled_and_left_as_it_was() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    for what in ["threads", "alone"] {
        let target = Target::start("undisturbed", &[what])?;
        let sweetspot = by_timers();
        attach(&sweetspot, target.pid(), 100)?.expect_status(0)?;
        let before = Holdings::of(target.pid())?;
        ensure!(before.is_host() && !before.is_sampled() && before.timers == 0, "{before:?}");
        let during = sweetspot.start_attach(&["--duration", "2s", &target.pid().to_string()])?;
        wait_until("samples", || Holdings::of(target.pid()).is_ok_and(|held| held.is_sampled()))?;
        let recorded = sweetspot.finish(during, None)?;
        ensure!(recorded.stats.summary.samples > 50, "{:?}", recorded.stats.summary);
        ensure!(recorded.folded.weight_of(|stack| stack.has("compute")) > 0.0, "no names");
        let after = Holdings::of(target.pid())?;
        ensure!(after.files == before.files && after.handled == before.handled, "{before:?} {after:?}");
        ensure!(after.our_mappings == before.our_mappings && after.timers == 0, "{before:?} {after:?}");
        target.check_fine()?;
    }
    Ok(())
}

/// The same rooms of the truth as under `record`.
#[test]
fn the_profile_is_true() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    attempts(|| {
        let sweetspot = by_timers();
        let truth = sweetspot.file("truth.json");
        let mut command = Command::new(program("mix_nofp")?);
        let command = command.args(["--cpu", "6", "--depth", "20", "--out", &truth]);
        let running = start(command)?;
        let attached = sweetspot.start_attach(&[&running.id().to_string()])?;
        finish(running)?.expect_status(0)?;
        let truth = Truth::read(truth.as_ref())?;
        let recorded = sweetspot.finish(attached, Some(truth))?;
        check_truth(&recorded)?;
        let weight = recorded.stats.summary.weight_s / recorded.stats.summary.target_cpu_s;
        ensure!((weight - 1.0).abs() < 0.05, "the weights are {weight} of the CPU time");
        Ok(())
    })
}

/// Of threads that begin while it is attached: nobody tells the agent of them.
#[test]
fn threads_that_come_later_are_sampled() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    attempts(|| {
        let sweetspot = by_timers();
        let mut command = Command::new(program("neighbour")?);
        let running = start(command.arg("late"))?;
        let attached = sweetspot.start_attach(&[&running.id().to_string()])?;
        finish(running)?.expect_status(0)?;
        let recorded = sweetspot.finish(attached, None)?;
        let summary = &recorded.stats.summary;
        ensure!(summary.weight_s / summary.target_cpu_s > 0.8, "{summary:?}");
        check_weight_sum(&recorded, 0.2)
    })
}

#[test]
fn it_comes_and_goes_many_times_and_nobody_notices() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    for what in ["threads", "alone"] {
        let target = Target::start("undisturbed", &[what])?;
        let sweetspot = by_timers();
        attach(&sweetspot, target.pid(), 50)?.expect_status(0)?;
        let before = Holdings::of(target.pid())?;
        for _ in 0..20 {
            attach(&sweetspot, target.pid(), 50)?.expect_status(0)?;
        }
        let after = Holdings::of(target.pid())?;
        ensure!(
            after.files == before.files && after.our_mappings == before.our_mappings,
            "{before:?} {after:?}"
        );
        target.check_fine()?;
    }
    Ok(())
}

/// At any moment of the injection: the first ones before the library is there, later ones while it is asked.
#[test]
fn a_profiler_that_is_killed_in_the_midst_of_it_harms_nobody() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    let mut random = fastrand::Rng::with_seed(7);
    for what in ["threads", "alone"] {
        let target = Target::start("undisturbed", &[what])?;
        let sweetspot = by_timers();
        for _ in 0..30 {
            let mut words = sweetspot.outputs();
            words.push(target.pid().to_string());
            let mut profiler = start(&mut sweetspot.command("attach", &words))?;
            thread::sleep(Duration::from_micros(random.u64(20_000..120_000)));
            profiler.kill()?;
            profiler.wait()?;
        }
        // What was left of the last one is gone when its agent has missed us for five seconds.
        let mut ended = attach(&sweetspot, target.pid(), 50)?;
        for _ in 0..10 {
            if ended.status == 0 {
                break;
            }
            ensure!(ended.stderr.contains("another sweetspot"), "{ended:?}");
            thread::sleep(Duration::from_secs(1));
            ended = attach(&sweetspot, target.pid(), 50)?;
        }
        ended.expect_status(0)?;
        let after = Holdings::of(target.pid())?;
        ensure!(!after.is_sampled() && after.timers == 0, "{after:?}");
        target.check_fine()?;
    }
    Ok(())
}

#[test]
fn a_target_that_is_killed_in_the_midst_of_it_ends_the_run_with_a_line() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    let mut random = fastrand::Rng::with_seed(8);
    for round in 0..20 {
        let mut target = Target::start("undisturbed", &["threads"])?;
        let sweetspot = by_timers();
        let mut words = sweetspot.outputs();
        words.push(target.pid().to_string());
        let profiler = start(&mut sweetspot.command("attach", &words))?;
        thread::sleep(Duration::from_micros(random.u64(20_000..120_000)));
        target.0.kill()?;
        target.0.wait()?;
        let ended = finish(profiler)?;
        let lines = ended.stderr.lines().filter(|line| !line.is_empty()).count();
        ensure!(ended.status == 0 || lines == 1, "round {round}: {ended:?}");
        ensure!(!ended.stderr.contains("panicked"), "round {round}: {ended:?}");
    }
    Ok(())
}

#[test]
fn a_target_that_becomes_another_program_meanwhile_is_not_harmed() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    let target = Target::start("undisturbed", &["exec"])?;
    let sweetspot = by_timers();
    for _ in 0..20 {
        let ended = attach(&sweetspot, target.pid(), 20)?;
        ensure!(!ended.stderr.contains("panicked"), "{ended:?}");
    }
    target.check_fine().map(drop)
}

/// One line, that says this; and the target is none the worse.
fn refused(target: &Target, sweetspot: &Sweetspot, says: &str) -> Result<()> {
    let before = Holdings::of(target.pid())?;
    let ended = attach(sweetspot, target.pid(), 50)?;
    ensure!(ended.status != 0 && ended.stderr.lines().count() == 1, "{ended:?}");
    ensure!(ended.stderr.contains(says), "{ended:?} instead of `{says}`");
    let after = Holdings::of(target.pid())?;
    ensure!(after.files == before.files && after.our_mappings == before.our_mappings, "{before:?} {after:?}");
    ensure!(after.handled == before.handled && after.timers == before.timers, "{before:?} {after:?}");
    Ok(())
}

#[test]
fn whom_nothing_can_be_loaded_into_is_refused_in_a_line() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    let cpu = ["--cpu", "20"];
    refused(&Target::start("mix_static_pie", &cpu)?, &by_timers(), "is linked statically")?;
    if can_build("mix_musl_dynamic") {
        refused(&Target::start("mix_musl_dynamic", &cpu)?, &by_timers(), "uses musl")?;
    }
    let filtered = Target::start("undisturbed", &["filtered"])?;
    refused(&filtered, &by_timers(), "shut itself in (seccomp)")?;
    filtered.check_fine()?;
    let handled = Target::start("undisturbed", &["handled"])?;
    let ended = attach(&by_timers(), handled.pid(), 50)?;
    ensure!(
        ended.stderr.lines().count() == 1 && ended.stderr.contains("handles SIGURG and SIGWINCH"),
        "{ended:?}"
    );
    handled.check_fine()?;
    Ok(())
}

#[test]
fn one_that_is_stopped_or_traced_is_refused() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    let target = Target::start("undisturbed", &["threads"])?;
    let pid = Pid::from_raw(target.pid() as i32);
    kill(pid, Signal::SIGSTOP)?;
    wait_until("a stop", || {
        fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") T "))
    })?;
    refused(&target, &by_timers(), "is stopped")?;
    kill(pid, Signal::SIGCONT)?;
    ptrace::seize(pid, ptrace::Options::empty())?;
    refused(&target, &by_timers(), "is traced by process")?;
    ptrace::interrupt(pid)?;
    nix::sys::wait::waitpid(pid, Some(nix::sys::wait::WaitPidFlag::__WALL))?;
    ptrace::detach(pid, None)?;
    attach(&by_timers(), target.pid(), 50)?.expect_status(0)?;
    target.check_fine().map(drop)
}

#[test]
fn one_of_another_user_or_with_anothers_rights_is_refused() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    let target = Target::start("undisturbed", &["threads"])?;
    let ended = attach(&by_timers().unprivileged()?, target.pid(), 50)?;
    ensure!(ended.status == 77 && ended.stderr.lines().count() == 1, "{ended:?}");
    target.check_fine()?;
    let mut command = Command::new("setpriv");
    command.arg("--ruid=65534").arg(program("undisturbed")?).arg("threads");
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let other = Target(Running::start(command)?);
    thread::sleep(Duration::from_millis(100));
    refused(&other, &by_timers(), "rights of another user")?;
    other.check_fine().map(drop)
}

#[test]
fn an_agent_of_another_version_is_left_alone() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    let target = Target::start("undisturbed", &["threads"])?;
    attach(&by_timers(), target.pid(), 50)?.expect_status(0)?;
    let other = tempfile::tempdir()?;
    let binary = tests::run::sweetspot();
    copy_program(binary, &other.path().join("sweetspot"))?;
    let mut agent = fs::read(binary.with_file_name("libsweetspot_agent.so"))?;
    let code = object::File::parse(&*agent)?.section_by_name(".text").and_then(|text| text.file_range());
    let (start, length) = code.context("no code")?;
    agent[(start + length - 1) as usize] ^= 1;
    fs::write(other.path().join("libsweetspot_agent.so"), agent)?;
    let newer = by_timers().with_binary(other.path().join("sweetspot"));
    refused(&target, &newer, "another version of sweetspot")?;
    target.check_fine().map(drop)
}

#[test]
fn two_at_a_time_are_one_too_many() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    let target = Target::start("undisturbed", &["threads"])?;
    let first = by_timers();
    let attached = first.start_attach(&["--duration", "2s", &target.pid().to_string()])?;
    let ended = attach(&by_timers(), target.pid(), 50)?;
    ensure!(ended.status == 1 && ended.stderr.contains("by another sweetspot already"), "{ended:?}");
    first.finish(attached, None)?;
    target.check_fine().map(drop)
}

/// Nobody's process is changed who was not asked.
#[test]
fn where_perf_events_are_refused_attach_says_what_it_could_do_and_does_nothing() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    let deny = program("deny_perf")?;
    let target = Target::start("undisturbed", &["threads"])?;
    let unasked = Sweetspot::new().through(&[&deny.to_string_lossy()]);
    let ended = attach(&unasked, target.pid(), 50)?;
    ensure!(ended.status == 77 && ended.stderr.lines().count() == 1, "{ended:?}");
    ensure!(ended.stderr.contains("--backend timer-signal would load"), "{ended:?}");
    ensure!(!Holdings::of(target.pid())?.is_host(), "something was loaded");
    let asked = by_timers().through(&[&deny.to_string_lossy()]);
    attach(&asked, target.pid(), 100)?.expect_status(0)?;
    target.check_fine().map(drop)
}
