//! Context switches of the target, which events of single threads or of a control group make dearer.

use std::io;

use rustc_hash::FxHashMap;

use crate::cgroup::Cgroup;
use crate::sys::limits::{self, OnlineCpu};
use crate::sys::perf_event::Event;
use crate::sys::procfs::SwitchCounter;

/// Threads whose context switches are read; the rest is estimated from them.
const THREADS_READ: usize = 16;
/// Most threads whose files are kept open: so few threads are read at each step.
const FILES_KEPT: usize = 8;

/// How long the kernel looks for a thread's events at each context switch after the last event was closed anywhere
/// (ns).
const LINGERS_NS: u64 = 1_000_000_000;
/// Cost of such a switch, as a share of the calibrated cost of a switch with events. With two threads at real-time
/// priority that only switch, a switch took 2.20 µs, 0.25 µs more in that second, 1.42 µs more with clocks, and 1.90 µs
/// more with clocks and an alarm. The calibration, whose halves are less than a second apart, gave 1.31 µs.
const LINGERING_SWITCH: f64 = 0.18;
/// Extra cost that the calibration does not see for a switch with clocks, and that an alarm adds, as such shares.
const UNCALIBRATED: f64 = 0.09;
const ALARM: f64 = 0.37;

/// Counts context switches from one look to the next.
#[derive(Default)]
pub(crate) struct Switches {
    /// Those of each thread since it began, at the last look.
    seen: FxHashMap<u32, SeenThread>,
    left: Option<Left>,
}

/// A thread and its count at the last look.
struct SeenThread {
    counter: SwitchCounter,
    switches: u64,
}

/// Threads that had events until shortly before.
struct Left {
    threads: Vec<u32>,
    /// Until when their switches cost something, and when they were last counted (ns).
    until_ns: u64,
    looked_ns: u64,
    /// Their switches that have not been handed out yet, since they make less than one of a thread that has events.
    rest: f64,
}

impl Switches {
    /// Context switches of these threads since the last look. Switches before the first look at a thread do not count:
    /// it may have run for years.
    pub(crate) fn since_last_look(&mut self, threads: &[u32]) -> u64 {
        let read = &threads[..threads.len().min(THREADS_READ)];
        self.seen.retain(|tid, _| read.contains(tid));
        let (mut looks, mut since) = (0, 0);
        for &tid in read {
            if let Some(seen) = self.seen.get_mut(&tid) {
                let now = seen.counter.read();
                let before = std::mem::replace(&mut seen.switches, now);
                since += now.saturating_sub(before); // fewer than before: another thread has this id
                looks += 1;
            } else {
                let mut counter = SwitchCounter::new(tid, threads.len() <= FILES_KEPT);
                let switches = counter.read();
                self.seen.insert(tid, SeenThread { counter, switches });
            }
        }
        since * threads.len() as u64 / looks.max(1)
    }

    /// [`Self::since_last_look`] for threads with events of their own, with or without an alarm, in calibrated
    /// switches.
    pub(crate) fn with_events(&mut self, threads: &[u32], has_alarm: bool) -> u64 {
        let each = 1.0 + UNCALIBRATED + if has_alarm { ALARM } else { 0.0 };
        (self.since_last_look(threads) as f64 * each).round() as u64
    }

    /// These threads get events of their own now: earlier switches cost nothing.
    pub(crate) fn come(&mut self, threads: &[u32]) {
        self.left = None;
        self.seen.clear();
        self.since_last_look(threads);
    }

    /// The events of these threads were closed, with their alarm, if they had one.
    pub(crate) fn leave(&mut self, threads: Vec<u32>, has_alarm: bool, now_ns: u64) {
        let rest = self.with_events(&threads, has_alarm) as f64; // since the look that led to this
        self.left =
            Some(Left { threads, until_ns: now_ns.saturating_add(LINGERS_NS), looked_ns: now_ns, rest });
    }

