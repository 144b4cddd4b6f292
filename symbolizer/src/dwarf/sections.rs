//! The DWARF sections of an object: the small ones held in memory, the large ones read unit by unit.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use gimli::{
    Abbreviations, AttributeValue, DebugAbbrev, DebugAbbrevOffset, DebugCuIndex, Error, Reader, SectionId,
};

use super::reader::{Budget, Bytes};
use super::unit::{Dwarf, Unit};
use crate::elf::Elf;
use crate::reason::Reason;
use crate::source::Source;

/// The sections that names and lines need. Locations of variables, macros and types are never read.
const NEEDED: [SectionId; 9] = [
    SectionId::DebugInfo,
    SectionId::DebugAbbrev,
    SectionId::DebugAddr,
    SectionId::DebugLine,
    SectionId::DebugLineStr,
    SectionId::DebugRanges,
    SectionId::DebugRngLists,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
];
/// The same in the files of split units: lines stay in the object, and so do addresses.
const NEEDED_SPLIT: [SectionId; 6] = [
    SectionId::DebugInfo,
    SectionId::DebugAbbrev,
    SectionId::DebugRngLists,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
    SectionId::DebugCuIndex,
];
/// The abbreviations of one unit take a few kilobytes, and many times that once they are parsed.
pub(super) const LONGEST_ABBREVIATIONS: usize = 1 << 20;
/// The longest form of the length that a unit begins with.
const LENGTH_FIELD: u64 = 12;
/// Units that follow each other this closely are read together, so many bytes at a time.
const SMALL_UNIT: u64 = 8 << 10;
const AHEAD: u64 = 64 << 10;
/// Bytes of a string that are read at first; names of templates are longer.
const STRING_AT_FIRST: usize = 256;
/// No string is read further.
const LONGEST_STRING: usize = 64 << 10;
/// Strings are held up to this share of what may be held: each name is one, and reading them one by one takes longer.
const STRINGS_SHARE: u64 = 4;
/// All sections of an object, held or not: reading more takes minutes.
const MOST_BYTES: u64 = 4 << 30;

/// What was read ahead of small units.
#[derive(Default)]
pub(super) struct Window {
    start: u64,
    bytes: Vec<u8>,
}

impl Window {
    fn get(&self, part: &Range<u64>) -> Option<&[u8]> {
        let start = usize::try_from(part.start.checked_sub(self.start)?).ok()?;
        let end = usize::try_from(part.end.checked_sub(self.start)?).ok()?;
        self.bytes.get(start..end)
    }
}

/// An object's sections.
pub(super) struct Sections<'s> {
    contents: Vec<(SectionId, Contents)>,
    source: Option<Source<'s>>,
    /// What units may take beside the sections that are held.
    most_for_units: u64,
}

/// Where a section's bytes are.
enum Contents {
    Held(Vec<u8>),
    /// In the object's file.
    Stored(Range<u64>),
}

impl Contents {
    fn len(&self) -> u64 {
        match self {
            Self::Held(bytes) => bytes.len() as u64,
            Self::Stored(range) => range.end - range.start,
        }
    }

    fn held(&self) -> &[u8] {
        match self {
            Self::Held(bytes) => bytes,
            Self::Stored(_) => &[],
        }
    }
}

