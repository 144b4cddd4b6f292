//! Reading an ELF object section by section.

mod compressed;
mod go;
mod notes;
mod plt;
mod symbols;
mod unwound;
mod versions;

use std::ops::Range;

use object::LittleEndian as Le;
use object::elf::{self, FileHeader64, SectionHeader64};
use object::pod;

pub(crate) use self::symbols::{NamePosition, SymbolTable};
use crate::reason::Reason;
use crate::source::ReadAt;

/// The largest section that is read. Chrome's `.debug_info`, the largest known to us, has .9 GiB.
const LARGEST_SECTION: u64 = 1 << 30;
/// Objects built with a section for each function have some ten thousand sections.
const MOST_SECTIONS: u64 = 1 << 20;
/// The names of so many sections.
const LARGEST_NAMES: u64 = 64 << 20;
/// Longer than any section's name that is looked for.
const LONGEST_SECTION_NAME: usize = 64;
const HEADER_SIZE: usize = size_of::<FileHeader64<Le>>();
const SECTION_HEADER_SIZE: usize = size_of::<SectionHeader64<Le>>();

/// An ELF object's section headers, and where to read the sections from.
pub(crate) struct Elf<'s> {
    source: &'s dyn ReadAt,
    len: u64,
    machine: elf::Machine,
    sections: Vec<SectionHeader>,
    names: Vec<u8>,
}

/// What a section header says, in this machine's byte order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SectionHeader {
    name: u32,
    kind: elf::SectionType,
    flags: elf::SectionFlags,
    address: u64,
    offset: u64,
    size: u64,
    link: u32,
}

impl<'s> Elf<'s> {
    pub(crate) fn parse(source: &'s dyn ReadAt) -> Result<Self, Reason> {
        let len = source.len()?;
        let ident = source.read_at(0, HEADER_SIZE.min(usize::try_from(len).unwrap_or(HEADER_SIZE)))?;
        if !ident.starts_with(&elf::ELFMAG) {
            return Err(Reason::NotElf);
        }
        let (header, _) = pod::from_bytes::<FileHeader64<Le>>(&ident)
            .map_err(|()| Reason::corrupt("the file ends inside its header"))?;
        if header.e_ident.class != elf::ELFCLASS64 || header.e_ident.data != elf::ELFDATA2LSB {
            return Err(Reason::OtherElf);
        }
        let machine = header.e_machine.get(Le);
        let mut elf = Self { source, len, machine, sections: Vec::new(), names: Vec::new() };
        if header.e_shoff.get(Le) != 0 {
            elf.read_section_headers(header)?;
        }
        Ok(elf)
    }

    fn read_section_headers(&mut self, header: &FileHeader64<Le>) -> Result<(), Reason> {
        if usize::from(header.e_shentsize.get(Le)) != SECTION_HEADER_SIZE {
            return Err(Reason::corrupt("section headers of an unknown size"));
        }
        let offset = header.e_shoff.get(Le);
        // Numbers that do not fit the file header are kept in the first section header.
        let first =
            self.raw_headers(offset, 1)?.first().copied().ok_or(Reason::corrupt("no section header"))?;
        let count = match header.e_shnum.get(Le) {
            0 => first.size,
            count => count.into(),
        };
        if count > MOST_SECTIONS {
            return Err(Reason::TooLarge { what: "the table of section headers".into(), bytes: count });
        }
        self.sections = self.raw_headers(offset, count)?;
        let names = match header.e_shstrndx.get(Le) {
            elf::SHN_XINDEX => first.link,
            index => index.0.into(),
        };
        self.names = self
            .sections
            .get(names as usize)
            .map_or(Ok(Vec::new()), |section| self.read_within(section, LARGEST_NAMES))?;
        Ok(())
    }

    fn raw_headers(&self, offset: u64, count: u64) -> Result<Vec<SectionHeader>, Reason> {
        let bytes =
            self.read_range("the table of section headers", offset, count * SECTION_HEADER_SIZE as u64)?;
        let headers = pod::slice_from_all_bytes::<SectionHeader64<Le>>(&bytes).unwrap_or_default();
        Ok(headers.iter().map(SectionHeader::from).collect())
    }

    /// Reads a range of the file, which must lie inside it.
    fn read_range(&self, what: &str, offset: u64, size: u64) -> Result<Vec<u8>, Reason> {
        let end = offset.checked_add(size);
        if end.is_none_or(|end| end > self.len) {
            return Err(Reason::corrupt("a section reaches past the end of the file"));
        }
        let bytes = usize::try_from(size).ok().filter(|_| size <= LARGEST_SECTION);
        let size = bytes.ok_or_else(|| Reason::TooLarge { what: what.to_owned(), bytes: size })?;
        Ok(self.source.read_at(offset, size)?)
    }

    /// What the headers take of memory.
    pub(crate) fn held_bytes(&self) -> u64 {
        (self.sections.len() * size_of::<SectionHeader>() + self.names.len()) as u64
    }

    pub(crate) fn sections(&self) -> impl Iterator<Item = &SectionHeader> {
        self.sections.iter()
    }

    pub(crate) fn name(&self, section: &SectionHeader) -> &[u8] {
        c_string(&self.names, section.name as usize, LONGEST_SECTION_NAME)
    }

    /// The section of this name, or of the one that older tools give it if they compress it.
    pub(crate) fn find(&self, name: &str) -> Option<&SectionHeader> {
        let named = |name: &str| self.sections.iter().find(|section| self.name(section) == name.as_bytes());
        named(name).or_else(|| named(&compressed::legacy_name(name)?))
    }

