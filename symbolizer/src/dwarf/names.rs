//! The name of an entry, which may be kept at another one.

use std::sync::Arc;

use gimli::{AttributeValue, Reader, UnitOffset};

use super::reader::Bytes;
use super::{DebugInfo, Place};

/// A concrete function refers to an abstract one, that to a declaration, each perhaps through an imported unit.
const MOST_HOPS: usize = 16;
const LONGEST_NAME: usize = 64 << 10;

/// A function's names in the debug information: at least one.
#[derive(Debug, Clone)]
pub(crate) struct FunctionName {
    /// The linker's name.
    pub(crate) linkage: Option<Arc<str>>,
    /// The name in the source, without namespace and class.
    pub(crate) plain: Option<Arc<str>>,
}

/// What one entry says about its name.
#[derive(Default)]
struct Entry<'a> {
    linkage: Option<Bytes<'a>>,
    plain: Option<Bytes<'a>>,
    origin: Option<AttributeValue<Bytes<'a>>>,
}

impl DebugInfo {
    /// The names of the function at `entry`. Each is the first on the way from entry to entry; the way ends where there is
    /// a linkage name.
    pub(super) fn name(&self, place: Place, unit: usize, entry: usize) -> Option<FunctionName> {
        let key = (place, unit, entry);
        if let Some(known) = self.kept.borrow().names.get(&key) {
            return known.clone();
        }
        let before = self.budget.left();
        let name = self.read_name(place, unit, entry);
        let mut kept = self.kept.borrow_mut();
        kept.count(before.saturating_sub(self.budget.left()));
        kept.names.insert(key, name.clone());
        name
    }

    fn read_name(&self, mut place: Place, mut unit: usize, mut entry: usize) -> Option<FunctionName> {
        let mut name = FunctionName { linkage: None, plain: None };
        for _ in 0..MOST_HOPS {
            let Some(found) = self.read_entry(place, unit, entry) else { break };
            name.plain = name.plain.or_else(|| found.plain.and_then(text));
            name.linkage = found.linkage.and_then(text);
            if name.linkage.is_some() {
                break;
            }
            let Some(next) = found.origin.and_then(|origin| self.follow(place, unit, origin)) else { break };
            (place, unit, entry) = next;
        }
        (name.linkage.is_some() || name.plain.is_some()).then_some(name)
    }

    fn read_entry(&self, place: Place, unit: usize, entry: usize) -> Option<Entry<'_>> {
        let dwarf = self.dwarf(place);
        let unit = self.unit(&dwarf, place, unit).ok()?.unit(&dwarf).ok()?;
        // An offset outside the unit is refused here.
        UnitOffset(entry).is_in_bounds(&unit.header).then_some(())?;
        let mut entries = unit.header.entries_raw(&unit.abbreviations, Some(UnitOffset(entry))).ok()?;
        let abbreviation = entries.read_abbreviation().ok()??;
        self.budget.spend(abbreviation.attributes().len()).ok()?;
        let mut found = Entry::default();
        for spec in abbreviation.attributes() {
            let attribute = entries.read_attribute(*spec).ok()?;
            match attribute.name() {
                gimli::DW_AT_linkage_name | gimli::DW_AT_MIPS_linkage_name => {
                    found.linkage = dwarf.attr_string(&unit, attribute.value()).ok();
                }
                gimli::DW_AT_name => found.plain = dwarf.attr_string(&unit, attribute.value()).ok(),
                gimli::DW_AT_abstract_origin | gimli::DW_AT_specification => {
                    found.origin = Some(attribute.value())
                }
                _ => {}
            }
        }
        Some(found)
    }

    /// Where a reference from `unit` leads.
    fn follow(
        &self,
        place: Place,
        unit: usize,
        to: AttributeValue<Bytes<'_>>,
    ) -> Option<(Place, usize, usize)> {
        let (place, offset) = match to {
            AttributeValue::UnitRef(offset) => return Some((place, unit, offset.0)),
            AttributeValue::DebugInfoRef(offset) => (place, offset.0),
            AttributeValue::DebugInfoRefSup(offset) if place == Place::Main => (Place::Alt, offset.0),
            _ => return None,
        };
        let index = self.index(place)?;
        let unit = index.unit_at(offset)?;
        Some((place, unit, offset - index.offset(unit)?))
    }
}

fn text(bytes: Bytes<'_>) -> Option<Arc<str>> {
    if bytes.len() > LONGEST_NAME || bytes.is_empty() {
        return None;
    }
    Some(Arc::from(bytes.to_string_lossy().ok()?))
}
