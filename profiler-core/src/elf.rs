//! What unwinding needs of an ELF file: where its segments lie and its tables of unwind information.

mod index;
pub(crate) mod rules;
mod tables;
mod vetting;

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use object::elf::{
    CompressionHeader64, ELFCOMPRESS_ZLIB, FileHeader64, PF_X, PT_GNU_EH_FRAME, PT_LOAD, SHF_COMPRESSED,
    SectionHeader64,
};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use object::{CompressedData, CompressionFormat, Endianness, ReadRef};

pub use tables::UnwindTables;
pub(crate) use tables::{Found, SectionBytes};

type Header = FileHeader64<Endianness>;

/// More unwind information than any real file has; larger ones are taken for damaged.
const MAX_SECTION_BYTES: u64 = 512 << 20;
/// The same for one that is compressed, which states its own size.
const MAX_DECOMPRESSED_BYTES: u64 = 64 << 20;
/// `DW_EH_PE_pcrel | DW_EH_PE_sdata4`: how every linker writes the pointer to `.eh_frame`.
const PCREL_SDATA4: u8 = 0x1b;

/// A section: the addresses it states and its bytes.
#[derive(Clone, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
}

/// Why a file is of no use for unwinding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ElfError {
    /// No ELF header, or not of a 64-bit little-endian object.
    #[error("not a 64-bit ELF object")]
    NotElf,
    /// The headers contradict the file.
    #[error("the ELF headers are damaged")]
    Damaged,
}

impl ElfImage {
    /// Reads the headers and the unwind tables of `file`.
    ///
    /// A damaged section is left out, damaged headers are an error.
    pub fn parse<'d>(file: impl ReadRef<'d>) -> Result<Self, ElfError> {
        let header = Header::parse(file).map_err(|_| ElfError::NotElf)?;
        let endian = header.endian().map_err(|_| ElfError::NotElf)?;
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
            ..Self::default()
        };
        image.tables = tables_from_sections(header, endian, file);
        if image.tables.is_empty() {
            let index = programs.iter().find(|p| p.p_type(endian) == PT_GNU_EH_FRAME);
            let found = index.and_then(|index| {
                image.tables_from_segments(index.p_vaddr(endian), index.p_filesz(endian), file)
            });
            image.tables = found.unwrap_or_default();
        }
        Ok(image)
    }

    /// The address to subtract from an actual address to get the stated one, for code mapped at `start`
    /// from `file_offset` on. `None` where no segment lies there.
    pub fn bias(&self, start: u64, file_offset: u64, len: u64) -> Option<u64> {
        let end = file_offset.checked_add(len)?;
        let overlaps =
            |s: &&Segment| s.file_offset < end && file_offset < s.file_offset.saturating_add(s.file_len);
        let mut candidates = self.segments.iter().filter(overlaps).collect::<Vec<_>>();
        candidates.sort_by_key(|s| !s.executable); // the mapping is executable, so prefer such a segment
        let segment = candidates.first()?;
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
        hdr_svma: u64,
        hdr_len: u64,
        file: impl ReadRef<'d>,
    ) -> Option<UnwindTables> {
        let index = self.read_at(hdr_svma, hdr_len, file)?;
        let (&[_, PCREL_SDATA4, _, _], rest) = index.split_first_chunk::<4>()? else { return None };
        let (offset, _) = rest.split_first_chunk::<4>()?;
        let pointer = i64::from(i32::from_le_bytes(*offset));
        let eh_frame_svma = hdr_svma.wrapping_add(4).wrapping_add_signed(pointer);
        let information = self.read_at(eh_frame_svma, u64::MAX, file)?;
        Some(UnwindTables::new(Some((eh_frame_svma, information)), Some((hdr_svma, index)), None))
    }

    /// The bytes at a stated address, at most `len` and no further than the segment.
    fn read_at<'d>(&self, svma: u64, len: u64, file: impl ReadRef<'d>) -> Option<&'d [u8]> {
        let inside = |s: &&Segment| svma.checked_sub(s.svma).is_some_and(|offset| offset < s.file_len);
        let segment = self.segments.iter().find(inside)?;
        let offset = svma - segment.svma;
        let len = len.min(segment.file_len - offset).min(MAX_SECTION_BYTES);
        file.read_bytes_at(segment.file_offset.checked_add(offset)?, len).ok()
    }
}

