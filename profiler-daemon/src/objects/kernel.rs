//! The kernel's functions: its list has ten megabytes of text, which the kernel takes 50 ms to write, so it is not read for
//! every cut. What it says stays in memory where there is room, a third of that; what was met stays in any case.
//!
//! The image of the kernel stays where it is. What lies in a module is believed until modules come or go, or the list is due
//! again; what comes and goes without a trace in the list of modules (BPF programs, trampolines) for less than a minute.
//!
//! The kernel's list is read in full for addresses that are new until it is due again.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use symbolizer::{KernelSymbol, KernelSymbols, Reason};

use super::memory::SymbolMemory;
use super::names::NameRoom;
use crate::sys::clock;

const SYMBOLS: &str = "/proc/kallsyms";
const MODULES: &str = "/proc/modules";
const LONGEST_MODULES: u64 = 1 << 20;
/// Part of the memory for symbols that the list may take.
const MOST_OF_MEMORY: u64 = 16;
/// The list is read for functions that were not met before, so long after the last time at first, and at last (ns).
const FIRST_PAUSE_NS: u64 = 50_000_000_000;
const LONGEST_PAUSE_NS: u64 = 800_000_000_000;
/// It is read at once where so large a part of the time would have no name otherwise.
const TOO_MUCH: f64 = 0.01;
/// The list is read in pieces of this many bytes, each when the CPU time for it is there.
const PIECE: usize = 256 << 10;
/// Functions, and addresses of none, that are remembered; then it begins anew.
const MOST: usize = 1 << 15;

/// Code of a module shares no page with what comes after the module.
const PAGE: u64 = 4096;

/// The functions that were met so far.
#[derive(Default)]
pub(crate) struct KernelNames {
    lists: Lists,
    known: Mutex<KnownFunctions>,
}

/// Where the kernel lists its functions and its modules.
struct Lists {
    symbols: PathBuf,
    modules: PathBuf,
}

impl Default for Lists {
    fn default() -> Self {
        Self { symbols: PathBuf::from(SYMBOLS), modules: PathBuf::from(MODULES) }
    }
}

#[derive(Default)]
struct KnownFunctions {
    /// By their first address.
    functions: BTreeMap<u64, MetFunction>,
    /// Addresses that the list does not cover.
    unlisted: Vec<u64>,
    /// What the list said when it was read last.
    whole: Option<WholeList>,
    /// The modules that there were when names were asked for last.
    modules: Vec<u8>,
    read_ns: Option<u64>,
    pause_ns: u64,
    /// Why the list could not be read the last time.
    hidden: Option<Reason>,
}

/// A function that was met.
#[derive(Debug)]
struct MetFunction {
    /// The address after it, as far as is known.
    end: u64,
    name: Arc<str>,
    lasts: Lasts,
}

/// How long a name is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lasts {
    /// As long as the kernel runs.
    Image,
    /// Until modules come or go.
    Module,
    /// Nobody tells when it goes.
    Moment,
}

impl Lasts {
    fn of(symbol: &KernelSymbol, modules: &[u8]) -> Self {
        let Some(module) = &symbol.module else { return Lasts::Image };
        let names = modules.split(|&byte| byte == b'\n').map(|line| line.split(|&byte| byte == b' ').next());
        let is_listed = names.flatten().any(|name| name == module.as_bytes());
        if is_listed { Lasts::Module } else { Lasts::Moment }
    }
}

/// A list that stays in memory.
struct WholeList {
    symbols: KernelSymbols,
    /// The modules that there were.
    modules: Vec<u8>,
    /// Room that is taken of this; given back at the end.
    memory: SymbolMemory,
    bytes: u64,
}

impl WholeList {
    fn new(symbols: KernelSymbols, modules: Vec<u8>, memory: &SymbolMemory) -> Option<Self> {
        let bytes = symbols.held_bytes();
        let is_taken = bytes <= memory.cap() / MOST_OF_MEMORY && memory.take(bytes);
        is_taken.then(|| Self { symbols, modules, memory: memory.clone(), bytes })
    }
}

