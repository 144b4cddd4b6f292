//! What was read of the units, kept for the next address.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::UnitPlace;
use super::bytes::SectionReader;
use super::names::FunctionName;
use super::scopes::Scopes;

/// What names are read from: a unit, all of whose bytes are in memory.
pub(super) type Unit<'s> = gimli::Unit<SectionReader<'s>>;
/// An entry: where its unit is, and the two offsets.
pub(super) type EntryPlace = (UnitPlace, usize, usize);

/// What one reader has read, or could not read.
pub(super) struct KeptUnits<'s> {
    /// One for each unit.
    pub(super) contexts: FxHashMap<usize, gimli::Result<addr2line::Context<SectionReader<'s>>>>,
    pub(super) units: FxHashMap<(UnitPlace, usize), gimli::Result<Arc<Unit<'s>>>>,
    pub(super) names: FxHashMap<EntryPlace, Option<Arc<FunctionName>>>,
    /// What functions are declared in, of units where a name needed that.
    pub(super) scopes: FxHashMap<(UnitPlace, usize), Arc<Scopes>>,
    /// Units repeat the names of the functions that they inline.
    pub(super) demangled: FxHashMap<Arc<str>, Option<Arc<str>>>,
    /// Files repeat from line to line.
    pub(super) files: FxHashMap<String, Arc<str>>,
    held: u64,
    /// The largest that `held` was.
    high: u64,
    most: u64,
}

/// What is kept in a table beside its own bytes, about.
const ENTRY_BYTES: u64 = 64;

impl KeptUnits<'_> {
    /// Keeps so many bytes.
    pub(super) fn new(most: u64) -> Self {
        Self {
            contexts: FxHashMap::default(),
            units: FxHashMap::default(),
            names: FxHashMap::default(),
            scopes: FxHashMap::default(),
            demangled: FxHashMap::default(),
            files: FxHashMap::default(),
            held: 0,
            high: 0,
            most,
        }
    }

    /// Notes that something of so many bytes is to be kept.
    pub(super) fn count(&mut self, bytes: u64) {
        self.held += bytes + ENTRY_BYTES;
        self.high = self.high.max(self.held);
    }

    /// Forgets all of it if `bytes` more would be too much.
    pub(super) fn make_room(&mut self, bytes: u64) {
        if self.held + bytes > self.most {
            self.forget();
        }
    }

    /// Forgets all of it.
    pub(super) fn forget(&mut self) {
        *self = Self { high: self.high, ..Self::new(self.most) };
    }

    /// What is kept (bytes).
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// The most that was kept at a time (bytes).
    pub(super) fn most_held(&self) -> u64 {
        self.high
    }
}
