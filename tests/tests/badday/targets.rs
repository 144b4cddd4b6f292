//! Targets that are not there, or not for long, or too many; and privileges that are missing.

use std::fs;
use std::process::Command;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use anyhow::Result;
use tests::attempts::attempts;
use tests::checks::within;
use tests::guards::{Running, Sysctl, is_root};
use tests::programs::program;
use tests::run::{NOBODY, Sweetspot, finish, run, start, wait_until};

use crate::{busy, fine, refused, sweetspot};

/// Tests that change a setting of the kernel hold this alone; those that depend on one share it.
static SETTINGS: RwLock<()> = RwLock::new(());

fn default_settings() -> RwLockReadGuard<'static, ()> {
    SETTINGS.read().unwrap_or_else(PoisonError::into_inner)
}

fn own_settings() -> RwLockWriteGuard<'static, ()> {
    SETTINGS.write().unwrap_or_else(PoisonError::into_inner)
}

/// A process id that no process has: that of one that has ended.
fn free_pid() -> Result<String> {
    let mut child = start(&mut Command::new("true"))?;
    child.wait()?;
    Ok(child.id().to_string())
}

#[test]
fn no_such_process() -> Result<()> {
    refused(sweetspot("attach", &[&free_pid()?])?, 1, &["no such process", "no process", "not running"])
}

#[test]
fn no_such_process_to_predict() -> Result<()> {
    refused(sweetspot("plan", &["--pid", &free_pid()?])?, 1, &["no process"])
}

#[test]
fn a_process_that_ends_while_it_is_watched() -> Result<()> {
    needs_root!("opening perf events everywhere");
    let target = start(Command::new("sleep").arg("3"))?;
    let ended = sweetspot("plan", &["--duration", "200s", "--pid", &target.id().to_string()])?;
    refused(ended, 1, &["ended while it was watched", "ended before"])
}

#[test]
fn a_process_that_sleeps_is_predicted_from_what_is_usual() -> Result<()> {
    needs_root!("opening perf events everywhere");
    let target = start(Command::new("sleep").arg("200"))?;
    let pid = target.id().to_string();
    let stat = format!("/proc/{pid}/stat");
    wait_until("the sleep", || fs::read_to_string(&stat).is_ok_and(|stat| stat.contains("(sleep) S ")))?;
    let ended = fine(sweetspot("plan", &["--duration", "200ms", "--pid", &pid])?)?;
    anyhow::ensure!(ended.stdout.contains("it used no CPU time"), "{ended:#?}");
    Ok(())
}

#[test]
fn no_process_of_that_name() -> Result<()> {
    refused(
        sweetspot("attach", &["--name", "^no-such-thing-xyz$"])?,
        1,
        &["no process", "no running process"],
    )
}

#[test]
fn a_command_that_exits_at_once() -> Result<()> {
    fine(sweetspot("record", &["--", "true"])?).map(drop)
}

#[test]
fn a_target_that_exits_while_attached() -> Result<()> {
    needs_root!("attaching in every mode");
    let mut target = busy("300")?;
    let sweetspot = Sweetspot::new();
    let attached = sweetspot.start_attach(&["--duration", "200s", &target.id().to_string()])?;
    target.kill()?;
    target.wait()?;
    let recorded = sweetspot.finish(attached, None)?;
    anyhow::ensure!(recorded.stats.summary.stopped == "target_ended", "{:?}", recorded.ended);
    fine(recorded.ended).map(drop)
}

/// Targets that live from 0 to some 40 ms: the end falls into every phase of the attach.
#[test]
fn a_target_that_exits_during_the_attach() -> Result<()> {
    needs_root!("attaching in every mode");
    for mode in ["task", "cpu"] {
        for tenths_of_ms in (0..400).step_by(20) {
            let life = format!("{:.4}", f64::from(tenths_of_ms) * 1e-4);
            let mut target = start(Command::new("sleep").arg(life))?;
            // Reaped beside the profiler, as any parent would: a zombie is another case.
            let pid = target.id().to_string();
            let profiler = start(
                &mut Sweetspot::new().command("attach", &["--attach-mode", mode, "--duration", "2s", &pid]),
            )?;
            target.wait()?;
            let ended = finish(profiler)?;
            if ended.status == 0 {
                fine(ended)?;
            } else {
                refused(ended, 1, &["no such process", "no process", "not running", "exited", "ended"])?;
            }
        }
    }
    Ok(())
}

#[test]
fn a_zombie() -> Result<()> {
    let zombie = start(&mut Command::new("true"))?;
    let stat = format!("/proc/{}/stat", zombie.id());
    wait_until("the zombie", || fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") Z ")))?;
    let ended = sweetspot("attach", &["--duration", "1s", &zombie.id().to_string()])?;
    refused(ended, 1, &["exited", "zombie", "ended", "not running", "no such process"])?;
    refused(sweetspot("plan", &["--pid", &zombie.id().to_string()])?, 1, &["ended"])
}

#[test]
fn a_kernel_thread() -> Result<()> {
    needs_root!("attaching to a kernel thread");
    if fs::read_to_string("/proc/2/comm").is_ok_and(|comm| comm.trim() == "kthreadd") {
        for words in [["attach", "--duration", "1s", "2"], ["plan", "--duration", "1s", "--pid=2"]] {
            refused(sweetspot(words[0], &words[1..])?, 1, &["kernel thread"])?;
        }
        return Ok(());
    }
    eprintln!("skipped: kernel threads are not visible here");
    Ok(())
}

