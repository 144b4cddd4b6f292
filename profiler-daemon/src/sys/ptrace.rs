//! One thread of another process, stopped and looked at.
//!
//! A thread is traced by the thread that seized it, and released by the kernel when that one ends. So tracing
//! runs on a thread of its own, and no thread is held longer than that, whatever goes wrong.

use std::io;
use std::time::{Duration, Instant};

use libc::user_regs_struct;
use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::unistd::Pid;

/// So often it is asked at once whether a thread has stopped: most stops are a system call away.
const EAGER_LOOKS: u32 = 200;
/// And then after such pauses.
const PAUSE: Duration = Duration::from_micros(50);
/// `PTRACE_EVENT_STOP`, behind the signal.
const EVENT_STOP: i32 = 128;
/// Marks the stop at a system call.
const CALL_MARK: i32 = 0x80;
const NT_X86_XSTATE: usize = 0x202;
/// More than the registers of any processor so far.
const MOST_XSTATE: usize = 16 << 10;
/// Bytes of a signal mask.
const MASK_BYTES: usize = 8;

/// Why a thread could not be brought to where it was wanted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TraceError {
    /// It has ended, or its process became another program.
    #[error("it ended, or became another program")]
    Gone,
    /// Somebody has stopped the process.
    #[error("it was stopped")]
    Halted,
    /// It did not come in time.
    #[error("it did not come back in time")]
    Late,
    /// The kernel refused.
    #[error(transparent)]
    Refused(io::Error),
}

impl From<Errno> for TraceError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::ESRCH | Errno::ECHILD => Self::Gone,
            other => Self::Refused(other.into()),
        }
    }
}

impl From<io::Error> for TraceError {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ESRCH | libc::ECHILD) => Self::Gone,
            _ => Self::Refused(error),
        }
    }
}

/// Whether two processes run in the same memory, as a child of `vfork` does in its parent's; false where nobody tells.
pub(crate) fn share_memory(pid: u32, other: u32) -> bool {
    const KCMP_VM: libc::c_long = 1;
    let (pid, other) = (libc::c_long::from(pid), libc::c_long::from(other));
    // SAFETY: takes numbers alone.
    unsafe { libc::syscall(libc::SYS_kcmp, pid, other, KCMP_VM, 0_i64, 0_i64) == 0 }
}

/// Why a thread stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Halt {
    /// Since we asked for it.
    Asked,
    /// It enters a system call, or comes back from one.
    Call,
    /// After a single step, or at a breakpoint of its own.
    Trap,
    /// A signal is about to be delivered.
    Signal(i32),
    /// Somebody has stopped the process.
    Group,
}

/// A thread that is traced by the calling thread, until this is dropped.
pub(crate) struct Tracee {
    tid: Pid,
    /// Whether it stands still.
    stopped: bool,
}

impl Tracee {
    /// Begins to trace a thread, which goes on meanwhile.
    pub(crate) fn seize(tid: u32) -> io::Result<Self> {
        let tid = Pid::from_raw(tid as i32);
        ptrace::seize(tid, Options::PTRACE_O_TRACESYSGOOD)?;
        Ok(Self { tid, stopped: false })
    }

    /// Whether it stands still.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Has it stand still outside of the kernel, where a system call that waits is interrupted and not yet begun again.
    pub(crate) fn interrupt(&mut self, patience: Duration) -> Result<(), TraceError> {
        ptrace::interrupt(self.tid)?;
        if self.stopped {
            self.resume(libc::PTRACE_CONT, 0)?;
        }
        let until = Instant::now() + patience;
        loop {
            match self.wait(|| Instant::now() > until, || {})? {
                Halt::Asked => return Ok(()),
                Halt::Group => return Err(TraceError::Halted),
                Halt::Signal(signal) => self.resume(libc::PTRACE_CONT, signal)?,
                Halt::Call | Halt::Trap => self.resume(libc::PTRACE_CONT, 0)?,
            }
        }
    }

    /// Whether one that did not come in time stands still by now.
    pub(crate) fn has_come(&mut self) -> Result<bool, TraceError> {
        let signal = match self.wait(|| true, || {}) {
            Ok(Halt::Asked | Halt::Group) => return Ok(true),
            Ok(Halt::Signal(signal)) => signal,
            Ok(Halt::Call | Halt::Trap) => 0,
            Err(TraceError::Late) => return Ok(false),
            Err(other) => return Err(other),
        };
        self.resume(libc::PTRACE_CONT, signal).map(|()| false)
    }

    /// Has it go on until it enters a system call, or comes back from one; `meanwhile` is called now and then,
    /// and `is_late` asked each time whether that takes too long.
    pub(crate) fn go_to_call(
        &mut self,
        mut is_late: impl FnMut() -> bool,
        mut meanwhile: impl FnMut(),
    ) -> Result<(), TraceError> {
        let mut signal = 0;
        loop {
            self.resume(libc::PTRACE_SYSCALL, signal)?;
            signal = match self.wait(&mut is_late, &mut meanwhile)? {
                Halt::Call => return Ok(()),
                Halt::Group => return Err(TraceError::Halted),
                Halt::Signal(signal) => signal,
                Halt::Trap => libc::SIGTRAP,
                Halt::Asked => 0,
            };
        }
    }

