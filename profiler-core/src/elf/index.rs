//! Which function's unwind information holds for an address: by the index that a linker wrote, or by one made here.

use gimli::{BaseAddresses, CieOrFde, UnwindSection};

use super::Section;
use super::tables::AddressPosition;
use super::vetting::{Slice, Vetting};
use crate::machine::Machine;

/// Bytes of an entry of the index's table: where a function starts, and where its information is.
const INDEX_ENTRY_BYTES: usize = 8;
/// Bytes before that table: version, three encodings, the pointer to `.eh_frame`, the number of entries.
const INDEX_HEADER_BYTES: usize = 12;
/// How every linker writes the index: version 1; the pointer `DW_EH_PE_pcrel | DW_EH_PE_sdata4`; the number of
/// entries `DW_EH_PE_udata4`; the table `DW_EH_PE_datarel | DW_EH_PE_sdata4`.
const USUAL_HEADER: [u8; 4] = [1, 0x1b, 0x03, 0x3b];

/// The table of an index of the usual form.
pub(super) struct SearchTable<'a> {
    /// Stated address of the index: its numbers count from there.
    svma: u64,
    /// Stated address of the tables that it leads to.
    tables_svma: u64,
    entries: &'a [u8],
}

impl<'a> SearchTable<'a> {
    pub(super) fn of(section: &'a Section) -> Option<Self> {
        let (header, entries) = section.bytes.split_at_checked(INDEX_HEADER_BYTES)?;
        let number = |at: usize| Some(u32::from_le_bytes(header.get(at..at + 4)?.try_into().ok()?));
        let count = usize::try_from(number(8)?).ok()?;
        let entries = entries.get(..count.checked_mul(INDEX_ENTRY_BYTES)?)?;
        let svma = section.svma.start;
        let tables_svma = svma.wrapping_add(4).wrapping_add_signed(i64::from(number(4)? as i32));
        (header[..4] == USUAL_HEADER).then_some(Self { svma, tables_svma, entries })
    }

    fn len(&self) -> usize {
        self.entries.len() / INDEX_ENTRY_BYTES
    }

    /// A big library has hundreds of thousands of entries, so that this has to be quick.
    pub(super) fn is_in_order(&self) -> bool {
        let start = |entry: &[u8; INDEX_ENTRY_BYTES]| {
            let [a, b, c, d, ..] = *entry;
            self.svma.wrapping_add_signed(i64::from(i32::from_le_bytes([a, b, c, d])))
        };
        self.entries.as_chunks().0.iter().map(start).is_sorted()
    }

    fn number(&self, at: usize) -> Option<i64> {
        let bytes = self.entries.get(at..at + 4)?;
        Some(i64::from(i32::from_le_bytes(bytes.try_into().ok()?)))
    }

    /// The stated address where an entry's function begins.
    pub(super) fn start(&self, entry: usize) -> Option<u64> {
        Some(self.svma.wrapping_add_signed(self.number(entry * INDEX_ENTRY_BYTES)?))
    }

    /// Where an entry's information lies in the tables.
    pub(super) fn information_offset(&self, entry: usize) -> Option<usize> {
        let svma = self.svma.wrapping_add_signed(self.number(entry * INDEX_ENTRY_BYTES + 4)?);
        usize::try_from(svma.checked_sub(self.tables_svma)?).ok()
    }

    /// The last entry that begins at or before a stated address.
    pub(super) fn find(&self, svma: u64) -> Option<usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            if self.start(middle)? <= svma { low = middle + 1 } else { high = middle }
        }
        low.checked_sub(1)
    }
}

/// Whether an index that begins so has the usual form.
pub(super) fn is_usual_index(start: &[u8]) -> bool {
    start.starts_with(&USUAL_HEADER)
}

/// The functions of a section without an index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Functions {
    /// Stated addresses and the offset of the information, by address.
    sorted: Vec<(u64, u64, usize)>,
}

/// Stands for the offset of information that must not be evaluated.
const UNSAFE: usize = usize::MAX;

/// What a section without an index has for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Information {
    /// At this offset.
    At(usize),
    /// What must not be evaluated.
    Unsafe,
}

impl Functions {
    /// Reads a section to its end, for the library, which evaluates whatever is in it; `None` where it cannot be read or a
    /// function in it is not safe.
    pub(super) fn of<'a, S: UnwindSection<Slice<'a>>>(
        machine: Machine,
        section: &S,
        bases: &BaseAddresses,
    ) -> Option<Self> {
        let (functions, is_whole) = Self::read(machine, section, bases);
        let is_safe = functions.sorted.iter().all(|&(.., offset)| offset != UNSAFE);
        (is_whole && is_safe).then_some(functions)
    }

    /// The same for our own rules, which are looked up function by function: one that is not safe, or cannot be read, takes no
    /// other with it.
    pub(super) fn each_of<'a, S: UnwindSection<Slice<'a>>>(
        machine: Machine,
        section: &S,
        bases: &BaseAddresses,
    ) -> Self {
        Self::read(machine, section, bases).0
    }

    /// What can be read, and whether that is all.
    fn read<'a, S: UnwindSection<Slice<'a>>>(
        machine: Machine,
        section: &S,
        bases: &BaseAddresses,
    ) -> (Self, bool) {
        let mut vetting = Vetting::new(machine, section, bases);
        let mut entries = section.entries(bases);
        let (mut sorted, mut is_whole) = (Vec::new(), true);
        loop {
            let partial = match entries.next() {
                Ok(Some(CieOrFde::Fde(partial))) => partial,
                Ok(Some(CieOrFde::Cie(_))) => continue,
                Ok(None) => break,
                Err(_) => {
                    is_whole = false;
                    break;
                }
            };
            let Ok(function) = partial.parse(S::cie_from_offset) else {
                is_whole = false;
                continue;
            };
            let offset = if vetting.function(&function) { function.offset() } else { UNSAFE };
            sorted.push((function.initial_address(), function.end_address(), offset));
        }
        sorted.sort_unstable();
        (Self { sorted }, is_whole)
    }

    /// The information for the function that holds a stated address.
    pub(super) fn information(&self, svma: u64) -> Option<Information> {
        let after = self.sorted.partition_point(|&(start, ..)| start <= svma);
        let &(_, end, offset) = self.sorted[..after].last()?;
        let information = if offset == UNSAFE { Information::Unsafe } else { Information::At(offset) };
        (svma < end).then_some(information)
    }

    /// The function that holds a stated address, or where the one before it ends; `None` before the first function.
    pub(super) fn extent(&self, svma: u64) -> Option<AddressPosition> {
        let after = self.sorted.partition_point(|&(start, ..)| start <= svma);
        let &(start, end, _) = self.sorted[..after].last()?;
        Some(if svma < end { AddressPosition::Within { start } } else { AddressPosition::Behind { end } })
    }
}
