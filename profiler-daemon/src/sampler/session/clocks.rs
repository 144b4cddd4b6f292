//! CPU time of processes by the kernel's account, compared with the time that their samples stand for.
//!
//! The clock of a live process is exact. For a process that has ended since its clock was last read, the samples are
//! the only source.

use profiler_core::stats::WeightedSum;
use rustc_hash::FxHashMap;

use crate::sys::clock;

/// Most known processes: fewer live at a time.
const MOST: usize = 1 << 17;
/// Up to so many clocks are read at each look. A process with few samples is then known until shortly before its end.
const FEW: usize = 32;
/// More of them are read once a second, or more rarely where that would take a thousandth of a CPU (ns).
const EACH_EVERY_NS: u64 = 1_000_000_000;
const READING_NS: u64 = 1_000;
const TIME_PER_READING: u64 = 1_000;

/// What is known of one.
#[derive(Clone, Copy, Debug, Default)]
struct ProcessClock {
    /// Its clock at the last reading (ns).
    read_ns: u64,
    /// Its clock when it was found, if its birth was not known: what it used by then is not counted (ns).
    met_ns: u64,
    /// The samples since then (ns).
    sampled: WeightedSum,
    /// Earlier samples since then, which counted for another target (ns).
    settled: WeightedSum,
    /// Whether it had no clock at the last reading any more.
    is_gone: bool,
    /// Whether its target is still unknown: its CPU time is then not reported.
    is_waiting: bool,
}

/// How the CPU time that samples told of differs from that of a clock.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Correction {
    /// By how much they stood for too little (ns).
    pub(super) off_ns: f64,
    /// What is still known by samples alone (ns).
    pub(super) unsure: WeightedSum,
}

/// The clocks of all processes that are sampled.
#[derive(Debug, Default)]
pub(super) struct ProcessClocks {
    clocks: FxHashMap<u32, ProcessClock>,
    /// When all of them were last read (ns).
    each_read_ns: u64,
}

/// What the clocks of all processes showed.
#[derive(Debug, Default)]
pub(super) struct ClockReadings {
    /// By how much each process used more than its samples stand for.
    pub(super) corrections: Vec<(u32, Correction)>,
    /// Processes that have no clock any more; each is in one reading alone.
    gone: Vec<u32>,
}

/// CPU time of a target among others: by the clocks of its processes, and by the samples of those that have ended. The kernel's account of
/// waited-for children has also what others' processes used.
#[derive(Debug, Default)]
pub(super) struct ClockedCpu {
    clocks: ProcessClocks,
    cpu_ns: f64,
    /// The part of it that is known by samples alone (ns).
    unsure: WeightedSum,
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
        self.cpu_ns += weight_ns as f64;
        if !self.clocks.sampled(pid, weight_ns) {
            self.unsure.add(weight_ns as f64);
        }
    }

    /// A process has ended, or belongs to another target from now on.
    pub(super) fn left(&mut self, pid: u32) {
        self.cpu_ns += self.clocks.read_one(pid).map_or(0.0, |correction| correction.off_ns);
        self.unsure = self.unsure.plus(self.clocks.ended(pid));
    }

    /// The part of the total that is known by samples alone (ns).
    pub(super) fn unsure(&self) -> WeightedSum {
        self.unsure
    }

    /// The total so far (ns), and the processes that have ended since the last reading.
    pub(super) fn read(&mut self) -> (u64, Vec<u32>) {
        let read = self.clocks.read(true, clock::monotonic_ns());
        self.cpu_ns += read.corrections.iter().map(|(_, correction)| correction.off_ns).sum::<f64>();
        self.total_ns = self.total_ns.max(self.cpu_ns as u64);
        (self.total_ns, read.gone)
    }
}

impl ProcessClocks {
    /// A process begins.
    pub(super) fn born(&mut self, pid: u32) {
        if self.clocks.len() < MOST {
            self.clocks.insert(pid, ProcessClock::default());
        }
    }

