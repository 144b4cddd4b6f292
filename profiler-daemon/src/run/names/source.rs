//! Where the names of one object come from.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use profiler_core::profile::Unknown;
use symbolizer::{Limits, NoDebugFiles, Object, ReadAt, Reason, Symbolized};

use super::super::remedy;
use super::Cut;
use crate::debuginfod::Debuginfod;
use crate::objects::files::HeldFile;
use crate::objects::loaded::Loaded;
use crate::objects::names::{About, DebugFilesForAll, Equal, FoundFunctions, KeptNames};
use crate::objects::{Content, ObjectSnapshot, Objects};
use crate::roots::{RootView, Roots};
use crate::symbol_process::print::Proof;
use crate::symbol_process::{ObjectNotRead, OpenDebugFiles, ReadObject, WantedObject};

/// Where the names of one object come from.
pub(super) enum NameSource {
    Object(Box<Loaded>),
    /// It cannot be read, for this reason.
    Unreadable(Unknown),
    /// It does not exist, for this reason.
    Missing(Unknown),
}

impl NameSource {
    /// Reads the names at each of these addresses of an object, or why they are unknown; also returns the source.
    pub(super) fn read(
        object: &ObjectSnapshot,
        objects: &Objects,
        debuginfod: Option<&Arc<Debuginfod>>,
        equal: Option<&Equal>,
        addresses: &[u64],
    ) -> (Self, Vec<FoundFunctions>) {
        for _ in 0..TRIES {
            let mut source = Self::open(object, objects, debuginfod, equal);
            if let Some(told) = source.look_up(addresses, &object.path, debuginfod.is_some()) {
                return (source, told);
            }
        }
        let unknown = remedy::no_process("it has ended repeatedly");
        (Self::Unreadable(unknown.clone()), addresses.iter().map(|_| Err(unknown.clone())).collect())
    }

    /// Opens the source of an object's names, unless it is still in memory.
    fn open(
        object: &ObjectSnapshot,
        objects: &Objects,
        debuginfod: Option<&Arc<Debuginfod>>,
        equal: Option<&Equal>,
    ) -> Self {
        // The source in memory may be another target's file, which says nothing about this one.
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
        let for_all = equal.map(|equal| Arc::clone(&equal.debug_files));
        let (view, roots) = (object.view, objects.roots.only(object.view));
        let files = Arc::new(DebugFilesOf { view, roots, debuginfod: debuginfod.cloned(), for_all });
        let limits = Limits::of_all(objects.memory.left());
        let proof = equal.map(|_| Proof::default());
        let read = match &object.content {
            Content::File(file) => {
                read_there(object, file, objects, limits, equal.zip(proof.clone()), &files)
            }
            // An image of the kernel's.
            Content::Image(image) => {
                read_here(object, Arc::clone(image) as Arc<dyn ReadAt>, limits.all_bytes)
            }
            Content::Missing(missing) => return Self::Missing(remedy::missing(missing)),
        };
        read.map_or_else(Self::Unreadable, |read| {
            Self::Object(Box::new(Loaded::new(read, &object.object, proof)))
        })
    }

    /// Whether something was read that may differ between the files that share the names.
    pub(super) fn is_doubtful(&self) -> bool {
        match self {
            Self::Object(loaded) => !loaded.is_proven(),
            Self::Unreadable(_) => true,
            Self::Missing(_) => false,
        }
    }

    /// Facts about the object besides its names.
    pub(super) fn about(&self) -> About {
        let Self::Object(loaded) = self else { return About::default() };
        let facts = loaded.object.facts();
        let is_too_large = |reason: &&Reason| matches!(reason, Reason::TooLarge { .. });
        About {
            build_id: facts.build_id.clone(),
            too_large: facts.warnings.iter().find(is_too_large).cloned(),
            is_partial: loaded.object.is_partial(),
            // Nothing better can be found later.
            is_final: facts.has_debug_info && facts.warnings.is_empty(),
        }
    }

    /// Most memory that it takes, besides what is counted as held (bytes).
    pub(super) fn bytes_in_use(&self) -> u64 {
        match self {
            Self::Object(loaded) => loaded.bytes_in_use(),
            Self::Unreadable(_) | Self::Missing(_) => 0,
        }
    }

    /// The functions at each of these addresses of the object at `path`, or why they are not known. None where what was read is gone,
    /// and has to be read again.
    fn look_up(&mut self, addresses: &[u64], path: &str, asks_servers: bool) -> Option<Vec<FoundFunctions>> {
        match self {
            Self::Object(loaded) => {
                let found = loaded.object.look_up(addresses).ok()?;
                let facts = loaded.object.facts();
                let known = |symbolized| match symbolized {
                    Symbolized::Known(frames) => Ok(frames),
                    Symbolized::Unknown(reason) => Err(remedy::nameless(&reason, facts, path, asks_servers)),
                };
                Some(found.into_iter().map(known).collect())
            }
            Self::Unreadable(reason) | Self::Missing(reason) => {
                Some(addresses.iter().map(|_| Err(reason.clone())).collect())
            }
        }
    }

