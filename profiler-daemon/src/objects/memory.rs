//! The memory that unwind tables and names may take together: of one run, or of all targets of the daemon.
//!
//! Unwind tables are read when a sample asks for them, as long as there is room. When one was refused, those of the
//! objects that weigh least give way, whosever they are ([`super::ObjectStore::rebalance`]). Where names are asked for again
//! and again while stacks are unwound, half of the room is theirs: names that are kept take half of that at most, and the
//! rest may be taken by symbol tables that stay in memory for the next addresses ([`super::loaded`]). What journals of generated
//! code told goes before these.

mod tables;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustc_hash::FxHashSet;

pub(super) use self::tables::Room;

/// What all objects of all targets share. Clones are the same, and count for the same target.
#[derive(Clone, Debug)]
pub(crate) struct SymbolMemory {
    shared: Arc<MemoryCounts>,
    counts: Arc<TableCounts>,
}

#[derive(Debug, Default)]
struct MemoryCounts {
    cap: AtomicU64,
    /// Whether names are asked for while stacks are unwound.
    has_names: AtomicBool,
    /// Everything together.
    held: AtomicU64,
    tables: AtomicU64,
    kept_names: AtomicU64,
    loaded: AtomicU64,
    journals: AtomicU64,
    peak: AtomicU64,
    /// How often unwind tables were refused.
    refusals: AtomicU64,
    /// Of all objects of all targets.
    rooms: Mutex<Vec<Weak<Room>>>,
}

/// What happened to the unwind tables of one target.
#[derive(Debug, Default)]
struct TableCounts {
    evictions: AtomicU64,
    rereads: AtomicU64,
}

impl SymbolMemory {
    /// Room for so many bytes.
    pub(crate) fn new(cap: u64) -> Self {
        let shared = MemoryCounts { cap: AtomicU64::new(cap), ..MemoryCounts::default() };
        Self { shared: Arc::new(shared), counts: Arc::default() }
    }

