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
    work: u64,
    /// The largest that `work` was.
    high: u64,
    most: u64,
}

impl Kept {
    /// Keeps what takes this much work to read: some two bytes of memory for each unit of work.
    pub(super) fn new(most: u64) -> Self {
        Self {
            units: FxHashMap::default(),
            functions: FxHashMap::default(),
            inlined: FxHashMap::default(),
            lines: FxHashMap::default(),
            names: FxHashMap::default(),
            demangled: FxHashMap::default(),
            abbreviations: None,
            work: 0,
            high: 0,
            most,
        }
    }

    /// Notes that something is to be kept that cost this much work, and forgets all before it if that is too much.
    pub(super) fn count(&mut self, work: u64) {
        if self.work + work > self.most {
            *self = Self { high: self.high, ..Self::new(self.most) };
        }
        self.work += work;
        self.high = self.high.max(self.work);
    }

    /// The most work that was kept at a time.
    pub(super) fn most_work(&self) -> u64 {
        self.high.min(self.most)
    }
}
