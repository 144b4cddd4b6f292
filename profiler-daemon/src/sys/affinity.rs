//! Where the calling thread runs.

use std::io;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use super::limits;

/// The CPUs that are online and that a thread may use, in ascending order; none where the kernel does not tell. A process' number is that of its
/// first thread, 0 the calling one.
pub(crate) fn allowed(tid: u32) -> Vec<u32> {
    let Ok(allowed) = sched_getaffinity(Pid::from_raw(tid as i32)) else { return Vec::new() };
    let is_allowed = |cpu: &u32| allowed.is_set(*cpu as usize).unwrap_or(false);
    limits::online_cpus().into_iter().filter(is_allowed).collect()
}

/// Keeps the calling thread on one CPU.
pub(crate) fn stay_on(cpu: u32) -> io::Result<()> {
    let mut one = CpuSet::new();
    one.set(cpu as usize)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &one)?)
}
