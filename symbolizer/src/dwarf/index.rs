//! Which units there are, and which addresses they cover.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;

use gimli::SectionId;

use super::lines::Lines;
use super::reader::{Budget, at_most};
use super::sections::{Sections, Window};
use super::unit::{Dwarf, UnitInfo, header};

/// Units may overlap in odd objects; more than this many are not tried for one address.
const MOST_OVERLAPS: usize = 64;

/// Units of one object; a browser has some fifty thousand.
const MOST_UNITS: usize = 4 << 20;
/// What a unit costs, whatever is in it.
const UNIT_WORK: usize = 16;
/// Bytes of a unit that are read for its root entry: only an odd one takes more.
const ROOT_AT_FIRST: u64 = 1024;

/// Ranges of all units; a browser has about two million.
const MOST_RANGES: usize = 8 << 20;

/// An object's units, in the order of their offsets.
#[derive(Default)]
pub(super) struct Index {
    offsets: Vec<usize>,
    ranges: Vec<UnitRange>,
    /// The furthest end of all ranges up to each.
    reach: Vec<u64>,
    largest: u64,
    /// The units whose entries are in another file.
    pub(super) skeletons: Vec<usize>,
}

#[derive(Debug, Clone, Copy)]
struct UnitRange {
    start: u64,
    end: u64,
    unit: usize,
}

impl Index {
    /// Finds the units, and reads the root entry of each for its ranges.
    pub(super) fn read(dwarf: &Dwarf<'_>, sections: &Sections<'_>, budget: &Budget) -> gimli::Result<Self> {
        let mut index = Self::default();
        let mut at = 0;
        let mut window = Window::default();
        while let Some((head, range)) = sections.unit_head(at, ROOT_AT_FIRST, &mut window) {
            at_most(index.offsets.len(), MOST_UNITS)?;
            budget.spend(UNIT_WORK)?;
            index.offsets.push(usize::try_from(at).map_err(|_| gimli::Error::Io)?);
            index.largest = index.largest.max(range.end - range.start);
            at = range.end;
            match index.read_unit(dwarf, sections, budget, head, range) {
                Err(error) if budget.is_spent() => return Err(error),
                _ => {} // a corrupt unit costs only its own names
            }
        }
        // Looked through from the end: the nearest start first, then the tightest range. Of units that describe the same
        // code, as those with copies of an inline function do, the first is the one whose copy the linker kept.
        index.ranges.sort_unstable_by_key(|range| (range.start, Reverse((range.end, range.unit))));
        index.reach = index
            .ranges
            .iter()
            .scan(0, |reach, range| {
                *reach = range.end.max(*reach);
                Some(*reach)
            })
            .collect();
        Ok(index)
    }

    /// What it takes of memory.
    pub(super) fn held_bytes(&self) -> u64 {
        let ranges = self.ranges.len() * (size_of::<UnitRange>() + size_of::<u64>());
        (ranges + (self.offsets.len() + self.skeletons.len()) * size_of::<usize>()) as u64
    }

    /// Finds the units only.
    pub(super) fn offsets(dwarf: &Dwarf<'_>) -> gimli::Result<Self> {
        let mut index = Self::default();
        let mut headers = dwarf.units();
        loop {
            match headers.next() {
                Ok(Some(header)) => index.offsets.extend(header.debug_info_offset().map(|offset| offset.0)),
                Err(error) if index.offsets.is_empty() => return Err(error),
                Ok(None) | Err(_) => return Ok(index),
            }
        }
    }

    /// Reads the last unit, at `range`, from how it begins if that will do.
    fn read_unit(
        &mut self,
        dwarf: &Dwarf<'_>,
        sections: &Sections<'_>,
        budget: &Budget,
        head: Cow<'_, [u8]>,
        range: Range<u64>,
    ) -> gimli::Result<()> {
        let root = |offset| sections.root_abbreviation(offset, budget);
        let is_whole = head.len() as u64 >= range.end - range.start;
        let head = if is_whole { head } else { shortened(&head).into() };
        if self.read_root(dwarf, sections, budget, &head, root).is_ok() {
            return Ok(());
        }
        let all = |offset| sections.abbreviations(offset, budget);
        let unit = if is_whole { head } else { sections.unit(SectionId::DebugInfo, range.start)? };
        self.read_root(dwarf, sections, budget, &unit, all)
    }

    fn read_root(
        &mut self,
        dwarf: &Dwarf<'_>,
        sections: &Sections<'_>,
        budget: &Budget,
        bytes: &[u8],
        abbreviations: impl FnOnce(usize) -> gimli::Result<Arc<gimli::Abbreviations>>,
    ) -> gimli::Result<()> {
        let (unit, before) = (self.offsets.len() - 1, self.ranges.len());
        let header = header(bytes, budget)?;
        let abbreviations = abbreviations(header.debug_abbrev_offset().0)?;
        let ranges = &mut self.ranges;
        let info = UnitInfo::read(dwarf, sections, header, abbreviations, budget, |start, end| {
            ranges.push(UnitRange { start, end, unit });
            at_most(ranges.len(), MOST_RANGES)
        });
        let info = info.inspect_err(|_| ranges.truncate(before))?;
        let is_skeleton = info.link.as_ref().is_some_and(|link| link.file.is_some());
        if is_skeleton && self.skeletons.last() != Some(&unit) {
            self.skeletons.push(unit);
        }
        if ranges.len() == before && info.has_code && info.lines.is_some() {
            let info = info.with_bytes(self.offsets[unit], bytes.to_vec().into());
            let lines = Lines::read(dwarf, sections, &info.unit(dwarf, budget)?, &info, budget)?;
            self.ranges.extend(lines.ranges().map(|(start, end)| UnitRange { start, end, unit }));
        }
        Ok(())
    }

    /// Counts what else is read with a unit.
    pub(super) fn note_size(&mut self, bytes: u64) {
        self.largest = self.largest.max(bytes);
    }

    /// The size of the largest unit, or of its lines where its entries are elsewhere.
    pub(super) fn largest(&self) -> u64 {
        self.largest
    }

    pub(super) fn len(&self) -> usize {
        self.offsets.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    pub(super) fn offset(&self, unit: usize) -> Option<usize> {
        self.offsets.get(unit).copied()
    }

    /// The unit that holds the entry at `offset`.
    pub(super) fn unit_at(&self, offset: usize) -> Option<usize> {
        self.offsets.partition_point(|&start| start <= offset).checked_sub(1)
    }

    /// The units that cover `address`.
    pub(super) fn covering(&self, address: u64) -> impl Iterator<Item = usize> {
        let after = self.ranges.partition_point(|range| range.start <= address);
        let reachable = (0..after).rev().take_while(move |&at| self.reach[at] > address).take(MOST_OVERLAPS);
        reachable.map(|at| self.ranges[at]).filter(move |range| address < range.end).map(|range| range.unit)
    }
}

/// The start of a unit as a unit of its own, which ends where it does: enough to read the root entry of most.
fn shortened(head: &[u8]) -> Vec<u8> {
    let mut head = head.to_vec();
    if head.starts_with(&[0xff; 4]) && head.len() >= 12 {
        let len = head.len() as u64 - 12;
        head[4..12].copy_from_slice(&len.to_le_bytes());
    } else if head.len() >= 4 {
        let len = head.len() as u32 - 4;
        head[..4].copy_from_slice(&len.to_le_bytes());
    }
    head
}
