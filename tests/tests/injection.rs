//! Attaching by timer signals, live: the library comes into a program that runs, and the program does not notice.

#![allow(clippy::print_stderr, reason = "a test that skips says why")]

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use object::{Object, ObjectSection};
use tests::attempts::attempts;
use tests::checks::{check_truth, check_weight_sum};
use tests::groups::MemoryGroup;
use tests::guards::{Running, is_root};
use tests::host::Holdings;
use tests::programs::{can_build, copy_program, program};
use tests::run::{Ended, Sweetspot, finish, run, start, wait_until};
use tests::stats::Summary;
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

/// At half of what timer signals can give at least, of the CPU time it got: on a busy host that may be little.
fn sampled_at_the_highest_rate(summary: &Summary) -> Result<()> {
    ensure!(summary.samples > 0 && summary.samples as f64 > 125.0 * summary.target_cpu_s, "{summary:?}");
    Ok(())
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
        sampled_at_the_highest_rate(&recorded.stats.summary)?;
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
        let before = Holdings::of(target.pid())?;
        for _ in 0..30 {
            let mut words = sweetspot.outputs();
            words.push(target.pid().to_string());
            let mut profiler = start(&mut sweetspot.command("attach", &words))?;
            thread::sleep(Duration::from_micros(random.u64(20_000..120_000)));
            profiler.kill()?;
            profiler.wait()?;
        }
        // What was left of the last one is gone when its agent has missed us for fifteen seconds, and so are files that nobody
        // can still be about to use.
        thread::sleep(Duration::from_secs(16));
        let mut ended = attach(&sweetspot, target.pid(), 50)?;
        for _ in 0..20 {
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
        ensure!(after.files == before.files, "{before:?} {after:?}");
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
    refused(&filtered, &by_timers(), "has a seccomp filter")?;
    filtered.check_fine()?;
    let partly = Target::start("undisturbed", &["partly"])?; // each thread has its own filters
    refused(&partly, &by_timers(), "has a seccomp filter")?;
    partly.check_fine()?;
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
fn a_thread_that_shuts_itself_in_meanwhile_is_noticed() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    let target = Target::start("undisturbed", &["later"])?;
    let sweetspot = by_timers();
    let during = sweetspot.start_attach(&["--duration", "3s", &target.pid().to_string()])?;
    let recorded = sweetspot.finish(during, None)?;
    let notes = &recorded.stats.summary.notes;
    ensure!(notes.iter().any(|note| note.contains("has installed a seccomp filter")), "{notes:?}");
    target.check_fine().map(drop)
}

/// Our signals, too: who waits for such a one would take it for another.
#[test]
fn a_thread_that_takes_signals_by_itself_gets_none_of_ours() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    let target = Target::start("undisturbed", &["deaf"])?;
    let sweetspot = by_timers();
    let during = sweetspot.start_attach(&["--duration", "3s", &target.pid().to_string()])?;
    let recorded = sweetspot.finish(during, None)?;
    let notes = &recorded.stats.summary.notes;
    ensure!(notes.iter().any(|note| note.contains("block SIGURG")), "{notes:?}");
    target.check_fine().map(drop)
}

/// A signal that a program blocks and reads from a file is its own: none is lost, and none is ours.
#[test]
fn a_program_that_reads_a_signal_of_its_own_loses_none_and_is_sampled() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    let target = Target::start("undisturbed", &["latch"])?;
    let sweetspot = by_timers();
    let during = sweetspot.start_attach(&["--duration", "1s", &target.pid().to_string()])?;
    let recorded = sweetspot.finish(during, None)?;
    sampled_at_the_highest_rate(&recorded.stats.summary)?;
    let sweetspot = by_timers();
    for _ in 0..30 {
        attach(&sweetspot, target.pid(), 30)?.expect_status(0)?;
    }
    target.check_fine().map(drop)
}

/// The agent needs no file once it is attached: there may be no number left for one.
#[test]
fn stacks_are_whole_where_no_file_can_be_opened() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    let mut target = Target::start("undisturbed", &["full"])?;
    let sweetspot = by_timers();
    let during = sweetspot.start_attach(&["--duration", "4s", &target.pid().to_string()])?;
    target.0.stdin.as_mut().context("no input")?.write_all(b"x")?;
    let recorded = sweetspot.finish(during, None)?;
    let all = recorded.folded.weight_of(|stack| stack.has("compute"));
    let whole = recorded.folded.weight_of(|stack| stack.has("compute") && stack.has("computes_when_told"));
    ensure!(all > 0.0 && whole >= 0.99 * all, "{whole} of {all}: {:?}", recorded.stats.summary);
    target.check_fine().map(drop)
}