impl Drop for WholeList {
    fn drop(&mut self) {
        self.memory.give_back(self.bytes);
    }
}

/// What there is to say of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KernelName {
    /// The function, with its module.
    Function(Arc<str>),
    /// The list does not cover it.
    Unlisted,
    /// The list could not be read.
    Hidden(Reason),
    /// The function was not met before, and the list was read a moment ago.
    Later,
}

impl KernelNames {
    /// The functions at these addresses, each with the part of the time that was spent under it.
    ///
    /// `pause` is called before each piece of the list is read, and may take its time.
    pub(crate) fn names(
        &self,
        addresses: &[(u64, f64)],
        room: &NameRoom,
        pause: &mut dyn FnMut(),
    ) -> Vec<KernelName> {
        self.names_at(clock::monotonic_ns(), addresses, room, pause)
    }

    fn names_at(
        &self,
        now_ns: u64,
        addresses: &[(u64, f64)],
        room: &NameRoom,
        pause: &mut dyn FnMut(),
    ) -> Vec<KernelName> {
        let mut known = self.lock();
        known.forget(now_ns, &self.lists);
        known.remember(addresses, now_ns);
        let share: f64 = known.new_of(addresses).map(|(_, share)| share).sum();
        if known.new_of(addresses).next().is_some() && known.may_read(share, now_ns) {
            room.count_source();
            // All that may have gone is asked for again, so that what is new lies under nothing old.
            known.forget_all_but_image();
            let new = known.new_of(addresses).map(|&(address, _)| address).collect();
            known.hidden = known.read(new, &self.lists, room.memory(), pause).err();
        }
        let name = |&(address, _): &(u64, f64)| match (known.find(address), &known.hidden) {
            (Some(name), _) => name,
            (None, Some(reason)) => KernelName::Hidden(reason.clone()),
            (None, None) => KernelName::Later,
        };
        addresses.iter().map(name).collect()
    }

    fn lock(&self) -> MutexGuard<'_, KnownFunctions> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KnownFunctions {
    fn find(&self, address: u64) -> Option<KernelName> {
        match self.functions.range(..=address).next_back() {
            Some((_, function)) if address < function.end => {
                Some(KernelName::Function(Arc::clone(&function.name)))
            }
            _ => self.unlisted.binary_search(&address).ok().map(|_| KernelName::Unlisted),
        }
    }

