//! What unwinding needs of an ELF file: where its segments lie and its tables of unwind information.

mod bounded;
mod build_id;
mod index;
mod later;
mod pointer_auth;
pub(crate) mod rules;
mod tables;
mod vetting;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use object::elf::{
    CompressionHeader64, DF_1_PIE, DT_FLAGS_1, ELFCOMPRESS_ZLIB, ET_EXEC, FileHeader64, PF_X,
    PT_GNU_EH_FRAME, PT_INTERP, PT_LOAD, ProgramHeader64, SHF_COMPRESSED, SectionHeader64,
};
use object::read::elf::{Dyn, FileHeader, ProgramHeader, SectionHeader};
use object::{CompressedData, CompressionFormat, Endianness, ReadRef};

use self::bounded::{Allowance, Bounded};
use crate::machine::Machine;

pub use build_id::BuildId;
pub use later::ReadLater;
pub(crate) use later::SectionBytes;
use tables::Extent;
pub use tables::UnwindTables;
pub(crate) use tables::{Callers, Found};

type Header = FileHeader64<Endianness>;
type CompressionHeader = CompressionHeader64<Endianness>;

/// More unwind information than any real file has; larger ones are taken for damaged.
const MAX_SECTION_BYTES: u64 = 512 << 20;
/// The same for one that is compressed, which states its own size.
const MAX_DECOMPRESSED_BYTES: u64 = 64 << 20;
/// `DW_EH_PE_pcrel | DW_EH_PE_sdata4`: how every linker writes the pointer to `.eh_frame`.
const PCREL_SDATA4: u8 = 0x1b;
/// More than the dynamic linker is told of any program (bytes).
const MAX_DYNAMIC_BYTES: u64 = 1 << 16;
/// The smallest page of any machine.
const LEAST_PAGE_BYTES: u64 = 4096;
/// The kernel runs no program with more than a fiftieth of this.
const MOST_SEGMENTS: usize = 1 << 16;

/// A section: the addresses it states and its bytes.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Section {
    /// Stated virtual memory addresses.
    pub(crate) svma: Range<u64>,
    /// Content.
    pub(crate) bytes: SectionBytes,
    /// What it takes of memory, with what is made of it (bytes).
    pub(crate) takes: u64,
}

impl fmt::Debug for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Section({:x?})", self.svma)
    }
}

/// A loadable segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Segment {
    /// Offset in the file.
    pub file_offset: u64,
    /// Bytes in the file.
    pub file_len: u64,
    /// Stated virtual memory address.
    pub svma: u64,
    /// Whether code may run there.
    pub executable: bool,
}

impl Segment {
    /// Bytes that it shares with this range of the file; none where it shares nothing.
    fn overlap(&self, file_offset: u64, end: u64) -> Option<u64> {
        let own_end = self.file_offset.saturating_add(self.file_len);
        own_end.min(end).checked_sub(self.file_offset.max(file_offset)).filter(|&bytes| bytes > 0)
    }

    fn bias(&self, start: u64, file_offset: u64) -> u64 {
        start.wrapping_sub(self.svma.wrapping_sub(self.file_offset).wrapping_add(file_offset))
    }

    /// The offset in the file of a page at a stated address, if it holds bytes of the segment.
    fn file_offset_of_page(&self, svma: u64) -> Option<u64> {
        const PAGE: u64 = LEAST_PAGE_BYTES - 1;
        let from_page = svma.checked_sub(self.svma & !PAGE)?;
        let is_inside = from_page < self.file_len.saturating_add(self.svma & PAGE);
        is_inside.then(|| (self.file_offset & !PAGE).saturating_add(from_page))
    }
}

/// What unwinding needs of an ELF file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ElfImage {
    /// Loadable segments in the file's order.
    pub segments: Vec<Segment>,
    /// Stated address of the first instruction of a program; 0 in most libraries.
    pub entry: u64,
    /// Whether a program begins there: of a library, most linkers state where its code begins.
    pub is_program: bool,
    /// Its tables of unwind information.
    pub tables: UnwindTables,
    /// What its linker calls this very build; none in files without.
    pub build_id: Option<BuildId>,
}

/// Why a file is of no use for unwinding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ElfError {
    /// No ELF header, or not of a 64-bit little-endian object.
    #[error("not a 64-bit ELF object")]
    NotElf,
    /// Made for a machine whose stacks we cannot unwind.
    #[error("made for another machine")]
    OtherMachine,
    /// The headers contradict the file.
    #[error("the ELF headers are damaged")]
    Damaged,
}

