//! Threads of a process with an agent, as they start and end: the agent is not notified of them, so they are
//! listed from here.

use std::collections::BTreeSet;

use crate::sys::procfs;

/// How often threads are looked for (ns), unless that takes long.
const BETWEEN_LOOKS_NS: u64 = 100_000_000;
/// A look takes no more than this part of the time.
const SHARE: u64 = 500;

/// What the last look found.
#[derive(Default)]
pub(crate) struct ThreadList {
    known: BTreeSet<u32>,
    /// Where the next few begin.
    turn: u32,
    next_look_ns: u64,
}

/// What has changed since then.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ThreadChanges {
    /// Threads that have come.
    pub(crate) come: Vec<u32>,
    /// Those that have ended.
    pub(crate) gone: Vec<u32>,
}

impl ThreadList {
    /// Those that an agent has found by itself.
    pub(crate) fn begin(&mut self, threads: impl IntoIterator<Item = u32>) {
        self.known = threads.into_iter().collect();
    }

    /// Looks, if it is time to.
    pub(crate) fn look(
        &mut self,
        pid: u32,
        now_ns: u64,
        clock_ns: impl Fn() -> u64,
    ) -> Option<ThreadChanges> {
        if now_ns < self.next_look_ns {
            return None;
        }
        let changes = self.compare(procfs::threads(pid));
        let took_ns = clock_ns().saturating_sub(now_ns);
        self.next_look_ns = now_ns + BETWEEN_LOOKS_NS.max(took_ns * SHARE);
        Some(changes)
    }

    /// A few of them, others every time, until it is the turn of the first again.
    pub(crate) fn some(&mut self, most: usize) -> Vec<u32> {
        let (before, after) = (self.known.range(..self.turn), self.known.range(self.turn..));
        let some: Vec<u32> = after.chain(before).copied().take(most).collect();
        self.turn = some.last().map_or(0, |last| last.wrapping_add(1));
        some
    }

    fn compare(&mut self, threads: Vec<u32>) -> ThreadChanges {
        let now: BTreeSet<u32> = threads.into_iter().collect();
        let come = now.difference(&self.known).copied().collect();
        let gone = self.known.difference(&now).copied().collect();
        self.known = now;
        ThreadChanges { come, gone }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_come_and_go_are_told_once() {
        let mut threads = ThreadList::default();
        threads.begin([1, 2]);
        assert_eq!(threads.compare(vec![1, 2]), ThreadChanges::default());
        assert_eq!(threads.compare(vec![3, 1]), ThreadChanges { come: vec![3], gone: vec![2] });
        assert_eq!(threads.compare(vec![3, 1]), ThreadChanges::default());
    }

    #[test]
    fn it_is_every_threads_turn() {
        let mut threads = ThreadList::default();
        assert!(threads.some(2).is_empty());
        threads.begin([1, 2, 5, u32::MAX]);
        assert_eq!(
            [2, 1, 2, 9].map(|most| threads.some(most)),
            [vec![1, 2], vec![5], vec![u32::MAX, 1], vec![2, 5, u32::MAX, 1]]
        );
    }

    #[test]
    fn a_look_that_takes_long_is_not_taken_often() {
        let mut threads = ThreadList::default();
        let pid = std::process::id();
        assert!(threads.look(pid, 1_000, || 2_001_000).is_some_and(|changes| !changes.come.is_empty()));
        assert_eq!(threads.next_look_ns, 1_000 + 1_000_000_000);
        threads.known.clear();
        assert_eq!(threads.look(pid, 1_000_000_000, || 0), None, "too soon");
    }
}
