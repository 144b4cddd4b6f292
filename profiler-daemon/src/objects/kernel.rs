//! The kernel's functions: its list has ten megabytes of text, which the kernel takes 50 ms to write, so it is not read for
//! every cut. What it says stays in memory where there is room, a third of that; what was met stays in any case.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use symbolizer::{KernelSymbol, KernelSymbols, Reason};

use super::memory::SymbolMemory;
use super::names::NameRoom;
use crate::sys::clock;

const LIST: &str = "/proc/kallsyms";
const MODULES: &str = "/proc/modules";
const LONGEST_MODULES: u64 = 1 << 20;
/// Part of the memory for symbols that the list may take.
const MOST_OF_MEMORY: u64 = 16;
/// The list is read for functions that were not met before, so long after the last time at first, and at last (ns).
const FIRST_PAUSE_NS: u64 = 50_000_000_000;
const LONGEST_PAUSE_NS: u64 = 800_000_000_000;
/// It is read at once where so large a part of the time would have no name otherwise.
const TOO_MUCH: f64 = 0.01;
/// Functions, and addresses of none, that are remembered; then it begins anew.
const MOST: usize = 1 << 15;

/// The functions that were met so far.
#[derive(Default)]
pub(crate) struct KernelNames(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// By their first address: the address after them, and the name.
    functions: BTreeMap<u64, (u64, Arc<str>)>,
    /// Addresses that the list does not cover.
    unlisted: Vec<u64>,
    /// What the list said when it was read last.
    whole: Option<Whole>,
    read_ns: Option<u64>,
    pause_ns: u64,
    /// Why the list could not be read the last time.
    hidden: Option<Reason>,
}

/// A list that stays in memory.
struct Whole {
    symbols: KernelSymbols,
    /// The modules that there were.
    modules: Vec<u8>,
    /// Room that is taken of this; given back at the end.
    memory: SymbolMemory,
    bytes: u64,
}

impl Whole {
    fn new(symbols: KernelSymbols, modules: Vec<u8>, memory: &SymbolMemory) -> Option<Self> {
        let bytes = symbols.held_bytes();
        let is_taken = bytes <= memory.cap() / MOST_OF_MEMORY && memory.take(bytes);
        is_taken.then(|| Self { symbols, modules, memory: memory.clone(), bytes })
    }
}

impl Drop for Whole {
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
    pub(crate) fn names(&self, addresses: &[(u64, f64)], room: &NameRoom) -> Vec<KernelName> {
        let mut known = self.lock();
        known.remember(addresses);
        let new = || addresses.iter().filter(|(address, _)| known.find(*address).is_none());
        let share: f64 = new().map(|(_, share)| share).sum();
        let new: Vec<u64> = new().map(|&(address, _)| address).collect();
        if !new.is_empty() && known.may_read(share, clock::monotonic_ns()) {
            room.count_source();
            known.hidden = known.read(new, room.memory()).err();
        }
        let name = |&(address, _): &(u64, f64)| match (known.find(address), &known.hidden) {
            (Some(name), _) => name,
            (None, Some(reason)) => KernelName::Hidden(reason.clone()),
            (None, None) => KernelName::Later,
        };
        addresses.iter().map(name).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn find(&self, address: u64) -> Option<KernelName> {
        match self.functions.range(..=address).next_back() {
            Some((_, (end, name))) if address < *end => Some(KernelName::Function(Arc::clone(name))),
            _ => self.unlisted.binary_search(&address).ok().map(|_| KernelName::Unlisted),
        }
    }

    fn is_due(&self, now_ns: u64) -> bool {
        self.read_ns.is_none_or(|read_ns| now_ns >= read_ns.saturating_add(self.pause_ns))
    }

    fn may_read(&mut self, share: f64, now_ns: u64) -> bool {
        if !self.is_due(now_ns) && (share < TOO_MUCH || self.hidden.is_some()) {
            return false;
        }
        self.pause_ns = (2 * self.pause_ns).clamp(FIRST_PAUSE_NS, LONGEST_PAUSE_NS);
        self.read_ns = Some(now_ns);
        true
    }

    /// What the list said of addresses that were not met before, as long as it is likely to say the same: what is loaded
    /// later may lie where its last functions would reach to.
    fn remember(&mut self, addresses: &[(u64, f64)]) {
        let is_due = self.is_due(clock::monotonic_ns());
        let new: Vec<u64> = addresses.iter().map(|(address, _)| *address).collect();
        let new: Vec<u64> = new.into_iter().filter(|address| self.find(*address).is_none()).collect();
        if new.is_empty() || is_due || self.whole.as_ref().is_none_or(|whole| whole.modules != modules()) {
            return;
        }
        let Some(whole) = self.whole.take() else { return };
        for address in new {
            if let Some(function) = whole.symbols.function(address) {
                self.enter(function);
            }
        }
        self.whole = Some(whole);
    }

    fn read(&mut self, new: Vec<u64>, memory: &SymbolMemory) -> Result<(), Reason> {
        if self.functions.len() + self.unlisted.len() > MOST {
            (self.functions, self.unlisted) = (BTreeMap::new(), Vec::new());
        }
        self.whole = None;
        let modules = modules(); // before the list: it may have more of them, not less
        let list = File::open(LIST)?;
        let symbols = match memory.is_shared_with_names() {
            true => KernelSymbols::read(list)?,
            false => KernelSymbols::of_addresses(BufReader::with_capacity(1 << 16, list), &new)?,
        };
        for address in new {
            match symbols.function(address) {
                Some(function) => self.enter(function),
                None => self.unlisted.push(address),
            }
        }
        self.unlisted.sort_unstable();
        self.unlisted.dedup();
        if memory.is_shared_with_names() {
            self.whole = Whole::new(symbols, modules, memory);
        }
        Ok(())
    }

    fn enter(&mut self, (range, symbol): (Range<u64>, KernelSymbol)) {
        let name = match symbol.module {
            Some(module) => format!("{} [{module}]", symbol.name),
            None => symbol.name,
        };
        self.functions.insert(range.start, (range.end, name.into()));
    }
}

fn modules() -> Vec<u8> {
    let mut text = Vec::new();
    // Without it, the list is read as often as it is due.
    let _ = File::open(MODULES).and_then(|file| file.take(LONGEST_MODULES).read_to_end(&mut text));
    text
}
