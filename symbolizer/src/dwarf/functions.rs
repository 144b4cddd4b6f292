//! A unit's functions, and what was inlined into each.

use gimli::{AttributeValue, UnitOffset};

use super::kept::Held;
use super::ranges::RangeAttributes;
use super::reader::{Budget, at_most};
use super::unit::{Dwarf, Unit};

/// Inlining deeper than this is left out; compilers stop long before.
const DEEPEST_INLINING: usize = 256;
/// Ranges that are kept of one unit's functions, or of one function's inlined calls. The largest units known to us have
/// some hundred thousand.
const MOST_RANGES: usize = 4 << 20;
/// Functions may overlap a little, in odd objects; more than this many are not tried.
const MOST_OVERLAPS: usize = 16;

/// A unit's functions by address.
pub(super) struct Functions(Vec<FunctionRange>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct FunctionRange {
    start: u64,
    end: u64,
    entry: usize,
}

impl Functions {
    pub(super) fn read(dwarf: &Dwarf<'_>, unit: &Unit<'_>, budget: &Budget) -> gimli::Result<Self> {
        let mut functions = Vec::new();
        let mut entries = unit.header.entries_raw(&unit.abbreviations, None)?;
        while !entries.is_empty() {
            let entry = entries.next_offset().0;
            let Some(abbreviation) = entries.read_abbreviation()? else { continue };
            budget.spend(abbreviation.attributes().len())?;
            if abbreviation.tag() != gimli::DW_TAG_subprogram {
                entries.skip_attributes(abbreviation.attributes())?;
                continue;
            }
            let mut ranges = RangeAttributes::default();
            for spec in abbreviation.attributes() {
                ranges.note(&entries.read_attribute(*spec)?);
            }
            ranges.for_each(dwarf, unit, budget, |start, end| {
                functions.push(FunctionRange { start, end, entry });
                at_most(functions.len(), MOST_RANGES)
            })?;
        }
        functions.sort_unstable();
        functions.shrink_to_fit();
        Ok(Self(functions))
    }

    /// The entry of the function that covers `address`.
    pub(super) fn find(&self, address: u64) -> Option<usize> {
        let after = self.0.partition_point(|function| function.start <= address);
        let before = self.0[..after].iter().rev().take(MOST_OVERLAPS);
        before.filter(|function| address < function.end).map(|function| function.entry).next()
    }
}

impl Held for Functions {
    fn held_bytes(&self) -> usize {
        size_of_val(self.0.as_slice())
    }
}

/// What was inlined into a function: a list for each depth, by address.
pub(super) struct Inlined(Vec<Vec<InlinedRange>>);

/// One stretch of an inlined call.
#[derive(Debug, Clone, Copy)]
pub(super) struct InlinedRange {
    start: u64,
    end: u64,
    pub(super) entry: usize,
    pub(super) call_file: Option<u64>,
    pub(super) call_line: Option<u32>,
}

impl Inlined {
    /// Reads the entries below the function at `function`.
    pub(super) fn read(
        dwarf: &Dwarf<'_>,
        unit: &Unit<'_>,
        budget: &Budget,
        function: usize,
    ) -> gimli::Result<Self> {
        let mut levels: Vec<Vec<InlinedRange>> = Vec::new();
        let mut entries = unit.header.entries_raw(&unit.abbreviations, Some(UnitOffset(function)))?;
        if let Some(abbreviation) = entries.read_abbreviation()? {
            entries.skip_attributes(abbreviation.attributes())?;
        }
        let mut nesting = Nesting::default();
        let mut kept = 0;
        while entries.next_depth() > 0 && !entries.is_empty() {
            let depth = entries.next_depth();
            let entry = entries.next_offset().0;
            let Some(abbreviation) = entries.read_abbreviation()? else { continue };
            budget.spend(abbreviation.attributes().len())?;
            nesting.enter(depth, abbreviation.tag() == gimli::DW_TAG_subprogram);
            if abbreviation.tag() != gimli::DW_TAG_inlined_subroutine || nesting.is_skipped() {
                entries.skip_attributes(abbreviation.attributes())?;
                continue;
            }
            let mut call = InlinedRange { start: 0, end: 0, entry, call_file: None, call_line: None };
            let mut ranges = RangeAttributes::default();
            for spec in abbreviation.attributes() {
                let attribute = entries.read_attribute(*spec)?;
                call.note(attribute.name(), &attribute.value(), attribute.udata_value());
                ranges.note(&attribute);
            }
            let mut found = Vec::new();
            ranges.for_each(dwarf, unit, budget, |start, end| {
                found.push(InlinedRange { start, end, ..call });
                kept += 1;
                at_most(kept, MOST_RANGES)
            })?;
            if !found.is_empty() {
                let level = nesting.open.len();
                levels.resize_with(levels.len().max(level + 1), Vec::new);
                levels[level].append(&mut found);
                nesting.open.push(depth);
            }
        }
        for level in &mut levels {
            level.sort_unstable_by_key(|call| (call.start, call.end));
        }
        Ok(Self(levels))
    }

    /// The calls that were inlined at `address`, the outermost first.
    pub(super) fn chain(&self, address: u64) -> Vec<InlinedRange> {
        self.0.iter().map_while(|level| find(level, address)).collect()
    }
}

impl Held for Inlined {
    fn held_bytes(&self) -> usize {
        self.0.iter().map(|level| level.capacity() * size_of::<InlinedRange>() + size_of_val(level)).sum()
    }
}

fn find(level: &[InlinedRange], address: u64) -> Option<InlinedRange> {
    let after = level.partition_point(|call| call.start <= address);
    level[..after].iter().rev().take(MOST_OVERLAPS).find(|call| address < call.end).copied()
}

impl InlinedRange {
    fn note<R: gimli::Reader>(&mut self, name: gimli::DwAt, value: &AttributeValue<R>, number: Option<u64>) {
        match (name, value) {
            (gimli::DW_AT_call_file, AttributeValue::FileIndex(index)) => self.call_file = Some(*index),
            (gimli::DW_AT_call_line, _) => {
                self.call_line = number.and_then(|line| u32::try_from(line).ok()).filter(|&line| line != 0);
            }
            _ => {}
        }
    }
}

/// Where in the tree of entries the reader is.
#[derive(Default)]
struct Nesting {
    /// The depths of the inlined calls around the reader.
    open: Vec<isize>,
    /// The depth of a nested function, whose entries belong to itself.
    skip: Option<isize>,
}

impl Nesting {
    fn enter(&mut self, depth: isize, is_function: bool) {
        while self.open.last().is_some_and(|&open| open >= depth) {
            self.open.pop();
        }
        if self.skip.is_some_and(|skip| depth <= skip) {
            self.skip = None;
        }
        if is_function && self.skip.is_none() {
            self.skip = Some(depth);
        }
    }

    fn is_skipped(&self) -> bool {
        self.skip.is_some() || self.open.len() >= DEEPEST_INLINING
    }
}
