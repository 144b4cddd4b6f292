//! Samples at the kernel's tick: whether they can be believed.

use profiler_core::audit::{Audit, AuditSettings, Disagreement, Finding};
use rustc_hash::FxHashMap;

use super::Session;
use crate::sampler::tick::TickSource;
use crate::sys::procfs;

/// Threads whose CPU time is read each time that ticks and clock are compared.
const MOST_THREADS: usize = 64;

/// What there is to know of them while they are taken.
pub(crate) struct Ticks {
    pub(super) source: TickSource,
    pub(super) audit: Audit,
    /// CPU time of threads when it was read last (ns).
    threads: FxHashMap<u32, u64>,
}

impl Ticks {
    pub(crate) fn new(source: TickSource) -> Self {
        let audit = Audit::new(AuditSettings { hz: source.hz(), ..AuditSettings::default() });
        Self { source, audit, threads: FxHashMap::default() }
    }

    /// Tells the audit what each thread has used; of one that is met for the first time, that it is there.
    fn charge(&mut self, threads: impl Iterator<Item = u32>) {
        let mut seen = FxHashMap::default();
        for thread in threads.take(MOST_THREADS) {
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

/// What a person is told of it.
pub(crate) fn in_words(finding: &Finding) -> String {
    let what = match finding.what {
        Disagreement::Total => "they do not fit its CPU time".to_owned(),
        Disagreement::Thread(thread) => format!("those of thread {thread} do not fit its CPU time"),
        Disagreement::Function(_) => "the clock hits other functions".to_owned(),
    };
    format!(
        "dropped after {:.0} s of CPU time: {what}, so the program runs in step with them",
        finding.at_cpu_s
    )
}
