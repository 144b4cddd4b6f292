//! Many addresses of one object at once: unit by unit, on several threads.
//!
//! A profile has its addresses in no order, and the tables of a unit are large. Sorted by unit, each table is
//! read once, by one of a few threads, and dropped. Sections stay in the file and are read as needed; an object
//! above [`crate::Limits`] is named from its symbol table, and the reason says so.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use crate::dwarf::DebugInfo;
use crate::naming::Namer;
use crate::object::{Object, Sources, Symbolized};
use crate::reason::Reason;

/// Threads that read one object at the same time: the machine is not ours alone.
const MOST_THREADS: usize = 4;
/// Addresses that warrant a thread.
const ADDRESSES_PER_THREAD: usize = 1000;
/// The fewest addresses that are handed to a thread together.
const FEWEST_AT_ONCE: usize = 64;

/// An address that was asked for: the unit that describes it, and the place of its answer.
type AskedAddress = (Option<usize>, u64, usize);

impl<'s> Object<'s> {
    /// The functions at each of these addresses, in their order: [`Object::symbolize`] for many, and many times as fast.
    ///
    /// The tables of a unit are read once, whatever the order of the addresses, and dropped when another unit's turn has
    /// come. Where there are thousands of addresses, several threads read.
    pub fn symbolize_all(&self, svmas: &[u64]) -> Vec<Symbolized> {
        self.symbolize_with(&namer_in_order(&self.sources), svmas)
    }

    /// [`Object::symbolize_all`] for an object that is queried repeatedly: some of the units that were read stay in
    /// memory for the next addresses.
    pub fn symbolize_more(&mut self, svmas: &[u64]) -> Vec<Symbolized> {
        if !std::mem::replace(&mut self.is_queried_repeatedly, true) {
            self.namer = namer_in_order(&self.sources);
        }
        let all = self.symbolize_with(&self.namer, svmas);
        self.namer.rest(&self.sources);
        all
    }

    fn symbolize_with(&self, namer: &Namer<'s>, svmas: &[u64]) -> Vec<Symbolized> {
        let sources = &self.sources;
        let unit_of = |svma| sources.debug_info.as_ref().and_then(|info| info.unit_of(svma));
        let mut asked: Vec<AskedAddress> =
            svmas.iter().enumerate().map(|(at, &svma)| (unit_of(svma), svma, at)).collect();
        asked.sort_unstable();
        let parts = parts(&asked);
        let next = AtomicUsize::new(0);
        let read_bytes = AtomicU64::new(0);
        let read = |namer: &Namer<'s>| read_parts(sources, namer, &parts, &next, &read_bytes);
        let found = thread::scope(|scope| {
            // Where there is no thread to be had, the others read its part.
            let helper = || read(&namer_in_order(sources));
            let spawn = |_| thread::Builder::new().spawn_scoped(scope, helper).ok();
            let most = sources.debug_info.as_ref().map_or(MOST_THREADS, DebugInfo::most_readers);
            let threads = threads(svmas.len(), parts.len()).min(most);
            let helpers: Vec<_> = (1..threads).filter_map(spawn).collect();
            let mut found = read(namer);
            found.extend(helpers.into_iter().filter_map(|helper| helper.join().ok()).flatten());
            found
        });
        self.read_bytes.fetch_max(read_bytes.into_inner(), Ordering::Relaxed);
        let mut all = vec![Symbolized::Unknown(Reason::NoSymbol); svmas.len()];
        for (at, symbolized) in found {
            all[at] = symbolized;
        }
        all
    }
}

fn namer_in_order<'s>(sources: &Sources<'s>) -> Namer<'s> {
    Namer::new(sources.debug_info.as_ref().map(DebugInfo::reader_in_order))
}

/// Takes part after part until none is left.
fn read_parts<'s>(
    sources: &Sources<'s>,
    namer: &Namer<'s>,
    parts: &[&[AskedAddress]],
    next: &AtomicUsize,
    read_bytes: &AtomicU64,
) -> Vec<(usize, Symbolized)> {
    let lookup = namer.lookup(sources);
    let mut found = Vec::new();
    while let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
        found.extend(part.iter().map(|&(_, svma, at)| (at, lookup.symbolize(svma))));
    }
    read_bytes.fetch_add(namer.read_bytes(sources), Ordering::Relaxed);
    found
}

fn threads(addresses: usize, parts: usize) -> usize {
    let useful = (addresses / ADDRESSES_PER_THREAD).min(parts).min(MOST_THREADS);
    if useful <= 1 {
        return 1;
    }
    thread::available_parallelism().map_or(1, usize::from).min(useful)
}

/// Cuts between units, so that no two threads read the same tables.
fn parts(asked: &[AskedAddress]) -> Vec<&[AskedAddress]> {
    let mut parts = Vec::new();
    let mut rest = asked;
    while !rest.is_empty() {
        let least = FEWEST_AT_ONCE.min(rest.len());
        let last = rest[least - 1].0;
        let more = rest[least..].iter().take_while(|asked| asked.0 == last && last.is_some()).count();
        let (part, others) = rest.split_at(least + more);
        parts.push(part);
        rest = others;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_in_one_part() {
        let asked: Vec<AskedAddress> = (0..1000).map(|i| (Some(i / 150), i as u64, i)).collect();
        let parts = parts(&asked);
        assert!(parts.len() > 3);
        assert_eq!(parts.concat(), asked);
        assert!(parts.windows(2).all(|pair| pair[0].last().unwrap().0 != pair[1][0].0));
    }

    #[test]
    fn addresses_in_no_unit_are_shared_out() {
        let asked: Vec<AskedAddress> = (0..1000).map(|i| (None, i as u64, i)).collect();
        assert_eq!(parts(&asked).len(), 1000usize.div_ceil(FEWEST_AT_ONCE));
        assert!(parts(&[]).is_empty());
    }
}
