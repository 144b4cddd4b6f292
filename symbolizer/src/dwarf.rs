//! Functions, inlined calls and lines from DWARF.
//!
//! The crate `addr2line` reads them, a unit at a time, so that what is in memory is a fraction of the file: it would take
//! all units of an object in, and keep what it makes of them. Around it stand which units cover an address ([`index`]), where
//! their bytes come from ([`bytes`], [`sections`], [`split`]), and how functions are called ([`names`]).
//!
//! `addr2line` trusts the file: version 0.27.1 recurses once per nested inlined call, and a shared list of ranges makes
//! 434 kB ask for 13 GB. Whoever reads files of others does so in a process that may end.
//!
//! Read as a whole, this profiler's own binary (45 MB of entries and lines) takes 320 MB for 50,000 addresses,
//! and 130 MB unit by unit. `addr2line` is given a `.debug_info` with one unit, and one of empty entries in
//! place of the others ([`sections`]). Names are read at the entries that it finds ([`names`]), because it has
//! one name where source and linker have two.

mod bytes;
mod index;
mod kept;
mod lookup;
mod names;
mod scopes;
mod sections;
mod spelling;
mod split;

use std::cell::RefCell;
use std::sync::OnceLock;

use gimli::AbbreviationsCacheStrategy;
use rustc_hash::FxHashMap;

use self::index::UnitOffsets;
use self::kept::KeptUnits;
pub(crate) use self::lookup::{DebugFrame, DwarfReader, Lookup};
pub(crate) use self::names::FunctionName;
use self::sections::Sections;
use self::split::Split;
pub(crate) use self::split::SplitFiles;
use crate::elf::Elf;
use crate::reason::Reason;
use crate::source::ByteSource;

/// What is kept for single addresses, which come in any order (bytes).
const MOST_KEPT: u64 = 256 << 20;
/// The same where addresses come unit by unit.
const MOST_KEPT_IN_ORDER: u64 = 16 << 20;

/// Of what may be held, a reader keeps this share at most: four of them a quarter.
const KEPT_SHARE: u64 = 16;

/// Threads that may read at the same time.
const MOST_READERS: u64 = 64;

/// An object's debug information.
pub(crate) struct DebugInfo<'s> {
    sections: Sections<'s>,
    alt: Option<Sections<'s>>,
    index: UnitOffsets,
    alt_index: UnitOffsets,
    split_files: SplitFiles,
    /// The other halves of the units that have one, opened as addresses ask for them.
    splits: FxHashMap<usize, OnceLock<Result<Box<Split>, Reason>>>,
    most_bytes: u64,
}

/// The object itself, the file of entries that it shares with others, or the one with the other half of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum UnitPlace {
    Main,
    Alt,
    Split(usize),
}

impl<'s> DebugInfo<'s> {
    /// Reads the sections and finds the units. The object at `alt` is the one that `.gnu_debugaltlink` names, and the
    /// entries of split units are to be found among `split_files`.
    pub(crate) fn read(
        elf: &Elf<'_>,
        source: ByteSource<'s>,
        alt: Option<&Elf<'_>>,
        mut split_files: SplitFiles,
        most_bytes: u64,
    ) -> Result<Self, Reason> {
        let alt = alt.map(|alt| Sections::read(alt, None, most_bytes)).transpose()?;
        let left = most_bytes.saturating_sub(alt.as_ref().map_or(0, Sections::held_bytes));
        let mut sections = Sections::read(elf, Some(source), left - left / 4)?;
        let mut dwarf = sections.dwarf(alt.as_ref());
        dwarf.populate_abbreviations_cache(AbbreviationsCacheStrategy::Duplicates);
        let index = UnitOffsets::read(&dwarf);
        drop(dwarf);
        let alt_index = alt.as_ref().map(|alt| UnitOffsets::offsets(&alt.dwarf(None))).unwrap_or_default();
        if index.is_empty() {
            return Err(Reason::CorruptDebugInfo);
        }
        sections.take(index.held_bytes() + alt_index.held_bytes())?;
        if !index.skeletons.is_empty() {
            split_files.open_package(sections.share(MOST_READERS * index.largest()));
        }
        let splits = index.skeletons.iter().map(|&unit| (unit, OnceLock::new())).collect();
        Ok(Self { sections, alt, index, alt_index, split_files, splits, most_bytes })
    }

    /// A reader of addresses in any order.
    pub(crate) fn reader(&self) -> DwarfReader<'s> {
        DwarfReader { kept: RefCell::new(KeptUnits::new(self.most_kept(MOST_KEPT))) }
    }

    /// A reader of addresses in the order of [`DebugInfo::unit_of`].
    pub(crate) fn reader_in_order(&self) -> DwarfReader<'s> {
        DwarfReader { kept: RefCell::new(KeptUnits::new(self.most_kept(MOST_KEPT_IN_ORDER))) }
    }

    fn most_kept(&self, usual: u64) -> u64 {
        // A unit that is read at all is kept until its last address: read anew for each, it would take as long as all units.
        let largest = self.largest_kept();
        let is_readable = self.sections.units_at_once(largest) > 0;
        self.usual_share(usual).max(if is_readable { largest } else { 0 })
    }

    /// What is kept of a limit: below the usual one, the share that is left for it.
    fn usual_share(&self, usual: u64) -> u64 {
        if self.most_bytes < usual * KEPT_SHARE { usual.min(self.most_bytes / KEPT_SHARE) } else { usual }
    }

    /// What the largest unit takes while it is read and kept.
    fn largest_kept(&self) -> u64 {
        self.index.largest() + self.index.largest() / 4
    }

    /// No more addresses come for now: what is above the usual share is forgotten.
    pub(crate) fn rest(&self, reader: &DwarfReader<'_>) {
        let mut kept = reader.kept.borrow_mut();
        if kept.held() > self.usual_share(MOST_KEPT_IN_ORDER) {
            kept.forget();
        }
    }

    /// What the sections, the index and the other halves of units take of memory.
    pub(crate) fn held_bytes(&self) -> u64 {
        let alt = self.alt.as_ref().map_or(0, Sections::held_bytes);
        let indices = self.index.held_bytes() + self.alt_index.held_bytes();
        self.sections.held_bytes() + alt + indices + self.split_files.held_bytes()
    }

    /// What a reader has held at most.
    pub(crate) fn read_bytes(&self, reader: &DwarfReader<'_>) -> u64 {
        reader.kept.borrow().most_held()
    }

    /// What a unit takes at most while it is read, with its lines.
    pub(crate) fn unit_bytes(&self) -> u64 {
        self.index.largest()
    }

    /// A number for the unit that describes `address`: addresses with the same one are best looked up together.
    pub(crate) fn unit_of(&self, address: u64) -> Option<usize> {
        self.index.covering(address).next()
    }

    /// Whether the largest unit cannot be read within the limit.
    pub(crate) fn too_large(&self) -> Option<Reason> {
        let bytes = self.index.largest();
        let is_too_large = self.sections.units_at_once(bytes) == 0;
        is_too_large.then(|| Reason::TooLarge { what: "a unit of the debug information".into(), bytes })
    }

    /// How many threads may read at the same time, each with a unit of its own in memory.
    pub(crate) fn most_readers(&self) -> usize {
        self.sections.units_at_once(self.largest_kept()).clamp(1, MOST_READERS) as usize
    }
}