/// It takes seconds to begin where all CPUs are busy, and nobody may take the profiler for dead meanwhile: agents would begin sparingly.
#[test]
fn threads_that_are_busy_meanwhile_are_sampled_at_the_rate_from_the_start() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    let sweetspot = by_timers();
    let mut target = Target::start("undisturbed", &["told"])?;
    target.0.stdin.as_mut().context("no input")?.write_all(b"x")?;
    let during = sweetspot.start_attach(&["--duration", "3s", &target.pid().to_string()])?;
    let recorded = sweetspot.finish(during, None)?;
    sampled_at_the_highest_rate(&recorded.stats.summary)?;
    target.check_fine().map(drop)
}

/// The memory for samples is the profiler's: who has nearly none left is not ended for it.
#[test]
fn a_target_at_the_limit_of_its_memory_is_sampled_by_ours() -> Result<()> {
    let Some(group) = MemoryGroup::new().filter(|_| may_trace()) else {
        eprintln!("skipped: needs root, and a control group for memory");
        return Ok(());
    };
    let mut target = Target::start("undisturbed", &["told"])?;
    group.take(target.pid())?;
    let sweetspot = by_timers();
    attach(&sweetspot, target.pid(), 50)?.expect_status(0)?; // the library itself is the target's
    group.limit_to_more(1 << 20)?;
    let during = sweetspot.start_attach(&["--duration", "6s", &target.pid().to_string()])?;
    target.0.stdin.as_mut().context("no input")?.write_all(b"x")?;
    let recorded = sweetspot.finish(during, None)?;
    sampled_at_the_highest_rate(&recorded.stats.summary)?;
    target.check_fine().map(drop)
}

/// A sleep that is interrupted goes on, whatever its thread has to wait for meanwhile.
#[test]
fn a_thread_that_sleeps_does_so_while_another_is_kept_in_the_handler() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    for what in ["doze", "poll"] {
        let target = Target::start("undisturbed", &[what])?;
        let sweetspot = by_timers();
        let attached = sweetspot.start_attach(&["--duration", "2s", &target.pid().to_string()])?;
        let tasks = fs::read_dir(format!("/proc/{}/task", target.pid()))?.flatten();
        let tids = tasks.filter_map(|task| task.file_name().to_str()?.parse::<u32>().ok());
        let other = tids.into_iter().find(|&tid| tid != target.pid()).context("no thread")?;
        let kept = keep_in_handler(other)?;
        let recorded = sweetspot.finish(attached, None)?;
        let notes = &recorded.stats.summary.notes;
        let is_told = |note: &String| note.contains("does not come out of the library's handler");
        ensure!(notes.iter().any(is_told), "{what}: {notes:?}");
        ptrace::detach(kept, None)?;
        attach(&by_timers(), target.pid(), 50)?.expect_status(0)?;
        let after = Holdings::of(target.pid())?;
        ensure!(!after.is_sampled() && after.timers == 0, "{what}: {after:?}");
        let told = target.check_fine()?;
        ensure!(told.contains("fine, 0 calls"), "{what}: {told}");
    }
    Ok(())
}

/// Has a thread stand still in the midst of a sample, until it is let go.
fn keep_in_handler(tid: u32) -> Result<Pid> {
    let tid = Pid::from_raw(tid as i32);
    let wait = || waitpid(tid, Some(WaitPidFlag::__WALL)).context("it does not stop");
    ptrace::seize(tid, ptrace::Options::empty())?;
    // It is stopped at each of its timer's signals.
    ensure!(matches!(wait()?, WaitStatus::Stopped(_, Signal::SIGURG)), "another stop");
    ptrace::step(tid, Signal::SIGURG)?;
    wait()?;
    // Past the look at the clock, and short of what it takes to copy some ten thousand words.
    for _ in 0..2000 {
        ptrace::step(tid, None)?;
        wait()?;
    }
    Ok(tid)
}

/// A call that has a timeout is ended by being stopped, and begun again: whether the thread is taken or only looked at.
#[test]
fn calls_with_a_timeout_are_not_interrupted() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    // A timer's signal may end a call of those who are sampled, as any signal does (signal(7)).
    attempts(|| {
        let target = Target::start("undisturbed", &["patient"])?;
        attach(&by_timers(), target.pid(), 50)?.expect_status(0)?;
        let told = target.check_fine()?;
        ensure!(told.contains("fine, 0 calls"), "{told}");
        Ok(())
    })?;
    let target = Target::start("undisturbed", &["aside"])?;
    refused(&target, &by_timers(), "on a stack of its own making")?;
    let told = target.check_fine()?;
    ensure!(told.contains("fine, 0 calls"), "{told}");
    Ok(())
}

#[test]
fn a_thread_without_room_is_not_taken_even_if_nothing_lists_its_guard() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    let target = Target::start("undisturbed", &["cramped"])?;
    refused(&target, &by_timers(), "no thread that could load the library safely")?;
    target.check_fine().map(drop)
}

