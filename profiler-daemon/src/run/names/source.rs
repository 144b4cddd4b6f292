//! Where the names of one object come from.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use profiler_core::profile::Unknown;
use symbolizer::{DebugFiles, Limits, ReadAt, Reason, Symbolized};

use super::super::remedy;
use super::Cut;
use crate::debuginfod::Debuginfod;
use crate::objects::loaded::Loaded;
use crate::objects::names::{About, DebugFilesForAll, Equal, Found, KeptNames};
use crate::objects::{Content, Met, Objects};
use crate::roots::{Roots, View};

/// Where the names of one object come from.
pub(super) enum Source {
    Object(Box<Loaded>),
    /// Nowhere: it cannot be read.
    Unreadable(Unknown),
    /// Nowhere: it is not there.
    Missing(Unknown),
}

impl Source {
    /// Reads what tells the names of an object, unless that is still in memory.
    pub(super) fn open(
        object: &Met,
        objects: &Objects,
        debuginfod: Option<&Arc<Debuginfod>>,
        equal: Option<&Equal>,
    ) -> Self {
        // What stayed may be of another's file, which says nothing of this one.
        if let Some(missing) = equal.and_then(|_| object.missing()) {
            return Self::Missing(remedy::missing(&missing));
        }
        let known = objects.names.take_loaded(names_of(object, equal));
        let is_of_use = |known: &Loaded| {
            known.is_as_it_was() && known.is_proven() && known.has_room_to_read(&objects.memory)
        };
        if let Some(known) = known.filter(|known| is_of_use(known)) {
            return Self::Object(known);
        }
        if let Some(missing) = object.missing() {
            return Self::Missing(remedy::missing(&missing));
        }
        objects.names.count_source();
        let mut proof = None;
        let bytes: Arc<dyn ReadAt> = match &object.content {
            Content::File(file) => match equal {
                Some(equal) => {
                    let proven = equal.proven(file.clone());
                    proof = Some(proven.proof());
                    Arc::new(proven)
                }
                None => Arc::new(file.clone()),
            },
            Content::Image(image) => Arc::clone(image) as Arc<dyn ReadAt>,
            Content::Missing(missing) => return Self::Missing(remedy::missing(missing)),
        };
        let for_all = equal.map(|equal| Arc::clone(&equal.debug_files));
        let (view, roots) = (object.view, objects.roots.only(object.view));
        let files = DebugFilesOf { view, roots, debuginfod: debuginfod.cloned(), for_all };
        let limits = Limits::of_all(objects.memory.left());
        let loaded = symbolizer::Object::load_owned(limits, bytes, Path::new(&object.path), &files);
        loaded.map_or_else(
            |reason| Self::Unreadable(remedy::unreadable(&reason)),
            |loaded| Self::Object(Box::new(Loaded::new(loaded, &object.object, proof))),
        )
    }

    /// Whether something was read that was not what all hold who share the names.
    pub(super) fn is_doubtful(&self) -> bool {
        match self {
            Self::Object(loaded) => !loaded.is_proven(),
            Self::Unreadable(_) => true,
            Self::Missing(_) => false,
        }
    }

    /// What there is to say of it beside names.
    pub(super) fn about(&self) -> About {
        let Self::Object(loaded) = self else { return About::default() };
        let (object, is_too_large) =
            (&loaded.object, |reason: &&Reason| matches!(reason, Reason::TooLarge { .. }));
        About {
            build_id: object.build_id().map(str::to_owned),
            too_large: object.warnings().iter().find(is_too_large).cloned(),
            // There is nothing more to be found.
            is_final: object.has_debug_info() && object.warnings().is_empty(),
        }
    }

    /// What it takes of memory at most, beside what is counted as held (bytes).
    pub(super) fn bytes_in_use(&self) -> u64 {
        match self {
            Self::Object(loaded) => loaded.bytes_in_use(),
            Self::Unreadable(_) | Self::Missing(_) => 0,
        }
    }

    /// The functions at each of these addresses of the object at `path`, or why they are not known.
    pub(super) fn look_up(&mut self, addresses: &[u64], path: &str, asks_servers: bool) -> Vec<Found> {
        match self {
            Self::Object(loaded) => {
                let found = loaded.object.symbolize_more(addresses);
                let object = &loaded.object;
                let known = |symbolized| match symbolized {
                    Symbolized::Known(frames) => Ok(frames),
                    Symbolized::Unknown(reason) => Err(remedy::nameless(&reason, object, path, asks_servers)),
                };
                found.into_iter().map(known).collect()
            }
            Self::Unreadable(reason) | Self::Missing(reason) => {
                addresses.iter().map(|_| Err(reason.clone())).collect()
            }
        }
    }

    /// Keeps what was told for the next cut, and what told it.
    pub(super) fn keep(self, names: &Arc<KeptNames>, cut: &Cut, about: About, told: &[(u64, Found)]) {
        let room = &cut.objects.names;
        match self {
            Self::Object(loaded) => {
                names.keep(room, cut.naming, about, told);
                room.keep_loaded(names, loaded);
            }
            Self::Unreadable(_) => names.keep(room, cut.naming, about, told),
            // Another target may have the same object from where it is still there.
            Self::Missing(_) => {}
        }
    }
}

/// The names of this object, or of all that hold the same.
pub(super) fn names_of<'a>(object: &'a Met, equal: Option<&'a Equal>) -> &'a Arc<KeptNames> {
    equal.map_or(&object.names, |equal| &equal.names)
}

/// Separate debug files, as the process that mapped the object sees them; and at last on servers.
#[derive(Clone)]
struct DebugFilesOf {
    view: View,
    roots: Roots,
    debuginfod: Option<Arc<Debuginfod>>,
    /// Names are read for others too.
    for_all: Option<Arc<DebugFilesForAll>>,
}

impl DebugFiles for DebugFilesOf {
    fn open(&self, path: &Path) -> Option<Box<dyn ReadAt>> {
        let file = match &self.for_all {
            Some(for_all) => for_all.open(path, &self.roots)?,
            None => self.roots.open_debug_file(self.view, path).ok()?,
        };
        Some(Box::new(Unchanged::new(file).ok()?))
    }

    fn fetch(&self, build_id: &str) -> Option<Box<dyn ReadAt>> {
        Some(Box::new(self.debuginfod.as_ref()?.debug_file(build_id)?))
    }

    fn share(&self) -> Option<Box<dyn DebugFiles + Send + Sync>> {
        Some(Box::new(self.clone()))
    }
}

/// A file that is read as long as nobody writes into it: parts of it were read before.
struct Unchanged {
    file: File,
    state: (u64, i64, i64),
}

impl Unchanged {
    fn new(file: File) -> io::Result<Self> {
        let state = state(&file)?;
        Ok(Self { file, state })
    }
}

/// Length, and time of the last change (s and ns).
fn state(file: &File) -> io::Result<(u64, i64, i64)> {
    let meta = file.metadata()?;
    Ok((meta.len(), meta.mtime(), meta.mtime_nsec()))
}

impl ReadAt for Unchanged {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state.0)
    }

    fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        if state(&self.file)? != self.state {
            return Err(io::Error::other("the file was written into"));
        }
        let end = offset.checked_add(len as u64).filter(|&end| end <= self.state.0);
        end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }
}
