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

    /// A command that moves into the group (or into a new group below it) before it executes this one.
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

/// A control group with a memory limit, of either version of control groups; removed when dropped.
pub struct MemoryGroup {
    folder: PathBuf,
    limit: &'static str,
    usage: &'static str,
}

impl MemoryGroup {
    /// Makes one; `None` where that is not ours to do.
    pub fn new() -> Option<MemoryGroup> {
        let name = format!("of-tests-memory-{}", std::process::id());
        let first = ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes");
        let second = ("/sys/fs/cgroup", "memory.max", "memory.current");
        [first, second].into_iter().find_map(|(top, limit, usage)| {
            let folder = Path::new(top).join(&name);
            (is_root() && fs::create_dir(&folder).is_ok()).then_some(())?;
            let group = MemoryGroup { folder, limit, usage };
            group.folder.join(limit).exists().then_some(group)
        })
    }

    /// Moves a process into it: memory that it allocates from now on is charged to the group.
    pub fn take(&self, pid: u32) -> Result<()> {
        Ok(fs::write(self.folder.join("cgroup.procs"), pid.to_string())?)
    }

    /// Limits it to this much more memory than it has (bytes).
    pub fn limit_to_more(&self, bytes: u64) -> Result<()> {
        let usage: u64 = fs::read_to_string(self.folder.join(self.usage))?.trim().parse()?;
        Ok(fs::write(self.folder.join(self.limit), (usage + bytes).to_string())?)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Whoever was in it may have ended just now.
        let mut tries = 0..100;
        while fs::remove_dir(&self.folder).is_err() && tries.next().is_some() {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Where a file system of this type is mounted.
pub fn mount_of(kind: &str) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    mounts.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        (fields.get(2) == Some(&kind)).then(|| PathBuf::from(fields[1]))
    })
}
