//! Names that are kept from one cut of a session to the next: those of a service that does today what it did yesterday are
//! read once.
//!
//! They belong to what told them (an object, a list of generated code) and go with it. Where there is no room for new ones,
//! those go first that were not asked for for the longest time. All of this happens on the thread that names; the one that
//! samples at most drops an object.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use profiler_core::profile::Unknown;
use rustc_hash::{FxHashMap, FxHashSet};
use symbolizer::{Frame, Reason};

use super::memory::SymbolMemory;

/// What is not known well is looked for again after so many namings at first, and at last: a debug file may have come.
const FIRST_PAUSE: u32 = 10;
const LONGEST_PAUSE: u32 = 640;
/// When there is no room, so much of it is made at least, as a part of all.
const AT_ONCE: u64 = 16;
/// What an address and an interned text take beside their bytes.
const ENTRY_BYTES: usize = size_of::<(u64, Entry)>() + 8;
const TEXT_BYTES: usize = 40;

/// The functions at an address, or why they are not known.
pub(crate) type Found = Result<Vec<Frame>, Unknown>;

/// Where names are kept. Clones are the same.
#[derive(Clone)]
pub(crate) struct NameRoom(Arc<Shared>);

struct Shared {
    memory: SymbolMemory,
    /// Whatever has told names that are kept.
    tellers: Mutex<Vec<Weak<KeptNames>>>,
    /// Namings that have begun.
    namings: AtomicU32,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    sources: AtomicU64,
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
    /// Times that lists of generated code were read, whole or in part.
    pub(crate) lists: u64,
    /// What was read of them (bytes).
    pub(crate) list_bytes: u64,
    /// Addresses whose names gave way to others.
    pub(crate) given_up: u64,
    /// Times that something was read again for that reason.
    pub(crate) read_again: u64,
    /// What is kept (bytes).
    pub(crate) kept_bytes: u64,
}

/// Names that one object or list has told.
#[derive(Default)]
pub(crate) struct KeptNames(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    entries: FxHashMap<u64, Entry>,
    /// The texts of all entries, each once.
    texts: FxHashSet<Arc<str>>,
    about: Option<About>,
    /// Room that is taken; given back at the end.
    bytes: u64,
    memory: Option<SymbolMemory>,
    /// Whether names of this were given up since it was read last.
    is_read_again: bool,
    /// In which naming what is not known well is looked for again, and after how many then.
    retry: u32,
    pause: u32,
}

/// What a profile says of an object beside names.
#[derive(Clone, Default)]
pub(crate) struct About {
    /// Its build id.
    pub(crate) build_id: Option<String>,
    /// Why its debug information was not used: there was no room for it.
    pub(crate) too_large: Option<Reason>,
    /// Whether what is not known is not looked for again, until it is told to be otherwise.
    pub(crate) is_final: bool,
}

struct Entry {
    /// The last naming that asked for it.
    used: u32,
    /// Whether it may become known better.
    is_doubtful: bool,
    found: Result<Box<[Frame]>, Arc<Unknown>>,
}

impl NameRoom {
    pub(super) fn new(memory: SymbolMemory) -> Self {
        let (tellers, namings, counts) = (Mutex::default(), AtomicU32::new(0), Counts::default());
        Self(Arc::new(Shared { memory, tellers, namings, counts }))
    }

    /// A naming begins; this is its number.
    pub(crate) fn begin(&self) -> u32 {
        self.0.namings.fetch_add(1, Ordering::Relaxed) + 1
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
        let Counts { sources, lists, list_bytes, given_up, read_again } = &self.0.counts;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        NameCounts {
            namings: self.0.namings.load(Ordering::Relaxed),
            sources: read(sources),
            lists: read(lists),
            list_bytes: read(list_bytes),
            given_up: read(given_up),
            read_again: read(read_again),
            kept_bytes: self.0.memory.kept(),
        }
    }

