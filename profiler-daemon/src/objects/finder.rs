//! Opens the file behind a mapping and reads its headers.
//!
//! All that asks the file's file system is done on the threads of the [opener](crate::opener): it may not answer.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use ::object::ReadCache;
use profiler_core::elf::{ElfError, ElfImage, ReadLater};
use profiler_core::machine::Machine;
use profiler_core::record::Mapped;
use profiler_core::stack::ObjectId;

use super::files::{Code, HeldFile, OpenFiles, Version, is_made_up};
use super::find::{Way, find_mapped, open_through_mapping, path_of};
use super::memory::{Room, SymbolMemory};
use super::names::NameRoom;
use super::object::{ObjectEntry, note_place};
use super::unanswered::FileKey;
use super::{
    Content, MappedObject, Missing, ObjectSnapshot, ObjectStore, OnceCost, VDSO, is_code_without_file,
    is_narrow_vdso,
};
use crate::opener::{Mount, Wait};
use crate::roots::{RootView, Roots};
use crate::sys::procfs;

/// What a mapping turned out to be.
pub(super) enum FoundObject {
    New(ObjectEntry),
    Known(ObjectId),
}

/// What was found behind a mapping.
pub(super) struct FoundFile {
    entry: ObjectEntry,
    way: Way,
}

/// What finding a file needs of a store.
#[derive(Clone)]
struct Finder {
    roots: Roots,
    files: OpenFiles,
    memory: SymbolMemory,
    names: NameRoom,
    once: OnceCost,
}

impl ObjectStore {
    /// Opens what is mapped, or says that its file system has not answered yet. None where that is no file that lasts, or no object:
    /// the process alone can tell its names.
    pub(super) fn find(&mut self, mapped: &Mapped, key: &FileKey) -> Option<FoundObject> {
        let finder = Finder {
            roots: self.roots.clone(),
            files: self.files.clone(),
            memory: self.memory.clone(),
            names: self.names.clone(),
            once: self.once.clone(),
        };
        if mapped.path == VDSO {
            return Some(FoundObject::New(finder.vdso(mapped)));
        }
        let mount = Mount::Device { major: mapped.file.major, minor: mapped.file.minor };
        let answer = self.unanswered.take(key, || {
            let (finder, mapped) = (finder.clone(), mapped.clone());
            let find = move || finder.once.of(|| finder.find(&mapped));
            self.files.opener().call(&mount, Wait::Sampling, find)
        });
        let Some(found) = answer else {
            self.unanswered.note(mapped.pid, &mapped.path, &mount);
            let missing = Content::Missing(Missing::NoAnswer(mount));
            let entry = finder.object(mapped, RootView::Ours, missing, None, None);
            return (!is_code_without_file(&mapped.path)).then_some(FoundObject::New(entry));
        };
        let FoundFile { entry, way } = found?;
        let (path, view) = (&entry.snapshot.path, entry.snapshot.view);
        let known = entry.code.zip(entry.whole.as_ref());
        if let Some((id, same)) = known.and_then(|(code, image)| self.same_code(&code, image)) {
            note_place(same, &way, view, path);
            return Some(FoundObject::Known(id));
        }
        note_place(&entry.snapshot, &way, view, path);
        Some(FoundObject::New(entry))
    }

    /// The object that has this code already.
    fn same_code(&self, code: &Code, image: &ElfImage) -> Option<(ObjectId, &MappedObject)> {
        let &id = self.by_code.get(code)?;
        let entry = self.entry(id)?;
        let known = entry.whole.as_ref()?;
        (known.segments == image.segments && known.entry == image.entry)
            .then_some((id, &entry.snapshot.object))
    }
}

impl Finder {
    fn vdso(&self, mapped: &Mapped) -> ObjectEntry {
        let bytes = if is_narrow_vdso(mapped) { None } else { procfs::vdso_image() };
        let image = bytes.as_deref().and_then(|bytes| ElfImage::parse_bytes(bytes).ok());
        let content =
            bytes.map_or(Content::Missing(Missing::NoVdso), |bytes| Content::Image(Arc::new(bytes)));
        self.object(mapped, self.roots.of(mapped.pid), content, image.map(Arc::new), None)
    }

    fn object(
        &self,
        mapped: &Mapped,
        view: RootView,
        content: Content,
        image: Option<Arc<ElfImage>>,
        code: Option<Code>,
    ) -> ObjectEntry {
        self.object_in(Room::new(&self.memory), mapped, view, content, image.map(|image| (image, code)))
    }

