//! A unit's lines by address.

use std::borrow::Cow;
use std::sync::Arc;

use gimli::{AttributeValue, DebugLine, DebugLineOffset, Error, SectionId};

use super::kept::Held;
use super::reader::{Budget, Bytes, at_most};
use super::sections::Sections;
use super::unit::{Dwarf, Unit, UnitInfo};

pub(super) const LONGEST_PATH: usize = 4096;
/// gimli reserves room for as many files as a header has bytes, so a header must not be a section long.
const LONGEST_HEADER: u64 = 4 << 20;
/// Rows and bytes of paths that are kept of one unit.
const MOST_ROWS: usize = 8 << 20;
const MOST_PATH_BYTES: usize = 64 << 20;
/// What keeping a row costs.
const ROW_WORK: usize = 4;
const MOST_OVERLAPS: usize = 16;
/// What a path takes beside its bytes.
const FILE_BYTES: usize = 32;

/// A unit's lines.
pub(super) struct Lines {
    files: Vec<Arc<str>>,
    sequences: Vec<Sequence>,
    rows: Vec<Row>,
}

/// Rows of ascending addresses without a gap.
#[derive(Debug, Clone, Copy)]
struct Sequence {
    start: u64,
    end: u64,
    first: usize,
    last: usize,
}

#[derive(Debug, Clone, Copy)]
struct Row {
    address: u64,
    file: u32,
    line: u32,
}

/// A place in the source.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) file: Option<Arc<str>>,
    pub(crate) line: Option<u32>,
}

impl Lines {
    pub(super) fn read(
        dwarf: &Dwarf<'_>,
        sections: &Sections<'_>,
        unit: &Unit<'_>,
        info: &UnitInfo,
        budget: &Budget,
    ) -> gimli::Result<Self> {
        let mut lines = Self { files: Vec::new(), sequences: Vec::new(), rows: Vec::new() };
        let Some(offset) = info.lines else { return Ok(lines) };
        let bytes = sections.unit(SectionId::DebugLine, offset.0 as u64)?;
        if let Cow::Owned(read) = &bytes {
            budget.spend(read.len())?; // however little of it turns out to be of use: any number of units may share it
        }
        check_header(&bytes)?;
        let table = DebugLine::from(Bytes::new(&bytes, budget));
        let program = table.program(DebugLineOffset(0), unit.header.address_size(), None, None)?;
        let mut rows = program.rows();
        let mut first = 0;
        while let Some((_, row)) = rows.next_row()? {
            if row.end_sequence() {
                lines.end_sequence(first, row.address());
                first = lines.rows.len();
                continue;
            }
            budget.spend(ROW_WORK)?;
            let line = row.line().map_or(0, |line| u32::try_from(line.get()).unwrap_or(0));
            let file = u32::try_from(row.file_index()).unwrap_or(u32::MAX);
            at_most(lines.rows.len(), MOST_ROWS)?;
            lines.push(first, Row { address: row.address(), file, line });
        }
        lines.rows.truncate(first);
        lines.sequences.sort_unstable_by_key(|sequence| sequence.start);
        lines.files = files(dwarf, sections, unit, info, rows.header(), budget)?;
        Ok(lines)
    }

    pub(super) fn ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        self.sequences.iter().map(|sequence| (sequence.start, sequence.end))
    }

    pub(super) fn file(&self, index: u64) -> Option<Arc<str>> {
        self.files.get(usize::try_from(index).ok()?).filter(|file| !file.is_empty()).cloned()
    }

    pub(super) fn find(&self, address: u64) -> Option<Location> {
        let after = self.sequences.partition_point(|sequence| sequence.start <= address);
        let mut before = self.sequences[..after].iter().rev().take(MOST_OVERLAPS);
        let sequence = before.find(|sequence| address < sequence.end)?;
        let rows = &self.rows[sequence.first..sequence.last];
        let row = rows[rows.partition_point(|row| row.address <= address).checked_sub(1)?];
        Some(Location { file: self.file(row.file.into()), line: Some(row.line).filter(|&line| line != 0) })
    }

    /// Adds a row to the sequence that starts at `first`. Of several rows at one address the last one counts.
    fn push(&mut self, first: usize, row: Row) {
        match self.rows[first..].last_mut() {
            Some(last) if last.address == row.address => *last = row,
            Some(last) if last.address > row.address => {} // out of order: not a row to be found
            _ => self.rows.push(row),
        }
    }

    fn end_sequence(&mut self, first: usize, end: u64) {
        let start = self.rows.get(first).map_or(0, |row| row.address);
        // Linkers leave functions they dropped at address zero.
        if start == 0 || start >= end {
            self.rows.truncate(first);
            return;
        }
        self.sequences.push(Sequence { start, end, first, last: self.rows.len() });
    }
}

impl Held for Lines {
    fn held_bytes(&self) -> usize {
        let files: usize = self.files.iter().map(|file| file.len() + FILE_BYTES).sum();
        files + self.sequences.capacity() * size_of::<Sequence>() + self.rows.capacity() * size_of::<Row>()
    }
}

/// Refuses headers that claim to be longer than any real one.
fn check_header(header: &[u8]) -> gimli::Result<()> {
    let word = |at: usize| header.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word));
    let is_64 = word(0) == Some(u32::MAX);
    let lengths = if is_64 { 12 } else { 4 };
    let version =
        header.get(lengths..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u16::from_le_bytes(*word));
    let at = lengths + if version >= 5 { 4 } else { 2 };
    let high = if is_64 { word(at + 4).unwrap_or(0) } else { 0 };
    let len = u64::from(word(at).unwrap_or(0)) | u64::from(high) << 32;
    if len > LONGEST_HEADER { Err(Error::BadUnsignedLeb128) } else { Ok(()) }
}

fn files<'a>(
    dwarf: &Dwarf<'a>,
    sections: &'a Sections<'_>,
    unit: &Unit<'a>,
    info: &UnitInfo,
    header: &gimli::LineProgramHeader<Bytes<'a>>,
    budget: &Budget,
) -> gimli::Result<Vec<Arc<str>>> {
    let text = |value: AttributeValue<Bytes<'a>>| {
        let bytes = sections.string(dwarf, unit, value).filter(|bytes| bytes.len() <= LONGEST_PATH)?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    };
    let first = if header.version() >= 5 { 0 } else { 1 };
    let mut bytes = 0;
    let mut files = vec![Arc::from(""); first as usize];
    for index in first.. {
        let Some(file) = header.file(index) else { break };
        let mut path = info.comp_dir.clone().unwrap_or_default();
        let directory = Some(file.directory_index()).filter(|&index| index != 0 || header.version() >= 5);
        if let Some(directory) = directory.and_then(|index| header.directory(index)).and_then(text) {
            join(&mut path, &directory);
        }
        join(&mut path, &text(file.path_name()).unwrap_or_default());
        budget.spend(path.len())?;
        bytes += path.len();
        at_most(bytes, MOST_PATH_BYTES)?;
        files.push(Arc::from(path));
    }
    Ok(files)
}

fn join(path: &mut String, part: &str) {
    if part.starts_with('/') {
        path.clear();
    } else if !path.is_empty() && !path.ends_with('/') {
        path.push('/');
    }
    path.push_str(part);
}
