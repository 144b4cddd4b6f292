//! Which units there are, and which addresses they cover.

use std::cmp::Reverse;
use std::sync::Arc;

use super::lines::Lines;
use super::reader::{Budget, at_most};
use super::sections::Sections;
use super::unit::{Dwarf, UnitInfo};

/// Units may overlap in odd objects; more than this many are not tried for one address.
const MOST_OVERLAPS: usize = 64;

/// Ranges of all units; a browser has about two million.
const MOST_RANGES: usize = 8 << 20;

/// An object's units, in the order of their offsets.
#[derive(Default)]
pub(super) struct Index {
    offsets: Vec<usize>,
    ranges: Vec<UnitRange>,
    /// The furthest end of all ranges up to each.
    reach: Vec<u64>,
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
    pub(super) fn read(dwarf: &Dwarf<'_>, sections: &Sections, budget: &Budget) -> gimli::Result<Self> {
        let mut index = Self::offsets(dwarf)?;
        let mut shared = None;
        for unit in 0..index.offsets.len() {
            match index.read_unit(dwarf, sections, budget, unit, &mut shared) {
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

    fn read_unit(
        &mut self,
        dwarf: &Dwarf<'_>,
        sections: &Sections,
        budget: &Budget,
        unit: usize,
        shared: &mut Option<(usize, Arc<gimli::Abbreviations>)>,
    ) -> gimli::Result<()> {
        let header = dwarf.unit_header(gimli::DebugInfoOffset(self.offsets[unit]))?;
        // Link-time optimisation gives all units the same abbreviations.
        let offset = header.debug_abbrev_offset().0;
        let abbreviations = match shared {
            Some((at, abbreviations)) if *at == offset => Arc::clone(abbreviations),
            _ => sections.abbreviations(offset, budget)?,
        };
        *shared = Some((offset, Arc::clone(&abbreviations)));
        let before = self.ranges.len();
        let ranges = &mut self.ranges;
        let info = UnitInfo::read(dwarf, header, abbreviations, budget, |start, end| {
            ranges.push(UnitRange { start, end, unit });
            at_most(ranges.len(), MOST_RANGES)
        });
        let info = info.inspect_err(|_| ranges.truncate(before))?;
        if info.link.as_ref().is_some_and(|link| link.file.is_some()) {
            self.skeletons.push(unit);
        }
        if ranges.len() == before && info.has_code && info.lines.is_some() {
            let lines = Lines::read(dwarf, sections, &info.unit(dwarf)?, &info, budget)?;
            self.ranges.extend(lines.ranges().map(|(start, end)| UnitRange { start, end, unit }));
        }
        Ok(())
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
