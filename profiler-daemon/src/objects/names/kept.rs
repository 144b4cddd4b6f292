//! The names from one object or list, and what stays in memory of the object.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use profiler_core::profile::Unknown;
use rustc_hash::{FxHashMap, FxHashSet};
use symbolizer::NamedFrame;

use super::super::loaded::Loaded;
use super::super::memory::SymbolMemory;
use super::{About, Equal, FoundFunctions, NameRoom, NameSharing, Naming, lock};

/// What is not known well is looked for again after this pause (ns): a debug file may have been installed. It doubles,
/// up to `LONGEST_PAUSE_NS`.
const FIRST_PAUSE_NS: u64 = 100_000_000_000;
const LONGEST_PAUSE_NS: u64 = 6_400_000_000_000;
/// What an address and an interned text take beside their bytes.
const ENTRY_BYTES: usize = size_of::<(u64, KeptAnswer)>() + 8;
const TEXT_BYTES: usize = 40;

/// Names from one object or list.
#[derive(Default)]
pub(crate) struct KeptNames {
    kept: Mutex<Kept>,
    /// The object as it was read, until its memory is needed.
    loaded: Mutex<Option<Box<Loaded>>>,
    /// Whether the names are shared with files of equal content.
    sharing: Mutex<NameSharing>,
    /// Whether [`NameRoom`] lists this already.
    is_entered: AtomicBool,
}

#[derive(Default)]
struct Kept {
    entries: FxHashMap<u64, KeptAnswer>,
    /// The texts of all entries, each once.
    texts: FxHashSet<Arc<str>>,
    about: Option<About>,
    /// Memory that the names take (bytes); returned when they are dropped.
    bytes: u64,
    memory: Option<SymbolMemory>,
    /// Whether names were dropped since the object was last read.
    is_read_again: bool,
    /// When what is not known well is looked for again, and the pause after that (ns).
    retry_ns: Option<u64>,
    pause_ns: u64,
}

struct KeptAnswer {
    /// The last naming that used it.
    used: u32,
    /// Whether a better answer may be found later.
    is_doubtful: bool,
    found: Result<Box<[NamedFrame]>, Arc<Unknown>>,
}

impl KeptNames {
    /// What is known of `addresses`, in their order; `None` for those that have to be looked up again.
    pub(crate) fn known(&self, addresses: &[u64], now: Naming) -> Vec<Option<FoundFunctions>> {
        let mut kept = lock(&self.kept);
        if kept.retry_ns.is_some_and(|retry_ns| now.at_ns >= retry_ns) {
            kept.pause_ns = (2 * kept.pause_ns).clamp(FIRST_PAUSE_NS, LONGEST_PAUSE_NS);
            kept.retry_ns = None;
            kept.remove(|entry| entry.is_doubtful);
            drop(self.take_loaded()); // it would give the same answers
        }
        let mut known = |address: &u64| {
            let entry = kept.entries.get_mut(address)?;
            entry.used = now.number;
            Some(match &entry.found {
                Ok(frames) => Ok(frames.to_vec()),
                Err(unknown) => Err(Unknown::clone(unknown)),
            })
        };
        addresses.iter().map(&mut known).collect()
    }

    /// What is known beside names, once it was read.
    pub(crate) fn about(&self) -> Option<About> {
        lock(&self.kept).about.clone()
    }

