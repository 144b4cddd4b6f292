//! The files that code is loaded from, opened while the process that mapped them still lives.
//!
//! A path alone is not enough: the file may be deleted or replaced while it is mapped, and the process may
//! see another file system than we do. So a file is opened the moment its mapping is reported, through the
//! process, and checked against the inode that is mapped; the descriptor is kept for the names, as long as there are not
//! too many ([`files`]). Files of one build are one object, whatever process mapped them, from wherever.

pub(crate) mod files;
mod find;
pub(crate) mod memory;

use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use object::ReadCache;
use profiler_core::elf::{ElfError, ElfImage, ReadLater};
use profiler_core::machine::Machine;
use profiler_core::process::{LoadedObject, ProcessTable};
use profiler_core::record::{FileId, Mapped};
use profiler_core::stack::ObjectId;
use rustc_hash::{FxHashMap, FxHashSet};

use self::files::{Code, HeldFile, Identity, MOST_OPEN, OpenFiles};
pub(crate) use self::find::open_mapped;
use self::find::{Way, find_mapped, is_library, open_through_mapping, path_of, script_interpreter, will_map};
use self::memory::{Room, SymbolMemory};
use crate::jit;
use crate::roots::{Roots, View};
use crate::sys::{clock, procfs};

/// How the vDSO is named in mappings.
const VDSO: &str = "[vdso]";
/// Appended by the kernel to the path of a file that has no name any more.
const DELETED: &str = " (deleted)";
/// Mapped files that are remembered by their inodes and paths; others are opened again, and recognised.
const MOST_KNOWN: usize = 16_384;
/// A file that was not there is looked for again as often, when another process maps it.
const MOST_TRIES: u32 = 8;
/// When there are so many objects, those that nothing refers to any more are forgotten.
const CROWD: usize = 4_096;

/// Where the bytes of an object are.
pub(crate) enum Content {
    /// A file that is open, or can be opened again.
    File(HeldFile),
    /// An image in memory (the vDSO).
    Image(Vec<u8>),
    /// Nowhere.
    Missing(Missing),
}

/// Why the bytes of an object cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Missing {
    /// The file has no name any more.
    #[error("the file was deleted")]
    Deleted,
    /// Another file has its name.
    #[error("the file was replaced since it was mapped")]
    Replaced,
    /// Somebody wrote into it.
    #[error("the file was overwritten since it was mapped")]
    Overwritten,
    /// It had to be closed for others, and is not there any more.
    #[error("too many files were in use, and this one was gone when it was opened again")]
    Lost,
    /// It would not run here.
    #[error("the file was made for another machine")]
    OtherMachine,
    /// Opening it failed.
    #[error("the file could not be opened: {0}")]
    NotOpened(String),
    /// The kernel's code in every process could not be read.
    #[error("the vDSO could not be read")]
    NoVdso,
}

/// An object that code was loaded from.
pub(crate) struct Object {
    /// The path as the target saw it.
    pub(crate) path: String,
    /// Its bytes.
    pub(crate) content: Content,
    /// What a process that mapped it sees: separate debug files are looked for there.
    pub(crate) view: View,
    /// With its unwind tables.
    whole: Option<Arc<ElfImage>>,
    /// The same, or without tables while there is no room for them.
    image: Option<Arc<ElfImage>>,
    room: Arc<Room>,
    code: Option<Code>,
    tries: u32,
}

