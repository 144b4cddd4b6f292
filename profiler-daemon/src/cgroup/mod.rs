//! Control groups (cgroup v2): which processes are in one, and the CPU time that the kernel has charged to it.

mod find;
mod text;
mod transient;

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::sys::statfs::{CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, statfs};

pub(crate) use self::find::hierarchy;
pub(crate) use self::text::{is_outside, named_in};
use self::text::{listed_in, usage_ns};
pub(crate) use self::transient::TransientCgroup;

/// Folders below a group that are looked at; whoever has more of them has other troubles.
const MOST_FOLDERS: usize = 10_000;

/// What is wrong with a group, or with what was taken for one.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CgroupError {
    /// Nothing is mounted that could be looked at.
    #[error(
        "no cgroup v2 hierarchy is mounted here; as root, `mkdir -p /run/cgroup2 && mount -t cgroup2 none /run/cgroup2`, or give process ids"
    )]
    NoHierarchy,
    /// No such folder.
    #[error("there is no cgroup {name}; `find {} -type d` lists them", hierarchy.display())]
    Missing {
        /// As it was given.
        name: String,
        /// Where cgroups are.
        hierarchy: PathBuf,
    },
    /// No folder of this name in the hierarchy.
    #[error("no unit {name} has a cgroup below {}; `systemctl status {name}` says whether it runs", hierarchy.display())]
    NoUnit {
        /// Name of the unit.
        name: String,
        /// Where cgroups are.
        hierarchy: PathBuf,
    },
    /// Several folders of this name.
    #[error("several cgroups have the name {name}; give one of them to --cgroup, such as {}", first.display())]
    Ambiguous {
        /// Name of the unit.
        name: String,
        /// One of them.
        first: PathBuf,
    },
    /// A folder of another file system, or no folder.
    #[error("{} is not a cgroup; give a folder of the cgroup v2 hierarchy, which is mounted at {}", path.display(), hierarchy.display())]
    NotAGroup {
        /// What was found.
        path: PathBuf,
        /// Where cgroups are.
        hierarchy: PathBuf,
    },
    /// A folder of the old hierarchies.
    #[error("{} is a cgroup of version 1; give one of version 2, which is mounted at {}", path.display(), hierarchy.display())]
    VersionOne {
        /// What was found.
        path: PathBuf,
        /// Where cgroups are.
        hierarchy: PathBuf,
    },
    /// Nobody is in it.
    #[error("no process is in the cgroup {0}; start one in it, or give its parent")]
    Empty(String),
    /// It cannot be read.
    #[error("the cgroup {name} cannot be read ({cause}); run as root")]
    Unreadable {
        /// As it was given.
        name: String,
        /// Why.
        cause: io::Error,
    },
    /// A group of our own cannot be made.
    #[error("no cgroup for the command can be made in {} ({cause}); run as root, or leave out --attach-mode cgroup", parent.display())]
    NotMade {
        /// Where it was tried.
        parent: PathBuf,
        /// Why.
        cause: io::Error,
    },
}

impl CgroupError {
    /// Whether it would work with more privileges.
    pub(crate) fn is_permission(&self) -> bool {
        let (Self::Unreadable { cause, .. } | Self::NotMade { cause, .. }) = self else { return false };
        matches!(cause.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
    }
}

/// A control group, and all below it.
#[derive(Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
    /// What it is called in messages and outputs: its path in the hierarchy.
    name: String,
    /// Keeps the group known to the kernel; events are opened by it.
    folder: File,
}

impl Cgroup {
    /// The group that a person means: a path in the hierarchy, or of its folder.
    ///
    /// # Errors
    ///
    /// What is not there, or no group of version 2.
    pub(crate) fn find(asked: &Path) -> Result<Arc<Self>, CgroupError> {
        let hierarchy = hierarchy().ok_or(CgroupError::NoHierarchy)?;
        let within = hierarchy.join(asked.strip_prefix("/").unwrap_or(asked));
        // A folder of the root file system may have the path of a group: `/`, `/docker`.
        let path = if asked.is_absolute() && !within.exists() && asked.exists() { asked } else { &within };
        Self::open(path, &hierarchy, &asked.to_string_lossy()).map(Arc::new)
    }

