//! Which function of the symbol tables covers an address.

use std::borrow::Cow;
use std::cmp::Reverse;

use object::elf::{self, Sym64};
use object::{LittleEndian as Le, U32};

use super::go::GoFunctions;
use super::plt::Stub;
use super::versions::Versions;
use super::{Elf, SectionHeader, c_string};
use crate::reason::Reason;

/// Longer names are cut: no compiler writes them, but a table without a NUL may.
const LONGEST_NAME: usize = 64 << 10;

/// The functions of an object's symbol tables, laid out so that each address belongs to one of them at most.
#[derive(Default)]
pub(crate) struct SymbolTable {
    spans: Vec<Span>,
    strings: [Vec<u8>; TABLES],
    has_symtab: bool,
}

/// A stretch of addresses, and the function it belongs to.
#[derive(Debug, Clone, Copy)]
struct Span {
    start: u64,
    end: u64,
    name: NamePosition,
}

/// Where a name is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NamePosition {
    table: StringTable,
    offset: u32,
}

/// The string tables, in order of preference: of equal symbols the first table's is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum StringTable {
    Symtab,
    Dynsym,
    Plt,
    Go,
}

const TABLES: usize = 4;
/// Functions among the symbols; a browser has about a million.
const MOST_FUNCTIONS: usize = 4 << 20;
/// Names of old versions, which are copied, and one of them.
const MOST_VERSIONED_BYTES: usize = 4 << 20;
const LONGEST_VERSIONED_NAME: usize = 1024;
/// A table of symbols, or their names, once they are unpacked: a browser's names have some 150 MB.
const LARGEST_TABLE: u64 = 256 << 20;

/// A function's symbol before spans are laid out. The order of fields is the order of preference at one address.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Candidate {
    start: u64,
    unsized_: bool,
    untyped: bool,
    binding: u8,
    is_old: bool,
    underscores: usize,
    size: Reverse<u64>,
    name_len: usize,
    name: NamePosition,
    limit: u64,
}

impl SymbolTable {
    /// Reads the tables, unless that takes more than `most_bytes` at a time.
    pub(crate) fn read(elf: &Elf<'_>, most_bytes: u64) -> Result<Self, Reason> {
        let bytes = needed_bytes(elf);
        if bytes > most_bytes {
            return Err(Reason::TooLarge { what: "the symbol table".into(), bytes });
        }
        let mut table = Self::default();
        let mut candidates = Vec::new();
        table.has_symtab = table.read_table(elf, elf::SHT_SYMTAB, StringTable::Symtab, &mut candidates)?;
        table.read_table(elf, elf::SHT_DYNSYM, StringTable::Dynsym, &mut candidates)?;
        let (stubs, names) = elf.plt_stubs(&candidates, |name| table.name(name).into_owned());
        let stub = |stub: &Stub| {
            Candidate::stub(
                stub.start,
                stub.size,
                NamePosition { table: StringTable::Plt, offset: stub.name },
            )
        };
        candidates.extend(stubs.iter().map(stub));
        table.strings[StringTable::Plt as usize] = names;
        if !table.has_symtab {
            table.read_go(elf, &mut candidates);
        }
        // What has no size ends where the unwind information has another function.
        let has_unsized = candidates.iter().any(|candidate| candidate.unsized_);
        let unwound = if has_unsized { elf.unwound_starts() } else { Vec::new() };
        table.spans = lay_out(candidates, &unwound);
        table.drop_unused_strings();
        Ok(table)
    }

    /// What it takes of memory.
    pub(crate) fn held_bytes(&self) -> u64 {
        let strings: usize = self.strings.iter().map(Vec::capacity).sum();
        (self.spans.capacity() * size_of::<Span>() + strings) as u64
    }

    /// Whether there was a `.symtab`, rather than exported symbols alone.
    pub(crate) fn has_symtab(&self) -> bool {
        self.has_symtab
    }

    /// The function that covers `address`.
    pub(crate) fn find(&self, address: u64) -> Option<NamePosition> {
        let index = self.spans.partition_point(|span| span.start <= address).checked_sub(1)?;
        let span = self.spans[index];
        (address < span.end).then_some(span.name)
    }

