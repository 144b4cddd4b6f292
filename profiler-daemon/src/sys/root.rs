//! Files as a process sees them.
//!
//! A process may live in a file system of its own, and it may be hostile: a link that it made must not lead
//! out of its file system into ours, and a special file in place of a regular one must neither block us nor
//! be triggered by us.
//!
//! Paths are resolved inside that root (`openat2` with `RESOLVE_IN_ROOT`), and only regular files are opened.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat, openat2};
use nix::libc;
use nix::sys::stat::Mode;

use super::file;

/// The kernel gives up where names change while it looks at them.
const TRIES: usize = 3;

/// Tells file systems apart, as processes see them: by the namespace of mounts and the root in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RootId {
    namespace: u64,
    device: u64,
    inode: u64,
}

impl RootId {
    /// That of a process; an error once it is gone.
    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        let namespace = std::fs::metadata(format!("/proc/{pid}/ns/mnt"))?.ino();
        // The root's file system may not answer.
        let root = file::known_state_of(&CString::new(format!("/proc/{pid}/root"))?)?;
        Ok(Self { namespace, device: root.device, inode: root.inode })
    }
}

/// Whether a link in the place of a file is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// Yes; of a process' root, inside that.
    Follow,
    /// It is no file.
    Refuse,
}

/// A root directory.
#[derive(Debug)]
pub(crate) struct Root {
    folder: OwnedFd,
    /// Keeps what is mounted in place when the last process of the namespace has gone.
    _namespace: Option<File>,
}

impl Root {
    /// Our own.
    pub(crate) fn ours() -> io::Result<Self> {
        Ok(Self { folder: folder(Path::new("/"))?, _namespace: None })
    }

    /// The root of a process, which stays what it is when the process ends.
    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        let namespace = File::open(format!("/proc/{pid}/ns/mnt"))?;
        Ok(Self { folder: folder(Path::new(&format!("/proc/{pid}/root")))?, _namespace: Some(namespace) })
    }

    /// Opens a regular file for reading. Nothing else is opened at all: it may be a pipe that nobody writes, or a device
    /// that starts to work.
    pub(crate) fn open(&self, path: &Path, link: Link) -> io::Result<File> {
        let path = path.strip_prefix("/").unwrap_or(path);
        let found = match self.find(path, link) {
            // An old kernel, or a container's filter that knows of no such call.
            Err(Errno::ENOSYS | Errno::EPERM) => self.find_by_steps(path)?,
            found => found?,
        };
        open_found(&found)
    }

    fn find(&self, path: &Path, link: Link) -> nix::Result<OwnedFd> {
        let flags = if link == Link::Refuse { OFlag::O_NOFOLLOW } else { OFlag::empty() };
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_CLOEXEC | flags)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        let mut found = openat2(&self.folder, path, how);
        for _ in 1..TRIES {
            if !matches!(found, Err(Errno::EAGAIN)) {
                break;
            }
            found = openat2(&self.folder, path, how);
        }
        found
    }

    /// One name after another, and no link among them: mappings are named without links anyway.
    fn find_by_steps(&self, path: &Path) -> nix::Result<OwnedFd> {
        let flags = OFlag::O_PATH | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        let mut at = self.folder.try_clone().map_err(|_| Errno::EMFILE)?;
        for step in path.components() {
            let Component::Normal(name) = step else { return Err(Errno::ELOOP) };
            at = openat(&at, name, flags, Mode::empty())?;
        }
        Ok(at)
    }
}

/// Opens a regular file of ours, or of `/proc`, for reading.
pub(crate) fn open_regular(path: &Path, link: Link) -> io::Result<File> {
    let flags = if link == Link::Refuse { OFlag::O_NOFOLLOW } else { OFlag::empty() };
    open_found(&open(path, OFlag::O_PATH | OFlag::O_CLOEXEC | flags, Mode::empty())?)
}

fn folder(path: &Path) -> io::Result<OwnedFd> {
    Ok(open(path, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?)
}

/// Opens what was found, if it is a file.
fn open_found(found: &OwnedFd) -> io::Result<File> {
    let kind = nix::sys::stat::fstat(found)?.st_mode & libc::S_IFMT;
    if kind != libc::S_IFREG {
        return Err(io::Error::other("not a regular file"));
    }
    reopen(found)
}

/// Opens for reading what a descriptor leads to.
pub(crate) fn reopen(found: &impl AsRawFd) -> io::Result<File> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
    File::options().read(true).custom_flags(flags).open(path_of(found))
}