    /// Whether there are threads that had events recently.
    pub(crate) fn linger(&self) -> bool {
        self.left.is_some()
    }

    /// Switches since the last look of threads that had events shortly before, in switches as calibrated.
    pub(crate) fn after_leaving(&mut self, now_ns: u64) -> u64 {
        let Some(mut left) = self.left.take() else { return 0 };
        let (wall_ns, lingered_ns) =
            (now_ns.saturating_sub(left.looked_ns), left.until_ns.min(now_ns).saturating_sub(left.looked_ns));
        let share = lingered_ns as f64 / wall_ns.max(1) as f64; // switches after that second cost nothing
        left.rest += share * self.since_last_look(&left.threads) as f64 * LINGERING_SWITCH;
        left.looked_ns = now_ns;
        let whole = left.rest.floor();
        left.rest -= whole;
        if now_ns < left.until_ns {
            self.left = Some(left);
        }
        whole as u64
    }
}

/// Counts the switches out of a control group, or between groups within it: at these its events are stopped, and started
/// again when it comes back. Others cost nothing.
#[derive(Default)]
pub(crate) struct GroupSwitches {
    /// One counter for each CPU.
    counters: Vec<Event>,
    online: Vec<OnlineCpu>,
    seen: u64,
}

impl GroupSwitches {
    /// Switches since the last look; 0 at the first, and where CPUs have come or gone since.
    ///
    /// # Errors
    ///
    /// If this kernel cannot count them.
    pub(crate) fn since_last_look(&mut self, group: &Cgroup) -> io::Result<u64> {
        let online = limits::online();
        if self.online != online {
            *self = Self::count(group, online)?;
        }
        let now = self.counters.iter().map(Event::count).sum::<io::Result<u64>>()?;
        Ok(now.saturating_sub(std::mem::replace(&mut self.seen, now)))
    }

    fn count(group: &Cgroup, online: Vec<OnlineCpu>) -> io::Result<Self> {
        let counters = online.iter().map(|cpu| {
            let mut counter = Event::group_switches(group.folder(), cpu.number)?;
            counter.enable()?;
            Ok(counter)
        });
        Ok(Self { counters: counters.collect::<io::Result<Vec<_>>>()?, online, seen: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::procfs;
    use std::process::Command;

    #[test]
    fn only_what_happens_between_two_looks_counts() {
        let own = [std::process::id()]; // the main thread, which waits for the tests
        let mut switches = Switches::default();
        assert_eq!(switches.since_last_look(&own), 0);
        let mut busy = Command::new("sh").args(["-c", "while :; do sleep 0.001; done"]).spawn().unwrap();
        let shell = [busy.id()];
        assert_eq!(switches.since_last_look(&shell), 0);
        let mut seen = 0;
        while seen < 3 {
            std::thread::yield_now();
            seen += switches.since_last_look(&shell);
        }
        assert_eq!(switches.since_last_look(&[u32::MAX]), 0);
        switches.leave(shell.to_vec(), true, 0);
        let (mut seen, mut now_ns) = (0, 0);
        while seen < 1 {
            std::thread::yield_now();
            now_ns += 1;
            seen += switches.after_leaving(now_ns);
        }
        assert!(switches.linger());
        switches.after_leaving(LINGERS_NS);
        assert!(!switches.linger());
        assert_eq!(switches.after_leaving(LINGERS_NS), 0);
        // They have gone on meanwhile, for nothing.
        let then = procfs::context_switches(shell[0]);
        while procfs::context_switches(shell[0]) < then + 10 {
            std::thread::yield_now();
        }
        let before = procfs::context_switches(shell[0]);
        switches.come(&shell);
        let counted = switches.with_events(&shell, false) as f64;
        let since = (procfs::context_switches(shell[0]) - before) as f64;
        assert!(counted <= (1.0 + UNCALIBRATED) * since + 1.0, "{counted} of {since}");
        busy.kill().unwrap();
        busy.wait().unwrap();
    }
}
