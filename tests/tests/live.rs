//! The profiler on programs of known truth, live: short runs, as root.
//!
//! Intervals are asked for at 99.99%. They hold together in each table, and there are some twenty tables here: at the
//! default level one would have a miss by chance in each run, and at 99.9% in every fiftieth run; here a miss means an
//! error. Whether intervals are as wide as they say is not for a few runs to tell: `just accuracy` checks that, at 99%.

#![allow(clippy::print_stderr, reason = "a test that skips says why")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tests::attempts::attempts;
use tests::checks::{
    C, CXX, RUST_THREAD, check, check_stacks, check_truth, check_weight_sum, check_weights, heaviest, within,
};
use tests::folded::{Folded, Stack};
use tests::guards::is_root;
use tests::measured::cpu_s;
use tests::programs::{can_build, program};
use tests::run::{Recorded, Sweetspot, run, start, wait_until};
use tests::stats::Stats;
use tests::truth::is_named;

/// Leaves the test unless it can profile everything.
macro_rules! needs_root {
    () => {
        if !is_root() {
            eprintln!("skipped: profiling kernel frames and all processes needs root");
            return Ok(());
        }
    };
}

/// Rate and level of most runs: enough samples in three seconds to tell the functions apart.
fn fixed() -> Sweetspot {
    Sweetspot::new().options(&["--rate", "1000", "--confidence", "99.99%"])
}

fn record(options: &[&str], name: &str, arguments: &[&str]) -> Result<Recorded> {
    fixed().options(options).record(name, arguments)
}

#[test]
fn no_frame_pointers_depth_5_task_events() -> Result<()> {
    needs_root!();
    attempts(|| {
        let options = ["--attach-mode", "task", "--unwind", "dwarf"];
        let recorded = record(&options, "mix_nofp", &["--cpu", "3", "--depth", "5"])?;
        ensure!(recorded.stats.summary.attach_mode == "task");
        check(&recorded, &C, 5)
    })
}

#[test]
fn no_frame_pointers_depth_50_cpu_wide_events() -> Result<()> {
    needs_root!();
    attempts(|| {
        let recorded = record(&["--attach-mode", "cpu"], "mix_nofp", &["--cpu", "3", "--depth", "50"])?;
        ensure!(recorded.stats.summary.attach_mode == "cpu");
        check(&recorded, &C, 50)
    })
}

#[test]
fn no_frame_pointers_depth_300() -> Result<()> {
    needs_root!();
    attempts(|| check(&record(&[], "mix_nofp", &["--cpu", "3", "--depth", "300"])?, &C, 300))
}

#[test]
fn frame_pointers_depth_50() -> Result<()> {
    needs_root!();
    attempts(|| {
        let recorded = record(&["--unwind", "fp"], "mix_fp", &["--cpu", "3", "--depth", "50"])?;
        ensure!(recorded.stats.summary.unwind == "fp");
        check(&recorded, &C, 50)
    })
}

/// Deeper than the kernel's own walk goes (127 frames, unless the machine is set otherwise).
#[test]
fn frame_pointers_depth_300_are_unwound_whole_when_the_profiler_may_choose() -> Result<()> {
    needs_root!();
    attempts(|| check(&record(&[], "mix_fp", &["--cpu", "3", "--depth", "300"])?, &C, 300))
}

#[test]
fn the_profiler_chooses_its_rate() -> Result<()> {
    needs_root!();
    attempts(|| {
        let adaptive = Sweetspot::new().options(&["--confidence", "99.99%", "--budget", "5%"]);
        let recorded = adaptive.record("mix_fp", &["--cpu", "4", "--depth", "20"])?;
        ensure!(recorded.stats.summary.bound_by != "fixed");
        check(&recorded, &C, 20)
    })
}

#[test]
fn inlined_functions_are_named_and_lie_within_their_caller() -> Result<()> {
    needs_root!();
    attempts(|| {
        let recorded = record(&[], "inlined", &["--cpu", "3", "--depth", "20"])?;
        check(&recorded, &CXX, 20)?;
        let in_caller = |stack: &Stack| {
            let at = stack.frames.iter().position(|frame| frame.contains("truth::work<"));
            at.is_some_and(|at| at > 0 && stack.frames[at - 1].contains("run_calls"))
        };
        let share = recorded.folded.weight_of(in_caller) / recorded.folded.weight_of(|_| true);
        ensure!(share > 0.95, "only {share} lie within run_calls:\n{}", heaviest(&recorded.folded));
        Ok(())
    })
}

