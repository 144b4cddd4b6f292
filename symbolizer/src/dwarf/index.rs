//! Which units there are, and which addresses they cover.

use std::cmp::Reverse;
use std::ops::Range;

use super::kept::Unit;
use super::sections::Dwarf;

/// Units may overlap in odd objects; more than this many are not tried for one address.
const MOST_OVERLAPS: usize = 64;

/// What `addr2line` takes of memory for a byte of entries, the byte included, and for one of a line program.
pub(super) const BYTES_PER_ENTRY_BYTE: u64 = 3;
const BYTES_PER_LINE_BYTE: u64 = 10;

/// An object's units, in the order of their offsets.
#[derive(Default)]
pub(super) struct UnitOffsets {
    offsets: Vec<usize>,
    /// The end of the last unit.
    end: usize,
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

impl UnitOffsets {
    /// Finds the units, and reads the root entry of each for its ranges.
    pub(super) fn read(dwarf: &Dwarf<'_>) -> Self {
        let mut index = Self::of_headers(dwarf, |index, header| {
            let before = index.ranges.len();
            // A corrupt unit costs only its own names.
            if index.read_unit(dwarf, header).is_err() {
                index.ranges.truncate(before);
            }
        });
        // Looked through from the end: the nearest start first, then the tightest range. Of units that describe the same
        // code, as those with copies of an inline function do, the first is the one whose copy the linker kept.
        index.ranges.sort_unstable_by_key(|range| (range.start, Reverse((range.end, range.unit))));
        let reach = index.ranges.iter().scan(0, |reach, range| {
            *reach = range.end.max(*reach);
            Some(*reach)
        });
        index.reach = reach.collect();
        index
    }

    /// Finds the units only.
    pub(super) fn offsets(dwarf: &Dwarf<'_>) -> Self {
        Self::of_headers(dwarf, |_, _| {})
    }

    fn of_headers<'s>(dwarf: &Dwarf<'s>, each: impl Fn(&mut Self, Header<'s>)) -> Self {
        let mut index = Self::default();
        let mut headers = dwarf.units();
        while let Ok(Some(header)) = headers.next() {
            let Some(offset) = header.debug_info_offset() else { continue };
            index.offsets.push(offset.0);
            index.end = offset.0 + header.length_including_self();
            each(&mut index, header);
        }
        index
    }

    fn read_unit<'s>(&mut self, dwarf: &Dwarf<'s>, header: Header<'s>) -> gimli::Result<()> {
        let (unit, before) = (self.offsets.len() - 1, self.ranges.len());
        let is_of_code =
            matches!(header.type_(), gimli::UnitType::Compilation | gimli::UnitType::Skeleton(_));
        let read = dwarf.unit(header)?;
        self.largest = self.largest.max(entry_bytes(&read) + context_bytes(&read));
        if read.dwo_id.is_some() && read.dwo_name()?.is_some() {
            self.skeletons.push(unit);
        }
        let mut ranges = dwarf.unit_ranges(&read)?;
        while let Some(range) = ranges.next()? {
            self.push(unit, range.begin, range.end);
        }
        if self.ranges.len() == before
            && is_of_code
            && let Some(lines) = read.line_program.clone()
        {
            lines.sequences()?.1.iter().for_each(|sequence| self.push(unit, sequence.start, sequence.end));
        }
        Ok(())
    }

    fn push(&mut self, unit: usize, start: u64, end: u64) {
        // Linkers leave functions they dropped at address zero.
        if start != 0 && start < end {
            self.ranges.push(UnitRange { start, end, unit });
        }
    }

    /// What it takes of memory.
    pub(super) fn held_bytes(&self) -> u64 {
        let ranges = self.ranges.len() * (size_of::<UnitRange>() + size_of::<u64>());
        (ranges + (self.offsets.len() + self.skeletons.len()) * size_of::<usize>()) as u64
    }

    /// What the largest unit takes of memory, with its lines.
    pub(super) fn largest(&self) -> u64 {
        self.largest
    }

    pub(super) fn len(&self) -> usize {
        self.offsets.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    /// Where a unit is.
    pub(super) fn range(&self, unit: usize) -> Option<Range<usize>> {
        let start = *self.offsets.get(unit)?;
        Some(start..self.offsets.get(unit + 1).copied().unwrap_or(self.end))
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

type Header<'s> = gimli::UnitHeader<super::bytes::SectionReader<'s>>;

/// The bytes of a unit's entries.
pub(super) fn entry_bytes(unit: &Unit<'_>) -> u64 {
    unit.header.length_including_self() as u64
}

/// What a unit takes of memory, once `addr2line` has read it.
pub(super) fn context_bytes(unit: &Unit<'_>) -> u64 {
    let lines = unit.line_program.as_ref().map_or(0, |lines| lines.header().unit_length());
    entry_bytes(unit) * BYTES_PER_ENTRY_BYTE + lines as u64 * BYTES_PER_LINE_BYTE
}
