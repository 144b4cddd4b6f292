//! Attaching by timer signals, live: the library comes into a program that runs, and the program does not notice.

#![allow(clippy::print_stderr, reason = "a test that skips says why")]

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tests::attempts::attempts;
use tests::checks::{check_truth, check_weight_sum};
use tests::groups::MemoryGroup;
use tests::guards::{Running, may_trace};
use tests::host::Holdings;
use tests::measured::cpu_s;
use tests::programs::program;
use tests::run::{Ended, Recorded, Sweetspot, finish, run, start, sweetspot, wait_until, wait_until_ready};
use tests::stats::Summary;
use tests::truth::Truth;

mod refusals;

use refusals::refused;

fn by_timers() -> Sweetspot {
    Sweetspot::new().options(&["--backend", "timer-signal", "--rate", "250", "--confidence", "99.99%"])
}

/// A program that waits for its input to end.
struct Target(Running);

impl Target {
    /// The `undisturbed` program, past its beginning, where nothing is loaded yet.
    fn start(what: &str) -> Result<Target> {
        Target::ready(Command::new(program("undisturbed")?).arg(what))
    }

    /// A command that says that it is ready.
    fn ready(command: &mut Command) -> Result<Target> {
        let mut target = Target::piped(command)?;
        wait_until_ready(&mut target.0)?;
        Ok(target)
    }

    /// A program that computes, and says nothing of itself.
    fn busy(name: &str) -> Result<Target> {
        let target = Target::piped(Command::new(program(name)?).args(["--cpu", "20"]))?;
        wait_until("its work", || cpu_s(target.pid()).is_ok_and(|used_s| used_s > 0.05))?;
        Ok(target)
    }

