//! Where everything lies, and the header.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::Slot;
use crate::slot::SLOT_WORDS;

/// "sweetspt", so that nothing else is taken for this memory.
const MAGIC: u64 = u64::from_le_bytes(*b"sweetspt");
/// Of layout and meaning. An agent of another version leaves the process alone.
const VERSION: u64 = 1;

/// Threads that can be sampled at a time.
pub const SLOTS: usize = 512;
/// Words of a thread's ring, a power of two: 256 KiB, which hold four of the biggest samples. Memory that is not written to
/// is not there.
pub const RING_WORDS: usize = 1 << 15;
/// Words before the table of slots: a page.
const HEADER_WORDS: usize = 512;
const RINGS_AT: usize = HEADER_WORDS + SLOTS * SLOT_WORDS;
/// Words of the whole memory.
pub const MEMORY_WORDS: usize = RINGS_AT + SLOTS * RING_WORDS;

/// What stands at which word of the header. The profiler writes all but the last four.
mod at {
    pub(super) const MAGIC: usize = 0;
    pub(super) const VERSION: usize = 1;
    pub(super) const LENGTH: usize = 2;
    pub(super) const SEED: usize = 3;
    pub(super) const PATIENCE: usize = 4;
    pub(super) const PERIOD: usize = 8;
    pub(super) const STACK_BYTES: usize = 9;
    pub(super) const STOPPED: usize = 10;
    pub(super) const HEARTBEAT: usize = 16;
    pub(super) const LEFT_OUT: usize = 24;
    pub(super) const REFUSED: usize = 25;
    pub(super) const CLAIMS: usize = 26;
    pub(super) const UNSEEN: usize = 27;
}

/// What agents are told at the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Mean period (ns of a thread's CPU time).
    pub period_ns: u64,
    /// Bytes of stack to copy.
    pub stack_bytes: u64,
    /// Of the random periods.
    pub seed: u64,
    /// When nobody has given a sign of life for so long, agents stop by themselves (ns).
    pub patience_ns: u64,
    /// The first sign of life (ns of the monotonic clock).
    pub now_ns: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            period_ns: 10_000_000,
            stack_bytes: 0,
            seed: 0,
            patience_ns: 5_000_000_000, // a tick is .1 s; a machine that is that busy has other worries
            now_ns: 0,
        }
    }
}

/// Why a file is not the memory that is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// It is something else, or too short.
    Foreign,
    /// It is that of a profiler of another version.
    Version(u64),
}

/// The memory, as either side sees it.
#[derive(Clone, Copy, Debug)]
pub struct Memory<'a> {
    words: &'a [AtomicU64],
}

impl<'a> Memory<'a> {
    /// Makes an empty memory of zeros the memory of a run; `None` if it is too small.
    pub fn prepare(words: &'a [AtomicU64], settings: &Settings) -> Option<Self> {
        let memory = Self { words: words.get(..MEMORY_WORDS)? };
        memory.set(at::VERSION, VERSION);
        memory.set(at::LENGTH, MEMORY_WORDS as u64);
        memory.set(at::SEED, settings.seed);
        memory.set(at::PATIENCE, settings.patience_ns);
        memory.set(at::PERIOD, settings.period_ns);
        memory.set(at::STACK_BYTES, settings.stack_bytes);
        memory.beat(settings.now_ns);
        // ATOMICS: who sees it sees the rest.
        memory.words[at::MAGIC].store(MAGIC, Release);
        Some(memory)
    }

    /// The memory that somebody has prepared.
    ///
    /// # Errors
    ///
    /// If this is none that can be used.
    pub fn open(words: &'a [AtomicU64]) -> Result<Self, OpenError> {
        let is_ours = words.first().is_some_and(|magic| magic.load(Acquire) == MAGIC);
        let version = words.get(at::VERSION).map_or(0, |version| version.load(Relaxed));
        match words.get(..MEMORY_WORDS) {
            _ if !is_ours => Err(OpenError::Foreign),
            _ if version != VERSION => Err(OpenError::Version(version)),
            Some(words) if words[at::LENGTH].load(Relaxed) == MEMORY_WORDS as u64 => Ok(Self { words }),
            _ => Err(OpenError::Foreign),
        }
    }

    #[inline]
    fn get(&self, word: usize) -> u64 {
        self.words[word].load(Relaxed)
    }

    fn set(&self, word: usize, value: u64) {
        self.words[word].store(value, Relaxed);
    }

    /// The mean period (ns of a thread's CPU time).
    #[inline]
    pub fn period_ns(&self) -> u64 {
        self.get(at::PERIOD)
    }

    /// Sets the mean period; each thread follows at its next sample.
    pub fn set_period_ns(&self, period_ns: u64) {
        self.set(at::PERIOD, period_ns);
    }

    /// Bytes of stack to copy.
    #[inline]
    pub fn stack_bytes(&self) -> u64 {
        self.get(at::STACK_BYTES)
    }

    /// Sets how many bytes of stack are copied from now on.
    pub fn set_stack_bytes(&self, bytes: u64) {
        self.set(at::STACK_BYTES, bytes);
    }

    /// Seed of the random periods.
    pub fn seed(&self) -> u64 {
        self.get(at::SEED)
    }

    /// A sign of life of the profiler (ns of the monotonic clock).
    pub fn beat(&self, now_ns: u64) {
        self.set(at::HEARTBEAT, now_ns);
    }

    /// No agent samples any more.
    pub fn stop(&self) {
        self.set(at::STOPPED, 1);
    }

