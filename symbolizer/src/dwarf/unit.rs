//! One unit: what its root entry says, which is all that reading its other entries needs.

use std::sync::Arc;

use gimli::{
    Abbreviations, AttributeValue, DebugAbbrev, DebugAbbrevOffset, DebugInfoOffset, DebugLineOffset,
    DwarfFileType, Error, Reader, Section, UnitHeader, UnitType,
};

use super::ranges::RangeAttributes;
use super::reader::{Budget, Bytes};
use super::sections::LONGEST_ABBREVIATIONS;
use super::split::Link;

pub(super) type Dwarf<'a> = gimli::Dwarf<Bytes<'a>>;
pub(super) type Unit<'a> = gimli::Unit<Bytes<'a>>;
pub(super) type Attribute<'a> = gimli::Attribute<Bytes<'a>>;

/// A unit without its borrowed parts, so that it can be kept.
pub(super) struct UnitInfo {
    offset: usize,
    version: u16,
    abbreviations: Arc<Abbreviations>,
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

impl UnitInfo {
    /// Reads a unit's root entry, and hands the unit's address ranges to `range`.
    pub(super) fn read<'a>(
        dwarf: &Dwarf<'a>,
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
            let text = value.and_then(|value| dwarf.attr_string(&unit, value).ok());
            let text = text.filter(|text| text.len() <= super::lines::LONGEST_PATH);
            text.and_then(|text| Some(text.to_string_lossy().ok()?.into_owned()))
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
            offset,
            version: unit.header.version(),
            abbreviations,
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
    pub(super) fn unit<'a>(&self, dwarf: &Dwarf<'a>) -> gimli::Result<Unit<'a>> {
        let header = dwarf.unit_header(DebugInfoOffset(self.offset))?;
        let mut unit = bare(dwarf, header, Arc::clone(&self.abbreviations));
        unit.low_pc = self.low_pc;
        unit.str_offsets_base = self.str_offsets_base;
        unit.addr_base = self.addr_base;
        unit.rnglists_base = self.rnglists_base;
        Ok(unit)
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
pub(super) fn abbreviations(dwarf: &Dwarf<'_>, offset: usize) -> gimli::Result<Arc<Abbreviations>> {
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