impl<'s> Sections<'s> {
    /// Reads the sections that are to be held, unless they take more than `most_bytes` together. The others stay where
    /// they are in `source`; without it all are held.
    pub(super) fn read(elf: &Elf<'_>, source: Option<Source<'s>>, most_bytes: u64) -> Result<Self, Reason> {
        let stored = |id: SectionId| {
            let range = elf.stored(id.name()).filter(|_| source.is_some())?;
            let in_parts = match id {
                SectionId::DebugInfo | SectionId::DebugLine => true,
                SectionId::DebugStr => range.end - range.start > most_bytes / STRINGS_SHARE,
                _ => false,
            };
            in_parts.then_some(range)
        };
        let too_large = |bytes| Reason::TooLarge { what: "the debug information".into(), bytes };
        let held = NEEDED.iter().filter(|id| stored(**id).is_none()).map(|id| elf.size_of(id.name()));
        let held = held.fold(0, u64::saturating_add);
        if held > most_bytes {
            return Err(too_large(held));
        }
        let contents = NEEDED.map(|id| {
            let contents = stored(id).map(|range| Ok(Contents::Stored(range)));
            contents.unwrap_or_else(|| elf.read_named(id.name()).map(Contents::Held)).map(|each| (id, each))
        });
        let contents = contents.into_iter().collect::<Result<_, _>>()?;
        let sections = Self { contents, source, most_for_units: most_bytes - held };
        if sections.bytes() > MOST_BYTES { Err(too_large(sections.bytes())) } else { Ok(sections) }
    }

    /// The size of all sections, held or not.
    pub(super) fn bytes(&self) -> u64 {
        self.contents.iter().map(|(_, contents)| contents.len()).sum()
    }

    /// What the sections take of memory.
    pub(super) fn held_bytes(&self) -> u64 {
        self.contents.iter().map(|(_, contents)| contents.held().len() as u64).sum()
    }

    /// How many units of this size may be in memory at a time, each with its lines.
    pub(super) fn units_at_once(&self, unit_bytes: u64) -> u64 {
        if self.is_stored(SectionId::DebugInfo) {
            self.most_for_units / (2 * unit_bytes).max(1)
        } else {
            u64::MAX
        }
    }

    /// Takes this much for something else.
    pub(super) fn take(&mut self, bytes: u64) -> Result<(), Reason> {
        let left = self.most_for_units.checked_sub(bytes);
        let too_large = || Reason::TooLarge { what: "the index of the debug information".into(), bytes };
        self.most_for_units = left.ok_or_else(too_large)?;
        Ok(())
    }

    /// The size of the longest line program.
    pub(super) fn largest_lines(&self, budget: &Budget) -> gimli::Result<u64> {
        let len = self.get(SectionId::DebugLine).map_or(0, Contents::len);
        let (mut at, mut largest) = (0, 0);
        while at < len {
            budget.spend(LENGTH_FIELD as usize)?;
            let head = self.part(SectionId::DebugLine, at..len.min(at.saturating_add(LENGTH_FIELD)))?;
            let Some(end) = unit_length(&head).and_then(|length| at.checked_add(length)) else { break };
            largest = largest.max(end.min(len) - at);
            at = end;
        }
        Ok(largest)
    }

    /// Leaves this much for units, or half of what there is, and gives the rest away.
    pub(super) fn share(&mut self, for_units: u64) -> u64 {
        let given = self.most_for_units - for_units.min(self.most_for_units / 2);
        self.most_for_units -= given;
        given
    }

    /// What a package holds for the unit of this number. Its sections are those of many units, one after another.
    ///
    /// gimli's own way demands all that the index lists, such as locations of variables, which are not read here.
    pub(super) fn part_of<'a>(&'a self, unit: u64, budget: &'a Budget) -> Option<Dwarf<'a>> {
        let index = DebugCuIndex::from(self.bytes_of(SectionId::DebugCuIndex, budget)).index().ok()?;
        let parts: Vec<_> = index.sections(index.find(unit)?).ok()?.collect();
        let part = |id: SectionId| {
            let bytes = self.bytes_of(id, budget).slice();
            // Strings are shared, and not listed.
            let Some(listed) = parts.iter().find(|part| part.section.section_id() == id) else {
                return Some(bytes);
            };
            bytes.get(listed.offset as usize..)?.get(..listed.size as usize)
        };
        let section = |id| part(id).map(|bytes| Bytes::new(bytes, budget)).ok_or(());
        let needed = |id| if NEEDED_SPLIT.contains(&id) { section(id) } else { Ok(Bytes::new(&[], budget)) };
        gimli::Dwarf::load(needed).ok()
    }

