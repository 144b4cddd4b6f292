//! Which code the target's processes have mapped: from records, and from `/proc` where records may be
//! missing, bounded in memory.

use profiler_core::process::Process;
use profiler_core::record::{Mapped, RawSample};

use super::Session;
use crate::jit::MappedAs;
use crate::objects::is_code_without_file;
use crate::sys::maps::MappedCode;
use crate::sys::procfs::Child;
use crate::sys::{clock, procfs};

/// The result of entering a mapping.
struct Entered {
    has_room: bool,
    /// Whether its file is an object that could be read.
    is_object: bool,
}

impl Session {
    /// Follows a process that runs already, with the code mapped into it.
    pub(crate) fn adopt(&mut self, pid: u32) -> Result<(), ::procfs::ProcError> {
        let (now_ns, once) = (clock::monotonic_ns(), self.begin_once());
        let found = procfs::name_and_parent(pid);
        let (comm, parent) = found.unwrap_or_else(|| (self.members.names.of(pid), 0));
        self.processes.adopt_at(pid, &comm, now_ns);
        self.counted.owners.iter_mut().for_each(|owners| owners.met(pid, Some(parent)));
        self.cpu.adopt_child(pid, parent);
        self.rereads.read(pid);
        let code = self.read_code(pid);
        code.iter().flatten().for_each(|mapped| self.mapped(mapped));
        self.spent_once(once);
        code.map(drop)
    }

    /// The code of a process. What it moved away from its file counts as mapped from there.
    fn read_code(&mut self, pid: u32) -> Result<Vec<Mapped>, ::procfs::ProcError> {
        let all = procfs::mapped_code(pid, is_code_without_file)?;
        let original =
            |MappedCode { mapped, around }| self.code.objects.origin(&mapped, &around).unwrap_or(mapped);
        Ok(all.into_iter().map(original).collect())
    }

    /// Reads something of a process again. Its next readings wait the longer, the longer this one takes.
    fn read_again<T>(&mut self, pid: u32, read: impl FnOnce(&mut Self) -> T) -> T {
        let before_ns = clock::thread_cpu_ns();
        let found = read(self);
        let took_ns = clock::thread_cpu_ns().saturating_sub(before_ns);
        self.rereads.took(pid, clock::monotonic_ns(), took_ns);
        found
    }

    /// Takes in a mapping from a record.
    pub(super) fn mapping_reported(&mut self, mapped: &Mapped) {
        let origin = self.origin(mapped);
        self.mapped(origin.as_ref().unwrap_or(mapped));
    }

    /// The origin of code without a file that was mapped over code of a file. No record reports an unmapped file, so
    /// `/proc` has to confirm that the file's code is still mapped; such mappings are rare.
    fn origin(&mut self, mapped: &Mapped) -> Option<Mapped> {
        let end = mapped.start.saturating_add(mapped.len);
        let is_over_file = |process: &Process| process.space.has_file_in(mapped.start, end);
        if !is_code_without_file(&mapped.path) || !self.processes.get(mapped.pid).is_some_and(is_over_file) {
            return None;
        }
        if !self.rereads.is_asked_for(mapped.pid, clock::monotonic_ns()) {
            return None;
        }
        let read = |_: &mut Self| procfs::mapped_code(mapped.pid, is_code_without_file);
        let now = self.read_again(mapped.pid, read).ok()?;
        let is_it = |code: &&MappedCode| {
            let other = &code.mapped;
            (other.start..other.start.saturating_add(other.len)).contains(&mapped.start)
        };
        let code = now.iter().find(is_it)?;
        self.code.objects.origin(mapped, &code.around)
    }

    pub(super) fn mapped(&mut self, mapped: &Mapped) {
        let Entered { has_room, is_object } = self.enter(mapped);
        if !has_room {
            self.make_room_for(mapped);
        }
        if let Some(process) = self.processes.get(mapped.pid) {
            let place = match (process.space.is_in_file(mapped.start), is_object) {
                (true, _) => MappedAs::Object,
                (false, true) => MappedAs::Data,
                (false, false) => MappedAs::NoObject,
            };
            self.code.jit.mapped(
                process.index,
                mapped,
                place,
                &self.code.objects.roots,
                &self.code.objects.memory,
            );
        }
    }

