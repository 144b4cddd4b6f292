//! The DWARF sections of an object: the small ones held in memory, the large ones read unit by unit.

use std::ops::Range;
use std::sync::Arc;

use gimli::{DebugCuIndex, Error, SectionId};

use super::bytes::{DwarfSection, SectionReader};
use crate::elf::Elf;
use crate::reason::Reason;
use crate::source::ByteSource;

pub(super) type Dwarf<'s> = gimli::Dwarf<SectionReader<'s>>;

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
/// Bytes that are read at once of sections that are not held: enough for the head of a unit, for a
/// short line program, and for most names.
const INFO_PIECE: usize = 4 << 10;
const LINE_PIECE: usize = 32 << 10;
const STRING_PIECE: usize = 512;
/// Strings are held up to this share of what may be held: each name is one, and reading them one by one takes longer.
const STRINGS_SHARE: u64 = 4;
/// All sections of an object, held or not: reading more takes minutes.
const MOST_BYTES: u64 = 4 << 30;

/// An abbreviation without attributes or children, and the end of its table.
const BARE_ENTRY: [u8; 6] = [1, 0x3c, 0, 0, 0, 0];
/// Codes of such entries.
const BARE_ENTRIES: [u8; 16] = [1; 16];
/// The header of a unit of DWARF 4, and one entry: no unit is shorter.
const SHORTEST_UNIT: usize = 12;

/// An object's sections.
pub(super) struct Sections<'s> {
    contents: Vec<(SectionId, Arc<DwarfSection<'s>>)>,
    /// Where among the abbreviations [`BARE_ENTRY`] is.
    bare_entry: usize,
    /// What units may take beside the sections that are held.
    most_for_units: u64,
}

impl<'s> Sections<'s> {
    /// Reads the sections that are to be held, unless they take more than `most_bytes` together. The others stay where
    /// they are in `source`; without it all are held.
    pub(super) fn read(
        elf: &Elf<'_>,
        source: Option<ByteSource<'s>>,
        most_bytes: u64,
    ) -> Result<Self, Reason> {
        let stored = |id: SectionId| {
            let range = elf.stored(id.name())?;
            let piece = match id {
                SectionId::DebugInfo => INFO_PIECE,
                SectionId::DebugLine => LINE_PIECE,
                SectionId::DebugStr if range.end - range.start > most_bytes / STRINGS_SHARE => STRING_PIECE,
                _ => return None,
            };
            let len = usize::try_from(range.end - range.start).ok()?;
            Some(DwarfSection::stored(source.clone()?, range.start, len, piece))
        };
        let too_large = |bytes| Reason::TooLarge { what: "the debug information".into(), bytes };
        let held = NEEDED.iter().filter(|id| stored(**id).is_none()).map(|id| elf.size_of(id.name()));
        let held = held.fold(0, u64::saturating_add);
        if held > most_bytes {
            return Err(too_large(held));
        }
        let contents = NEEDED.map(|id| match stored(id) {
            Some(section) => Ok((id, section)),
            None => Ok((id, DwarfSection::held(elf.read_named(id.name())?))),
        });
        let contents = contents.into_iter().collect::<Result<_, Reason>>()?;
        let sections = Self::new(contents, most_bytes - held);
        if sections.bytes() > MOST_BYTES { Err(too_large(sections.bytes())) } else { Ok(sections) }
    }

    fn new(contents: Vec<(SectionId, DwarfSection<'s>)>, most_for_units: u64) -> Self {
        let mut bare_entry = 0;
        let contents = contents.into_iter().map(|(id, mut section)| {
            section.is_zero_dropped = id == SectionId::DebugLine;
            if id == SectionId::DebugAbbrev {
                bare_entry = section.append(&BARE_ENTRY);
            }
            (id, Arc::new(section))
        });
        Self { contents: contents.collect(), bare_entry, most_for_units }
    }

    /// The size of all sections, held or not.
    pub(super) fn bytes(&self) -> u64 {
        self.contents.iter().map(|(_, section)| section.len() as u64).sum()
    }

    /// What the sections take of memory.
    pub(super) fn held_bytes(&self) -> u64 {
        self.contents.iter().map(|(_, section)| section.held_bytes() as u64).sum()
    }

    /// How many units that take this much may be in memory at a time.
    pub(super) fn units_at_once(&self, unit_bytes: u64) -> u64 {
        self.most_for_units / unit_bytes.max(1)
    }

    /// Takes this much for something else.
    pub(super) fn take(&mut self, bytes: u64) -> Result<(), Reason> {
        let left = self.most_for_units.checked_sub(bytes);
        let too_large = || Reason::TooLarge { what: "the index of the debug information".into(), bytes };
        self.most_for_units = left.ok_or_else(too_large)?;
        Ok(())
    }

    /// Leaves this much for units, or half of what there is, and gives the rest away.
    pub(super) fn share(&mut self, for_units: u64) -> u64 {
        let given = self.most_for_units - for_units.min(self.most_for_units / 2);
        self.most_for_units -= given;
        given
    }

    fn get(&self, id: SectionId) -> Option<&Arc<DwarfSection<'s>>> {
        self.contents.iter().find(|(each, _)| *each == id).map(|(_, section)| section)
    }

