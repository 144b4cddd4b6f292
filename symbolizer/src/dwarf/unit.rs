//! One unit: what its root entry says, which is all that reading its other entries needs.

use std::borrow::Cow;
use std::sync::Arc;

use gimli::{
    Abbreviations, AttributeValue, DebugAbbrev, DebugAbbrevOffset, DebugInfo, DebugInfoOffset,
    DebugLineOffset, DwarfFileType, Error, Reader, Section, SectionId, UnitHeader, UnitType,
};

use super::kept::Held;
use super::ranges::RangeAttributes;
use super::reader::{Budget, Bytes};
use super::sections::{LONGEST_ABBREVIATIONS, Sections};
use super::split::Link;

pub(super) type Dwarf<'a> = gimli::Dwarf<Bytes<'a>>;
pub(super) type Unit<'a> = gimli::Unit<Bytes<'a>>;
pub(super) type Attribute<'a> = gimli::Attribute<Bytes<'a>>;

/// What abbreviations take for each byte of theirs, once they are parsed.
const ABBREVIATION_BYTES: usize = 16;

/// A unit without its borrowed parts, so that it can be kept.
pub(super) struct UnitInfo {
    entries: Entries,
    version: u16,
    abbreviations: Arc<Abbreviations>,
    /// What these take, if they were read for this unit.
    abbreviation_bytes: usize,
    low_pc: u64,
    str_offsets_base: gimli::DebugStrOffsetsBase<usize>,
    addr_base: gimli::DebugAddrBase<usize>,
    rnglists_base: gimli::DebugRngListsBase<usize>,
    pub(super) comp_dir: Option<String>,
    pub(super) lines: Option<DebugLineOffset>,
    pub(super) has_code: bool,
    /// If the unit is half of one.
    pub(super) link: Option<Link>,
}

/// Where a unit's bytes are.
enum Entries {
    /// In `.debug_info`, which is held.
    At(usize),
    /// Read for this unit.
    Read(Vec<u8>),
}

/// The header of the unit that `bytes` begin with.
pub(super) fn header<'a>(bytes: &'a [u8], budget: &'a Budget) -> gimli::Result<UnitHeader<Bytes<'a>>> {
    DebugInfo::from(Bytes::new(bytes, budget)).units().next()?.ok_or(Error::MissingUnitDie)
}

impl UnitInfo {
    /// Reads the unit at an offset of `.debug_info`.
    pub(super) fn read_at(
        dwarf: &Dwarf<'_>,
        sections: &Sections<'_>,
        offset: usize,
        budget: &Budget,
        abbreviations: impl FnOnce(usize) -> gimli::Result<Arc<Abbreviations>>,
    ) -> gimli::Result<Self> {
        let bytes = sections.unit(SectionId::DebugInfo, offset as u64)?;
        let header = header(&bytes, budget)?;
        let before = budget.spent();
        let abbreviations = abbreviations(header.debug_abbrev_offset().0)?;
        let abbreviation_bytes = ABBREVIATION_BYTES * (budget.spent() - before) as usize;
        let info = Self::read(dwarf, sections, header, abbreviations, budget, |_, _| Ok(()))?;
        if let Cow::Owned(_) = bytes {
            budget.spend(bytes.len())?;
        }
        Ok(Self { abbreviation_bytes, ..info.with_bytes(offset, bytes) })
    }

    /// Reads the unit at an offset of a file with the other halves of units, of which all sections are held.
    pub(super) fn read_split(
        dwarf: &Dwarf<'_>,
        sections: &Sections<'_>,
        offset: usize,
        budget: &Budget,
    ) -> gimli::Result<Self> {
        let header = dwarf.unit_header(DebugInfoOffset(offset))?;
        let before = budget.spent();
        let abbreviations = abbreviations(dwarf, header.debug_abbrev_offset().0)?;
        let abbreviation_bytes = ABBREVIATION_BYTES * (budget.spent() - before) as usize;
        let info = Self::read(dwarf, sections, header, abbreviations, budget, |_, _| Ok(()))?;
        Ok(Self { abbreviation_bytes, ..info })
    }

    /// Says where the unit's bytes are from here on.
    pub(super) fn with_bytes(self, offset: usize, bytes: Cow<'_, [u8]>) -> Self {
        let entries = match bytes {
            Cow::Borrowed(_) => Entries::At(offset),
            Cow::Owned(bytes) => Entries::Read(bytes),
        };
        Self { entries, ..self }
    }

