//! What a way to attach needs before it takes any time: events, file descriptors, memory for rings.
//!
//! The rings of all targets share 64 MiB: the kernel charges them to no process, so the service manager's
//! memory limit does not cover them.

use serde::Serialize;

use crate::attach::AttachMode;

/// Files kept for everything that is not an event.
pub const OTHER_FILES: u64 = 256;
/// Most memory that the rings of one target take together, and those of all where there are several (bytes): the kernel counts
/// it as nobody's, and gives none of it back under pressure.
const RINGS_BYTES: u64 = 16 << 20;
const RINGS_OF_ALL_BYTES: u64 = 64 << 20;
/// The largest ring of one CPU (bytes): at the most that samples may bring in a second, it takes an eighth of a second to fill.
const MAX_RING_BYTES: u64 = 8 << 20;
/// The smallest ring worth having (bytes): a few samples with the biggest copy of the stack; beside many other targets, two.
pub const MIN_RING_BYTES: u64 = 256 << 10;
const MIN_RING_OF_MANY_BYTES: u64 = 128 << 10;
/// The page of positions before each ring's data (bytes).
const PAGE_BYTES: u64 = 4 << 10;
/// A sample without its stack (bytes): headers, registers and a usual call chain.
const SAMPLE_BYTES: u64 = 512;

/// Data of one ring where `cpus` have one each for each of `targets` (bytes): a power of two, as the kernel wants it.
pub fn ring_bytes(cpus: u64, targets: u64) -> u64 {
    let one = RINGS_BYTES / cpus.max(1);
    let of_many = RINGS_OF_ALL_BYTES / targets.max(1).saturating_mul(cpus.max(1));
    let least = if of_many < one { MIN_RING_OF_MANY_BYTES } else { MIN_RING_BYTES };
    1 << one.min(of_many).clamp(least, MAX_RING_BYTES).ilog2()
}

/// A ring is read when it is filled to one part in so many.
const FILLED: u64 = 4;

/// How long a ring of `ring_bytes` takes to fill to a quarter where its CPU is busy, with samples of `stack_bytes` of copied
/// stack every `period_ns` (ns). So often the rings are read at least.
pub fn time_to_fill_ns(ring_bytes: u64, stack_bytes: u64, period_ns: u64) -> u64 {
    let samples = ring_bytes / stack_bytes.saturating_add(SAMPLE_BYTES) / FILLED;
    samples.max(1).saturating_mul(period_ns)
}

/// How fast a ring has filled of late. Clocks keep their old period until it is drawn anew, and those that threads have inherited
/// until they are opened anew: a ring may fill faster than the period in force says.
#[derive(Clone, Copy, Debug, Default)]
pub struct FillRate {
    noted_at_ns: u64,
    bytes_per_ns: f64,
}

/// Over less time, what has come says little (ns).
const LEAST_INTERVAL_NS: u64 = 1_000_000;
/// However fast a ring fills, it is read no more often (ns).
const LEAST_PAUSE_NS: u64 = 2_000_000;
/// Of the last rate, so much still counts: a pause is no sign that the next burst is slower.
const REMEMBERED: f64 = 0.5;

impl FillRate {
    /// Whether it is time to note what has come.
    pub fn is_due(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.noted_at_ns) >= LEAST_INTERVAL_NS
    }

    /// So many bytes have come to the fullest ring since the last time.
    pub fn note(&mut self, now_ns: u64, bytes: u64) {
        let since_ns = now_ns.saturating_sub(std::mem::replace(&mut self.noted_at_ns, now_ns)).max(1);
        self.bytes_per_ns = (bytes as f64 / since_ns as f64).max(REMEMBERED * self.bytes_per_ns);
    }

    /// How long a ring takes to fill to a quarter if it goes on like that (ns).
    pub fn time_to_fill_ns(&self, ring_bytes: u64) -> u64 {
        let quarter = (ring_bytes / FILLED) as f64;
        ((quarter / self.bytes_per_ns) as u64).max(LEAST_PAUSE_NS) // without any, longer than any time
    }
}

/// Events that may be opened beside `open` files, if `limit` files may be open: a quarter of a low limit is enough for everything
/// else that is yet to be opened.
pub fn events_within(limit: u64, open: u64) -> u64 {
    limit.saturating_sub(OTHER_FILES.min(limit / 4)).saturating_sub(open)
}

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
        let clocks = if mode == AttachMode::Task { threads.saturating_mul(cpus) } else { cpus };
        let files = clocks.saturating_add(cpus).saturating_add(OTHER_FILES);
        let ring_bytes = ring_bytes(cpus, 1);
        Resources {
            clocks,
            files,
            files_renewing: files.saturating_add(clocks),
            ring_bytes,
            rings_bytes: cpus.saturating_mul(ring_bytes + PAGE_BYTES),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_share_the_memory_down_to_a_least_size() {
        assert_eq!(
            [0, 1, 2, 6, 64, 256, u64::MAX].map(|cpus| ring_bytes(cpus, 1)),
            [8 << 20, 8 << 20, 8 << 20, 2 << 20, 256 << 10, 256 << 10, 256 << 10]
        );
        assert_eq!(
            [0, 4, 10, 50, 200, u64::MAX].map(|targets| ring_bytes(2, targets)),
            [8 << 20, 8 << 20, 2 << 20, 512 << 10, 128 << 10, 128 << 10]
        );
        let all_bytes = |targets| 4 * targets * ring_bytes(4, targets);
        assert!((1..=128).all(|targets| all_bytes(targets) <= RINGS_OF_ALL_BYTES));
        assert_eq!(Resources::new(AttachMode::Cpu, 1000, 64).rings_bytes, 64 * (260 << 10));
    }

    #[test]
    fn events_of_threads_multiply() {
        let task = Resources::new(AttachMode::Task, 1000, 64);
        assert_eq!((task.clocks, task.files, task.files_renewing), (64_000, 64_320, 128_320));
        let cpu = Resources::new(AttachMode::Cpu, 1000, 64);
        assert_eq!((cpu.clocks, cpu.files, cpu.files_renewing), (64, 384, 448));
        assert_eq!(Resources::new(AttachMode::Task, u64::MAX, u64::MAX).files_renewing, u64::MAX);
    }

    #[test]
    fn a_ring_that_fills_faster_than_its_period_says_is_read_sooner() {
        const RING: u64 = 8 << 20;
        let mut rate = FillRate::default();
        assert_eq!(rate.time_to_fill_ns(RING), u64::MAX, "nothing has come yet");
        let mut at_ms = |ms: u64, bytes| {
            assert!(rate.is_due(ms * 1_000_000));
            rate.note(ms * 1_000_000, bytes);
            assert!(!rate.is_due(ms * 1_000_000 + 10));
            rate.time_to_fill_ns(RING) / 1_000_000
        };
        at_ms(1_000, 0);
        assert_eq!(at_ms(1_010, RING / 8), 20);
        assert_eq!(at_ms(1_020, 0), 40, "a pause");
        assert_eq!(at_ms(1_030, RING / 4), 10);
        assert_eq!(at_ms(1_040, RING), 2);
        assert_eq!(at_ms(1_042, RING), 2, "no more often than that");
    }

    #[test]
    fn the_biggest_copies_fill_a_ring_at_once() {
        let ring = ring_bytes(64, 1);
        assert_eq!(time_to_fill_ns(ring, 60 << 10, 5_000_000), 5_000_000);
        assert_eq!(time_to_fill_ns(ring, 4 << 10, 5_000_000), 14 * 5_000_000);
        assert_eq!(time_to_fill_ns(ring, u64::MAX, u64::MAX), u64::MAX);
    }
}
