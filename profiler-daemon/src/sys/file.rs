//! Properties of a file besides its metadata.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

/// `FS_IOC_GETVERSION`: `_IOR('v', 1, long)`.
const FS_IOC_GETVERSION: libc::c_ulong = 0x8008_7601;

/// Tells files apart that had the same inode one after another; `None` where the file system does not.
pub(crate) fn generation(file: &File) -> Option<u64> {
    let mut version: libc::c_ulong = 0;
    // SAFETY: the descriptor is open, and the kernel writes four or eight bytes to a pointer to eight that is valid for
    // the call.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_GETVERSION, &raw mut version) };
    (answer == 0).then_some(version & 0xffff_ffff)
}

/// Length of an open file, and when its content changed last (s and ns). By the plain call, which takes no path: a process may be
/// permitted nothing else.
pub(crate) fn state(file: &File) -> io::Result<(u64, i64, i64)> {
    // SAFETY: all-zero is a valid `stat`.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and the kernel writes a `stat` to a pointer to one: on 64-bit machines that of the C library
    // is the kernel's.
    match unsafe { libc::syscall(libc::SYS_fstat, file.as_raw_fd(), &raw mut stat) } {
        0 => Ok((stat.st_size as u64, stat.st_mtime, stat.st_mtime_nsec)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What a file system knows of a file without asking a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KnownState {
    /// Its device.
    pub(crate) device: u64,
    /// Its inode.
    pub(crate) inode: u64,
    /// Its length (bytes).
    pub(crate) len: u64,
    /// When its content changed last (s and ns).
    pub(crate) modified: (i64, i64),
}

/// The state of an open file as the kernel knows it. FUSE and network file systems answer from their caches, so this does not wait
/// for one that hangs (`AT_STATX_DONT_SYNC`); others answer as usual.
pub(crate) fn known_state(file: &impl AsRawFd) -> io::Result<KnownState> {
    state_at(file.as_raw_fd(), c"", libc::AT_EMPTY_PATH)
}

/// The same of a path; a link at its end is followed.
pub(crate) fn known_state_of(path: &CStr) -> io::Result<KnownState> {
    state_at(libc::AT_FDCWD, path, 0)
}

fn state_at(folder: RawFd, path: &CStr, flags: libc::c_int) -> io::Result<KnownState> {
    // SAFETY: all-zero is a valid `statx`.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let (flags, mask) = (flags | libc::AT_STATX_DONT_SYNC, libc::STATX_BASIC_STATS);
    // SAFETY: the path ends with a zero, and the kernel writes a `statx` to a pointer to one that is valid for the call.
    let answer = unsafe { libc::statx(folder, path.as_ptr(), flags, mask, &raw mut found) };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(KnownState {
        device: libc::makedev(found.stx_dev_major, found.stx_dev_minor),
        inode: found.stx_ino,
        len: found.stx_size,
        modified: (found.stx_mtime.tv_sec, i64::from(found.stx_mtime.tv_nsec)),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn the_plain_call_says_what_the_library_does() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let meta = file.metadata().unwrap();
        assert_eq!(super::state(&file).unwrap(), (meta.len(), meta.mtime(), meta.mtime_nsec()));
        let known = super::known_state(&file).unwrap();
        assert_eq!((known.device, known.inode, known.len), (meta.dev(), meta.ino(), meta.len()));
        assert_eq!(known.modified, (meta.mtime(), meta.mtime_nsec()));
        assert_eq!(super::known_state_of(c"/proc/self/exe").unwrap(), known);
    }
}