    /// Keeps what was read of these addresses as far as there is room.
    pub(crate) fn keep(
        self: &Arc<Self>,
        room: &NameRoom,
        now: Naming,
        about: About,
        found: &[(u64, FoundFunctions)],
    ) {
        room.enter(self);
        let mut kept = lock(&self.kept);
        if kept.memory.is_none() {
            kept.memory = Some(room.0.memory.clone());
        }
        if std::mem::take(&mut kept.is_read_again) {
            room.0.counts.read_again.fetch_add(1, Ordering::Relaxed);
        }
        let is_doubtful = |found: &FoundFunctions| {
            about.too_large.is_some() || about.is_partial || found.is_err() && !about.is_final
        };
        kept.about = Some(about.clone());
        for (address, found) in found {
            let bytes = kept.bytes_of(found);
            if !room.0.memory.take_kept(bytes) {
                drop(kept);
                room.make_room_for_names(bytes, now);
                kept = lock(&self.kept);
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
        lock(&self.kept).remove(|_| true);
    }

    /// The addresses that something is kept of.
    pub(crate) fn addresses(&self) -> Vec<u64> {
        lock(&self.kept).entries.keys().copied().collect()
    }

    /// When addresses were asked for last, before `now`, and what they take at least (bytes).
    pub(super) fn ages(&self, now: Naming) -> Vec<(u32, u64)> {
        let kept = lock(&self.kept);
        let old = kept.entries.values().filter(|entry| entry.used < now.number);
        old.map(|entry| (entry.used, entry.own_bytes())).collect()
    }

    /// Gives up what was not asked for since the naming `last`. Returns of how many addresses that was.
    pub(super) fn give_up(&self, last: u32) -> u64 {
        let mut kept = lock(&self.kept);
        let before = kept.entries.len();
        kept.remove(|entry| entry.used <= last);
        let given_up = (before - kept.entries.len()) as u64;
        kept.is_read_again |= given_up > 0;
        given_up
    }
}

/// Those of files that hold the same.
impl KeptNames {
    /// Whether the object says that it is what another one is.
    pub(crate) fn is_claimed(&self) -> bool {
        matches!(*lock(&self.sharing), NameSharing::Claimed)
    }

    /// The files whose names these are.
    pub(crate) fn equal(&self) -> Option<Arc<Equal>> {
        match &*lock(&self.sharing) {
            NameSharing::With(equal) => Some(Arc::clone(equal)),
            NameSharing::Alone | NameSharing::Claimed => None,
        }
    }

    pub(super) fn share(&self, sharing: NameSharing) {
        *lock(&self.sharing) = sharing;
    }

    /// The object's names are its own from now on.
    pub(crate) fn leave(&self) {
        let left = std::mem::take(&mut *lock(&self.sharing));
        drop(left); // outside of the lock
    }
}

/// What stays in memory of the object.
impl KeptNames {
    /// Whether the room is to be told of this: once.
    pub(super) fn is_new(&self) -> bool {
        !self.is_entered.swap(true, Ordering::Relaxed)
    }

    /// The rank of what stays; the lowest goes first.
    pub(super) fn rank(&self) -> Option<u64> {
        lock(&self.loaded).as_ref().map(|loaded| loaded.rank())
    }

    pub(super) fn take_loaded(&self) -> Option<Box<Loaded>> {
        lock(&self.loaded).take()
    }

    pub(super) fn put_loaded(&self, loaded: Box<Loaded>) {
        let mut place = lock(&self.loaded);
        let before = loaded.can_be_read().then(|| place.replace(loaded)).flatten();
        drop((place, before));
    }

    /// An object is dropped: what was loaded is freed if its file cannot be read any more; the names stay.
    pub(in crate::objects) fn release(&self) {
        let mut place = lock(&self.loaded);
        let gone = place.take_if(|loaded| !loaded.can_be_read());
        drop((place, gone));
        if let Some(equal) = self.equal() {
            equal.names.release();
        }
    }
}

impl KeptAnswer {
    fn own_bytes(&self) -> u64 {
        let more = match &self.found {
            Ok(frames) => size_of_val::<[NamedFrame]>(frames),
            Err(unknown) => unknown_bytes(unknown),
        };
        (ENTRY_BYTES + more) as u64
    }
}

fn unknown_bytes(unknown: &Unknown) -> usize {
    size_of::<Unknown>() + unknown.reason.len() + unknown.remedy.len()
}

fn texts(frame: &NamedFrame) -> impl Iterator<Item = &Arc<str>> {
    [&frame.name, &frame.linkage_name].into_iter().chain(&frame.file)
}

impl Kept {
    /// What it would take to enter this: texts that are here already take nothing.
    fn bytes_of(&self, found: &FoundFunctions) -> u64 {
        let bytes = match found {
            Ok(frames) => {
                let new = frames.iter().flat_map(texts).filter(|text| !self.texts.contains(*text));
                size_of_val::<[NamedFrame]>(frames) + new.map(|text| text.len() + TEXT_BYTES).sum::<usize>()
            }
            Err(unknown) => unknown_bytes(unknown),
        };
        (ENTRY_BYTES + bytes) as u64
    }

    fn enter(&mut self, address: u64, found: &FoundFunctions, bytes: u64, is_doubtful: bool, now: Naming) {
        self.remove_one(address);
        self.bytes += bytes;
        if is_doubtful && self.retry_ns.is_none() {
            self.pause_ns = self.pause_ns.max(FIRST_PAUSE_NS);
            self.retry_ns = Some(now.at_ns.saturating_add(self.pause_ns));
        }
        let mut new_texts = 0;
        let found = match found {
            Ok(frames) => Ok(frames.iter().map(|frame| self.intern(frame, &mut new_texts)).collect()),
            Err(unknown) => Err(Arc::new(unknown.clone())),
        };
        let entry = KeptAnswer { used: now.number, is_doubtful, found };
        let held = entry.own_bytes() + new_texts as u64;
        self.entries.insert(address, entry);
        self.give_back(bytes.saturating_sub(held)); // a text that comes twice was counted twice
    }

    /// The same with the texts that are here, and what new ones take.
    fn intern(&mut self, frame: &NamedFrame, new_bytes: &mut usize) -> NamedFrame {
        let mut text = |text: &Arc<str>| match self.texts.get(text) {
            Some(known) => Arc::clone(known),
            None => {
                *new_bytes += text.len() + TEXT_BYTES;
                self.texts.insert(Arc::clone(text));
                Arc::clone(text)
            }
        };
        let (name, linkage_name) = (text(&frame.name), text(&frame.linkage_name));
        NamedFrame { name, linkage_name, file: frame.file.as_ref().map(text), line: frame.line }
    }

    fn remove_one(&mut self, address: u64) {
        if let Some(entry) = self.entries.remove(&address) {
            self.give_back(entry.own_bytes());
        }
    }

    fn remove(&mut self, is_removed: impl Fn(&KeptAnswer) -> bool) {
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