    fn resume(&mut self, how: libc::c_uint, signal: i32) -> Result<(), TraceError> {
        // SAFETY: takes numbers alone. (The library's own function knows no real-time signals.)
        let answer = unsafe { libc::ptrace(how, self.tid.as_raw(), 0_usize, signal as usize) };
        Errno::result(answer)?;
        self.stopped = false;
        Ok(())
    }

    fn wait(
        &mut self,
        mut is_late: impl FnMut() -> bool,
        mut meanwhile: impl FnMut(),
    ) -> Result<Halt, TraceError> {
        let mut looks = 0;
        loop {
            let mut status = 0;
            // SAFETY: the pointer is valid for the call.
            let answer =
                unsafe { libc::waitpid(self.tid.as_raw(), &raw mut status, libc::__WALL | libc::WNOHANG) };
            match Errno::result(answer) {
                Ok(0) if is_late() => return Err(TraceError::Late),
                Ok(0) if looks < EAGER_LOOKS => std::thread::yield_now(),
                Ok(0) => {
                    meanwhile();
                    std::thread::sleep(PAUSE);
                }
                Ok(_) if libc::WIFSTOPPED(status) => {
                    self.stopped = true;
                    return Ok(halt(status));
                }
                Ok(_) => return Err(TraceError::Gone),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            looks += 1;
        }
    }

    /// Its general registers.
    pub(crate) fn registers(&self) -> Result<user_regs_struct, TraceError> {
        Ok(ptrace::getregs(self.tid)?)
    }

    /// Sets its general registers.
    pub(crate) fn set_registers(&self, registers: user_regs_struct) -> Result<(), TraceError> {
        Ok(ptrace::setregs(self.tid, registers)?)
    }

    /// All its other registers, as the processor lays them out.
    pub(crate) fn state(&self) -> Result<Vec<u8>, TraceError> {
        let mut bytes = vec![0; MOST_XSTATE];
        let length = self.transfer_state(libc::PTRACE_GETREGSET, &mut bytes)?;
        bytes.truncate(length);
        Ok(bytes)
    }

    /// Sets them.
    pub(crate) fn set_state(&self, state: &[u8]) -> Result<(), TraceError> {
        self.transfer_state(libc::PTRACE_SETREGSET, &mut state.to_vec()).map(drop)
    }

    fn transfer_state(&self, request: libc::c_uint, bytes: &mut [u8]) -> Result<usize, TraceError> {
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: the kernel reads or writes no more than the length, and says how much.
        let answer = unsafe { libc::ptrace(request, self.tid.as_raw(), NT_X86_XSTATE, &raw mut part) };
        Errno::result(answer)?;
        Ok(part.iov_len)
    }

    /// The signals that it blocks, a bit each.
    pub(crate) fn mask(&self) -> Result<u64, TraceError> {
        let mut mask = 0_u64;
        // SAFETY: the pointer is to as many bytes as are told.
        let answer =
            unsafe { libc::ptrace(libc::PTRACE_GETSIGMASK, self.tid.as_raw(), MASK_BYTES, &raw mut mask) };
        Errno::result(answer)?;
        Ok(mask)
    }

    /// Sets which signals it blocks.
    pub(crate) fn set_mask(&self, mask: u64) -> Result<(), TraceError> {
        // SAFETY: the pointer is to as many bytes as are told.
        let answer =
            unsafe { libc::ptrace(libc::PTRACE_SETSIGMASK, self.tid.as_raw(), MASK_BYTES, &raw const mask) };
        Errno::result(answer)?;
        Ok(())
    }

    /// Where the thread notes which restartable sequence it is in; 0 if it has no such place, or the kernel does not tell.
    pub(crate) fn sequence_area(&self) -> u64 {
        const GET_CONFIGURATION: libc::c_uint = 0x420f;
        #[repr(C)]
        #[derive(Default)]
        struct Configuration {
            area: u64,
            size: u32,
            signature: u32,
            flags: u32,
            pad: u32,
        }
        let mut found = Configuration::default();
        // SAFETY: the pointer is to as many bytes as are told.
        let answer = unsafe {
            libc::ptrace(GET_CONFIGURATION, self.tid.as_raw(), size_of::<Configuration>(), &raw mut found)
        };
        if answer > 0 { found.area } else { 0 }
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        if self.stopped {
            let _ = ptrace::detach(self.tid, None); // it may have been killed
        }
    }
}

fn halt(status: i32) -> Halt {
    match (libc::WSTOPSIG(status), status >> 16) {
        (libc::SIGTRAP, EVENT_STOP) => Halt::Asked,
        (_, EVENT_STOP) => Halt::Group,
        (signal, _) if signal == libc::SIGTRAP | CALL_MARK => Halt::Call,
        (libc::SIGTRAP, _) => Halt::Trap,
        (signal, _) => Halt::Signal(signal),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_with_memory_of_their_own_are_told_apart() {
        let (own, parent) = (std::process::id(), nix::unistd::getppid().as_raw() as u32);
        assert!(!share_memory(own, parent) && !share_memory(own, 0));
    }
}
