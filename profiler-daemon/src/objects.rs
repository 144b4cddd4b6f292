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
use profiler_core::elf::{ElfImage, ReadLater};
use profiler_core::process::LoadedObject;
use profiler_core::record::{FileId, Mapped};
use profiler_core::stack::ObjectId;
use rustc_hash::FxHashMap;

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
    /// Nowhere; the reason, for the person.
    Missing(String),
}

/// An object that code was loaded from.
pub(crate) struct Object {
    /// The path as the target saw it.
    pub(crate) path: String,
    /// Its bytes.
    pub(crate) content: Content,
    /// A process that mapped it: separate debug files are looked for in its file system.
    pub(crate) pid: u32,
    image: Option<Arc<ElfImage>>,
}

/// All objects seen so far, by [`ObjectId`].
#[derive(Default)]
pub(crate) struct ObjectStore {
    objects: Vec<Object>,
    ids: FxHashMap<(FileId, String), ObjectId>,
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
        if !mapped.path.starts_with('/') && mapped.path != VDSO || mapped.path.starts_with("//") {
            return LoadedObject::UNKNOWN; // code without a file
        }
        let key = (mapped.file, mapped.path.clone());
        if let Some(&id) = self.ids.get(&key) {
            return LoadedObject { id, image: self.object(id).and_then(|object| object.image.clone()) };
        }
        let (content, image) = self.once.of(|| {
            let content = open(mapped);
            let image = parse(&content, &self.once).map(Arc::new);
            (content, image)
        });
        let id = ObjectId(ObjectId::FIRST_FILE + self.objects.len() as u32);
        let path = mapped.path.trim_end_matches(DELETED).to_owned();
        self.objects.push(Object { path, content, pid: mapped.pid, image: image.clone() });
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

fn parse(content: &Content, once: &OnceCost) -> Option<ElfImage> {
    match content {
        Content::File(file) => {
            ElfImage::parse(&ReadCache::new(&**file), &later(Arc::clone(file), once.clone())).ok()
        }
        Content::Image(bytes) => ElfImage::parse_bytes(bytes).ok(),
        Content::Missing(_) => None,
    }
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

fn open(mapped: &Mapped) -> Content {
    if mapped.path == VDSO {
        return procfs::vdso_image()
            .map_or_else(|| Content::Missing("the vDSO could not be read".to_owned()), Content::Image);
    }
    let path = mapped.path.trim_end_matches(DELETED);
    let found = match open_in_process(mapped.pid, Path::new(path)) {
        Ok(file) if is_mapped_file(&file, mapped) => return Content::File(Arc::new(file)),
        Ok(_) => "the file was replaced since it was mapped".to_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => "the file was deleted".to_owned(),
        Err(error) => format!("the file could not be opened: {error}"),
    };
    // The process still holds what it mapped; with enough privilege it can be opened from there.
    let entry = format!("/proc/{}/map_files/{:x}-{:x}", mapped.pid, mapped.start, mapped.start + mapped.len);
    File::open(entry).map_or_else(|_| Content::Missing(found), |file| Content::File(Arc::new(file)))
}

/// Opens a path as the process sees it, or as we do once the process is gone.
pub(crate) fn open_in_process(pid: u32, path: &Path) -> io::Result<File> {
    let relative = path.strip_prefix("/").unwrap_or(path);
    let inside = PathBuf::from(format!("/proc/{pid}/root")).join(relative);
    let file = File::open(inside).or_else(|_| File::open(path))?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    Ok(file)
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

    fn reason(store: &ObjectStore, loaded: &LoadedObject) -> String {
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
        assert_eq!(reason(&store, &deleted), "the file was deleted");
        std::fs::write(&path, b"another").unwrap();
        let replaced = store.load(&mapping(&path, 6));
        assert_eq!(reason(&store, &replaced), "the file was replaced since it was mapped");
    }

    #[test]
    fn code_without_a_file_is_unknown() {
        let loaded = ObjectStore::default().load(&mapping(Path::new("//anon"), 0));
        assert_eq!(loaded.id, ObjectId::UNKNOWN);
    }
}
