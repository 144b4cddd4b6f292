//! How fast windows are named. Many windows end together when many targets end, and after a start every object
//! has to be read again, so names are paced by the host's budget, object by object.
//!
//! Naming gets 35% of the host's budget over ten seconds, including the work of handing windows over, as
//! far as everything else leaves it. Requests do not wait for budget, and no object waits to be begun for longer than 60 s
//! after its window ended, which is what all objects of hundreds of targets take after a start. What the coming windows will take
//! is withheld from the targets' budgets.
//!
//! A large object alone may cost more than the host's budget has room for in ten seconds. So the process that reads it
//! is stopped while there is no room, also after these 60 s: for a minute at most in each request to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};

/// Naming may spend at once what it earns in this time (ns). That comes on top of the cost of samples, which only make
/// room for names over minutes. It is little, so that ten seconds in which windows end stay within the host's budget.
const DEPTH_NS: f64 = 2e9;
/// The debt is at most what naming earns in this time (ns), so that nothing waits longer. It is the time that the
/// host's budget is kept over.
const DEBT_NS: f64 = 10e9;
/// An object is only begun if the host's budget has room for this part of what naming earns in ten seconds: its cost is
/// only known afterwards.
const LEAST_ROOM: f64 = 0.25;
/// A window waits at most this long in all (ns), unless a request wants it; meanwhile it is on the disk. With less, the
/// objects of hundreds of targets could not be named within the budget after a start. With more, the service would
/// report that it is not ready.
const LONGEST_NS: u64 = 60_000_000_000;

/// The budget that the loop grants to the naming thread. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct NameBudget {
    /// CPUs that names may take; bits of a float.
    cpus: Arc<AtomicU64>,
    /// What the host's budget has room for now (ns).
    room_ns: Arc<AtomicI64>,
    /// What was spent on names (ns).
    spent_ns: Arc<AtomicU64>,
    /// The clock of naming when the object that is being read was begun, or its time last booked (ns); 0 while nothing is read.
    reading_since_ns: Arc<AtomicU64>,
    /// The part spent by other threads and not yet subtracted from the pace's level (ns).
    beside_ns: Arc<AtomicU64>,
    /// Requests that wait for the queue.
    urgent: Arc<AtomicUsize>,
    /// Whether the service is shutting down: nothing waits then.
    is_ending: Arc<AtomicBool>,
}

impl NameBudget {
    /// From now on names may take `cpus` CPUs, and `room_ns` at once.
    pub(crate) fn allow(&self, cpus: f64, room_ns: f64) {
        self.cpus.store(cpus.to_bits(), Ordering::Relaxed);
        self.room_ns.store(room_ns as i64, Ordering::Relaxed);
    }

    /// CPU time that was spent on names, with what is not booked yet of the object that is being read (ns): a large one takes
    /// several of the loop's steps, which would take it for something else until then. `naming_ns` is the clock of naming.
    pub(crate) fn spent_ns(&self, naming_ns: u64) -> u64 {
        let not_booked_ns = match self.reading_since_ns.load(Ordering::Relaxed) {
            0 => 0,
            since_ns => naming_ns.saturating_sub(since_ns),
        };
        self.spent_ns.load(Ordering::Relaxed) + not_booked_ns
    }

    /// An object is read from here on, by the clock of naming (ns), or none.
    pub(crate) fn reads_since(&self, naming_ns: Option<u64>) {
        self.reading_since_ns.store(naming_ns.unwrap_or(0), Ordering::Relaxed);
    }

    fn has_room(&self) -> bool {
        self.room_ns.load(Ordering::Relaxed) as f64 >= LEAST_ROOM * self.cpus() * DEBT_NS
    }

    fn spend(&self, spent_ns: u64) {
        self.spent_ns.fetch_add(spent_ns, Ordering::Relaxed);
        self.room_ns.fetch_sub(spent_ns as i64, Ordering::Relaxed);
    }

    /// Adds `spent_ns`, which other threads spent on windows before these came to the naming thread: it waits to make
    /// up for it.
    pub(crate) fn spend_beside(&self, spent_ns: u64) {
        self.spend(spent_ns);
        self.beside_ns.fetch_add(spent_ns, Ordering::Relaxed);
    }

    fn cpus(&self) -> f64 {
        f64::from_bits(self.cpus.load(Ordering::Relaxed))
    }

