//! Names for the stubs that calls into other objects go through.

use object::LittleEndian as Le;
use object::elf::{self, Rela64, Sym64};
use rustc_hash::FxHashMap;

use super::symbols::{Candidate, NamePosition};
use super::{Elf, SectionHeader, c_string, entries};

const STUB_SIZE: usize = 16;
const STUB_SECTIONS: [&[u8]; 4] = [b".plt", b".plt.sec", b".plt.got", b".iplt"];
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
const JUMP: &[u8] = &[0xff, 0x25];
/// `mov displacement(%rip),%r11`, in stubs without indirect jumps (LLD's `-z retpolineplt`).
const LOAD: &[u8] = &[0x4c, 0x8b, 0x1d];

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
        if sections.is_empty() {
            return (stubs, names);
        }
        // A static program has none, but stubs of functions that are chosen at its start.
        let dynsym = self.sections().find(|section| section.kind == elf::SHT_DYNSYM);
        let strings = dynsym
            .and_then(|dynsym| self.linked(dynsym))
            .map(|section| self.table(section))
            .unwrap_or_default();
        let mut by_start: FxHashMap<u64, &Candidate> = FxHashMap::default();
        for function in functions {
            let best = by_start.entry(function.start()).or_insert(function);
            *best = function.min(*best);
        }
        let slots = self.slots(dynsym, &by_start);
        for (start, size, target) in sections.iter().flat_map(|section| self.stubs_of(section, &slots)) {
            let text = match target {
                SlotTarget::Imported(offset) => short_name(&strings, offset),
                // A symbol of the stub itself is named after what is chosen.
                SlotTarget::Chooser(_) if by_start.contains_key(&start) => continue,
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
        // `.plt.got`, and `.plt` of a static program, have stubs of 8 bytes without `endbr64`, or of 16 with it.
        let is_jump = |at: usize| bytes.get(at..).is_some_and(|code| code.starts_with(JUMP));
        let second = STUB_SIZE / 2;
        let is_narrow = self.name(section) == b".plt.got" || bytes.len() == second || is_jump(second);
        let size = if is_jump(0) && is_narrow { second } else { STUB_SIZE };
        let mut stubs: Vec<(u64, u64, SlotTarget)> = Vec::new();
        let mut is_loaded = false;
        for (index, code) in bytes.chunks_exact(size).enumerate() {
            let Some(start) = section.address.checked_add((index * size) as u64) else { break };
            let jump = slot_of(JUMP, start, code);
            let slot = jump.or_else(|| slot_of(LOAD, start, code));
            if let Some(&target) = slot.and_then(|slot| slots.get(&slot)) {
                stubs.push((start, size as u64, target));
            } else if slot.is_none()
                && is_loaded
                && let Some((_, stub_size, _)) = stubs.last_mut()
            {
                *stub_size += size as u64; // the second half of a stub
            }
            is_loaded = slot.is_some() && jump.is_none();
        }
        stubs
    }

    /// The functions whose addresses the dynamic linker writes into slots, by the slots' addresses.
    fn slots(
        &self,
        dynsym: Option<&SectionHeader>,
        by_start: &FxHashMap<u64, &Candidate>,
    ) -> FxHashMap<u64, SlotTarget> {
        let mut slots = FxHashMap::default();
        let symbols = dynsym.map(|dynsym| self.table(dynsym)).unwrap_or_default();
        let symbols = entries::<Sym64<Le>>(&symbols);
        let target = |relocation: &Rela64<Le>| match elf::RelocationType(relocation.r_info.get(Le) as u32) {
            elf::R_X86_64_JUMP_SLOT | elf::R_X86_64_GLOB_DAT => {
                let symbol = symbols.get((relocation.r_info.get(Le) >> 32) as usize)?;
                Some(SlotTarget::Imported(symbol.st_name.get(Le)))
            }
            // The slot of a function that is chosen at load time: the addend is the function that chooses.
            elf::R_X86_64_IRELATIVE => {
                let chooser = by_start.get(&(relocation.r_addend.get(Le) as u64))?;
                Some(SlotTarget::Chooser(chooser.name()))
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

/// The address of the slot that a stub uses with this instruction.
fn slot_of(instruction: &[u8], start: u64, code: &[u8]) -> Option<u64> {
    let after = instruction.len() + size_of::<i32>();
    let at = code.windows(after).position(|window| window.starts_with(instruction))?;
    let displacement = i32::from_le_bytes(*code.get(at + instruction.len()..)?.first_chunk()?);
    Some(start.wrapping_add((at + after) as u64).wrapping_add_signed(displacement.into()))
}