#[test]
fn threads_are_followed() -> Result<()> {
    needs_root!();
    attempts(|| check(&record(&[], "threads", &["--cpu", "3", "--depth", "50"])?, &RUST_THREAD, 50))
}

#[test]
fn children_are_followed_task_events() -> Result<()> {
    needs_root!();
    attempts(|| {
        let options = ["--attach-mode", "task"];
        check(&record(&options, "mix_nofp", &["--cpu", "3", "--children", "48"])?, &C, 5)
    })
}

#[test]
fn children_are_followed_cpu_wide_events() -> Result<()> {
    needs_root!();
    attempts(|| {
        let options = ["--attach-mode", "cpu"];
        check(&record(&options, "mix_nofp", &["--cpu", "3", "--children", "48"])?, &C, 5)
    })
}

/// Threads' clocks are renewed every second while children come and go: nobody is without one, or has two.
#[test]
fn no_child_is_lost_while_clocks_are_renewed() -> Result<()> {
    needs_root!();
    attempts(|| {
        let recorded = record(&["--attach-mode", "task"], "mix_nofp", &["--cpu", "5", "--children", "80"])?;
        check_weight_sum(&recorded, 0.01)
    })
}

/// Processes that live for less than a period are never hit by events of their own.
#[test]
fn short_lived_processes_are_sampled_by_whole_cpus() -> Result<()> {
    needs_root!();
    let script = "i=0; while [ $i -lt 3000 ]; do /bin/true; i=$((i+1)); done";
    let summary = |mode: &str| {
        let sweetspot = fixed().options(&["--attach-mode", mode]);
        let mut words = sweetspot.outputs();
        words.extend(["--", "sh", "-c", script].map(str::to_string));
        run(&mut sweetspot.command("record", &words))?.expect_status(0)?;
        Ok::<_, anyhow::Error>(
            Stats::parse(&std::fs::read_to_string(sweetspot.file("stats.jsonl"))?)?.summary,
        )
    };
    attempts(|| {
        let chosen = summary("auto")?;
        ensure!(chosen.attach_mode == "cpu", "{chosen:?}");
        let asked = summary("task")?;
        ensure!(asked.attach_mode == "task");
        ensure!(asked.notes.iter().any(|note| note.contains("--attach-mode task")), "{:?}", asked.notes);
        Ok(())
    })
}

#[test]
fn static_pie() -> Result<()> {
    needs_root!();
    attempts(|| check(&record(&[], "mix_static_pie", &["--cpu", "3", "--depth", "50"])?, &C, 50))
}

#[test]
fn musl() -> Result<()> {
    needs_root!();
    attempts(|| {
        if !can_build("mix_musl") {
            eprintln!("skipped: there is no musl-gcc (apt-get install musl-tools)");
            return Ok(());
        }
        check(&record(&[], "mix_musl", &["--cpu", "3", "--depth", "50"])?, &C, 50)
    })
}

/// Long bouts are harder: samples within one tell the same thing, and the interval must know it.
#[test]
fn bouts_of_5_ms() -> Result<()> {
    needs_root!();
    attempts(|| check(&record(&[], "mix_nofp", &["--cpu", "4", "--bout-us", "5000"])?, &C, 5))
}

#[test]
fn bouts_of_50_ms() -> Result<()> {
    needs_root!();
    attempts(|| {
        let recorded = record(&[], "mix_nofp", &["--cpu", "6", "--bout-us", "50000"])?;
        check_weights(&recorded)?;
        check_stacks(&recorded, &C, 5)?;
        for compared in recorded.truth()?.compare(&recorded.stats.summary, 4)? {
            ensure!(compared.inside(), "the interval misses the truth: {compared:?}");
        }
        Ok(())
    })
}

