//! What a linker calls a build: equal builds have equal code.

use std::fmt;

use object::elf::NT_GNU_BUILD_ID;
use object::read::elf::ProgramHeader;
use object::{Endianness, ReadRef, elf};

/// Notes are a few dozen bytes; larger segments of them are not read.
const LARGEST_NOTES: u64 = 64 << 10;
/// Programs have two or three segments of notes.
const MOST_NOTES: usize = 32;
/// Shorter ones are made up by hand, and say nothing.
const SHORTEST: usize = 8;
const LONGEST: usize = 64;

/// The name of a build, as its linker computed it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct BuildId(Box<[u8]>);

impl BuildId {
    /// The one that a file states in its segments of notes.
    pub(super) fn find<'d, P: ProgramHeader<Endian = Endianness>>(
        programs: &[P],
        endian: Endianness,
        file: impl ReadRef<'d>,
    ) -> Option<Self> {
        let is_notes = |p: &&P| {
            p.p_type(endian) == elf::PT_NOTE && Into::<u64>::into(p.p_filesz(endian)) <= LARGEST_NOTES
        };
        programs.iter().filter(is_notes).take(MOST_NOTES).find_map(|p| {
            let mut notes = p.notes(endian, file).ok()??;
            while let Ok(Some(note)) = notes.next() {
                if note.name() == b"GNU" && note.n_type(endian) == NT_GNU_BUILD_ID {
                    return Self::new(note.desc());
                }
            }
            None
        })
    }

    /// A build id of these bytes, if they are enough to be one.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let says_something = bytes.iter().any(|&byte| byte != bytes[0]);
        ((SHORTEST..=LONGEST).contains(&bytes.len()) && says_something).then(|| Self(bytes.into()))
    }
}

impl fmt::Debug for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_computed_name_is_none() {
        assert_eq!(BuildId::new(&[1, 2, 3, 4, 5, 6, 7, 0xab]).unwrap().to_string(), "01020304050607ab");
        for bytes in [&[][..], &[1, 2, 3], &[0; 20], &[7; 16], &[1; 100]] {
            assert_eq!(BuildId::new(bytes), None, "{bytes:?}");
        }
    }
}
