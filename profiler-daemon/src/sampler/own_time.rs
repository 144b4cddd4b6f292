//! The profiler's own CPU time that counts as overhead of a run: all of the process', or, with several targets,
//! the time spent in the steps of one of them.
//!
//! What belongs to no target (discovery, symbolization, the disk, requests) is charged to the host's budget.

use crate::sys::clock;

/// Counts own CPU time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum OwnTime {
    /// The process exists for one run only.
    #[default]
    Process,
    /// Turns of one target among several, all on one thread.
    Turns {
        /// Own CPU time in the turns that are over (ns).
        spent_ns: u64,
        /// The thread's CPU time when the present turn began (ns).
        entered_ns: Option<u64>,
    },
}

impl OwnTime {
    /// For one target of several: counts its turns, and `spent_ns`, which was spent on it before.
    pub(crate) fn of_turns(spent_ns: u64) -> Self {
        Self::Turns { spent_ns, entered_ns: None }
    }

    /// Whether all own CPU time is overhead of the run, including the time before sampling begins: for one target among
    /// many, no user waits for that.
    pub(crate) fn counts_from_the_start(&self) -> bool {
        matches!(self, Self::Turns { .. })
    }

    /// Own CPU time so far (ns).
    pub(crate) fn now_ns(&self) -> u64 {
        match self {
            Self::Process => clock::self_cpu_ns(),
            Self::Turns { spent_ns, entered_ns } => {
                spent_ns + entered_ns.map_or(0, |then_ns| clock::thread_cpu_ns().saturating_sub(then_ns))
            }
        }
    }

    /// The clock of one-time work on this thread (ns): of a process with one run, other threads work at the same time.
    pub(crate) fn of_this_thread_ns(&self) -> u64 {
        match self {
            Self::Process => clock::thread_cpu_ns(),
            Self::Turns { .. } => self.now_ns(),
        }
    }

    /// The same with what other threads did for this target alone (ns).
    pub(crate) fn with_elsewhere(&self, elsewhere_ns: u64) -> u64 {
        match self {
            Self::Process => self.now_ns(),
            Self::Turns { .. } => self.now_ns() + elsewhere_ns,
        }
    }

    /// From now on the thread works for this target.
    pub(crate) fn enter(&mut self) {
        if let Self::Turns { entered_ns, .. } = self {
            *entered_ns = Some(clock::thread_cpu_ns());
        }
    }

    /// From now on the thread works for other targets.
    pub(crate) fn leave(&mut self) {
        let now_ns = self.now_ns();
        if let Self::Turns { spent_ns, entered_ns } = self {
            (*spent_ns, *entered_ns) = (now_ns, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work() {
        let begin_ns = clock::thread_cpu_ns();
        while clock::thread_cpu_ns() < begin_ns + 2_000_000 {}
    }

    #[test]
    fn turns_count_and_what_lies_between_them_does_not() {
        let mut own = OwnTime::of_turns(0);
        for _ in 0..3 {
            own.enter();
            work();
            own.leave();
            let then_ns = own.now_ns();
            work();
            assert_eq!(own.now_ns(), then_ns);
        }
        assert!(own.now_ns() >= 6_000_000);
        let mut process = OwnTime::Process;
        process.enter();
        let before_ns = process.now_ns();
        work();
        process.leave();
        assert!(process.now_ns() >= before_ns + 2_000_000);
    }
}
