//! Whether samples at the kernel's tick can be believed: they are compared with the clock's and with the scheduler's account.
//!
//! A program that is locked to the tick is hit always or never, or always in the same function. Three things show it:
//! ticks against the CPU time that the scheduler charged, for the whole target and for each thread, and the functions that
//! ticks and clock samples hit in the same second of CPU time. All of it is tested as it comes, without a time at which it
//! is over, so each test is an *e-process*: a quantity that is 1 or less on average at any time if nothing is wrong, and so
//! exceeds 1/α with probability α at most (Ville). Since a program may lock at any time, each begins anew all the time
//! (`detector`); then false alarms are counted per time, here per day of the target's CPU time.
//!
//! What is asked of an unlocked program is weak. **Counts:** given the past and the CPU time of a tick's length, the tick hits
//! the target with a probability of HZ times that time. Nothing is asked of the dependence between one tick and the next, nor that
//! they be Poisson's: hits are 0 or 1, and 1 + x ≤ eˣ. CPUs tick together, so of the hits at one instant one counts
//! (`instants`). **Functions:** given which functions were hit in the block, by anyone,
//! it is chance which of the hits were the clock's. For draws without replacement θˣ is on average at most what it is with
//! replacement (Hoeffding), and where both sources spread over the block, less. A program that changes its phase is hit by both,
//! as long as the clock's rate stays: where that changes, a block ends.
//!
//! Small differences are none ([`AuditSettings`]): ticks are lost where a host steals time, and a tick is never seen
//! in the work that ticks cause themselves.

mod counts;
mod detector;
mod instants;
mod shares;
mod whole;

use rustc_hash::FxHashMap;

use self::counts::CountTest;
use self::instants::Instants;
use self::shares::ShareTest;
pub use self::whole::{Both, agree};

/// Families of tests that share the false alarms.
const FAMILIES: f64 = 3.0;
/// What a thread has used, and the target beside it, counts less by this with each block: for some hundred of them.
const FADING: f64 = 0.99;
/// CPU time that is compared at once (ns).
const BLOCK_NS: u64 = 1_000_000_000;
/// Threads that are followed one by one; of more, those that came first.
const MOST_THREADS: usize = 4_096;
const DAY_NS: f64 = 86_400e9;

/// What a summary says of ticks that are in the profile.
pub const BELIEVED: &str = "believed";

/// What an audit allows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AuditSettings {
    /// Ticks that a busy CPU has in a second, as measured.
    pub hz: f64,
    /// False alarms per day of the target's CPU time, at most.
    pub false_alarms_per_day: f64,
    /// By how much ticks may differ from CPU time, as a ratio of it.
    pub count_tolerance_ratio: f64,
    /// By how much the shares of a function may differ. A thread with a smaller share of the CPU time can move none by more.
    pub share_tolerance_ratio: f64,
    /// Whether the target's CPU time is one that ticks can be held against: not where it was counted at ticks itself.
    pub has_total: bool,
}

impl Default for AuditSettings {
    fn default() -> Self {
        AuditSettings {
            hz: 250.0,
            false_alarms_per_day: 0.01,
            count_tolerance_ratio: 0.1,
            share_tolerance_ratio: 0.02,
            has_total: true,
        }
    }
}

/// What disagrees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disagreement {
    /// Ticks that hit the target do not fit its CPU time.
    Total,
    /// Those of this thread do not fit its CPU time.
    Thread(u32),
    /// Ticks hit this function (by the caller's key) more often than the clock does, or more rarely.
    Function(u64),
}

/// A disagreement and when it was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Finding {
    /// What disagrees.
    pub what: Disagreement,
    /// The target's CPU time since the audit began (s).
    pub at_cpu_s: f64,
}

/// A thread that is followed.
#[derive(Clone, Copy, Debug, Default)]
struct Thread {
    test: CountTest,
    /// What it has used of late, and the target has meanwhile (ns).
    cpu_ns: f64,
    target_ns: f64,
}

/// Compares the two sources.
#[derive(Clone, Debug)]
pub struct Audit {
    settings: AuditSettings,
    /// Ticks that are sampled in a second of a busy CPU.
    hz: f64,
    total: CountTest,
    threads: FxHashMap<u32, Thread>,
    functions: ShareTest,
    instants: Instants,
    cpu_ns: u64,
    block_ns: u64,
    /// CPU time of the functions' block.
    functions_ns: u64,
    finding: Option<Finding>,
}

impl Audit {
    /// An audit that has seen nothing.
    pub fn new(settings: AuditSettings) -> Self {
        Audit {
            settings,
            hz: settings.hz,
            total: CountTest::default(),
            threads: FxHashMap::default(),
            functions: ShareTest::default(),
            instants: Instants::default(),
            cpu_ns: 0,
            block_ns: 0,
            functions_ns: 0,
            finding: None,
        }
    }

    /// A tick hit `thread` in `function`, on a CPU at a time (ns) of any clock; told in the order of time. No function where the clock's samples
    /// are not to be held against it.
    pub fn tick(&mut self, thread: u32, function: Option<u64>, (cpu, at_ns): (u32, u64)) {
        if let Some(thread) = self.threads.get_mut(&thread) {
            thread.test.hit();
        }
        if self.instants.counts(cpu, at_ns, 1e9 / self.settings.hz) {
            self.total.hit();
            if let Some(function) = function {
                self.functions.tick(function);
            }
        }
    }

