//! What nothing is loaded into: that is said in a line, and the target is none the worse.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use object::{Object, ObjectSection};
use tests::host::Holdings;
use tests::programs::{can_build, copy_program, program};
use tests::run::{Sweetspot, sweetspot, wait_until};

use crate::{Target, attach, by_timers, may_trace};

/// One line, that says this; and the target is none the worse.
pub(crate) fn refused(target: &Target, sweetspot: &Sweetspot, says: &str) -> Result<()> {
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
    refused(&Target::busy("mix_static_pie")?, &by_timers(), "is linked statically")?;
    if can_build("mix_musl_dynamic") {
        refused(&Target::busy("mix_musl_dynamic")?, &by_timers(), "uses musl")?;
    }
    let filtered = Target::start("filtered")?;
    refused(&filtered, &by_timers(), "has a seccomp filter")?;
    filtered.check_fine()?;
    let partly = Target::start("partly")?; // each thread has its own filters
    refused(&partly, &by_timers(), "has a seccomp filter")?;
    partly.check_fine()?;
    let handled = Target::start("handled")?;
    let ended = attach(&by_timers(), handled.pid(), 50)?;
    ensure!(
        ended.stderr.lines().count() == 1 && ended.stderr.contains("handles SIGURG and SIGWINCH"),
        "{ended:?}"
    );
    handled.check_fine()?;
    Ok(())
}

#[test]
fn a_thread_without_room_is_not_taken_even_if_nothing_lists_its_guard() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    let target = Target::start("cramped")?;
    refused(&target, &by_timers(), "no thread that could load the library safely")?;
    target.check_fine().map(drop)
}

/// What is unmapped in the child is unmapped in the parent.
#[test]
fn a_child_that_runs_in_its_parents_memory_is_refused() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    let target = Target::start("vfork")?;
    let path = format!("/proc/{0}/task/{0}/children", target.pid());
    wait_until("a child", || fs::read_to_string(&path).is_ok_and(|children| !children.is_empty()))?;
    let child: u32 = fs::read_to_string(&path)?.trim().parse()?;
    let ended = attach(&by_timers(), child, 50)?;
    ensure!(ended.status != 0 && ended.stderr.lines().count() == 1, "{ended:?}");
    ensure!(ended.stderr.contains("runs in the memory of its parent"), "{ended:?}");
    target.check_fine().map(drop)
}

#[test]
fn one_that_is_stopped_or_traced_is_refused() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    let target = Target::start("threads")?;
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
    let target = Target::start("threads")?;
    let ended = attach(&by_timers().unprivileged()?, target.pid(), 50)?;
    ensure!(ended.status == 77 && ended.stderr.lines().count() == 1, "{ended:?}");
    target.check_fine()?;
    let mut command = Command::new("setpriv");
    command.arg("--ruid=65534").arg(program("undisturbed")?).arg("threads");
    let other = Target::ready(&mut command)?;
    refused(&other, &by_timers(), "rights of another user")?;
    other.check_fine().map(drop)
}

#[test]
fn an_agent_of_another_version_is_left_alone() -> Result<()> {
    if !may_trace() {
        return Ok(());
    }
    let target = Target::start("threads")?;
    attach(&by_timers(), target.pid(), 50)?.expect_status(0)?;
    let other = tempfile::tempdir()?;
    let binary = sweetspot();
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
    let target = Target::start("threads")?;
    let first = by_timers();
    let attached = first.start_attach(&["--duration", "120s", &target.pid().to_string()])?;
    let ended = attach(&by_timers(), target.pid(), 50)?;
    ensure!(ended.status == 1 && ended.stderr.contains("by another sweetspot already"), "{ended:?}");
    kill(Pid::from_raw(attached.running.id() as i32), Signal::SIGINT)?;
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
    let target = Target::start("threads")?;
    let unasked = Sweetspot::new().through(&[&deny.to_string_lossy()]);
    let ended = attach(&unasked, target.pid(), 50)?;
    ensure!(ended.status == 77 && ended.stderr.lines().count() == 1, "{ended:?}");
    ensure!(ended.stderr.contains("--backend timer-signal would load"), "{ended:?}");
    ensure!(!Holdings::of(target.pid())?.is_host(), "something was loaded");
    let asked = by_timers().through(&[&deny.to_string_lossy()]);
    attach(&asked, target.pid(), 100)?.expect_status(0)?;
    target.check_fine().map(drop)
}