    fn piped(command: &mut Command) -> Result<Target> {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(Target(Running::start(command)?))
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    /// A byte of input.
    fn tell(&mut self) -> Result<()> {
        Ok(self.0.stdin.as_mut().context("no input")?.write_all(b"x")?)
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

/// Starts a target, attaches for a time, and does something once that has begun. The target is sampled at half of what timer signals can
/// give at least, of the CPU time it got. On a busy host that may be little, or it takes too long to load the library: so it is tried
/// again with another target. None may come to harm.
fn sampled_at_the_highest_rate(
    mut start: impl FnMut() -> Result<Target>,
    duration: &str,
    mut meanwhile: impl FnMut(&mut Target) -> Result<()>,
) -> Result<(Target, Recorded)> {
    let mut sampled = |target: &mut Target| -> Result<Recorded> {
        let sweetspot = by_timers();
        let during = sweetspot.start_attach(&["--duration", duration, &target.pid().to_string()])?;
        meanwhile(target)?;
        let recorded = sweetspot.finish(during, None)?;
        let summary = &recorded.stats.summary;
        ensure!(summary.samples > 0 && summary.samples as f64 > 125.0 * summary.target_cpu_s, "{summary:?}");
        Ok(recorded)
    };
    let mut outcome = Err(anyhow!("no attempt"));
    attempts(|| {
        let mut target = start()?;
        match sampled(&mut target) {
            Ok(recorded) => outcome = Ok((target, recorded)),
            Err(error) => match target.check_fine() {
                Ok(_) => return Err(error),
                Err(harm) => outcome = Err(harm.context(error)),
            },
        }
        Ok(())
    })?;
    outcome
}

fn most_is_sampled(summary: &Summary) -> Result<()> {
    ensure!(summary.weight_s / summary.target_cpu_s > 0.8, "{summary:?}");
    Ok(())
}

#[test]
fn a_running_program_is_sampled_and_left_as_it_was() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    for what in ["threads", "alone"] {
        let mut before = Holdings::default();
        let start = || {
            let target = Target::start(what)?;
            attach(&by_timers(), target.pid(), 100)?.expect_status(0)?;
            before = Holdings::of(target.pid())?;
            Ok(target)
        };
        let (target, recorded) = sampled_at_the_highest_rate(start, "2s", |target| {
            wait_until("samples", || Holdings::of(target.pid()).is_ok_and(|held| held.is_sampled()))
        })?;
        ensure!(before.is_host() && !before.is_sampled() && before.timers == 0, "{before:?}");
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
        let target = Target::start(what)?;
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
    let mut targets = Vec::new();
    for what in ["threads", "alone"] {
        let target = Target::start(what)?;
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
        targets.push((target, sweetspot, before));
    }
    // What was left of the last one is gone when its agent has missed us for fifteen seconds, and so are files that nobody
    // can still be about to use.
    thread::sleep(Duration::from_secs(16));
    for (target, sweetspot, before) in targets {
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
        let mut target = Target::start("threads")?;
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
    let target = Target::start("exec")?;
    let sweetspot = by_timers();
    let mut ends = Vec::new();
    for _ in 0..20 {
        let ended = attach(&sweetspot, target.pid(), 20)?;
        ensure!(!ended.stderr.contains("panicked"), "{ended:?}");
        ends.push(ended);
    }
    ensure!(ends.iter().any(|ended| ended.status == 0), "it was never attached to: {ends:?}");
    target.check_fine().map(drop)
}

#[test]
fn a_thread_that_shuts_itself_in_meanwhile_is_noticed() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    let mut target = Target::start("later")?;
    let sweetspot = by_timers();
    let during = sweetspot.start_attach(&["--duration", "5s", &target.pid().to_string()])?;
    target.tell()?;
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
    let mut target = Target::start("deaf")?;
    let sweetspot = by_timers();
    let during = sweetspot.start_attach(&["--duration", "5s", &target.pid().to_string()])?;
    target.tell()?;
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
    let (target, _) = sampled_at_the_highest_rate(|| Target::start("latch"), "1s", |_| Ok(()))?;
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
    let mut target = Target::start("full")?;
    let sweetspot = by_timers();
    let during = sweetspot.start_attach(&["--duration", "4s", &target.pid().to_string()])?;
    target.tell()?;
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
    sweetspot(); // is built before anybody computes
    let start = || {
        let mut target = Target::start("told")?;
        target.tell()?;
        Ok(target)
    };
    let (target, _) = sampled_at_the_highest_rate(start, "3s", |_| Ok(()))?;
    target.check_fine().map(drop)
}

/// The memory for samples is the profiler's: who has nearly none left is not ended for it.
#[test]
fn a_target_at_the_limit_of_its_memory_is_sampled_by_ours() -> Result<()> {
    let Some(group) = MemoryGroup::new().filter(|_| may_trace()) else {
        eprintln!("skipped: needs root, and a control group for memory");
        return Ok(());
    };
    let start = || {
        let target = Target::start("told")?;
        group.limit_to_more(1 << 30)?;
        group.take(target.pid())?;
        attach(&by_timers(), target.pid(), 50)?.expect_status(0)?; // the library itself is the target's
        group.limit_to_more(1 << 20)?;
        Ok(target)
    };
    let (target, _) = sampled_at_the_highest_rate(start, "6s", Target::tell)?;
    target.check_fine().map(drop)
}

/// A sleep that is interrupted goes on, whatever its thread has to wait for meanwhile.
#[test]
fn a_thread_that_sleeps_does_so_while_another_is_kept_in_the_handler() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    for what in ["doze", "poll"] {
        let target = Target::start(what)?;
        let sweetspot = by_timers();
        let attached = sweetspot.start_attach(&["--duration", "60s", &target.pid().to_string()])?;
        let tasks = fs::read_dir(format!("/proc/{}/task", target.pid()))?.flatten();
        let tids = tasks.filter_map(|task| task.file_name().to_str()?.parse::<u32>().ok());
        let other = tids.into_iter().find(|&tid| tid != target.pid()).context("no thread")?;
        let kept = keep_in_handler(other)?;
        kill(Pid::from_raw(attached.running.id() as i32), Signal::SIGINT)?;
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
    let wait = || -> Result<WaitStatus> {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            match waitpid(tid, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG))? {
                WaitStatus::StillAlive => ensure!(Instant::now() < until, "it does not stop"),
                status => return Ok(status),
            }
            thread::yield_now();
        }
    };
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
        let target = Target::start("patient")?;
        attach(&by_timers(), target.pid(), 50)?.expect_status(0)?;
        let told = target.check_fine()?;
        ensure!(told.contains("fine, 0 calls"), "{told}");
        Ok(())
    })?;
    let target = Target::start("aside")?;
    refused(&target, &by_timers(), "on a stack that it allocated itself")?;
    let told = target.check_fine()?;
    ensure!(told.contains("fine, 0 calls"), "{told}");
    Ok(())
}

/// Whatever the program has written into the memory of a profiler that was killed, it is given back.
#[test]
fn memory_that_was_written_over_is_given_back_all_the_same() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    let target = Target::start("threads")?;
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
    attempts(|| most_is_sampled(&taken_over_from_a_recorder()?))
}

fn taken_over_from_a_recorder() -> Result<Summary> {
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
    wait_until_ready(&mut recording)?; // it has all its threads
    let input = recording.stdin.take();
    recording.kill()?;
    recording.wait()?;
    thread::sleep(Duration::from_secs(16));
    let during = second.start_attach(&["--duration", "7s", &pid.to_string()])?;
    let recorded = second.finish(during, None)?;
    drop(input);
    let maps = format!("/proc/{pid}/maps");
    wait_until("its end", || fs::read_to_string(&maps).unwrap_or_default().is_empty())?;
    Ok(recorded.stats.summary)
}

/// It was stopped for so long that the agent gave it up, and another has come.
#[test]
fn a_profiler_that_was_away_leaves_its_successor_alone() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    attempts(|| {
        let target = Target::start("alone")?;
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
        most_is_sampled(&recorded.stats.summary)?;
        target.check_fine().map(drop)
    })
}
