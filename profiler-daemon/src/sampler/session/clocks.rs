//! What processes used by the kernel's account, beside what their samples stand for.
//!
//! A process that lives has a clock, which is exact. Of one that has ended since its clock was read last, samples are all there is.

use rustc_hash::FxHashMap;

use crate::sys::clock;

/// Processes that are known at most: more than that do not live at a time.
const MOST: usize = 1 << 17;

/// What is known of one.
#[derive(Clone, Copy, Debug, Default)]
struct ProcessClock {
    /// What it showed when it was read last (ns).
    read_ns: u64,
    /// What the samples since then stand for (ns).
    sampled_ns: f64,
    /// Whether it was not known until now whose it is: nobody is told what it used.
    is_waiting: bool,
}

/// The clocks of all processes that are sampled.
#[derive(Debug, Default)]
pub(super) struct ProcessClocks {
    clocks: FxHashMap<u32, ProcessClock>,
}

/// CPU time of a target among others: by the clocks of its processes, and by the samples of those that have ended. The kernel's account of
/// waited-for children has also what others' processes used.
#[derive(Debug, Default)]
pub(super) struct ClockedCpu {
    clocks: ProcessClocks,
    cpu_ns: f64,
    /// The largest so far: a total never shrinks (ns).
    total_ns: u64,
}

impl ClockedCpu {
    pub(super) fn adopted(&mut self, pid: u32) {
        self.clocks.met(pid);
    }

    pub(super) fn born(&mut self, pid: u32) {
        self.clocks.born(pid);
    }

    pub(super) fn sampled(&mut self, pid: u32, weight_ns: u64) {
        self.clocks.sampled(pid, weight_ns);
        self.cpu_ns += weight_ns as f64;
    }

    /// It has ended, or is another's from now on.
    pub(super) fn left(&mut self, pid: u32) {
        self.cpu_ns += self.clocks.read_one(pid).unwrap_or(0.0);
        self.clocks.ended(pid);
    }

    /// Until now (ns).
    pub(super) fn read(&mut self) -> u64 {
        self.cpu_ns += self.clocks.read(true).into_iter().map(|(_, off_ns)| off_ns).sum::<f64>();
        self.total_ns = self.total_ns.max(self.cpu_ns as u64);
        self.total_ns
    }
}

impl ProcessClocks {
    /// A process begins.
    pub(super) fn born(&mut self, pid: u32) {
        if self.clocks.len() < MOST {
            self.clocks.insert(pid, ProcessClock::default());
        }
    }

    /// One is met that may have run for long: what it used before is nobody's.
    pub(super) fn met(&mut self, pid: u32) {
        if self.clocks.len() < MOST {
            let now =
                || ProcessClock { read_ns: clock::process_cpu_ns(pid).unwrap_or(0), ..Default::default() };
            self.clocks.entry(pid).or_insert_with(now);
        }
    }

    /// It waits to be looked at.
    pub(super) fn is_waiting(&mut self, pid: u32) {
        self.clocks.entry(pid).and_modify(|clock| clock.is_waiting = true);
    }

    /// It was.
    pub(super) fn is_known(&mut self, pid: u32) {
        self.clocks.entry(pid).and_modify(|clock| clock.is_waiting = false);
    }

    /// A sample of it stands for so much (ns).
    pub(super) fn sampled(&mut self, pid: u32, weight_ns: u64) {
        if let Some(clock) = self.clocks.get_mut(&pid) {
            clock.sampled_ns += weight_ns as f64;
        }
    }

    /// What it used until a moment that has passed, which only its samples tell.
    pub(super) fn settle_by_samples(&mut self, pid: u32) {
        if let Some(clock) = self.clocks.get_mut(&pid) {
            clock.read_ns += std::mem::take(&mut clock.sampled_ns) as u64;
        }
    }

    /// It has ended.
    pub(super) fn ended(&mut self, pid: u32) {
        self.clocks.remove(&pid);
    }

    /// By how much each process that was sampled since the last time, or each of all, used more than its samples stand for (ns).
    pub(super) fn read(&mut self, is_each: bool) -> Vec<(u32, f64)> {
        let is_asked = |clock: &ProcessClock| !clock.is_waiting && (is_each || clock.sampled_ns > 0.0);
        let asked = self.clocks.iter_mut().filter(|(_, clock)| is_asked(clock));
        asked.filter_map(|(pid, clock)| Some((*pid, clock.read(*pid)?))).collect()
    }

    /// The same for one.
    pub(super) fn read_one(&mut self, pid: u32) -> Option<f64> {
        self.clocks.get_mut(&pid).and_then(|clock| clock.read(pid))
    }
}

impl ProcessClock {
    fn read(&mut self, pid: u32) -> Option<f64> {
        let now_ns = clock::process_cpu_ns(pid)?;
        // One that is behind belongs to another process of this number, whose birth was not told.
        let used_ns = now_ns.saturating_sub(self.read_ns) as f64;
        self.read_ns = now_ns;
        Some(used_ns - std::mem::take(&mut self.sampled_ns))
    }
}
