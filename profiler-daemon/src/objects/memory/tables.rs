//! What the unwind tables of one object take.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::SymbolMemory;

/// What the unwind tables of one object take.
#[derive(Debug)]
pub(in crate::objects) struct Room {
    memory: SymbolMemory,
    held: AtomicU64,
    /// Whether they were asked for and are not there.
    is_missed: AtomicBool,
    /// Whether they were asked for and their file system did not answer.
    is_unanswered: AtomicBool,
    /// Whether they have to stay away until others weigh less.
    is_barred: AtomicBool,
    /// What they would take, and the bits of what the object weighs, when that was asked last.
    wants: AtomicU64,
    weight: AtomicU64,
}

impl Room {
    pub(in crate::objects) fn new(memory: &SymbolMemory) -> Arc<Self> {
        let room = Arc::new(Self {
            memory: memory.clone(),
            held: AtomicU64::new(0),
            is_missed: AtomicBool::new(false),
            is_unanswered: AtomicBool::new(false),
            is_barred: AtomicBool::new(false),
            wants: AtomicU64::new(0),
            weight: AtomicU64::new(0),
        });
        memory.enter(&room);
        room
    }

    /// Reads a table of so many bytes if there is room for it.
    pub(in crate::objects) fn read(
        &self,
        bytes: u64,
        read: impl FnOnce() -> Option<Vec<u8>>,
    ) -> Option<Vec<u8>> {
        if self.is_barred.load(Ordering::Relaxed) || !self.memory.take_table(bytes) {
            self.is_missed.store(true, Ordering::Relaxed);
            self.memory.note_refusal();
            return None;
        }
        let read = read();
        match read {
            Some(_) => _ = self.held.fetch_add(bytes, Ordering::Relaxed),
            None => self.memory.give_back_table(bytes),
        }
        read
    }

    /// Whether there is anything to decide about this object.
    pub(in crate::objects) fn is_wanted(&self) -> bool {
        self.held.load(Ordering::Relaxed) > 0 || self.is_away() || self.is_unanswered.load(Ordering::Relaxed)
    }

    /// Whether its tables were asked for and there was no room for them.
    pub(in crate::objects) fn is_away(&self) -> bool {
        self.is_missed.load(Ordering::Relaxed) || self.is_barred.load(Ordering::Relaxed)
    }

    /// The file system did not answer in time. The tables are asked for again.
    pub(in crate::objects) fn note_unanswered(&self) {
        self.is_unanswered.store(true, Ordering::Relaxed);
        self.memory.note_refusal();
    }

    /// Says what the tables would take, and what the object weighs (ns).
    pub(in crate::objects) fn ask(&self, bytes: u64, weight: f64) {
        self.wants.store(bytes, Ordering::Relaxed);
        self.weight.store(weight.to_bits(), Ordering::Relaxed);
    }

    /// What was said last, and before that what is held.
    pub(in crate::objects) fn asked(&self) -> (u64, f64) {
        let bytes = self.wants.load(Ordering::Relaxed).max(self.held.load(Ordering::Relaxed));
        (bytes, f64::from_bits(self.weight.load(Ordering::Relaxed)))
    }

    /// Decides whether the tables may be in memory. Returns whether that changes anything for those who use them.
    pub(in crate::objects) fn decide(&self, may_stay: bool) -> bool {
        let was_barred = self.is_barred.swap(!may_stay, Ordering::Relaxed);
        let counts = &self.memory.counts;
        let count = match may_stay {
            true if was_barred || self.is_missed.load(Ordering::Relaxed) => &counts.rereads,
            true if self.is_unanswered.load(Ordering::Relaxed) => &counts.rereads,
            false if !was_barred && self.held.load(Ordering::Relaxed) > 0 => &counts.evictions,
            // They were refused from the first, and will be.
            false if !was_barred => return true,
            _ => return false,
        };
        self.release();
        count.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// The tables are about to go.
    pub(in crate::objects) fn release(&self) {
        self.memory.give_back_table(self.held.swap(0, Ordering::Relaxed));
        self.is_missed.store(false, Ordering::Relaxed);
        self.is_unanswered.store(false, Ordering::Relaxed);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.release();
    }
}
