//! What an object says about its build and its separate debug files.

use std::fmt::Write;

use object::elf;

use super::{Elf, c_string};

/// Notes are a few dozen bytes; larger sections of them are not build ids.
const LARGEST_NOTES: u64 = 64 << 10;
/// Linux knows no longer paths.
const LONGEST_PATH: usize = 4096;
/// An object has about four sections of notes.
const MOST_NOTES: usize = 32;
const NT_GNU_BUILD_ID: u32 = 3;

/// The name and checksum in `.gnu_debuglink`.
pub(crate) struct DebugLink {
    pub(crate) file: String,
    pub(crate) crc: u32,
}

/// The path and build id in `.gnu_debugaltlink`.
pub(crate) struct AltLink {
    pub(crate) path: String,
    pub(crate) build_id: String,
}

impl Elf<'_> {
    /// The build id in hexadecimal.
    pub(crate) fn build_id(&self) -> Option<String> {
        let notes =
            self.sections().filter(|section| section.kind == elf::SHT_NOTE && section.size <= LARGEST_NOTES);
        notes
            .take(MOST_NOTES)
            .filter_map(|section| build_id(&self.read_within(section, LARGEST_NOTES).ok()?))
            .next()
    }

    pub(crate) fn debug_link(&self) -> Option<DebugLink> {
        let bytes = self.read_within(self.find_contents(".gnu_debuglink")?, LARGEST_NOTES).ok()?;
        let name = c_string(&bytes, 0, LONGEST_PATH);
        let crc = bytes.get((name.len() + 1).next_multiple_of(4)..)?.first_chunk()?;
        Some(DebugLink { file: String::from_utf8(name.to_vec()).ok()?, crc: u32::from_le_bytes(*crc) })
    }

    pub(crate) fn alt_link(&self) -> Option<AltLink> {
        let bytes = self.read_within(self.find_contents(".gnu_debugaltlink")?, LARGEST_NOTES).ok()?;
        let path = c_string(&bytes, 0, LONGEST_PATH);
        let build_id = hex(bytes.get(path.len() + 1..)?);
        Some(AltLink { path: String::from_utf8(path.to_vec()).ok()?, build_id })
    }
}

/// Finds the build id among notes: sizes of name and description, type, and both padded to four bytes.
fn build_id(mut notes: &[u8]) -> Option<String> {
    loop {
        let (name_len, rest) = word(notes)?;
        let (desc_len, rest) = word(rest)?;
        let (kind, rest) = word(rest)?;
        let name = rest.get(..name_len as usize)?;
        let rest = rest.get((name_len as usize).next_multiple_of(4)..)?;
        let desc = rest.get(..desc_len as usize)?;
        if kind == NT_GNU_BUILD_ID && name == b"GNU\0" && !desc.is_empty() {
            return Some(hex(desc));
        }
        notes = rest.get((desc_len as usize).next_multiple_of(4)..)?;
    }
}

fn word(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (word, rest) = bytes.split_first_chunk()?;
    Some((u32::from_le_bytes(*word), rest))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a string cannot fail
        text
    })
}
