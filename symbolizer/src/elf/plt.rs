//! Names for the stubs that calls into other objects go through.

use object::LittleEndian as Le;
use object::elf::{self, Rela64, Sym64};
use rustc_hash::FxHashMap;

use super::symbols::{Candidate, NamePosition};
use super::{Elf, SectionHeader, c_string, entries};

const STUB_SIZE: usize = 16;
const STUB_SECTIONS: [&[u8]; 3] = [b".plt", b".plt.sec", b".plt.got"];
/// A section of stubs larger than this is not one: it would hold a quarter of a million functions.
const LARGEST_STUBS: u64 = 4 << 20;
/// A table of relocations, or of what they name; a browser's have 20 MB.
const LARGEST_TABLE: u64 = 128 << 20;
/// As many slots as there may be stubs.
const MOST_SLOTS: usize = 1 << 18;
/// Longer names are cut, since each stub has a copy.
const LONGEST_NAME: usize = 1024;
/// Names of all stubs.
const MOST_NAME_BYTES: usize = 64 << 20;
/// `jmp *displacement(%rip)`.
const JUMP: [u8; 2] = [0xff, 0x25];

/// A stub.
pub(super) struct Stub {
    pub(super) start: u64,
    pub(super) size: u64,
    /// Where the name begins among those of all stubs.
    pub(super) name: u32,
}

/// Whose address the dynamic linker writes into a slot.
#[derive(Clone, Copy)]
enum SlotTarget {
    /// A symbol's name, by its place among those of `.dynsym`.
    Imported(u32),
    /// A function of the object that chooses another one at load time.
    Chooser(NamePosition),
}

impl Elf<'_> {
    /// The stubs of an x86-64 object, and their names one after the other: each is named after the function it jumps to.
    /// They have no symbols; each jumps through a slot, and a relocation names the slot.
    pub(super) fn plt_stubs(
        &self,
        functions: &[Candidate],
        name_of: impl Fn(NamePosition) -> String,
    ) -> (Vec<Stub>, Vec<u8>) {
        let (mut stubs, mut names) = (Vec::new(), Vec::new());
        if self.machine != elf::EM_X86_64 {
            return (stubs, names);
        }
        let sections: Vec<&SectionHeader> = self
            .sections()
            .filter(|section| section.is_executable() && section.size <= LARGEST_STUBS)
            .filter(|section| STUB_SECTIONS.contains(&self.name(section)))
            .take(STUB_SECTIONS.len())
            .collect();
        let dynsym = self.sections().find(|section| section.kind == elf::SHT_DYNSYM);
        let Some(dynsym) = dynsym.filter(|_| !sections.is_empty()) else { return (stubs, names) };
        let strings = self.linked(dynsym).map(|section| self.table(section)).unwrap_or_default();
        let slots = self.slots(dynsym, functions);
        for (start, size, target) in sections.iter().flat_map(|section| self.stubs_of(section, &slots)) {
            let text = match target {
                SlotTarget::Imported(offset) => short_name(&strings, offset),
                SlotTarget::Chooser(name) => name_of(name),
            };
            if text.is_empty() || names.len() + text.len() > MOST_NAME_BYTES {
                continue;
            }
            stubs.push(Stub { start, size, name: names.len() as u32 });
            names.extend_from_slice(text.as_bytes());
            names.extend_from_slice(b"@plt\0");
        }
        (stubs, names)
    }

    /// Start, size and target of each stub.
    fn stubs_of(
        &self,
        section: &SectionHeader,
        slots: &FxHashMap<u64, SlotTarget>,
    ) -> Vec<(u64, u64, SlotTarget)> {
        let bytes = self.table(section);
        // `.plt.got` has stubs of 8 bytes without `endbr64`, or of 16 with it.
        let narrow = self.name(section) == b".plt.got" && bytes.starts_with(&JUMP);
        let size = if narrow { STUB_SIZE / 2 } else { STUB_SIZE };
        let stubs = bytes.chunks_exact(size).enumerate().filter_map(|(index, code)| {
            let start = section.address.checked_add((index * size) as u64)?;
            Some((start, size as u64, *slots.get(&jump_slot(start, code)?)?))
        });
        stubs.collect()
    }

    /// The functions whose addresses the dynamic linker writes into slots, by the slots' addresses.
    fn slots(&self, dynsym: &SectionHeader, functions: &[Candidate]) -> FxHashMap<u64, SlotTarget> {
        let mut slots = FxHashMap::default();
        let symbols = self.table(dynsym);
        let symbols = entries::<Sym64<Le>>(&symbols);
        let by_start: FxHashMap<u64, NamePosition> =
            functions.iter().map(|each| (each.start(), each.name())).collect();
        let target = |relocation: &Rela64<Le>| match elf::RelocationType(relocation.r_info.get(Le) as u32) {
            elf::R_X86_64_JUMP_SLOT | elf::R_X86_64_GLOB_DAT => {
                let symbol = symbols.get((relocation.r_info.get(Le) >> 32) as usize)?;
                Some(SlotTarget::Imported(symbol.st_name.get(Le)))
            }
            // The slot of a function that is chosen at load time: the addend is the function that chooses.
            elf::R_X86_64_IRELATIVE => {
                by_start.get(&(relocation.r_addend.get(Le) as u64)).map(|&name| SlotTarget::Chooser(name))
            }
            _ => None,
        };
        for section in [".rela.plt", ".rela.dyn"] {
            let bytes = self.find(section).map(|section| self.table(section)).unwrap_or_default();
            let named = entries::<Rela64<Le>>(&bytes)
                .iter()
                .filter_map(|slot| Some((slot.r_offset.get(Le), target(slot)?)));
            slots.extend(named.take(MOST_SLOTS));
        }
        slots
    }

    /// A section's bytes; none if they cannot be read, or are too many.
    fn table(&self, section: &SectionHeader) -> Vec<u8> {
        self.read_within(section, LARGEST_TABLE).unwrap_or_default()
    }
}

fn short_name(strings: &[u8], offset: u32) -> String {
    String::from_utf8_lossy(c_string(strings, offset as usize, LONGEST_NAME)).into_owned()
}

/// The address of the slot through which a stub jumps.
fn jump_slot(start: u64, code: &[u8]) -> Option<u64> {
    let jump = code.windows(6).position(|window| window.starts_with(&JUMP))?;
    let displacement = i32::from_le_bytes(*code.get(jump + 2..)?.first_chunk()?);
    Some(start.wrapping_add(jump as u64 + 6).wrapping_add_signed(displacement.into()))
}
