//! A command that is started, held before its first instruction, and waited for.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::unistd::{ForkResult, Pid, execvp, execvpe, fork, pipe2};

use super::signal;

/// A child process that waits for permission to become the command.
pub(crate) struct HeldCommand {
    pid: Pid,
    go: File,
    failure: File,
}

/// A command that runs.
pub(crate) struct RunningCommand {
    pid: Pid,
}

/// How a command ended, and the CPU time that it and the children it waited for have used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// Exit status as a shell reports it: 128 + number for a signal.
    pub(crate) status: u8,
    /// The signal that killed it.
    pub(crate) signal: Option<Signal>,
    /// CPU time (ns).
    pub(crate) cpu_ns: u64,
}

impl HeldCommand {
    /// Forks a child that will execute `command` once [`HeldCommand::release`] is called.
    ///
    /// It has the `environment` that is given, else ours.
    ///
    /// Call it while this process has one thread: the child may only use what is safe after `fork`.
    pub(crate) fn fork(command: &[CString], environment: Option<&[CString]>) -> io::Result<Self> {
        let (go_read, go_write) = pipe2(OFlag::O_CLOEXEC)?;
        let (failure_read, failure_write) = pipe2(OFlag::O_CLOEXEC)?;
        // SAFETY: the child calls nothing but `read`, `sigprocmask`, `signal`, `execvp`, `execvpe`, `write` and `_exit`,
        // and allocates nothing.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => {
                Ok(Self { pid: child, go: go_write.into(), failure: failure_read.into() })
            }
            ForkResult::Child => {
                drop((go_write, failure_read));
                become_command(command, environment, go_read, failure_write)
            }
        }
    }

    /// The process that will be the command.
    pub(crate) fn pid(&self) -> u32 {
        self.pid.as_raw() as u32
    }

    /// Lets the child execute the command; an error is the reason why it could not.
    pub(crate) fn release(mut self) -> io::Result<RunningCommand> {
        self.go.write_all(&[1])?;
        let mut errno = [0; 4];
        match self.failure.read_exact(&mut errno) {
            Ok(()) => {
                let _ = wait4(self.pid, 0);
                Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno)))
            }
            Err(_) => Ok(RunningCommand { pid: self.pid }), // closed by a successful `execve`
        }
    }
}

fn become_command(command: &[CString], environment: Option<&[CString]>, go: OwnedFd, failure: OwnedFd) -> ! {
    let mut byte = [0];
    let (go, mut failure) = (ManuallyDrop::new(File::from(go)), ManuallyDrop::new(File::from(failure)));
    let released = matches!((&*go).read(&mut byte), Ok(1)); // 0: our parent is gone
    if released {
        let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None);
        signal::as_we_were_started();
        let executed = match environment {
            Some(environment) => execvpe(&command[0], command, environment),
            None => execvp(&command[0], command),
        };
        let errno = executed.err().unwrap_or(Errno::ENOENT);
        let _ = failure.write_all(&(errno as i32).to_ne_bytes());
    }
    // SAFETY: ends the child at once, without running the parent's exit handlers.
    unsafe { libc::_exit(127) }
}

impl RunningCommand {
    /// How it ended, if it has.
    pub(crate) fn try_wait(&self) -> io::Result<Option<Ended>> {
        wait4(self.pid, libc::WNOHANG)
    }

    /// Passes a signal on.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = kill(self.pid, signal);
    }
}

fn wait4(pid: Pid, options: i32) -> io::Result<Option<Ended>> {
    let mut status = 0;
    // SAFETY: all-zero is a valid `rusage`.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: both pointers are valid for the call.
        match unsafe { libc::wait4(pid.as_raw(), &raw mut status, options, &raw mut usage) } {
            0 => return Ok(None),
            -1 if Errno::last() == Errno::EINTR => {}
            -1 => return Err(io::Error::last_os_error()),
            _ => return Ok(Some(ended(status, &usage))),
        }
    }
}

fn ended(status: i32, usage: &libc::rusage) -> Ended {
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
    let cpu_ns = ns(usage.ru_utime) + ns(usage.ru_stime);
    if libc::WIFSIGNALED(status) {
        let number = libc::WTERMSIG(status);
        return Ended { status: 128 + number as u8, signal: Signal::try_from(number).ok(), cpu_ns };
    }
    Ended { status: libc::WEXITSTATUS(status) as u8, signal: None, cpu_ns }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(words: &[&str]) -> io::Result<Ended> {
        let words: Vec<CString> = words.iter().map(|word| CString::new(*word).unwrap()).collect();
        let running = HeldCommand::fork(&words, None)?.release()?;
        Ok(wait4(running.pid, 0)?.unwrap())
    }

    #[test]
    fn status_and_signal_are_passed_on() {
        assert_eq!(run(&["sh", "-c", "exit 7"]).unwrap().status, 7);
        let killed = run(&["sh", "-c", "kill -TERM $$"]).unwrap();
        assert_eq!((killed.status, killed.signal), (143, Some(Signal::SIGTERM)));
    }

    #[test]
    fn a_command_that_does_not_exist_is_an_error() {
        let error = run(&["/no/such/command"]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
