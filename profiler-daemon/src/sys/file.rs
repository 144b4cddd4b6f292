//! Properties of a file besides its metadata.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn the_plain_call_says_what_the_library_does() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let meta = file.metadata().unwrap();
        assert_eq!(super::state(&file).unwrap(), (meta.len(), meta.mtime(), meta.mtime_nsec()));
    }
}
