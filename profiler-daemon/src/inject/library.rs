//! The agent's library: its file, and where it lies in a process.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use agent_memory::CONTROL;
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol};

use super::InjectionRefused;
use super::code::Area;

/// What the library is called where it is mapped.
pub(super) const LIBRARY_NAME: &str = "sweetspot-agent";

/// The agent's file, as far as it is loaded.
pub(super) struct Agent {
    pub(super) bytes: Vec<u8>,
    pub(super) control: u64,
    /// Where its code is in the file, and how long it is.
    text: (u64, u64),
}

impl Agent {
    /// The parts of the file that are loaded: names and lines for debuggers would only take memory.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let bytes = fs::read(path).map_err(|error| error.to_string())?;
        let unknown = || "it is not sweetspot's agent".to_owned();
        let elf = ElfFile64::<Endianness>::parse(&*bytes).map_err(|error| error.to_string())?;
        let control =
            elf.dynamic_symbols().find(|symbol| symbol.name() == Ok(CONTROL)).ok_or_else(unknown)?;
        let control = control.address();
        let endian = elf.endian();
        let segments =
            elf.elf_header().program_headers(endian, &*bytes).map_err(|error| error.to_string())?;
        let loaded = || segments.iter().filter(|segment| segment.p_type(endian) == object::elf::PT_LOAD);
        let length = loaded().map(|segment| segment.p_offset(endian) + segment.p_filesz(endian)).max();
        let text = loaded().find(|segment| {
            segment.p_vaddr(endian) <= control && control < segment.p_vaddr(endian) + segment.p_memsz(endian)
        });
        let text =
            text.map(|segment| (segment.p_offset(endian), segment.p_filesz(endian))).ok_or_else(unknown)?;
        let length = length.and_then(|length| usize::try_from(length).ok()).ok_or_else(unknown)?;
        let mut bytes = bytes.get(..length).ok_or_else(unknown)?.to_vec();
        for (at, count) in [(40, 8), (58, 6)] {
            bytes[at..at + count].fill(0); // the table of sections, which lies behind
        }
        Ok(Self { bytes, control, text })
    }

    /// Where the agent lies in a process, if it does.
    pub(super) fn find(&self, areas: &[Area], memory: &File) -> Result<Option<u64>, InjectionRefused> {
        let is_agent = |area: &&Area| {
            area.name == format!("/memfd:{LIBRARY_NAME}") || area.file() == "libsweetspot_agent.so"
        };
        let mut parts = areas.iter().filter(is_agent);
        let Some(first) = parts.find(|area| area.offset == 0) else { return Ok(None) };
        let (offset, length) = self.text;
        let text = self.bytes.get(offset as usize..(offset + length) as usize);
        let code = areas.iter().filter(is_agent).find(|area| area.executable && area.start >= first.start);
        let is_same = code.zip(text).is_some_and(|(code, text)| {
            let mut there = vec![0; text.len()];
            let at = code.start + (offset - code.offset.min(offset));
            memory.read_exact_at(&mut there, at).is_ok() && there == text
        });
        if is_same {
            return Ok(Some(first.start));
        }
        Err(InjectionRefused::Failed(
            "has loaded the agent of another version of sweetspot; attach with that one, or start it again"
                .to_owned(),
        ))
    }
}