    fn enter(&mut self, mapped: &Mapped) -> Entered {
        let mut is_object = false;
        let has_room = self.processes.mapped(mapped, |mapped| {
            let loaded = self.code.objects.load(mapped);
            is_object = loaded.image.is_some();
            loaded
        });
        Entered { has_room, is_object }
    }

    /// Rereads a process with very many mappings now and then: most of the known ones may be old.
    fn make_room_for(&mut self, mapped: &Mapped) {
        let generation = self.processes.get(mapped.pid).map_or(0, |process| process.generation);
        if self.rereads.is_worthwhile(mapped.pid, generation, clock::monotonic_ns())
            && let Ok(maps) = self.read_again(mapped.pid, |session| session.read_code(mapped.pid))
        {
            self.processes.forget_mappings(mapped.pid);
            self.counts.maps_reread += 1;
            let left_out = maps.iter().filter(|mapped| !self.enter(mapped).has_room).count();
            self.counts.mappings_dropped += left_out as u64;
        } else {
            self.counts.mappings_dropped += 1;
        }
    }

    /// Reads the mappings of a process, unless it has ended: then there is nothing to read or unwind.
    fn read_maps(&mut self, pid: u32) {
        let once = self.begin_once();
        self.rereads.read(pid);
        if let Ok(maps) = self.read_again(pid, |session| session.read_code(pid)) {
            maps.iter().for_each(|mapped| self.mapped(mapped));
            self.stacks.unwinder.note_change();
            self.counts.maps_reread += 1;
        }
        self.spent_once(once);
    }

    /// Sets whether records report mappings from now on.
    pub(crate) fn set_mappings_reported(&mut self, reported: bool) {
        self.rereads.set_reported(reported);
    }

    /// Rereads mappings after a sample in memory that was never reported. If no record reports mappings, known code may
    /// also have been replaced.
    pub(super) fn look_for_code(&mut self, sample: &RawSample<'_>, innermost: Option<u64>) {
        let ip = innermost.or(sample.regs.map(|regs| regs.ip()));
        let process = self.processes.get(sample.pid);
        let Some((ip, process)) = ip.zip(process) else { return };
        if self.rereads.is_owed(sample.pid, sample.time_ns) {
            self.read_maps(sample.pid);
            return;
        }
        let is_unreported = !process.space.is_executable(ip)
            && self.rereads.is_worthwhile(sample.pid, process.generation, sample.time_ns);
        if is_unreported || self.rereads.is_old(sample.pid, sample.time_ns) {
            self.read_maps(sample.pid);
        }
    }

    /// Rereads mappings after a stack that returns to memory that was never reported: either it is not a return
    /// address, or a mapping was missed that the next sample needs.
    pub(super) fn look_for_callers(&mut self, sample: &RawSample<'_>) {
        let generation = self.processes.get(sample.pid).map(|process| process.generation);
        let is_worthwhile = |generation| self.rereads.is_worthwhile(sample.pid, generation, sample.time_ns);
        if generation.is_some_and(is_worthwhile) {
            self.read_maps(sample.pid);
        }
    }

    /// Follows what a followed process created before that was followed; after an error it is not followed.
    pub(crate) fn adopt_child(&mut self, child: Child) -> Result<(), ::procfs::ProcError> {
        let (now_ns, once) = (clock::monotonic_ns(), self.begin_once());
        let maps = self.read_code(child.pid)?;
        self.processes.adopt_at(child.pid, &procfs::comm(child.pid).unwrap_or_default(), now_ns);
        self.cpu.adopt_child(child.pid, child.parent);
        self.rereads.read(child.pid);
        maps.iter().for_each(|mapped| self.mapped(mapped));
        self.spent_once(once);
        Ok(())
    }

    /// Forgets unused objects if there are many; if there is no room for all unwind tables, the ones with the most
    /// weight stay.
    pub(crate) fn keep_within_bounds(&mut self) {
        if self.code.objects.is_crowded() {
            let frames = self.counted.frames();
            let used = frames.map(|frame| frame.object).chain(self.processes.mapped_objects()).collect();
            self.code.objects.keep_only(&used);
        }
        if self.code.rebalance(&self.counted, &mut self.processes) {
            self.stacks.forget_tables();
        }
    }
}