/// All objects seen so far, by [`ObjectId`].
pub(crate) struct ObjectStore {
    /// Places of objects that were forgotten are given away again.
    objects: Vec<Option<Object>>,
    free: Vec<ObjectId>,
    ids: FxHashMap<(FileId, String), ObjectId>,
    by_code: FxHashMap<Code, ObjectId>,
    /// The file systems that they were opened in.
    pub(crate) roots: Roots,
    /// The descriptors.
    pub(crate) files: OpenFiles,
    /// What tables and names may take.
    pub(crate) memory: SymbolMemory,
    once: OnceCost,
    met: u64,
    crowd: usize,
    is_short_of_room: bool,
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

/// What a mapping turned out to be.
enum Found {
    New(Object),
    Known(ObjectId),
}

impl ObjectStore {
    /// None yet; their tables and names may take so much of memory (bytes).
    pub(crate) fn new(symbol_bytes: u64) -> Self {
        let roots = Roots::default();
        Self {
            objects: Vec::new(),
            free: Vec::new(),
            ids: FxHashMap::default(),
            by_code: FxHashMap::default(),
            files: OpenFiles::new(roots.clone(), MOST_OPEN),
            roots,
            memory: SymbolMemory::new(symbol_bytes),
            once: OnceCost::default(),
            met: 0,
            crowd: CROWD,
            is_short_of_room: false,
        }
    }

    /// The object behind a mapping; opens it the first time.
    pub(crate) fn load(&mut self, mapped: &Mapped) -> LoadedObject {
        let has_no_file = jit::is_code_without_file(&mapped.path);
        if has_no_file && mapped.file.inode == 0 {
            return LoadedObject::UNKNOWN;
        }
        let key = (mapped.file, mapped.path.clone());
        if let Some(&id) = self.ids.get(&key)
            && !self.is_worth_another_try(id)
        {
            return LoadedObject { id, image: self.object(id).and_then(|object| object.image.clone()) };
        }
        let tries = self.ids.get(&key).and_then(|&id| self.object(id)).map_or(0, |object| object.tries);
        let once = self.once.clone();
        let found = once.of(|| self.find(mapped, has_no_file));
        let id = match found {
            None => ObjectId::UNKNOWN, // what a run-time compiler shares with itself
            Some(Found::Known(id)) => id,
            // Frames may refer to the one that was missing, by addresses that count from its file's first byte.
            Some(Found::New(object)) if tries > 0 && object.image.is_none() => {
                let id = self.ids[&key];
                self.note_try(id);
                return LoadedObject { id, image: None };
            }
            Some(Found::New(object)) => self.enter(object),
        };
        if self.ids.len() >= MOST_KNOWN {
            self.ids.clear();
        }
        self.ids.insert(key, id);
        LoadedObject { id, image: self.object(id).and_then(|object| object.image.clone()) }
    }

    /// A file that was not there may be reached through another process.
    fn is_worth_another_try(&self, id: ObjectId) -> bool {
        self.object(id).is_some_and(|object| match &object.content {
            Content::Missing(Missing::Deleted | Missing::Replaced | Missing::NotOpened(_)) => {
                object.tries < MOST_TRIES
            }
            _ => false,
        })
    }

    fn note_try(&mut self, id: ObjectId) {
        let place = id.0.checked_sub(ObjectId::FIRST_FILE).map(|at| at as usize);
        let object = place.and_then(|at| self.objects.get_mut(at)?.as_mut());
        if let Some(object) = object {
            object.tries += 1;
        }
    }

