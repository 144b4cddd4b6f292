//! The files that code is loaded from, opened while the process that mapped them still lives.
//!
//! A path alone is not enough: the file may be deleted or replaced while it is mapped, and the process may
//! see another file system than we do. So a file is opened the moment its mapping is reported, through the
//! process, and checked against the inode that is mapped; the descriptor is kept for the names.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use object::ReadCache;
use profiler_core::elf::{ElfError, ElfImage, ReadLater};
use profiler_core::machine::Machine;
use profiler_core::process::LoadedObject;
use profiler_core::record::{FileId, Mapped};
use profiler_core::stack::ObjectId;
use rustc_hash::FxHashMap;

use crate::jit;
use crate::roots::{Roots, View};
use crate::sys::root::{Link, open_regular};
use crate::sys::{clock, procfs};

/// How the vDSO is named in mappings.
const VDSO: &str = "[vdso]";
/// Appended by the kernel to the path of a file that has no name any more.
const DELETED: &str = " (deleted)";

/// Where the bytes of an object are.
pub(crate) enum Content {
    /// An open file.
    File(Arc<File>),
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
    image: Option<Arc<ElfImage>>,
}

/// All objects seen so far, by [`ObjectId`].
#[derive(Default)]
pub(crate) struct ObjectStore {
    objects: Vec<Object>,
    ids: FxHashMap<(FileId, String), ObjectId>,
    /// The file systems that they were opened in.
    pub(crate) roots: Roots,
    once: OnceCost,
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
    /// The object behind a mapping; opens it the first time.
    pub(crate) fn load(&mut self, mapped: &Mapped) -> LoadedObject {
        let has_no_file = jit::is_code_without_file(&mapped.path);
        if has_no_file && mapped.file.inode == 0 {
            return LoadedObject::UNKNOWN;
        }
        let key = (mapped.file, mapped.path.clone());
        if let Some(&id) = self.ids.get(&key) {
            return LoadedObject { id, image: self.object(id).and_then(|object| object.image.clone()) };
        }
        let view = self.roots.of(mapped.pid);
        let (content, image) = self.once.of(|| {
            let content = if has_no_file {
                content(open_through_mapping(mapped).map_err(|error| Missing::NotOpened(error.to_string())))
            } else {
                open(mapped, view, &self.roots)
            };
            match parse(&content, &self.once) {
                Ok(image) => (content, Some(Arc::new(image))),
                // Its names would be wrong too.
                Err(ElfError::OtherMachine) => (Content::Missing(Missing::OtherMachine), None),
                Err(_) => (content, None),
            }
        });
        if has_no_file && image.is_none() {
            self.ids.insert(key, ObjectId::UNKNOWN); // what a run-time compiler shares with itself
            return LoadedObject::UNKNOWN;
        }
        let id = ObjectId(ObjectId::FIRST_FILE + self.objects.len() as u32);
        let path = mapped.path.trim_end_matches(DELETED).to_owned();
        self.objects.push(Object { path, content, view, image: image.clone() });
        self.ids.insert(key, id);
        LoadedObject { id, image }
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
        self.objects.iter().filter_map(|object| object.image.as_ref()).for_each(|image| image.read_tables());
    }

    /// Own CPU time that opening objects and reading their tables has taken so far (ns).
    pub(crate) fn once_ns(&self) -> u64 {
        self.once.0.load(Ordering::Relaxed)
    }

    /// The object with this id, unless it stands for the kernel or for code in no file.
    pub(crate) fn object(&self, id: ObjectId) -> Option<&Object> {
        self.objects.get(id.0.checked_sub(ObjectId::FIRST_FILE)? as usize)
    }
}

impl Object {
    /// Where the function that holds a stated address begins, if the unwind tables tell.
    pub(crate) fn function_start(&self, address: u64) -> Option<u64> {
        self.image.as_ref()?.function_start(address)
    }
}

