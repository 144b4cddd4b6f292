//! The name of an entry, which may be kept at another one.

use std::sync::Arc;

use gimli::{AttributeValue, Reader, UnitOffset};

use super::bytes::SectionReader;
use super::kept::Unit;
use super::spelling::{Spelling, Steps};
use super::{Lookup, UnitPlace};
use crate::demangle::{try_demangle, with_generics};
use crate::qualified::qualified;

/// A concrete function refers to an abstract one, that to a declaration, each perhaps through an imported unit.
const MOST_HOPS: usize = 16;
const LONGEST_NAME: usize = 64 << 10;

/// A function's names in the debug information: at least one of linkage and plain.
#[derive(Debug, Default)]
pub(crate) struct FunctionName {
    /// The linker's name.
    pub(crate) linkage: Option<Arc<str>>,
    /// The same, demangled, or the plain name with what the linkage name says beside it.
    pub(crate) demangled: Option<Arc<str>>,
    /// Without a linkage name: the plain name with what the function is declared in.
    pub(crate) scoped: Option<Arc<str>>,
    /// Whether a symbol that is not mangled is that of a C function, whatever it is declared in.
    pub(crate) is_cpp: bool,
    /// The name in the source, without namespace and class.
    pub(crate) plain: Option<Arc<str>>,
    /// Whether the function is at address zero, where linkers leave what they drop.
    pub(super) is_dropped: bool,
    /// The line of the function's declaration.
    decl_line: Option<u32>,
}

impl FunctionName {
    /// Whether a call of this function in itself at a line is none: compilers split a function in two, and put its second part back. The
    /// call is then where the function begins.
    pub(super) fn is_own_part(&self, caller: &Self, line: Option<u32>) -> bool {
        let names = |name: &Self| (name.linkage.clone(), name.plain.clone());
        line.is_some() && line == caller.decl_line && names(self) == names(caller)
    }

    /// The name as a person reads it, as far as the debug information knows it.
    pub(crate) fn readable(&self) -> Option<&Arc<str>> {
        [&self.demangled, &self.scoped, &self.plain, &self.linkage].into_iter().flatten().next()
    }

    /// What the source's names take beside those that other functions share.
    fn held_bytes(&self) -> usize {
        let texts = [&self.linkage, &self.plain, &self.scoped].into_iter().flatten();
        size_of::<Self>() + texts.map(|text| text.len()).sum::<usize>()
    }
}

/// What one entry says about its name.
#[derive(Default)]
struct NameEntry<'s> {
    linkage: Option<Arc<str>>,
    plain: Option<Arc<str>>,
    decl_line: Option<u32>,
    is_dropped: bool,
    origin: Option<AttributeValue<SectionReader<'s>>>,
}

