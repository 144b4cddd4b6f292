//! The profiled processes, their names and the code mapped into them.

mod space;

use std::cell::Cell;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use self::space::ExecutableMapping;
pub use self::space::{AddressSpace, LoadedObject, page_start};
use crate::elf::ElfImage;
use crate::profile::{ProcessIndex, ProcessInfo};
use crate::record::{Mapped, Task};
use crate::stack::{Frame, GeneratedCode, ObjectId};

/// Processes that have an entry of their own in the profile, beside those that were never sampled. Later ones share
/// an entry with all others of their name, and their stacks: whoever starts so many does not ask after a single one.
const MAX_PROCESSES: usize = 1_000;
/// Names that have a shared entry. Still later ones share a last one.
const MAX_SHARED_NAMES: usize = 1_000;
/// In a round the window of each target ends, once at least: one that holds a sample ends by the end of the second round.
const ROUNDS_A_SAMPLE_LASTS: u8 = 2;
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
    /// When it was looked up, so that earlier records tell of what is known (ns); 0 where records alone told of it.
    known_ns: u64,
    /// For so many more rounds samples may refer to its entry in the profile.
    sampled_for: Cell<u8>,
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

    /// Notes that a sample was counted under its entry in the profile, or may be handed on: the entry stays until all windows have
    /// ended that it may be in.
    pub fn note_sample(&self) {
        self.sampled_for.set(ROUNDS_A_SAMPLE_LASTS);
    }
}

/// An entry for all processes of a name.
#[derive(Clone, Copy)]
struct SharedEntry {
    index: ProcessIndex,
    /// For so many more rounds samples may refer to it, if no process has it.
    sampled_for: u8,
}

/// All profiled processes, kept current by the kernel's side records.
#[derive(Default)]
pub struct ProcessTable {
    live: FxHashMap<u32, Process>,
    infos: Vec<ProcessInfo>,
    /// Entries of `infos` that no process and no sample refers to any more.
    unused: Vec<ProcessIndex>,
    /// Entries of processes that have ended, and for how many more rounds samples may refer to them.
    ended: Vec<(ProcessIndex, u8)>,
    /// Entries of `infos` for all processes of a name.
    shared: FxHashMap<String, SharedEntry>,
    unused_shared: Vec<ProcessIndex>,
    generations: u64,
    threads_created: u64,
}

impl ProcessTable {
    /// Starts to follow `pid` as a target of its own, of whom no record has told yet.
    pub fn adopt(&mut self, pid: u32, comm: &str) {
        self.adopt_at(pid, comm, 0);
    }

    /// The same for one that was found at `at_ns`, while records until then may still be on their way: that it was forked, say.
    pub fn adopt_at(&mut self, pid: u32, comm: &str, at_ns: u64) {
        if self.live.contains_key(&pid) {
            return;
        }
        self.enter(pid, comm.to_owned(), None, Arc::default());
        if let Some(process) = self.live.get_mut(&pid) {
            process.known_ns = at_ns;
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
        let mapping = ExecutableMapping::new(mapped, &load(mapped));
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
            let (parent, known_ns) = (process.parent, process.known_ns);
            self.enter(pid, name.to_owned(), parent, Arc::default());
            self.live.entry(pid).and_modify(|process| process.known_ns = known_ns);
        } else if pid == tid && !is_shared(process.index) {
            self.infos[process.index.0 as usize].comm = name.to_owned();
        } else if pid == tid {
            let index = self.entry(pid, name.to_owned());
            self.generations += 1;
            if let Some(process) = self.live.get_mut(&pid) {
                (process.index, process.generation) = (index, self.generations);
                process.sampled_for.set(0);
            }
        }
    }

    /// A new task. A child of a profiled process is profiled too. Whether a process begins by it that was not known.
    pub fn forked(&mut self, task: Task) -> bool {
        let parent = self.live.get(&task.parent_pid);
        if task.pid == task.parent_pid {
            self.threads_created += u64::from(parent.is_some());
            return false;
        }
        let parent_pid = parent.map(|_| task.parent_pid);
        if let Some(known) = self.live.get_mut(&task.pid).filter(|known| task.time_ns < known.known_ns) {
            known.parent = parent_pid; // it was found before this was read
            return false;
        }
        let Some(parent) = self.live.get(&task.parent_pid) else {
            self.forget(task.pid); // the number was given to a stranger
            return false;
        };
        let is_known = |known: &Process| known.is_as_forked && known.parent == Some(task.parent_pid);
        if self.live.get(&task.pid).is_some_and(is_known) {
            return false; // reported by two events
        }
        let comm = self.infos[parent.index.0 as usize].comm.clone();
        let space = Arc::clone(&parent.space);
        self.threads_created += 1;
        self.enter(task.pid, comm, Some(task.parent_pid), space);
        if let Some(child) = self.live.get_mut(&task.pid) {
            child.is_as_forked = true;
        }
        true
    }

