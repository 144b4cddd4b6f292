//! What was read of the units, kept for the next address.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::Place;
use super::functions::{Functions, Inlined};
use super::lines::Lines;
use super::names::FunctionName;
use super::unit::UnitInfo;

/// What one reader has read, or could not read. All of it is plain numbers and offsets.
pub(super) struct Kept {
    pub(super) units: FxHashMap<(Place, usize), gimli::Result<Arc<UnitInfo>>>,
    pub(super) functions: FxHashMap<(Place, usize), gimli::Result<Arc<Functions>>>,
    pub(super) inlined: FxHashMap<(Place, usize, usize), gimli::Result<Arc<Inlined>>>,
    pub(super) lines: FxHashMap<usize, gimli::Result<Arc<Lines>>>,
    pub(super) names: FxHashMap<(Place, usize, usize), Option<Arc<FunctionName>>>,
    /// Units repeat the names of the functions that they inline.
    pub(super) demangled: FxHashMap<Arc<str>, Option<Arc<str>>>,
    /// The last ones, and where they are.
    pub(super) abbreviations: Option<((Place, usize), Arc<gimli::Abbreviations>)>,
    held: u64,
    /// The largest that `held` was.
    high: u64,
    most: u64,
}

/// What is kept in a table beside its own bytes, about.
pub(super) const ENTRY_BYTES: usize = 64;

/// What something takes of memory.
pub(super) trait Held {
    /// Its bytes, without those of itself.
    fn held_bytes(&self) -> usize;
}

impl Kept {
    /// Keeps so many bytes.
    pub(super) fn new(most: u64) -> Self {
        Self {
            units: FxHashMap::default(),
            functions: FxHashMap::default(),
            inlined: FxHashMap::default(),
            lines: FxHashMap::default(),
            names: FxHashMap::default(),
            demangled: FxHashMap::default(),
            abbreviations: None,
            held: 0,
            high: 0,
            most,
        }
    }

    /// Notes that something of so many bytes is to be kept, and forgets all before it if that is too much.
    pub(super) fn count(&mut self, bytes: usize) {
        let bytes = (bytes + ENTRY_BYTES) as u64;
        if self.held + bytes > self.most {
            *self = Self { high: self.high, ..Self::new(self.most) };
        }
        self.held += bytes;
        self.high = self.high.max(self.held);
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