    /// Whether agents shall leave their process alone: they are told to, or nobody is there any more.
    #[inline]
    pub fn is_over(&self, now_ns: u64) -> bool {
        let silent_ns = now_ns.saturating_sub(self.get(at::HEARTBEAT));
        self.get(at::STOPPED) != 0 || silent_ns > self.get(at::PATIENCE)
    }

    /// A thread is not sampled, for want of a slot.
    pub fn note_left_out(&self) {
        self.words[at::LEFT_OUT].fetch_add(1, Relaxed);
    }

    /// Threads that were not sampled for want of a slot.
    pub fn left_out(&self) -> u64 {
        self.get(at::LEFT_OUT)
    }

    /// A thread is not sampled, since the kernel refused a timer.
    pub fn note_refused(&self) {
        self.words[at::REFUSED].fetch_add(1, Relaxed);
    }

    /// Threads that the kernel refused a timer.
    pub fn refused(&self) -> u64 {
        self.get(at::REFUSED)
    }

    /// A thread has ended with so much CPU time due to be sampled, in which there was no tick (ns).
    pub fn note_unseen(&self, ns: u64) {
        self.words[at::UNSEEN].fetch_add(ns, Relaxed);
    }

    /// CPU time of threads that ended before the tick that would have sampled them (ns).
    pub fn unseen_ns(&self) -> u64 {
        self.get(at::UNSEEN)
    }

    /// A slot with its ring; `None` if there is no such slot.
    #[inline]
    pub fn slot(&self, index: usize) -> Option<Slot<'a>> {
        let (table, ring) = (HEADER_WORDS + index * SLOT_WORDS, RINGS_AT + index * RING_WORDS);
        let inside = index < SLOTS;
        inside
            .then(|| Slot::new(&self.words[table..table + SLOT_WORDS], &self.words[ring..ring + RING_WORDS]))
    }

    /// Takes a free slot for a thread; `None` if there is none.
    pub fn claim(&self, pid: u32, tid: u32) -> Option<usize> {
        // The first that is free: what rings were written to is memory, and is used again.
        let claimed = (0..SLOTS).find(|&index| self.slot(index).is_some_and(|slot| slot.claim(pid, tid)))?;
        self.words[at::CLAIMS].fetch_add(1, Release);
        Some(claimed)
    }

    /// How often a slot was claimed: when it has not changed, no slot has a new owner.
    pub fn claims(&self) -> u64 {
        self.words[at::CLAIMS].load(Acquire)
    }

    /// Gives up all slots of a process that has become another program.
    pub fn end_all(&self, pid: u32) {
        let slots = (0..SLOTS).filter_map(|index| self.slot(index));
        slots.filter(|slot| slot.owner().is_some_and(|(owner, _)| owner == pid)).for_each(|slot| slot.end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zeros() -> Vec<AtomicU64> {
        (0..MEMORY_WORDS).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn what_is_no_memory_of_ours_is_refused() {
        let words = zeros();
        assert_eq!(Memory::open(&words).err(), Some(OpenError::Foreign));
        assert!(Memory::prepare(&words[1..], &Settings::default()).is_none());
        Memory::prepare(&words, &Settings::default()).unwrap();
        assert!(Memory::open(&words).is_ok());
        assert_eq!(Memory::open(&words[..MEMORY_WORDS - 1]).err(), Some(OpenError::Foreign));
        assert_eq!(Memory::open(&[]).err(), Some(OpenError::Foreign));
        words[at::VERSION].store(VERSION + 1, Relaxed);
        assert_eq!(Memory::open(&words).err(), Some(OpenError::Version(VERSION + 1)));
    }

    #[test]
    fn agents_stop_when_they_are_told_to_or_nobody_is_there() {
        let words = zeros();
        let settings = Settings { now_ns: 1_000, patience_ns: 50, ..Settings::default() };
        let memory = Memory::prepare(&words, &settings).unwrap();
        assert!(!memory.is_over(1_050) && memory.is_over(1_051) && !memory.is_over(0));
        memory.beat(2_000);
        assert!(!memory.is_over(2_050));
        memory.stop();
        assert!(memory.is_over(2_000));
    }

    #[test]
    fn a_slot_that_was_given_up_is_no_longer_its_threads_to_end() {
        let words = zeros();
        let memory = Memory::prepare(&words, &Settings::default()).unwrap();
        let index = memory.claim(5, 6).unwrap();
        let slot = memory.slot(index).unwrap();
        slot.end_of(5, 7);
        assert_eq!((slot.state(), memory.claims()), (crate::State::Taken, 1));
        slot.end_of(5, 6);
        assert_eq!((slot.state(), slot.owner()), (crate::State::Ended, Some((5, 6))));
        slot.free(&mut crate::Reader::default());
        assert_eq!((slot.state(), slot.owner(), memory.claims()), (crate::State::Free, None, 1));
    }

    #[test]
    fn every_thread_has_a_slot_of_its_own_until_there_is_none() {
        let words = zeros();
        let memory = Memory::prepare(&words, &Settings::default()).unwrap();
        let slots: Vec<usize> =
            (0..SLOTS as u32).map(|tid| memory.claim(1 + tid % 2, 7 * tid + 1).unwrap()).collect();
        let distinct: std::collections::BTreeSet<&usize> = slots.iter().collect();
        assert_eq!(distinct.len(), SLOTS);
        assert_eq!(memory.claim(9, 9), None);
        memory.end_all(1);
        assert_eq!(memory.claim(9, 9), None, "what was written is read first");
        memory.slot(slots[0]).unwrap().free(&mut crate::Reader::default());
        assert_eq!(memory.claim(9, 9), Some(slots[0]));
        assert!(memory.slot(SLOTS).is_none());
    }
}