impl ElfImage {
    /// Reads the headers of `file`; its unwind tables are read by `later` when they are needed.
    ///
    /// A damaged section is left out, damaged headers are an error, and so are headers that no real file has.
    pub fn parse<'d>(file: impl ReadRef<'d>, later: &ReadLater) -> Result<Self, ElfError> {
        let allowance = Allowance::default();
        let file = Bounded::new(file, &allowance);
        let header = Header::parse(file).map_err(|_| ElfError::NotElf)?;
        let endian = header.endian().map_err(|_| ElfError::NotElf)?;
        let machine = Machine::of_elf(header.e_machine(endian)).ok_or(ElfError::OtherMachine)?;
        let programs = header.program_headers(endian, file).map_err(|_| ElfError::Damaged)?;
        if programs.len() > MOST_SEGMENTS {
            return Err(ElfError::Damaged);
        }
        let segments = programs.iter().filter(|p| p.p_type(endian) == PT_LOAD);
        let mut image = ElfImage {
            segments: segments
                .map(|p| Segment {
                    file_offset: p.p_offset(endian),
                    file_len: p.p_filesz(endian),
                    svma: p.p_vaddr(endian),
                    executable: p.p_flags(endian).contains(PF_X),
                })
                .collect(),
            entry: header.e_entry(endian),
            is_program: is_program(header, programs, endian, file),
            build_id: BuildId::find(programs, endian, file),
            ..Self::default()
        };
        image.tables = tables_from_sections(machine, header, endian, file, later);
        if image.tables.is_empty() {
            let index = programs.iter().find(|p| p.p_type(endian) == PT_GNU_EH_FRAME);
            let found = index.and_then(|index| {
                let (svma, len) = (index.p_vaddr(endian), index.p_filesz(endian));
                image.tables_from_segments(machine, svma..svma.checked_add(len)?, file, later)
            });
            image.tables = found.unwrap_or_else(|| UnwindTables::none(machine));
        }
        Ok(image)
    }

    /// The same for a file that is in memory.
    pub fn parse_bytes(file: &[u8]) -> Result<Self, ElfError> {
        let copy: Arc<[u8]> = file.into();
        let later: ReadLater = Arc::new(move |range, _| {
            let (start, end) = (usize::try_from(range.start).ok()?, usize::try_from(range.end).ok()?);
            copy.get(start..end).map(<[u8]>::to_vec)
        });
        Self::parse(file, &later)
    }

    /// What its code runs on.
    pub fn machine(&self) -> Machine {
        self.tables.machine
    }

    /// The same, with its tables to be read anew when they are needed. The memory of these is free once no unwinder
    /// refers to them any more.
    pub fn unread(&self) -> Self {
        Self { tables: self.tables.unread(), ..self.clone() }
    }

    /// The same without tables.
    pub fn without_tables(&self) -> Self {
        Self { tables: UnwindTables::none(self.machine()), ..self.clone() }
    }

    /// What its tables take of memory once they are read (bytes).
    pub fn tables_bytes(&self) -> u64 {
        self.tables.bytes()
    }

    /// Reads now what would be read later.
    pub fn read_tables(&self) {
        self.tables.read();
    }

    /// The address to subtract from an actual address to get the stated one, for code mapped at `start`
    /// from `file_offset` on. `None` where no segment with code lies there: what runs in a program's data was put there at run time.
    pub fn bias(&self, start: u64, file_offset: u64, len: u64) -> Option<u64> {
        let end = file_offset.checked_add(len)?;
        // Two segments may share a page of the file, which both their mappings have: then it is the one that begins there, else the
        // one that most of the mapping is of.
        let begins = |s: &Segment| s.file_offset & !(LEAST_PAGE_BYTES - 1) == file_offset;
        let code = self.segments.iter().filter(|s| s.executable);
        let candidates = code.filter_map(|s| Some(((begins(s), s.overlap(file_offset, end)?), s)));
        // Of equal ones the first.
        let (_, segment) = candidates.rev().max_by_key(|&(rank, _)| rank)?;
        Some(segment.bias(start, file_offset))
    }

    /// The offset in the file of the code that belongs at `start`, by where other parts of the file are mapped: each from an
    /// address, at an offset, of a length. `None` where it has no code there, or these parts disagree.
    pub fn offset_of_code(&self, start: u64, parts: &[(u64, u64, u64)]) -> Option<u64> {
        let biases = |&(start, file_offset, len): &(u64, u64, u64)| {
            let end = file_offset.saturating_add(len);
            let there = self.segments.iter().filter(move |s| s.overlap(file_offset, end).is_some());
            there.map(move |s| s.bias(start, file_offset))
        };
        let suits = |bias: &u64| parts.iter().all(|part| biases(part).any(|other| other == *bias));
        let offset = |bias: u64| {
            let svma = start.wrapping_sub(bias);
            let code = self.segments.iter().filter(|s| s.executable);
            code.filter_map(|s| s.file_offset_of_page(svma)).next()
        };
        biases(parts.first()?).filter(suits).find_map(offset)
    }

    /// The lowest stated address: the base that relative addresses count from.
    pub fn base_svma(&self) -> u64 {
        self.segments.iter().map(|s| s.svma & !0xfff).min().unwrap_or(0)
    }

    /// The address behind the last byte that is loaded from the file, as it states it.
    pub fn end_svma(&self) -> u64 {
        self.segments.iter().map(|s| s.svma.saturating_add(s.file_len)).max().unwrap_or(0)
    }

    /// Where the function that holds a stated address begins, by its unwind information; `None` where no function's covers it.
    pub fn function_start(&self, svma: u64) -> Option<u64> {
        self.tables.function_start(svma)
    }

    /// The same for all code, so that samples can be counted by function before there are names. Code without unwind
    /// information counts by the page, apart from the function before it.
    pub fn place_start(&self, svma: u64) -> u64 {
        match self.tables.extent(svma) {
            Extent::Within { start } => start,
            Extent::Behind { end } => end.max(svma & !(LEAST_PAGE_BYTES - 1)),
        }
    }

    /// A file without section headers still says where its index of unwind information is loaded, and the
    /// index points to the information. Its end is not stated, so everything up to the segment's end counts.
    fn tables_from_segments<'d>(
        &self,
        machine: Machine,
        hdr: Range<u64>,
        file: impl ReadRef<'d>,
        later: &ReadLater,
    ) -> Option<UnwindTables> {
        let index = self.file_range(hdr.start, hdr.end - hdr.start)?;
        let start = file.read_bytes_at(index.start, 8).ok()?;
        let (&[_, PCREL_SDATA4, _, _], offset) = start.split_first_chunk::<4>()? else { return None };
        let pointer = i64::from(i32::from_le_bytes(offset.try_into().ok()?));
        let eh_frame_svma = hdr.start.wrapping_add(4).wrapping_add_signed(pointer);
        let information = self.file_range(eh_frame_svma, u64::MAX)?;
        let eh_frame_later = pointer_auth::reading(machine, later);
        let eh_frame = Section::in_file(eh_frame_svma, information, file, &eh_frame_later, Made::default());
        let index = Section::in_file(hdr.start, index, file, later, Made::default());
        Some(UnwindTables::new(machine, eh_frame, index.filter(|_| index::is_usual_index(start)), None))
    }

    /// Where the bytes at a stated address lie in the file, at most `len` and no further than the segment.
    fn file_range(&self, svma: u64, len: u64) -> Option<Range<u64>> {
        let inside = |s: &&Segment| svma.checked_sub(s.svma).is_some_and(|offset| offset < s.file_len);
        let segment = self.segments.iter().find(inside)?;
        let offset = svma - segment.svma;
        let start = segment.file_offset.checked_add(offset)?;
        let len = len.min(segment.file_len - offset).min(MAX_SECTION_BYTES);
        Some(start..start.checked_add(len)?)
    }
}

