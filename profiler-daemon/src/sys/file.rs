//! What a file system tells of a file beside its metadata.

use std::fs::File;
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