    /// Notes that one more request waits for the queue.
    pub(crate) fn add_urgent(&self) {
        self.urgent.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that one request fewer waits for the queue.
    pub(crate) fn remove_urgent(&self) {
        let _ =
            self.urgent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |waiting| waiting.checked_sub(1));
    }

    /// From now on nothing waits.
    pub(crate) fn end(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
    }

    /// Whether reading an object may continue. It took `spent_ns` since the last call, and its cost is not known
    /// beforehand.
    pub(crate) fn may_read_on(&self, spent_ns: u64) -> bool {
        self.room_ns.fetch_sub(spent_ns as i64, Ordering::Relaxed);
        self.waits_for_nothing() || self.has_room()
    }

    /// Whether nothing waits for CPU time.
    fn waits_for_nothing(&self) -> bool {
        self.cpus() <= 0.0 || self.is_urgent() || self.is_ending.load(Ordering::Relaxed)
    }

    /// Whether a request waits.
    pub(crate) fn is_urgent(&self) -> bool {
        self.urgent.load(Ordering::Relaxed) > 0
    }
}

/// A token bucket of CPU time.
#[derive(Debug)]
pub(crate) struct NamingPace {
    pub(crate) budget: NameBudget,
    level_ns: f64,
    settled_ns: u64,
}

impl NamingPace {
    /// An empty bucket: the first seconds have to pay for attaching.
    pub(crate) fn new(budget: NameBudget, now_ns: u64) -> Self {
        Self { level_ns: 0.0, settled_ns: now_ns, budget }
    }

