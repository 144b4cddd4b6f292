//! A group for one command, for as long as it runs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::{Cgroup, CgroupError, find, folders, hierarchy, listed};

/// What the groups of commands are called, before the number of the profiler's process.
const PREFIX: &str = "sweetspot-";
/// How often the removal of a group is tried whose processes are about to end, and how long it waits in between.
const TRIES: usize = 50;
const PAUSE: Duration = Duration::from_millis(2);

/// A group that a command is started in. Dropped, it is removed; whoever is left in it is moved to where they would have
/// been without it.
pub(crate) struct TransientCgroup {
    group: Arc<Cgroup>,
    path: PathBuf,
    parent: PathBuf,
}

impl TransientCgroup {
    /// Makes a group below our own, where the command's limits are those it would have had. Those of profilers that
    /// were killed are removed.
    ///
    /// # Errors
    ///
    /// If there is no hierarchy, or it is not ours to write to.
    pub(crate) fn make() -> Result<Self, CgroupError> {
        let hierarchy = hierarchy().ok_or(CgroupError::NoHierarchy)?;
        let own = find::path_of(std::process::id()).unwrap_or_else(|| "/".into());
        let parent = hierarchy.join(own.strip_prefix("/").unwrap_or(&own));
        remove_stale(&parent);
        let path = parent.join(format!("{PREFIX}{}", std::process::id()));
        let _ = fs::remove_dir(&path); // of a killed profiler that had our number
        if let Err(cause) = fs::create_dir(&path) {
            return Err(CgroupError::NotMade { parent, cause });
        }
        match Cgroup::open(&path, &hierarchy, &path.to_string_lossy()) {
            Ok(group) => Ok(Self { group: Arc::new(group), path, parent }),
            Err(error) => {
                let _ = fs::remove_dir(&path); // what cannot be opened is still ours
                Err(error)
            }
        }
    }

    /// The group.
    pub(crate) fn group(&self) -> &Arc<Cgroup> {
        &self.group
    }

    /// Moves a process, and whatever it will create, into it.
    ///
    /// # Errors
    ///
    /// If the kernel does not let us.
    pub(crate) fn take_in(&self, pid: u32) -> Result<(), CgroupError> {
        let moved = fs::write(self.path.join("cgroup.procs"), pid.to_string());
        moved.map_err(|cause| CgroupError::NotMade { parent: self.parent.clone(), cause })
    }
}

impl Drop for TransientCgroup {
    fn drop(&mut self) {
        for _ in 0..TRIES {
            if remove(&self.path, &self.parent).is_ok() {
                return;
            }
            std::thread::sleep(PAUSE); // somebody has just forked, or is about to end
        }
    }
}

/// Moves everybody out of a group and removes it, with what the command has made below.
fn remove(path: &Path, parent: &Path) -> io::Result<()> {
    let mut all = folders(path);
    all.insert(0, path.to_owned());
    for folder in all.iter().rev() {
        for pid in listed(folder).unwrap_or_default() {
            let _ = fs::write(parent.join("cgroup.procs"), pid.to_string()); // who has ended need not move
        }
        match fs::remove_dir(folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Removes what killed profilers have left, where their commands have ended too: a group with a process in it stays.
fn remove_stale(parent: &Path) {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Needs a hierarchy that may be written to.
    #[test]
    fn a_command_has_a_group_that_goes_with_it_and_leaves_nobody_behind() {
        let Ok(transient) = TransientCgroup::make() else { return };
        let (path, parent) = (transient.path.clone(), transient.parent.clone());
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        transient.take_in(child.id()).unwrap();
        assert_eq!(transient.group().processes().unwrap(), [child.id()]);
        let own = Cgroup::of_their_own(&[child.id()]).unwrap();
        assert_eq!(own.name(), transient.group().name());
        assert!(
            Cgroup::of_their_own(&[child.id(), std::process::id()])
                .is_none_or(|group| { group.name() != own.name() })
        );
        fs::create_dir(path.join("below")).unwrap();
        drop(transient);
        assert!(!path.exists());
        assert!(own.is_gone() && own.processes().is_err());
        assert!(listed(&parent).unwrap().contains(&child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        what_a_killed_profiler_left_is_removed_unless_somebody_is_in_it();
    }

    /// After the other, since a process has one group at a time.
    fn what_a_killed_profiler_left_is_removed_unless_somebody_is_in_it() {
        let transient = TransientCgroup::make().unwrap();
        let mut ended = Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        let stale = transient.parent.join(format!("{PREFIX}{}", ended.id()));
        fs::create_dir(&stale).unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        fs::write(stale.join("cgroup.procs"), child.id().to_string()).unwrap();
        remove_stale(&transient.parent);
        assert!(stale.exists() && transient.path.exists());
        child.kill().unwrap();
        child.wait().unwrap();
        remove_stale(&transient.parent);
        assert!(!stale.exists() && transient.path.exists());
    }
}
