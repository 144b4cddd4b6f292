//! Where the sampled work runs, and where the profiler does.

use std::io;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::sys::limits;

/// A CPU for the work, and another for the profiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Where the sampled work runs.
    pub(super) work: u32,
    /// Where the profiler drains the rings; `None` where there is but one CPU.
    pub(super) profiler: Option<u32>,
}

impl Place {
    /// The last CPU that we may use for the work, and for the profiler one that shares no core with it, if there is one.
    pub(super) fn choose() -> io::Result<Self> {
        let allowed = sched_getaffinity(this_thread())?;
        let cpus: Vec<u32> = limits::online_cpus()
            .into_iter()
            .filter(|&cpu| allowed.is_set(cpu as usize).unwrap_or(false))
            .collect();
        choose_from(&cpus, limits::core_siblings).ok_or_else(|| io::Error::other("no CPU to run on"))
    }
}

fn choose_from(cpus: &[u32], siblings: impl Fn(u32) -> Vec<u32>) -> Option<Place> {
    let (&work, others) = cpus.split_last()?;
    let siblings = siblings(work);
    let apart = others.iter().find(|cpu| !siblings.contains(cpu));
    Some(Place { work, profiler: apart.or(others.first()).copied() })
}

/// Keeps the calling thread on one CPU.
pub(super) fn stay_on(cpu: u32) -> io::Result<()> {
    let mut one = CpuSet::new();
    one.set(cpu as usize)?;
    Ok(sched_setaffinity(this_thread(), &one)?)
}

fn this_thread() -> Pid {
    Pid::from_raw(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profiler_gets_another_core_then_another_cpu_then_none() {
        let pairs = |cpu: u32| vec![cpu & !1, cpu | 1];
        let place = |cpus: &[u32]| choose_from(cpus, pairs).map(|place| (place.work, place.profiler));
        assert_eq!(place(&[0, 1, 2, 3]), Some((3, Some(0))));
        assert_eq!(place(&[2, 3]), Some((3, Some(2))));
        assert_eq!(place(&[5]), Some((5, None)));
        assert_eq!(place(&[]), None);
    }
}