fn parse(content: &Content, once: &OnceCost) -> Result<ElfImage, ElfError> {
    let image = match content {
        Content::File(file) => {
            ElfImage::parse(&ReadCache::new(&**file), &later(Arc::clone(file), once.clone()))
        }
        Content::Image(bytes) => ElfImage::parse_bytes(bytes),
        Content::Missing(_) => Err(ElfError::NotElf),
    }?;
    if image.machine() == Machine::HOST { Ok(image) } else { Err(ElfError::OtherMachine) }
}

fn later(file: Arc<File>, once: OnceCost) -> ReadLater {
    Arc::new(move |range| {
        once.of(|| {
            let mut bytes = vec![0; usize::try_from(range.end - range.start).ok()?];
            file.read_exact_at(&mut bytes, range.start).ok()?;
            Some(bytes)
        })
    })
}

fn is_library(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().contains(".so"))
}

/// The program named in the first line of a script.
fn script_interpreter(program: &Path) -> Option<PathBuf> {
    let mut start = [0; 256];
    let read = File::open(program).ok()?.read_at(&mut start, 0).ok()?;
    let line = start[..read].strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    let path = std::str::from_utf8(line).ok()?.split_ascii_whitespace().next()?;
    Some(PathBuf::from(path))
}

/// The mapping of a file as the kernel would report it, without its address.
fn will_map(path: &Path) -> Option<Mapped> {
    let path = path.canonicalize().ok()?;
    let meta = path.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let file = FileId { major: libc::major(meta.dev()), minor: libc::minor(meta.dev()), inode: meta.ino() };
    let path = path.to_str()?.to_owned();
    Some(Mapped { pid: std::process::id(), start: 0, len: 0, file_offset: 0, file, path })
}

fn open(mapped: &Mapped, view: View, roots: &Roots) -> Content {
    if mapped.path == VDSO {
        return procfs::vdso_image().map_or(Content::Missing(Missing::NoVdso), Content::Image);
    }
    content(open_mapped(mapped, view, roots))
}

/// Opens the file behind a mapping, or says why not.
pub(crate) fn open_mapped(mapped: &Mapped, view: View, roots: &Roots) -> Result<File, Missing> {
    let path = mapped.path.trim_end_matches(DELETED);
    let found = match roots.open(view, Path::new(path), Link::Follow) {
        Ok(file) if is_mapped_file(&file, mapped) => return Ok(file),
        Ok(_) => Missing::Replaced,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Missing::Deleted,
        Err(error) => Missing::NotOpened(error.to_string()),
    };
    open_through_mapping(mapped).map_err(|_| found)
}

/// The process still holds what it mapped; with enough privilege it can be opened from there.
fn open_through_mapping(mapped: &Mapped) -> io::Result<File> {
    let end = mapped.start.saturating_add(mapped.len);
    open_regular(Path::new(&format!("/proc/{}/map_files/{:x}-{end:x}", mapped.pid, mapped.start)))
}

fn content(opened: Result<File, Missing>) -> Content {
    opened.map_or_else(Content::Missing, |file| Content::File(Arc::new(file)))
}

/// Device numbers are not compared: layered file systems report another one than the mapping does.
fn is_mapped_file(file: &File, mapped: &Mapped) -> bool {
    mapped.file.inode == 0 || file.metadata().is_ok_and(|meta| meta.ino() == mapped.file.inode)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(path: &Path, inode: u64) -> Mapped {
        let file = FileId { major: 0, minor: 0, inode };
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
        let mut store = ObjectStore::default();
        let first = store.load(&mapping(&own, inode));
        assert!(first.image.is_some());
        assert_eq!(store.load(&mapping(&own, inode)).id, first.id);
    }

    #[test]
    fn deleted_and_replaced_files_are_told_apart() {
        let mut store = ObjectStore::default();
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
            let mut store = ObjectStore::default();
            let loaded = store.load(&mapping(&path, 0));
            assert!(loaded.image.is_none());
            assert_eq!(reason(&store, &loaded), Missing::OtherMachine);
        }
    }

    #[test]
    fn code_without_a_file_is_unknown() {
        let loaded = ObjectStore::default().load(&mapping(Path::new("//anon"), 0));
        assert_eq!(loaded.id, ObjectId::UNKNOWN);
    }
}
