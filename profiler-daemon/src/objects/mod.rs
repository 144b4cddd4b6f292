//! The files that code is loaded from, opened while the process that mapped them still lives.
//!
//! A path alone is not enough: the file may be deleted or replaced while it is mapped, and the process may
//! see another file system than we do. So a file is opened the moment its mapping is reported, through the
//! process, and checked against the inode that is mapped; the descriptor is kept for the names, as long as there are not
//! too many ([`files`]). A file is one object, whatever process mapped it under whatever path; that another is of the same build
//! is not believed, since anybody can make one that says so.
//!
//! Unwind tables are read when a sample first needs them, because most of what a process maps never runs. Those
//! of an attached process, and of the files that a command will map, are read before time counts
//! (`ObjectStore::preload`): the tables of a big program would use up the budget of its first second. Tables
//! that have to be read later are set-up (`self_once_ns`), shown separately and, in the service, charged to the
//! host's budget over the following minutes.
//!
//! Where a process answers for a file system (FUSE), no file is identified by its metadata and nothing is
//! shared.

pub(crate) mod files;
mod find;
mod finder;
mod kernel;
pub(crate) mod loaded;
pub(crate) mod memory;
mod moved;
pub(crate) mod names;
mod object;
mod recover;
mod room;
mod symbols;
pub(crate) mod target_file;
mod unanswered;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use profiler_core::process::LoadedObject;
use profiler_core::record::Mapped;
use profiler_core::stack::ObjectId;
use rustc_hash::{FxHashMap, FxHashSet};

use self::files::{Code, OpenFiles};
pub(crate) use self::find::open_mapped;
use self::find::{is_library, script_interpreter, will_map};
use self::finder::FoundObject;
pub(crate) use self::kernel::{KernelName, KernelNames};
use self::memory::SymbolMemory;
use self::names::NameRoom;
use self::object::ObjectEntry;
pub(crate) use self::object::{Content, MappedObject, Missing, ObjectSnapshot};
pub(crate) use self::symbols::Symbols;
use self::unanswered::{FileKey, Unanswered};
use crate::roots::Roots;
use crate::symbol_process;
use crate::symbol_process::SymbolProcess;
use crate::sys::{clock, procfs};

/// How the vDSO is named in mappings.
const VDSO: &str = "[vdso]";
/// Processes of 32 bits have nothing above, and another vDSO than ours, which is not to be had.
const NARROW_ADDRESSES: u64 = 1 << 32;
/// How that is known here.
const NARROW_VDSO: &str = "[vdso] of 32 bits";
/// Appended by the kernel to the path of a file that has no name any more.
pub(crate) const DELETED: &str = " (deleted)";
/// Mapped files that are remembered by their inodes and paths; others are opened again, and recognised.
const MOST_KNOWN: usize = 16_384;
/// A file that was not there is looked for again as often, when another process maps it.
const MOST_TRIES: u32 = 8;
/// When there are so many objects, those that nothing refers to any more are forgotten.
const CROWD: usize = 4_096;

/// All objects seen so far, by [`ObjectId`].
pub(crate) struct ObjectStore {
    /// Places of objects that were forgotten are given away again.
    entries: Vec<Option<ObjectEntry>>,
    free: Vec<ObjectId>,
    ids: FxHashMap<FileKey, ObjectId>,
    by_code: FxHashMap<Code, ObjectId>,
    /// The file systems that they were opened in.
    pub(crate) roots: Roots,
    /// The descriptors.
    files: OpenFiles,
    /// What tables and names may take, with those of other stores.
    pub(crate) memory: SymbolMemory,
    /// The names that are kept.
    pub(crate) names: NameRoom,
    kernel: Arc<KernelNames>,
    process: SymbolProcess,
    once: OnceCost,
    objects_seen: u64,
    bounds: Bounds,
    /// Files on file systems that have not answered yet.
    unanswered: Unanswered,
}

/// What is decided where objects or their tables are too many.
struct Bounds {
    crowd: usize,
    is_short_of_room: bool,
    /// How often unwind tables had been refused when it was decided whose stay.
    refusals: u64,
}

/// Own CPU time for what is done once for each object (ns): it says nothing about the next sample.
#[derive(Clone, Default)]
struct OnceCost(Arc<AtomicU64>);

impl OnceCost {
    fn of<T>(&self, work: impl FnOnce() -> T) -> T {
        let before_ns = clock::thread_cpu_ns();
        let done = work();
        self.0.fetch_add(clock::thread_cpu_ns().saturating_sub(before_ns), Ordering::Relaxed);
        done
    }
}

