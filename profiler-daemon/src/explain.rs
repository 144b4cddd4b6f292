//! Error messages: one line that says what happened and what to do.

use std::io;
use std::path::Path;

use ::procfs::ProcError;
use agent_memory::Obstacle;
use anyhow::{Result, anyhow};
use config::{Backend, SamplingSettings};

use crate::cgroup::CgroupError;
use crate::failure::{Failure, usage};
use crate::inject::InjectionRefused;
use crate::sampler::access::OpenError;
use crate::sampler::source::StartError;
use crate::sys::procfs;

/// What unprivileged profiles lack.
pub(crate) const KERNEL_UNSEEN: &str = "time spent in the kernel is not sampled: run as root, or \
     `sudo sysctl kernel.perf_event_paranoid=1`, to see it";

/// What events of a group miss of processes that are not the whole of it.
pub(crate) const LEFT_GROUP: &str = "processes of the target have left its cgroup and are not sampled there; leave out \
     --attach-mode cgroup, so that they are followed";

/// What is missed where mappings are read when a process is first sampled.
pub(crate) const MAPPINGS_NOT_TOLD: &str = "so many programs start that records of their mappings would \
                                            take more than a quarter of the budget; processes that end \
                                            within a tick of their first sample have no names";

/// What can be had instead of events of whole CPUs.
pub(crate) const BY_THREAD: &str = "use --attach-mode task";
/// The highest kernel.perf_event_paranoid at which anybody may sample the user frames of their own processes.
const OWN_PROCESSES: i32 = 2;

/// Why there are few samples of a target if its switches and records alone take its budget.
pub(crate) const WATCHING_TAKES_THE_BUDGET: &str = "there are few samples, because profiling already takes \
                                                    nearly all that the target's budget or its part of the \
                                                    host's allows without them; a larger one would allow more";

/// Why the events in force stay, although others were decided on.
pub(crate) fn not_renewed(error: OpenError) -> String {
    match error {
        OpenError::TooManyEvents { limit, .. } => format!(
            "events could not be opened anew, which takes as many files again as are open, and only {limit} may be (ulimit -n): \
             stacks are read as before, and new threads at the rate of their parents"
        ),
        error => format!("events could not be opened anew: {:#}", anyhow::Error::from(error)),
    }
}

/// What a run by timers is like.
pub(crate) fn by_timers(sampling: &SamplingSettings, tick_ns: u64) -> String {
    let is_asked_for = sampling.backend == Backend::TimerSignal;
    let why = if is_asked_for { "" } else { " because perf events are not permitted" };
    let hz = 1e9 / tick_ns as f64;
    format!(
        "samples are taken by timer signals{why}: at most {hz:.0} per CPU-second, at ticks of the kernel, whose functions are \
         not shown"
    )
}

/// What is missing to sample without perf events.
pub(crate) fn no_agent() -> anyhow::Error {
    anyhow!(
        "libsweetspot_agent.so was not found beside sweetspot, in ../lib/sweetspot or /usr/lib/sweetspot; put it there, or use \
         --backend perf"
    )
}

/// What a program is that nothing can be preloaded into.
pub(crate) fn obstacle(obstacle: Obstacle) -> &'static str {
    match obstacle {
        Obstacle::Static => "is linked statically",
        Obstacle::Musl => "uses musl and not glibc",
        Obstacle::OtherLinker => "uses another C library than glibc",
        Obstacle::OtherProcessor => "was built for another processor",
    }
}

/// Why nothing can be preloaded into a command.
pub(crate) fn not_preloadable(program: &Path, reason: &str) -> anyhow::Error {
    let program = program.display();
    Failure::NotPermitted(format!(
        "{program} {reason}, so timer signals cannot sample it; allow perf_event_open (`sweetspot doctor` says how)"
    ))
    .into()
}

/// Why the clocks do not start; `pid` is the process that was asked for, if it was one.
pub(crate) fn start(error: StartError, pid: Option<u32>) -> anyhow::Error {
    let process = pid.map_or("the process".to_owned(), |pid| format!("process {pid}"));
    match error {
        StartError::Refused(InjectionRefused::NotPermitted(why)) => {
            Failure::NotPermitted(format!("{process} {why}")).into()
        }
        StartError::Refused(InjectionRefused::Failed(why)) => anyhow!("{process} {why}"),
        StartError::Events(error) => anyhow!(error),
    }
}

