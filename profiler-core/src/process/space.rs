//! The code that a process can run: what is mapped where, and how to unwind it.
//!
//! Modules are entered when a stack is first unwound: most processes of a program that starts many others end
//! before a sample hits them, and static programs have no index, so that `framehop` makes one for each.

use std::sync::{Arc, OnceLock};

use crate::elf::{Callers, ElfImage, FoundRule};
use crate::record::Mapped;
use crate::stack::{Frame, ObjectId};
use crate::unwind::ModuleSet;

/// A file's code as the daemon opened it.
#[derive(Clone, Debug)]
pub struct LoadedObject {
    /// Which object.
    pub id: ObjectId,
    /// Its segments and unwind tables; `None` where the file could not be read or is not ELF.
    pub image: Option<Arc<ElfImage>>,
}

impl LoadedObject {
    /// Code that lies in no file.
    pub const UNKNOWN: LoadedObject = LoadedObject { id: ObjectId::UNKNOWN, image: None };
}

/// Code whose functions have no known start is one place for each page of this size (bytes).
const PAGE_BYTES: u64 = 4096;

/// The start of the page that holds an address. It stands for the start of the function there if that is not known.
pub fn page_start(address: u64) -> u64 {
    address & !(PAGE_BYTES - 1)
}

/// The code at a program's entry point is no longer than this (bytes).
const ENTRY_BYTES: u64 = 64;
/// The same of the function there, which compilers may have put everything into that the program does first (bytes).
const MAX_ENTRY_BYTES: u64 = 1 << 20;

/// A range of executable memory.
#[derive(Clone, Debug)]
pub(super) struct ExecutableMapping {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Subtracted from an actual address, it gives the stated one.
    bias: u64,
    pub(super) object: ObjectId,
    image: Option<Arc<ElfImage>>,
}

impl ExecutableMapping {
    pub(super) fn new(mapped: &Mapped, loaded: &LoadedObject) -> Self {
        let (start, end) = (mapped.start, mapped.start.saturating_add(mapped.len));
        let Some(image) = &loaded.image else {
            // Where the file could not be read, addresses count from its first byte.
            let is_file = loaded.id != ObjectId::UNKNOWN;
            let bias = if is_file { start.wrapping_sub(mapped.file_offset) } else { 0 };
            return Self { start, end, bias, object: loaded.id, image: None };
        };
        match image.bias(start, mapped.file_offset, mapped.len) {
            Some(bias) => Self { start, end, bias, object: loaded.id, image: Some(Arc::clone(image)) },
            None => Self { start, end, bias: 0, object: ObjectId::UNKNOWN, image: None },
        }
    }

    /// Makes the unwind tables known.
    fn enter(&self, modules: &mut ModuleSet) {
        if let Some(image) = &self.image {
            modules.add(self.start..self.end, self.bias, image);
        }
    }

    fn is_same(&self, other: &ExecutableMapping) -> bool {
        let key = |m: &ExecutableMapping| (m.start, m.end, m.bias, m.object, m.image.is_some());
        key(self) == key(other)
    }
}

/// The code that a process can run, and how to unwind it. Shared by a process and its forks until one of
/// them maps something.
#[derive(Clone, Default)]
pub struct AddressSpace {
    /// Sorted, without overlap.
    pub(super) mappings: Vec<ExecutableMapping>,
    /// Made when the first stack is unwound: most processes of a program that starts many end before a sample hits them.
    modules: OnceLock<ModuleSet>,
}

impl AddressSpace {
    /// Enters a mapping; what it covers is gone.
    pub(super) fn map(&mut self, mapping: ExecutableMapping) {
        self.unmap(mapping.start, mapping.end);
        let at = self.mappings.partition_point(|m| m.start < mapping.start);
        self.load(&mapping);
        self.mappings.insert(at, mapping);
    }

    fn unmap(&mut self, start: u64, end: u64) {
        let first = self.mappings.partition_point(|m| m.end <= start);
        let last = first + self.mappings[first..].partition_point(|m| m.start < end);
        let covered: Vec<ExecutableMapping> = self.mappings.drain(first..last).collect();
        let mut remains = Vec::new();
        for mapping in covered {
            self.unload(&mapping);
            if mapping.start < start {
                remains.push(ExecutableMapping { end: start, ..mapping.clone() });
            }
            if end < mapping.end {
                remains.push(ExecutableMapping { start: end, ..mapping });
            }
        }
        remains.iter().for_each(|mapping| self.load(mapping));
        self.mappings.splice(first..first, remains);
    }

    /// Takes another image of an object's file, with unwind tables that are yet to be read.
    pub(super) fn replace_image(&mut self, object: ObjectId, image: &Arc<ElfImage>) {
        for at in 0..self.mappings.len() {
            let mapping = &mut self.mappings[at];
            if mapping.object == object && mapping.image.is_some() {
                mapping.image = Some(Arc::clone(image));
                let mapping = self.mappings[at].clone();
                self.unload(&mapping);
                self.load(&mapping);
            }
        }
    }

    pub(super) fn maps(&self, object: ObjectId) -> bool {
        self.mappings.iter().any(|mapping| mapping.object == object)
    }

    /// Makes a mapping's unwind tables known.
    fn load(&mut self, mapping: &ExecutableMapping) {
        if let Some(modules) = self.modules.get_mut() {
            mapping.enter(modules);
        }
    }

