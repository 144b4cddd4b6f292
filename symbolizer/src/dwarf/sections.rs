//! The DWARF sections of an object, held in memory.

use std::sync::Arc;

use gimli::{Abbreviations, DebugAbbrev, DebugAbbrevOffset, DebugCuIndex, SectionId};

use super::reader::{Budget, Bytes};
use crate::elf::Elf;
use crate::reason::Reason;

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
/// All sections of one object together.
const MOST_BYTES: u64 = 2 << 30;

pub(super) struct Sections(Vec<(SectionId, Vec<u8>)>);

impl Sections {
    pub(super) fn read(elf: &Elf<'_>) -> Result<Self, Reason> {
        Self::read_named(elf, NEEDED.map(|id| (id, Some(id.name()))))
    }

    /// Those of a `.dwo` or a `.dwp` file.
    pub(super) fn read_split(elf: &Elf<'_>) -> Result<Self, Reason> {
        Self::read_named(elf, NEEDED_SPLIT.map(|id| (id, id.dwo_name())))
    }

    fn read_named<const N: usize>(
        elf: &Elf<'_>,
        named: [(SectionId, Option<&str>); N],
    ) -> Result<Self, Reason> {
        let mut sections = Self(Vec::new());
        for (id, name) in named {
            sections.0.push((id, name.map_or(Ok(Vec::new()), |name| elf.read_named(name))?));
            if sections.bytes() > MOST_BYTES {
                return Err(Reason::TooLarge {
                    what: "the debug information".into(),
                    bytes: sections.bytes(),
                });
            }
        }
        Ok(sections)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().map(|(_, bytes)| bytes.len() as u64).sum()
    }

    pub(super) fn get(&self, id: SectionId) -> &[u8] {
        self.0.iter().find(|(each, _)| *each == id).map_or(&[], |(_, bytes)| bytes)
    }

    /// What a package holds for the unit of this number. Its sections are those of many units, one after another.
    ///
    /// gimli's own way demands all that the index lists, such as locations of variables, which are not read here.
    pub(super) fn part_of<'a>(&'a self, unit: u64, budget: &'a Budget) -> Option<gimli::Dwarf<Bytes<'a>>> {
        let index = DebugCuIndex::from(Bytes::new(self.get(SectionId::DebugCuIndex), budget)).index().ok()?;
        let parts: Vec<_> = index.sections(index.find(unit)?).ok()?.collect();
        let part = |id: SectionId| {
            let bytes = self.get(id);
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

    /// The abbreviations at `offset`.
    pub(super) fn abbreviations(&self, offset: usize, budget: &Budget) -> gimli::Result<Arc<Abbreviations>> {
        let section = self.get(SectionId::DebugAbbrev).get(offset..).unwrap_or_default();
        let table =
            DebugAbbrev::from(Bytes::new(&section[..section.len().min(LONGEST_ABBREVIATIONS)], budget));
        table.abbreviations(DebugAbbrevOffset(0)).map(Arc::new)
    }

    /// The sections as gimli reads them. It only borrows, so it can be made anew for each address.
    pub(super) fn dwarf<'a>(&'a self, alt: Option<&'a Self>, budget: &'a Budget) -> gimli::Dwarf<Bytes<'a>> {
        let load = |sections: &'a Self| {
            let section = |id| Ok::<_, std::convert::Infallible>(Bytes::new(sections.get(id), budget));
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
