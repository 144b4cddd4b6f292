//! The kernel's tracepoints where tracefs is not mounted, as in most containers.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

const FSOPEN_CLOEXEC: libc::c_uint = 1;
const FSCONFIG_CMD_CREATE: libc::c_uint = 6;
const FSMOUNT_CLOEXEC: libc::c_uint = 1;
const MOUNT_ATTR_RDONLY: libc::c_uint = 1;

/// A mount of tracefs that no path leads to, for reading; it is gone when the descriptor is closed. Needs `CAP_SYS_ADMIN` and Linux 5.2.
pub(crate) fn mounted_nowhere() -> io::Result<OwnedFd> {
    // SAFETY: the name is a string that ends; the kernel copies it.
    let context =
        descriptor(unsafe { libc::syscall(libc::SYS_fsopen, c"tracefs".as_ptr(), FSOPEN_CLOEXEC) })?;
    let (nothing, fd) = (ptr::null::<libc::c_char>(), context.as_raw_fd());
    // SAFETY: the descriptor is open, and this command takes neither key nor value.
    let created = unsafe { libc::syscall(libc::SYS_fsconfig, fd, FSCONFIG_CMD_CREATE, nothing, nothing, 0) };
    if created != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, and no memory is passed.
    descriptor(unsafe { libc::syscall(libc::SYS_fsmount, fd, FSMOUNT_CLOEXEC, MOUNT_ATTR_RDONLY) })
}

fn descriptor(result: libc::c_long) -> io::Result<OwnedFd> {
    let fd = libc::c_int::try_from(result).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel has just opened it for us, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Needs root; a kernel may be without tracefs.
    #[test]
    fn what_is_mounted_nowhere_can_be_read() {
        let shown = || {
            let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
            mounts.lines().filter(|line| line.contains(" - tracefs ")).count()
        };
        let before = shown();
        let Ok(mount) = mounted_nowhere() else { return };
        let events = format!("/proc/self/fd/{}/events", mount.as_raw_fd());
        assert!(fs::read_dir(events).unwrap().count() > 0);
        assert_eq!(shown(), before, "nobody else sees it");
    }
}
