//! The file systems that the target's processes see.
//!
//! At most 32 of other mount namespaces stay open; the others are reopened through a process that sees them.
//! Root and mount namespace are held until the window in which the last such process ended has been named: what
//! is mounted there stays available until then.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::{Component, Path};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::opener::Opener;
use crate::sys::root::{Link, Root, RootId};

/// Foreign file systems that are held at once; each takes two descriptors and keeps its mounts from going away.
const MOST_FOREIGN: usize = 32;
/// File systems of which processes are remembered that see them: a released one is opened again through one of these.
const MOST_SEEN_BY: usize = 4_096;
/// Processes that are remembered of each, as most of them may have ended.
const MOST_WITNESSES: usize = 4;
/// Debug files by build id: the name says nothing but what it must hold, so ours are as good as the target's.
const BY_BUILD_ID: &str = "/usr/lib/debug/.build-id";

/// Whether a debug file is looked for by its build id alone. A file may name any path: none leads out of that folder.
pub(crate) fn is_by_build_id(path: &Path) -> bool {
    path.starts_with(BY_BUILD_ID) && !path.components().any(|part| part == Component::ParentDir)
}

/// Those of others, the last met at the end.
type Foreign = VecDeque<(RootId, Arc<Root>)>;

/// The file systems seen so far. One that was met outlives its processes, until it is released or too many others were met. Clones
/// are the same list.
#[derive(Clone)]
pub(crate) struct Roots {
    own: Option<RootId>,
    ours: Option<Arc<Root>>,
    foreign: Arc<Mutex<Foreign>>,
    /// Processes that were found to see it, the last one at the end.
    seen_by: Arc<Mutex<FxHashMap<RootId, VecDeque<u32>>>>,
    opener: Opener,
}

/// What a process sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RootView {
    /// The same as we do; also of processes that were gone before they could be asked.
    Ours,
    /// A file system of its own.
    Foreign(RootId),
}

impl RootView {
    /// What a process sees at this moment, if it is not ours; nothing once it is gone.
    pub(crate) fn foreign_of(pid: u32) -> Option<Self> {
        RootId::of(pid).ok().map(Self::Foreign)
    }
}

impl Default for Roots {
    fn default() -> Self {
        Self::with(Opener::default())
    }
}

impl Roots {
    /// None seen yet; `opener` asks those that may not answer.
    pub(crate) fn with(opener: Opener) -> Self {
        let own = RootId::of(std::process::id()).ok();
        let ours = Root::ours().ok().map(Arc::new);
        Self { own, ours, foreign: Arc::default(), seen_by: Arc::default(), opener }
    }

    /// What asks file systems that may not answer.
    pub(crate) fn opener(&self) -> &Opener {
        &self.opener
    }

    /// What a process sees.
    pub(crate) fn of(&self, pid: u32) -> RootView {
        let Some(id) = RootId::of(pid).ok().filter(|&id| Some(id) != self.own) else { return RootView::Ours };
        if self.held(id).is_none() && self.hold(id, pid).is_none() {
            return RootView::Ours;
        }
        self.remember(id, pid);
        RootView::Foreign(id)
    }

    /// Where there are enough already, those that have ended make room; else the last one, so that the first ones stay: a server is met
    /// before what is started in its container for a moment.
    fn remember(&self, id: RootId, pid: u32) {
        let mut seen_by = self.seen_by();
        if seen_by.len() >= MOST_SEEN_BY {
            seen_by.clear();
        }
        let witnesses = seen_by.entry(id).or_default();
        if witnesses.contains(&pid) {
            return;
        }
        if witnesses.len() >= MOST_WITNESSES {
            witnesses.retain(|&pid| RootId::of(pid).is_ok_and(|seen| seen == id));
            witnesses.truncate(MOST_WITNESSES - 1);
        }
        witnesses.push_back(pid);
    }

    /// The same at this moment, which stay open when they are released here.
    pub(crate) fn snapshot(&self) -> Self {
        Self { foreign: Arc::new(Mutex::new(self.foreign().clone())), ..self.clone() }
    }

    /// Ours, and this one, at this moment: for what outlives the naming of others.
    pub(crate) fn only(&self, view: RootView) -> Self {
        let of_view = |(id, _): &&(RootId, Arc<Root>)| RootView::Foreign(*id) == view;
        let foreign = self.foreign().iter().filter(of_view).cloned().collect();
        Self { foreign: Arc::new(Mutex::new(foreign)), ..self.clone() }
    }

    /// Those that are not ours.
    pub(crate) fn foreign_views(&self) -> Vec<RootView> {
        self.foreign().iter().map(|(id, _)| RootView::Foreign(*id)).collect()
    }

    /// Releases these: while they are held, nothing that is mounted there can be unmounted.
    pub(crate) fn release(&self, views: &FxHashSet<RootView>) {
        let mut released = Vec::new();
        self.foreign().retain(|(id, root)| {
            let stays = !views.contains(&RootView::Foreign(*id));
            if !stays {
                released.push(Arc::clone(root));
            }
            stays
        });
        drop(released); // closed outside of the lock
    }