    /// A function's linkage name.
    pub(crate) fn name(&self, name: NamePosition) -> Cow<'_, str> {
        let bytes = c_string(&self.strings[name.table as usize], name.offset as usize, LONGEST_NAME);
        let text = String::from_utf8_lossy(bytes);
        match text.find('@') {
            // `solve@@V_2`, the version of today, is `solve`; `solve@V_1` is an old one.
            Some(version)
                if version > 0
                    && text[version..].starts_with("@@")
                    && matches!(name.table, StringTable::Symtab | StringTable::Dynsym) =>
            {
                Cow::Owned(text[..version].to_owned())
            }
            _ => text,
        }
    }

    fn read_table(
        &mut self,
        elf: &Elf<'_>,
        kind: elf::SectionType,
        table: StringTable,
        candidates: &mut Vec<Candidate>,
    ) -> Result<bool, Reason> {
        let Some(section) = elf.sections().find(|section| section.kind == kind) else { return Ok(false) };
        let Some(strings) = elf.linked(section) else {
            return Err(Reason::corrupt("a symbol table without names"));
        };
        let bytes = elf.read_within(section, LARGEST_TABLE)?;
        self.strings[table as usize] = elf.read_within(strings, LARGEST_TABLE)?;
        let strings = &self.strings[table as usize];
        let symbols = super::entries::<Sym64<Le>>(&bytes);
        let large_indices = elf.large_indices(section)?;
        let large_indices = super::entries::<U32<Le>>(&large_indices);
        let versions = if table == StringTable::Dynsym { elf.versions() } else { Versions::default() };
        let mut versioned = Vec::new();
        for (at, symbol) in symbols.iter().enumerate() {
            let index = match symbol.st_shndx.get(Le) {
                elf::SHN_XINDEX => large_indices.get(at).map_or(0, |index| index.get(Le)),
                // Undefined, absolute and common symbols have no section, and no code.
                index if index.0 >= elf::SHN_LORESERVE => continue,
                index => index.0.into(),
            };
            let section = elf.sections.get(index as usize).filter(|_| index != 0);
            let Some(mut candidate) = section.and_then(|it| Candidate::new(it, symbol, table, strings))
            else {
                continue;
            };
            if let Some(version) = versions.old(at).filter(|_| versioned.len() < MOST_VERSIONED_BYTES) {
                let name = c_string(strings, candidate.name.offset as usize, LONGEST_VERSIONED_NAME);
                candidate.is_old = true;
                candidate.name.offset = (strings.len() + versioned.len()) as u32;
                versioned.extend([name, b"@", version, &[0]].concat());
            }
            candidates.push(candidate);
            if candidates.len() > MOST_FUNCTIONS {
                return Err(Reason::TooLarge { what: "the symbol table".into(), bytes: bytes.len() as u64 });
            }
        }
        self.strings[table as usize].extend(versioned);
        Ok(true)
    }

    /// What a stripped Go program knows of itself.
    fn read_go(&mut self, elf: &Elf<'_>, candidates: &mut Vec<Candidate>) {
        let Some(go) = GoFunctions::read(elf) else { return };
        for (range, offset) in go.functions {
            let name = NamePosition { table: StringTable::Go, offset };
            candidates.push(Candidate::stub(range.start, range.end - range.start, name));
        }
        self.strings[StringTable::Go as usize] = go.names;
    }

    /// In most objects `.dynsym` only repeats `.symtab`.
    fn drop_unused_strings(&mut self) {
        for table in [StringTable::Symtab, StringTable::Dynsym] {
            if !self.spans.iter().any(|span| span.name.table == table) {
                self.strings[table as usize] = Vec::new();
            }
        }
        self.spans.shrink_to_fit();
    }
}

/// What reading the tables takes of memory at most: their symbols as they are, with the order that they come in, and their
/// names.
fn needed_bytes(elf: &Elf<'_>) -> u64 {
    let table = |kind| {
        let section = elf.sections().find(|section| section.kind == kind)?;
        let symbols = elf.size_unpacked(section) / size_of::<Sym64<Le>>() as u64;
        let each =
            (size_of::<Sym64<Le>>() + size_of::<u32>() + size_of::<Candidate>() + size_of::<Span>()) as u64;
        let names = elf.linked(section).map_or(0, |names| elf.size_unpacked(names));
        Some(symbols.saturating_mul(each).saturating_add(names))
    };
    [elf::SHT_SYMTAB, elf::SHT_DYNSYM].into_iter().filter_map(table).fold(0, u64::saturating_add)
}

impl Candidate {
    fn new(section: &SectionHeader, symbol: &Sym64<Le>, table: StringTable, strings: &[u8]) -> Option<Self> {
        let untyped = match symbol.st_info.st_type() {
            elf::STT_FUNC | elf::STT_GNU_IFUNC => false,
            // Labels of assembly, and code or tables among code that assembly calls data.
            elf::STT_NOTYPE | elf::STT_OBJECT if section.is_executable() => true,
            _ => return None,
        };
        let offset = symbol.st_name.get(Le);
        let head = c_string(strings, offset as usize, 256);
        if head.is_empty() || (untyped && head.starts_with(b"$")) {
            return None;
        }
        let size = symbol.st_size.get(Le);
        Some(Self {
            start: symbol.st_value.get(Le),
            unsized_: size == 0,
            untyped,
            binding: match symbol.st_info.st_bind() {
                elf::STB_GLOBAL | elf::STB_GNU_UNIQUE => 0,
                elf::STB_LOCAL => 1,
                _ => 2,
            },
            is_old: head
                .iter()
                .position(|&byte| byte == b'@')
                .is_some_and(|at| head.get(at + 1) != Some(&b'@')),
            underscores: head.iter().take_while(|&&byte| byte == b'_').count(),
            size: Reverse(size),
            name_len: head.len(),
            name: NamePosition { table, offset },
            limit: section.end(),
        })
    }