    /// Forgets a process that has ended.
    pub fn forget(&mut self, pid: u32) {
        let Some(process) = self.live.remove(&pid) else { return };
        match process.sampled_for.get() {
            _ if is_shared(process.index) => {}
            0 => self.unused.push(process.index),
            rounds => self.ended.push((process.index, rounds)),
        }
    }

    fn enter(&mut self, pid: u32, comm: String, parent: Option<u32>, space: Arc<AddressSpace>) {
        self.forget(pid);
        let index = self.entry(pid, comm);
        self.generations += 1;
        let generation = self.generations;
        let process = Process {
            index,
            parent,
            space,
            generation,
            known_ns: 0,
            sampled_for: Cell::new(0),
            is_as_forked: false,
        };
        self.live.insert(pid, process);
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
        if let Some(entry) = self.shared.get_mut(&comm) {
            entry.sampled_for = ROUNDS_A_SAMPLE_LASTS;
            return entry.index;
        }
        let info = ProcessInfo { pid, comm: comm.clone() };
        let index = match self.unused_shared.pop() {
            Some(index) => {
                self.infos[index.0 as usize] = info;
                index
            }
            None => {
                self.infos.push(info);
                next
            }
        };
        self.shared.insert(comm, SharedEntry { index, sampled_for: ROUNDS_A_SAMPLE_LASTS });
        index
    }

    /// Samples until now refer to [`ProcessTable::infos`] as they are; no sample does from now on, so the entries of
    /// processes that have ended are given away again. Returns the processes that have an entry of their own at last,
    /// after one that they shared.
    pub fn cut(&mut self) -> Vec<u32> {
        self.give_away_after(ROUNDS_A_SAMPLE_LASTS)
    }

    /// The same where windows end in rounds: of the samples until now, those from before the last call are handed over.
    pub fn end_round(&mut self) -> Vec<u32> {
        self.give_away_after(1)
    }

    fn give_away_after(&mut self, rounds: u8) -> Vec<u32> {
        let Self { live, ended, unused, .. } = self;
        ended.retain_mut(|(index, sampled_for)| {
            *sampled_for = sampled_for.saturating_sub(rounds);
            unused.extend((*sampled_for == 0).then_some(*index));
            *sampled_for > 0
        });
        for process in live.values() {
            process.sampled_for.set(process.sampled_for.get().saturating_sub(rounds));
        }
        let moved = self.leave_shared_entries();
        let used: FxHashSet<ProcessIndex> = self.live.values().map(|process| process.index).collect();
        let Self { shared, unused_shared, .. } = self;
        shared.retain(|_, entry| {
            entry.sampled_for = match used.contains(&entry.index) {
                true => ROUNDS_A_SAMPLE_LASTS,
                false => entry.sampled_for.saturating_sub(rounds),
            };
            unused_shared.extend((entry.sampled_for == 0).then_some(entry.index));
            entry.sampled_for > 0
        });
        moved
    }

    /// Gives the processes that share an entry those that are free, unless nobody knows their name any more.
    fn leave_shared_entries(&mut self) -> Vec<u32> {
        let mut moved = Vec::new();
        let sharing = self.live.iter_mut().filter(|(_, process)| is_shared(process.index));
        for (&pid, process) in sharing {
            let comm = &self.infos[process.index.0 as usize].comm;
            if comm == OTHER_NAMES {
                continue;
            }
            let Some(index) = self.unused.pop() else { break };
            self.infos[index.0 as usize] = ProcessInfo { pid, comm: comm.clone() };
            self.generations += 1;
            (process.index, process.generation) = (index, self.generations);
            process.sampled_for.set(0);
            moved.push(pid);
        }
        moved
    }
}

/// Whether an entry in the profile stands for all processes of a name.
fn is_shared(index: ProcessIndex) -> bool {
    index.0 as usize >= MAX_PROCESSES
}

#[cfg(test)]
mod tests;