    /// Opens what is mapped. None where that is no file that lasts.
    fn find(&self, mapped: &Mapped, has_no_file: bool) -> Option<Found> {
        let view = self.roots.of(mapped.pid);
        let path = path_of(mapped);
        let room = Room::new(&self.memory);
        let object = |content, image: Option<Arc<ElfImage>>, code| Object {
            path: path.to_owned(),
            content,
            view,
            whole: image.clone(),
            image,
            room: Arc::clone(&room),
            code,
            tries: 1,
        };
        if mapped.path == VDSO {
            let bytes = procfs::vdso_image();
            let image = bytes.as_deref().and_then(|bytes| ElfImage::parse_bytes(bytes).ok());
            let content = bytes.map_or(Content::Missing(Missing::NoVdso), Content::Image);
            return Some(Found::New(object(content, image.map(Arc::new), None)));
        }
        let found = match has_no_file {
            true => open_through_mapping(mapped)
                .map(|file| (file, Way::Process))
                .map_err(|error| Missing::NotOpened(error.to_string())),
            false => find_mapped(mapped, view, &self.roots),
        };
        let (file, way) = match found {
            Ok(found) => found,
            Err(_) if has_no_file => return None,
            Err(missing) => return Some(Found::New(object(Content::Missing(missing), None, None))),
        };
        let Ok(meta) = file.metadata() else { return None };
        let (held, image) = self.parse(file, &meta, &room);
        let image = match image {
            Ok(image) => image,
            Err(_) if has_no_file => return None,
            // Its names would be wrong too.
            Err(ElfError::OtherMachine) => {
                return Some(Found::New(object(Content::Missing(Missing::OtherMachine), None, None)));
            }
            Err(_) => return Some(Found::New(object(Content::File(held), None, None))),
        };
        let identity = Identity::new(&meta, image.build_id.clone());
        held.is_of(identity.clone());
        let code = identity.code();
        if let Some((id, same)) = self.same_code(&code, &image) {
            note_place(same, &way, view, path);
            return Some(Found::Known(id));
        }
        if matches!(way, Way::Path) {
            held.is_at(view, Path::new(path));
        }
        Some(Found::New(object(Content::File(held), Some(Arc::new(image)), Some(code))))
    }

    /// The object that has this code already.
    fn same_code(&self, code: &Code, image: &ElfImage) -> Option<(ObjectId, &Object)> {
        let &id = self.by_code.get(code)?;
        let object = self.object(id)?;
        let known = object.whole.as_ref()?;
        (known.segments == image.segments && known.entry == image.entry).then_some((id, object))
    }

    /// Holds a file that was opened, and reads its headers.
    fn parse(&self, file: File, meta: &Metadata, room: &Arc<Room>) -> (HeldFile, Result<ElfImage, ElfError>) {
        let held = self.files.hold(file, Identity::new(meta, None));
        let later = later(held.clone(), Arc::clone(room), self.once.clone());
        let image = held.get().map_err(|_| ElfError::NotElf);
        let image = image.and_then(|file| ElfImage::parse(&ReadCache::new(&*file), &later));
        let image = image.and_then(|image| match image.machine() == Machine::HOST {
            true => Ok(image),
            false => Err(ElfError::OtherMachine),
        });
        (held, image)
    }