impl ObjectStore {
    /// None yet; their tables and names share memory with those of others.
    pub(crate) fn new(symbols: &Symbols) -> Self {
        let Symbols { memory, names, kernel, process, opener } = symbols.for_another();
        let roots = Roots::with(opener.clone());
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            ids: FxHashMap::default(),
            by_code: FxHashMap::default(),
            files: OpenFiles::new(roots.clone(), symbol_process::object_files(), opener),
            roots,
            names,
            kernel,
            process,
            bounds: Bounds { crowd: CROWD, is_short_of_room: false, refusals: memory.refusals() },
            memory,
            once: OnceCost::default(),
            objects_seen: 0,
            unanswered: Unanswered::default(),
        }
    }

    /// The object behind a mapping; opens it the first time.
    pub(crate) fn load(&mut self, mapped: &Mapped) -> LoadedObject {
        let has_no_file = is_code_without_file(&mapped.path);
        if has_no_file && mapped.file.inode == 0 {
            return LoadedObject::UNKNOWN;
        }
        let path = if is_narrow_vdso(mapped) { NARROW_VDSO } else { &mapped.path };
        let key = (mapped.file, path.to_owned());
        if let Some(&id) = self.ids.get(&key) {
            if !self.is_still_there(id) {
                self.ids.remove(&key);
            } else if !self.is_worth_another_try(id) {
                return self.loaded(id);
            }
        }
        let tries = self.ids.get(&key).and_then(|&id| self.entry(id)).map_or(0, |entry| entry.tries);
        let id = match self.find(mapped, &key) {
            None if !has_no_file => return LoadedObject::UNKNOWN, // another file may get its inode
            None => ObjectId::UNKNOWN, // what a run-time compiler shares with itself
            Some(FoundObject::Known(id)) => id,
            // Frames may refer to the one that was missing, by addresses that count from its file's first byte.
            Some(FoundObject::New(entry))
                if tries > 0 && entry.snapshot.image.is_none() && !self.is_answer(&key, &entry) =>
            {
                let id = self.ids[&key];
                self.note_try(id);
                return LoadedObject { id, image: None };
            }
            Some(FoundObject::New(entry)) => self.enter(entry),
        };
        if self.ids.len() >= MOST_KNOWN {
            self.ids.clear();
        }
        self.ids.insert(key, id);
        self.loaded(id)
    }

    fn loaded(&self, id: ObjectId) -> LoadedObject {
        LoadedObject { id, image: self.object(id).and_then(|snapshot| snapshot.image.clone()) }
    }

    /// A file that somebody wrote into has other code under the same inode and path. What frames refer to stays as it is.
    fn is_still_there(&self, id: ObjectId) -> bool {
        self.object(id).is_none_or(|object| match &object.content {
            Content::File(file) => file.is_as_it_was(),
            Content::Image(_) | Content::Missing(_) => true,
        })
    }

    /// A file that was not there may be reached through another process.
    fn is_worth_another_try(&self, id: ObjectId) -> bool {
        self.entry(id).is_some_and(|entry| match &entry.snapshot.content {
            Content::Missing(Missing::Deleted | Missing::Replaced | Missing::NotOpened(_)) => {
                entry.tries < MOST_TRIES
            }
            Content::Missing(Missing::NoAnswer(_)) => true,
            _ => false,
        })
    }

    /// Whether more is known now of a file whose file system did not answer before.
    fn is_answer(&self, key: &FileKey, found: &ObjectEntry) -> bool {
        let is_unanswered =
            |object: &MappedObject| matches!(object.content, Content::Missing(Missing::NoAnswer(_)));
        let before = self.ids.get(key).and_then(|&id| self.object(id));
        before.is_some_and(|before| is_unanswered(before)) && !is_unanswered(&found.snapshot)
    }

    fn note_try(&mut self, id: ObjectId) {
        if let Some(entry) = self.entry_mut(id) {
            entry.tries += 1;
        }
    }

    fn enter(&mut self, entry: ObjectEntry) -> ObjectId {
        self.objects_seen += 1;
        let id = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            ObjectId(ObjectId::FIRST_FILE + self.entries.len() as u32 - 1)
        });
        if let Some(code) = &entry.code {
            self.by_code.insert(*code, id);
        }
        self.entries[(id.0 - ObjectId::FIRST_FILE) as usize] = Some(entry);
        id
    }

    /// Opens the files that a command will most likely map, before its time counts: the program, the interpreter
    /// of a script, and the libraries that almost every program shares with us.
    pub(crate) fn preload(&mut self, program: &Path) {
        let shared = procfs::executable_maps(std::process::id()).unwrap_or_default();
        let shared =
            shared.into_iter().map(|mapped| PathBuf::from(mapped.path)).filter(|path| is_library(path));
        for path in shared.chain(script_interpreter(program)).chain([program.to_owned()]) {
            if let Some(mapped) = will_map(&path) {
                self.load(&mapped);
            }
        }
    }

    /// Own CPU time that opening objects and reading their tables has taken so far (ns).
    pub(crate) fn once_ns(&self) -> u64 {
        self.once.0.load(Ordering::Relaxed)
    }

    /// What naming needs, as it is at this moment.
    pub(crate) fn snapshot(&self) -> Objects {
        let snapshot = |entry: &Option<ObjectEntry>| entry.as_ref().map(|entry| entry.snapshot.clone());
        Objects {
            known: self.entries.iter().map(snapshot).collect(),
            roots: self.roots.snapshot(),
            memory: self.memory.clone(),
            names: self.names.clone(),
            kernel: Arc::clone(&self.kernel),
            process: self.process.clone(),
            objects_seen: self.objects_seen,
            files: self.files.clone(),
        }
    }

    /// The object with this id, unless it stands for the kernel or for code in no file.
    pub(crate) fn object(&self, id: ObjectId) -> Option<&ObjectSnapshot> {
        Some(&self.entry(id)?.snapshot)
    }

    fn entry(&self, id: ObjectId) -> Option<&ObjectEntry> {
        self.entries.get(place(id)?)?.as_ref()
    }

    fn entry_mut(&mut self, id: ObjectId) -> Option<&mut ObjectEntry> {
        self.entries.get_mut(place(id)?)?.as_mut()
    }

    fn all(&self) -> impl Iterator<Item = (ObjectId, &ObjectEntry)> {
        let numbered = self.entries.iter().zip(ObjectId::FIRST_FILE..);
        numbered.filter_map(|(entry, number)| Some((ObjectId(number), entry.as_ref()?)))
    }
}