    /// Keeps the names and their source for the next cut.
    pub(super) fn keep(
        self,
        names: &Arc<KeptNames>,
        cut: &Cut,
        about: About,
        told: &[(u64, FoundFunctions)],
    ) {
        let room = &cut.objects.names;
        match self {
            Self::Object(loaded) => {
                names.keep(room, cut.naming, about, told);
                room.keep_loaded(names, loaded);
            }
            Self::Unreadable(_) => names.keep(room, cut.naming, about, told),
            // Another target may see the object at its path.
            Self::Missing(_) => {}
        }
    }
}

/// The names of this object, or those of all files with equal content.
pub(super) fn names_of<'a>(object: &'a ObjectSnapshot, equal: Option<&'a Equal>) -> &'a Arc<KeptNames> {
    equal.map_or(&object.names, |equal| &equal.names)
}

/// Most attempts to read an object, with less content each time: see [`crate::symbol_process`].
const TRIES: usize = 4;

/// What tells a file, and the debug files that belong to it, from all others. In another file system, other debug
/// files may lie beside the same file: what these do is not held against it elsewhere.
fn seen_from(view: RootView, identity: String) -> String {
    match view {
        RootView::Ours => identity,
        RootView::Foreign(root) => format!("{identity} seen from {root:?}"),
    }
}

/// Reads an object in the symbolizer process, or in this one if there is none.
fn read_there(
    object: &ObjectSnapshot,
    file: &HeldFile,
    objects: &Objects,
    limits: Limits,
    equal: Option<(&Equal, Proof)>,
    files: &Arc<DebugFilesOf>,
) -> Result<ReadObject, Unknown> {
    let open = file.get().map_err(|error| remedy::unreadable(&Reason::from(error)))?;
    let mut why = ObjectNotRead::Gone;
    for _ in 0..TRIES {
        let wanted = WantedObject {
            file: &open,
            path: &object.path,
            identity: object.identity().map(|identity| seen_from(object.view, identity)),
            limits,
            print: equal.as_ref().map(|(equal, proof)| (&**equal.print(), proof.clone())),
            files: Arc::clone(files) as Arc<dyn OpenDebugFiles>,
        };
        why = match objects.process.load(wanted, objects.memory.cap()) {
            Ok(there) => return Ok(ReadObject::There(Box::new(there))),
            Err(why) => why,
        };
        if why != ObjectNotRead::Gone {
            break;
        }
    }
    match why {
        ObjectNotRead::Here => {
            let bytes: Arc<dyn ReadAt> = match equal {
                Some((equal, proof)) => Arc::new(equal.proven(file.clone(), proof)),
                None => Arc::new(file.clone()),
            };
            read_here(object, bytes, limits.all_bytes)
        }
        ObjectNotRead::Reason(reason) => Err(remedy::unreadable(&reason)),
        ObjectNotRead::GivenUp(how) => Err(remedy::given_up(&how)),
        ObjectNotRead::NoProcess(why) => Err(remedy::no_process(&why)),
        ObjectNotRead::Gone => Err(remedy::no_process("it has ended repeatedly")),
    }
}

/// Reads only the symbol table: debug information can be crafted to crash its reader.
fn read_here(
    object: &ObjectSnapshot,
    bytes: Arc<dyn ReadAt>,
    most_bytes: u64,
) -> Result<ReadObject, Unknown> {
    let limits = Limits::of_symbols(most_bytes);
    let read = Object::load_owned(limits, bytes, Path::new(&object.path), &NoDebugFiles);
    read.map(ReadObject::from).map_err(|reason| remedy::unreadable(&reason))
}

/// Separate debug files, as the process that mapped the object sees them; and at last on servers.
struct DebugFilesOf {
    view: RootView,
    roots: Roots,
    debuginfod: Option<Arc<Debuginfod>>,
    /// Set if the names are shared with other files.
    for_all: Option<Arc<DebugFilesForAll>>,
}

impl OpenDebugFiles for DebugFilesOf {
    fn open(&self, path: &Path) -> Option<File> {
        match &self.for_all {
            Some(for_all) => for_all.open(path, &self.roots),
            None => self.roots.open_debug_file(self.view, path).ok(),
        }
    }

    fn fetch(&self, build_id: &str) -> Option<File> {
        self.debuginfod.as_ref()?.debug_file(build_id)
    }
}