    fn object_in(
        &self,
        room: Arc<Room>,
        mapped: &Mapped,
        view: RootView,
        content: Content,
        image: Option<(Arc<ElfImage>, Option<Code>)>,
    ) -> ObjectEntry {
        let (image, code) = image.map_or((None, None), |(image, code)| (Some(image), code));
        let known = code.zip(image.as_ref());
        let names = known.map_or_else(Arc::default, |(code, image)| self.names.of(code, image));
        let object = MappedObject { path: path_of(mapped).to_owned(), content, view, names };
        let snapshot = ObjectSnapshot { object: Arc::new(object), image: image.clone() };
        ObjectEntry { snapshot, whole: image, room, code, tries: 1 }
    }

    /// Opens what is mapped. This asks its file system.
    fn find(&self, mapped: &Mapped) -> Option<FoundFile> {
        let has_no_file = is_code_without_file(&mapped.path);
        let view = self.roots.of(mapped.pid);
        let of_process = |entry| FoundFile { entry, way: Way::Process };
        let missing = |missing| of_process(self.object(mapped, view, Content::Missing(missing), None, None));
        let found = match has_no_file {
            true => open_through_mapping(mapped)
                .map(|file| (file, Way::Process))
                .map_err(|error| Missing::NotOpened(error.to_string())),
            false => find_mapped(mapped, view, &self.roots),
        };
        let (file, way) = match found {
            Ok(found) => found,
            Err(_) if has_no_file => return None,
            Err(why) => return Some(missing(why)),
        };
        let Ok(meta) = file.metadata() else { return None };
        let code = (!is_made_up(&file)).then(|| Code { version: Version::new(&meta), view });
        let is_other_format = is_no_object(&file);
        let room = Room::new(&self.memory);
        let (held, image) = parse(&self.files, file, &meta, &room, &self.once);
        match image {
            Ok(image) => {
                let image = Some((Arc::new(image), code));
                let entry = self.object_in(room, mapped, view, Content::File(held), image);
                Some(FoundFile { entry, way })
            }
            Err(_) if has_no_file => None,
            // Its names would be wrong too.
            Err(ElfError::OtherMachine) => Some(missing(Missing::OtherMachine)),
            Err(_) if is_other_format => None,
            Err(_) => Some(of_process(self.object(mapped, view, Content::File(held), None, None))),
        }
    }
}

/// Holds a file that was opened, and reads its headers.
pub(super) fn parse(
    files: &OpenFiles,
    file: File,
    meta: &Metadata,
    room: &Arc<Room>,
    once: &OnceCost,
) -> (HeldFile, Result<ElfImage, ElfError>) {
    let read = file.try_clone();
    let held = files.hold(file, Version::new(meta));
    let later = later(held.clone(), Arc::clone(room), once.clone());
    let image = read.map_err(|_| ElfError::NotElf);
    let image = image.and_then(|file| ElfImage::parse(&ReadCache::new(&file), &later));
    let image = image.and_then(|image| match image.machine() == Machine::HOST {
        true => Ok(image),
        false => Err(ElfError::OtherMachine),
    });
    (held, image)
}

/// Whether a file does not even begin as an object does.
fn is_no_object(file: &File) -> bool {
    const MAGIC: &[u8; 4] = b"\x7fELF";
    let mut start = [0; MAGIC.len()];
    match file.read_exact_at(&mut start, 0) {
        Ok(()) => start != *MAGIC,
        Err(error) => error.kind() == io::ErrorKind::UnexpectedEof,
    }
}

/// Reads unwind tables when a sample needs them. What cannot be read now is asked for again: its file system may answer later, and
/// we may have fewer files open.
fn later(file: HeldFile, room: Arc<Room>, once: OnceCost) -> ReadLater {
    Arc::new(move |range, takes| {
        let len = usize::try_from(range.end - range.start).ok()?;
        room.read(takes, || {
            let read = file.read_to_sample(range.start, len, once.clone());
            if read.as_ref().is_err_and(may_pass) {
                room.note_unanswered();
            }
            read.ok()
        })
    })
}

/// Whether reading a file may succeed another time: what is not in it will not.
fn may_pass(error: &io::Error) -> bool {
    !matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::Symbols;

    #[test]
    fn tables_that_cannot_be_read_now_are_asked_for_again_and_those_that_are_not_there_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lib.so");
        std::fs::write(&path, [7; 100]).unwrap();
        let store = ObjectStore::new(&Symbols::new(1 << 20));
        let read = |file: File, range| {
            let held = store.files.hold(file, Version::new(&path.metadata().unwrap()));
            let room = Room::new(&store.memory);
            let bytes = later(held, Arc::clone(&room), OnceCost::default())(range, 10);
            (bytes.is_some(), bytes.is_none() && room.is_wanted())
        };
        let readable = || File::open(&path).unwrap();
        assert_eq!(read(readable(), 90..100), (true, false));
        assert_eq!(read(readable(), 95..105), (false, false));
        let refused = File::options().write(true).open(&path).unwrap(); // what fails as a disk does
        assert_eq!(read(refused, 90..100), (false, true));
    }
}