    /// Reads a unit's root entry, and hands the unit's address ranges to `range`.
    pub(super) fn read<'a>(
        dwarf: &Dwarf<'a>,
        sections: &'a Sections<'_>,
        header: UnitHeader<Bytes<'a>>,
        abbreviations: Arc<Abbreviations>,
        budget: &Budget,
        range: impl FnMut(u64, u64) -> gimli::Result<()>,
    ) -> gimli::Result<Self> {
        let offset = header.debug_info_offset().ok_or(Error::MissingUnitDie)?.0;
        let mut unit = bare(dwarf, header, Arc::clone(&abbreviations));
        let mut root = Root::default();
        let mut entries = unit.header.entries_raw(&abbreviations, None)?;
        let abbreviation = entries.read_abbreviation()?.ok_or(Error::MissingUnitDie)?;
        budget.spend(abbreviation.attributes().len())?;
        for spec in abbreviation.attributes() {
            root.note(&mut unit, &entries.read_attribute(*spec)?);
        }
        let text = |value: Option<_>| {
            let text = value.and_then(|value| sections.string(dwarf, &unit, value));
            let text = text.filter(|text| text.len() <= super::lines::LONGEST_PATH);
            text.map(|text| String::from_utf8_lossy(&text).into_owned())
        };
        let (comp_dir, file) = (text(root.comp_dir), text(root.split_file));
        let link = root.split_id.or(split_id(&unit.header)).map(|id| Link { id, file });
        // The addresses of a split unit are its skeleton's.
        if dwarf.file_type == DwarfFileType::Main {
            if let Some(low_pc) = root.ranges.low_pc(dwarf, &unit) {
                unit.low_pc = low_pc;
            }
            root.ranges.for_each(dwarf, &unit, budget, range)?;
        }
        let tag = abbreviation.tag();
        Ok(Self {
            entries: Entries::At(offset),
            version: unit.header.version(),
            abbreviations,
            abbreviation_bytes: 0,
            low_pc: unit.low_pc,
            str_offsets_base: unit.str_offsets_base,
            addr_base: unit.addr_base,
            rnglists_base: unit.rnglists_base,
            comp_dir,
            lines: root.lines,
            has_code: matches!(tag, gimli::DW_TAG_compile_unit | gimli::DW_TAG_skeleton_unit),
            link,
        })
    }

    /// Takes from its skeleton what only the linker knew.
    pub(super) fn complete(mut self, skeleton: &Self) -> Self {
        self.low_pc = skeleton.low_pc;
        self.addr_base = skeleton.addr_base;
        if self.version < 5 {
            self.rnglists_base = skeleton.rnglists_base;
        }
        self
    }

    /// The unit as gimli knows it. Its line program is left out, since that is read only once.
    pub(super) fn unit<'a>(&'a self, dwarf: &Dwarf<'a>, budget: &'a Budget) -> gimli::Result<Unit<'a>> {
        let header = match &self.entries {
            Entries::At(offset) => dwarf.unit_header(DebugInfoOffset(*offset))?,
            Entries::Read(bytes) => header(bytes, budget)?,
        };
        let mut unit = bare(dwarf, header, Arc::clone(&self.abbreviations));
        unit.low_pc = self.low_pc;
        unit.str_offsets_base = self.str_offsets_base;
        unit.addr_base = self.addr_base;
        unit.rnglists_base = self.rnglists_base;
        Ok(unit)
    }
}

impl Held for UnitInfo {
    fn held_bytes(&self) -> usize {
        let entries = if let Entries::Read(bytes) = &self.entries { bytes.len() } else { 0 };
        entries + self.abbreviation_bytes + self.comp_dir.as_ref().map_or(0, String::len)
    }
}

/// The attributes of a root entry that can only be read once all bases are known.
#[derive(Default)]
struct Root<'a> {
    comp_dir: Option<AttributeValue<Bytes<'a>>>,
    lines: Option<DebugLineOffset>,
    split_file: Option<AttributeValue<Bytes<'a>>>,
    split_id: Option<u64>,
    ranges: RangeAttributes<'a>,
}

impl<'a> Root<'a> {
    fn note(&mut self, unit: &mut Unit<'a>, attribute: &Attribute<'a>) {
        match (attribute.name(), attribute.value()) {
            (gimli::DW_AT_comp_dir, value) => self.comp_dir = Some(value),
            (gimli::DW_AT_stmt_list, AttributeValue::DebugLineRef(offset)) => self.lines = Some(offset),
            (gimli::DW_AT_dwo_name | gimli::DW_AT_GNU_dwo_name, value) => self.split_file = Some(value),
            (_, AttributeValue::DwoId(id)) => self.split_id = Some(id.0),
            (_, AttributeValue::DebugStrOffsetsBase(base)) => unit.str_offsets_base = base,
            (_, AttributeValue::DebugAddrBase(base)) => unit.addr_base = base,
            (_, AttributeValue::DebugRngListsBase(base)) => unit.rnglists_base = base,
            _ => self.ranges.note(attribute),
        }
    }
}

/// The abbreviations at `offset`, in whichever file.
fn abbreviations(dwarf: &Dwarf<'_>, offset: usize) -> gimli::Result<Arc<Abbreviations>> {
    let mut table = *dwarf.debug_abbrev.reader();
    table.skip(offset)?;
    table.truncate(table.len().min(LONGEST_ABBREVIATIONS))?;
    DebugAbbrev::from(table).abbreviations(DebugAbbrevOffset(0)).map(Arc::new)
}

fn split_id(header: &UnitHeader<Bytes<'_>>) -> Option<u64> {
    match header.type_() {
        UnitType::Skeleton(id) | UnitType::SplitCompilation(id) => Some(id.0),
        _ => None,
    }
}

fn bare<'a>(dwarf: &Dwarf<'a>, header: UnitHeader<Bytes<'a>>, abbreviations: Arc<Abbreviations>) -> Unit<'a> {
    let (encoding, file) = (header.encoding(), dwarf.file_type);
    gimli::Unit {
        abbreviations,
        name: None,
        comp_dir: None,
        low_pc: 0,
        str_offsets_base: gimli::DebugStrOffsetsBase::default_for_encoding_and_file(encoding, file),
        addr_base: gimli::DebugAddrBase(0),
        loclists_base: gimli::DebugLocListsBase::default_for_encoding_and_file(encoding, file),
        rnglists_base: gimli::DebugRngListsBase::default_for_encoding_and_file(encoding, file),
        line_program: None,
        dwo_id: None,
        header,
    }
}
