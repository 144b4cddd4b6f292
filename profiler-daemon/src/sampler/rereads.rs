//! Whose mappings are to be read again from `/proc`, and when.
//!
//! Without its mappings, no stack of a process has a name. The records that tell of them may be lost, or damaged; a
//! sample in memory that nobody has told of says so, too.

use rustc_hash::{FxHashMap, FxHashSet};

/// Mappings are read again this often at most (ns), of so many processes each time.
const INTERVAL_NS: u64 = 50_000_000;
const AT_ONCE: usize = 64;
/// A process whose mappings told nothing new is asked again after this long at first, and at last (ns).
const FIRST_PAUSE_NS: u64 = 50_000_000;
const LONGEST_PAUSE_NS: u64 = 10_000_000_000;
/// Where no records tell of mappings, those of a process that is sampled are believed for so long (ns).
const BELIEVED_NS: u64 = 10_000_000_000;

/// What is owed to which process.
#[derive(Default)]
pub(super) struct Rereads {
    /// Processes of which a record may have been lost, the longest waiting first.
    owed: Vec<u32>,
    pauses: FxHashMap<u32, Pause>,
    /// Until when those of a process are believed without records (ns).
    believed: FxHashMap<u32, u64>,
    /// What may be read until the interval ends.
    left: usize,
    interval_ends_ns: u64,
}

/// A process that was sampled in memory that nobody has told of.
struct Pause {
    /// What was known when it was read.
    generation: u64,
    until_ns: u64,
    pause_ns: u64,
}

impl Rereads {
    /// A record was lost, perhaps of one of these processes.
    pub(super) fn lost(&mut self, live: impl Iterator<Item = u32>) {
        let waiting: FxHashSet<u32> = self.owed.iter().copied().collect();
        self.owed.extend(live.filter(|pid| !waiting.contains(pid)));
    }

    /// The processes that are to be read now.
    pub(super) fn due(&mut self, now_ns: u64) -> Vec<u32> {
        self.begin_interval(now_ns);
        let count = self.owed.len().min(self.left);
        self.left -= count;
        self.owed.drain(..count).collect()
    }

    /// Whether to read a process that was sampled where, by what is known at this `generation`, nothing is mapped.
    pub(super) fn is_worthwhile(&mut self, pid: u32, generation: u64, now_ns: u64) -> bool {
        self.begin_interval(now_ns);
        let last = self.pauses.get(&pid);
        let told_nothing = last.is_some_and(|last| last.generation == generation);
        if self.left == 0 || told_nothing && last.is_some_and(|last| now_ns < last.until_ns) {
            return false;
        }
        self.left -= 1;
        let pause_ns = match last {
            Some(last) if told_nothing => (2 * last.pause_ns).min(LONGEST_PAUSE_NS),
            _ => FIRST_PAUSE_NS,
        };
        self.pauses.insert(pid, Pause { generation, until_ns: now_ns + pause_ns, pause_ns });
        true
    }

    /// Whether to read a process of whose mappings no record tells: now and then, from its first sample on.
    pub(super) fn is_old(&mut self, pid: u32, now_ns: u64) -> bool {
        self.begin_interval(now_ns);
        let until_ns = self.believed.entry(pid).or_insert(now_ns + BELIEVED_NS);
        if now_ns < *until_ns || self.left == 0 {
            return false;
        }
        *until_ns = now_ns + BELIEVED_NS;
        self.left -= 1;
        true
    }

    /// A process has ended.
    pub(super) fn forget(&mut self, pid: u32) {
        self.pauses.remove(&pid);
        self.believed.remove(&pid);
        self.owed.retain(|&owed| owed != pid);
    }

    fn begin_interval(&mut self, now_ns: u64) {
        if now_ns >= self.interval_ends_ns {
            (self.left, self.interval_ends_ns) = (AT_ONCE, now_ns + INTERVAL_NS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_while_nothing_may_be_read_is_read_later() {
        let mut rereads = Rereads::default();
        rereads.lost(1..=3);
        assert_eq!(rereads.due(0), [1, 2, 3]);
        rereads.lost(1..=100);
        assert_eq!(rereads.due(INTERVAL_NS - 1).len(), AT_ONCE - 3);
        rereads.lost(1..=100);
        let later = rereads.due(INTERVAL_NS);
        assert_eq!((later.len(), later[0]), (AT_ONCE, AT_ONCE as u32 - 2), "who waits longest comes first");
        assert_eq!(rereads.due(2 * INTERVAL_NS).len(), 100 - AT_ONCE);
        rereads.lost(1..=2);
        rereads.forget(1);
        assert_eq!(rereads.due(3 * INTERVAL_NS), [2]);
        assert!(rereads.due(4 * INTERVAL_NS).is_empty());
    }

    #[test]
    fn a_process_that_tells_nothing_new_is_asked_more_and_more_rarely() {
        let mut rereads = Rereads::default();
        let asked = (0..60_000).filter(|ms| rereads.is_worthwhile(7, 1, ms * 1_000_000)).count();
        assert!((10..=20).contains(&asked), "{asked} times in a minute");
        assert!(rereads.is_worthwhile(7, 2, 60_000_000_000), "its mappings have changed");
        assert!(rereads.is_worthwhile(8, 2, 60_000_000_000), "another process");
    }

    #[test]
    fn what_no_record_tells_of_is_read_every_ten_seconds() {
        let mut rereads = Rereads::default();
        let read = (0..60_000).filter(|ms| rereads.is_old(7, ms * 1_000_000)).count();
        assert_eq!(read, 5, "not at the first sample: it was read then");
        rereads.forget(7);
        assert!(!rereads.is_old(7, 60_000_000_000), "another process of the same number");
    }

    #[test]
    fn any_number_of_processes_is_read_at_a_bounded_rate() {
        let mut rereads = Rereads::default();
        let asked = (0..10_000).filter(|&pid| rereads.is_worthwhile(pid, 1, 5)).count();
        assert_eq!(asked, AT_ONCE);
    }
}