    fn bytes_of<'a>(&'a self, id: SectionId, budget: &'a Budget) -> Bytes<'a> {
        Bytes::new(self.get(id).map_or(&[][..], Contents::held), budget)
    }

    fn get(&self, id: SectionId) -> Option<&Contents> {
        self.contents.iter().find(|(each, _)| *each == id).map(|(_, contents)| contents)
    }

    fn is_stored(&self, id: SectionId) -> bool {
        matches!(self.get(id), Some(Contents::Stored(_)))
    }

    /// Bytes of a section, which must lie in it.
    fn part(&self, id: SectionId, range: Range<u64>) -> gimli::Result<Cow<'_, [u8]>> {
        let len = usize::try_from(range.end.saturating_sub(range.start)).map_err(|_| Error::Io)?;
        match (self.get(id), &self.source) {
            (Some(Contents::Held(bytes)), _) => {
                let start = usize::try_from(range.start).map_err(|_| Error::Io)?;
                let part = bytes.get(start..).and_then(|rest| rest.get(..len));
                part.map(Cow::Borrowed).ok_or(Error::Io)
            }
            (Some(Contents::Stored(stored)), Some(source)) if range.end <= stored.end - stored.start => {
                let read = source.get().read_at(stored.start + range.start, len);
                read.map(Cow::Owned).map_err(|_| Error::Io)
            }
            _ => Err(Error::Io),
        }
    }

    /// The start of the unit of `.debug_info` at `at`, and where it ends; none at the section's end, or if that makes no
    /// sense.
    pub(super) fn unit_head(
        &self,
        at: u64,
        longest: u64,
        window: &mut Window,
    ) -> Option<(Cow<'_, [u8]>, Range<u64>)> {
        let len = self.get(SectionId::DebugInfo)?.len();
        let part = at..len.min(at.checked_add(longest)?);
        let head = match self.get(SectionId::DebugInfo)? {
            Contents::Held(_) => self.part(SectionId::DebugInfo, part).ok()?,
            Contents::Stored(_) => {
                if window.get(&part).is_none() {
                    let ahead = if at.saturating_sub(window.start) < SMALL_UNIT { AHEAD } else { longest };
                    let more = at..len.min(at.saturating_add(ahead).max(part.end));
                    window.bytes = self.part(SectionId::DebugInfo, more).ok()?.into_owned();
                    window.start = at;
                }
                Cow::Owned(window.get(&part)?.to_vec())
            }
        };
        let end = at.checked_add(unit_length(&head)?).filter(|&end| end <= len)?;
        Some((head, at..end))
    }

    /// A whole unit of `.debug_info`, or of `.debug_line`.
    pub(super) fn unit(&self, id: SectionId, at: u64) -> gimli::Result<Cow<'_, [u8]>> {
        let len = self.get(id).map_or(0, Contents::len);
        let head = self.part(id, at..len.min(at.saturating_add(LENGTH_FIELD)))?;
        let unit_length = unit_length(&head).ok_or(Error::Io)?;
        if self.is_stored(id) && unit_length > self.most_for_units / 2 {
            return Err(Error::Io);
        }
        self.part(id, at..at.checked_add(unit_length).ok_or(Error::Io)?)
    }

    /// The first abbreviation at `offset`, which is that of the root entry, as a rule: the others are many.
    pub(super) fn root_abbreviation(
        &self,
        offset: usize,
        budget: &Budget,
    ) -> gimli::Result<Arc<Abbreviations>> {
        let section = self.get(SectionId::DebugAbbrev).map_or(&[][..], Contents::held);
        let table = section.get(offset..).unwrap_or_default();
        let mut rest = Bytes::new(table, budget);
        let (_code, _tag, _children) = (rest.read_uleb128()?, rest.read_uleb128()?, rest.read_u8()?);
        loop {
            let (name, form) = (rest.read_uleb128_u16()?, rest.read_uleb128_u16()?);
            if gimli::DwForm(form) == gimli::DW_FORM_implicit_const {
                rest.read_sleb128()?;
            }
            if (name, form) == (0, 0) {
                break;
            }
        }
        let first = [&table[..table.len() - rest.len()], &[0]].concat();
        DebugAbbrev::from(Bytes::new(&first, budget)).abbreviations(DebugAbbrevOffset(0)).map(Arc::new)
    }

    /// The abbreviations at `offset`.
    pub(super) fn abbreviations(&self, offset: usize, budget: &Budget) -> gimli::Result<Arc<Abbreviations>> {
        let section = self.get(SectionId::DebugAbbrev).map_or(&[][..], Contents::held);
        let table = section.get(offset..).unwrap_or_default();
        let table = DebugAbbrev::from(Bytes::new(&table[..table.len().min(LONGEST_ABBREVIATIONS)], budget));
        table.abbreviations(DebugAbbrevOffset(0)).map(Arc::new)
    }

    /// A string, wherever it is.
    pub(super) fn string<'a>(
        &'a self,
        dwarf: &Dwarf<'a>,
        unit: &Unit<'a>,
        value: AttributeValue<Bytes<'a>>,
    ) -> Option<Cow<'a, [u8]>> {
        let offset = match value {
            AttributeValue::DebugStrRef(offset) if self.is_stored(SectionId::DebugStr) => offset,
            AttributeValue::DebugStrOffsetsIndex(index) if self.is_stored(SectionId::DebugStr) => {
                dwarf.string_offset(unit, index).ok()?
            }
            _ => return Some(Cow::Borrowed(dwarf.attr_string(unit, value).ok()?.slice())),
        };
        let len = self.get(SectionId::DebugStr)?.len();
        let start = offset.0 as u64;
        for longest in [STRING_AT_FIRST, LONGEST_STRING] {
            let end = len.min(start.checked_add(longest as u64)?);
            let mut bytes = self.part(SectionId::DebugStr, start..end).ok()?.into_owned();
            if let Some(end) = bytes.iter().position(|&byte| byte == 0) {
                bytes.truncate(end);
                return Some(Cow::Owned(bytes));
            }
        }
        None
    }

    /// The sections that are held, as gimli reads them.
    pub(super) fn dwarf<'a>(&'a self, alt: Option<&'a Self>, budget: &'a Budget) -> gimli::Dwarf<Bytes<'a>> {
        let load = |sections: &'a Self| {
            let section = |id| Ok::<_, std::convert::Infallible>(sections.bytes_of(id, budget));
            match gimli::Dwarf::load(section) {
                Ok(dwarf) => dwarf,
                Err(never) => match never {},
            }
        };
        let mut dwarf = load(self);
        if let Some(alt) = alt {
            dwarf.set_sup(load(alt));
        }
        dwarf
    }
}

impl Sections<'static> {
    /// How much those of a `.dwo` or a `.dwp` file take.
    pub(super) fn split_size(elf: &Elf<'_>) -> u64 {
        split_names().map(|(_, name)| elf.size_of(name)).fold(0, u64::saturating_add)
    }

    /// Those of a `.dwo` or a `.dwp` file, all held.
    pub(super) fn read_split(elf: &Elf<'_>) -> Result<Self, Reason> {
        let read = |(id, name)| Ok((id, Contents::Held(elf.read_named(name)?)));
        let contents = split_names().map(read).collect::<Result<_, Reason>>()?;
        Ok(Self { contents, source: None, most_for_units: 0 })
    }
}

fn split_names() -> impl Iterator<Item = (SectionId, &'static str)> {
    NEEDED_SPLIT.into_iter().filter_map(|id| Some((id, id.dwo_name()?)))
}

/// The bytes of a unit, which begins with their number.
fn unit_length(head: &[u8]) -> Option<u64> {
    match u32::from_le_bytes(*head.first_chunk()?) {
        u32::MAX => u64::from_le_bytes(*head.get(4..)?.first_chunk()?).checked_add(12),
        short => Some(u64::from(short) + 4),
    }
}