    /// A process was found that may have run for long: its earlier CPU time counts for no target.
    pub(super) fn met(&mut self, pid: u32) {
        if self.clocks.len() < MOST {
            let now = || {
                let used_ns = clock::process_cpu_ns(pid).unwrap_or(0);
                ProcessClock { read_ns: used_ns, met_ns: used_ns, ..Default::default() }
            };
            self.clocks.entry(pid).or_insert_with(now);
        }
    }

    /// A process that was found has begun since sampling did: what it used before it was found counts.
    pub(super) fn began(&mut self, pid: u32) {
        if let Some(clock) = self.clocks.get_mut(&pid) {
            clock.read_ns = clock.read_ns.saturating_sub(std::mem::take(&mut clock.met_ns));
        }
    }

    /// A process waits for a scan.
    pub(super) fn is_waiting(&mut self, pid: u32) {
        self.clocks.entry(pid).and_modify(|clock| clock.is_waiting = true);
    }

    /// A scan has assigned a process.
    pub(super) fn is_known(&mut self, pid: u32) {
        self.clocks.entry(pid).and_modify(|clock| clock.is_waiting = false);
    }

    /// A sample of a process stands for `weight_ns`. Returns whether the process has a clock here that will say more.
    pub(super) fn sampled(&mut self, pid: u32, weight_ns: u64) -> bool {
        let clock = self.clocks.get_mut(&pid);
        clock.map(|clock| clock.sampled.add(weight_ns as f64)).is_some()
    }

    /// Settles the time of a process so far by its samples: the clock cannot be read for a past moment. They may stand for more than the
    /// process has used by then; what follows has used so much less. Returns those samples.
    pub(super) fn settle_by_samples(&mut self, pid: u32) -> WeightedSum {
        let Some(clock) = self.clocks.get_mut(&pid) else { return WeightedSum::default() };
        let sampled = std::mem::take(&mut clock.sampled);
        clock.settled = clock.settled.plus(sampled);
        sampled
    }

    /// A process has ended. Returns the samples since its clock was last read.
    pub(super) fn ended(&mut self, pid: u32) -> WeightedSum {
        self.clocks.remove(&pid).map_or_else(WeightedSum::default, |clock| clock.sampled)
    }

    /// Reads the clocks if it is time for that (`is_each`: in any case). The times never depend on samples: what is read just
    /// after one has more of them than its time, what ends before the next reading has fewer, and only the former would be
    /// corrected.
    pub(super) fn read(&mut self, is_each: bool, now_ns: u64) -> ClockReadings {
        self.read_by(is_each, now_ns, clock::process_cpu_ns)
    }

    fn read_by(&mut self, is_each: bool, now_ns: u64, used_ns: impl Fn(u32) -> Option<u64>) -> ClockReadings {
        let all = self.clocks.len();
        let every_ns = EACH_EVERY_NS.max(all as u64 * READING_NS * TIME_PER_READING);
        if !is_each && all > FEW && now_ns < self.each_read_ns.saturating_add(every_ns) {
            return ClockReadings::default();
        }
        self.each_read_ns = now_ns;
        let mut read = ClockReadings::default();
        for (&pid, clock) in self.clocks.iter_mut().filter(|(_, clock)| !clock.is_waiting) {
            match used_ns(pid) {
                Some(used_ns) => read.corrections.push((pid, clock.read(used_ns))),
                None if !std::mem::replace(&mut clock.is_gone, true) => read.gone.push(pid),
                None => {}
            }
        }
        read
    }

    /// [`Self::read`] for one process.
    pub(super) fn read_one(&mut self, pid: u32) -> Option<Correction> {
        let clock = self.clocks.get_mut(&pid)?;
        clock::process_cpu_ns(pid).map(|now_ns| clock.read(now_ns))
    }
}