    /// A section that has contents in this file; debug files keep headers without contents.
    pub(crate) fn find_contents(&self, name: &str) -> Option<&SectionHeader> {
        self.find(name).filter(|section| section.kind != elf::SHT_NOBITS && section.size > 0)
    }

    /// A section's bytes, decompressed if need be. Sections without contents have none.
    pub(crate) fn read(&self, section: &SectionHeader) -> Result<Vec<u8>, Reason> {
        if section.kind == elf::SHT_NOBITS {
            return Ok(Vec::new());
        }
        let name = || String::from_utf8_lossy(self.name(section)).into_owned();
        let bytes = self.read_range(&name(), section.offset, section.size)?;
        if section.flags.0 & elf::SHF_COMPRESSED.0 == 0 {
            return compressed::decompress_legacy(&name(), bytes);
        }
        compressed::decompress(&name(), &bytes)
    }

    /// The same of a section that has no more bytes than this, packed or not.
    pub(crate) fn read_within(&self, section: &SectionHeader, most_bytes: u64) -> Result<Vec<u8>, Reason> {
        let bytes = section.size.max(self.size_unpacked(section));
        if section.kind != elf::SHT_NOBITS && bytes > most_bytes {
            let what = String::from_utf8_lossy(self.name(section)).into_owned();
            return Err(Reason::TooLarge { what, bytes });
        }
        self.read(section)
    }

    /// The bytes of a section of this name, or none if there is no such section.
    pub(crate) fn read_named(&self, name: &str) -> Result<Vec<u8>, Reason> {
        self.find(name).map_or(Ok(Vec::new()), |section| self.read(section))
    }

    /// Where in the file a section of this name lies, unless it is compressed, missing or without contents.
    pub(crate) fn stored(&self, name: &str) -> Option<Range<u64>> {
        let section = self.find_contents(name)?;
        let end = section.offset.checked_add(section.size).filter(|&end| end <= self.len)?;
        (!self.is_compressed(section)).then_some(section.offset..end)
    }

    /// The size of a section of this name once it is read, as far as its headers tell the truth.
    pub(crate) fn size_of(&self, name: &str) -> u64 {
        self.find_contents(name).map_or(0, |section| self.size_unpacked(section))
    }

    /// The size of `.symtab`; 0 if there is none in this file.
    pub(crate) fn symtab_bytes(&self) -> u64 {
        let symtab = self.sections.iter().find(|section| section.kind == elf::SHT_SYMTAB);
        symtab.map_or(0, |section| self.size_unpacked(section))
    }

    fn size_unpacked(&self, section: &SectionHeader) -> u64 {
        if !self.is_compressed(section) {
            return section.size;
        }
        let header = self.read_range("", section.offset, compressed::HEADER_SIZE.min(section.size));
        compressed::size_after(section.flags, &header.unwrap_or_default())
    }

    fn is_compressed(&self, section: &SectionHeader) -> bool {
        section.flags.0 & elf::SHF_COMPRESSED.0 != 0 || compressed::is_legacy(self.name(section))
    }

    /// Of each symbol of a table, the section's index if it is too large for the symbol itself: four bytes. None if no
    /// section has so large an index.
    fn large_indices(&self, symbols: &SectionHeader) -> Result<Vec<u8>, Reason> {
        if self.sections.len() <= usize::from(elf::SHN_LORESERVE) {
            return Ok(Vec::new());
        }
        let is_of = |section: &&SectionHeader| {
            section.kind == elf::SHT_SYMTAB_SHNDX
                && self.linked(section).is_some_and(|linked| std::ptr::eq(linked, symbols))
        };
        self.sections().find(is_of).map_or(Ok(Vec::new()), |section| self.read_within(section, LARGEST_NAMES))
    }

    fn linked(&self, section: &SectionHeader) -> Option<&SectionHeader> {
        self.sections.get(section.link as usize)
    }
}

impl From<&SectionHeader64<Le>> for SectionHeader {
    fn from(header: &SectionHeader64<Le>) -> Self {
        Self {
            name: header.sh_name.get(Le),
            kind: header.sh_type.get(Le),
            flags: header.sh_flags.get(Le),
            address: header.sh_addr.get(Le),
            offset: header.sh_offset.get(Le),
            size: header.sh_size.get(Le),
            link: header.sh_link.get(Le),
        }
    }
}

impl SectionHeader {
    fn is_executable(&self) -> bool {
        self.flags.0 & elf::SHF_EXECINSTR.0 != 0
    }

    fn end(&self) -> u64 {
        self.address.saturating_add(self.size)
    }
}

/// The whole entries of a table.
fn entries<T: pod::Pod>(bytes: &[u8]) -> &[T] {
    let whole = bytes.len() - bytes.len() % size_of::<T>();
    pod::slice_from_all_bytes(&bytes[..whole]).unwrap_or_default()
}

/// The bytes from `offset` up to the next NUL, but `longest` at most; none if that is outside.
pub(crate) fn c_string(bytes: &[u8], offset: usize, longest: usize) -> &[u8] {
    let rest = bytes.get(offset..).unwrap_or_default();
    // A table may lack NULs: many names that each run to its end would take for ever to measure.
    let rest = &rest[..rest.len().min(longest)];
    rest.split(|&b| b == 0).next().unwrap_or_default()
}