impl<'s> Lookup<'_, 's> {
    /// The names of the function at `entry`. Each is the first on the way from entry to entry; the way ends where there is
    /// a linkage name.
    pub(super) fn name(&self, place: UnitPlace, unit: usize, entry: usize) -> Option<Arc<FunctionName>> {
        self.name_with(place, unit, entry, None, &mut Steps::new())
    }

    /// The same with what is left of the steps that it may take, and the language of the function that is declared in it.
    pub(super) fn name_with(
        &self,
        place: UnitPlace,
        unit: usize,
        entry: usize,
        spelling: Option<Spelling>,
        steps: &mut Steps,
    ) -> Option<Arc<FunctionName>> {
        let key = (place, unit, entry);
        if let Some(known) = self.reader.kept.borrow().names.get(&key) {
            return known.clone();
        }
        let name = self.read_name(place, unit, entry, spelling, steps).map(Arc::new);
        let mut kept = self.reader.kept.borrow_mut();
        kept.count(name.as_ref().map_or(0, |name| name.held_bytes()) as u64);
        kept.names.insert(key, name.clone());
        name
    }

    fn read_name(
        &self,
        mut place: UnitPlace,
        mut unit: usize,
        mut entry: usize,
        spelling: Option<Spelling>,
        steps: &mut Steps,
    ) -> Option<FunctionName> {
        let (mut linkage, mut plain, mut decl_line, mut is_dropped) = (None, None, None, false);
        let first = (place, unit);
        for _ in 0..MOST_HOPS {
            let Ok(read) = self.unit(place, unit) else { break };
            let Some(found) = self.read_entry(place, &read, entry) else { break };
            is_dropped |= found.is_dropped;
            plain = plain.or(found.plain);
            decl_line = decl_line.or(found.decl_line);
            linkage = found.linkage;
            if linkage.is_some() {
                break;
            }
            let Some(next) = found.origin.and_then(|origin| self.follow(place, unit, origin)) else { break };
            (place, unit, entry) = next;
        }
        (linkage.is_some() || plain.is_some()).then(|| {
            let demangled = linkage.as_ref().and_then(|linkage| self.demangled(linkage));
            let demangled = match (&linkage, &plain, demangled) {
                (Some(linkage), Some(plain), None) => self.said_more(qualified(linkage, plain)),
                (Some(linkage), Some(plain), Some(demangled)) => {
                    self.said_more(with_generics(linkage, &demangled, plain)).or(Some(demangled))
                }
                (_, _, demangled) => demangled,
            };
            let mut name =
                FunctionName { linkage, demangled, plain, is_dropped, decl_line, ..FunctionName::default() };
            if let (None, Some(plain)) = (&name.linkage, &name.plain)
                && let Some(spelling) = spelling.or_else(|| self.spelling(first.0, first.1))
            {
                name.is_cpp = spelling == Spelling::Cpp;
                name.scoped = self.spelled((place, unit, entry), plain, spelling, steps).map(Arc::from);
            }
            name
        })
    }

    fn said_more(&self, name: Option<String>) -> Option<Arc<str>> {
        let name = name?;
        self.reader.kept.borrow_mut().count(name.len() as u64);
        Some(name.into())
    }

    fn demangled(&self, linkage: &Arc<str>) -> Option<Arc<str>> {
        if let Some(known) = self.reader.kept.borrow().demangled.get(linkage) {
            return known.clone();
        }
        let demangled: Option<Arc<str>> = try_demangle(linkage).map(Arc::from);
        let mut kept = self.reader.kept.borrow_mut();
        kept.count(demangled.as_ref().map_or(0, |name| name.len()) as u64);
        kept.demangled.insert(Arc::clone(linkage), demangled.clone());
        demangled
    }

    fn read_entry(&self, place: UnitPlace, unit: &Unit<'s>, entry: usize) -> Option<NameEntry<'s>> {
        let dwarf = self.dwarf(place);
        // An offset outside the unit is refused here.
        UnitOffset(entry).is_in_bounds(&unit.header).then_some(())?;
        let mut entries = unit.entries_raw(Some(UnitOffset(entry))).ok()?;
        let abbreviation = entries.read_abbreviation().ok()??;
        let string = |value| text(&dwarf.attr_string(unit, value).ok()?);
        let mut found = NameEntry::default();
        for spec in abbreviation.attributes() {
            let attribute = entries.read_attribute(*spec).ok()?;
            match attribute.name() {
                gimli::DW_AT_linkage_name | gimli::DW_AT_MIPS_linkage_name => {
                    found.linkage = string(attribute.value());
                }
                gimli::DW_AT_name => found.plain = string(attribute.value()),
                gimli::DW_AT_decl_line => {
                    found.decl_line = attribute.udata_value().and_then(|line| u32::try_from(line).ok());
                }
                gimli::DW_AT_low_pc => {
                    found.is_dropped = dwarf.attr_address(unit, attribute.value()) == Ok(Some(0));
                }
                gimli::DW_AT_abstract_origin | gimli::DW_AT_specification => {
                    found.origin = Some(attribute.value())
                }
                _ => {}
            }
        }
        Some(found)
    }

    /// Where a reference from `unit` leads.
    pub(super) fn follow(
        &self,
        place: UnitPlace,
        unit: usize,
        to: AttributeValue<SectionReader<'_>>,
    ) -> Option<(UnitPlace, usize, usize)> {
        let (place, offset) = match to {
            AttributeValue::UnitRef(offset) => return Some((place, unit, offset.0)),
            AttributeValue::DebugInfoRef(offset) => (place, offset.0),
            AttributeValue::DebugInfoRefSup(offset) if place == UnitPlace::Main => (UnitPlace::Alt, offset.0),
            _ => return None,
        };
        let index = self.index(place)?;
        let unit = index.unit_at(offset)?;
        Some((place, unit, offset - index.range(unit)?.start))
    }
}

pub(super) fn text(bytes: &SectionReader<'_>) -> Option<Arc<str>> {
    if bytes.len() > LONGEST_NAME || bytes.is_empty() {
        return None;
    }
    Some(Arc::from(&*bytes.to_string_lossy().ok()?))
}
