//! What a run takes of the machine before it takes any time: events, files, memory of the rings.
//!
//! The formulas are those of `profiler-daemon/src/sampler/perf.rs`.

use profiler_core::attach::AttachMode;
use serde::Serialize;

const RINGS_BYTES: u64 = 16 << 20;
const MAX_RING_BYTES: u64 = 4 << 20;
const MIN_RING_BYTES: u64 = 256 << 10;
const PAGE_BYTES: u64 = 4 << 10;
/// Record without its stack.
const FIXED_BYTES: u64 = 512;
const OTHER_FILES: u64 = 256;

/// Events, files and ring memory of one way to attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Resources {
    /// Clocks: one for each CPU, or for each thread on each CPU.
    pub clocks: u64,
    /// Files open at once: the clocks, a ring's owner for each CPU, and what is kept for everything else.
    pub files: u64,
    /// The same while all clocks are renewed: the old ones run until the new ones do.
    pub files_renewing: u64,
    /// Data of one CPU's ring (bytes).
    pub ring_bytes: u64,
    /// All rings with their pages of positions (bytes); locked in memory.
    pub rings_bytes: u64,
}

impl Resources {
    /// Of so many threads on so many CPUs.
    pub fn new(mode: AttachMode, threads: u64, cpus: u64) -> Resources {
        let clocks = if mode == AttachMode::Task { threads * cpus } else { cpus };
        let files = clocks + cpus + OTHER_FILES;
        let fair = (RINGS_BYTES / cpus.max(1)).clamp(MIN_RING_BYTES, MAX_RING_BYTES);
        let ring_bytes = 1 << fair.ilog2();
        Resources {
            clocks,
            files,
            files_renewing: files + clocks,
            ring_bytes,
            rings_bytes: cpus * (ring_bytes + PAGE_BYTES),
        }
    }

    /// How long a ring takes to fill to a third where its CPU is busy: so often the rings are read at least (ns).
    pub fn time_to_fill_ns(&self, stack_bytes: u64, period_ns: u64) -> u64 {
        (self.ring_bytes / (stack_bytes + FIXED_BYTES) / 3).max(1) * period_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_share_the_memory_down_to_a_least_size() {
        let ring_bytes = |cpus| Resources::new(AttachMode::Cpu, 1000, cpus).ring_bytes;
        assert_eq!([1, 2, 6, 64, 256].map(ring_bytes), [4 << 20, 4 << 20, 2 << 20, 256 << 10, 256 << 10]);
        assert_eq!(Resources::new(AttachMode::Cpu, 1000, 64).rings_bytes, 64 * (260 << 10));
    }

    #[test]
    fn events_of_threads_multiply() {
        let task = Resources::new(AttachMode::Task, 1000, 64);
        assert_eq!((task.clocks, task.files, task.files_renewing), (64_000, 64_320, 128_320));
        let cpu = Resources::new(AttachMode::Cpu, 1000, 64);
        assert_eq!((cpu.clocks, cpu.files, cpu.files_renewing), (64, 384, 448));
    }

    #[test]
    fn the_biggest_copies_fill_a_ring_at_once() {
        let cpu = Resources::new(AttachMode::Cpu, 1000, 64);
        assert_eq!(cpu.time_to_fill_ns(60 << 10, 5_000_000), 5_000_000);
        assert_eq!(cpu.time_to_fill_ns(4 << 10, 5_000_000), 18 * 5_000_000);
    }
}