/// No copy of the stack reaches the root, and the memory of the process does.
#[test]
fn stacks_larger_than_any_copy_are_completed_and_counted() -> Result<()> {
    needs_root!();
    attempts(|| {
        let arguments = ["--cpu", "3", "--depth", "100", "--frame-bytes", "2048"];
        let recorded = record(&["--unwind", "dwarf"], "mix_nofp", &arguments)?;
        check_truth(&recorded)?;
        check_weights(&recorded)?;
        let summary = &recorded.stats.summary;
        let completed = summary.outer_frames_from_earlier as f64 / summary.samples as f64;
        ensure!(completed > 0.9, "only {completed} are said to be completed");
        let truncated = summary.truncated as f64 / summary.samples as f64;
        ensure!(truncated < 0.1, "{truncated} are truncated: {:?}", summary.truncated_by);
        let all = recorded.folded.weight_of(|_| true);
        let to_main = recorded.folded.weight_of(|stack| stack.has("main"));
        ensure!(to_main > 0.9 * all, "only {to_main} of {all} are unwound to main");
        Ok(())
    })
}

#[test]
fn wide_frames_with_frame_pointers_are_whole() -> Result<()> {
    needs_root!();
    attempts(|| {
        let arguments = ["--cpu", "3", "--depth", "50", "--frame-bytes", "4096"];
        check(&record(&["--unwind", "fp"], "mix_fp", &arguments)?, &C, 50)
    })
}

/// Whoever runs is met when it is sampled, and the machine's CPU time is what there is to sample.
#[test]
fn everything_is_attached_to() -> Result<()> {
    needs_root!();
    attempts(|| {
        let target = start(Command::new(program("mix_nofp")?).args(["--cpu", "60"]))?;
        wait_until("the work", || cpu_s(target.id()).is_ok_and(|used| used > 0.3))?;
        let sweetspot = Sweetspot::new().options(&["--rate", "200"]);
        let (folded, stats) = (sweetspot.file("all.folded"), sweetspot.file("all.jsonl"));
        let words = ["--all", "--duration", "5s", "-o", &folded, "--stats", &stats];
        run(&mut sweetspot.command("attach", &words))?.expect_status(0)?;
        let text = std::fs::read_to_string(&folded)?;
        ensure!(text.lines().any(|line| line.contains(";work_a")), "{text}");
        let summary = Stats::parse(&std::fs::read_to_string(&stats)?)?.summary;
        ensure!(summary.stopped == "duration", "{summary:?}");
        ensure!(summary.samples > 100 && summary.target_cpu_s > 0.5, "{summary:?}");
        Ok(())
    })
}

#[test]
fn attached_by_pid_task_events() -> Result<()> {
    attached_by_pid("task")
}

#[test]
fn attached_by_pid_cpu_wide_events() -> Result<()> {
    attached_by_pid("cpu")
}

fn attached_by_pid(mode: &str) -> Result<()> {
    needs_root!();
    attempts(|| {
        let target = start(Command::new(program("mix_nofp")?).args(["--cpu", "60", "--depth", "50"]))?;
        // Its preparations are over, on a busy machine too.
        wait_until("the work", || cpu_s(target.id()).is_ok_and(|used| used > 0.3))?;
        let recorded = fixed().options(&["--attach-mode", mode]).attach(target.id(), 5.0)?;
        check_stacks(&recorded, &C, 50)?;
        let summary = &recorded.stats.summary;
        check_weight_sum(&recorded, 0.02)?;
        let share = |name: &str| summary.functions.iter().find(|f| f.name == name).map_or(0.0, |f| f.share);
        within("share of work_a", share("work_a"), 0.4, 0.15)?;
        within("share of work_b", share("work_b"), 0.25, 0.2)
    })
}

#[test]
fn children_that_an_attached_process_has_already_are_followed_task_events() -> Result<()> {
    present_children_are_followed("task")
}

#[test]
fn children_that_an_attached_process_has_already_are_followed_cpu_wide_events() -> Result<()> {
    present_children_are_followed("cpu")
}