fn place(id: ObjectId) -> Option<usize> {
    Some(id.0.checked_sub(ObjectId::FIRST_FILE)? as usize)
}

/// The objects of a moment, which stay though they are forgotten, and what naming them needs.
pub(crate) struct Objects {
    known: Vec<Option<ObjectSnapshot>>,
    /// The file systems that they were opened in.
    pub(crate) roots: Roots,
    /// What names may take.
    pub(crate) memory: SymbolMemory,
    /// The names that are kept.
    pub(crate) names: NameRoom,
    /// Those of the kernel.
    pub(crate) kernel: Arc<KernelNames>,
    /// What reads their symbols.
    pub(crate) process: SymbolProcess,
    /// Objects that were met so far.
    pub(crate) objects_seen: u64,
    files: OpenFiles,
}

impl Objects {
    /// The object with this id, unless it stands for the kernel or for code in no file.
    pub(crate) fn get(&self, id: ObjectId) -> Option<&ObjectSnapshot> {
        self.known.get(place(id)?)?.as_ref()
    }

    /// Lets go of all objects but these.
    pub(crate) fn keep_only(&mut self, used: &FxHashSet<ObjectId>) {
        for (snapshot, number) in self.known.iter_mut().zip(ObjectId::FIRST_FILE..) {
            if !used.contains(&ObjectId(number)) {
                *snapshot = None;
            }
        }
    }

    /// Files that had to be closed, and were not there any more when they were asked for again.
    pub(crate) fn files_lost(&self) -> u64 {
        self.files.lost()
    }
}

fn is_narrow_vdso(mapped: &Mapped) -> bool {
    mapped.path == VDSO && mapped.start.saturating_add(mapped.len) <= NARROW_ADDRESSES
}

/// Whether a mapping of this name has no file behind it that lasts.
pub(crate) fn is_code_without_file(path: &str) -> bool {
    const NAMELESS: [&str; 5] = ["//anon", "/anon_hugepage", "/dev/zero", "/memfd:", "/SYSV"];
    NAMELESS.iter().any(|start| path.starts_with(start))
        || (!path.starts_with('/') && path != "[vdso]")
        || (path.starts_with("/dev/shm/") && path.ends_with(" (deleted)"))
}

#[cfg(test)]
mod tests;
