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

pub use self::bounded::{Allowance, Bounded};
use crate::machine::Machine;

pub use build_id::BuildId;
pub use later::ReadLater;
pub(crate) use later::SectionBytes;
use tables::AddressPosition;
pub use tables::UnwindTables;
pub(crate) use tables::{Callers, FoundRule};

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
            AddressPosition::Within { start } => start,
            AddressPosition::Behind { end } => end.max(svma & !(LEAST_PAGE_BYTES - 1)),
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
mod tests;
