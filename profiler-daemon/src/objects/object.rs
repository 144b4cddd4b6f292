//! An object that code was loaded from, and why its bytes cannot be had.

use std::io;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use profiler_core::elf::ElfImage;

use super::files::{Code, HeldFile};
use super::find::Way;
use super::memory::Room;
use super::names::KeptNames;
use crate::opener::Mount;
use crate::roots::RootView;

/// Where the bytes of an object are.
pub(crate) enum Content {
    /// A file that is open, or can be opened again.
    File(HeldFile),
    /// An image in memory (the vDSO).
    Image(Arc<Vec<u8>>),
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
    /// It was part of a kernel that does not run any more.
    #[error("the machine was restarted before it was named")]
    Restarted,
    /// It would not run here.
    #[error("the file was made for another machine")]
    OtherMachine,
    /// Opening it failed.
    #[error("the file could not be opened: {0}")]
    NotOpened(String),
    /// Its file system did not answer until now.
    #[error("the file system of the file ({0}) does not answer")]
    NoAnswer(Mount),
    /// The kernel's code in every process could not be read.
    #[error("the vDSO could not be read")]
    NoVdso,
}

/// An object that code was loaded from.
pub(crate) struct MappedObject {
    /// The path as the target saw it.
    pub(crate) path: String,
    /// Its bytes.
    pub(crate) content: Content,
    /// What a process that mapped it sees: separate debug files are looked for there.
    pub(crate) view: RootView,
    /// The names that it told, or another one with the same code.
    pub(crate) names: Arc<KeptNames>,
}

/// An object and its code, as they are at one moment.
#[derive(Clone)]
pub(crate) struct ObjectSnapshot {
    /// The object.
    pub(crate) object: Arc<MappedObject>,
    /// Its code; without unwind tables while there is no room for them.
    pub(super) image: Option<Arc<ElfImage>>,
}

/// What is known of an object while something refers to it.
pub(super) struct ObjectEntry {
    pub(super) snapshot: ObjectSnapshot,
    /// The code with its unwind tables.
    pub(super) whole: Option<Arc<ElfImage>>,
    pub(super) room: Arc<Room>,
    pub(super) code: Option<Code>,
    /// How often its file was looked for.
    pub(super) tries: u32,
}

impl Deref for ObjectSnapshot {
    type Target = MappedObject;

    fn deref(&self) -> &MappedObject {
        &self.object
    }
}

impl ObjectSnapshot {
    /// Where the code that counts as one function with a stated address begins, if the file is ELF.
    pub(crate) fn place_start(&self, address: u64) -> Option<u64> {
        self.image.as_ref().map(|image| image.place_start(address))
    }

    /// The address behind its last byte, as the file states it; 0 where it is not ELF.
    pub(crate) fn end(&self) -> u64 {
        self.image.as_ref().map_or(0, |image| image.end_svma())
    }
}

impl Drop for MappedObject {
    fn drop(&mut self) {
        self.names.release();
    }
}

impl MappedObject {
    /// What tells its file from all others, as text.
    pub(crate) fn identity(&self) -> Option<String> {
        match &self.content {
            Content::File(file) => file.version().map(|version| version.to_string()),
            Content::Image(_) | Content::Missing(_) => None,
        }
    }

    /// Why its bytes cannot be had any more, or are not what they were.
    pub(crate) fn missing(&self) -> Option<Missing> {
        match &self.content {
            Content::Missing(missing) => Some(missing.clone()),
            Content::Image(_) => None,
            Content::File(file) => match file.is_unchanged() {
                Ok(true) => None,
                Ok(false) => Some(Missing::Overwritten),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Some(Missing::Lost),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    Some(Missing::NoAnswer(file.mount()))
                }
                Err(error) => Some(Missing::NotOpened(error.to_string())),
            },
        }
    }
}

/// The same code was found at another place.
pub(super) fn note_place(object: &MappedObject, way: &Way, view: RootView, path: &str) {
    if let (Content::File(held), Way::Path) = (&object.content, way) {
        held.is_at(view, Path::new(path));
    }
}