    fn enter(&mut self, object: Object) -> ObjectId {
        self.met += 1;
        let id = self.free.pop().unwrap_or_else(|| {
            self.objects.push(None);
            ObjectId(ObjectId::FIRST_FILE + self.objects.len() as u32 - 1)
        });
        if let Some(code) = &object.code {
            self.by_code.insert(code.clone(), id);
        }
        self.objects[(id.0 - ObjectId::FIRST_FILE) as usize] = Some(object);
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

    /// Reads the unwind tables of all objects, which otherwise are read when a sample asks for them.
    pub(crate) fn read_tables(&self) {
        self.all().filter_map(|(_, object)| object.image.as_ref()).for_each(|image| image.read_tables());
    }

    /// Lets the unwind tables of the heaviest objects in, and those of the lightest go, where there is no room for all.
    /// Returns whether anything was changed that processes have mapped.
    pub(crate) fn rebalance(
        &mut self,
        weights: impl FnOnce() -> FxHashMap<ObjectId, f64>,
        processes: &mut ProcessTable,
    ) -> bool {
        if !self.memory.take_refused() && !self.is_short_of_room {
            return false;
        }
        let weights = weights();
        let wanted = self.all().filter(|(_, object)| object.whole.is_some() && object.room.is_wanted());
        let mut wanted: Vec<(f64, ObjectId)> =
            wanted.map(|(id, _)| (weights.get(&id).copied().unwrap_or(0.0), id)).collect();
        wanted.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
        let mut left = self.memory.cap();
        let mut changed = Vec::new();
        self.is_short_of_room = false;
        for (_, id) in wanted {
            let Some(object) = self.object_mut(id) else { continue };
            let Some(whole) = object.whole.clone() else { continue };
            let bytes = whole.tables_bytes();
            let may_stay = bytes <= left;
            left -= if may_stay { bytes } else { 0 };
            if object.room.decide(may_stay) {
                let unread = Arc::new(whole.unread());
                object.image =
                    Some(if may_stay { Arc::clone(&unread) } else { Arc::new(unread.without_tables()) });
                object.whole = Some(unread);
                changed.extend(object.image.clone().map(|image| (id, image)));
            }
            self.is_short_of_room |= !may_stay;
        }
        for (id, image) in &changed {
            processes.replace_image(*id, image);
        }
        !changed.is_empty()
    }

    /// Gives the room of all unwind tables to names: no stack is unwound any more, and no process is there to use them.
    pub(crate) fn release_tables(&mut self) {
        for object in self.objects.iter_mut().flatten() {
            if let Some(whole) = &object.whole {
                object.room.release();
                let unread = Arc::new(whole.unread());
                (object.image, object.whole) = (Some(Arc::clone(&unread)), Some(unread));
            }
        }
    }

    /// Whether it is time to forget objects.
    pub(crate) fn is_crowded(&self) -> bool {
        self.objects.len() - self.free.len() >= self.crowd
    }

    /// Forgets all objects but those that stacks or processes refer to.
    pub(crate) fn keep_only(&mut self, used: &FxHashSet<ObjectId>) {
        for (at, place) in self.objects.iter_mut().enumerate() {
            let id = ObjectId(ObjectId::FIRST_FILE + at as u32);
            if place.is_some() && !used.contains(&id) {
                *place = None;
                self.free.push(id);
            }
        }
        let is_kept = |id: &ObjectId| used.contains(id);
        self.ids.retain(|_, id| is_kept(id));
        self.by_code.retain(|_, id| is_kept(id));
        self.crowd = CROWD.max(2 * (self.objects.len() - self.free.len()));
    }

    /// Own CPU time that opening objects and reading their tables has taken so far (ns).
    pub(crate) fn once_ns(&self) -> u64 {
        self.once.0.load(Ordering::Relaxed)
    }

    /// Objects that were met so far.
    pub(crate) fn met(&self) -> u64 {
        self.met
    }

    /// The object with this id, unless it stands for the kernel or for code in no file.
    pub(crate) fn object(&self, id: ObjectId) -> Option<&Object> {
        self.objects.get(id.0.checked_sub(ObjectId::FIRST_FILE)? as usize)?.as_ref()
    }

    fn object_mut(&mut self, id: ObjectId) -> Option<&mut Object> {
        self.objects.get_mut(id.0.checked_sub(ObjectId::FIRST_FILE)? as usize)?.as_mut()
    }

    fn all(&self) -> impl Iterator<Item = (ObjectId, &Object)> {
        let numbered = self.objects.iter().zip(ObjectId::FIRST_FILE..);
        numbered.filter_map(|(object, number)| Some((ObjectId(number), object.as_ref()?)))
    }
}

impl Object {
    /// Where the function that holds a stated address begins, if the unwind tables tell.
    pub(crate) fn function_start(&self, address: u64) -> Option<u64> {
        self.image.as_ref()?.function_start(address)
    }