    fn stub(start: u64, size: u64, name: NamePosition) -> Self {
        let limit = start.saturating_add(size);
        let size = Reverse(size);
        Self {
            start,
            unsized_: false,
            untyped: true,
            binding: 2,
            is_old: false,
            underscores: 0,
            size,
            name_len: 0,
            name,
            limit,
        }
    }

    pub(super) fn start(&self) -> u64 {
        self.start
    }

    pub(super) fn name(&self) -> NamePosition {
        self.name
    }

    fn end(&self) -> u64 {
        self.start.saturating_add(self.size.0)
    }
}

/// Gives each address to one symbol: the one that starts last of those that cover it. A symbol without a size ends where the next one
/// starts, or the next of the functions that the unwind information has: these addresses are in ascending order.
fn lay_out(mut candidates: Vec<Candidate>, unwound: &[u64]) -> Vec<Span> {
    candidates.sort_unstable();
    candidates.dedup_by_key(|candidate| candidate.start);
    let mut spans = Layout { spans: Vec::with_capacity(candidates.len()), open: Vec::new(), at: 0 };
    let mut reach = 0;
    for (index, candidate) in candidates.iter().enumerate() {
        let end = if candidate.unsized_ {
            let next = candidates.get(index + 1).map_or(u64::MAX, Candidate::start);
            let other = unwound.partition_point(|&start| start <= candidate.start);
            next.min(candidate.limit).min(unwound.get(other).copied().unwrap_or(u64::MAX))
        } else {
            candidate.end()
        };
        // A label without a size inside a function that has one is a place in it, not another function.
        if candidate.unsized_ && candidate.start < reach {
            continue;
        }
        spans.open(candidate.start, end, candidate.name);
        if !candidate.unsized_ {
            reach = reach.max(end);
        }
    }
    spans.close_until(u64::MAX);
    spans.spans
}

/// The state of a sweep over symbols in order of their starts.
struct Layout {
    spans: Vec<Span>,
    /// The symbols that have started and may not have ended yet, the latest on top.
    open: Vec<(u64, NamePosition)>,
    /// Addresses below are given away.
    at: u64,
}

impl Layout {
    fn open(&mut self, start: u64, end: u64, name: NamePosition) {
        self.close_until(start);
        if let Some(&(_, outer)) = self.open.last() {
            self.give(start, outer);
        }
        self.at = start;
        self.open.push((end, name));
    }

    /// Ends the symbols that end before `address`.
    fn close_until(&mut self, address: u64) {
        while let Some(&(end, name)) = self.open.last().filter(|(end, _)| *end <= address) {
            self.give(end, name);
            self.open.pop();
        }
    }

    fn give(&mut self, end: u64, name: NamePosition) {
        if self.at < end {
            self.spans.push(Span { start: self.at, end, name });
            self.at = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(start: u64, size: u64, offset: u32) -> Candidate {
        let name = NamePosition { table: StringTable::Symtab, offset };
        Candidate { unsized_: size == 0, limit: 1000, ..Candidate::stub(start, size, name) }
    }

    fn spans(candidates: Vec<Candidate>) -> Vec<(u64, u64, u32)> {
        lay_out(candidates, &[]).iter().map(|span| (span.start, span.end, span.name.offset)).collect()
    }

    #[test]
    fn a_gap_belongs_to_nobody() {
        assert_eq!(spans(vec![candidate(10, 5, 1), candidate(20, 5, 2)]), [(10, 15, 1), (20, 25, 2)]);
    }

    #[test]
    fn a_symbol_without_size_reaches_to_the_next_or_the_section_end() {
        assert_eq!(spans(vec![candidate(10, 0, 1), candidate(20, 0, 2)]), [(10, 20, 1), (20, 1000, 2)]);
    }

    #[test]
    fn a_symbol_without_size_ends_where_another_function_has_unwind_information() {
        let spans = lay_out(vec![candidate(10, 0, 1), candidate(30, 10, 2)], &[10, 14, 30, 34]);
        let spans: Vec<_> = spans.iter().map(|span| (span.start, span.end, span.name.offset)).collect();
        assert_eq!(spans, [(10, 14, 1), (30, 40, 2)]);
    }

    #[test]
    fn inner_symbols_interrupt_outer_ones() {
        assert_eq!(
            spans(vec![candidate(10, 90, 1), candidate(20, 10, 2), candidate(25, 20, 3)]),
            [(10, 20, 1), (20, 25, 2), (25, 45, 3), (45, 100, 1)]
        );
    }

    #[test]
    fn labels_inside_a_sized_function_are_passed_over() {
        assert_eq!(spans(vec![candidate(10, 20, 1), candidate(15, 0, 2)]), [(10, 30, 1)]);
    }

    #[test]
    fn hostile_sizes_do_not_overflow() {
        assert_eq!(spans(vec![candidate(u64::MAX - 1, u64::MAX, 1)]), [(u64::MAX - 1, u64::MAX, 1)]);
    }
}
