//! Samples at the kernel's tick: whether they can be believed.

use profiler_core::audit::{Audit, AuditSettings, Disagreement, Finding};
use rustc_hash::FxHashMap;

use super::Session;
use crate::sampler::tick::TickSource;
use crate::sys::procfs;

/// Threads whose CPU time is read each time that ticks and clock are compared: those that were sampled most.
const MOST_THREADS: usize = 64;
/// One of them stays while it is among so many, so that of many equal ones not others are taken each time, with nothing known of them.
const STAYS_AMONG: usize = 2 * MOST_THREADS;
/// What a sample tells of its thread fades so fast with each comparison, and is forgotten when it is worth so little: after a hundred.
const FADING: f64 = 0.95;
const FADED: f64 = 0.005;

/// Where counts of ticks do not fit.
const COUNT_CAUSES: &str =
    "so the program runs in step with them, is throttled at ticks, or a host takes CPU time away";

/// What there is to know of them while they are taken.
pub(crate) struct Ticks {
    pub(super) source: TickSource,
    clock_period_ns: u64,
    pub(super) audit: Audit,
    /// CPU time of threads when it was read last (ns).
    threads: FxHashMap<u32, u64>,
    /// Samples of each thread, by whatever source; those of long ago count less.
    samples: FxHashMap<u32, f64>,
    /// Whether no thread's CPU time could be read, though there were some.
    threads_unread: bool,
    /// Records that were known to be lost when ticks were last held against CPU time.
    lost: u64,
    /// Whether what was found stands: it does if no loss is told of a moment later.
    stands: bool,
}

impl Ticks {
    fn new(source: TickSource, clock_period_ns: u64, has_total: bool) -> Self {
        let settings = AuditSettings { hz: source.hz(), has_total, ..AuditSettings::default() };
        let mut audit = Audit::new(settings);
        audit.thin(source.every);
        Self {
            source,
            clock_period_ns,
            audit,
            threads: FxHashMap::default(),
            samples: FxHashMap::default(),
            threads_unread: false,
            lost: 0,
            stands: false,
        }
    }

    /// A sample of `thread` in `function`, if the two sources can be compared by that; at the tick, on which CPU and when, or by the
    /// clock.
    pub(super) fn sampled(&mut self, thread: u32, function: Option<u64>, tick: Option<(u32, u64)>) {
        *self.samples.entry(thread).or_default() += 1.0;
        match (tick, function) {
            (Some(at), _) => self.audit.tick(thread, function, at),
            (None, Some(function)) => self.audit.clock(function),
            (None, None) => {}
        }
    }

    /// Tells the audit what each thread has used; of one that is met for the first time, that it is there.
    fn charge_threads(&mut self) {
        let threads = most_sampled(&self.samples, &self.threads);
        self.samples.retain(|_, samples| {
            *samples *= FADING;
            *samples > FADED
        });
        let (candidates, mut seen) = (threads.len(), FxHashMap::default());
        for thread in threads {
            let Some(cpu_ns) = procfs::thread_cpu_ns(thread) else {
                self.samples.remove(&thread); // it has ended
                continue;
            };
            let before_ns = self.threads.remove(&thread).unwrap_or(cpu_ns);
            self.audit.charge_thread(thread, cpu_ns.saturating_sub(before_ns));
            seen.insert(thread, cpu_ns);
        }
        if candidates > 0 {
            self.threads_unread = seen.is_empty() && procfs::thread_cpu_ns(std::process::id()).is_none();
        }
        let gone = std::mem::replace(&mut self.threads, seen);
        gone.into_keys().for_each(|thread| self.audit.ended(thread));
    }
}

/// The threads to follow: those that are followed, as long as they were sampled often, and those that were more often.
fn most_sampled(samples: &FxHashMap<u32, f64>, followed: &FxHashMap<u32, u64>) -> Vec<u32> {
    let mut ranked: Vec<(bool, f64, u32)> =
        samples.iter().map(|(thread, samples)| (followed.contains_key(thread), *samples, *thread)).collect();
    ranked.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(b.0.cmp(&a.0)).then(a.2.cmp(&b.2)));
    ranked.truncate(STAYS_AMONG);
    ranked.sort_by_key(|&(is_followed, ..)| !is_followed);
    ranked.truncate(MOST_THREADS);
    ranked.into_iter().map(|(.., thread)| thread).collect()
}

impl Session {
    /// From one tick to the next (ns), while samples are taken at it.
    pub(crate) fn tick_ns(&self) -> Option<u64> {
        self.ticks.as_ref().map(|ticks| ticks.source.tick_ns)
    }

    /// Compares ticks with the clock and with `cpu_ns` of CPU time since the last call. Where they disagree, and nothing is told until
    /// the next call of samples that were lost, all that were not handed over yet are dropped, and no more are taken in.
    pub(crate) fn audit_ticks(&mut self, cpu_ns: u64) -> Option<Finding> {
        let lost = self.counts.lost + self.counts.lost_others;
        let ticks = self.ticks.as_mut()?;
        let has_lost = lost != std::mem::replace(&mut ticks.lost, lost);
        let knows_threads = !ticks.threads.is_empty() || ticks.threads_unread;
        if has_lost || ticks.audit.compares_after(cpu_ns) || !knows_threads {
            ticks.charge_threads();
        }
        if has_lost {
            ticks.audit.restart_counts(cpu_ns);
        } else {
            ticks.audit.charge(cpu_ns);
        }
        let is_found = ticks.audit.finding().is_some();
        let stood = std::mem::replace(&mut ticks.stands, is_found);
        if is_found && stood { self.take_finding() } else { None }
    }

    /// The same at the end, when nothing more is told.
    pub(crate) fn take_finding(&mut self) -> Option<Finding> {
        let finding = self.ticks.as_ref()?.audit.finding()?;
        self.ticks = None;
        Some(finding)
    }

    /// Whether ticks are believed without a look at each thread, since the kernel does not tell what threads use.
    pub(crate) fn threads_are_unread(&self) -> bool {
        self.ticks.as_ref().is_some_and(|ticks| ticks.threads_unread)
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
        self.tell_rates();
        Some(every)
    }

    /// The clock's rate is another from now on. What is found by that is told by the next [`Session::audit_ticks`].
    pub(crate) fn clock_rate_changed(&mut self, period_ns: u64) {
        if let Some(ticks) = &mut self.ticks {
            ticks.audit.rate_changed();
            ticks.clock_period_ns = period_ns;
        }
        self.tell_rates();
    }

    /// Takes samples at the tick from now on, beside a clock of this period.
    pub(crate) fn begin_ticks(&mut self, source: TickSource, clock_period_ns: u64) {
        self.ticks = Some(Ticks::new(source, clock_period_ns, !self.cpu.is_counted_at_ticks()));
        self.tell_rates();
    }

    /// Takes no more, though there is nothing wrong with those until now: they are settled.
    pub(crate) fn end_ticks(&mut self) {
        self.close_window();
        self.aggregator.settle_ticks(self.believes_ticks());
        self.ticks = None;
    }

    /// Whether there are some, and nothing was found yet, be it to stand or not.
    pub(super) fn believes_ticks(&self) -> bool {
        self.ticks.as_ref().is_some_and(|ticks| ticks.audit.finding().is_none())
    }

    fn tell_rates(&mut self) {
        if let Some(ticks) = &self.ticks {
            let hz = |period_ns: u64| 1e9 / period_ns.max(1) as f64;
            self.aggregator.at_rates(hz(ticks.clock_period_ns), hz(ticks.source.mean_period_ns()));
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

#[cfg(test)]
mod tests;
