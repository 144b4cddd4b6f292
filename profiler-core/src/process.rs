//! Who is being profiled: processes, their names and the code mapped into them.

use std::cell::Cell;
use std::sync::{Arc, OnceLock};

use rustc_hash::FxHashMap;

use crate::elf::{ElfImage, Found};
use crate::profile::{ProcessIndex, ProcessInfo};
use crate::record::{Mapped, Task};
use crate::stack::{Frame, GeneratedCode, ObjectId};
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

/// The code at a program's entry point is no longer than this (bytes).
const ENTRY_BYTES: u64 = 64;

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

impl Mapping {
    fn new(mapped: &Mapped, loaded: &LoadedObject) -> Self {
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

    fn is_same(&self, other: &Mapping) -> bool {
        let key = |m: &Mapping| (m.start, m.end, m.bias, m.object, m.image.is_some());
        key(self) == key(other)
    }
}

/// The code that a process can run, and how to unwind it. Shared by a process and its forks until one of
/// them maps something.
#[derive(Clone, Default)]
pub struct AddressSpace {
    /// Sorted, without overlap.
    mappings: Vec<Mapping>,
    /// Made when the first stack is unwound: most processes of a program that starts many end before a sample hits them.
    modules: OnceLock<ModuleSet>,
}

impl AddressSpace {
    /// Enters a mapping; what it covers is gone.
    fn map(&mut self, mapping: Mapping) {
        self.unmap(mapping.start, mapping.end);
        let at = self.mappings.partition_point(|m| m.start < mapping.start);
        self.load(&mapping);
        self.mappings.insert(at, mapping);
    }

    fn unmap(&mut self, start: u64, end: u64) {
        let first = self.mappings.partition_point(|m| m.end <= start);
        let last = first + self.mappings[first..].partition_point(|m| m.start < end);
        let covered: Vec<Mapping> = self.mappings.drain(first..last).collect();
        let mut remains = Vec::new();
        for mapping in covered {
            self.unload(&mapping);
            if mapping.start < start {
                remains.push(Mapping { end: start, ..mapping.clone() });
            }
            if end < mapping.end {
                remains.push(Mapping { start: end, ..mapping });
            }
        }
        remains.iter().for_each(|mapping| self.load(mapping));
        self.mappings.splice(first..first, remains);
    }