    /// Books `spent_ns`, which was spent until `now_ns`.
    pub(crate) fn settle(&mut self, now_ns: u64, spent_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.settled_ns);
        self.settled_ns = self.settled_ns.max(now_ns);
        let depth_ns = self.budget.cpus() * DEPTH_NS;
        let level_ns = (self.level_ns + self.budget.cpus() * passed_ns as f64).min(depth_ns);
        let beside_ns = self.budget.beside_ns.swap(0, Ordering::Relaxed);
        let debt_ns = self.budget.cpus() * DEBT_NS;
        self.level_ns = (level_ns - (spent_ns + beside_ns) as f64).max(-debt_ns);
        self.budget.spend(spent_ns);
    }

    /// How long to wait before the next object of a window that was handed over at `handed_ns`, as far as is known now
    /// (ns). Nothing waits while a request does: names of later windows make up for it.
    pub(crate) fn pause_ns(&self, now_ns: u64, handed_ns: u64) -> u64 {
        if self.budget.waits_for_nothing() {
            return 0;
        }
        let cpus = self.budget.cpus();
        let passed_ns = now_ns.saturating_sub(self.settled_ns) as f64;
        let pause_ns = match self.budget.has_room() {
            true => (-self.level_ns / cpus - passed_ns).clamp(0.0, DEBT_NS),
            false => DEBT_NS, // or until there is
        };
        (pause_ns as u64).min(handed_ns.saturating_add(LONGEST_NS).saturating_sub(now_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn pace(cpus: f64) -> NamingPace {
        let budget = NameBudget::default();
        budget.allow(cpus, f64::INFINITY);
        let mut pace = NamingPace::new(budget, 0);
        pace.settle(10 * SECOND_NS, 0);
        pace
    }

    /// From the moment that it is full (s).
    fn pause_s(pace: &NamingPace, now_s: u64, handed_s: u64) -> f64 {
        pace.pause_ns((10 + now_s) * SECOND_NS, (10 + handed_s) * SECOND_NS) as f64 * 1e-9
    }

    #[test]
    fn what_two_seconds_bring_is_spent_at_once_and_the_rest_as_it_comes() {
        let mut pace = pace(0.01);
        pace.settle(10 * SECOND_NS, SECOND_NS / 50);
        assert_eq!(pause_s(&pace, 0, 0), 0.0);
        pace.settle(10 * SECOND_NS, SECOND_NS / 20);
        assert_eq!(pause_s(&pace, 0, 0), 5.0);
        assert_eq!(pause_s(&pace, 2, 0), 3.0);
        pace.settle(15 * SECOND_NS, 0);
        assert_eq!(pause_s(&pace, 5, 0), 0.0);
        // Of a great debt no more than ten seconds are waited for.
        pace.settle(15 * SECOND_NS, 100 * SECOND_NS);
        assert_eq!(pause_s(&pace, 5, 5), 10.0);
    }

    #[test]
    fn after_a_start_names_wait() {
        let budget = NameBudget::default();
        budget.allow(0.01, f64::INFINITY);
        let mut pace = NamingPace::new(budget, 0);
        pace.settle(0, SECOND_NS / 50);
        assert_eq!(pace.pause_ns(0, 0), 2 * SECOND_NS);
    }

    #[test]
    fn names_wait_for_what_handing_windows_over_took() {
        let mut pace = pace(0.01);
        pace.budget.spend_beside(SECOND_NS / 20);
        pace.settle(10 * SECOND_NS, 0);
        assert!((pause_s(&pace, 0, 0) - 3.0).abs() < 1e-6);
        assert_eq!(pace.budget.spent_ns(0), SECOND_NS / 20);
        // What is not booked yet is spent, too.
        pace.budget.reads_since(Some(7));
        assert_eq!(pace.budget.spent_ns(7 + SECOND_NS), SECOND_NS / 20 + SECOND_NS);
        pace.budget.reads_since(None);
        assert_eq!(pace.budget.spent_ns(7 + SECOND_NS), SECOND_NS / 20);
        pace.settle(13 * SECOND_NS, 0);
        assert_eq!(pause_s(&pace, 3, 0), 0.0, "it was taken off once");
    }

    #[test]
    fn no_window_waits_for_ever_and_who_asks_does_not_wait() {
        let mut pace = pace(0.01);
        pace.settle(10 * SECOND_NS, SECOND_NS);
        assert_eq!(pause_s(&pace, 0, 0), 10.0);
        pace.settle(20 * SECOND_NS, SECOND_NS);
        pace.budget.allow(0.01, 0.0);
        assert_eq!(pause_s(&pace, 55, 0), 5.0, "there is no room");
        assert_eq!(pause_s(&pace, 60, 0), 0.0);
        pace.budget.add_urgent();
        assert_eq!(pause_s(&pace, 10, 10), 0.0, "though there is no room");
        pace.budget.allow(0.01, f64::INFINITY);
        pace.budget.remove_urgent();
        pace.budget.remove_urgent();
        assert_eq!(pause_s(&pace, 10, 9), 10.0);
    }

    #[test]
    fn an_object_is_read_on_while_there_is_room() {
        let budget = NameBudget::default();
        assert!(budget.may_read_on(SECOND_NS), "nothing is bounded yet");
        budget.allow(0.01, SECOND_NS as f64 / 20.0);
        assert!(budget.may_read_on(SECOND_NS / 50));
        assert!(!budget.may_read_on(SECOND_NS / 50), "what is left is too little");
        budget.add_urgent();
        assert!(budget.may_read_on(0), "a request waits for it");
        budget.remove_urgent();
        assert!(!budget.may_read_on(0));
        budget.allow(0.01, SECOND_NS as f64 / 20.0);
        assert!(budget.may_read_on(0), "it is there again");
        budget.allow(0.01, 0.0);
        budget.end();
        assert!(budget.may_read_on(SECOND_NS), "the service ends");
    }

    #[test]
    fn names_wait_where_all_else_leaves_no_room() {
        let mut pace = pace(0.01);
        pace.budget.allow(0.01, 0.05e9);
        assert_eq!(pause_s(&pace, 0, 0), 0.0);
        pace.settle(10 * SECOND_NS, SECOND_NS / 25);
        assert_eq!(pause_s(&pace, 0, 0), 10.0);
        assert_eq!(pause_s(&pace, 55, 0), 5.0);
        assert_eq!(pace.budget.spent_ns(0), SECOND_NS / 25);
        pace.budget.allow(0.01, 0.05e9);
        assert_eq!(pause_s(&pace, 0, 0), 2.0);
    }

    #[test]
    fn at_the_end_and_without_a_budget_nothing_waits() {
        let mut ending = pace(0.01);
        ending.settle(10 * SECOND_NS, SECOND_NS);
        ending.budget.end();
        assert_eq!(pause_s(&ending, 0, 0), 0.0);
        let mut free = pace(0.0);
        free.settle(10 * SECOND_NS, SECOND_NS);
        assert_eq!(pause_s(&free, 0, 0), 0.0);
    }
}