    fn bytes_of(&self, id: SectionId) -> SectionReader<'s> {
        SectionReader::new(self.get(id).unwrap_or(&Arc::new(DwarfSection::held(Vec::new()))))
    }

    /// All sections. The object that this one shares entries with is at `alt`.
    pub(super) fn dwarf(&self, alt: Option<&Self>) -> Dwarf<'s> {
        let mut dwarf = load(|id| self.bytes_of(id));
        if let Some(alt) = alt {
            dwarf.set_sup(load(|id| alt.bytes_of(id)));
        }
        dwarf
    }

    /// The same with one unit alone, for `addr2line`, which takes all units that there are into memory. In place of the others
    /// stands a unit of entries that say nothing: whatever refers to one of them finds an entry, and no name.
    pub(super) fn dwarf_of(&self, unit: &Range<usize>, alt: Option<&Self>) -> gimli::Result<Dwarf<'s>> {
        let len = self.get(SectionId::DebugInfo).map_or(0, |section| section.len());
        let entries = self.get(SectionId::DebugInfo).ok_or(Error::Io)?.read(unit.start, unit.len())?;
        let mut parts = vec![(unit.start, entries)];
        if unit.start > 0 {
            parts.insert(0, (0, self.bare_unit(unit.start)?));
        }
        if len - unit.end >= SHORTEST_UNIT {
            parts.push((unit.end, self.bare_unit(len - unit.end)?));
        }
        let mut dwarf = self.dwarf_with(parts, len);
        if let Some(alt) = alt {
            let len = alt.get(SectionId::DebugInfo).map_or(0, |section| section.len());
            dwarf.set_sup(alt.dwarf_with(vec![(0, alt.bare_unit(len)?)], len));
        }
        Ok(dwarf)
    }

    /// All sections but for the entries: the units at these offsets.
    fn dwarf_with(&self, units: Vec<(usize, Arc<[u8]>)>, len: usize) -> Dwarf<'s> {
        let units = DwarfSection::of_parts(units, Arc::new(BARE_ENTRIES), len);
        let units = SectionReader::new(&Arc::new(units));
        load(|id| if id == SectionId::DebugInfo { units.clone() } else { self.bytes_of(id) })
    }

    /// The header of a unit of so many bytes, all of them [`BARE_ENTRIES`], as DWARF 4 has it.
    fn bare_unit(&self, len: usize) -> gimli::Result<Arc<[u8]>> {
        let length =
            u32::try_from(len.checked_sub(4).ok_or(Error::Io)?).ok().filter(|&len| len < 0xffff_fff0);
        let length = length.filter(|_| len >= SHORTEST_UNIT).ok_or(Error::Io)?;
        let abbreviations = u32::try_from(self.bare_entry).map_err(|_| Error::Io)?;
        let header = [&length.to_le_bytes()[..], &[4, 0], &abbreviations.to_le_bytes(), &[8]];
        Ok(header.concat().into())
    }

    /// What a package holds for the unit of this number. Its sections are those of many units, one after another.
    ///
    /// gimli's own way demands all that the index lists, such as locations of variables, which are not read here.
    pub(super) fn part_of(&self, unit: u64) -> Option<Dwarf<'s>> {
        let index = DebugCuIndex::from(self.bytes_of(SectionId::DebugCuIndex)).index().ok()?;
        let parts: Vec<_> = index.sections(index.find(unit)?).ok()?.collect();
        let part = |id: SectionId| {
            let bytes = self.bytes_of(id);
            // Strings are shared, and not listed.
            let Some(listed) = parts.iter().find(|part| part.section.section_id() == id) else {
                return Some(bytes);
            };
            bytes.part(listed.offset as usize, listed.size as usize)
        };
        let needed = |id| if NEEDED_SPLIT.contains(&id) { part(id).ok_or(()) } else { Ok(nothing()) };
        gimli::Dwarf::load(needed).ok()
    }
}

fn nothing<'s>() -> SectionReader<'s> {
    SectionReader::new(&Arc::new(DwarfSection::held(Vec::new())))
}

fn load<'s>(section: impl Fn(SectionId) -> SectionReader<'s>) -> Dwarf<'s> {
    match gimli::Dwarf::load(|id| Ok::<_, std::convert::Infallible>(section(id))) {
        Ok(dwarf) => dwarf,
        Err(never) => match never {},
    }
}

impl Sections<'static> {
    /// How much those of a `.dwo` or a `.dwp` file take.
    pub(super) fn split_size(elf: &Elf<'_>) -> u64 {
        split_names().map(|(_, name)| elf.size_of(name)).fold(0, u64::saturating_add)
    }

    /// Those of a `.dwo` or a `.dwp` file, all held.
    pub(super) fn read_split(elf: &Elf<'_>) -> Result<Self, Reason> {
        let read = |(id, name)| Ok((id, DwarfSection::held(elf.read_named(name)?)));
        let contents = split_names().map(read).collect::<Result<_, Reason>>()?;
        Ok(Self::new(contents, 0))
    }
}

fn split_names() -> impl Iterator<Item = (SectionId, &'static str)> {
    NEEDED_SPLIT.into_iter().filter_map(|id| Some((id, id.dwo_name()?)))
}
