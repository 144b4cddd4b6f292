//! What unwinding needs of an ELF file: where its segments lie and its tables of unwind information.

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
    CompressionHeader64, ELFCOMPRESS_ZLIB, FileHeader64, PF_X, PT_GNU_EH_FRAME, PT_LOAD, SHF_COMPRESSED,
    SectionHeader64,
};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use object::{CompressedData, CompressionFormat, Endianness, ReadRef};

use crate::machine::Machine;

pub use build_id::BuildId;
pub use later::ReadLater;
pub(crate) use later::SectionBytes;
pub(crate) use tables::Found;
pub use tables::UnwindTables;

type Header = FileHeader64<Endianness>;

/// More unwind information than any real file has; larger ones are taken for damaged.
const MAX_SECTION_BYTES: u64 = 512 << 20;
/// The same for one that is compressed, which states its own size.
const MAX_DECOMPRESSED_BYTES: u64 = 64 << 20;
/// `DW_EH_PE_pcrel | DW_EH_PE_sdata4`: how every linker writes the pointer to `.eh_frame`.
const PCREL_SDATA4: u8 = 0x1b;

/// A section: the addresses it states and its bytes.
#[derive(Clone, PartialEq, Eq)]
/// The smallest page of any machine.
const LEAST_PAGE_BYTES: u64 = 4096;
/// The kernel runs no program with more than a fiftieth of this.
const MOST_SEGMENTS: usize = 1 << 16;
pub(crate) struct Section {
    /// Stated virtual memory addresses.
    pub(crate) svma: Range<u64>,
    /// Content.
    pub(crate) bytes: SectionBytes,
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

/// What unwinding needs of an ELF file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ElfImage {
    /// Loadable segments in the file's order.
    pub segments: Vec<Segment>,
    /// Stated address of the first instruction of a program; 0 in most libraries.
    pub entry: u64,
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
    /// A damaged section is left out, damaged headers are an error.
    pub fn parse<'d>(file: impl ReadRef<'d>, later: &ReadLater) -> Result<Self, ElfError> {
        let header = Header::parse(file).map_err(|_| ElfError::NotElf)?;
        let endian = header.endian().map_err(|_| ElfError::NotElf)?;
        let machine = Machine::of_elf(header.e_machine(endian)).ok_or(ElfError::OtherMachine)?;
        let programs = header.program_headers(endian, file).map_err(|_| ElfError::Damaged)?;
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
        let later: ReadLater = Arc::new(move |range| {
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
    /// from `file_offset` on. `None` where no segment lies there.
    pub fn bias(&self, start: u64, file_offset: u64, len: u64) -> Option<u64> {
        let end = file_offset.checked_add(len)?;
        // The mapping is executable, so prefer such a segment. Two may share a page of the file, which both their mappings have:
        // then it is the one that begins there, else the one that most of the mapping is of.
        let overlap = |s: &Segment| {
            let overlap =
                s.file_offset.saturating_add(s.file_len).min(end).checked_sub(s.file_offset.max(file_offset));
            overlap.filter(|&bytes| bytes > 0)
        };
        let begins = |s: &Segment| s.file_offset & !(LEAST_PAGE_BYTES - 1) == file_offset;
        let candidates =
            self.segments.iter().filter_map(|s| Some(((s.executable, begins(s), overlap(s)?), s)));
        // Of equal ones the first.
        let (_, segment) = candidates.rev().max_by_key(|&(rank, _)| rank)?;
        Some(start.wrapping_sub(segment.svma.wrapping_sub(segment.file_offset).wrapping_add(file_offset)))
    }

    /// The lowest stated address: the base that relative addresses count from.
    pub fn base_svma(&self) -> u64 {
        self.segments.iter().map(|s| s.svma & !0xfff).min().unwrap_or(0)
    }

    /// Where the function that holds a stated address begins, by the index of unwind information: enough to
    /// count samples by function before there are names.
    pub fn function_start(&self, svma: u64) -> Option<u64> {
        self.tables.function_start(svma)
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
        let eh_frame = Section::in_file(eh_frame_svma, information, file, &eh_frame_later, as_it_is);
        let index = Section::in_file(hdr.start, index, file, later, as_it_is);
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

fn tables_from_sections<'d>(
    machine: Machine,
    header: &Header,
    endian: Endianness,
    file: impl ReadRef<'d>,
    later: &ReadLater,
) -> UnwindTables {
    let (mut eh_frame, mut eh_frame_hdr, mut debug_frame) = (None, None, None);
    let Ok(sections) = header.sections(endian, file) else { return UnwindTables::none(machine) };
    let eh_frame_later = pointer_auth::reading(machine, later);
    for section in sections.iter() {
        let (slot, later) = match sections.section_name(endian, section) {
            Ok(b".eh_frame") => (&mut eh_frame, &eh_frame_later),
            Ok(b".eh_frame_hdr") if is_usual_index(section, endian, file) => (&mut eh_frame_hdr, later),
            Ok(b".debug_frame") => (&mut debug_frame, later),
            _ => continue,
        };
        let in_file = section.file_range(endian).filter(|&(_, len)| len > 0);
        let range = in_file.and_then(|(start, len)| Some(start..start.checked_add(len)?));
        let is_compressed = section.sh_flags(endian).contains(SHF_COMPRESSED);
        let unpack = if is_compressed { decompressed } else { as_it_is };
        *slot = range.and_then(|range| Section::in_file(section.sh_addr(endian), range, file, later, unpack));
    }
    UnwindTables::new(machine, eh_frame, eh_frame_hdr, debug_frame)
}

/// What makes the bytes of a section of those in the file.
type Unpack = fn(Vec<u8>) -> Option<Vec<u8>>;

fn as_it_is(bytes: Vec<u8>) -> Option<Vec<u8>> {
    Some(bytes)
}

/// As Go's linker leaves `.debug_frame`.
fn decompressed(bytes: Vec<u8>) -> Option<Vec<u8>> {
    let (header, data) = object::pod::from_bytes::<CompressionHeader64<Endianness>>(&bytes).ok()?;
    let endian = Endianness::Little;
    let uncompressed_size =
        Some(header.ch_size.get(endian)).filter(|&size| size <= MAX_DECOMPRESSED_BYTES)?;
    let is_usual = header.ch_type.get(endian) == ELFCOMPRESS_ZLIB;
    let format = is_usual.then_some(CompressionFormat::Zlib)?;
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
        let svma = Self::addresses(svma, u64::try_from(bytes.len()).ok()?)?;
        Some(Self { svma, bytes: SectionBytes::new(bytes) })
    }

    /// A section that is read later; none where the file ends before it does.
    fn in_file<'d>(
        svma: u64,
        range: Range<u64>,
        file: impl ReadRef<'d>,
        later: &ReadLater,
        unpack: Unpack,
    ) -> Option<Self> {
        if range.end > file.len().ok()? {
            return None;
        }
        let svma = Self::addresses(svma, range.end - range.start)?;
        let later = Arc::clone(later);
        let len = range.end - range.start;
        let whole = move || later(range.clone()).filter(|bytes| bytes.len() as u64 == len);
        let read = move || whole().and_then(unpack).unwrap_or_default();
        Some(Self { svma, bytes: SectionBytes::when_needed(read) })
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
        let later: ReadLater = Arc::new(move |range| {
            counter.fetch_add(1, Ordering::Relaxed);
            Some(copy[range.start as usize..range.end as usize].to_vec())
        });
        let image = ElfImage::parse(&file[..], &later).unwrap();
        assert!(!image.tables.is_empty());
        assert_eq!(reads.load(Ordering::Relaxed), 0);
        assert!(image.function_start(image.entry).is_some());
        assert_eq!(reads.load(Ordering::Relaxed), 1, "the index");
        assert!(matches!(image.tables.find(image.entry), Found::Rule { .. }));
        image.read_tables();
        assert_eq!(reads.load(Ordering::Relaxed), 2);
        let whole = ElfImage::parse_bytes(&file).unwrap();
        whole.read_tables();
        let _ = whole.function_start(whole.entry);
        assert_eq!(image, whole);
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
    fn tables_that_cannot_be_read_any_more_are_empty() {
        let file = own_executable();
        let gone: ReadLater = Arc::new(|_| None);
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
                let _ = image.base_svma();
                let _ = image.function_start(len as u64);
            }
        }
    }
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