    /// The clock hit `function`.
    pub fn clock(&mut self, function: u64) {
        self.functions.clock(function);
    }

    /// `thread` has used `cpu_ns` since it was last said; ticks of threads of which nothing is said are not compared with it. To be
    /// said of a thread when it is first known (with 0), and before each [`charge`](Self::charge).
    pub fn charge_thread(&mut self, thread: u32, cpu_ns: u64) {
        if self.threads.len() < MOST_THREADS || self.threads.contains_key(&thread) {
            let thread = self.threads.entry(thread).or_default();
            thread.test.charge(cpu_ns);
            thread.cpu_ns += cpu_ns as f64;
        }
    }

    /// A thread has ended.
    pub fn ended(&mut self, thread: u32) {
        self.threads.remove(&thread);
    }

    /// Whether the next [`charge`](Self::charge), of `cpu_ns`, is going to compare.
    pub fn compares_after(&self, cpu_ns: u64) -> bool {
        self.block_ns.saturating_add(cpu_ns) >= BLOCK_NS
    }

    /// The target has used `cpu_ns` since this was last said, in which the samples fell that were told since then. Compares, once
    /// there is a second to compare; what was found first stays found.
    pub fn charge(&mut self, cpu_ns: u64) -> Option<Finding> {
        self.cpu_ns = self.cpu_ns.saturating_add(cpu_ns);
        self.block_ns = self.block_ns.saturating_add(cpu_ns);
        self.functions_ns = self.functions_ns.saturating_add(cpu_ns);
        self.total.charge(cpu_ns);
        if self.block_ns >= BLOCK_NS {
            let found = self.compare();
            self.block_ns = 0;
            self.found(found);
        }
        self.finding
    }

    /// Instead of [`charge`](Self::charge) where samples were lost among those that were told: they do not fit the CPU time, and
    /// that says nothing. Nor does what was found by counts, if it was found just before.
    pub fn restart_counts(&mut self, cpu_ns: u64) {
        self.cpu_ns = self.cpu_ns.saturating_add(cpu_ns);
        self.functions_ns = self.functions_ns.saturating_add(cpu_ns);
        self.block_ns = 0;
        self.forget_counts();
        self.finding = self.finding.filter(|finding| matches!(finding.what, Disagreement::Function(_)));
    }

    fn forget_counts(&mut self) {
        self.total = CountTest::default();
        self.threads.values_mut().for_each(|thread| thread.test = CountTest::default());
    }

    /// The clock's rate is another from now on: which of a function's hits are the clock's is chance only while both rates stay.
    /// To be said after [`charge`](Self::charge).
    pub fn rate_changed(&mut self) {
        if !self.instants.are_more() {
            let found = self.compare_functions();
            self.found(found);
        } else {
            self.begin_anew();
        }
    }

    /// From now on one in `every` ticks is sampled, about. What was counted until now is left out of the tests of counts.
    pub fn thin(&mut self, every: f64) {
        self.rate_changed();
        self.hz = self.settings.hz / every.max(1.0);
        self.forget_counts();
    }

    fn found(&mut self, found: Option<Disagreement>) {
        let at_cpu_s = self.cpu_ns as f64 * 1e-9;
        self.finding = self.finding.or(found.map(|what| Finding { what, at_cpu_s }));
    }

    /// What more CPUs were hit at once than was thought says nothing.
    fn begin_anew(&mut self) {
        (self.total, self.functions) = (CountTest::default(), ShareTest::default());
        self.functions_ns = 0;
    }

    /// What was found.
    pub fn finding(&self) -> Option<Finding> {
        self.finding
    }

    fn compare(&mut self) -> Option<Disagreement> {
        let (settings, hz, limit) = (self.settings, self.hz, self.limit());
        if self.instants.are_more() {
            self.begin_anew();
        }
        let of_all = self.hz / self.instants.one_in();
        let total = self.total.close(&settings, 0, of_all) > limit && settings.has_total;
        let block_ns = self.block_ns as f64;
        // A thread's block is as long as a target's, so that all threads together begin anew once in that time.
        let is_off = |thread: &mut Thread| {
            thread.target_ns += block_ns;
            let matters = thread.cpu_ns >= settings.share_tolerance_ratio * thread.target_ns;
            (thread.cpu_ns, thread.target_ns) = (FADING * thread.cpu_ns, FADING * thread.target_ns);
            thread.test.close(&settings, BLOCK_NS, hz) > limit && matters
        };
        let thread =
            self.threads.iter_mut().filter_map(|(number, thread)| is_off(thread).then_some(*number)).min();
        let by_thread = thread.map(Disagreement::Thread);
        let by_function = self.compare_functions();
        total.then_some(Disagreement::Total).or(by_thread).or(by_function)
    }

    fn compare_functions(&mut self) -> Option<Disagreement> {
        let days = std::mem::take(&mut self.functions_ns) as f64 / DAY_NS;
        let (log_e, function) = self.functions.close(days, self.settings.share_tolerance_ratio);
        (log_e > self.limit()).then_some(Disagreement::Function(function))
    }

    /// The logarithm of the evidence (days) from which it is enough.
    fn limit(&self) -> f64 {
        (FAMILIES / self.settings.false_alarms_per_day).ln()
    }
}

#[cfg(test)]
mod tests;