#[test]
fn a_process_of_another_user() -> Result<()> {
    needs_root!("becoming another user");
    let _settings = default_settings();
    let target = busy("60")?;
    let nobody = Sweetspot::new().unprivileged()?;
    let pid = target.id().to_string();
    for words in [&["attach", &pid][..], &["plan", "--pid", &pid]] {
        let ended = run(&mut nobody.command(words[0], &words[1..]))?;
        refused(ended, 77, &["another user", "permi", "privilege"])?;
    }
    Ok(())
}

/// One that may be sampled is, whatever becomes of the other.
#[test]
fn a_process_of_another_user_beside_an_own_one() -> Result<()> {
    needs_root!("becoming another user");
    let _settings = own_settings();
    let _paranoid = Sysctl::kernel("perf_event_paranoid", "1")?;
    let foreign = busy("60")?;
    let nobody = Sweetspot::new().unprivileged()?;
    let copy = nobody.copy_for_all(&program("mix_nofp")?)?;
    let own =
        start(Command::new(NOBODY[0]).args(&NOBODY[1..]).arg(copy).args(["--cpu", "60", "--depth", "20"]))?;
    let pids = [&own, &foreign].map(|process| process.id().to_string());
    let ended = fine(run(&mut nobody.command("attach", &["--duration", "2s", &pids[0], &pids[1]]))?)?;
    anyhow::ensure!(ended.stdout.contains("spin") || ended.stdout.contains("mix_nofp"), "{ended:#?}");
    anyhow::ensure!(ended.stdout.contains("could not be attached to"), "{ended:#?}");
    Ok(())
}

/// Kernels of some distributions know a level 3 that refuses everything; others treat it as 2.
#[test]
fn perf_event_paranoid_too_high() -> Result<()> {
    needs_root!("changing perf_event_paranoid");
    let _settings = own_settings();
    let _paranoid = Sysctl::kernel("perf_event_paranoid", "4")?;
    let nobody = Sweetspot::new().unprivileged()?;
    let probe = nobody.copy_for_all(&program("perf_allowed")?)?;
    let honoured = !Command::new(NOBODY[0]).args(&NOBODY[1..]).arg(probe).status()?.success();
    let ended = run(&mut nobody.command("record", &["--backend", "perf", "--", "sleep", "0.1"]))?;
    if honoured {
        return refused(ended, 77, &["perf_event_paranoid"]);
    }
    eprintln!("this kernel treats perf_event_paranoid=4 as 2: only checked that the run works");
    fine(ended).map(drop)
}

/// As in a container whose seccomp profile forbids the call: so it is for root, too.
#[test]
fn perf_event_open_refused() -> Result<()> {
    let deny = program("deny_perf")?;
    let sweetspot = Sweetspot::new().through(&[&deny.to_string_lossy()]);
    let own = std::process::id().to_string();
    let perf = ["record", "--backend", "perf", "--", "true"];
    for words in [&perf[..], &["evaluate", "--rounds", "1"], &["plan", "--pid", &own]] {
        let ended = run(&mut sweetspot.command(words[0], &words[1..]))?;
        refused(ended, 77, &["perf_event_open", "not permitted", "permission"])?;
    }
    Ok(())
}

#[test]
fn ring_memory_refused() -> Result<()> {
    needs_root!("changing perf_event_mlock_kb");
    let _settings = own_settings();
    let _mlock = Sysctl::kernel("perf_event_mlock_kb", "0")?;
    let nobody = Sweetspot::new().through(&["prlimit", "--memlock=0:0"]).unprivileged()?;
    let ended = run(&mut nobody.command("record", &["--", "sleep", "0.1"]))?;
    refused(ended, 77, &["perf_event_mlock_kb", "memlock", "ulimit -l"])
}

fn sleepers(count: usize) -> Result<Running> {
    let target = start(Command::new(program("sleepers")?).args([&count.to_string(), "60"]))?;
    let threads = format!("/proc/{}/task", target.id());
    wait_until("the threads", || fs::read_dir(&threads).is_ok_and(|tasks| tasks.count() > count))?;
    Ok(target)
}

#[test]
fn two_thousand_threads_task_events() -> Result<()> {
    two_thousand_threads("task")
}

#[test]
fn two_thousand_threads_cpu_wide_events() -> Result<()> {
    two_thousand_threads("cpu")
}

fn two_thousand_threads(mode: &str) -> Result<()> {
    needs_root!("attaching in every mode");
    attempts(|| {
        let target = sleepers(2000)?;
        let recorded =
            Sweetspot::new().options(&["--attach-mode", mode, "--rate", "500"]).attach(target.id(), 2.0)?;
        let busy = recorded.folded.weight_of(|stack| stack.has("busy"));
        within("weight of the busy thread", busy, recorded.folded.weight_of(|_| true), 0.05)
    })
}

/// Task events need a file for each thread and CPU. With few, the profiler chooses the other way, or says so.
#[test]
fn too_few_files_for_the_threads() -> Result<()> {
    needs_root!("attaching in every mode");
    let target = sleepers(300)?;
    let pid = target.id().to_string();
    let few = || Sweetspot::new().through(&["prlimit", "--nofile=64:64"]);
    fine(run(&mut few().command("attach", &["--duration", "1s", &pid]))?)?;
    let forced = run(&mut few().command("attach", &["--attach-mode", "task", "--duration", "1s", &pid]))?;
    refused(forced, 1, &["open files", "file descriptors", "ulimit -n"])
}