/// What can be done instead where perf events are refused for a process that runs; nobody is changed unasked.
pub(crate) fn could_load(cause: &io::Error, pid: u32) -> anyhow::Error {
    Failure::NotPermitted(format!(
        "perf events are refused here ({cause}); --backend timer-signal would load a library into process {pid}, which samples it \
         from inside"
    ))
    .into()
}

/// The same as a question.
pub(crate) fn may_load(cause: &io::Error, pid: u32) -> String {
    format!(
        "perf events are refused here ({cause}). Load a library into process {pid}, which samples it from inside by timer signals? \
         [y/N] "
    )
}

/// Children of processes that are sampled from inside.
pub(crate) fn children_left_alone(pids: &[u32]) -> Option<String> {
    let children = procfs::descendants(pids).len();
    (children > 0).then(|| {
        format!("{children} child processes are not sampled: attach to each by itself, or use perf events")
    })
}

/// What is missed of threads that no event could be opened for, and what to do.
pub(crate) fn threads_refused(cause: &io::Error) -> String {
    let remedy = match cause.kind() {
        io::ErrorKind::PermissionDenied => "run as their owner or as root",
        _ => "raise `ulimit -n` (LimitNOFILE= of the service), or use --attach-mode cgroup",
    };
    format!("some threads could not be attached to ({cause}) and are not sampled; {remedy}")
}

/// An error for `OpenError`; `pid` is the process that was asked for, if it was one.
pub(crate) fn open(error: OpenError, pid: Option<u32>) -> anyhow::Error {
    let denied = |text: String| Failure::NotPermitted(text).into();
    match error {
        OpenError::NotPermitted(cause) => denied(match cause.raw_os_error() {
            Some(libc::EPERM) => format!(
                "perf events are blocked here ({cause}), perhaps by a container's seccomp profile; run \
                 outside of it, or allow perf_event_open"
            ),
            _ => match paranoid() {
                level if level.parse::<i32>().is_ok_and(|level| level <= OWN_PROCESSES) => {
                    "profiling is denied by a security module; `sweetspot doctor` says more".to_owned()
                }
                level => format!(
                    "profiling is not permitted: kernel.perf_event_paranoid is {level}, where CAP_PERFMON is not enough; run as \
                     root, or `sudo sysctl kernel.perf_event_paranoid={OWN_PROCESSES}` to profile your own processes, or \
                     with CAP_PERFMON all"
                ),
            },
        }),
        OpenError::TargetNotPermitted(_) => {
            let process = pid.map_or("the process".to_owned(), |pid| format!("process {pid}"));
            denied(not_ours(&process))
        }
        OpenError::TargetGone => anyhow!("the process ended before it could be attached to; start it again"),
        OpenError::RingMemory(cause) => denied(format!(
            "the kernel refused memory for the ring buffers ({cause}); `sudo sysctl \
             kernel.perf_event_mlock_kb=2048`, raise `ulimit -l`, or run as root"
        )),
        OpenError::TooManyEvents { needed, limit } => anyhow!(
            "{needed} events are needed for all threads, each an open file beside those that are open already, \
             and only {limit} files may be open; raise `ulimit -n`"
        ),
        OpenError::Other(cause) => {
            anyhow!("perf events do not work here ({cause}); `sweetspot doctor` says more")
        }
    }
}

/// Why what takes events of whole CPUs, or of groups, cannot be had, and what to do instead.
pub(crate) fn cpu_wide_refused(what: &str, instead: &str) -> anyhow::Error {
    let text = format!(
        "{what} is not permitted: kernel.perf_event_paranoid is {}; run as root, or {instead}",
        paranoid()
    );
    Failure::NotPermitted(text).into()
}

/// What is wrong with a control group.
pub(crate) fn cgroup(error: CgroupError) -> anyhow::Error {
    if error.is_permission() { Failure::NotPermitted(error.to_string()).into() } else { error.into() }
}

/// Why `--attach-mode cgroup` cannot be had for processes.
pub(crate) fn no_group_of_its_own() -> anyhow::Error {
    usage(
        "--attach-mode cgroup needs a cgroup that holds the processes and no others; give it as a target (--cgroup PATH), \
         or use --attach-mode cpu",
    )
}

/// Refuses a thread that is not the first of its process: whole processes are profiled.
pub(crate) fn thread(id: u32) -> Result<()> {
    match procfs::process_of_thread(id) {
        Some(pid) => Err(anyhow!(
            "{id} is a thread of process {pid}, and processes are profiled with all their threads; give {pid}"
        )),
        None => Ok(()),
    }
}