fn tables_from_sections<'d>(header: &Header, endian: Endianness, file: impl ReadRef<'d>) -> UnwindTables {
    let (mut eh_frame, mut eh_frame_hdr, mut debug_frame) = (None, None, None);
    let Ok(sections) = header.sections(endian, file) else { return UnwindTables::default() };
    for section in sections.iter() {
        let slot = match sections.section_name(endian, section) {
            Ok(b".eh_frame") => &mut eh_frame,
            Ok(b".eh_frame_hdr") => &mut eh_frame_hdr,
            Ok(b".debug_frame") => &mut debug_frame,
            _ => continue,
        };
        *slot = contents(section, endian, file).map(|bytes| (section.sh_addr(endian), bytes));
    }
    let (eh_frame, eh_frame_hdr, debug_frame) = (&eh_frame, &eh_frame_hdr, &debug_frame);
    UnwindTables::new(borrowed(eh_frame), borrowed(eh_frame_hdr), borrowed(debug_frame))
}

fn borrowed<'a>(section: &'a Option<(u64, Cow<'_, [u8]>)>) -> Option<(u64, &'a [u8])> {
    section.as_ref().map(|(svma, bytes)| (*svma, &bytes[..]))
}

/// The bytes of a section, if there are any and they are of use.
fn contents<'d>(
    section: &SectionHeader64<Endianness>,
    endian: Endianness,
    file: impl ReadRef<'d>,
) -> Option<Cow<'d, [u8]>> {
    let bytes = section.data(endian, file).ok().filter(|bytes| !bytes.is_empty())?;
    if !section.sh_flags(endian).contains(SHF_COMPRESSED) {
        return Some(Cow::Borrowed(bytes));
    }
    // As Go's linker leaves `.debug_frame`.
    let (header, data) = object::pod::from_bytes::<CompressionHeader64<Endianness>>(bytes).ok()?;
    let is_usual = header.ch_type.get(endian) == ELFCOMPRESS_ZLIB
        && header.ch_size.get(endian) <= MAX_DECOMPRESSED_BYTES;
    let format = is_usual.then_some(CompressionFormat::Zlib)?;
    let compressed = CompressedData { format, data, uncompressed_size: header.ch_size.get(endian) };
    compressed.decompress().ok()
}

impl Section {
    fn new(svma: u64, bytes: &[u8]) -> Option<Self> {
        let len = u64::try_from(bytes.len()).ok().filter(|&len| len <= MAX_SECTION_BYTES)?;
        Some(Self { svma: svma..svma.checked_add(len)?, bytes: SectionBytes::new(bytes) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn own_executable() -> Vec<u8> {
        let path = std::env::current_exe().unwrap();
        #[expect(clippy::disallowed_methods, reason = "a test may read its own executable")]
        std::fs::read(path).unwrap()
    }

    #[test]
    fn an_executable_has_segments_and_unwind_tables() {
        let image = ElfImage::parse(&own_executable()[..]).unwrap();
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
        let whole = ElfImage::parse(&file[..]).unwrap();
        file[0x28..0x30].fill(0); // e_shoff
        file[0x3c..0x40].fill(0); // e_shnum, e_shstrndx
        let image = ElfImage::parse(&file[..]).unwrap();
        let (found, expected) = (image.tables.eh_frame.unwrap(), whole.tables.eh_frame.unwrap());
        assert_eq!(found.svma.start, expected.svma.start);
        assert!(found.bytes.starts_with(&expected.bytes));
        assert_eq!(image.tables.eh_frame_hdr, whole.tables.eh_frame_hdr);
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
            if let Ok(image) = ElfImage::parse(&file[..]) {
                let _ = image.bias(0x1000, 0, u64::MAX);
                let _ = image.base_svma();
                let _ = image.function_start(len as u64);
            }
        }
    }
}
