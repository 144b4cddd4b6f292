//! Who is being profiled: processes, their names and the code mapped into them.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::elf::ElfImage;
use crate::profile::{ProcessIndex, ProcessInfo};
use crate::record::{Mapped, Task};
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

/// A range of executable memory.
#[derive(Clone, Debug)]
struct Mapping {
    start: u64,
    end: u64,
    /// Subtracted from an actual address, it gives the stated one.
    bias: u64,
    object: ObjectId,
    image: Option<Arc<ElfImage>>,
}

/// The code that a process can run, and how to unwind it. Shared by a process and its forks until one of
/// them maps something.
#[derive(Clone, Default)]
pub struct AddressSpace {
    /// Sorted, without overlap.
    mappings: Vec<Mapping>,
    modules: ModuleSet,
}

impl AddressSpace {
    /// Enters a mapping; what it covers is gone.
    fn map(&mut self, mapped: &Mapped, loaded: &LoadedObject) {
        let end = mapped.start.saturating_add(mapped.len);
        self.unmap(mapped.start, end);
        let image = loaded.image.as_deref();
        let bias = image.and_then(|image| image.bias(mapped.start, mapped.file_offset, mapped.len));
        let object = if bias.is_some() || image.is_none() { loaded.id } else { ObjectId::UNKNOWN };
        // Where the file could not be read, addresses count from its first byte.
        let bias = bias.unwrap_or(match object {
            ObjectId::UNKNOWN => 0,
            _ => mapped.start.wrapping_sub(mapped.file_offset),
        });
        let at = self.mappings.partition_point(|m| m.start < mapped.start);
        let image_kept = loaded.image.clone();
        self.mappings.insert(at, Mapping { start: mapped.start, end, bias, object, image: image_kept });
        if let Some(image) = image {
            self.modules.add(mapped.start..end, bias, image);
        }
    }

    fn unmap(&mut self, start: u64, end: u64) {
        let mut kept = Vec::with_capacity(self.mappings.len() + 1);
        for mapping in self.mappings.drain(..) {
            if mapping.end <= start || end <= mapping.start {
                kept.push(mapping);
                continue;
            }
            self.modules.remove(mapping.start);
            if mapping.start < start {
                kept.push(Mapping { end: start, ..mapping.clone() });
            }
            if end < mapping.end {
                kept.push(Mapping { start: end, ..mapping });
            }
        }
        self.mappings = kept;
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
        let start = image.and_then(|image| image.function_start(frame.address));
        Frame { address: start.unwrap_or(frame.address & !0xfff), ..frame }
    }

    /// Whether the address lies in code that was loaded from a file.
    pub fn is_in_file(&self, address: u64) -> bool {
        self.mapping(address).is_some_and(|m| m.object != ObjectId::UNKNOWN)
    }

    /// What unwinding needs to know of the loaded files.
    pub fn modules(&self) -> &ModuleSet {
        &self.modules
    }

    fn mapping(&self, address: u64) -> Option<&Mapping> {
        let after = self.mappings.partition_point(|m| m.start <= address);
        self.mappings[..after].last().filter(|m| address < m.end)
    }
}

/// A process that is profiled.
#[derive(Clone)]
pub struct Process {
    /// Its entry in the profile; a new one after each `execve`.
    pub index: ProcessIndex,
    /// The process it was forked from, if that is profiled as well.
    pub parent: Option<u32>,
    /// Code mapped into it.
    pub space: Arc<AddressSpace>,
    /// Changes whenever `space` does.
    pub generation: u32,
}

/// All profiled processes, kept current by the kernel's side records.
#[derive(Default)]
pub struct ProcessTable {
    live: FxHashMap<u32, Process>,
    infos: Vec<ProcessInfo>,
    generations: u32,
    threads_created: u64,
}

impl ProcessTable {
    /// Starts to follow `pid` as a target of its own.
    pub fn adopt(&mut self, pid: u32, comm: &str) {
        if !self.live.contains_key(&pid) {
            self.enter(pid, comm.to_owned(), None, Arc::default());
        }
    }

    /// Whether `pid` is profiled.
    pub fn contains(&self, pid: u32) -> bool {
        self.live.contains_key(&pid)
    }

    /// The process, if it is profiled.
    pub fn get(&self, pid: u32) -> Option<&Process> {
        self.live.get(&pid)
    }

    /// The profiled processes that have not ended, in no order.
    pub fn live(&self) -> impl Iterator<Item = (u32, &Process)> {
        self.live.iter().map(|(&pid, process)| (pid, process))
    }

    /// Every program that was ever profiled, by [`ProcessIndex`].
    pub fn infos(&self) -> &[ProcessInfo] {
        &self.infos
    }