/// Whether the kernel starts a file, by itself or with an interpreter, or a program loads it.
fn is_program<'d>(
    header: &Header,
    programs: &[ProgramHeader64<Endianness>],
    endian: Endianness,
    file: impl ReadRef<'d>,
) -> bool {
    let says_so = |program: &ProgramHeader64<Endianness>| {
        let is_short = program.p_filesz(endian) <= MAX_DYNAMIC_BYTES;
        let entries = program.dynamic(endian, file).ok().flatten().filter(|_| is_short);
        entries.is_some_and(|entries| {
            let is_flags = |entry: &&_| Dyn::d_tag(*entry, endian) == DT_FLAGS_1;
            entries.iter().find(is_flags).is_some_and(|flags| flags.d_val(endian) & DF_1_PIE.0 != 0)
        })
    };
    header.e_type(endian) == ET_EXEC
        || programs.iter().any(|program| program.p_type(endian) == PT_INTERP)
        || programs.iter().any(says_so)
}

fn tables_from_sections<'d>(
    machine: Machine,
    header: &Header,
    endian: Endianness,
    file: impl ReadRef<'d>,
    later: &ReadLater,
) -> UnwindTables {
    let (mut eh_frame, mut eh_frame_hdr, mut debug_frame) = (None, None, None);
    let Some((sections, names)) = sections(header, endian, file) else { return UnwindTables::none(machine) };
    let eh_frame_later = pointer_auth::reading(machine, later);
    for section in sections {
        let (slot, later, is_listed) = match name_of(section, endian, names) {
            b".eh_frame" => (&mut eh_frame, &eh_frame_later, false),
            b".eh_frame_hdr" if is_usual_index(section, endian, file) => (&mut eh_frame_hdr, later, false),
            b".debug_frame" => (&mut debug_frame, later, true),
            _ => continue,
        };
        let in_file = section.file_range(endian).filter(|&(_, len)| len > 0);
        let range = in_file.and_then(|(start, len)| Some(start..start.checked_add(len)?));
        let is_compressed = section.sh_flags(endian).contains(SHF_COMPRESSED);
        *slot = range.and_then(|range| {
            let packed = || file.read_bytes_at(range.start, size_of::<CompressionHeader>() as u64).ok();
            let unpacked = if is_compressed { Some(unpacked_len(packed()?)?.0) } else { None };
            let made = Made { unpacked, is_listed };
            Section::in_file(section.sh_addr(endian), range, file, later, made)
        });
    }
    UnwindTables::new(machine, eh_frame, eh_frame_hdr, debug_frame)
}

