//! Where everything lies, and the header.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::Slot;
use crate::slot::SLOT_WORDS;

/// "sweetspt", so that nothing else is taken for this memory.
const MAGIC: u64 = u64::from_le_bytes(*b"sweetspt");
/// Of layout and meaning. An agent of another version leaves the process alone.
const VERSION: u64 = 4;

/// Threads that can be sampled at a time.
pub const SLOTS: usize = 4096;
/// Words of the biggest ring: 256 KiB, which hold four of the biggest samples.
pub const RING_WORDS: usize = 1 << 15;
/// Up to which slot rings have so many words, a power of two. Where there are many threads few are busy, and all rings together are
/// memory that is there: 32 MiB for 128 threads, 64 MiB for 640, 172 MiB for all.
const TIERS: [(usize, usize); 3] = [(128, RING_WORDS), (640, RING_WORDS >> 2), (SLOTS, RING_WORDS >> 3)];
/// Words before the table of slots: a page.
const HEADER_WORDS: usize = 512;
const RINGS_AT: usize = HEADER_WORDS + SLOTS * SLOT_WORDS;
/// Words of the whole memory.
pub const MEMORY_WORDS: usize = words_for(SLOTS);

/// Words of the memory up to the end of so many rings: a process with few threads need map no more.
pub const fn words_for(slots: usize) -> usize {
    let (mut words, mut first, mut tier) = (RINGS_AT, 0, 0);
    while tier < TIERS.len() {
        let (end, ring_words) = TIERS[tier];
        let end = if slots < end { slots } else { end };
        words += end.saturating_sub(first) * ring_words;
        (first, tier) = (if first < end { end } else { first }, tier + 1);
    }
    words
}

/// Words of the ring of a slot.
#[inline]
pub fn ring_words(slot: usize) -> usize {
    TIERS.iter().find(|(end, _)| slot < *end).map_or(0, |(_, words)| *words)
}

/// What stands at which word of the header. The profiler writes all but the last five.
mod at {
    pub(super) const MAGIC: usize = 0;
    pub(super) const VERSION: usize = 1;
    pub(super) const LENGTH: usize = 2;
    pub(super) const SEED: usize = 3;
    pub(super) const PATIENCE: usize = 4;
    pub(super) const ATTENTION: usize = 5;
    pub(super) const COPIES: usize = 6;
    pub(super) const IDENTITY: usize = 7;
    pub(super) const PERIOD: usize = 8;
    pub(super) const STACK_BYTES: usize = 9;
    pub(super) const STOPPED: usize = 10;
    pub(super) const SHUT: usize = 11;
    pub(super) const HEARTBEAT: usize = 16;
    pub(super) const LEFT_OUT: usize = 24;
    pub(super) const REFUSED: usize = 25;
    pub(super) const CLAIMS: usize = 26;
    pub(super) const UNSEEN: usize = 27;
    pub(super) const HIGHEST: usize = 28;
}

/// The least period while nobody gives a sign of life (ns of a thread's CPU time): what it costs cannot be measured.
pub const SPARING_NS: u64 = 1_000_000_000;

/// Periods that agents follow, whatever anybody has written (ns): a busy thread would do nothing but take samples, or its time
/// could no longer be added up.
const SHORTEST_NS: u64 = 20_000;
const LONGEST_NS: u64 = 3_600_000_000_000;

/// What agents are given at the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentSettings {
    /// Mean period (ns of a thread's CPU time).
    pub period_ns: u64,
    /// Bytes of stack to copy.
    pub stack_bytes: u64,
    /// Of the random periods.
    pub seed: u64,
    /// Tells this run from others in the same process.
    pub identity: u64,
    /// When nobody has given a sign of life for so long, agents sample at [`SPARING_NS`] until there is one (ns).
    pub attention_ns: u64,
    /// When it has been so long, they stop by themselves, for good (ns).
    pub patience_ns: u64,
    /// Whether agents may have the kernel copy a stack that they know nothing of: a filter of system calls may think otherwise.
    pub may_copy: bool,
    /// The first sign of life (ns of the monotonic clock).
    pub now_ns: u64,
}

impl AgentSettings {
    /// What stands at which word because of them.
    fn words(&self) -> [(usize, u64); 9] {
        [
            (at::COPIES, u64::from(self.may_copy)),
            (at::VERSION, VERSION),
            (at::LENGTH, MEMORY_WORDS as u64),
            (at::SEED, self.seed),
            (at::IDENTITY, self.identity),
            (at::ATTENTION, self.attention_ns),
            (at::PATIENCE, self.patience_ns),
            (at::PERIOD, self.period_ns),
            (at::STACK_BYTES, self.stack_bytes),
        ]
    }
}

