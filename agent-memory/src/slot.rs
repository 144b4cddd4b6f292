//! A thread's place in the memory.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::{Ring, RingReader};

/// Words of a slot beside its ring. What the thread writes and what the profiler writes lie on lines of their own.
pub(crate) const SLOT_WORDS: usize = 16;

/// What stands at which word.
mod at {
    pub(super) const STATE: usize = 0;
    pub(super) const TID: usize = 1;
    pub(super) const HEAD: usize = 2;
    pub(super) const DROPPED: usize = 3;
    pub(super) const TAIL: usize = 8;
}

/// Who has a slot, and what becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// Nobody.
    Free,
    /// A thread that may still write into its ring, unless it was killed.
    Taken,
    /// A thread that has ended; its records wait to be read.
    Ended,
    /// Somebody has written what has no meaning.
    Unknown,
}

const FREE: u64 = 0;
const TAKEN: u64 = 1;
const ENDED: u64 = 2;

/// A slot with its ring.
#[derive(Clone, Copy, Debug)]
pub struct Slot<'a> {
    words: &'a [AtomicU64],
    ring: &'a [AtomicU64],
}

impl<'a> Slot<'a> {
    #[inline]
    pub(crate) fn new(words: &'a [AtomicU64], ring: &'a [AtomicU64]) -> Self {
        Self { words, ring }
    }

    /// The ring.
    #[inline]
    pub fn ring(&self) -> Option<Ring<'a, AtomicU64>> {
        Ring::new(&self.words[at::HEAD], &self.words[at::TAIL], self.ring)
    }

    fn state_word(&self) -> u64 {
        // ATOMICS: pairs with whoever claimed, ended or freed it: the rest was written before.
        self.words[at::STATE].load(Acquire)
    }

    /// What has become of it.
    pub fn state(&self) -> SlotState {
        match self.state_word() & 0xff {
            _ if self.state_word() == FREE => SlotState::Free,
            TAKEN => SlotState::Taken,
            ENDED => SlotState::Ended,
            _ => SlotState::Unknown,
        }
    }

    /// Process and thread, unless nobody has it.
    pub fn owner(&self) -> Option<(u32, u32)> {
        let word = self.state_word();
        (word != FREE).then(|| ((word >> 8) as u32, self.words[at::TID].load(Relaxed) as u32))
    }

    /// The process is in the word that is exchanged: so the slot of one that was killed at any moment is known to be its.
    pub(crate) fn claim(&self, pid: u32, tid: u32) -> bool {
        let taken = u64::from(pid) << 8 | TAKEN;
        let claimed = self.words[at::STATE].compare_exchange(FREE, taken, AcqRel, Relaxed).is_ok();
        if claimed {
            self.words[at::TID].store(u64::from(tid), Relaxed);
        }
        claimed
    }

    /// The thread has ended, or is sampled no longer. For the thread, or when it is gone.
    pub fn end(&self) {
        let pid_and_rest = self.state_word() & !0xff;
        self.words[at::STATE].store(pid_and_rest | ENDED, Release);
    }

    /// The same, unless it is another's by now.
    pub fn end_of(&self, pid: u32, tid: u32) {
        if self.owner() == Some((pid, tid)) {
            self.end();
        }
    }

    /// Gives it back, empty. For the profiler.
    pub fn free(&self, reader: &mut RingReader) {
        if let Some(ring) = self.ring() {
            reader.reset(&ring);
        }
        self.words[at::DROPPED].store(0, Relaxed);
        self.words[at::TID].store(0, Relaxed);
        self.words[at::STATE].store(FREE, Release);
    }

    /// A sample found no room. For the thread.
    #[inline]
    pub fn note_dropped(&self) {
        self.words[at::DROPPED].fetch_add(1, Relaxed);
    }

    /// Samples that found no room.
    pub fn dropped(&self) -> u64 {
        self.words[at::DROPPED].load(Relaxed)
    }
}
