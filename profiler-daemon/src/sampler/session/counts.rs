//! Counts of everything that was degraded.

use profiler_core::profile::{Outcome, TruncatedBy};

/// The counts since sampling began.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Samples of the target.
    pub(crate) samples: u64,
    /// Samples of non-target processes.
    pub(crate) foreign: u64,
    /// Samples for time that another clock sampled too, while clocks were renewed.
    pub(crate) doubled: u64,
    /// Samples that the kernel dropped, limited to what the clocks can have taken.
    pub(crate) lost: u64,
    /// Other records that it dropped: of mappings and tasks.
    pub(crate) lost_others: u64,
    /// Samples without outer frames, by the reason.
    pub(crate) truncated: TruncatedBy,
    /// Samples whose outer frames are those of an earlier sample.
    pub(crate) completed: u64,
    /// Records that could not be decoded.
    pub(crate) undecodable: u64,
    /// Times that the mappings of a process were read again, because records of them may have been lost.
    pub(crate) maps_reread: u64,
    /// Mappings that there was no room for.
    pub(crate) mappings_dropped: u64,
    /// Times an event was throttled.
    pub(crate) throttled: u64,
    /// Frames the kernel followed, its own and the program's.
    pub(crate) frames: u64,
    /// Bytes of stack the kernel copied.
    pub(crate) stack_bytes: u64,
    /// Records that are no samples.
    pub(crate) side_records: SideRecordCounts,
}

/// Counts of records that are no samples, since sampling began.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SideRecordCounts {
    /// Mappings and names that the target's processes reported.
    pub(crate) own: u64,
    /// Mappings, names, forks and exits of non-target processes.
    pub(crate) foreign: u64,
    /// Tasks that the target created.
    pub(crate) forks: u64,
    /// Threads of the target that ended.
    pub(crate) ends: u64,
    /// Mappings that any process reported.
    pub(crate) mappings: u64,
    /// Programs that began in any reported process.
    pub(crate) execs: u64,
}

impl Counts {
    /// What was counted after `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self {
            samples: self.samples - earlier.samples,
            foreign: self.foreign - earlier.foreign,
            doubled: self.doubled - earlier.doubled,
            lost: self.lost.saturating_sub(earlier.lost),
            lost_others: self.lost_others - earlier.lost_others,
            truncated: self.truncated.since(&earlier.truncated),
            completed: self.completed - earlier.completed,
            undecodable: self.undecodable - earlier.undecodable,
            maps_reread: self.maps_reread - earlier.maps_reread,
            mappings_dropped: self.mappings_dropped - earlier.mappings_dropped,
            throttled: self.throttled - earlier.throttled,
            frames: self.frames - earlier.frames,
            stack_bytes: self.stack_bytes - earlier.stack_bytes,
            side_records: self.side_records.since(&earlier.side_records),
        }
    }

    /// Adds sample counts that were kept separately.
    pub(super) fn add_samples(&mut self, other: &Self) {
        self.samples += other.samples;
        self.frames += other.frames;
        self.stack_bytes += other.stack_bytes;
        self.completed += other.completed;
        for outcome in Outcome::TRUNCATED {
            self.truncated.add(outcome, other.truncated.count(outcome));
        }
    }
}

impl SideRecordCounts {
    fn since(&self, earlier: &Self) -> Self {
        Self {
            own: self.own - earlier.own,
            foreign: self.foreign - earlier.foreign,
            forks: self.forks - earlier.forks,
            ends: self.ends - earlier.ends,
            mappings: self.mappings - earlier.mappings,
            execs: self.execs - earlier.execs,
        }
    }
}