    /// The group of a systemd unit.
    ///
    /// # Errors
    ///
    /// If no group, or more than one, has its name.
    pub(crate) fn of_unit(unit: &str) -> Result<Arc<Self>, CgroupError> {
        let hierarchy = hierarchy().ok_or(CgroupError::NoHierarchy)?;
        let name = if unit.contains('.') { unit.to_owned() } else { format!("{unit}.service") };
        let of_that_name = |folder: &PathBuf| folder.file_name().is_some_and(|last| *last == *name);
        let mut found = folders(&hierarchy).into_iter().filter(of_that_name);
        match (found.next(), found.next()) {
            (Some(path), None) => Self::open(&path, &hierarchy, unit).map(Arc::new),
            (Some(first), Some(_)) => Err(CgroupError::Ambiguous { name, first }),
            _ => Err(CgroupError::NoUnit { name, hierarchy }),
        }
    }

    /// The group that these processes have to themselves: all of them are in it, or below, and nobody else is.
    pub(crate) fn of_their_own(pids: &[u32]) -> Option<Arc<Self>> {
        let hierarchy = hierarchy()?;
        let mut paths = pids.iter().filter_map(|&pid| find::path_of(pid));
        let first = paths.next()?;
        let common = paths.fold(first, |common, path| {
            let shared = common.ancestors().find(|shared| path.starts_with(shared));
            shared.unwrap_or(Path::new("/")).to_owned()
        });
        if common == Path::new("/") {
            return None;
        }
        let path = hierarchy.join(common.strip_prefix("/").ok()?);
        let group = Self::open(&path, &hierarchy, &common.to_string_lossy()).ok()?;
        let members = group.processes().ok()?;
        (!members.is_empty() && members.iter().all(|pid| pids.contains(pid))).then_some(Arc::new(group))
    }

    fn open(path: &Path, hierarchy: &Path, asked: &str) -> Result<Self, CgroupError> {
        let unreadable = |cause: io::Error| match cause.kind() {
            io::ErrorKind::NotFound => {
                CgroupError::Missing { name: asked.to_owned(), hierarchy: hierarchy.to_owned() }
            }
            _ => CgroupError::Unreadable { name: asked.to_owned(), cause },
        };
        let path = path.canonicalize().map_err(unreadable)?;
        let kind = statfs(&path).map_err(|errno| unreadable(errno.into()))?.filesystem_type();
        let hierarchy = hierarchy.to_owned();
        if kind == CGROUP_SUPER_MAGIC {
            return Err(CgroupError::VersionOne { path, hierarchy });
        }
        if kind != CGROUP2_SUPER_MAGIC || !path.is_dir() {
            return Err(CgroupError::NotAGroup { path, hierarchy });
        }
        let folder = File::open(&path).map_err(unreadable)?;
        let name = path.strip_prefix(&hierarchy).map_or(path.clone(), |below| Path::new("/").join(below));
        Ok(Self { name: name.to_string_lossy().into_owned(), folder, path })
    }

    /// Its path in the hierarchy.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Its folder, open.
    pub(crate) fn folder(&self) -> &File {
        &self.folder
    }

    /// The processes in it and below, in ascending order.
    ///
    /// # Errors
    ///
    /// If the group is gone, or its processes are not for us to see.
    pub(crate) fn processes(&self) -> io::Result<Vec<u32>> {
        let mut pids = listed(&self.path)?;
        // What is below may come and go meanwhile; a threaded group's processes are listed above it.
        pids.extend(folders(&self.path).iter().flat_map(|folder| listed(folder).unwrap_or_default()));
        pids.sort_unstable();
        pids.dedup();
        Ok(pids)
    }

