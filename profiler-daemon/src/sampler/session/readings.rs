//! What has been counted and spent in total, and since the controller's last reading.

use profiler_core::rate::Reading;
use rustc_hash::FxHashSet;

use super::exits::Exits;
use super::{Counts, Session};
use crate::sys::{clock, procfs};

/// Own CPU time when one-time work began (ns): the total, and the part for reading tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OnceFrom {
    own_ns: u64,
    tables_ns: u64,
}

/// Totals at a reading.
#[derive(Clone, Copy, Default)]
pub(super) struct LastReading {
    at_ns: u64,
    counts: Counts,
    target_cpu_ns: u64,
    pub(super) self_cpu_ns: u64,
    self_once_ns: u64,
}

/// The readings of a session.
#[derive(Default)]
pub(super) struct Readings {
    pub(super) first: LastReading,
    pub(super) last: LastReading,
    /// Own CPU time that was spent once, and is overhead like the rest (ns): until sampling began, where that counts, to adopt
    /// processes, and to end windows.
    pub(super) once_ns: u64,
    pub(super) exits: Exits,
    /// Processes that ended since the last reading and had no sample by then.
    pub(super) ended_unknown: FxHashSet<u32>,
    /// Processes that had no CPU clock any more at the last reading.
    pub(super) gone: Vec<u32>,
}

impl LastReading {
    /// Leaves so much one-time work to the next reading (ns).
    pub(super) fn forget_once(&mut self, once_ns: u64) {
        self.self_once_ns = self.self_once_ns.saturating_sub(once_ns);
    }

    fn since(&self, last: &Self) -> Reading {
        Reading {
            at_ns: self.at_ns,
            target_cpu_ns: self.target_cpu_ns.saturating_sub(last.target_cpu_ns),
            self_cpu_ns: self.self_cpu_ns - last.self_cpu_ns,
            self_once_ns: self.self_once_ns - last.self_once_ns,
            samples: self.counts.samples - last.counts.samples,
            foreign_samples: self.counts.foreign - last.counts.foreign,
            frames: self.counts.frames - last.counts.frames,
            stack_bytes: self.counts.stack_bytes - last.counts.stack_bytes,
            lost: self.counts.lost.saturating_sub(last.counts.lost) + self.counts.doubled
                - last.counts.doubled,
            switches: 0,
            side_records: self.counts.side_records.own - last.counts.side_records.own,
            foreign_side_records: self.counts.side_records.foreign - last.counts.side_records.foreign,
            forks: self.counts.side_records.forks - last.counts.side_records.forks,
            trace_records: 0,
            unseen: 0,
        }
    }
}

impl Session {
    /// Whether the next reading checks which processes have ended.
    pub(crate) fn awaits_reading(&self) -> bool {
        !self.readings.gone.is_empty() || !self.readings.exits.is_empty()
    }

    /// CPU time charged to the target between the beginning and the last reading (ns).
    pub(crate) fn target_cpu_ns(&self) -> u64 {
        self.readings.last.target_cpu_ns.saturating_sub(self.readings.first.target_cpu_ns)
    }

    /// When the last reading was (ns).
    pub(crate) fn read_at_ns(&self) -> u64 {
        self.readings.last.at_ns
    }

    /// CPU time charged to the target up to the last reading, including the time before the start (ns).
    pub(crate) fn cpu_now_ns(&self) -> u64 {
        self.readings.last.target_cpu_ns
    }

    /// Our own CPU time between the beginning and the last reading (ns).
    pub(crate) fn self_cpu_ns(&self) -> u64 {
        self.readings.last.self_cpu_ns - self.readings.first.self_cpu_ns
    }

    /// Our own CPU time before sampling began, unless [`Self::self_cpu_ns`] includes it (ns).
    pub(crate) fn setup_cpu_ns(&self) -> u64 {
        self.readings.first.self_cpu_ns
    }

    /// What happened since the last reading; a new one begins.
    pub(crate) fn reading(&mut self, switches: u64) -> Reading {
        let (target_cpu_ns, gone) = self.read_cpu();
        let at_ns = clock::monotonic_ns();
        // A process may outlive its first thread, and a zombie its program.
        // Its last samples may still be on their way: it is known until the next reading, unless its number is taken again.
        for pid in
            self.readings.exits.take(std::mem::replace(&mut self.readings.gone, gone), procfs::has_ended)
        {
            self.cpu.ended(pid);
            self.program_ended(pid);
            if let Some(owners) = &mut self.counted.owners {
                let process = self.processes.get(pid).map(|process| process.index);
                owners
                    .ended(pid, process.map(|index| self.processes.infos()[index.0 as usize].comm.as_str()));
            }
            self.processes.forget(pid);
            self.rereads.forget(pid);
            self.members.names.forget(pid);
        }
        self.forget_ended_unknown();
        let now = self.at(at_ns, target_cpu_ns);
        let last = std::mem::replace(&mut self.readings.last, now);
        Reading { switches, ..now.since(&last) }
    }

    /// Reads the CPU time of the target so far (ns), and which processes have ended since the last time.
    pub(super) fn read_cpu(&mut self) -> (u64, Vec<u32>) {
        self.counted.owners.iter_mut().for_each(|owners| owners.read_clocks(false));
        self.cpu.read()
    }

    /// What happened since the last reading, without the target's CPU time, which takes longer to read.
    pub(crate) fn since_last_reading(&self, now_ns: u64) -> Reading {
        self.at(now_ns, self.readings.last.target_cpu_ns).since(&self.readings.last)
    }

    /// Marks the start of one-time work, like reading tables, until [`Self::spent_once`].
    pub(crate) fn begin_once(&self) -> OnceFrom {
        let own_ns = self.own_time.of_this_thread_ns() + self.code.objects.elsewhere_ns();
        OnceFrom { own_ns, tables_ns: self.code.objects.once_ns() }
    }

    /// Charges what was spent since `from` over the following minutes.
    pub(crate) fn spent_once(&mut self, from: OnceFrom) {
        let now = self.begin_once();
        let tables_ns = now.tables_ns.saturating_sub(from.tables_ns); // already in `once_ns` of the objects
        self.readings.once_ns += now.own_ns.saturating_sub(from.own_ns).saturating_sub(tables_ns);
    }

    /// Charges what another thread spent on names (ns) like [`Self::spent_once`].
    pub(crate) fn spent_on_names(&mut self, spent_ns: u64) {
        self.readings.once_ns += spent_ns;
    }

    /// Own CPU time that counts for this target, on all threads (ns).
    pub(crate) fn own_ns(&self) -> u64 {
        self.own_time.with_elsewhere(self.code.objects.elsewhere_ns())
    }

    pub(super) fn at(&self, at_ns: u64, target_cpu_ns: u64) -> LastReading {
        LastReading {
            at_ns,
            counts: Counts { lost: self.counts.lost + self.losses.unjudged, ..self.counts },
            target_cpu_ns,
            self_cpu_ns: self.own_ns(),
            self_once_ns: self.code.objects.once_ns() + self.readings.once_ns,
        }
    }
}