    /// Why its bytes cannot be had any more, or are not what they were.
    pub(crate) fn missing(&self) -> Option<Missing> {
        match &self.content {
            Content::Missing(missing) => Some(missing.clone()),
            Content::Image(_) => None,
            Content::File(file) => match file.get() {
                Ok(open) if file.is_unchanged(&open) => None,
                Ok(_) => Some(Missing::Overwritten),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Some(Missing::Lost),
                Err(error) => Some(Missing::NotOpened(error.to_string())),
            },
        }
    }
}

/// The same code was found at another place.
fn note_place(object: &Object, way: &Way, view: View, path: &str) {
    if let (Content::File(held), Way::Path) = (&object.content, way) {
        held.is_at(view, Path::new(path));
    }
}

fn later(file: HeldFile, room: Arc<Room>, once: OnceCost) -> ReadLater {
    Arc::new(move |range| {
        let len = range.end - range.start;
        room.read(len, || once.of(|| file.read(range.start, usize::try_from(len).ok()?).ok()))
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn store() -> ObjectStore {
        ObjectStore::new(1 << 28)
    }

    fn mapping(path: &Path, inode: u64) -> Mapped {
        let file = FileId { major: 0, minor: 0, inode, generation: 0 };
        let path = path.to_string_lossy().into_owned();
        Mapped { pid: std::process::id(), start: 0x1000, len: 0x1000, file_offset: 0, file, path }
    }

    fn reason(store: &ObjectStore, loaded: &LoadedObject) -> Missing {
        match &store.object(loaded.id).unwrap().content {
            Content::Missing(reason) => reason.clone(),
            _ => panic!("the file was opened"),
        }
    }

    #[test]
    fn a_file_is_opened_once_and_parsed() {
        let own = std::env::current_exe().unwrap();
        let inode = std::fs::metadata(&own).unwrap().ino();
        let mut store = store();
        let first = store.load(&mapping(&own, inode));
        assert!(first.image.is_some());
        assert_eq!(store.load(&mapping(&own, inode)).id, first.id);
    }

    #[test]
    fn deleted_and_replaced_files_are_told_apart() {
        let mut store = store();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lib.so");
        let deleted = store.load(&mapping(&path, 5));
        assert_eq!(reason(&store, &deleted), Missing::Deleted);
        std::fs::write(&path, b"another").unwrap();
        let replaced = store.load(&mapping(&path, 6));
        assert_eq!(reason(&store, &replaced), Missing::Replaced);
    }

    #[test]
    fn a_file_made_for_another_machine_is_of_no_use_and_says_so() {
        const E_MACHINE: usize = 18;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lib.so");
        let mut bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        // The other of the two that can be unwound, and one that cannot.
        let other = if Machine::HOST == Machine::X86_64 { 183u16 } else { 62 };
        for machine in [other, 243] {
            bytes[E_MACHINE..E_MACHINE + 2].copy_from_slice(&machine.to_le_bytes());
            std::fs::write(&path, &bytes).unwrap();
            let mut store = store();
            let loaded = store.load(&mapping(&path, 0));
            assert!(loaded.image.is_none());
            assert_eq!(reason(&store, &loaded), Missing::OtherMachine);
        }
    }

    #[test]
    fn code_without_a_file_is_unknown() {
        let loaded = store().load(&mapping(Path::new("//anon"), 0));
        assert_eq!(loaded.id, ObjectId::UNKNOWN);
    }

    fn is_open(store: &ObjectStore, loaded: &LoadedObject) -> bool {
        matches!(store.object(loaded.id).unwrap().content, Content::File(_))
    }

    #[test]
    fn copies_of_one_build_are_one_object_and_other_builds_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let own = std::env::current_exe().unwrap();
        let paths = ["a", "b"].map(|name| folder.path().join(name));
        paths.iter().for_each(|path| drop(std::fs::copy(&own, path).unwrap()));
        let mut store = store();
        let [one, other] = paths.each_ref().map(|path| store.load(&mapping(path, 0)));
        let has_build_id = one.image.as_ref().unwrap().build_id.is_some();
        assert_eq!(one.id == other.id, has_build_id);
        // The same name on longer code: a build id alone is not believed.
        let longer = folder.path().join("longer");
        std::fs::write(&longer, [std::fs::read(&own).unwrap(), vec![0; 8]].concat()).unwrap();
        assert_ne!(store.load(&mapping(&longer, 0)).id, one.id);
    }

    #[test]
    fn a_file_that_was_missing_is_another_object_once_it_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        let mut store = store();
        let missing = store.load(&mapping(&path, 0));
        assert_eq!(reason(&store, &missing), Missing::Deleted);
        assert_eq!(store.load(&mapping(&path, 0)).id, missing.id);
        std::fs::copy(std::env::current_exe().unwrap(), &path).unwrap();
        let found = store.load(&mapping(&path, 0));
        // Addresses in the missing one count from another byte.
        assert_ne!(found.id, missing.id);
        assert!(is_open(&store, &found) && found.image.is_some());
        assert_eq!(store.load(&mapping(&path, 0)).id, found.id);
    }

    #[test]
    fn a_file_that_was_written_into_lends_no_names() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        std::fs::copy(std::env::current_exe().unwrap(), &path).unwrap();
        let mut store = store();
        let loaded = store.load(&mapping(&path, 0));
        assert_eq!(store.object(loaded.id).unwrap().missing(), None);
        std::fs::write(&path, b"something else").unwrap();
        assert_eq!(store.object(loaded.id).unwrap().missing(), Some(Missing::Overwritten));
    }

