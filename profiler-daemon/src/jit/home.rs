//! Where the perf map of a program is looked for, and what is there.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::perf_map::PerfMapFile;
use crate::opener::{Mount, Wait};
use crate::roots::{RootView, Roots};
use crate::sys::procfs::{self, ProcessIdentity};
use crate::sys::root::Link;

/// Where a program's perf map would be, and which user's files are believed: only what the target's user wrote, or the system; anybody can put a
/// file into `/tmp`.
pub(super) struct Home {
    pub(super) view: RootView,
    pub(super) perf_map: PathBuf,
    /// The user of the process when it was met.
    pub(super) user: u32,
    /// The process, and when it began (ticks since the boot).
    pub(super) process: Option<(u32, u64)>,
}

/// A program's own perf map, as it was last found.
#[derive(Default)]
pub(super) struct OwnPerfMap(Mutex<FoundPerfMap>);

/// What is at the place of a program's perf map.
#[derive(Clone, Default)]
pub(super) enum FoundPerfMap {
    /// No file, or none that can be opened.
    #[default]
    Absent,
    /// A file that is not believed.
    OfAnother {
        /// The user that it belongs to.
        user: u32,
    },
    /// The perf map.
    Open(Arc<PerfMapFile>),
}

impl OwnPerfMap {
    /// What was found.
    pub(super) fn found(&self) -> FoundPerfMap {
        self.lock().clone()
    }

    /// The perf map, if one was found.
    pub(super) fn get(&self) -> Option<Arc<PerfMapFile>> {
        match &*self.lock() {
            FoundPerfMap::Open(perf_map) => Some(Arc::clone(perf_map)),
            FoundPerfMap::Absent | FoundPerfMap::OfAnother { .. } => None,
        }
    }

    /// Its process has ended.
    pub(super) fn finish(&self) {
        if let Some(perf_map) = self.get() {
            perf_map.finish();
        }
    }

    /// Takes what is there now. A perf map that was found stays until another file is in its place.
    fn update(&self, found: FoundPerfMap) {
        let mut own = self.lock();
        let is_new = match (&*own, &found) {
            (FoundPerfMap::Open(own), FoundPerfMap::Open(found)) => !own.file().is_same(found.file()),
            (FoundPerfMap::Open(_), _) => false,
            _ => true,
        };
        let before = is_new.then(|| std::mem::replace(&mut *own, found));
        drop(own);
        drop(before); // outside of the lock
    }

    fn lock(&self) -> MutexGuard<'_, FoundPerfMap> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Home {
    /// That of a process.
    pub(super) fn of(pid: u32, roots: &Roots) -> Self {
        // Of a process that is gone already, we know its number and may hope that it was like us.
        let ours = || ProcessIdentity { pid, user: nix::unistd::geteuid().as_raw() };
        let ProcessIdentity { pid: inner_pid, user } = procfs::identity(pid).unwrap_or_else(ours);
        let perf_map = PathBuf::from(format!("/tmp/perf-{inner_pid}.map"));
        let process = procfs::start_ticks(pid).map(|began| (pid, began));
        Self { view: roots.of(pid), perf_map, user, process }
    }

    /// Opens the perf map into `own`, if there is one; in place of another file that was there before. Returns whether its file system
    /// answers; if it does so later, `own` is set then.
    pub(super) fn look_for_perf_map(
        self: &Arc<Self>,
        own: &Arc<OwnPerfMap>,
        roots: &Roots,
        wait: Wait,
    ) -> bool {
        let path = self.perf_map.parent().unwrap_or(&self.perf_map).to_owned();
        let mount = Mount::Folder { path, view: format!("{:?}", self.view) };
        if roots.opener().is_stalled(&mount) {
            return false;
        }
        let (home, own, opened) = (Arc::clone(self), Arc::clone(own), roots.clone());
        let find = move || own.update(home.find_perf_map(&opened));
        roots.opener().call(&mount, wait, find).is_ok()
    }

    fn find_perf_map(&self, roots: &Roots) -> FoundPerfMap {
        let opened = roots.open(self.view, &self.perf_map, Link::Refuse);
        let Ok((file, user)) = opened.and_then(|file| file.metadata().map(|meta| (file, meta.uid()))) else {
            return FoundPerfMap::Absent;
        };
        if !self.believes(user) {
            return FoundPerfMap::OfAnother { user };
        }
        let path = self.perf_map.to_string_lossy().into_owned();
        PerfMapFile::new(file, path).map_or(FoundPerfMap::Absent, |found| FoundPerfMap::Open(Arc::new(found)))
    }

    /// Whether files of this user are believed. The process may have changed its user since.
    pub(super) fn believes(&self, user: u32) -> bool {
        user == 0 || user == self.user || self.user_now() == Some(user)
    }

    /// The user of the process at this moment. Nothing once it is gone: its number may be another's.
    fn user_now(&self) -> Option<u32> {
        let (pid, began) = self.process?;
        let ProcessIdentity { user, .. } = procfs::identity(pid)?;
        (procfs::start_ticks(pid) == Some(began)).then_some(user)
    }
}