/// The section headers and all names of sections: two reads, where reading name by name takes one for each section.
fn sections<'d>(
    header: &Header,
    endian: Endianness,
    file: impl ReadRef<'d>,
) -> Option<(&'d [SectionHeader64<Endianness>], &'d [u8])> {
    let sections = header.section_headers(endian, file).ok()?;
    let names = sections.get(header.section_strings_index(endian, file).ok()?.0)?;
    Some((sections, names.data(endian, file).ok()?))
}

/// No further than any name of interest.
fn name_of<'d>(section: &SectionHeader64<Endianness>, endian: Endianness, names: &'d [u8]) -> &'d [u8] {
    const LONGEST: usize = 16;
    let start = section.sh_name(endian) as usize;
    let name = names.get(start..).unwrap_or_default();
    let name = &name[..name.len().min(LONGEST)];
    name.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// What is made of a section's bytes in the file.
#[derive(Clone, Copy, Default)]
struct Made {
    /// How long it is unpacked, if it is packed.
    unpacked: Option<u64>,
    /// Whether its functions are listed, each in no more bytes than its information has.
    is_listed: bool,
}

impl Made {
    fn of_bytes(self, bytes: Vec<u8>) -> Option<Vec<u8>> {
        match self.unpacked {
            None => Some(bytes),
            // It may have been written into since its header was read.
            Some(len) => decompressed(bytes).filter(|bytes| bytes.len() as u64 == len),
        }
    }
}

/// How long a packed section is unpacked, and what is packed.
fn unpacked_len(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (header, data) = object::pod::from_bytes::<CompressionHeader>(bytes).ok()?;
    let len = Some(header.ch_size.get(Endianness::Little)).filter(|&size| size <= MAX_DECOMPRESSED_BYTES)?;
    (header.ch_type.get(Endianness::Little) == ELFCOMPRESS_ZLIB).then_some((len, data))
}

/// As Go's linker leaves `.debug_frame`.
fn decompressed(bytes: Vec<u8>) -> Option<Vec<u8>> {
    let (uncompressed_size, data) = unpacked_len(&bytes)?;
    let format = CompressionFormat::Zlib;
    let unpacked = CompressedData { format, data, uncompressed_size }.decompress().ok()?;
    Some(unpacked.into_owned())
}

fn is_usual_index<'d>(
    section: &SectionHeader64<Endianness>,
    endian: Endianness,
    file: impl ReadRef<'d>,
) -> bool {
    file.read_bytes_at(section.sh_offset(endian), 4).is_ok_and(index::is_usual_index)
}

impl Section {
    /// A section whose bytes are at hand.
    pub(crate) fn new(svma: u64, bytes: &[u8]) -> Option<Self> {
        let takes = u64::try_from(bytes.len()).ok()?;
        Some(Self { svma: Self::addresses(svma, takes)?, bytes: SectionBytes::new(bytes), takes })
    }

