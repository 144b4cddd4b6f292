//! The process at the other end of a Unix socket. The kernel noted it when they connected: what becomes of
//! their process since changes nothing.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// User id.
    pub(crate) user: u32,
    /// Group id, and those of the supplementary groups.
    pub(crate) groups: Vec<u32>,
}

impl Peer {
    /// The other end of `socket`, of which the user and the group are known.
    ///
    /// # Errors
    ///
    /// If the kernel does not tell the supplementary groups (before Linux 4.13).
    pub(crate) fn of(socket: BorrowedFd<'_>, user: u32, group: u32) -> io::Result<Self> {
        let mut groups = supplementary(socket)?;
        groups.push(group);
        Ok(Self { user, groups })
    }
}

/// Most groups of a process (`NGROUPS_MAX`).
const MOST: usize = 65_536;

fn supplementary(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let mut bytes =
            libc::socklen_t::try_from(size_of_val(groups.as_slice())).unwrap_or(libc::socklen_t::MAX);
        // SAFETY: `groups` is writable for `bytes` bytes, which is its length, and any bits are group ids. The kernel
        // writes at most so many and sets `bytes` to what it wrote or would need.
        let done = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        let count = bytes as usize / size_of::<libc::gid_t>();
        if done == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() || count > MOST {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_groups_of_the_other_end_are_ours_here() {
        let (one, _other) = UnixStream::pair().unwrap();
        let mut told = supplementary(one.as_fd()).unwrap();
        let mut own: Vec<u32> =
            nix::unistd::getgroups().unwrap().iter().map(|group| group.as_raw()).collect();
        told.sort_unstable();
        own.sort_unstable();
        assert_eq!(told, own);
    }
}
