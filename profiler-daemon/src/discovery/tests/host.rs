//! A made-up host: a folder laid out like `/proc`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use tempfile::TempDir;

/// The id of the process that looks.
pub(super) const OWN: u32 = 99;

/// What a made-up process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Made {
    pub(super) comm: Vec<u8>,
    pub(super) state: char,
    pub(super) parent: u32,
    pub(super) is_kernel: bool,
    pub(super) ticks: u64,
    pub(super) start: u64,
    /// Where its stack is; 0 where that may not be seen.
    pub(super) image: u64,
    /// Whether it has memory for a program.
    pub(super) has_memory: bool,
    pub(super) threads: u32,
    pub(super) executable: String,
    pub(super) command: Vec<u8>,
    pub(super) user: u32,
    pub(super) group: String,
}

impl Default for Made {
    fn default() -> Self {
        Self {
            comm: b"sh".into(),
            state: 'S',
            parent: 1,
            is_kernel: false,
            ticks: 0,
            start: 100,
            image: 1,
            has_memory: true,
            threads: 1,
            executable: "/bin/sh".into(),
            command: b"sh\0".into(),
            user: 0,
            group: "/init.scope".into(),
        }
    }
}

impl Made {
    /// A program by its name, of nobody's unit.
    pub(super) fn program(name: &str, parent: u32) -> Self {
        Self {
            comm: name.as_bytes().into(),
            parent,
            executable: format!("/usr/bin/{name}"),
            command: format!("{name}\0--serve\0").into_bytes(),
            ..Self::default()
        }
    }

    /// The same in this group.
    pub(super) fn within(self, group: &str) -> Self {
        Self { group: group.to_owned(), ..self }
    }

    const FILES: [&str; 4] = ["stat", "cmdline", "cgroup", "status"];

    fn text(&self, pid: u32, file: &str) -> Vec<u8> {
        match file {
            "stat" => self.stat(pid),
            "cmdline" => self.command.clone(),
            "cgroup" => format!("5:memory:/old\n0::{}\n", self.group).into_bytes(),
            _ => format!("Name:\tx\nUid:\t7\t{0}\t{0}\t{0}\n", self.user).into_bytes(),
        }
    }

    fn stat(&self, pid: u32) -> Vec<u8> {
        let flags = if self.is_kernel { 0x0020_0000 } else { 0 };
        let rest = format!(
            ") {} {} 1 1 0 -1 {flags} 0 0 0 0 {} 0 0 0 20 0 {} 0 {} 0 0 1 {} 2 {} 0 0 0\n",
            self.state,
            self.parent,
            self.ticks,
            self.threads,
            self.start,
            u8::from(self.has_memory),
            if self.has_memory { self.image } else { 0 },
        );
        [format!("{pid} (").as_bytes(), &self.comm, rest.as_bytes()].concat()
    }
}

/// A folder in memory if there is one: ten thousand processes have fifty thousand files.
fn folder() -> TempDir {
    TempDir::new_in("/dev/shm").unwrap_or_else(|_| TempDir::new().unwrap())
}

/// A host of such processes.
pub(super) struct Host {
    pub(super) folder: TempDir,
    pub(super) all: BTreeMap<u32, Made>,
    /// Folders of ended processes, kept so that no other one has their inodes.
    ended: usize,
}

impl Host {
    /// A host with its first process and the one that looks.
    pub(super) fn new() -> Self {
        let mut host = Self { folder: folder(), all: BTreeMap::new(), ended: 0 };
        fs::write(host.folder.path().join("uptime"), "1 1").unwrap();
        host.start(1, Made { parent: 0, start: 1, ..Made::program("init", 0) });
        host.start(OWN, Made::program("sweetspot", 1).within("/system.slice/sweetspot.service"));
        host
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A process is there.
    pub(super) fn start(&mut self, pid: u32, made: Made) {
        fs::create_dir(self.folder.path().join(pid.to_string())).unwrap();
        self.write(pid, None, &made);
        self.all.insert(pid, made);
    }

    /// It becomes another.
    pub(super) fn change(&mut self, pid: u32, change: impl FnOnce(&mut Made)) {
        let made = self.all.get_mut(&pid).unwrap();
        let was = made.clone();
        change(made);
        let made = made.clone();
        self.write(pid, Some(&was), &made);
    }

    /// It ends; its children are the first one's.
    pub(super) fn end(&mut self, pid: u32) {
        self.all.remove(&pid).unwrap();
        let orphans: Vec<u32> =
            self.all.iter().filter(|(_, made)| made.parent == pid).map(|(pid, _)| *pid).collect();
        orphans.into_iter().for_each(|orphan| self.change(orphan, |made| made.parent = 1));
        let aside = self.folder.path().join(format!("ended-{}", self.ended));
        fs::rename(self.folder.path().join(pid.to_string()), aside).unwrap();
        self.ended += 1;
    }

    /// Writes the files that are others than they were.
    fn write(&self, pid: u32, was: Option<&Made>, made: &Made) {
        let folder = self.folder.path().join(pid.to_string());
        for file in Made::FILES {
            let (was, now) = (was.map(|was| was.text(pid, file)), made.text(pid, file));
            if was.as_ref() != Some(&now) {
                fs::write(folder.join(file), now).unwrap();
            }
        }
        if was.is_none_or(|was| was.executable != made.executable) {
            let _ = fs::remove_file(folder.join("exe")); // there may be none yet
            symlink(&made.executable, folder.join("exe")).unwrap();
        }
    }
}