    /// A section that is read later; none where the file ends before it does.
    fn in_file<'d>(
        svma: u64,
        range: Range<u64>,
        file: impl ReadRef<'d>,
        later: &ReadLater,
        made: Made,
    ) -> Option<Self> {
        if range.end > file.len().ok()? {
            return None;
        }
        let len = range.end - range.start;
        let unpacked = made.unpacked.unwrap_or(len);
        let svma = Self::addresses(svma, unpacked)?;
        let takes = if made.is_listed { 2 * unpacked } else { unpacked };
        let later = Arc::clone(later);
        let whole = move || later(range.clone(), takes).filter(|bytes| bytes.len() as u64 == len);
        let read = move || whole().and_then(|bytes| made.of_bytes(bytes)).unwrap_or_default();
        Some(Self { svma, bytes: SectionBytes::when_needed(read), takes })
    }

    fn addresses(svma: u64, len: u64) -> Option<Range<u64>> {
        let end = svma.checked_add(len).filter(|_| len <= MAX_SECTION_BYTES)?;
        Some(svma..end)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use proptest::prelude::*;

    fn own_executable() -> Vec<u8> {
        let path = std::env::current_exe().unwrap();
        #[expect(clippy::disallowed_methods, reason = "a test may read its own executable")]
        std::fs::read(path).unwrap()
    }

    #[test]
    fn an_executable_has_segments_and_unwind_tables() {
        let image = ElfImage::parse_bytes(&own_executable()).unwrap();
        assert!(image.segments.iter().any(|s| s.executable));
        assert!(image.tables.eh_frame.is_some() && image.tables.eh_frame_hdr.is_some());
        let text = image.segments.iter().find(|s| s.executable).unwrap();
        let start = image.function_start(text.svma + text.file_len / 2).unwrap();
        assert!((text.svma..=text.svma + text.file_len / 2).contains(&start));
        assert_eq!(image.function_start(start), Some(start));
        assert_ne!(image.function_start(start - 1), Some(start));
    }

    /// A position-independent one has the type of a library.
    #[test]
    fn a_program_is_told_from_a_library() {
        const TYPE: usize = 16;
        let mut file = own_executable();
        let begins = |file: &[u8]| ElfImage::parse_bytes(file).unwrap().is_program;
        assert!(begins(&file));
        file[TYPE] = 2; // ET_EXEC
        assert!(begins(&file));
        file[TYPE] = 3; // ET_DYN
        let number = |at: usize| u16::from_le_bytes([file[at], file[at + 1]]);
        let table = u64::from_le_bytes(file[0x20..0x28].try_into().unwrap()) as usize;
        let (size, count) = (usize::from(number(0x36)), usize::from(number(0x38)));
        let headers = || (0..count).map(|n| table + n * size);
        let find = |file: &[u8], kind: u8| headers().find(|&at| file[at..at + 4] == [kind, 0, 0, 0]).unwrap();
        let (interpreter, dynamic) = (find(&file, 3), find(&file, 2));
        file[interpreter] = 0;
        assert!(begins(&file), "by its flags, as one without an interpreter");
        file[dynamic] = 0;
        assert!(!begins(&file));
    }

    #[test]
    fn the_unwind_tables_are_found_without_section_headers() {
        let mut file = own_executable();
        let whole = ElfImage::parse_bytes(&file).unwrap();
        file[0x28..0x30].fill(0); // e_shoff
        file[0x3c..0x40].fill(0); // e_shnum, e_shstrndx
        let image = ElfImage::parse_bytes(&file).unwrap();
        let (found, expected) = (image.tables.eh_frame.unwrap(), whole.tables.eh_frame.unwrap());
        assert_eq!(found.svma.start, expected.svma.start);
        assert!(found.bytes.starts_with(&expected.bytes));
        assert_eq!(image.tables.eh_frame_hdr, whole.tables.eh_frame_hdr);
    }

    #[test]
    fn tables_are_read_when_they_are_needed() {
        let file = own_executable();
        let (copy, reads) = (file.clone(), Arc::new(AtomicUsize::new(0)));
        let counter = Arc::clone(&reads);
        let later: ReadLater = Arc::new(move |range, _| {
            counter.fetch_add(1, Ordering::Relaxed);
            Some(copy[range.start as usize..range.end as usize].to_vec())
        });
        let image = ElfImage::parse(&file[..], &later).unwrap();
        assert!(!image.tables.is_empty());
        assert_eq!(reads.load(Ordering::Relaxed), 0);
        assert!(image.function_start(image.entry).is_some());
        assert_eq!(reads.load(Ordering::Relaxed), 2, "the index, and what it leads to");
        assert!(matches!(image.tables.find(image.entry), Found::Rule { .. }));
        image.read_tables();
        assert_eq!(reads.load(Ordering::Relaxed), 2);
        let whole = ElfImage::parse_bytes(&file).unwrap();
        whole.read_tables();
        let _ = whole.function_start(whole.entry);
        assert_eq!(image, whole);
    }

    /// The header of a program, and behind it a first section that says how many there are of the tables at its place.
    fn absurd_tables(sections: u64, segments: u32) -> Vec<u8> {
        const SIZES: std::ops::Range<usize> = 0x34..0x40;
        let mut file = own_executable();
        file.truncate(0x40);
        file[0x20..0x28].copy_from_slice(&0x40u64.to_le_bytes()); // e_phoff
        file[0x28..0x30].copy_from_slice(&0x40u64.to_le_bytes()); // e_shoff
        let sizes = [64, 56, 0xffff, 64, 0, 0]; // e_phnum and e_shnum are told by the first section
        file[SIZES].copy_from_slice(&sizes.map(u16::to_le_bytes).concat());
        let mut section = [0; 0x40];
        section[0x20..0x28].copy_from_slice(&sections.to_le_bytes());
        section[0x2c..0x30].copy_from_slice(&segments.to_le_bytes());
        file.extend(section);
        file
    }

    #[test]
    fn tables_of_headers_are_read_up_to_a_limit() {
        let gone: ReadLater = Arc::new(|_, _| None);
        // All that is there says nothing, but may be read.
        let small = [absurd_tables(3, 3), vec![0; 0x200]].concat();
        assert_eq!(ElfImage::parse(&small[..], &gone).map(|image| image.segments), Ok(Vec::new()));
        let mut large = absurd_tables(3, 1 << 18);
        large.resize(0x100 + (56 << 18), 0);
        assert_eq!(ElfImage::parse(&large[..], &gone), Err(ElfError::Damaged));
        let mut large = absurd_tables(1 << 19, 3);
        large.resize(0x100 + (64 << 19), 0);
        assert!(ElfImage::parse(&large[..], &gone).unwrap().tables.is_empty());
    }

    #[test]
    fn a_compressed_section_is_unpacked_unless_its_size_is_absurd() {
        let section = |size: u64| {
            let header =
                [&1u32.to_le_bytes()[..], &[0; 4], &size.to_le_bytes(), &8u64.to_le_bytes()].concat();
            // `abc`, stored.
            let data = [0x78, 1, 1, 3, 0, 0xfc, 0xff, b'a', b'b', b'c', 0x02, 0x4d, 0x01, 0x27];
            [&header[..], &data].concat()
        };
        assert_eq!(decompressed(section(3)), Some(b"abc".to_vec()));
        for size in [4, MAX_DECOMPRESSED_BYTES + 1, u64::MAX] {
            assert_eq!(decompressed(section(size)), None, "{size}");
        }
        assert_eq!(decompressed(vec![1; 7]), None);
    }

    #[test]
    fn what_a_compressed_section_unpacks_to_is_what_it_takes() {
        const UNPACKED: u64 = 1 << 20;
        let packed =
            [&1u32.to_le_bytes()[..], &[0; 4], &UNPACKED.to_le_bytes(), &8u64.to_le_bytes()].concat();
        let file = file_of_debug_frame(SHF_COMPRESSED.0, &packed);
        let asked = Arc::new(AtomicUsize::new(0));
        let refused: ReadLater = {
            let asked = Arc::clone(&asked);
            Arc::new(move |range, takes| {
                assert_eq!(range.end - range.start, 24);
                asked.store(takes as usize, Ordering::Relaxed);
                None
            })
        };
        let image = ElfImage::parse(&file[..], &refused).unwrap();
        assert_eq!(image.tables_bytes(), 2 * UNPACKED);
        assert_eq!(image.function_start(0x1000), None);
        assert_eq!(asked.load(Ordering::Relaxed) as u64, 2 * UNPACKED);
    }

    /// A file of nothing but a section `.debug_frame`.
    fn file_of_debug_frame(flags: u64, content: &[u8]) -> Vec<u8> {
        const NAMES: &[u8] = b"\0.debug_frame\0";
        let mut file = own_executable();
        file.truncate(0x40);
        file[0x20..0x28].fill(0); // e_phoff
        file[0x28..0x30].copy_from_slice(&0x40u64.to_le_bytes()); // e_shoff
        file[0x34..0x40].copy_from_slice(&[64, 56, 0, 64, 3, 2].map(u16::to_le_bytes).concat());
        let content_at = 0x40 + 3 * 0x40;
        let section = |name: u32, kind: u32, flags: u64, at: usize, len: usize| {
            let numbers = [flags, 0, at as u64, len as u64, 0, 1, 0].map(u64::to_le_bytes);
            [&name.to_le_bytes()[..], &kind.to_le_bytes(), &numbers.concat()].concat()
        };
        file.extend([0; 0x40]);
        file.extend(section(1, 1, flags, content_at, content.len()));
        file.extend(section(0, 3, 0, content_at + content.len(), NAMES.len()));
        file.extend(content);
        file.extend(NAMES);
        file
    }

    /// Entries of `.debug_frame`: what all have in common, and functions of 256 bytes with their instructions.
    fn debug_frame(functions: &[(u64, &[u8])]) -> Vec<u8> {
        let entry = |id: u32, body: &[&[u8]]| {
            let body = body.concat();
            [&(body.len() as u32 + 4).to_le_bytes()[..], &id.to_le_bytes(), &body].concat()
        };
        // Version 1, code alignment 1, data alignment -8; the frame's address is rsp + 8, the return address is below it.
        let mut frames = entry(u32::MAX, &[&[1, 0, 1, 0x78, 16], &[0x0c, 7, 8, 0x90, 1]]);
        for (start, instructions) in functions {
            frames.extend(entry(0, &[&start.to_le_bytes(), &0x100u64.to_le_bytes(), instructions]));
        }
        frames
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_function_that_is_not_safe_takes_no_other_of_the_section_with_it() {
        let endless = [0x0f, 3, 0x2f, 0xfd, 0xff];
        let frames = debug_frame(&[(0x1000, &[]), (0x2000, &endless), (0x3000, &[])]);
        let image = ElfImage::parse_bytes(&file_of_debug_frame(0, &frames)).unwrap();
        for good in [0x1010, 0x3010] {
            assert!(matches!(image.tables.find(good), Found::Rule { .. }), "{good:#x}");
        }
        assert!(matches!(image.tables.find(0x2010), Found::Unsafe));
        assert!(matches!(image.tables.find(0x4010), Found::Nothing));
        // Where it ends amid an entry, those before it stay.
        let cut = ElfImage::parse_bytes(&file_of_debug_frame(0, &frames[..frames.len() - 1])).unwrap();
        assert!(matches!(cut.tables.find(0x1010), Found::Rule { .. }));
    }

    /// An `.eh_frame` at this address with its index, for functions of these addresses.
    fn indexed(svma: u64, functions: &[Range<u64>]) -> (Vec<u8>, Vec<u8>) {
        const INDEX: u64 = 0x8000;
        let number = |value: u64| (value as u32).to_le_bytes();
        let common = [1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1];
        let mut frames = [&number(common.len() as u64 + 4)[..], &number(0), &common].concat();
        let pointer = svma.wrapping_sub(INDEX + 4);
        let mut index = [&[1, 0x1b, 3, 0x3b][..], &number(pointer), &number(functions.len() as u64)].concat();
        for function in functions {
            let information = svma + frames.len() as u64;
            index.extend(number(function.start.wrapping_sub(INDEX)));
            index.extend(number(information.wrapping_sub(INDEX)));
            let back = frames.len() as u64 + 4;
            frames.extend([number(20), number(back)].concat());
            frames.extend([function.start, function.end - function.start].map(u64::to_le_bytes).concat());
        }
        (frames, index)
    }

    #[test]
    fn code_without_information_is_in_no_function_and_counts_by_the_page() {
        let functions = [0x1000..0x1100, 0x1400..0x1500, 0x4800..0x4900];
        let (frames, index) = indexed(0x9000, &functions);
        let of = |index: Option<&[u8]>| {
            let index = index.map(|index| (0x8000, index));
            UnwindTables::of_bytes(Machine::X86_64, Some((0x9000, &frames)), index, None)
        };
        let listed = debug_frame(&[(0x1000, &[]), (0x1400, &[]), (0x4800, &[])]);
        let tables = [
            of(Some(&index)),
            of(None),
            UnwindTables::of_bytes(Machine::X86_64, None, None, Some((0, &listed))),
        ];
        for tables in tables {
            let image = ElfImage { tables, ..ElfImage::default() };
            for (svma, start, place) in [
                (0x800, None, 0),
                (0x1000, Some(0x1000), 0x1000),
                (0x10ff, Some(0x1000), 0x1000),
                (0x1100, None, 0x1100),
                (0x13ff, None, 0x1100),
                (0x1400, Some(0x1400), 0x1400),
                (0x1fff, None, 0x1500),
                (0x2001, None, 0x2000),
                (0x47ff, None, 0x4000),
                (0x4850, Some(0x4800), 0x4800),
                (0x4fff, None, 0x4900),
                (0x5000, None, 0x5000),
            ] {
                assert_eq!(image.function_start(svma), start, "{svma:#x}");
                assert_eq!(image.place_start(svma), place, "{svma:#x}");
            }
        }
    }

    #[test]
    fn where_the_tables_cannot_be_read_the_index_tells_functions_apart() {
        let (_, index) = indexed(0x9000, &[0x1000..0x1100, 0x1400..0x1500]);
        let index = Some((0x8000, &index[..]));
        let tables = UnwindTables::of_bytes(Machine::X86_64, Some((0x9000, &[])), index, None);
        let image = ElfImage { tables, ..ElfImage::default() };
        assert_eq!((image.place_start(0x13ff), image.place_start(0x1401)), (0x1000, 0x1400));
    }

    #[test]
    fn tables_that_cannot_be_read_any_more_are_empty() {
        let file = own_executable();
        let gone: ReadLater = Arc::new(|_, _| None);
        let image = ElfImage::parse(&file[..], &gone).unwrap();
        assert_eq!(image.function_start(image.entry), None);
        assert!(!matches!(image.tables.find(image.entry), Found::Rule { .. }));
    }

    #[test]
    fn the_bias_takes_a_mapping_back_to_the_addresses_the_file_states() {
        let text = Segment { file_offset: 0x1000, file_len: 0x500, svma: 0x401000, executable: true };
        let image = ElfImage { segments: vec![text], ..ElfImage::default() };
        assert_eq!(image.bias(0x401000, 0x1000, 0x1000), Some(0));
        assert_eq!(image.bias(0x7f00_0040_1000, 0x1000, 0x1000), Some(0x7f00_0000_0000));
        assert_eq!(image.bias(0x401000, 0x8000, 0x1000), None);
    }

    #[test]
    fn segments_that_share_a_page_of_the_file_have_each_its_own_bias() {
        let segment =
            |file_offset, file_len, svma, executable| Segment { file_offset, file_len, svma, executable };
        // The linker leaves a page's distance in memory, none in the file.
        let [first, second] = [segment(0, 0x1800, 0, true), segment(0x1800, 0x1800, 0x2800, true)];
        let data = segment(0x3000, 0x100, 0x5000, false);
        for segments in [vec![first, second, data], vec![data, second, first]] {
            let image = ElfImage { segments, ..ElfImage::default() };
            assert_eq!(image.bias(0x7000_0000, 0, 0x2000), Some(0x7000_0000));
            assert_eq!(image.bias(0x7000_2000, 0x1000, 0x2000), Some(0x7000_0000));
            // Parts of either, whose rights were changed.
            assert_eq!(image.bias(0x7000_3000, 0x2000, 0x1000), Some(0x7000_0000));
            assert_eq!(image.bias(0x7000_0000, 0, 0x1000), Some(0x7000_0000));
        }
    }

    #[test]
    fn what_runs_in_the_data_of_a_file_is_not_the_files_code() {
        let segment =
            |file_offset, svma, executable| Segment { file_offset, file_len: 0x1000, svma, executable };
        let segments =
            vec![segment(0, 0, false), segment(0x1000, 0x1000, true), segment(0x2000, 0x2000, false)];
        let image = ElfImage { segments, ..ElfImage::default() };
        assert_eq!(image.bias(0x7000_2000, 0x2000, 0x1000), None);
        assert_eq!(image.bias(0x7000_0000, 0, 0x3000), Some(0x7000_0000), "the whole file");
    }

    #[test]
    fn code_is_found_by_where_the_rest_of_its_file_is_mapped() {
        let segment =
            |file_offset, file_len, svma, executable| Segment { file_offset, file_len, svma, executable };
        // One linker gives each segment pages of the file of its own, another lets them share.
        let apart = [
            segment(0, 0x800, 0, false),
            segment(0x1000, 0x3800, 0x1000, true),
            segment(0x5000, 0x100, 0x6000, false),
        ];
        let shared = [
            segment(0, 0x800, 0, false),
            segment(0x800, 0x4000, 0x1800, true),
            segment(0x4800, 0x100, 0x6800, false),
        ];
        const BASE: u64 = 0x7000_0000;
        for (segments, parts, first) in [
            (apart, [(BASE, 0, 0x1000), (BASE + 0x6000, 0x5000, 0x1000)], 0x1000),
            (shared, [(BASE, 0, 0x1000), (BASE + 0x6000, 0x4000, 0x1000)], 0),
        ] {
            let image = ElfImage { segments: segments.to_vec(), ..ElfImage::default() };
            for (start, expected) in [
                (BASE + 0x1000, Some(first)),
                (BASE + 0x3000, Some(first + 0x2000)),
                (BASE + 0x7000, None),
                (BASE - 0x1000, None),
            ] {
                let found = image.offset_of_code(start, &parts);
                assert_eq!(found, expected, "{start:#x}");
                if let Some(offset) = found {
                    assert_eq!(image.bias(start, offset, 0x1000), Some(BASE), "{start:#x}");
                }
            }
            assert_eq!(image.offset_of_code(BASE + 0x1000, &[]), None);
            let elsewhere = [parts[0], (BASE + 0x9000, parts[1].1, parts[1].2)];
            assert_eq!(image.offset_of_code(BASE + 0x1000, &elsewhere), None);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn damaged_files_do_not_panic(
            flips in prop::collection::vec((0usize..4096, any::<u8>()), 0..40),
            len in 0usize..1_000_000,
        ) {
            let mut file = own_executable();
            for (at, byte) in flips {
                file[at] = byte;
            }
            file.truncate(len);
            if let Ok(image) = ElfImage::parse_bytes(&file) {
                let _ = image.bias(0x1000, 0, u64::MAX);
                let _ = image.offset_of_code(len as u64, &[(len as u64, 0, u64::MAX), (0, u64::MAX, 1)]);
                let _ = image.base_svma();
                let _ = image.function_start(len as u64);
                assert!(image.place_start(len as u64) <= len as u64);
            }
        }
    }
}