    /// Whether somebody has removed it, be it that there is another of its path: as of a service that was restarted.
    pub(crate) fn is_gone(&self) -> bool {
        let (there, held) = (fs::metadata(&self.path), self.folder.metadata());
        there.ok().zip(held.ok()).is_none_or(|(there, held)| there.ino() != held.ino())
    }

    /// The group that has its path now, if it is gone.
    pub(crate) fn successor(&self) -> Option<Arc<Self>> {
        let folder = File::open(&self.path).ok().filter(|_| self.is_gone())?;
        Some(Arc::new(Self { path: self.path.clone(), name: self.name.clone(), folder }))
    }

    /// CPU time of everything that is or was in it (ns); `None` once it is gone, be it that there is another of its path.
    pub(crate) fn cpu_ns(&self) -> Option<u64> {
        let folder = self.folder.as_raw_fd();
        usage_ns(&fs::read_to_string(format!("/proc/self/fd/{folder}/cpu.stat")).ok()?)
    }

    /// A folder that stands for a group.
    #[cfg(test)]
    pub(crate) fn made_up(path: PathBuf) -> Arc<Self> {
        let folder = File::open(&path).unwrap();
        Arc::new(Self { folder, name: "/a.service".to_owned(), path })
    }
}

/// The processes of one folder.
fn listed(folder: &Path) -> io::Result<Vec<u32>> {
    Ok(listed_in(&fs::read_to_string(folder.join("cgroup.procs"))?).collect())
}

/// All folders below one, parents first.
fn folders(top: &Path) -> Vec<PathBuf> {
    let mut found = vec![top.to_owned()];
    let mut next = 0;
    while next < found.len() && found.len() < MOST_FOLDERS {
        let entries = fs::read_dir(&found[next]).into_iter().flatten().flatten();
        let below = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let below: Vec<PathBuf> = below.map(|entry| entry.path()).collect();
        found.extend(below);
        next += 1;
    }
    found.remove(0);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_group_is_told_apart() {
        let Some(hierarchy) = hierarchy() else { return };
        let error = |path: &str| Cgroup::find(Path::new(path)).unwrap_err();
        assert!(matches!(error("no/such/group"), CgroupError::Missing { .. }));
        assert!(matches!(error("/no/such/group"), CgroupError::Missing { .. }));
        assert!(matches!(error("/proc"), CgroupError::NotAGroup { .. }));
        let file = hierarchy.join("cgroup.procs");
        assert!(matches!(error(&file.to_string_lossy()), CgroupError::NotAGroup { .. }));
        assert!(matches!(Cgroup::of_unit("no-such-unit").unwrap_err(), CgroupError::NoUnit { .. }));
    }

    /// As a service's, which is restarted between two looks.
    #[test]
    fn a_group_is_gone_where_another_has_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.service");
        fs::create_dir(&path).unwrap();
        let group = Cgroup::made_up(path);
        let uses =
            |usec: u64| fs::write(group.path.join("cpu.stat"), format!("usage_usec {usec}\n")).unwrap();
        uses(7);
        assert!(!group.is_gone() && group.successor().is_none());
        assert_eq!(group.cpu_ns(), Some(7_000));
        fs::remove_dir_all(&group.path).unwrap();
        assert!(group.is_gone() && group.successor().is_none());
        fs::create_dir(&group.path).unwrap();
        uses(2);
        assert!(group.is_gone());
        assert_eq!((group.cpu_ns(), group.successor().unwrap().cpu_ns()), (None, Some(2_000)));
    }

    #[test]
    fn the_root_has_a_name_and_everybody_in_it() {
        if hierarchy().is_none() {
            return;
        }
        let root = Cgroup::find(Path::new("/")).unwrap();
        assert_eq!(root.name(), "/");
        assert!(!root.is_gone());
        if let Some(usage_ns) = root.cpu_ns() {
            assert!(root.cpu_ns().unwrap() >= usage_ns && usage_ns > 0);
        }
        assert!(root.processes().unwrap().contains(&std::process::id()));
        assert!(Cgroup::of_their_own(&[std::process::id()]).is_none_or(|group| group.name() != "/"));
    }
}
