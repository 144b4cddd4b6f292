//! Where the sampled work runs, and where the profiler does.

use std::io;

use crate::sys::{affinity, limits};

/// A CPU for the work, and another for the profiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CpuPair {
    /// Where the sampled work runs.
    pub(super) work: u32,
    /// Where the profiler drains the rings; `None` where there is but one CPU.
    pub(super) profiler: Option<u32>,
}

impl CpuPair {
    /// The last CPU that we may use for the work, and for the profiler one that shares no core with it, if there is one.
    pub(super) fn choose() -> io::Result<Self> {
        choose_from(&affinity::allowed(0), limits::core_siblings)
            .ok_or_else(|| io::Error::other("no CPU to run on"))
    }
}

fn choose_from(cpus: &[u32], siblings: impl Fn(u32) -> Vec<u32>) -> Option<CpuPair> {
    let (&work, others) = cpus.split_last()?;
    let siblings = siblings(work);
    let apart = others.iter().find(|cpu| !siblings.contains(cpu));
    Some(CpuPair { work, profiler: apart.or(others.first()).copied() })
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
