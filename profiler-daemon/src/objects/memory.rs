//! The memory that unwind tables and names may take together.
//!
//! Unwind tables are read when a sample asks for them, as long as there is room. When one was refused, those of the
//! objects that weigh least give way ([`super::ObjectStore::rebalance`]). Where names are asked for again and again while
//! stacks are unwound, half of the room is theirs, and half of that may be taken by names that are kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What all objects share. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct SymbolMemory(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    cap: u64,
    /// The part of it that is not for tables.
    for_names: AtomicU64,
    /// Tables and names together.
    held: AtomicU64,
    tables: AtomicU64,
    kept_names: AtomicU64,
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
        let is_taken = take_of(&self.0.held, bytes, self.0.cap);
        if is_taken {
            self.note_use(0);
        }
        is_taken
    }

    /// Takes room for unwind tables.
    fn take_table(&self, bytes: u64) -> bool {
        let most = self.for_tables();
        take_of(&self.0.tables, bytes, most) && {
            let is_taken = self.take(bytes);
            if !is_taken {
                give_back_to(&self.0.tables, bytes);
            }
            is_taken
        }
    }

    fn give_back_table(&self, bytes: u64) {
        give_back_to(&self.0.tables, bytes);
        self.give_back(bytes);
    }

    /// What unwind tables may take (bytes).
    pub(super) fn for_tables(&self) -> u64 {
        self.0.cap.saturating_sub(self.0.for_names.load(Ordering::Relaxed))
    }

    /// From now on there are names to be read while stacks are unwound: tables give way to them.
    pub(super) fn share_with_names(&self) {
        if self.0.for_names.swap(self.0.cap / 2, Ordering::Relaxed) == 0 {
            self.0.was_refused.store(true, Ordering::Relaxed); // so that it is decided whose tables stay
        }
    }

    /// Takes room for names that are kept.
    pub(super) fn take_kept(&self, bytes: u64) -> bool {
        take_of(&self.0.kept_names, bytes, self.0.cap / 4) && {
            let is_taken = self.take(bytes);
            if !is_taken {
                give_back_to(&self.0.kept_names, bytes);
            }
            is_taken
        }
    }

    pub(super) fn give_back_kept(&self, bytes: u64) {
        give_back_to(&self.0.kept_names, bytes);
        self.give_back(bytes);
    }

    /// What the names take that are kept (bytes).
    pub(super) fn kept(&self) -> u64 {
        self.0.kept_names.load(Ordering::Relaxed)
    }

    /// Notes that so many bytes were in use for a moment beside those that are held.
    pub(crate) fn note_use(&self, bytes: u64) {
        let held = self.0.held.load(Ordering::Relaxed);
        self.0.peak.fetch_max(held.saturating_add(bytes), Ordering::Relaxed);
    }

    pub(crate) fn give_back(&self, bytes: u64) {
        give_back_to(&self.0.held, bytes);
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

fn take_of(held: &AtomicU64, bytes: u64, most: u64) -> bool {
    let more = |held: u64| held.checked_add(bytes).filter(|&held| held <= most);
    held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
}

fn give_back_to(held: &AtomicU64, bytes: u64) {
    let less = |held: u64| Some(held.saturating_sub(bytes));
    let _ = held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
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
        if self.is_barred.load(Ordering::Relaxed) || !self.memory.take_table(bytes) {
            self.is_missed.store(true, Ordering::Relaxed);
            self.memory.0.was_refused.store(true, Ordering::Relaxed);
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
    pub(super) fn is_wanted(&self) -> bool {
        self.held.load(Ordering::Relaxed) > 0
            || self.is_missed.load(Ordering::Relaxed)
            || self.is_barred.load(Ordering::Relaxed)
    }

    /// Decides whether the tables may be in memory. Returns whether that changes anything for those who use them.
    pub(super) fn decide(&self, may_stay: bool) -> bool {
        let was_barred = self.is_barred.swap(!may_stay, Ordering::Relaxed);
        let count = match may_stay {
            true if was_barred || self.is_missed.load(Ordering::Relaxed) => &self.memory.0.rereads,
            false if !was_barred && self.held.load(Ordering::Relaxed) > 0 => &self.memory.0.evictions,
            // They were refused from the first, and will be.
            false if !was_barred => return true,
            _ => return false,
        };
        self.release();
        count.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// The tables are about to go.
    pub(super) fn release(&self) {
        self.memory.give_back_table(self.held.swap(0, Ordering::Relaxed));
        self.is_missed.store(false, Ordering::Relaxed);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(room: &Room, bytes: u64) -> bool {
        room.read(bytes, || Some(vec![0; bytes as usize])).is_some()
    }

    #[test]
    fn no_more_is_taken_than_there_is_and_all_is_given_back() {
        let memory = SymbolMemory::new(100);
        let (one, other) = (Room::new(&memory), Room::new(&memory));
        assert!(read(&one, 60) && !read(&other, 60) && read(&other, 40));
        assert!(!read(&one, 1) && !read(&one, u64::MAX));
        assert_eq!((memory.left(), memory.peak()), (0, 100));
        assert!(one.read(0, || None).is_none() && memory.left() == 0);
        one.release();
        assert_eq!(memory.left(), 60);
        drop(other);
        assert_eq!((memory.left(), memory.peak()), (100, 100));
    }

    #[test]
    fn names_that_are_asked_for_while_stacks_are_unwound_have_their_half() {
        let memory = SymbolMemory::new(100);
        let (one, other) = (Room::new(&memory), Room::new(&memory));
        assert!(read(&one, 60));
        memory.share_with_names();
        assert!(memory.take_refused(), "what is too much has to go");
        memory.share_with_names();
        assert!(!memory.take_refused() && !read(&other, 1));
        one.release();
        assert!(read(&other, 50) && !read(&one, 1) && memory.left() == 50);
        assert!(memory.take_kept(25) && !memory.take_kept(1) && memory.take(25) && !memory.take(1));
        memory.give_back_kept(25);
        assert_eq!((memory.kept(), memory.left(), memory.peak()), (0, 25, 100));
    }

    #[test]
    fn tables_give_way_and_come_back_once_each() {
        let memory = SymbolMemory::new(100);
        let (light, heavy) = (Room::new(&memory), Room::new(&memory));
        assert!(read(&light, 80) && !read(&heavy, 50));
        assert!(memory.take_refused() && !memory.take_refused());
        assert!(heavy.decide(true) && light.decide(false), "both are read anew, or not at all");
        assert!(read(&heavy, 50) && !read(&light, 20), "there would be room, but it has to stay away");
        assert!(!heavy.decide(true), "nothing changes");
        assert!(light.decide(true) && read(&light, 20));
        assert_eq!((memory.evictions(), memory.rereads()), (1, 2));
    }
}
