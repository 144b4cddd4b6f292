//! The file systems that the target's processes see.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::sys::root::{Link, Root, RootId};

/// Foreign file systems that are held at once; each takes two descriptors and keeps its mounts from going away.
const MOST_FOREIGN: usize = 32;
/// Debug files by build id: the name says nothing but what it must hold, so ours are as good as the target's.
const BY_BUILD_ID: &str = "/usr/lib/debug/.build-id";

/// Those of others, the last met at the end.
type Foreign = VecDeque<(RootId, Arc<Root>)>;

/// The file systems seen so far. One that was met outlives its processes, until too many others were met. Clones are the
/// same list.
#[derive(Clone)]
pub(crate) struct Roots {
    own: Option<RootId>,
    ours: Option<Arc<Root>>,
    foreign: Arc<Mutex<Foreign>>,
}

/// What a process sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// The same as we do; also of processes that were gone before they could be asked.
    Ours,
    /// A file system of its own.
    Foreign(RootId),
}

impl Default for Roots {
    fn default() -> Self {
        let own = RootId::of(std::process::id()).ok();
        Self { own, ours: Root::ours().ok().map(Arc::new), foreign: Arc::default() }
    }
}

impl Roots {
    /// What a process sees.
    pub(crate) fn of(&self, pid: u32) -> View {
        let Some(id) = RootId::of(pid).ok().filter(|&id| Some(id) != self.own) else { return View::Ours };
        if self.get(id).is_none() {
            let Ok(root) = Root::of(pid) else { return View::Ours };
            // The process may have gone, and its number to another.
            if RootId::of(pid).ok() != Some(id) {
                return View::Ours;
            }
            let mut foreign = self.foreign();
            foreign.push_back((id, Arc::new(root)));
            if foreign.len() > MOST_FOREIGN {
                foreign.pop_front();
            }
        }
        View::Foreign(id)
    }

    fn get(&self, id: RootId) -> Option<Arc<Root>> {
        self.foreign().iter().find(|(known, _)| *known == id).map(|(_, root)| Arc::clone(root))
    }

    fn foreign(&self) -> MutexGuard<'_, Foreign> {
        self.foreign.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a regular file of this path for reading.
    pub(crate) fn open(&self, view: View, path: &Path, link: Link) -> io::Result<File> {
        let root = match view {
            View::Ours => self.ours.clone(),
            View::Foreign(id) => self.get(id),
        };
        root.ok_or(io::ErrorKind::NotFound)?.open(path, link)
    }

    /// Opens a separate debug file: the target's, or one of ours that the build id names.
    pub(crate) fn open_debug_file(&self, view: View, path: &Path) -> io::Result<File> {
        let own = || self.open(View::Ours, path, Link::Follow);
        let found = self.open(view, path, Link::Follow);
        if path.starts_with(BY_BUILD_ID) { found.or_else(|_| own()) } else { found }
    }
}