fn present_children_are_followed(mode: &str) -> Result<()> {
    needs_root!();
    attempts(|| {
        // The parent waits; its first child works for some seconds.
        let target = start(Command::new(program("mix_nofp")?).args(["--cpu", "32", "--children", "4"]))?;
        let children = format!("/proc/{0}/task/{0}/children", target.id());
        wait_until("a child", || std::fs::read_to_string(&children).is_ok_and(|pids| !pids.is_empty()))?;
        let recorded = fixed().options(&["--attach-mode", mode]).attach(target.id(), 1.5)?;
        check_weight_sum(&recorded, 0.02)?;
        let work = recorded.folded.weight_of(|stack| stack.has("run_calls") && stack.has("main"));
        within("weight of the child", work, recorded.folded.weight_of(|_| true), 0.05)
    })
}

#[test]
fn a_stripped_program_is_unwound_and_its_code_told_apart_by_address() -> Result<()> {
    needs_root!();
    attempts(|| {
        let recorded = record(&[], "mix_stripped", &["--cpu", "3", "--depth", "50"])?;
        check_weights(&recorded)?;
        let (summary, truth) = (&recorded.stats.summary, recorded.truth()?);
        ensure!(summary.truncated as f64 <= 0.005 * summary.samples as f64, "{:?}", summary.notes);
        let symbols = Symbols::of("mix_unstripped")?;
        let mut cpu_s = BTreeMap::<String, f64>::new();
        for function in &summary.functions {
            if let Some(offset) = function.name.strip_prefix("mix_stripped+0x") {
                let name = symbols.at(u64::from_str_radix(offset, 16)?);
                *cpu_s.entry(name).or_default() += function.cpu_s;
            }
        }
        for name in truth.top(2) {
            let found = cpu_s.get(name).copied().unwrap_or(0.0);
            within(name, found, truth.share(name) * truth.work_cpu_s, 0.2)?;
        }
        Ok(())
    })
}

/// Where the functions of a program start.
struct Symbols(Vec<(u64, String)>);

impl Symbols {
    fn of(name: &str) -> Result<Symbols> {
        let output = Command::new("nm").arg("-n").arg(program(name)?).output().context("nm")?;
        let parse = |line: &str| {
            let mut words = line.split_whitespace();
            let (address, kind, name) = (words.next()?, words.next()?, words.next()?);
            let address = u64::from_str_radix(address, 16).ok()?;
            "tT".contains(kind).then(|| (address, name.to_string()))
        };
        Ok(Symbols(String::from_utf8(output.stdout)?.lines().filter_map(parse).collect()))
    }

    fn at(&self, address: u64) -> String {
        let after = self.0.partition_point(|(start, _)| *start <= address);
        after.checked_sub(1).map_or(String::new(), |at| self.0[at].1.clone())
    }
}

/// Records a command that tells no truth, and reads its stacks.
fn folded_of(sweetspot: &Sweetspot, command: &[&str]) -> Result<Folded> {
    let mut words = sweetspot.outputs();
    words.push("--".to_string());
    words.extend(command.iter().map(ToString::to_string));
    run(&mut sweetspot.command("record", &words))?.expect_status(0)?;
    Folded::parse(&std::fs::read_to_string(sweetspot.file("profile.folded"))?)
}

#[test]
fn kernel_frames_are_named_and_follow_the_user_frames() -> Result<()> {
    needs_root!();
    attempts(|| {
        let folded = folded_of(&fixed(), &[&program("pingpong")?.to_string_lossy(), "3"])?;
        let both = folded.weight_of(|stack| {
            let user = |frame: &String| is_named(frame, "exchange") || is_named(frame, "echo");
            let pipe = |frame: &String| frame.contains("pipe_read") || frame.contains("pipe_write");
            let (user, kernel) = (stack.frames.iter().position(user), stack.frames.iter().position(pipe));
            user.zip(kernel).is_some_and(|(user, kernel)| user < kernel)
        });
        let share = both / folded.weight_of(|_| true);
        ensure!(share > 0.2, "pipes, most of this program, have {share}:\n{}", heaviest(&folded));
        Ok(())
    })
}

#[test]
fn an_idler_is_weighed_right() -> Result<()> {
    needs_root!();
    attempts(|| {
        let target = start(Command::new(program("idler")?).args(["60", "1"]))?;
        let recorded = fixed().attach(target.id(), 4.0)?;
        check_weight_sum(&recorded, 0.05)?;
        let burst = recorded.folded.weight_of(|stack| stack.has("burst"));
        within("weight of the bursts", burst, recorded.folded.weight_of(|_| true), 0.1)
    })
}

