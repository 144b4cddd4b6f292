//! Which processes' mappings are read again from `/proc`, and when.
//!
//! Without its mappings, no stack of a process has a name. Their records may be lost or damaged; a sample in
//! memory that was never reported shows this, too.

use rustc_hash::FxHashMap;

/// Shortest time between two rounds of reading mappings (ns), each of a limited number of processes.
const INTERVAL_NS: u64 = 50_000_000;
const AT_ONCE: usize = 64;
/// Pause before a process is read again if that brought nothing new, at first and at most (ns).
const FIRST_PAUSE_NS: u64 = 50_000_000;
const LONGEST_PAUSE_NS: u64 = 10_000_000_000;
/// If no records report mappings, those of a sampled process are considered current for this time (ns).
const BELIEVED_NS: u64 = 10_000_000_000;
/// Marks a process whose mappings have to be read: no count of losses equals it.
const NEVER: u64 = u64::MAX;

/// Which processes have to be read again.
#[derive(Default)]
pub(super) struct Rereads {
    /// Whether no record reports mappings, so that those of sampled processes are read now and then.
    are_unreported: bool,
    /// Times that records were lost.
    losses: u64,
    /// The value of `losses` when a process' mappings were last read, or [`NEVER`]; a process that isn't listed
    /// counts as 0.
    known_after: FxHashMap<u32, u64>,
    pauses: FxHashMap<u32, Pause>,
    /// Until when those of a process are believed without records (ns).
    believed: FxHashMap<u32, u64>,
    /// How many processes may still be read in this interval.
    left: usize,
    interval_ends_ns: u64,
}

/// A process that was sampled in memory that was never reported.
struct Pause {
    /// The generation of its known mappings when it was read.
    generation: u64,
    until_ns: u64,
    pause_ns: u64,
}

impl Rereads {
    /// Sets whether records report mappings from now on. If so, those of mappings until now count as lost.
    pub(super) fn set_reported(&mut self, reported: bool) {
        self.are_unreported = !reported;
        self.lost();
    }

    /// A record was lost or could not be decoded, perhaps a mapping of any known process; without it, every stack through
    /// its code would be broken from then on. So each process is read when it is sampled next.
    pub(super) fn lost(&mut self) {
        self.losses += u64::from(!self.are_unreported);
    }

    /// Marks a process to be read: what is known of it is not enough.
    pub(super) fn owe(&mut self, pid: u32) {
        self.known_after.insert(pid, NEVER);
    }

    /// The mappings of a process were read.
    pub(super) fn read(&mut self, pid: u32) {
        match self.losses {
            0 => self.known_after.remove(&pid), // most sessions lose nothing
            losses => self.known_after.insert(pid, losses),
        };
    }

    /// A process has the mappings of another, as far as these are known.
    pub(super) fn inherited(&mut self, pid: u32, parent: u32) {
        match self.known_after.get(&parent).copied() {
            Some(known_after) => self.known_after.insert(pid, known_after),
            None => self.known_after.remove(&pid),
        };
    }

    /// Whether to read a process that was sampled, since a record of it may have been lost.
    pub(super) fn is_owed(&mut self, pid: u32, now_ns: u64) -> bool {
        if self.known_after.get(&pid).copied().unwrap_or(0) == self.losses {
            return false;
        }
        self.begin_interval(now_ns);
        let has_room = self.left > 0;
        self.left -= usize::from(has_room);
        has_room
    }

    /// Whether to read a process that was sampled where nothing is mapped, as far as known at this `generation`.
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

    /// Whether to read a process that was sampled, since no record reports its mappings: now and then, from its first
    /// sample on.
    pub(super) fn is_old(&mut self, pid: u32, now_ns: u64) -> bool {
        if !self.are_unreported {
            return false;
        }
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
        self.known_after.remove(&pid);
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

    /// Who of these is read when all of them are sampled at this moment.
    fn read(rereads: &mut Rereads, pids: std::ops::RangeInclusive<u32>, now_ns: u64) -> Vec<u32> {
        let due: Vec<u32> = pids.filter(|&pid| rereads.is_owed(pid, now_ns)).collect();
        due.iter().for_each(|&pid| rereads.read(pid));
        due
    }

    #[test]
    fn after_a_loss_whoever_is_sampled_is_read_once() {
        let mut rereads = Rereads::default();
        assert!(read(&mut rereads, 1..=3, 0).is_empty());
        rereads.lost();
        rereads.lost();
        assert_eq!(read(&mut rereads, 2..=3, 0), [2, 3]);
        assert!(read(&mut rereads, 2..=3, INTERVAL_NS).is_empty());
        rereads.inherited(4, 1);
        rereads.inherited(5, 2);
        rereads.read(6); // it was met after the loss
        assert_eq!(read(&mut rereads, 4..=6, INTERVAL_NS), [4], "its parent's were not read yet");
        rereads.lost();
        assert_eq!(read(&mut rereads, 1..=6, 2 * INTERVAL_NS), [1, 2, 3, 4, 5, 6]);
        rereads.owe(3);
        assert_eq!(read(&mut rereads, 1..=6, 3 * INTERVAL_NS), [3]);
    }

    #[test]
    fn what_is_lost_of_many_is_read_little_by_little() {
        let mut rereads = Rereads::default();
        rereads.lost();
        assert_eq!(read(&mut rereads, 1..=100, 0).len(), AT_ONCE);
        assert!(read(&mut rereads, 1..=100, INTERVAL_NS - 1).is_empty());
        assert_eq!(read(&mut rereads, 1..=100, INTERVAL_NS).len(), 100 - AT_ONCE);
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
        rereads.set_reported(false);
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