    /// Gives up names that no naming from `now` on has asked for, the longest unused first, until so many bytes are free or
    /// no such names are left.
    pub(crate) fn make_room(&self, bytes: u64, now: u32) {
        let mut tellers = lock(&self.0.tellers);
        tellers.retain(|teller| teller.strong_count() > 0);
        let all: Vec<Arc<KeptNames>> = tellers.iter().filter_map(Weak::upgrade).collect();
        drop(tellers);
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
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl KeptNames {
    /// What is known of addresses, in their order; what is to be looked for anew is not.
    pub(crate) fn known(&self, addresses: &[u64], now: u32) -> Vec<Option<Found>> {
        let mut kept = lock(&self.0);
        if kept.retry > 0 && now >= kept.retry {
            kept.pause = (2 * kept.pause).clamp(FIRST_PAUSE, LONGEST_PAUSE);
            kept.retry = 0;
            kept.remove(|entry| entry.is_doubtful);
        }
        let mut known = |address: &u64| {
            let entry = kept.entries.get_mut(address)?;
            entry.used = now;
            Some(match &entry.found {
                Ok(frames) => Ok(frames.to_vec()),
                Err(unknown) => Err(Unknown::clone(unknown)),
            })
        };
        addresses.iter().map(&mut known).collect()
    }

    /// What is known beside names, once it was read.
    pub(crate) fn about(&self) -> Option<About> {
        lock(&self.0).about.clone()
    }

    /// Keeps what was read of these addresses as far as there is room.
    pub(crate) fn keep(self: &Arc<Self>, room: &NameRoom, now: u32, about: About, found: &[(u64, Found)]) {
        let mut kept = lock(&self.0);
        if kept.memory.is_none() {
            kept.memory = Some(room.0.memory.clone());
            lock(&room.0.tellers).push(Arc::downgrade(self));
        }
        if std::mem::take(&mut kept.is_read_again) {
            room.0.counts.read_again.fetch_add(1, Ordering::Relaxed);
        }
        let is_doubtful = |found: &Found| about.too_large.is_some() || found.is_err() && !about.is_final;
        kept.about = Some(about.clone());
        for (address, found) in found {
            let bytes = kept.bytes_of(found);
            if !room.0.memory.take_kept(bytes) {
                drop(kept);
                room.make_room(bytes, now);
                kept = lock(&self.0);
                if !room.0.memory.take_kept(bytes) {
                    kept.is_read_again = true;
                    return;
                }
            }
            kept.enter(*address, found, bytes, is_doubtful(found), now);
        }
    }

    /// What was told may not be true any more.
    pub(crate) fn clear(&self) {
        lock(&self.0).remove(|_| true);
    }

    /// The addresses that something is kept of.
    pub(crate) fn addresses(&self) -> Vec<u64> {
        lock(&self.0).entries.keys().copied().collect()
    }

    /// When addresses were asked for last, before `now`, and what they take at least (bytes).
    fn ages(&self, now: u32) -> Vec<(u32, u64)> {
        let kept = lock(&self.0);
        let old = kept.entries.values().filter(|entry| entry.used < now);
        old.map(|entry| (entry.used, entry.own_bytes())).collect()
    }

    /// Gives up what was not asked for since the naming `last`. Returns of how many addresses that was.
    fn give_up(&self, last: u32) -> u64 {
        let mut kept = lock(&self.0);
        let before = kept.entries.len();
        kept.remove(|entry| entry.used <= last);
        let given_up = (before - kept.entries.len()) as u64;
        kept.is_read_again |= given_up > 0;
        given_up
    }
}

impl Entry {
    fn own_bytes(&self) -> u64 {
        let more = match &self.found {
            Ok(frames) => size_of_val::<[Frame]>(frames),
            Err(unknown) => unknown_bytes(unknown),
        };
        (ENTRY_BYTES + more) as u64
    }
}

fn unknown_bytes(unknown: &Unknown) -> usize {
    size_of::<Unknown>() + unknown.reason.len() + unknown.remedy.len()
}

fn texts(frame: &Frame) -> impl Iterator<Item = &Arc<str>> {
    [&frame.name, &frame.linkage_name].into_iter().chain(&frame.file)
}

impl Kept {
    /// What it would take to enter this: texts that are here already take nothing.
    fn bytes_of(&self, found: &Found) -> u64 {
        let bytes = match found {
            Ok(frames) => {
                let new = frames.iter().flat_map(texts).filter(|text| !self.texts.contains(*text));
                size_of_val::<[Frame]>(frames) + new.map(|text| text.len() + TEXT_BYTES).sum::<usize>()
            }
            Err(unknown) => unknown_bytes(unknown),
        };
        (ENTRY_BYTES + bytes) as u64
    }

    fn enter(&mut self, address: u64, found: &Found, bytes: u64, is_doubtful: bool, now: u32) {
        self.remove_one(address);
        self.bytes += bytes;
        if is_doubtful && self.retry == 0 {
            self.pause = self.pause.max(FIRST_PAUSE);
            self.retry = now.saturating_add(self.pause);
        }
        let mut new_texts = 0;
        let found = match found {
            Ok(frames) => Ok(frames.iter().map(|frame| self.intern(frame, &mut new_texts)).collect()),
            Err(unknown) => Err(Arc::new(unknown.clone())),
        };
        let entry = Entry { used: now, is_doubtful, found };
        let held = entry.own_bytes() + new_texts as u64;
        self.entries.insert(address, entry);
        self.give_back(bytes.saturating_sub(held)); // a text that comes twice was counted twice
    }

    /// The same with the texts that are here, and what new ones take.
    fn intern(&mut self, frame: &Frame, new_bytes: &mut usize) -> Frame {
        let mut text = |text: &Arc<str>| match self.texts.get(text) {
            Some(known) => Arc::clone(known),
            None => {
                *new_bytes += text.len() + TEXT_BYTES;
                self.texts.insert(Arc::clone(text));
                Arc::clone(text)
            }
        };
        let (name, linkage_name) = (text(&frame.name), text(&frame.linkage_name));
        Frame { name, linkage_name, file: frame.file.as_ref().map(text), line: frame.line }
    }

    fn remove_one(&mut self, address: u64) {
        if let Some(entry) = self.entries.remove(&address) {
            self.give_back(entry.own_bytes());
        }
    }

    fn remove(&mut self, is_removed: impl Fn(&Entry) -> bool) {
        let mut bytes = 0;
        self.entries.retain(|_, entry| {
            let is_removed = is_removed(entry);
            bytes += if is_removed { entry.own_bytes() } else { 0 };
            !is_removed
        });
        if bytes == 0 {
            return;
        }
        let used: FxHashSet<*const u8> = self
            .entries
            .values()
            .flat_map(|entry| &entry.found)
            .flatten()
            .flat_map(texts)
            .map(|text| text.as_ptr())
            .collect();
        self.texts.retain(|text| {
            let is_used = used.contains(&text.as_ptr());
            bytes += if is_used { 0 } else { (text.len() + TEXT_BYTES) as u64 };
            is_used
        });
        self.give_back(bytes);
    }

    fn give_back(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        if let Some(memory) = &self.memory {
            memory.give_back_kept(bytes);
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.give_back(self.bytes);
    }
}