/// Refuses a thread of the kernel.
pub(crate) fn kernel_thread(pid: u32) -> Result<()> {
    if procfs::is_kernel_thread(pid) {
        return Err(anyhow!(
            "process {pid} is a kernel thread, which has no program to profile; give the id of a user process"
        ));
    }
    Ok(())
}

/// Refuses a process that nothing can be loaded into, since what tells of it is its first thread's.
pub(crate) fn first_thread(pid: u32) -> Result<()> {
    if procfs::has_lost_first_thread(pid) {
        return Err(anyhow!(
            "the first thread of process {pid} has ended, so no library can be loaded into it; use perf events"
        ));
    }
    Ok(())
}

/// Why a process may not be looked into, and what to do.
fn not_ours(process: &str) -> String {
    if nix::unistd::geteuid().is_root() {
        format!(
            "{process} is protected, as by a security module or a container; `sweetspot doctor` says more"
        )
    } else {
        format!("{process} belongs to another user or is protected; run as its owner or as root")
    }
}

/// [`maps`] for several processes: those that can be read are profiled, whatever becomes of the others.
pub(crate) fn maps_of_several(
    reads: Vec<(u32, Result<(), ProcError>)>,
    notes: &mut Vec<String>,
) -> Result<()> {
    let processes = reads.len();
    let refused = reads.into_iter().filter_map(|(pid, read)| maps(pid, read, notes).err());
    let mut refused: Vec<anyhow::Error> = refused.collect();
    if refused.len() == processes && processes > 0 {
        return Err(refused.swap_remove(0));
    }
    notes.extend(refused.iter().map(|error| format!("names are missing: {error}")));
    Ok(())
}

/// What to make of the attempt to read which code is mapped: a process that has ended is an error, missing
/// permission leaves a profile with fewer names.
pub(crate) fn maps(pid: u32, read: Result<(), ProcError>, notes: &mut Vec<String>) -> Result<()> {
    match read {
        Ok(()) => Ok(()),
        Err(ProcError::PermissionDenied(_)) => {
            Err(Failure::NotPermitted(not_ours(&format!("process {pid}"))).into())
        }
        Err(ProcError::NotFound(_)) => {
            Err(anyhow!("process {pid} ended before it could be attached to; start it again"))
        }
        Err(error) => {
            notes.push(format!(
                "the code mapped into process {pid} could not be read ({error}); names are missing"
            ));
            Ok(())
        }
    }
}

/// The same for a process that came with the one asked for: nothing about it ends the run.
pub(crate) fn child(pid: u32, read: Result<(), ProcError>, notes: &mut Vec<String>) {
    match read {
        Ok(()) | Err(ProcError::NotFound(_)) => {}
        Err(error) => notes.push(format!("process {pid} is not profiled with its parent: {error}")),
    }
}

/// What is missing of a process that is in the target's group, but for what nothing is: it may have ended meanwhile.
pub(crate) fn member(error: &ProcError) -> Option<String> {
    let why = match error {
        ProcError::NotFound(_) => return None,
        ProcError::PermissionDenied(_) => "they belong to another user or are protected",
        _ => "their mappings could not be read",
    };
    Some(format!("some processes of the cgroup have code without names: {why}"))
}

/// What events of single threads miss of a target like this.
pub(crate) fn short_lived(cpu_wide: bool) -> String {
    let advice = if cpu_wide { "leave out --attach-mode task" } else { "run as root" };
    format!(
        "many threads or processes end before events of their own can sample them well; {advice}, so that whole CPUs \
         are sampled"
    )
}

fn paranoid() -> String {
    let read: io::Result<String> = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
    read.map_or_else(|_| "unknown".to_owned(), |level| level.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_can_be_read_are_profiled_beside_a_protected_one() {
        let refused = || Err(ProcError::PermissionDenied(None));
        let mut notes = Vec::new();
        maps_of_several(vec![(1, refused()), (7, Ok(()))], &mut notes).unwrap();
        assert!(notes.len() == 1 && notes[0].starts_with("names are missing: process 1 "), "{notes:?}");
        let mut notes = Vec::new();
        let error = maps_of_several(vec![(1, refused()), (2, refused())], &mut notes).unwrap_err();
        assert!(error.to_string().starts_with("process 1 ") && notes.is_empty(), "{error}");
        maps_of_several(Vec::new(), &mut notes).unwrap();
    }
}
