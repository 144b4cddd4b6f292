//! Samples at the kernel's tick: whether they can be believed.

use std::cmp::Reverse;

use profiler_core::audit::{Audit, AuditSettings, Disagreement, Finding};
use rustc_hash::FxHashMap;

use super::Session;
use crate::sampler::tick::TickSource;
use crate::sys::procfs;

/// Threads whose CPU time is read each time that ticks and clock are compared: those that were sampled most.
const MOST_THREADS: usize = 64;

/// Where counts of ticks do not fit.
const COUNT_CAUSES: &str =
    "so the program runs in step with them, is throttled at ticks, or a host takes CPU time away";

/// What there is to know of them while they are taken.
pub(crate) struct Ticks {
    pub(super) source: TickSource,
    pub(super) audit: Audit,
    /// CPU time of threads when it was read last (ns).
    threads: FxHashMap<u32, u64>,
    /// Samples of each thread, by whatever source; those of long ago count less.
    samples: FxHashMap<u32, u64>,
}

impl Ticks {
    pub(crate) fn new(source: TickSource) -> Self {
        let mut audit = Audit::new(AuditSettings { hz: source.hz(), ..AuditSettings::default() });
        audit.thin(source.every);
        Self { source, audit, threads: FxHashMap::default(), samples: FxHashMap::default() }
    }

    /// A sample of `thread` in `function`, if the two sources can be compared by that; at the tick, or by the clock.
    pub(super) fn sampled(&mut self, thread: u32, function: Option<u64>, tick_at_ns: Option<u64>) {
        *self.samples.entry(thread).or_default() += 1;
        match (tick_at_ns, function) {
            (Some(at_ns), _) => self.audit.tick(thread, function, at_ns),
            (None, Some(function)) => self.audit.clock(function),
            (None, None) => {}
        }
    }

    /// Tells the audit what each thread has used; of one that is met for the first time, that it is there.
    fn charge(&mut self, threads: impl Iterator<Item = u32>) {
        let mut threads: Vec<u32> = threads.collect();
        if threads.len() > MOST_THREADS {
            threads.sort_by_key(|thread| Reverse(self.samples.get(thread).copied().unwrap_or(0)));
            threads.truncate(MOST_THREADS);
        }
        self.samples.retain(|_, samples| {
            *samples /= 2;
            *samples > 0
        });
        let mut seen = FxHashMap::default();
        for thread in threads {
            let Some(cpu_ns) = procfs::thread_cpu_ns(thread) else { continue };
            let before_ns = self.threads.remove(&thread).unwrap_or(cpu_ns);
            self.audit.charge_thread(thread, cpu_ns.saturating_sub(before_ns));
            seen.insert(thread, cpu_ns);
        }
        let gone = std::mem::replace(&mut self.threads, seen);
        gone.into_keys().for_each(|thread| self.audit.ended(thread));
    }
}

impl Session {
    /// From one tick to the next (ns), while samples are taken at it.
    pub(crate) fn tick_ns(&self) -> Option<u64> {
        self.ticks.as_ref().map(|ticks| ticks.source.tick_ns)
    }

    /// Compares ticks with the clock and with `cpu_ns` of CPU time since the last call. Where they disagree, all that were not
    /// handed over yet are dropped, and no more are taken in.
    pub(crate) fn audit_ticks(&mut self, cpu_ns: u64) -> Option<Finding> {
        let ticks = self.ticks.as_mut()?;
        if ticks.audit.compares_after(cpu_ns) || ticks.threads.is_empty() {
            let pids = self.processes.live().map(|(pid, _)| pid);
            ticks.charge(pids.flat_map(procfs::threads));
        }
        let finding = ticks.audit.charge(cpu_ns)?;
        self.ticks = None;
        Some(finding)
    }
}

impl Session {
    /// So many samples at ticks are wanted in a second of CPU time. Returns one in how many ticks is to be sampled, where that is a
    /// change.
    pub(crate) fn thin_ticks(&mut self, rate_hz: f64) -> Option<f64> {
        let ticks = self.ticks.as_mut().filter(|_| rate_hz > 0.0)?;
        let every = ticks.source.every(rate_hz);
        if every == ticks.source.every {
            return None;
        }
        ticks.source.every = every;
        ticks.audit.thin(every);
        Some(every)
    }

    /// The clock's rate is another from now on. What is found by that is told by the next [`Session::audit_ticks`].
    pub(crate) fn clock_rate_changed(&mut self) {
        if let Some(ticks) = &mut self.ticks {
            ticks.audit.rate_changed();
        }
    }
}

/// What a person is told of it.
pub(crate) fn in_words(finding: &Finding) -> String {
    let what = match finding.what {
        Disagreement::Total => format!("they do not fit its CPU time, {COUNT_CAUSES}"),
        Disagreement::Thread(thread) => {
            format!("those of thread {thread} do not fit its CPU time, {COUNT_CAUSES}")
        }
        Disagreement::Function(_) => {
            "the clock hits other functions, so the program runs in step with them".to_owned()
        }
    };
    format!("dropped after {:.0} s of CPU time: {what}", finding.at_cpu_s)
}