#[test]
fn a_thousand_sleeping_threads_and_a_busy_one() -> Result<()> {
    needs_root!();
    attempts(|| {
        let target = start(Command::new(program("sleepers")?).args(["1000", "60"]))?;
        let threads = format!("/proc/{}/task", target.id());
        wait_until("the threads", || std::fs::read_dir(&threads).is_ok_and(|tasks| tasks.count() > 1000))?;
        let recorded = fixed().attach(target.id(), 3.0)?;
        check_weight_sum(&recorded, 0.02)?;
        let busy = recorded.folded.weight_of(|stack| stack.has("busy") && stack.has("main"));
        within("weight of the busy thread", busy, recorded.folded.weight_of(|_| true), 0.03)
    })
}

#[test]
fn a_library_deleted_after_loading_keeps_its_names() -> Result<()> {
    needs_root!();
    attempts(|| {
        let sweetspot = fixed();
        let library = sweetspot.copy_for_all(&program("libplugin.so")?)?;
        let host = program("host")?;
        let command = [&*host.to_string_lossy(), &*library.to_string_lossy(), "2", "1", "delete"];
        let folded = folded_of(&sweetspot, &command)?;
        let all = folded.weight_of(|_| true);
        let share = |name: &str| folded.weight_of(|stack| stack.has(name) && stack.has("main")) / all;
        within("share of plugin_work", share("plugin_work"), 2.0 / 3.0, 0.15)?;
        within("share of host_work", share("host_work"), 1.0 / 3.0, 0.15)
    })
}

#[test]
fn a_process_that_execs_another_program_is_followed() -> Result<()> {
    needs_root!();
    attempts(|| {
        let other = program("threads")?;
        let arguments = ["--cpu", "1", "--then-exec", &*other.to_string_lossy()];
        let folded = record(&[], "mix_nofp", &arguments)?.folded;
        let share = |name: &str| {
            let has = |stack: &Stack| stack.frames.iter().any(|frame| frame.contains(name));
            folded.weight_of(has) / folded.weight_of(|_| true)
        };
        within("share of the second program", share("threads::work_"), 0.5, 0.2)?;
        ensure!(share("descend") > 0.95, "the recursion is in only {} of the stacks", share("descend"));
        Ok(())
    })
}

#[test]
fn without_privilege_there_are_user_frames() -> Result<()> {
    needs_root!(); // to become `nobody`
    attempts(|| {
        let recorded = fixed().unprivileged()?.record("mix_nofp", &["--cpu", "3", "--depth", "50"])?;
        check(&recorded, &C, 50)
    })
}

/// Without figures of what it should be: how long the handler takes is the machine's business, and that of others on it.
#[test]
fn the_kernels_handler_is_timed_in_the_target() -> Result<()> {
    needs_root!();
    if !Path::new("/sys/kernel/tracing/events/timer/hrtimer_expire_entry").exists() {
        eprintln!("skipped: the kernel's tracepoints are not mounted");
        return Ok(());
    }
    attempts(|| {
        for (unwind, depth) in [("fp", "5"), ("fp", "50"), ("dwarf", "300")] {
            let options = ["--unwind", unwind, "--confidence", "99.99%"];
            let recorded =
                Sweetspot::new().options(&options).record("mix_fp", &["--cpu", "1.5", "--depth", depth])?;
            let summary = &recorded.stats.summary;
            ensure!(summary.handler_time == "measured", "{}", summary.handler_time);
            let (time, error) =
                (summary.handler_us.context("no time")?, summary.handler_se_us.context("no error")?);
            ensure!(time > 0.0 && error > 0.0 && error.is_finite(), "{time} ± {error} µs");
            ensure!(
                time <= summary.overhead_us,
                "a handler of {time} in a sample of {} µs",
                summary.overhead_us
            );
            ensure!((1..=summary.samples).contains(&summary.handler_samples), "{}", summary.handler_samples);
        }
        Ok(())
    })
}