/// A descriptor that leads to the same file and reads nothing (`O_PATH`). Its file system does not learn when it is closed, so closing
/// it never waits.
pub(crate) fn path_only(file: &File) -> io::Result<File> {
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
    Ok(File::from(open(path_of(file).as_str(), flags, Mode::empty())?))
}

fn path_of(open: &impl AsRawFd) -> String {
    format!("/proc/self/fd/{}", open.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A root with a file, and links to it, within and out of it.
    fn root() -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        let inside = dir.path().join("root");
        std::fs::create_dir_all(inside.join("lib")).unwrap();
        std::fs::write(inside.join("lib/file"), "inside").unwrap();
        std::fs::write(dir.path().join("file"), "outside").unwrap();
        for (to, from) in [
            ("/lib/file", "absolute"),
            ("lib/file", "relative"),
            ("/../../lib/file", "clamped"),
            ("../file", "out"),
            ("/proc/self/exe", "magic"),
            ("loop", "loop"),
        ] {
            symlink(to, inside.join(from)).unwrap();
        }
        symlink(dir.path().join("file"), inside.join("host")).unwrap();
        symlink(dir.path(), inside.join("folder")).unwrap();
        nix::unistd::mkfifo(&inside.join("pipe"), Mode::S_IRWXU).unwrap();
        let root = Root { folder: folder(&inside).unwrap(), _namespace: None };
        (dir, root)
    }

    fn read(file: io::Result<File>) -> Option<String> {
        let mut text = String::new();
        file.ok()?.read_to_string(&mut text).unwrap();
        Some(text)
    }

    #[test]
    fn links_lead_to_what_the_process_would_find() {
        let (_dir, root) = root();
        for path in ["/lib/file", "lib/file", "/absolute", "/relative", "/clamped", "/../lib/file"] {
            assert_eq!(read(root.open(Path::new(path), Link::Follow)).as_deref(), Some("inside"), "{path}");
        }
        for path in ["/out", "/host", "/folder/file", "/magic", "/loop", "/../file", "/lib"] {
            assert_eq!(read(root.open(Path::new(path), Link::Follow)), None, "{path}");
        }
        for path in ["/absolute", "/relative"] {
            assert!(root.open(Path::new(path), Link::Refuse).is_err(), "{path}");
        }
    }

    #[test]
    fn without_the_call_no_link_is_followed() {
        let (_dir, root) = root();
        let found = |path| root.find_by_steps(Path::new(path)).map_err(io::Error::from);
        let open = |path| found(path).and_then(|found| open_found(&found));
        assert_eq!(read(open("lib/file")).as_deref(), Some("inside"));
        for path in
            ["absolute", "relative", "clamped", "out", "host", "folder/file", "lib/../../file", "magic"]
        {
            assert!(open(path).is_err(), "{path}");
        }
    }

    /// Opening a pipe for reading waits for a writer.
    #[test]
    fn pipes_and_devices_are_not_opened() {
        let (dir, root) = root();
        assert!(root.open(Path::new("/pipe"), Link::Follow).is_err());
        for link in [Link::Follow, Link::Refuse] {
            assert!(open_regular(&dir.path().join("root/pipe"), link).is_err());
            assert!(open_regular(Path::new("/dev/zero"), link).is_err());
        }
        let linked = dir.path().join("root/relative");
        assert_eq!(read(open_regular(&linked, Link::Follow)).as_deref(), Some("inside"));
        assert!(open_regular(&linked, Link::Refuse).is_err());
    }

    #[test]
    fn a_process_is_told_by_its_root() {
        let own = RootId::of(std::process::id()).unwrap();
        assert_eq!(RootId::of(std::process::id()).unwrap(), own);
        assert!(RootId::of(0).is_err());
        let path = std::env::current_exe().unwrap();
        for root in [Root::of(std::process::id()), Root::ours()] {
            assert!(root.unwrap().open(&path, Link::Follow).is_ok());
        }
    }
}
