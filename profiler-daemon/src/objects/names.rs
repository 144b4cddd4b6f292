//! Names that are kept from one cut of a session to the next: those of a service that does today what it did
//! yesterday are read once, for all targets together.
//!
//! Names belong to their source (an object, a list of generated code) and go with it. Where there is no room
//! for new ones, the least recently used go first. All of this happens on the thread that names; the one that
//! samples at most drops an object.

mod equal;
mod kept;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use profiler_core::elf::{ElfImage, Segment};
use profiler_core::profile::Unknown;
use rustc_hash::FxHashMap;
use symbolizer::{NamedFrame, Reason};

pub(crate) use self::equal::{DebugFilesForAll, Equal};
use self::equal::{Equals, NameSharing};
pub(crate) use self::kept::KeptNames;
use super::files::Code;
use super::loaded::Loaded;
use super::memory::SymbolMemory;
use crate::symbol_process;
use crate::sys::clock;

/// When there is no room, so much of it is made at least, as a part of all.
const AT_ONCE: u64 = 16;

/// The functions at an address, or why they are not known.
pub(crate) type FoundFunctions = Result<Vec<NamedFrame>, Unknown>;

/// A cut is named, or something else that asks for names.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Naming {
    /// Later ones have higher numbers.
    pub(crate) number: u32,
    /// When it began (ns of the monotonic clock).
    pub(crate) at_ns: u64,
}

/// Where names are kept, of all targets. Clones are the same.
#[derive(Clone)]
pub(crate) struct NameRoom(Arc<SharedSymbols>);

struct SharedSymbols {
    memory: SymbolMemory,
    /// Most objects whose tables stay in memory. Each may hold open debug files.
    most_loaded: usize,
    /// Whatever holds names.
    holders: Mutex<Vec<Weak<KeptNames>>>,
    /// Those that are objects, whichever target met them.
    objects: Mutex<FxHashMap<SameCode, Weak<KeptNames>>>,
    /// Files of equal content.
    equals: Equals,
    /// Namings that have begun.
    namings: AtomicU32,
    /// The rank of what was evicted last of loaded objects.
    floor: AtomicU64,
    counts: NamingCounts,
}

/// What objects have to have in common for their names to be the same.
#[derive(Clone, PartialEq, Eq, Hash)]
struct SameCode {
    code: Code,
    entry: u64,
    segments: Vec<Segment>,
}

#[derive(Default)]
struct NamingCounts {
    sources: AtomicU64,
    reused: AtomicU64,
    evicted: AtomicU64,
    lists: AtomicU64,
    list_bytes: AtomicU64,
    given_up: AtomicU64,
    read_again: AtomicU64,
}

/// What naming did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NameCounts {
    /// Namings: cuts, mostly.
    pub(crate) namings: u32,
    /// Times that symbol tables and debug information of an object, or the kernel's list, were read.
    pub(crate) sources: u64,
    /// Times that an object's were asked which had stayed in memory.
    pub(crate) reused: u64,
    /// Times that those of an object that had stayed gave way to others.
    pub(crate) evicted: u64,
    /// Times that lists of generated code were read, whole or in part.
    pub(crate) lists: u64,
    /// What was read of them (bytes).
    pub(crate) list_bytes: u64,
    /// Addresses whose names gave way to others.
    pub(crate) given_up: u64,
    /// Times that something was read again for that reason.
    pub(crate) read_again: u64,
    /// What the names take that are kept (bytes).
    pub(crate) kept_bytes: u64,
    /// What objects take that stay loaded (bytes).
    pub(crate) loaded_bytes: u64,
}

/// What a profile says of an object beside names.
#[derive(Clone, Default)]
pub(crate) struct About {
    /// Its build id.
    pub(crate) build_id: Option<String>,
    /// Why its debug information was not used: there was no room for it.
    pub(crate) too_large: Option<Reason>,
    /// Whether it was read in part alone, since reading all of it had ended the symbolizer process.
    pub(crate) is_partial: bool,
    /// Whether what is not known is not looked for again, until it is told to be otherwise.
    pub(crate) is_final: bool,
}

impl NameRoom {
    pub(super) fn new(memory: SymbolMemory) -> Self {
        Self::for_at_most(symbol_process::object_files(), memory)
    }

    fn for_at_most(most_loaded: usize, memory: SymbolMemory) -> Self {
        Self(Arc::new(SharedSymbols {
            memory,
            most_loaded,
            holders: Mutex::default(),
            objects: Mutex::default(),
            equals: Equals::default(),
            namings: AtomicU32::new(0),
            floor: AtomicU64::new(0),
            counts: NamingCounts::default(),
        }))
    }

    /// What the names take, with all else.
    pub(super) fn memory(&self) -> &SymbolMemory {
        &self.0.memory
    }

    /// A naming begins.
    pub(crate) fn begin(&self) -> Naming {
        let number = self.0.namings.fetch_add(1, Ordering::Relaxed) + 1;
        Naming { number, at_ns: clock::monotonic_ns() }
    }

    /// The names of this code, whoever has mapped it.
    pub(super) fn of(&self, code: Code, image: &ElfImage) -> Arc<KeptNames> {
        let key = SameCode { code, entry: image.entry, segments: image.segments.clone() };
        let mut objects = lock(&self.0.objects);
        if let Some(known) = objects.get(&key).and_then(Weak::upgrade) {
            return known;
        }
        if objects.len() == objects.capacity() {
            objects.retain(|_, names| names.strong_count() > 0);
        }
        let names: Arc<KeptNames> = Arc::default();
        if self.0.equals.is_claimed(code.version.len, image, &names) {
            names.share(NameSharing::Claimed);
        }
        objects.insert(key, Arc::downgrade(&names));
        names
    }

