//! Which processes' mappings are read again from `/proc`, and when.
//!
//! Without its mappings, no stack of a process has a name. Their records may be lost or damaged; a sample in
//! memory that was never reported shows this, too. A process decides how many mappings it has and how often they change, so
//! the time for reading them is bounded: that of each process, and that of all.

use rustc_hash::FxHashMap;

/// Shortest time between two rounds of reading mappings (ns), each of a limited number of processes.
const INTERVAL_NS: u64 = 50_000_000;
const AT_ONCE: usize = 64;
/// Own CPU time for reading one process, and all of them: one in this many of any time, but for one reading or round.
const TIME_PER_READING: u64 = 50;
const TIME_PER_ROUND: u64 = 10;
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
    /// Until when processes are left alone that took long to read (ns).
    rests: FxHashMap<u32, u64>,
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

    /// Reading a process at this moment took so much own CPU time.
    pub(super) fn took(&mut self, pid: u32, now_ns: u64, cpu_ns: u64) {
        self.rests.insert(pid, now_ns.saturating_add(cpu_ns.saturating_mul(TIME_PER_READING)));
        self.interval_ends_ns =
            self.interval_ends_ns.max(now_ns).saturating_add(cpu_ns.saturating_mul(TIME_PER_ROUND));
    }

    fn rests(&self, pid: u32, now_ns: u64) -> bool {
        self.rests.get(&pid).is_some_and(|&until_ns| now_ns < until_ns)
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
        if self.known_after.get(&pid).copied().unwrap_or(0) == self.losses || self.rests(pid, now_ns) {
            return false;
        }
        self.has_room(now_ns)
    }

    /// Whether to read a process for one mapping that says too little of itself. If not, it is read at a later sample.
    pub(super) fn is_asked_for(&mut self, pid: u32, now_ns: u64) -> bool {
        let is_read = !self.rests(pid, now_ns) && self.has_room(now_ns);
        if !is_read {
            self.owe(pid);
        }
        is_read
    }

    /// Whether to read a process that was sampled where nothing is mapped, as far as known at this `generation`.
    pub(super) fn is_worthwhile(&mut self, pid: u32, generation: u64, now_ns: u64) -> bool {
        self.begin_interval(now_ns);
        let last = self.pauses.get(&pid);
        let told_nothing = last.is_some_and(|last| last.generation == generation);
        let is_too_early = told_nothing && last.is_some_and(|last| now_ns < last.until_ns);
        if self.left == 0 || is_too_early || self.rests(pid, now_ns) {
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
        if !self.are_unreported || self.rests(pid, now_ns) {
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
        self.rests.remove(&pid);
    }

    fn has_room(&mut self, now_ns: u64) -> bool {
        self.begin_interval(now_ns);
        let has_room = self.left > 0;
        self.left -= usize::from(has_room);
        has_room
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

    #[test]
    fn a_process_with_many_mappings_is_read_for_a_small_share_of_the_time_whatever_it_does() {
        const READING_NS: u64 = 30_000_000; // 65,530 mappings
        let mut rereads = Rereads::default();
        let (mut spent_ns, mut generation) = (0, 0);
        for now_ns in (0..60_000).map(|ms| ms * 1_000_000) {
            rereads.lost();
            generation += 1; // it maps something new each time
            let is_read = match generation % 3 {
                0 => rereads.is_owed(7, now_ns),
                1 => rereads.is_asked_for(7, now_ns),
                _ => rereads.is_worthwhile(7, generation, now_ns),
            };
            if is_read {
                rereads.read(7);
                rereads.took(7, now_ns, READING_NS);
                spent_ns += READING_NS;
            }
        }
        assert!((1_100_000_000..=1_250_000_000).contains(&spent_ns), "{spent_ns} ns of a minute");
    }

    #[test]
    fn many_processes_that_map_something_all_the_time_are_read_for_a_tenth_of_the_time() {
        const READING_NS: u64 = 500_000;
        let mut rereads = Rereads::default();
        let mut spent_ns = 0;
        for now_ns in (0..10_000).map(|ms| ms * 1_000_000) {
            for pid in 1..=1_000 {
                if rereads.is_worthwhile(pid, now_ns, now_ns) {
                    rereads.took(pid, now_ns, READING_NS);
                    spent_ns += READING_NS;
                }
            }
        }
        assert!((800_000_000..=1_100_000_000).contains(&spent_ns), "{spent_ns} ns of ten seconds");
    }

    #[test]
    fn a_mapping_that_is_not_asked_for_now_is_read_at_a_later_sample() {
        let mut rereads = Rereads::default();
        assert!(rereads.is_asked_for(7, 0));
        rereads.took(7, 0, 1_000_000);
        assert!(!rereads.is_asked_for(7, 1_000_000));
        assert!(!rereads.is_owed(7, 2_000_000), "too early");
        assert!(rereads.is_owed(7, 100_000_000));
    }
}