    /// Those of the addresses of which nothing is known.
    fn new_of<'a>(&self, addresses: &'a [(u64, f64)]) -> impl Iterator<Item = &'a (u64, f64)> {
        addresses.iter().filter(|(address, _)| self.find(*address).is_none())
    }

    fn is_due(&self, now_ns: u64) -> bool {
        self.is_read_before(now_ns, self.pause_ns)
    }

    fn is_read_before(&self, now_ns: u64, age_ns: u64) -> bool {
        self.read_ns.is_none_or(|read_ns| now_ns >= read_ns.saturating_add(age_ns))
    }

    fn may_read(&mut self, share: f64, now_ns: u64) -> bool {
        if !self.is_due(now_ns) && (share < TOO_MUCH || self.hidden.is_some()) {
            return false;
        }
        self.pause_ns = (2 * self.pause_ns).clamp(FIRST_PAUSE_NS, LONGEST_PAUSE_NS);
        self.read_ns = Some(now_ns);
        true
    }

    /// Forgets names of what may have gone, and other code have its place.
    fn forget(&mut self, now_ns: u64, lists: &Lists) {
        let modules = read_modules(&lists.modules);
        let is_changed = self.modules != modules;
        if is_changed {
            // Their functions are to have names before long.
            self.pause_ns = self.pause_ns.min(FIRST_PAUSE_NS / 2);
            self.modules = modules;
        }
        if is_changed || self.is_due(now_ns) {
            self.forget_all_but_image();
        } else if self.is_read_before(now_ns, FIRST_PAUSE_NS) {
            self.functions.retain(|_, function| function.lasts != Lasts::Moment);
        }
    }

    fn forget_all_but_image(&mut self) {
        self.functions.retain(|_, function| function.lasts == Lasts::Image);
        self.unlisted.clear();
    }

    /// What the list said of addresses that were not met before. Of the image it says the same for ever; of all else, it is believed
    /// until modules come or go, or it is due again: what is loaded later may lie where its last functions would reach to.
    fn remember(&mut self, addresses: &[(u64, f64)], now_ns: u64) {
        let new: Vec<u64> = self.new_of(addresses).map(|&(address, _)| address).collect();
        let Some(whole) = self.whole.take_if(|_| !new.is_empty()) else { return };
        let is_current = whole.modules == self.modules && !self.is_due(now_ns);
        let is_old = self.is_read_before(now_ns, FIRST_PAUSE_NS);
        for address in new {
            let Some(function) = whole.symbols.function(address) else { continue };
            let is_believed = match Lasts::of(&function.1, &self.modules) {
                Lasts::Image => true,
                Lasts::Module => is_current,
                Lasts::Moment => is_current && !is_old,
            };
            if is_believed {
                self.enter(address, function);
            }
        }
        self.whole = Some(whole);
    }

    fn read(
        &mut self,
        new: Vec<u64>,
        lists: &Lists,
        memory: &SymbolMemory,
        pause: &mut dyn FnMut(),
    ) -> Result<(), Reason> {
        if self.functions.len() + self.unlisted.len() > MOST {
            (self.functions, self.unlisted) = (BTreeMap::new(), Vec::new());
        }
        self.whole = None;
        self.modules = read_modules(&lists.modules); // before the list: it may have more of them, not less
        let list = Paced { list: File::open(&lists.symbols)?, pause, since: PIECE };
        let symbols = match memory.is_shared_with_names() {
            true => KernelSymbols::read(list)?,
            false => KernelSymbols::of_addresses(BufReader::with_capacity(1 << 16, list), &new)?,
        };
        for address in new {
            match symbols.function(address) {
                Some(function) => self.enter(address, function),
                None => self.unlisted.push(address),
            }
        }
        self.unlisted.sort_unstable();
        self.unlisted.dedup();
        if self.functions.values().any(|function| function.lasts == Lasts::Moment) {
            self.pause_ns = FIRST_PAUSE_NS; // such names are to be had again when they are not believed any more
        }
        if memory.is_shared_with_names() {
            self.whole = WholeList::new(symbols, self.modules.clone(), memory);
        }
        Ok(())
    }

    /// The function at an address. The list has no sizes: in a module, a function is believed to reach to the end of the page
    /// in which it was met, since the last one would else cover what is loaded behind it.
    fn enter(&mut self, address: u64, (range, symbol): (Range<u64>, KernelSymbol)) {
        let lasts = Lasts::of(&symbol, &self.modules);
        let page_end = (address | (PAGE - 1)).saturating_add(1);
        let end = if lasts == Lasts::Image { range.end } else { range.end.min(page_end) };
        let name = match symbol.module {
            Some(module) => format!("{} [{module}]", symbol.name),
            None => symbol.name,
        };
        let end = match self.functions.get(&range.start) {
            Some(known) if *known.name == *name => end.max(known.end),
            _ => end,
        };
        self.functions.insert(range.start, MetFunction { end, name: name.into(), lasts });
    }
}

/// A list that is read piece by piece: the kernel spends as much CPU time to write it as parsing does.
struct Paced<'a> {
    list: File,
    pause: &'a mut dyn FnMut(),
    /// Bytes read since `pause` was called.
    since: usize,
}

impl Read for Paced<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.since >= PIECE {
            self.since = 0;
            (self.pause)();
        }
        let len = self.list.read(into)?;
        self.since += len;
        Ok(len)
    }
}

fn read_modules(list: &Path) -> Vec<u8> {
    let mut text = Vec::new();
    // Without it, the list is read as often as it is due.
    let _ = File::open(list).and_then(|file| file.take(LONGEST_MODULES).read_to_end(&mut text));
    text
}

#[cfg(test)]
mod tests;