    /// An object, or the kernel's list, is about to be read.
    pub(crate) fn count_source(&self) {
        self.0.counts.sources.fetch_add(1, Ordering::Relaxed);
    }

    /// So much of a list of generated code was read.
    pub(crate) fn count_list(&self, bytes: u64) {
        self.0.counts.lists.fetch_add(1, Ordering::Relaxed);
        self.0.counts.list_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// What was done so far.
    #[cfg_attr(not(test), expect(dead_code, reason = "the daemon shows it"))]
    pub(crate) fn counts(&self) -> NameCounts {
        let NamingCounts { sources, reused, evicted, lists, list_bytes, given_up, read_again } =
            &self.0.counts;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        NameCounts {
            namings: self.0.namings.load(Ordering::Relaxed),
            sources: read(sources),
            reused: read(reused),
            evicted: read(evicted),
            lists: read(lists),
            list_bytes: read(list_bytes),
            given_up: read(given_up),
            read_again: read(read_again),
            kept_bytes: self.0.memory.kept(),
            loaded_bytes: self.0.memory.loaded(),
        }
    }

    /// Takes out what stays in memory of the object with these names, to ask it for more.
    pub(crate) fn take_loaded(&self, names: &KeptNames) -> Option<Box<Loaded>> {
        let loaded = names.take_loaded();
        self.0.counts.reused.fetch_add(u64::from(loaded.is_some()), Ordering::Relaxed);
        loaded
    }

    /// Lets an object stay in memory that was asked, if there is room; others give way to it.
    pub(crate) fn keep_loaded(&self, names: &Arc<KeptNames>, mut loaded: Box<Loaded>) {
        self.enter(names);
        let is_too_much = |holders: &[Arc<KeptNames>]| {
            holders.iter().filter(|names| names.rank().is_some()).count() >= self.0.most_loaded
        };
        while is_too_much(&self.holders()) || !loaded.take_room(&self.0.memory) {
            if !self.give_up_loaded() {
                return;
            }
        }
        loaded.note_use(self.0.floor.load(Ordering::Relaxed));
        names.put_loaded(loaded);
    }

    /// Gives up the loaded object of the lowest rank. Returns whether there was one.
    fn give_up_loaded(&self) -> bool {
        let holders = self.holders();
        let ranked = holders.iter().filter_map(|names| Some((names.rank()?, names)));
        let Some((rank, names)) = ranked.min_by_key(|(rank, _)| *rank) else { return false };
        self.give_up(names, rank);
        true
    }

    /// Gives up all loaded objects.
    pub(super) fn give_up_all_loaded(&self) {
        let holders = self.holders();
        let ranked = holders.iter().filter_map(|names| Some((names.rank()?, names)));
        ranked.for_each(|(rank, names)| self.give_up(names, rank));
    }

    fn give_up(&self, names: &KeptNames, rank: u64) {
        drop(names.take_loaded());
        self.0.floor.fetch_max(rank, Ordering::Relaxed);
        self.0.counts.evicted.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes so many bytes free: loaded objects go first, then names that no naming from `now` on has asked for.
    pub(crate) fn make_room(&self, bytes: u64, now: Naming) {
        while self.0.memory.lacking(bytes) > 0 && self.give_up_loaded() {}
        let lacking = self.0.memory.lacking(bytes);
        if lacking > 0 {
            self.give_up_names(lacking, now);
        }
    }

    /// Makes so many bytes free for names that are to be kept.
    fn make_room_for_names(&self, bytes: u64, now: Naming) {
        let memory = &self.0.memory;
        if memory.kept() + bytes > memory.most_kept() {
            self.give_up_names(bytes, now);
        }
        while !memory.take_kept(bytes) {
            if !self.give_up_loaded() {
                return;
            }
        }
        memory.give_back_kept(bytes);
    }

    /// Gives up names that no naming from `now` on has asked for, the longest unused first, until so many bytes are free or
    /// no such names are left.
    fn give_up_names(&self, bytes: u64, now: Naming) {
        let all = self.holders();
        let mut by_age: Vec<(u32, u64)> = all.iter().flat_map(|names| names.ages(now)).collect();
        by_age.sort_unstable();
        let enough = bytes.max(self.0.memory.cap() / AT_ONCE);
        let mut freed = 0;
        let last = by_age.iter().find(|(_, bytes)| {
            freed += bytes;
            freed >= enough
        });
        let Some(&(last, _)) = last.or(by_age.last()) else { return };
        let given_up: u64 = all.iter().map(|names| names.give_up(last)).sum();
        self.0.counts.given_up.fetch_add(given_up, Ordering::Relaxed);
    }

    /// Notes that something holds names.
    fn enter(&self, names: &Arc<KeptNames>) {
        if names.is_new() {
            lock(&self.0.holders).push(Arc::downgrade(names));
        }
    }

    fn holders(&self) -> Vec<Arc<KeptNames>> {
        let mut holders = lock(&self.0.holders);
        holders.retain(|holder| holder.strong_count() > 0);
        holders.iter().filter_map(Weak::upgrade).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