    fn held(&self, id: RootId) -> Option<Arc<Root>> {
        self.foreign().iter().find(|(known, _)| *known == id).map(|(_, root)| Arc::clone(root))
    }

    fn hold(&self, id: RootId, pid: u32) -> Option<Arc<Root>> {
        let root = Arc::new(Root::of(pid).ok()?);
        // The process may have gone, and its number to another.
        if RootId::of(pid).ok() != Some(id) {
            return None;
        }
        let mut foreign = self.foreign();
        foreign.push_back((id, Arc::clone(&root)));
        let released = if foreign.len() > MOST_FOREIGN { foreign.pop_front() } else { None };
        drop((foreign, released)); // closed outside of the lock
        Some(root)
    }

    /// A root that was released for others is opened again as long as a process sees it.
    fn get(&self, id: RootId) -> Option<Arc<Root>> {
        self.held(id).or_else(|| {
            let witnesses = self.seen_by().get(&id)?.clone();
            witnesses.iter().rev().find_map(|&pid| self.hold(id, pid))
        })
    }

    fn seen_by(&self) -> MutexGuard<'_, FxHashMap<RootId, VecDeque<u32>>> {
        self.seen_by.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn foreign(&self) -> MutexGuard<'_, Foreign> {
        self.foreign.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a regular file of this path for reading. This asks its file system.
    pub(crate) fn open(&self, view: RootView, path: &Path, link: Link) -> io::Result<File> {
        let root = match view {
            RootView::Ours => self.ours.clone(),
            RootView::Foreign(id) => self.get(id),
        };
        root.ok_or(io::ErrorKind::NotFound)?.open(path, link)
    }

    /// Opens a separate debug file: the target's, or one of ours that the build id names.
    pub(crate) fn open_debug_file(&self, view: RootView, path: &Path) -> io::Result<File> {
        let own = || self.open(RootView::Ours, path, Link::Follow);
        let found = self.open(view, path, Link::Follow);
        if is_by_build_id(path) { found.or_else(|_| own()) } else { found }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn no_path_leads_out_of_the_folder_of_build_ids() {
        let is = |path: &str| is_by_build_id(Path::new(path));
        assert!(is("/usr/lib/debug/.build-id/ab/cd.debug"));
        assert!(!is("/usr/lib/debug/.build-id/../../../../etc/x") && !is("/usr/lib/debug/.build-idx/a"));
    }

    /// A process in a mount namespace of its own; none where that is not permitted.
    pub(crate) fn container(roots: &Roots) -> Option<(Child, RootView)> {
        container_of(roots, &["sleep", "60"])
    }

    fn container_of(roots: &Roots, command: &[&str]) -> Option<(Child, RootView)> {
        let mut child = Command::new("unshare").arg("--mount").args(command).spawn().ok()?;
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let view = roots.of(child.id());
            if view != RootView::Ours {
                return Some((child, view));
            }
            if child.try_wait().ok()?.is_some() || Instant::now() > until {
                let _ = child.kill();
                return None;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    #[allow(clippy::print_stderr, reason = "it says why it skips")]
    fn what_was_released_for_others_is_opened_again_while_a_process_sees_it() {
        let roots = Roots::default();
        let made = (0..MOST_FOREIGN + 4).map(|_| container(&roots));
        let Some(mut made) = made.collect::<Option<Vec<_>>>() else {
            return eprintln!("skipped: this machine does not let namespaces be made");
        };
        let opens = |view: RootView| roots.open(view, Path::new("/bin/sh"), Link::Follow).is_ok();
        assert_eq!(roots.foreign().len(), MOST_FOREIGN);
        let (child, gone) = &mut made[1];
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!opens(*gone), "nobody sees it any more");
        let first = made[0].1;
        assert!(opens(first) && opens(made[MOST_FOREIGN].1));
        assert_eq!(roots.foreign().len(), MOST_FOREIGN);
        for (child, _) in &mut made {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// A server is met, then many that are started beside it and end.
    #[test]
    #[allow(clippy::print_stderr, reason = "it says why it skips")]
    fn what_short_processes_saw_last_is_opened_through_the_server() {
        const SERVER: &str = "i=0; while [ $i -lt 9 ]; do sleep 60 & i=$((i+1)); done; exec sleep 60";
        let roots = Roots::default();
        let Some((mut server, view)) = container_of(&roots, &["sh", "-c", SERVER]) else {
            return eprintln!("skipped: this machine does not let namespaces be made");
        };
        let children = format!("/proc/{0}/task/{0}/children", server.id());
        let until = Instant::now() + Duration::from_secs(20);
        let children = loop {
            let children = std::fs::read_to_string(&children).unwrap_or_default();
            let children: Vec<u32> = children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
            if children.len() == 9 || Instant::now() > until {
                break children;
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        assert_eq!(children.len(), 9);
        assert!(children.iter().all(|pid| roots.of(*pid) == view));
        children.iter().for_each(|pid| drop(Command::new("kill").args(["-9", &pid.to_string()]).status()));
        roots.release(&FxHashSet::from_iter([view]));
        let opened = roots.open(view, Path::new("/bin/sh"), Link::Follow);
        let _ = server.kill();
        let _ = server.wait();
        assert!(opened.is_ok(), "{opened:?}");
    }
}
