//! Names for the stubs that calls into other objects go through.

use object::LittleEndian as Le;
use object::elf::{self, Rela64, Sym64};
use object::pod;
use rustc_hash::FxHashMap;

use super::symbols::{Candidate, Name};
use super::{Elf, Section, c_string};

const STUB_SIZE: usize = 16;
const STUB_SECTIONS: [&[u8]; 3] = [b".plt", b".plt.sec", b".plt.got"];
/// A section of stubs larger than this is not one: it would hold a quarter of a million functions.
const LARGEST_STUBS: u64 = 4 << 20;
/// As many slots as there may be stubs.
/// Longer names are cut, since each slot has a copy.
const LONGEST_NAME: usize = 1024;
const MOST_SLOTS: usize = 1 << 18;
/// `jmp *displacement(%rip)`.
const JUMP: [u8; 2] = [0xff, 0x25];

/// A stub, named after the function it jumps to.
pub(super) struct Stub {
    pub(super) start: u64,
    pub(super) size: u64,
    pub(super) name: String,
}

impl Elf<'_> {
    /// The stubs of an x86-64 object. They have no symbols; each jumps through a slot, and a relocation names the slot.
    pub(super) fn plt_stubs(&self, functions: &[Candidate], name_of: impl Fn(Name) -> String) -> Vec<Stub> {
        if self.machine != elf::EM_X86_64 {
            return Vec::new();
        }
        let sections: Vec<&Section> = self
            .sections()
            .filter(|section| section.is_executable() && section.size <= LARGEST_STUBS)
            .filter(|section| STUB_SECTIONS.contains(&self.name(section)))
            .take(STUB_SECTIONS.len())
            .collect();
        if sections.is_empty() {
            return Vec::new();
        }
        let slots = self.slots(functions, name_of);
        sections.iter().flat_map(|section| self.stubs_of(section, &slots)).collect()
    }

    fn stubs_of(&self, section: &Section, slots: &FxHashMap<u64, String>) -> Vec<Stub> {
        let bytes = self.read(section).unwrap_or_default();
        // `.plt.got` has stubs of 8 bytes without `endbr64`, or of 16 with it.
        let narrow = self.name(section) == b".plt.got" && bytes.starts_with(&JUMP);
        let size = if narrow { STUB_SIZE / 2 } else { STUB_SIZE };
        let stubs = bytes.chunks_exact(size).enumerate().filter_map(|(index, code)| {
            let start = section.address.checked_add((index * size) as u64)?;
            let name = slots.get(&jump_slot(start, code)?)?;
            Some(Stub { start, size: size as u64, name: format!("{name}@plt") })
        });
        stubs.collect()
    }

    /// The functions whose addresses the dynamic linker writes into slots, by the slots' addresses.
    fn slots(&self, functions: &[Candidate], name_of: impl Fn(Name) -> String) -> FxHashMap<u64, String> {
        let mut slots = FxHashMap::default();
        let Some(dynsym) = self.sections().find(|section| section.kind == elf::SHT_DYNSYM) else {
            return slots;
        };
        let strings = self.linked(dynsym).and_then(|section| self.read(section).ok()).unwrap_or_default();
        let symbols = self.read(dynsym).unwrap_or_default();
        let symbols = entries::<Sym64<Le>>(&symbols);
        let by_start: FxHashMap<u64, Name> =
            functions.iter().map(|each| (each.start(), each.name())).collect();
        let name = |relocation: &Rela64<Le>| match elf::RelocationType(relocation.r_info.get(Le) as u32) {
            elf::R_X86_64_JUMP_SLOT | elf::R_X86_64_GLOB_DAT => {
                let symbol = symbols.get((relocation.r_info.get(Le) >> 32) as usize)?;
                Some(short_name(&strings, symbol)).filter(|name| !name.is_empty())
            }
            // The slot of a function that is chosen at load time: the addend is the function that chooses.
            elf::R_X86_64_IRELATIVE => {
                by_start.get(&(relocation.r_addend.get(Le) as u64)).map(|&name| name_of(name))
            }
            _ => None,
        };
        for section in [".rela.plt", ".rela.dyn"] {
            let bytes = self.read_named(section).unwrap_or_default();
            let named = entries::<Rela64<Le>>(&bytes)
                .iter()
                .filter_map(|slot| Some((slot.r_offset.get(Le), name(slot)?)));
            slots.extend(named.take(MOST_SLOTS));
        }
        slots
    }
}

/// The whole entries of a table.
fn entries<T: pod::Pod>(bytes: &[u8]) -> &[T] {
    let whole = bytes.len() - bytes.len() % size_of::<T>();
    pod::slice_from_all_bytes(&bytes[..whole]).unwrap_or_default()
}

fn short_name(strings: &[u8], symbol: &Sym64<Le>) -> String {
    String::from_utf8_lossy(c_string(strings, symbol.st_name.get(Le) as usize, LONGEST_NAME)).into_owned()
}

/// The address of the slot through which a stub jumps.
fn jump_slot(start: u64, code: &[u8]) -> Option<u64> {
    let jump = code.windows(6).position(|window| window.starts_with(&JUMP))?;
    let displacement = i32::from_le_bytes(*code.get(jump + 2..)?.first_chunk()?);
    Some(start.wrapping_add(jump as u64 + 6).wrapping_add_signed(displacement.into()))
}
