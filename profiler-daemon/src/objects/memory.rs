//! The memory that unwind tables and names may take together.
//!
//! Unwind tables are read when a sample asks for them, as long as there is room. When one was refused, those of the
//! objects that weigh least give way ([`super::ObjectStore::rebalance`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What all objects share. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct SymbolMemory(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    cap: u64,
    held: AtomicU64,
    peak: AtomicU64,
    evictions: AtomicU64,
    rereads: AtomicU64,
    was_refused: AtomicBool,
}

impl SymbolMemory {
    /// Room for so many bytes.
    pub(crate) fn new(cap: u64) -> Self {
        Self(Arc::new(Shared { cap, ..Shared::default() }))
    }

    /// All that there is room for (bytes).
    pub(crate) fn cap(&self) -> u64 {
        self.0.cap
    }

    /// What is free (bytes).
    pub(crate) fn left(&self) -> u64 {
        self.0.cap.saturating_sub(self.0.held.load(Ordering::Relaxed))
    }

    /// Takes room; none, and `false`, if there is not enough.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let more = |held: u64| held.checked_add(bytes).filter(|&held| held <= self.0.cap);
        match self.0.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(before) => {
                self.0.peak.fetch_max(before + bytes, Ordering::Relaxed);
                true
            }
            Err(_) => false,
        }
    }

    /// Notes that so many bytes were in use for a moment beside those that are held.
    pub(crate) fn note_use(&self, bytes: u64) {
        let held = self.0.held.load(Ordering::Relaxed);
        self.0.peak.fetch_max(held.saturating_add(bytes), Ordering::Relaxed);
    }

    pub(crate) fn give_back(&self, bytes: u64) {
        let _ = self
            .0
            .held
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| Some(held.saturating_sub(bytes)));
    }

    /// The most that was ever taken (bytes).
    pub(crate) fn peak(&self) -> u64 {
        self.0.peak.load(Ordering::Relaxed)
    }

    /// How often tables gave way to others.
    pub(crate) fn evictions(&self) -> u64 {
        self.0.evictions.load(Ordering::Relaxed)
    }

    /// How often tables that had to wait, or had given way, were read after all.
    pub(crate) fn rereads(&self) -> u64 {
        self.0.rereads.load(Ordering::Relaxed)
    }

    /// Whether tables were refused since the last call.
    pub(super) fn take_refused(&self) -> bool {
        self.0.was_refused.swap(false, Ordering::Relaxed)
    }
}

/// What the tables of one object take.
#[derive(Debug)]
pub(super) struct Room {
    memory: SymbolMemory,
    held: AtomicU64,
    /// Whether they were asked for and are not there.
    is_missed: AtomicBool,
    /// Whether they have to stay away until others weigh less.
    is_barred: AtomicBool,
}

impl Room {
    pub(super) fn new(memory: &SymbolMemory) -> Arc<Self> {
        Arc::new(Self {
            memory: memory.clone(),
            held: AtomicU64::new(0),
            is_missed: AtomicBool::new(false),
            is_barred: AtomicBool::new(false),
        })
    }

    /// Reads a table of so many bytes if there is room for it.
    pub(super) fn read(&self, bytes: u64, read: impl FnOnce() -> Option<Vec<u8>>) -> Option<Vec<u8>> {
        if self.is_barred.load(Ordering::Relaxed) || !self.memory.take(bytes) {
            self.is_missed.store(true, Ordering::Relaxed);
            self.memory.0.was_refused.store(true, Ordering::Relaxed);
            return None;
        }
        let read = read();
        match read {
            Some(_) => _ = self.held.fetch_add(bytes, Ordering::Relaxed),
            None => self.memory.give_back(bytes),
        }
        read
    }

    /// Whether there is anything to decide about this object.
    pub(super) fn is_wanted(&self) -> bool {
        self.held.load(Ordering::Relaxed) > 0 || self.is_missed.load(Ordering::Relaxed)
    }

    /// Decides whether the tables may be in memory. Returns whether they have to be read anew, by those who still have
    /// them or who did without.
    pub(super) fn decide(&self, may_stay: bool) -> bool {
        let is_missed = self.is_missed.load(Ordering::Relaxed);
        self.is_barred.store(!may_stay, Ordering::Relaxed);
        match may_stay {
            true if is_missed => {
                self.release();
                self.memory.0.rereads.fetch_add(1, Ordering::Relaxed);
                true
            }
            false if self.held.load(Ordering::Relaxed) > 0 => {
                self.release();
                self.memory.0.evictions.fetch_add(1, Ordering::Relaxed);
                true
            }
            _ => false,
        }
    }

    /// The tables are about to go.
    pub(super) fn release(&self) {
        self.memory.give_back(self.held.swap(0, Ordering::Relaxed));
        self.is_missed.store(false, Ordering::Relaxed);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.release();
    }
}
