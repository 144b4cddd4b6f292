//! Threads of sampled processes without an agent's timer that were never announced: those created without the
//! C library.

use rustc_hash::FxHashSet;

use super::slots::SlotOwner;
use crate::sys::procfs;

/// Time of the first look (ns); each later one comes when a quarter more time has passed.
const FIRST_NS: u64 = 1_000_000_000;
const PART: u64 = 4;
/// Most processes that are examined.
const MOST_PROCESSES: usize = 32;

/// Threads without a timer.
#[derive(Default)]
pub(super) struct UnannouncedThreads {
    since_ns: Option<u64>,
    next_ns: u64,
    /// Without a timer at the last look: they may have been about to get one.
    doubtful: FxHashSet<u32>,
    /// Threads without a timer at two looks in a row.
    known: FxHashSet<u32>,
}

impl UnannouncedThreads {
    /// Looks for some, if it is time to.
    pub(super) fn look(&mut self, now_ns: u64, sampled: impl Iterator<Item = SlotOwner>) {
        let since_ns = *self.since_ns.get_or_insert(now_ns);
        if now_ns < self.next_ns.max(since_ns + FIRST_NS) {
            return;
        }
        self.next_ns = now_ns + ((now_ns - since_ns) / PART).max(FIRST_NS);
        let (mut processes, mut threads) = (FxHashSet::default(), FxHashSet::default());
        for SlotOwner { pid, tid } in sampled {
            if processes.len() < MOST_PROCESSES {
                processes.insert(pid);
            }
            threads.insert(tid);
        }
        let all = processes.into_iter().flat_map(procfs::threads);
        let without: FxHashSet<u32> = all.filter(|tid| !threads.contains(tid)).collect();
        self.known.extend(without.intersection(&self.doubtful));
        self.doubtful = without;
    }

    /// How many were found.
    pub(super) fn count(&self) -> u64 {
        self.known.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_thread_without_a_timer_at_two_looks_is_unannounced() {
        let own = std::process::id();
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || receiver.recv());
        let sampled = |tids: &[u32]| tids.iter().map(|&tid| SlotOwner { pid: own, tid }).collect::<Vec<_>>();
        let all = procfs::threads(own);
        let mut unannounced = UnannouncedThreads::default();
        for at_s in [1, 2, 5, 9] {
            unannounced.look(at_s * S, sampled(&all).into_iter());
        }
        assert!(unannounced.known.is_disjoint(&all.iter().copied().collect()));
        let mut unannounced = UnannouncedThreads::default();
        for (at_s, count) in [(1, 0), (2, 0), (2, 0), (4, 1)] {
            unannounced.look(at_s * S, sampled(&[own]).into_iter());
            assert_eq!(unannounced.count().min(1), count, "after {at_s} s");
        }
        drop(sender);
        assert!(other.join().is_ok());
    }
}
