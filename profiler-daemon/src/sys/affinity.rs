//! Where the calling thread runs.

use std::io;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use super::limits;

/// The CPUs that are online and that the calling thread may use, in ascending order; none where the kernel does not tell.
pub(crate) fn allowed() -> Vec<u32> {
    let Ok(allowed) = sched_getaffinity(this_thread()) else { return Vec::new() };
    let is_allowed = |cpu: &u32| allowed.is_set(*cpu as usize).unwrap_or(false);
    limits::online_cpus().into_iter().filter(is_allowed).collect()
}

/// Keeps the calling thread on one CPU.
pub(crate) fn stay_on(cpu: u32) -> io::Result<()> {
    let mut one = CpuSet::new();
    one.set(cpu as usize)?;
    Ok(sched_setaffinity(this_thread(), &one)?)
}

fn this_thread() -> Pid {
    Pid::from_raw(0)
}