    /// The same room for another target.
    pub(super) fn for_another(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), counts: Arc::default() }
    }

    /// From now on there is room for so many bytes. What is too much goes when somebody asks for room.
    pub(super) fn set_cap(&self, bytes: u64) {
        if self.shared.cap.swap(bytes, Ordering::Relaxed) != bytes {
            self.note_refusal(); // so that it is decided anew whose unwind tables stay
        }
    }

    /// All that there is room for (bytes).
    pub(crate) fn cap(&self) -> u64 {
        self.shared.cap.load(Ordering::Relaxed)
    }

    /// What is taken (bytes).
    pub(crate) fn held(&self) -> u64 {
        self.shared.held.load(Ordering::Relaxed)
    }

    /// What is free (bytes).
    pub(crate) fn left(&self) -> u64 {
        self.cap().saturating_sub(self.held())
    }

    /// How much is taken too much for so many bytes to be free.
    pub(super) fn lacking(&self, bytes: u64) -> u64 {
        (self.held().saturating_add(bytes)).saturating_sub(self.cap())
    }

    /// Takes room; none, and `false`, if there is not enough.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let is_taken = take_of(&self.shared.held, bytes, self.cap());
        if is_taken {
            self.note_use(0);
        }
        is_taken
    }

    /// Gives room back.
    pub(crate) fn give_back(&self, bytes: u64) {
        give_back_to(&self.shared.held, bytes);
    }

    fn take_part(&self, part: &AtomicU64, bytes: u64, most: u64) -> bool {
        take_of(part, bytes, most) && {
            let is_taken = self.take(bytes);
            if !is_taken {
                give_back_to(part, bytes);
            }
            is_taken
        }
    }

    fn give_back_part(&self, part: &AtomicU64, bytes: u64) {
        give_back_to(part, bytes);
        self.give_back(bytes);
    }

    /// Takes room for unwind tables.
    fn take_table(&self, bytes: u64) -> bool {
        self.take_part(&self.shared.tables, bytes, self.for_tables())
    }

    fn give_back_table(&self, bytes: u64) {
        self.give_back_part(&self.shared.tables, bytes);
    }

    /// What unwind tables may take (bytes).
    pub(super) fn for_tables(&self) -> u64 {
        let cap = self.cap();
        if self.is_shared_with_names() { cap - cap / 2 } else { cap.saturating_sub(self.journals()) }
    }

    /// Whether names are asked for again and again.
    pub(super) fn is_shared_with_names(&self) -> bool {
        self.shared.has_names.load(Ordering::Relaxed)
    }

    /// What names that are kept and symbol tables may take together (bytes).
    fn for_names(&self) -> u64 {
        (self.cap() / 2).saturating_sub(self.journals())
    }

    /// Takes room for what journals of generated code told, a quarter of all at most. What was not told again can be had nowhere
    /// else, so others give way to it: names that can be read again, and unwind tables.
    pub(crate) fn take_journal(&self, bytes: u64) -> bool {
        let is_taken = bytes == 0 || take_of(&self.shared.journals, bytes, self.cap() / 4);
        if is_taken {
            self.shared.held.fetch_add(bytes, Ordering::Relaxed);
            self.note_use(0);
        }
        if is_taken && self.left() == 0 {
            self.note_refusal(); // so that it is decided whose tables stay
        }
        is_taken
    }

    /// Gives such room back.
    pub(crate) fn give_back_journal(&self, bytes: u64) {
        self.give_back_part(&self.shared.journals, bytes);
    }

    /// What journals take (bytes).
    fn journals(&self) -> u64 {
        self.shared.journals.load(Ordering::Relaxed)
    }

    /// From now on there are names to be read while stacks are unwound: tables give way to them.
    pub(super) fn share_with_names(&self) {
        if !self.shared.has_names.swap(true, Ordering::Relaxed) {
            self.note_refusal(); // so that it is decided whose tables stay
        }
    }

    /// Takes room for names that are kept.
    pub(super) fn take_kept(&self, bytes: u64) -> bool {
        let beside_loaded = self.for_names().saturating_sub(self.loaded());
        self.take_part(&self.shared.kept_names, bytes, beside_loaded.min(self.most_kept()))
    }

    pub(super) fn give_back_kept(&self, bytes: u64) {
        self.give_back_part(&self.shared.kept_names, bytes);
    }

    /// What the names take that are kept (bytes).
    pub(super) fn kept(&self) -> u64 {
        self.shared.kept_names.load(Ordering::Relaxed)
    }

    /// What they may take (bytes).
    pub(super) fn most_kept(&self) -> u64 {
        self.for_names() / 2
    }

    /// Takes room for symbol tables that stay in memory.
    pub(super) fn take_loaded(&self, bytes: u64) -> bool {
        self.take_part(&self.shared.loaded, bytes, self.for_names().saturating_sub(self.kept()))
    }

    pub(super) fn give_back_loaded(&self, bytes: u64) {
        self.give_back_part(&self.shared.loaded, bytes);
    }

    /// What symbol tables take that stay in memory (bytes).
    pub(super) fn loaded(&self) -> u64 {
        self.shared.loaded.load(Ordering::Relaxed)
    }

    /// Notes that so many bytes were in use for a moment beside those that are held.
    pub(crate) fn note_use(&self, bytes: u64) {
        self.shared.peak.fetch_max(self.held().saturating_add(bytes), Ordering::Relaxed);
    }

    /// The most that was ever taken (bytes).
    pub(crate) fn peak(&self) -> u64 {
        self.shared.peak.load(Ordering::Relaxed)
    }

    /// How often unwind tables of this target gave way to others.
    pub(crate) fn evictions(&self) -> u64 {
        self.counts.evictions.load(Ordering::Relaxed)
    }

    /// How often those that had to wait, or had given way, were read after all.
    pub(crate) fn rereads(&self) -> u64 {
        self.counts.rereads.load(Ordering::Relaxed)
    }

    fn note_refusal(&self) {
        self.shared.refusals.fetch_add(1, Ordering::Relaxed);
    }

    /// How often unwind tables were refused to anyone.
    pub(super) fn refusals(&self) -> u64 {
        self.shared.refusals.load(Ordering::Relaxed)
    }

    /// Whose unwind tables may be in memory, of all targets: the heaviest objects', by what was said of them last.
    pub(super) fn staying(&self) -> FxHashSet<*const Room> {
        let rooms: Vec<Arc<Room>> = self.rooms().iter().filter_map(Weak::upgrade).collect();
        let wanted = rooms.iter().filter(|room| room.is_wanted());
        let mut wanted: Vec<(f64, u64, *const Room)> = wanted
            .map(|room| {
                let (bytes, weight) = room.asked();
                (weight, bytes, Arc::as_ptr(room))
            })
            .collect();
        wanted.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.2.cmp(&other.2)));
        let mut left = self.for_tables();
        wanted.retain(|(_, bytes, _)| {
            let may_stay = *bytes <= left;
            left -= if may_stay { *bytes } else { 0 };
            may_stay
        });
        wanted.into_iter().map(|(.., room)| room).collect()
    }

    fn enter(&self, room: &Arc<Room>) {
        let mut rooms = self.rooms();
        if rooms.len() == rooms.capacity() {
            rooms.retain(|room| room.strong_count() > 0);
        }
        rooms.push(Arc::downgrade(room));
    }

    fn rooms(&self) -> MutexGuard<'_, Vec<Weak<Room>>> {
        self.shared.rooms.lock().unwrap_or_else(PoisonError::into_inner)
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

#[cfg(test)]
mod tests;