/// What is unmapped in the child is unmapped in the parent.
#[test]
fn a_child_that_runs_in_its_parents_memory_is_refused() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    let target = Target::start("undisturbed", &["vfork"])?;
    let path = format!("/proc/{0}/task/{0}/children", target.pid());
    wait_until("a child", || fs::read_to_string(&path).is_ok_and(|children| !children.is_empty()))?;
    let child: u32 = fs::read_to_string(&path)?.trim().parse()?;
    let ended = attach(&by_timers(), child, 50)?;
    ensure!(ended.status != 0 && ended.stderr.lines().count() == 1, "{ended:?}");
    ensure!(ended.stderr.contains("runs in the memory of its parent"), "{ended:?}");
    target.check_fine().map(drop)
}

/// Whatever the program has written into the memory of a profiler that was killed, it is given back.
#[test]
fn memory_that_was_written_over_is_given_back_all_the_same() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    let target = Target::start("undisturbed", &["threads"])?;
    let (first, second) = (by_timers(), by_timers());
    attach(&first, target.pid(), 50)?.expect_status(0)?;
    let before = Holdings::of(target.pid())?;
    let mut killed = first.start_attach(&[&target.pid().to_string()])?.running;
    wait_until("memory", || Holdings::of(target.pid()).is_ok_and(|held| held.is_sampled()))?;
    let held = Holdings::of(target.pid())?;
    killed.kill()?;
    killed.wait()?;
    let mapped = held.our_mappings.iter().find(|line| line.contains("/memfd:sweetspot (deleted)"));
    let (start, _) = mapped.and_then(|line| line.split_once('-')).context("there is no memory")?;
    let memory = fs::File::options().write(true).open(format!("/proc/{}/mem", target.pid()))?;
    memory.write_all_at(&[0; 8], u64::from_str_radix(start, 16)?)?;
    attach(&second, target.pid(), 50)?.expect_status(0)?;
    let after = Holdings::of(target.pid())?;
    ensure!(after.our_mappings == before.our_mappings && after.timers == 0, "{before:?} {after:?}");
    target.check_fine().map(drop)
}

/// Threads that `record` has followed know of a place in its memory, where under a later profiler others are.
#[test]
fn what_a_command_is_that_was_begun_by_another_profiler_is_sampled_by_the_next() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    let (first, second) = (by_timers(), by_timers());
    let mut words = first.outputs();
    let target = program("undisturbed")?.to_string_lossy().into_owned();
    words.extend(["--".to_owned(), target, "retire".to_owned()]);
    let mut recorder = first.command("record", &words);
    recorder.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut recording = Running::start(&mut recorder)?;
    let command = || {
        let tasks = fs::read_dir(format!("/proc/{}/task", recording.id())).into_iter().flatten().flatten();
        let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
        let children: Vec<u32> =
            children.flat_map(|pids| pids.split(' ').flat_map(str::parse).collect::<Vec<u32>>()).collect();
        let is_it = |pid: &u32| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "undisturbed")
        };
        children.into_iter().find(is_it)
    };
    wait_until("the command", || command().is_some())?;
    let pid = command().context("the command has ended")?;
    thread::sleep(Duration::from_millis(300)); // it has all its threads
    let input = recording.stdin.take();
    recording.kill()?;
    recording.wait()?;
    thread::sleep(Duration::from_secs(16));
    let during = second.start_attach(&["--duration", "7s", &pid.to_string()])?;
    let recorded = second.finish(during, None)?;
    let summary = &recorded.stats.summary;
    drop(input);
    let maps = format!("/proc/{pid}/maps");
    wait_until("its end", || fs::read_to_string(&maps).unwrap_or_default().is_empty())?;
    ensure!(summary.weight_s / summary.target_cpu_s > 0.8, "{summary:?}");
    Ok(())
}

/// It was stopped for so long that the agent gave it up, and another has come.
#[test]
fn a_profiler_that_was_away_leaves_its_successor_alone() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    attempts(|| {
        let target = Target::start("undisturbed", &["alone"])?;
        let (first, second) = (by_timers(), by_timers());
        let pid = target.pid().to_string();
        let away = first.start_attach(&[&pid])?;
        let profiler = Pid::from_raw(away.running.id() as i32);
        kill(profiler, Signal::SIGSTOP)?;
        thread::sleep(Duration::from_secs(16));
        let during = second.start_attach(&["--duration", "4s", &pid])?;
        kill(profiler, Signal::SIGCONT)?;
        kill(profiler, Signal::SIGINT)?;
        finish(away.running)?;
        let recorded = second.finish(during, None)?;
        let summary = &recorded.stats.summary;
        ensure!(summary.weight_s / summary.target_cpu_s > 0.8, "{summary:?}");
        target.check_fine().map(drop)
    })
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
