//! Control groups of cgroup v2 for live tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::guards::is_root;

/// A control group, which is emptied and removed when dropped.
pub struct Group(PathBuf);

impl Group {
    /// Makes one at the top of the hierarchy; `None` where there is none, or it is not ours to write to.
    pub fn new() -> Option<Group> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = hierarchy()?.join(format!("of-tests-{}-{number}", std::process::id()));
        (is_root() && fs::create_dir(&path).is_ok()).then_some(Group(path))
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Its folder, as an argument.
    pub fn argument(&self) -> String {
        self.0.to_string_lossy().into_owned()
    }

    /// A command that moves into the group, or a folder below it that is made for it, before it becomes this one.
    pub fn command(&self, below: &str, program: &Path, arguments: &[&str]) -> Result<Command> {
        let folder = self.0.join(below);
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let mut command = Command::new("sh");
        command.args(["-c", r#"echo $$ >"$0" && exec "$@""#]).arg(folder.join("cgroup.procs"));
        command.arg(program).args(arguments);
        Ok(command)
    }

    /// The processes in the group itself.
    pub fn processes(&self) -> Vec<u32> {
        let text = fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..200 {
            for pid in self.processes() {
                let _ = kill(Pid::from_raw(pid as i32), Signal::SIGKILL); // it may have ended
            }
            let below = fs::read_dir(&self.0).into_iter().flatten().flatten();
            for entry in below.filter(|entry| entry.path().is_dir()) {
                let _ = fs::remove_dir(entry.path());
            }
            if fs::remove_dir(&self.0).is_ok() || !self.0.exists() {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Where cgroup v2 is mounted.
pub fn hierarchy() -> Option<PathBuf> {
    mount_of("cgroup2")
}

/// Where a file system of this type is mounted.
pub fn mount_of(kind: &str) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    mounts.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        (fields.get(2) == Some(&kind)).then(|| PathBuf::from(fields[1]))
    })
}
