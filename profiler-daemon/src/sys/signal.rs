//! Signals with a value, to single threads.

use std::io;

use nix::errno::Errno;

/// Sends a signal of ours, with a value, to a thread of another process.
pub(crate) fn queue(pid: u32, tid: u32, signal: i32, value: u64) -> io::Result<()> {
    // SAFETY: all-zero is a valid description of a signal.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    info.si_signo = signal;
    info.si_code = libc::SI_QUEUE;
    // SAFETY: of a queued signal, behind three numbers and padding come sender and user (4 bytes each), and then the value.
    unsafe { (&raw mut info).cast::<u64>().add(3).write(value) };
    // SAFETY: the pointer is valid for the call.
    let answer = unsafe {
        libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid as i32, tid as i32, signal, &raw const info)
    };
    Errno::result(answer)?;
    Ok(())
}
