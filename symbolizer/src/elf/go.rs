//! The functions of a Go program, from the table that its run-time system walks stacks with: it is there in stripped
//! programs too.

use std::ops::Range;

use super::Elf;

/// The table's section; in a position-independent program the second one.
const SECTIONS: [&str; 2] = [".gopclntab", ".data.rel.ro.gopclntab"];
/// What tables begin with from Go 1.18 on, and from Go 1.20 on.
const MAGICS: [u32; 2] = [0xffff_fff0, 0xffff_fff1];
const POINTER_BYTES: u8 = 8;
/// Words behind the magic number and the sizes.
const FUNCTIONS_WORD: usize = 0;
const TEXT_WORD: usize = 2;
const NAMES_WORD: usize = 3;
const UNITS_WORD: usize = 4;
const INDEX_WORD: usize = 7;
/// Of the index: where a function begins and where it is described, both from a base.
const ENTRY_BYTES: usize = 8;
/// Kubernetes' programs have tables of 30 MB.
const LARGEST_TABLE: u64 = 256 << 20;
/// They have a hundred thousand.
const MOST_FUNCTIONS: usize = 4 << 20;
/// What may lie between the last function and the end of its section.
const ALIGNMENT: u64 = 64;

/// The functions, in order of their addresses.
pub(super) struct GoFunctions {
    /// What a function's name is an offset into.
    pub(super) names: Vec<u8>,
    /// Addresses, and where the name begins.
    pub(super) functions: Vec<(Range<u64>, u32)>,
}

impl GoFunctions {
    /// Those of a program, if it is one of Go's whose table is understood.
    pub(super) fn read(elf: &Elf<'_>) -> Option<Self> {
        let section = SECTIONS.iter().find_map(|name| elf.find_contents(name))?;
        let text = elf.find_contents(".text")?;
        Self::parse(&elf.read_within(section, LARGEST_TABLE).ok()?, text.address..text.end())
    }

    fn parse(table: &[u8], text: Range<u64>) -> Option<Self> {
        let is_known = MAGICS.contains(&word32(table, 0)?) && *table.get(7)? == POINTER_BYTES;
        let word = |index: usize| usize::try_from(word64(table, 8 + 8 * index)?).ok();
        let count = word(FUNCTIONS_WORD).filter(|&count| is_known && count <= MOST_FUNCTIONS)?;
        let names = table.get(word(NAMES_WORD)?..word(UNITS_WORD)?)?.to_vec();
        let index = table.get(word(INDEX_WORD)?..)?;
        let start_of = |function: usize| word32(index, ENTRY_BYTES * function);
        let base = match word(TEXT_WORD)? as u64 {
            // Left to the loader. It is the section's beginning, unless there is more in that than Go has compiled.
            0 => Some(text.start).filter(|start| {
                let end = start_of(count).map(|end| start.saturating_add(end.into()));
                end.is_some_and(|end| end <= text.end && text.end - end < ALIGNMENT)
            })?,
            base => base,
        };
        let mut functions = Vec::with_capacity(count.min(index.len() / ENTRY_BYTES));
        for function in 0..count {
            let (start, end) = (start_of(function)?, start_of(function + 1)?);
            let described = word32(index, ENTRY_BYTES * function + 4)? as usize;
            let name = word32(index, described.checked_add(4)?)?;
            let range = base.checked_add(start.into())?..base.checked_add(end.into())?;
            if range.start < range.end && (name as usize) < names.len() {
                functions.push((range, name));
            }
        }
        Some(Self { names, functions })
    }
}

fn word32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word))
}

fn word64(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|word| u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: Range<u64> = 0x1000..0x1040;

    /// Two functions, of 16 and 48 bytes.
    fn table(text: u64) -> Vec<u8> {
        let mut table = 0xffff_fff1u32.to_le_bytes().to_vec();
        table.extend([0, 0, 1, 8]);
        let names = b"\0main.one\0main.two\0";
        let names_at = 8 + 8 * 8;
        let index_at = names_at + names.len() as u64;
        for word in [2, 0, text, names_at, index_at, 0, 0, index_at] {
            table.extend(word.to_le_bytes());
        }
        table.extend(names);
        for word in [0u32, 20, 16, 28, 64, 0, 1, 16, 10] {
            table.extend(word.to_le_bytes());
        }
        table
    }

    fn functions(table: &[u8]) -> Option<Vec<(Range<u64>, u32)>> {
        GoFunctions::parse(table, TEXT).map(|go| go.functions)
    }

    #[test]
    fn functions_and_names_are_found() {
        let found = Some(vec![(0x1000..0x1010, 1), (0x1010..0x1040, 10)]);
        assert_eq!(functions(&table(0x1000)), found);
        // As the linker leaves it in a position-independent program.
        assert_eq!(functions(&table(0)), found);
    }

    #[test]
    fn a_table_that_is_not_understood_gives_no_names() {
        let mut older = table(0x1000);
        older[0] = 0xfb;
        assert_eq!(functions(&older), None);
        assert!(GoFunctions::parse(&table(0), 0x1000..0x9000).is_none(), "C code may come first");
        assert!(GoFunctions::parse(&table(0), 0x1000..0x1020).is_none());
        for end in 0..table(0).len() {
            assert!(functions(&table(0x1000)[..end]).is_none_or(|found| found.len() <= 2));
        }
    }

    proptest! {
        #[test]
        fn any_table_is_read(at in 0usize..120, byte: u8) {
            let mut table = table(0x1000);
            let len = table.len();
            table[at % len] = byte;
            if let Some(found) = functions(&table) {
                prop_assert!(found.iter().all(|(range, _)| range.start < range.end));
            }
        }
    }
}