impl Default for AgentSettings {
    fn default() -> Self {
        Self {
            period_ns: 10_000_000,
            stack_bytes: 0,
            seed: 0,
            identity: 0,
            attention_ns: 1_000_000_000, // a tick is .1 s
            patience_ns: 15_000_000_000, // a profiler that is stopped for so long may as well be gone
            may_copy: false,
            now_ns: 0,
        }
    }
}

/// Why a file is not the memory that is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryOpenError {
    /// It is something else, or too short.
    Foreign,
    /// It is that of a profiler of another version.
    Version(u64),
}

/// The memory, as either side sees it: all of it, or as many of its rings as are mapped.
#[derive(Clone, Copy, Debug)]
pub struct Memory<'a> {
    words: &'a [AtomicU64],
}

impl<'a> Memory<'a> {
    /// Makes an empty memory of zeros the memory of a run, or mends the head of one that somebody has written over; `None` if
    /// it is too small for a ring.
    pub fn prepare(words: &'a [AtomicU64], settings: &AgentSettings) -> Option<Self> {
        let memory = Self::of_own(words)?;
        settings.words().into_iter().for_each(|(word, value)| memory.set(word, value));
        memory.beat(settings.now_ns);
        // ATOMICS: who sees it sees the rest.
        memory.words[at::MAGIC].store(MAGIC, Release);
        Some(memory)
    }

    /// The memory that somebody has prepared, or as much of it as is mapped: a ring at least.
    ///
    /// # Errors
    ///
    /// If this is none that can be used.
    pub fn open(words: &'a [AtomicU64]) -> Result<Self, MemoryOpenError> {
        let is_ours = words.first().is_some_and(|magic| magic.load(Acquire) == MAGIC);
        let version = words.get(at::VERSION).map_or(0, |version| version.load(Relaxed));
        match words.get(..words.len().min(MEMORY_WORDS)) {
            _ if !is_ours => Err(MemoryOpenError::Foreign),
            _ if version != VERSION => Err(MemoryOpenError::Version(version)),
            Some(words)
                if words.len() >= words_for(1) && words[at::LENGTH].load(Relaxed) == MEMORY_WORDS as u64 =>
            {
                Ok(Self { words })
            }
            _ => Err(MemoryOpenError::Foreign),
        }
    }

    /// The memory that this side has prepared itself, whatever others have written over its head since.
    pub fn of_own(words: &'a [AtomicU64]) -> Option<Self> {
        let words = words.get(..words.len().min(MEMORY_WORDS))?;
        (words.len() >= words_for(1)).then_some(Self { words })
    }

    /// Whether these settings still stand there.
    pub fn has_settings(&self, settings: &AgentSettings) -> bool {
        let stands = |(word, value)| self.get(word) == value;
        self.get(at::MAGIC) == MAGIC && self.get(at::STOPPED) == 0 && settings.words().into_iter().all(stands)
    }

    /// Threads that rings are mapped for.
    #[inline]
    pub fn slots(&self) -> usize {
        let (mut left, mut slots) = (self.words.len().saturating_sub(RINGS_AT), 0);
        for (end, ring_words) in TIERS {
            let fit = (left / ring_words).min(end - slots);
            (left, slots) = (left - fit * ring_words, slots + fit);
            if slots < end {
                break;
            }
        }
        slots
    }

    #[inline]
    fn get(&self, word: usize) -> u64 {
        self.words[word].load(Relaxed)
    }

    fn set(&self, word: usize, value: u64) {
        self.words[word].store(value, Relaxed);
    }

    /// Bytes of stack to copy.
    #[inline]
    pub fn stack_bytes(&self) -> u64 {
        self.get(at::STACK_BYTES)
    }

    /// Whether the kernel may be asked to copy a stack.
    #[inline]
    pub fn may_copy(&self) -> bool {
        self.get(at::COPIES) == 1
    }

    /// Seed of the random periods.
    pub fn seed(&self) -> u64 {
        self.get(at::SEED)
    }

    /// What tells this run from others in the same process.
    pub fn identity(&self) -> u64 {
        self.get(at::IDENTITY)
    }

    /// A sign of life of the profiler (ns of the monotonic clock).
    pub fn beat(&self, now_ns: u64) {
        self.set(at::HEARTBEAT, now_ns);
    }

    /// No agent samples any more.
    pub fn stop(&self) {
        self.set(at::STOPPED, 1);
    }

    /// The process has shut itself in: its agent does nothing any more, not even to take back what it did.
    pub fn shut(&self) {
        self.set(at::SHUT, 1);
    }