impl ProcessClock {
    /// The clock shows `now_ns`.
    fn read(&mut self, now_ns: u64) -> Correction {
        // A clock that went back belongs to a new process with this id, whose birth was not reported.
        let used_ns = now_ns.saturating_sub(self.read_ns) as f64;
        self.read_ns = now_ns;
        let (sampled, settled) = (std::mem::take(&mut self.sampled), std::mem::take(&mut self.settled));
        Correction { off_ns: used_ns - sampled.sum - settled.sum, unsure: settled }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_clocks_are_read_once_a_second_whatever_is_sampled() {
        let mut clocks = ProcessClocks::default();
        let own = std::process::id();
        clocks.born(own);
        clocks.born(6_000_000); // no process has such numbers
        let read = |clocks: &mut ProcessClocks, now_ns| clocks.read(false, now_ns).corrections.len();
        assert_eq!(read(&mut clocks, 5), 1, "of two, the one that runs");
        assert_eq!(read(&mut clocks, 6), 1, "they are few");
        (0..FEW as u32).for_each(|other| clocks.born(6_000_001 + other));
        assert!(clocks.sampled(own, 1_000));
        assert_eq!(read(&mut clocks, 5 + EACH_EVERY_NS), 0);
        assert_eq!(read(&mut clocks, 6 + EACH_EVERY_NS), 1);
        assert_eq!(clocks.read(true, 7 + EACH_EVERY_NS).corrections.len(), 1, "a window ends");
        (0..2_000).for_each(|other| clocks.born(7_000_000 + other));
        assert_eq!(read(&mut clocks, 7 + 3 * EACH_EVERY_NS), 0, "so many are read every other second");
        assert_eq!(read(&mut clocks, 8 + 4 * EACH_EVERY_NS), 1);
    }

    #[test]
    fn a_process_that_has_ended_is_reported_once() {
        let mut cpu = ClockedCpu::default();
        let own = std::process::id();
        cpu.adopted(own);
        cpu.born(6_000_000); // no process has such a number
        assert_eq!(cpu.read().1, [6_000_000]);
        assert!(cpu.read().1.is_empty(), "it is known until its last samples are there");
        cpu.sampled(6_000_000, 5_000_000_000);
        cpu.left(6_000_000);
        let (total_ns, gone) = cpu.read();
        assert!((5_000_000_000..6_000_000_000).contains(&total_ns) && gone.is_empty(), "{total_ns} {gone:?}");
        cpu.born(6_000_000);
        assert_eq!(cpu.read().1, [6_000_000], "another process of that number");
    }

    /// A compiler is started again and again: half of its time is known by samples alone.
    #[test]
    fn processes_that_end_between_two_readings_have_in_the_mean_what_they_used() {
        const STEP_NS: u64 = 100_000_000;
        const LIVES_NS: u64 = 330_000_000;
        const SAMPLE_NS: f64 = 45e6;
        const PROCESSES: u32 = 20_000;
        let mut clocks = ProcessClocks::default();
        (1..=FEW as u32).for_each(|idle| clocks.born(idle));
        let (mut random, mut counted_ns, mut now_ns) = (fastrand::Rng::with_seed(1), 0.0, 0);
        for pid in 1_000..1_000 + PROCESSES {
            clocks.born(pid);
            let (begun_ns, ends_ns) = (now_ns, now_ns + LIVES_NS);
            let mut sample_ns = begun_ns as f64;
            loop {
                sample_ns -= random.f64().ln() * SAMPLE_NS;
                while (now_ns / STEP_NS + 1) * STEP_NS <= ends_ns.min(sample_ns as u64) {
                    now_ns = (now_ns / STEP_NS + 1) * STEP_NS;
                    let used_ns = |asked| (asked == pid).then(|| now_ns - begun_ns);
                    let read = clocks.read_by(false, now_ns, used_ns);
                    counted_ns +=
                        read.corrections.iter().map(|(_, correction)| correction.off_ns).sum::<f64>();
                }
                if sample_ns as u64 > ends_ns {
                    break;
                }
                counted_ns += SAMPLE_NS;
                clocks.sampled(pid, SAMPLE_NS as u64);
            }
            clocks.ended(pid);
            now_ns = ends_ns;
        }
        let ratio = counted_ns / (f64::from(PROCESSES) * LIVES_NS as f64);
        assert!((ratio - 1.0).abs() < 0.01, "{ratio}");
    }
}
