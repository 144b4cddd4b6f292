//! Whether a process may have the kernel copy its own memory: a system call filter may refuse it, or end the
//! caller.

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

/// Asks a child that can be spared. Call it while this process has one thread.
pub(crate) fn is_permitted() -> bool {
    // SAFETY: the child makes two system calls and nothing else.
    match unsafe { fork() } {
        Ok(ForkResult::Parent { child }) => matches!(waitpid(child, None), Ok(WaitStatus::Exited(_, 0))),
        Ok(ForkResult::Child) => {
            let (from, mut to) = (0x5a_u8, 0_u8);
            let piece = |at: *const u8| libc::iovec { iov_base: at.cast_mut().cast(), iov_len: 1 };
            let (here, there) = (piece(&raw mut to), piece(&raw const from));
            // SAFETY: both pieces are a byte that lives; the child ends without running anything of ours.
            unsafe {
                let copied =
                    libc::process_vm_readv(libc::getpid(), &raw const here, 1, &raw const there, 1, 0);
                libc::_exit(i32::from(copied != 1))
            }
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    /// Of a thread of many, which the child does not care about.
    #[test]
    fn it_is_permitted_here() {
        assert!(super::is_permitted());
    }
}