    #[test]
    fn what_nothing_refers_to_is_forgotten_and_its_place_given_away() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = store();
        let load = |store: &mut ObjectStore, i: usize| {
            store.load(&mapping(&folder.path().join(i.to_string()), 0)).id
        };
        let ids: Vec<ObjectId> = (0..CROWD).map(|i| load(&mut store, i)).collect();
        assert!(store.is_crowded());
        store.keep_only(&[ids[3], ids[7]].into_iter().collect());
        assert!(!store.is_crowded() && store.object(ids[3]).is_some() && store.object(ids[4]).is_none());
        assert_eq!(load(&mut store, 3), ids[3]);
        let new = load(&mut store, CROWD + 1);
        assert!(new != ids[3] && new != ids[7] && ids.contains(&new));
        assert_eq!(store.met(), CROWD as u64 + 1);
    }

    #[test]
    fn unwind_tables_share_the_room_by_weight() {
        let folder = tempfile::tempdir().unwrap();
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let paths = ["light", "heavy"].map(|name| folder.path().join(name));
        for (path, more) in paths.iter().zip([0, 8]) {
            std::fs::write(path, [own.clone(), vec![0; more]].concat()).unwrap();
        }
        let tables = ElfImage::parse_bytes(&own).unwrap().tables_bytes();
        let mut store = ObjectStore::new(tables + tables / 2);
        let mut processes = ProcessTable::default();
        processes.adopt(1, "a");
        let mut map = |store: &mut ObjectStore, at: usize| {
            let mapped =
                Mapped { pid: 1, start: (at as u64 + 1) << 40, len: 1 << 30, ..mapping(&paths[at], 0) };
            processes.mapped(&mapped, |mapped| store.load(mapped));
            store.load(&mapped)
        };
        let [light, heavy] = [map(&mut store, 0), map(&mut store, 1)];
        let entry = light.image.as_ref().unwrap().entry;
        assert!(light.image.as_ref().unwrap().function_start(entry).is_some());
        light.image.as_ref().unwrap().read_tables();
        heavy.image.as_ref().unwrap().read_tables();
        let weights = [(light.id, 1.0), (heavy.id, 2.0)];
        assert!(store.rebalance(|| weights.into_iter().collect(), &mut processes));
        drop((light.image, heavy.image));
        let start = |store: &ObjectStore, id| store.object(id).unwrap().function_start(entry);
        assert!(start(&store, heavy.id).is_some() && start(&store, light.id).is_none());
        assert!(store.memory.peak() <= store.memory.cap());
        assert_eq!((store.memory.evictions(), store.memory.rereads()), (1, 1));
        assert!(!store.rebalance(|| weights.into_iter().collect(), &mut processes), "nothing changes");
        let weights = [(light.id, 3.0), (heavy.id, 2.0)];
        assert!(store.rebalance(|| weights.into_iter().collect(), &mut processes));
        assert!(start(&store, light.id).is_some() && start(&store, heavy.id).is_none());
        store.release_tables();
        assert_eq!(store.memory.left(), store.memory.cap());
    }
}
