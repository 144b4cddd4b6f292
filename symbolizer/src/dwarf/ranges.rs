//! The addresses an entry covers.

use gimli::AttributeValue;

use super::reader::{Budget, Bytes};
use super::unit::{Attribute, Dwarf, Unit};

/// What keeping a range costs.
const RANGE_WORK: usize = 8;

/// The attributes that say which addresses an entry covers.
#[derive(Default)]
pub(super) struct RangeAttributes<'a> {
    low: Option<AttributeValue<Bytes<'a>>>,
    high: Option<AttributeValue<Bytes<'a>>>,
    list: Option<AttributeValue<Bytes<'a>>>,
}

impl<'a> RangeAttributes<'a> {
    pub(super) fn note(&mut self, attribute: &Attribute<'a>) {
        match attribute.name() {
            gimli::DW_AT_low_pc => self.low = Some(attribute.value()),
            gimli::DW_AT_high_pc => self.high = Some(attribute.value()),
            gimli::DW_AT_ranges => self.list = Some(attribute.value()),
            _ => {}
        }
    }

    pub(super) fn low_pc(&self, dwarf: &Dwarf<'a>, unit: &Unit<'a>) -> Option<u64> {
        dwarf.attr_address(unit, self.low?).ok().flatten()
    }

    /// Calls `range` with each start and end.
    pub(super) fn for_each(
        self,
        dwarf: &Dwarf<'a>,
        unit: &Unit<'a>,
        budget: &Budget,
        mut range: impl FnMut(u64, u64) -> gimli::Result<()>,
    ) -> gimli::Result<()> {
        let mut each = |start: u64, end: u64| {
            // Linkers leave functions they dropped at address zero.
            if start == 0 || start >= end {
                return Ok(());
            }
            budget.spend(RANGE_WORK)?;
            range(start, end)
        };
        if let Some(list) = self.list {
            let Some(offset) = dwarf.attr_ranges_offset(unit, list)? else { return Ok(()) };
            let mut ranges = dwarf.ranges(unit, offset)?;
            while let Some(found) = ranges.next()? {
                each(found.begin, found.end)?;
            }
            return Ok(());
        }
        let Some(low) = self.low_pc(dwarf, unit) else { return Ok(()) };
        let high = match self.high {
            Some(AttributeValue::Udata(size)) => low.wrapping_add(size),
            Some(value) => dwarf.attr_address(unit, value)?.unwrap_or(0),
            None => return Ok(()),
        };
        each(low, high)
    }
}
