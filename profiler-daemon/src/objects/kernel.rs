//! The kernel's functions, as far as they were met: its list has ten megabytes, and is not read for every cut.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use symbolizer::{KernelSymbols, Reason};

use super::names::NameRoom;
use crate::sys::clock;

const LIST: &str = "/proc/kallsyms";
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
    read_ns: Option<u64>,
    pause_ns: u64,
    /// Why the list could not be read the last time.
    hidden: Option<Reason>,
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
        let new = || addresses.iter().filter(|(address, _)| known.find(*address).is_none());
        let share: f64 = new().map(|(_, share)| share).sum();
        let new: Vec<u64> = new().map(|&(address, _)| address).collect();
        if !new.is_empty() && known.may_read(share, clock::monotonic_ns()) {
            room.count_source();
            known.hidden = known.read(new).err();
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

    fn may_read(&mut self, share: f64, now_ns: u64) -> bool {
        let is_due = self.read_ns.is_none_or(|read_ns| now_ns >= read_ns.saturating_add(self.pause_ns));
        if !is_due && (share < TOO_MUCH || self.hidden.is_some()) {
            return false;
        }
        self.pause_ns = (2 * self.pause_ns).clamp(FIRST_PAUSE_NS, LONGEST_PAUSE_NS);
        self.read_ns = Some(now_ns);
        true
    }

    fn read(&mut self, new: Vec<u64>) -> Result<(), Reason> {
        if self.functions.len() + self.unlisted.len() > MOST {
            (self.functions, self.unlisted) = (BTreeMap::new(), Vec::new());
        }
        let list = BufReader::with_capacity(1 << 16, File::open(LIST)?);
        let symbols = KernelSymbols::of_addresses(list, &new)?;
        for address in new {
            match symbols.function(address) {
                Some((range, symbol)) => {
                    let name = match symbol.module {
                        Some(module) => format!("{} [{module}]", symbol.name),
                        None => symbol.name,
                    };
                    self.functions.insert(range.start, (range.end, name.into()));
                }
                None => self.unlisted.push(address),
            }
        }
        self.unlisted.sort_unstable();
        self.unlisted.dedup();
        Ok(())
    }
}
