//! Versions of exported functions: an old one is another function than the one of today with its name.

use object::elf;
use rustc_hash::FxHashMap;

use super::{Elf, c_string, entries};

/// Versions of a library. The GNU C library has some fifty.
const MOST_VERSIONS: usize = 4096;
const LARGEST_TABLE: u64 = 64 << 20;
const LONGEST_NAME: usize = 256;
/// Set in the version of a symbol that nothing is linked with any more.
const HIDDEN: u16 = 1 << 15;
/// Sizes in a list of definitions: of what describes a version, before the places of its name and of the next version.
const INDEX_AT: usize = 4;
const NAME_AT: usize = 12;
const NEXT_AT: usize = 16;

/// The versions of an object's exported symbols.
#[derive(Default)]
pub(super) struct Versions {
    of_symbols: Vec<u8>,
    names: FxHashMap<u16, Vec<u8>>,
}

impl Elf<'_> {
    /// The versions that the object defines; none if it defines none.
    pub(super) fn versions(&self) -> Versions {
        let find = |kind| self.sections().find(|section| section.kind == kind);
        let (Some(of_symbols), Some(defined)) = (find(elf::SHT_GNU_VERSYM), find(elf::SHT_GNU_VERDEF)) else {
            return Versions::default();
        };
        let read = |section| self.read_within(section, LARGEST_TABLE).unwrap_or_default();
        let strings = self.linked(defined).map(read).unwrap_or_default();
        Versions { of_symbols: read(of_symbols), names: names(&read(defined), &strings) }
    }
}

impl Versions {
    /// The version of the symbol at this index, if it is an old one.
    pub(super) fn old(&self, symbol: usize) -> Option<&[u8]> {
        let version = u16::from_le_bytes(*entries::<[u8; 2]>(&self.of_symbols).get(symbol)?);
        let name = self.names.get(&(version & !HIDDEN))?;
        (version & HIDDEN != 0 && !name.is_empty()).then_some(name)
    }
}

fn names(defined: &[u8], strings: &[u8]) -> FxHashMap<u16, Vec<u8>> {
    let mut names = FxHashMap::default();
    let word = |at: usize| Some(u32::from_le_bytes(*defined.get(at..)?.first_chunk()?) as usize);
    let mut at = 0usize;
    for _ in 0..MOST_VERSIONS {
        let read = || {
            let index = u16::from_le_bytes(*defined.get(at + INDEX_AT..)?.first_chunk()?);
            let name = word(at.checked_add(word(at + NAME_AT)?)?)?;
            Some((index, c_string(strings, name, LONGEST_NAME).to_vec(), word(at + NEXT_AT)?))
        };
        let Some((index, name, next)) = read() else { break };
        names.insert(index, name);
        at = match at.checked_add(next) {
            Some(next_at) if next > 0 => next_at,
            _ => break,
        };
    }
    names
}