    /// Threads and processes that the targets created so far.
    pub fn threads_created(&self) -> u64 {
        self.threads_created
    }

    /// A mapping of executable memory; `load` opens the file.
    pub fn mapped(&mut self, mapped: &Mapped, load: impl FnOnce(&Mapped) -> LoadedObject) {
        let Some(process) = self.live.get_mut(&mapped.pid) else { return };
        let loaded = load(mapped);
        Arc::make_mut(&mut process.space).map(mapped, &loaded);
        self.generations += 1;
        process.generation = self.generations;
    }

    /// A new name; after `execve` also a new, empty address space.
    pub fn renamed(&mut self, pid: u32, tid: u32, name: &str, exec: bool) {
        let Some(process) = self.live.get(&pid) else { return };
        if exec {
            let parent = process.parent;
            self.enter(pid, name.to_owned(), parent, Arc::default());
        } else if pid == tid {
            self.infos[process.index.0 as usize].comm = name.to_owned();
        }
    }

    /// A new task. A child of a profiled process is profiled too.
    pub fn forked(&mut self, task: Task) {
        let parent = self.live.get(&task.parent_pid);
        if task.pid == task.parent_pid {
            self.threads_created += u64::from(parent.is_some());
            return;
        }
        let Some(parent) = parent else {
            self.live.remove(&task.pid); // the number was given to a stranger
            return;
        };
        if self.live.get(&task.pid).is_some_and(|known| known.parent == Some(task.parent_pid)) {
            return; // reported by two events
        }
        let comm = self.infos[parent.index.0 as usize].comm.clone();
        let space = Arc::clone(&parent.space);
        self.threads_created += 1;
        self.enter(task.pid, comm, Some(task.parent_pid), space);
    }

    /// Forgets a process that has ended.
    pub fn forget(&mut self, pid: u32) {
        self.live.remove(&pid);
    }

    fn enter(&mut self, pid: u32, comm: String, parent: Option<u32>, space: Arc<AddressSpace>) {
        let index = ProcessIndex(self.infos.len() as u32);
        self.infos.push(ProcessInfo { pid, comm });
        self.generations += 1;
        let process = Process { index, parent, space, generation: self.generations };
        self.live.insert(pid, process);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::FileId;

    fn mapped(pid: u32, start: u64, len: u64) -> Mapped {
        Mapped { pid, start, len, file_offset: 0, file: FileId::default(), path: "/lib/a.so".into() }
    }

    fn object(id: u32) -> impl FnOnce(&Mapped) -> LoadedObject {
        move |_| LoadedObject { id: ObjectId(id), image: None }
    }

    #[test]
    fn a_mapping_replaces_what_it_covers_and_leaves_the_rest() {
        let mut table = ProcessTable::default();
        table.adopt(1, "a");
        table.mapped(&mapped(1, 0x1000, 0x3000), object(7));
        table.mapped(&mapped(1, 0x2000, 0x1000), object(8));
        let space = &table.get(1).unwrap().space;
        let at = |address| space.locate(address);
        assert_eq!(at(0x1fff), Frame { object: ObjectId(7), address: 0xfff });
        assert_eq!(at(0x2000), Frame { object: ObjectId(8), address: 0 });
        assert_eq!(at(0x3000), Frame { object: ObjectId(7), address: 0x2000 });
        assert_eq!(at(0x4000).object, ObjectId::UNKNOWN);
        assert_eq!(at(0xfff).object, ObjectId::UNKNOWN);
    }

    #[test]
    fn a_child_has_its_parents_code_until_it_executes_another_program() {
        let mut table = ProcessTable::default();
        table.adopt(1, "parent");
        table.mapped(&mapped(1, 0x1000, 0x1000), object(7));
        table.forked(Task { pid: 2, parent_pid: 1, tid: 2 });
        table.mapped(&mapped(1, 0x8000, 0x1000), object(9));
        let child = |table: &ProcessTable| table.get(2).unwrap().space.clone();
        assert!(child(&table).is_in_file(0x1000) && !child(&table).is_in_file(0x8000));
        table.renamed(2, 2, "other", true);
        assert!(!child(&table).is_in_file(0x1000));
        let index = table.get(2).unwrap().index;
        assert_eq!(table.infos()[index.0 as usize], ProcessInfo { pid: 2, comm: "other".into() });
    }

    #[test]
    fn strangers_are_not_followed_even_under_a_known_number() {
        let mut table = ProcessTable::default();
        table.adopt(1, "a");
        table.forked(Task { pid: 5, parent_pid: 4, tid: 5 });
        table.mapped(&mapped(5, 0x1000, 0x1000), object(7));
        assert!(!table.contains(5));
        table.forked(Task { pid: 1, parent_pid: 4, tid: 1 });
        assert!(!table.contains(1));
    }
}