    /// Takes another image of an object's file, with unwind tables that are yet to be read.
    fn replace_image(&mut self, object: ObjectId, image: &Arc<ElfImage>) {
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

    fn maps(&self, object: ObjectId) -> bool {
        self.mappings.iter().any(|mapping| mapping.object == object)
    }

    /// Makes a mapping's unwind tables known.
    fn load(&mut self, mapping: &Mapping) {
        if let Some(modules) = self.modules.get_mut() {
            mapping.enter(modules);
        }
    }

    fn unload(&mut self, mapping: &Mapping) {
        if let Some(modules) = self.modules.get_mut() {
            modules.remove(mapping.start);
        }
    }

    fn holds(&self, mapping: &Mapping) -> bool {
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
        let start = image.and_then(|image| image.function_start(frame.address));
        Frame { address: start.unwrap_or(frame.address & !0xfff), ..frame }
    }

    /// What the unwind tables say of an actual address.
    pub(crate) fn find_rule(&self, address: u64) -> Found {
        let mapping = self.mapping(address);
        let tables = mapping.and_then(|m| Some((m, &m.image.as_ref()?.tables)));
        tables.map_or(Found::Nothing, |(m, tables)| tables.find(address.wrapping_sub(m.bias)))
    }

    /// Whether there is code at an address, of a file or not.
    pub fn is_executable(&self, address: u64) -> bool {
        self.mapping(address).is_some()
    }

    /// Whether the address lies in code that was loaded from a file.
    pub fn is_in_file(&self, address: u64) -> bool {
        self.mapping(address).is_some_and(|m| m.object != ObjectId::UNKNOWN)
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

    fn mapping(&self, address: u64) -> Option<&Mapping> {
        let after = self.mappings.partition_point(|m| m.start <= address);
        self.mappings[..after].last().filter(|m| address < m.end)
    }
}

/// Processes that have an entry of their own in the profile, beside those that were never sampled. Later ones share
/// an entry with all others of their name, and their stacks: whoever starts so many does not ask after a single one.
const MAX_PROCESSES: usize = 1_000;
/// Names that have a shared entry. Still later ones share a last one.
const MAX_SHARED_NAMES: usize = 1_000;
/// The name of that last one.
const OTHER_NAMES: &str = "[others]";

/// Mappings of one process. The kernel allows some 65,000 at once, and does not tell of those that go.
const MAX_MAPPINGS: usize = 16_384;

/// A process that is profiled.
#[derive(Clone)]
pub struct Process {
    /// Its entry in the profile; a new one after each `execve`. When there are very many, one for all of its name.
    pub index: ProcessIndex,
    /// The process it was forked from, if that is profiled as well.
    pub parent: Option<u32>,
    /// Code mapped into it.
    pub space: Arc<AddressSpace>,
    /// Changes whenever `space` does.
    pub generation: u64,
    /// Whether a sample refers to its entry in the profile.
    is_sampled: Cell<bool>,
    /// Whether it neither mapped nor executed anything since it was forked.
    is_as_forked: bool,
}

impl Process {
    /// The frame for an actual address, or for the pseudo-address of generated code. What lies in no file is this
    /// process' own.
    pub fn locate(&self, address: u64) -> Frame {
        self.own(self.space.locate(address))
    }

    /// The start of the function that holds an address; see [`AddressSpace::function`].
    pub fn function(&self, address: u64) -> Frame {
        match GeneratedCode::from_address(address) {
            Some(code) => self.own(Frame {
                object: ObjectId::UNKNOWN,
                address: GeneratedCode { offset: 0, ..code }.to_address(),
            }),
            None => self.own(self.space.function(address)),
        }
    }

    /// Where many processes share an entry in the profile, nobody can tell whose code it was.
    fn own(&self, frame: Frame) -> Frame {
        let is_own = frame.object == ObjectId::UNKNOWN && !is_shared(self.index);
        let object = if is_own { ObjectId::generated_by(self.index) } else { frame.object };
        Frame { object, ..frame }
    }

    /// Notes that a sample was counted under its entry in the profile, which stays from now on.
    pub(crate) fn note_sample(&self) {
        self.is_sampled.set(true);
    }
}

/// All profiled processes, kept current by the kernel's side records.
#[derive(Default)]
pub struct ProcessTable {
    live: FxHashMap<u32, Process>,
    infos: Vec<ProcessInfo>,
    /// Entries of `infos` that no process and no sample refers to any more.
    unused: Vec<ProcessIndex>,
    /// Entries of `infos` for all processes of a name.
    shared: FxHashMap<String, ProcessIndex>,
    generations: u64,
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

    /// Every program that was sampled, and some that were not, by [`ProcessIndex`].
    pub fn infos(&self) -> &[ProcessInfo] {
        &self.infos
    }

    /// Puts another image of an object's file, with unwind tables that are yet to be read, in the place of the one there
    /// is. Those of the latter are gone with their last user.
    pub fn replace_image(&mut self, object: ObjectId, image: &Arc<ElfImage>) {
        // What forks share they go on sharing.
        let mut replaced: FxHashMap<*const AddressSpace, Arc<AddressSpace>> = FxHashMap::default();
        let mut old = Vec::new();
        for process in self.live.values_mut().filter(|process| process.space.maps(object)) {
            let space = replaced.entry(Arc::as_ptr(&process.space)).or_insert_with(|| {
                let mut space = AddressSpace::clone(&process.space);
                space.replace_image(object, image);
                Arc::new(space)
            });
            // The old ones stay until all have new ones: no other can have their addresses meanwhile.
            old.push(std::mem::replace(&mut process.space, Arc::clone(space)));
        }
    }

    /// The objects that live processes have mapped; some more than once.
    pub fn mapped_objects(&self) -> impl Iterator<Item = ObjectId> {
        self.live.values().flat_map(|process| &process.space.mappings).map(|mapping| mapping.object)
    }

    /// Threads and processes that the targets created so far.
    pub fn threads_created(&self) -> u64 {
        self.threads_created
    }

    /// A mapping of executable memory; `load` opens the file. Returns whether there was room for it.
    pub fn mapped(&mut self, mapped: &Mapped, load: impl FnOnce(&Mapped) -> LoadedObject) -> bool {
        let Some(process) = self.live.get_mut(&mapped.pid) else { return true };
        let mapping = Mapping::new(mapped, &load(mapped));
        if mapping.start >= mapping.end || process.space.holds(&mapping) {
            return true; // a run-time compiler that locks its memory again tells nothing new
        }
        if process.space.mappings.len() >= MAX_MAPPINGS {
            return false;
        }
        Arc::make_mut(&mut process.space).map(mapping);
        self.generations += 1;
        process.generation = self.generations;
        process.is_as_forked = false;
        true
    }

    /// What a process has mapped is to be told anew.
    pub fn forget_mappings(&mut self, pid: u32) {
        self.generations += 1;
        if let Some(process) = self.live.get_mut(&pid) {
            (process.space, process.generation) = (Arc::default(), self.generations);
        }
    }

    /// A new name; after `execve` also a new, empty address space.
    pub fn renamed(&mut self, pid: u32, tid: u32, name: &str, exec: bool) {
        let Some(process) = self.live.get(&pid) else { return };
        if exec {
            let parent = process.parent;
            self.enter(pid, name.to_owned(), parent, Arc::default());
        } else if pid == tid && !is_shared(process.index) {
            self.infos[process.index.0 as usize].comm = name.to_owned();
        } else if pid == tid {
            let index = self.entry(pid, name.to_owned());
            self.generations += 1;
            if let Some(process) = self.live.get_mut(&pid) {
                (process.index, process.generation) = (index, self.generations);
                process.is_sampled.set(false);
            }
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
            self.forget(task.pid); // the number was given to a stranger
            return;
        };
        let is_known = |known: &Process| known.is_as_forked && known.parent == Some(task.parent_pid);
        if self.live.get(&task.pid).is_some_and(is_known) {
            return; // reported by two events
        }
        let comm = self.infos[parent.index.0 as usize].comm.clone();
        let space = Arc::clone(&parent.space);
        self.threads_created += 1;
        self.enter(task.pid, comm, Some(task.parent_pid), space);
        if let Some(child) = self.live.get_mut(&task.pid) {
            child.is_as_forked = true;
        }
    }

    /// Forgets a process that has ended.
    pub fn forget(&mut self, pid: u32) {
        let Some(process) = self.live.remove(&pid) else { return };
        if !process.is_sampled.get() && !is_shared(process.index) {
            self.unused.push(process.index);
        }
    }

    fn enter(&mut self, pid: u32, comm: String, parent: Option<u32>, space: Arc<AddressSpace>) {
        self.forget(pid);
        let index = self.entry(pid, comm);
        self.generations += 1;
        let generation = self.generations;
        let (is_sampled, is_as_forked) = (Cell::new(false), false);
        self.live.insert(pid, Process { index, parent, space, generation, is_sampled, is_as_forked });
    }

    /// An entry in the profile for a program that begins.
    fn entry(&mut self, pid: u32, comm: String) -> ProcessIndex {
        if let Some(index) = self.unused.pop() {
            self.infos[index.0 as usize] = ProcessInfo { pid, comm };
            return index;
        }
        let next = ProcessIndex(self.infos.len() as u32);
        if !is_shared(next) {
            self.infos.push(ProcessInfo { pid, comm });
            return next;
        }
        let is_new_name = !self.shared.contains_key(&comm);
        let comm =
            if is_new_name && self.shared.len() >= MAX_SHARED_NAMES { OTHER_NAMES.into() } else { comm };
        let index = *self.shared.entry(comm.clone()).or_insert(next);
        if index == next {
            self.infos.push(ProcessInfo { pid, comm });
        }
        index
    }
}

/// Whether an entry in the profile stands for all processes of a name.
fn is_shared(index: ProcessIndex) -> bool {
    index.0 as usize >= MAX_PROCESSES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::FileId;
    use proptest::prelude::*;

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

    #[test]
    fn a_mapping_told_again_changes_nothing() {
        let mut table = ProcessTable::default();
        table.adopt(1, "a");
        table.mapped(&mapped(1, 0x1000, 0x1000), object(7));
        let generation = table.get(1).unwrap().generation;
        table.mapped(&mapped(1, 0x1000, 0x1000), object(7));
        table.mapped(&mapped(1, 0x1000, 0), object(8));
        assert_eq!(table.get(1).unwrap().generation, generation);
        table.mapped(&mapped(1, 0x1000, 0x1000), object(8));
        assert_ne!(table.get(1).unwrap().generation, generation);
    }

    #[test]
    fn a_number_given_to_another_child_of_the_same_parent_is_another_process() {
        let mut table = ProcessTable::default();
        let child = Task { pid: 2, parent_pid: 1, tid: 2 };
        table.adopt(1, "shell");
        table.forked(child);
        let first = table.get(2).unwrap().generation;
        table.forked(child); // told by a second event
        assert_eq!(table.get(2).unwrap().generation, first);
        table.renamed(2, 2, "ls", true);
        table.mapped(&mapped(2, 0x1000, 0x1000), object(7));
        table.forked(child);
        assert!(!table.get(2).unwrap().space.is_in_file(0x1000));
    }

    #[test]
    fn forks_share_an_image_that_takes_the_place_of_another() {
        #[expect(clippy::disallowed_methods, reason = "a test may read its own executable")]
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let image = Arc::new(ElfImage::parse_bytes(&own).unwrap());
        let mut table = ProcessTable::default();
        table.adopt(1, "a");
        let load = |_: &Mapped| LoadedObject { id: ObjectId(7), image: Some(Arc::clone(&image)) };
        table.mapped(&mapped(1, 0x1000_0000, own.len() as u64), load);
        table.mapped(&mapped(1, 0x9000_0000, 0x1000), object(8));
        table.forked(Task { pid: 2, parent_pid: 1, tid: 2 });
        let address = 0x1000_0000 + image.entry;
        let before = table.get(2).unwrap().space.locate(address);
        assert!(table.get(1).unwrap().space.has_tables(0x1000_0000));
        table.replace_image(ObjectId(7), &Arc::new(image.without_tables()));
        let [parent, child] = [1, 2].map(|pid| table.get(pid).unwrap());
        assert!(Arc::ptr_eq(&parent.space, &child.space));
        assert!(!parent.space.has_tables(0x1000_0000));
        assert_eq!(parent.space.locate(address), before);
        table.replace_image(ObjectId(7), &image);
        assert!(table.get(1).unwrap().space.has_tables(0x1000_0000));
        let mut objects: Vec<u32> = table.mapped_objects().map(|id| id.0).collect();
        objects.sort_unstable();
        assert_eq!(objects, [7, 7, 8, 8]);
    }

    #[test]
    fn there_is_room_for_so_many_mappings_and_again_once_they_are_forgotten() {
        let mut table = ProcessTable::default();
        table.adopt(1, "a");
        let map = |table: &mut ProcessTable, page: usize| {
            table.mapped(&mapped(1, (page as u64 + 1) << 12, 0x1000), object(7))
        };
        assert!((0..MAX_MAPPINGS).all(|page| map(&mut table, page)));
        assert!(!map(&mut table, MAX_MAPPINGS) && map(&mut table, 5), "what is known takes no room");
        table.forget_mappings(1);
        assert!(!table.get(1).unwrap().space.is_in_file(0x1000));
        assert!(map(&mut table, MAX_MAPPINGS));
    }

    #[test]
    fn children_that_no_sample_hits_take_no_memory() {
        let mut table = ProcessTable::default();
        table.adopt(1, "shell");
        for pid in 2..50_000 {
            table.forked(Task { pid, parent_pid: 1, tid: pid });
            table.renamed(pid, pid, "ls", true);
            table.forget(pid);
        }
        assert!(table.infos().len() <= 2);
        assert_eq!(table.infos()[table.get(1).unwrap().index.0 as usize].comm, "shell");
    }

    #[test]
    fn very_many_sampled_processes_share_entries_by_name() {
        let mut table = ProcessTable::default();
        table.adopt(1, "shell");
        for pid in 2..30_000 {
            table.forked(Task { pid, parent_pid: 1, tid: pid });
            table.renamed(pid, pid, ["ls", "cat"][pid as usize % 2], true);
            let process = table.get(pid).unwrap();
            process.note_sample();
            assert_eq!(table.infos()[process.index.0 as usize].comm, ["ls", "cat"][pid as usize % 2]);
            table.forget(pid);
        }
        assert!(table.infos().len() <= MAX_PROCESSES + 3);
        for pid in 2..5_000 {
            table.adopt(pid, &pid.to_string());
            table.get(pid).unwrap().note_sample();
        }
        assert!(table.infos().len() <= MAX_PROCESSES + MAX_SHARED_NAMES + 1);
        let last = table.get(4_999).unwrap().index;
        assert_eq!(table.infos()[last.0 as usize].comm, OTHER_NAMES);
        table.renamed(4_999, 4_999, "cat", false);
        assert_eq!(table.infos()[last.0 as usize].comm, OTHER_NAMES);
        let renamed = table.get(4_999).unwrap().index;
        assert_eq!(table.infos()[renamed.0 as usize].comm, "cat");
    }

    #[derive(Clone, Debug)]
    enum Event {
        Adopt(u32),
        Fork(Task),
        Rename { pid: u32, tid: u32, exec: bool },
        Map { pid: u32, start: u64, len: u64, object: u32 },
        Sample(u32),
        Forget(u32),
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let pid = || 1u32..8;
        let task = (pid(), pid(), pid()).prop_map(|(pid, parent_pid, tid)| Task { pid, parent_pid, tid });
        let rename = (pid(), pid(), any::<bool>());
        let map = (pid(), 0u64..40, 0u64..12, 0u32..4);
        let event = prop_oneof![
            pid().prop_map(Event::Adopt),
            task.prop_map(Event::Fork),
            rename.prop_map(|(pid, tid, exec)| Event::Rename { pid, tid, exec }),
            map.prop_map(|(pid, start, len, object)| Event::Map { pid, start, len, object }),
            pid().prop_map(Event::Sample),
            pid().prop_map(Event::Forget),
        ];
        prop::collection::vec(event, 0..200)
    }

    proptest! {
        #[test]
        fn any_history_leaves_every_process_an_entry_of_its_own(events in events()) {
            let mut table = ProcessTable::default();
            let mut sampled: FxHashMap<ProcessIndex, u32> = FxHashMap::default();
            for event in events {
                match event {
                    Event::Adopt(pid) => table.adopt(pid, "a"),
                    Event::Fork(task) => table.forked(task),
                    Event::Rename { pid, tid, exec } => table.renamed(pid, tid, "b", exec),
                    Event::Map { pid, start, len, object: id } => {
                        table.mapped(&mapped(pid, start << 12, len << 12), object(id));
                    }
                    Event::Sample(pid) => {
                        if let Some(process) = table.get(pid) {
                            process.note_sample();
                            sampled.insert(process.index, pid);
                        }
                    }
                    Event::Forget(pid) => table.forget(pid),
                }
                let mut indices: Vec<ProcessIndex> = table.live().map(|(_, process)| process.index).collect();
                indices.sort_unstable();
                prop_assert!(indices.windows(2).all(|pair| pair[0] != pair[1]));
                for (pid, process) in table.live() {
                    prop_assert_eq!(table.infos()[process.index.0 as usize].pid, pid);
                }
                for (index, &pid) in &sampled {
                    prop_assert_eq!(table.infos()[index.0 as usize].pid, pid);
                }
                prop_assert!(table.infos().len() <= sampled.len() + 8);
            }
        }

        #[test]
        fn an_address_belongs_to_what_was_mapped_last(
            maps in prop::collection::vec((0u64..60, 0u64..20, 1u32..6), 0..40),
        ) {
            const BASE: u64 = 0x1000;
            let mut table = ProcessTable::default();
            table.adopt(1, "a");
            let mut pages: [Option<(u32, u64)>; 100] = [None; 100];
            for (first, len, id) in maps {
                table.mapped(&mapped(1, BASE + (first << 12), len << 12), object(id));
                let start = BASE + (first << 12);
                pages[first as usize..(first + len) as usize].fill(Some((id, start)));
                let space = &table.get(1).unwrap().space;
                for (page, expected) in pages.iter().enumerate() {
                    let (id, start) = expected.unwrap_or((ObjectId::UNKNOWN.0, 0));
                    let start = if id == ObjectId::UNKNOWN.0 { 0 } else { start };
                    for address in [BASE + ((page as u64) << 12), BASE + ((page as u64) << 12) + 0xfff] {
                        let expected = Frame { object: ObjectId(id), address: address - start };
                        prop_assert_eq!(space.locate(address), expected);
                    }
                }
                prop_assert!(space.mappings.windows(2).all(|pair| pair[0].end <= pair[1].start));
            }
        }
    }
}