    fn unload(&mut self, mapping: &ExecutableMapping) {
        if let Some(modules) = self.modules.get_mut() {
            modules.remove(mapping.start);
        }
    }

    pub(super) fn holds(&self, mapping: &ExecutableMapping) -> bool {
        self.mapping(mapping.start).is_some_and(|known| known.is_same(mapping))
    }

    /// The frame for an actual address.
    pub fn locate(&self, address: u64) -> Frame {
        match self.mapping(address) {
            Some(m) => Frame { object: m.object, address: address.wrapping_sub(m.bias) },
            None => Frame { object: ObjectId::UNKNOWN, address },
        }
    }

    /// The start of the function that holds an actual address, as far as it can be told without names: what
    /// has no unwind information counts by the page.
    pub fn function(&self, address: u64) -> Frame {
        let frame = self.locate(address);
        let image = self.mapping(address).and_then(|m| m.image.as_ref());
        let start = image.map_or(page_start(frame.address), |image| image.place_start(frame.address));
        Frame { address: start, ..frame }
    }

    /// What the unwind tables say of an actual address.
    pub(crate) fn find_rule(&self, address: u64) -> FoundRule {
        let mapping = self.mapping(address);
        let tables = mapping.and_then(|m| Some((m, &m.image.as_ref()?.tables)));
        tables.map_or(FoundRule::Nothing, |(m, tables)| tables.find(address.wrapping_sub(m.bias)))
    }

    /// Whether there is code at an address, of a file or not.
    pub fn is_executable(&self, address: u64) -> bool {
        self.mapping(address).is_some()
    }

    /// Whether the address lies in code that was loaded from a file.
    pub fn is_in_file(&self, address: u64) -> bool {
        self.mapping(address).is_some_and(|m| m.object != ObjectId::UNKNOWN)
    }

    /// Whether code of a file that was read is mapped between these addresses.
    pub fn has_file_in(&self, start: u64, end: u64) -> bool {
        let first = self.mappings.partition_point(|m| m.end <= start);
        self.mappings[first..].iter().take_while(|m| m.start < end).any(|m| m.image.is_some())
    }

    /// Whether the address lies in code that is mapped from no file.
    pub(crate) fn is_generated(&self, address: u64) -> bool {
        self.mapping(address).is_some_and(|m| m.object == ObjectId::UNKNOWN)
    }

    /// Whether there is unwind information for the code at an address.
    pub fn has_tables(&self, address: u64) -> bool {
        let image = self.mapping(address).and_then(|m| m.image.as_ref());
        image.is_some_and(|image| !image.tables.is_empty())
    }

    /// Whether the address lies in the first instructions that a program executes, which call everything else.
    pub(crate) fn is_at_entry(&self, address: u64) -> bool {
        let mapping = self.mapping(address);
        let entry = mapping.and_then(|m| Some(m.image.as_ref()?.entry.wrapping_add(m.bias)));
        entry.is_some_and(|entry| (1..=ENTRY_BYTES).contains(&address.wrapping_sub(entry)))
    }

    /// Whether a program begins in the function that holds an address: nobody calls it, whatever its unwind information says.
    pub(crate) fn is_entry_function(&self, address: u64) -> bool {
        self.offset_in_program(address).is_some_and(|(image, offset)| {
            offset < MAX_ENTRY_BYTES
                && image.function_start(image.entry.wrapping_add(offset)) == Some(image.entry)
        })
    }

    /// Whether the address lies in the first instructions of a program, as far as that can be told without unwind information.
    pub(crate) fn begins_program(&self, address: u64) -> bool {
        self.offset_in_program(address).is_some_and(|(_, offset)| offset < ENTRY_BYTES)
    }

    /// How far an address lies behind the entry point of its program.
    fn offset_in_program(&self, address: u64) -> Option<(&ElfImage, u64)> {
        let mapping = self.mapping(address)?;
        let image = mapping.image.as_ref().filter(|image| image.is_program)?;
        Some((image, address.wrapping_sub(mapping.bias).checked_sub(image.entry)?))
    }

    /// What the unwind tables say of the callers of the function that a call, at an actual address, returns to.
    pub(crate) fn callers(&self, address: u64) -> Callers {
        let mapping = self.mapping(address);
        let tables = mapping.and_then(|m| Some((m, &m.image.as_ref()?.tables)));
        tables.map_or(Callers::Unknown, |(m, tables)| tables.callers(address.wrapping_sub(m.bias)))
    }

    /// What unwinding needs to know of the loaded files.
    pub fn modules(&self) -> &ModuleSet {
        self.modules.get_or_init(|| {
            let mut modules = ModuleSet::default();
            self.mappings.iter().for_each(|mapping| mapping.enter(&mut modules));
            modules
        })
    }

    /// How many modules [`AddressSpace::modules`] would enter if it were called now.
    pub(crate) fn modules_to_enter(&self) -> usize {
        if self.modules.get().is_some() { 0 } else { self.mappings.len() }
    }

    fn mapping(&self, address: u64) -> Option<&ExecutableMapping> {
        let after = self.mappings.partition_point(|m| m.start <= address);
        self.mappings[..after].last().filter(|m| address < m.end)
    }
}