    /// Whether agents shall do nothing at all.
    #[inline]
    pub fn is_shut(&self) -> bool {
        self.get(at::SHUT) != 0
    }

    #[inline]
    fn silent_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.get(at::HEARTBEAT))
    }

    /// Whether agents shall leave their process alone: they are told to, or nobody is there any more.
    #[inline]
    pub fn is_over(&self, now_ns: u64) -> bool {
        self.get(at::STOPPED) != 0 || self.silent_ns(now_ns) > self.get(at::PATIENCE)
    }

    /// The mean period that is in force (ns of a thread's CPU time): a long one while nobody gives a sign of life.
    #[inline]
    pub fn period_at_ns(&self, now_ns: u64) -> u64 {
        let is_silent = self.silent_ns(now_ns) > self.get(at::ATTENTION);
        self.get(at::PERIOD).clamp(if is_silent { SPARING_NS } else { SHORTEST_NS }, LONGEST_NS)
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
        if index >= SLOTS {
            return None;
        }
        let (table, ring) = (HEADER_WORDS + index * SLOT_WORDS, words_for(index));
        let ring = self.words.get(ring..ring + ring_words(index))?;
        Some(Slot::new(&self.words[table..table + SLOT_WORDS], ring))
    }

    /// Takes a free slot for a thread; `None` if there is none with a ring that is mapped.
    pub fn claim(&self, pid: u32, tid: u32) -> Option<usize> {
        // The first that is free: the memory of these is there already, since somebody has had it or the profiler has reserved it.
        let claimed =
            (0..self.slots()).find(|&index| self.slot(index).is_some_and(|slot| slot.claim(pid, tid)))?;
        self.words[at::HIGHEST].fetch_max(claimed as u64, Relaxed);
        self.words[at::CLAIMS].fetch_add(1, Release); // after the rest
        Some(claimed)
    }

    /// How often a slot was claimed: when it has not changed, no slot has a new owner.
    pub fn claims(&self) -> u64 {
        self.words[at::CLAIMS].load(Acquire)
    }

    /// No slot behind this one was ever claimed.
    pub fn highest(&self) -> usize {
        usize::try_from(self.get(at::HIGHEST)).unwrap_or(SLOTS).min(SLOTS - 1)
    }

    /// Gives up all slots of a process that has become another program.
    pub fn end_all(&self, pid: u32) {
        // The rings are not touched, and need not be mapped.
        let tables =
            (0..=self.highest()).map(|index| &self.words[HEADER_WORDS + index * SLOT_WORDS..][..SLOT_WORDS]);
        let slots = tables.map(|table| Slot::new(table, &[]));
        slots.filter(|slot| slot.owner().is_some_and(|(owner, _)| owner == pid)).for_each(|slot| slot.end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As much as a process maps that has few threads.
    const SOME: usize = 24;

    fn zeros() -> Vec<AtomicU64> {
        (0..words_for(SOME)).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn what_is_no_memory_of_ours_is_refused() {
        let words = zeros();
        assert_eq!(Memory::open(&words).err(), Some(MemoryOpenError::Foreign));
        assert!(Memory::prepare(&words[..words_for(1) - 1], &AgentSettings::default()).is_none());
        Memory::prepare(&words, &AgentSettings::default()).unwrap();
        assert_eq!(Memory::open(&words).map(|memory| memory.slots()), Ok(SOME));
        assert_eq!(Memory::open(&words[..words_for(1)]).map(|memory| memory.slots()), Ok(1));
        assert_eq!(Memory::open(&words[..words_for(1) - 1]).err(), Some(MemoryOpenError::Foreign));
        assert_eq!(Memory::open(&[]).err(), Some(MemoryOpenError::Foreign));
        words[at::VERSION].store(VERSION + 1, Relaxed);
        assert_eq!(Memory::open(&words).err(), Some(MemoryOpenError::Version(VERSION + 1)));
    }

    #[test]
    fn rings_lie_side_by_side_and_all_are_found() {
        let mut end = RINGS_AT;
        for slots in 0..SLOTS {
            assert_eq!(words_for(slots), end, "{slots}");
            assert!(ring_words(slots).is_power_of_two());
            end += ring_words(slots);
        }
        assert_eq!((end, ring_words(SLOTS), words_for(SLOTS + 1)), (MEMORY_WORDS, 0, MEMORY_WORDS));
        assert_eq!(MEMORY_WORDS * 8 / (1 << 20), 172);
        let words: Vec<AtomicU64> = (0..words_for(700)).map(|_| AtomicU64::new(0)).collect();
        for slots in [1, 127, 128, 129, 639, 640, 641, 700] {
            for (more, expected) in [(0, slots), (ring_words(slots) - 1, slots)] {
                let Some(words) = words.get(..words_for(slots) + more) else { continue };
                let memory = Memory::of_own(words).unwrap();
                assert_eq!(memory.slots(), expected, "{slots} and {more} words");
                assert!(memory.slot(slots - 1).is_some() && memory.slot(slots).is_none());
            }
        }
    }

    #[test]
    fn agents_stop_when_they_are_told_to_or_nobody_is_there() {
        let words = zeros();
        let settings = AgentSettings { now_ns: 1_000, patience_ns: 50, ..AgentSettings::default() };
        let memory = Memory::prepare(&words, &settings).unwrap();
        assert!(!memory.is_over(1_050) && memory.is_over(1_051) && !memory.is_over(0));
        memory.beat(2_000);
        assert!(!memory.is_over(2_050) && !memory.is_shut());
        memory.shut();
        assert!(memory.is_shut() && !memory.is_over(2_000));
        memory.stop();
        assert!(memory.is_over(2_000));
    }

    #[test]
    fn without_a_sign_of_life_agents_are_sparing_and_no_period_is_absurd() {
        let words = zeros();
        let settings = AgentSettings {
            now_ns: 1_000,
            attention_ns: 50,
            period_ns: 4_000_000,
            ..AgentSettings::default()
        };
        let memory = Memory::prepare(&words, &settings).unwrap();
        assert_eq!((memory.period_at_ns(1_050), memory.period_at_ns(1_051)), (4_000_000, SPARING_NS));
        memory.beat(1_060);
        assert_eq!(memory.period_at_ns(1_061), 4_000_000);
        for (told, followed) in [(0, SHORTEST_NS), (u64::MAX, LONGEST_NS)] {
            memory.set(at::PERIOD, told);
            assert_eq!(memory.period_at_ns(1_061), followed);
        }
    }

    #[test]
    fn what_was_written_over_is_noticed_and_mended() {
        let words = zeros();
        let settings = AgentSettings { seed: 7, identity: 8, ..AgentSettings::default() };
        let memory = Memory::prepare(&words, &settings).unwrap();
        memory.claim(5, 6);
        assert!(memory.has_settings(&settings) && memory.identity() == 8);
        for word in [
            at::MAGIC,
            at::VERSION,
            at::LENGTH,
            at::SEED,
            at::IDENTITY,
            at::PATIENCE,
            at::PERIOD,
            at::STACK_BYTES,
        ] {
            words[word].fetch_xor(1 << 40, Relaxed);
            assert!(!memory.has_settings(&settings), "{word}");
            Memory::prepare(&words, &settings).unwrap();
            assert!(memory.has_settings(&settings) && memory.claims() == 1, "{word}");
        }
        words[at::HIGHEST].store(u64::MAX, Relaxed);
        assert_eq!(memory.highest(), SLOTS - 1);
    }

    #[test]
    fn a_slot_that_was_given_up_is_no_longer_its_threads_to_end() {
        let words = zeros();
        let memory = Memory::prepare(&words, &AgentSettings::default()).unwrap();
        let index = memory.claim(5, 6).unwrap();
        let slot = memory.slot(index).unwrap();
        slot.end_of(5, 7);
        assert_eq!((slot.state(), memory.claims()), (crate::SlotState::Taken, 1));
        slot.end_of(5, 6);
        assert_eq!((slot.state(), slot.owner()), (crate::SlotState::Ended, Some((5, 6))));
        slot.free(&mut crate::RingReader::default());
        assert_eq!((slot.state(), slot.owner(), memory.claims()), (crate::SlotState::Free, None, 1));
    }

    #[test]
    fn every_thread_has_a_slot_of_its_own_until_there_is_none() {
        let words = zeros();
        let memory = Memory::prepare(&words, &AgentSettings::default()).unwrap();
        let slots: Vec<usize> =
            (0..SOME as u32).map(|tid| memory.claim(1 + tid % 2, 7 * tid + 1).unwrap()).collect();
        let distinct: std::collections::BTreeSet<&usize> = slots.iter().collect();
        assert_eq!((distinct.len(), memory.highest()), (SOME, SOME - 1));
        assert_eq!(memory.claim(9, 9), None);
        memory.end_all(1);
        assert_eq!(memory.claim(9, 9), None, "what was written is read first");
        memory.slot(slots[0]).unwrap().free(&mut crate::RingReader::default());
        assert_eq!(memory.claim(9, 9), Some(slots[0]));
        assert!(memory.slot(SOME).is_none());
    }
}
