//! A thread that makes calls for us, and goes on as if nothing had been.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use libc::user_regs_struct;

use super::code::Code;
use super::frame::{self, Call, Frame, SCRATCH_BYTES};
use super::status::Status;
use crate::sys::ptrace::{Lost, Tracee};

/// Signals that the processor raises at what a thread does itself: they are let come, for a blocked one is the end.
pub(super) const OWN: [i32; 5] = [libc::SIGILL, libc::SIGTRAP, libc::SIGBUS, libc::SIGFPE, libc::SIGSEGV];
/// A thread that is to stand still does so as soon as it has a CPU, unless it is in the midst of something the kernel does not interrupt.
pub(super) const TO_STOP: Duration = Duration::from_secs(2);

/// Has a thread that was only looked at go on as if it had not been stopped.
pub(super) fn let_go(tracee: Tracee, tid: u32, registers: &user_regs_struct) -> Result<(), Lost> {
    let again = undisturbed(tid, registers);
    match again.rip == registers.rip {
        true => Ok(()),
        false => tracee.set_registers(again),
    }
}

/// The registers to go on with where a thread was stopped: a call that this has ended begins again.
fn undisturbed(tid: u32, registers: &user_regs_struct) -> user_regs_struct {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    match Status::parse(&status).signals_wait() {
        true => *registers, // it ends for them, as it would have
        false => frame::unended(registers),
    }
}

/// A stopped thread with a frame on its stack, by which it comes back to where it was.
pub(super) struct Captive<'a> {
    tracee: Tracee,
    tid: u32,
    memory: &'a File,
    code: &'a Code,
    frame: Frame,
    before: user_regs_struct,
    state: Vec<u8>,
    mask: u64,
    errno: Option<(u64, [u8; 4])>,
    until: Instant,
}

impl<'a> Captive<'a> {
    /// Takes a thread that stands still, with room for a frame below its stack pointer. It is given back within the time, or comes back by
    /// itself.
    pub(super) fn take(
        tracee: Tracee,
        tid: u32,
        memory: &'a File,
        code: &'a Code,
        until: Instant,
    ) -> Result<Self, Lost> {
        let (before, state, mask) = (tracee.registers()?, tracee.state()?, tracee.mask()?);
        let frame = Frame::new(&frame::begun_again(&before), &state, mask, code.restore);
        let mut captive = Self { tracee, tid, memory, code, frame, before, state, mask, errno: None, until };
        captive.memory.write_all_at(&captive.frame.bytes, captive.frame.bottom())?;
        captive.errno = captive.read_errno();
        // In this order: from here on the thread is on its way back, and the way back ends with the mask that it had.
        captive.tracee.set_registers(captive.at_rest(u64::MAX))?;
        captive.tracee.set_mask(OWN.iter().fold(u64::MAX, |mask, signal| mask & !(1 << (signal - 1))))?;
        captive.come_to_rest()?;
        Ok(captive)
    }

    fn read_errno(&self) -> Option<(u64, [u8; 4])> {
        let mut distance = [0; 8];
        self.memory.read_exact_at(&mut distance, self.code.errno_slot?).ok()?;
        let at = self.before.fs_base.wrapping_add(u64::from_le_bytes(distance));
        let mut errno = [0; 4];
        self.memory.read_exact_at(&mut errno, at).ok()?;
        Some((at, errno))
    }

    /// About to end a signal handler that never was; `call` is the system call in the place of the one that it is in.
    fn at_rest(&self, call: u64) -> user_regs_struct {
        let rsp = self.frame.at + 8; // what lies there was returned to
        user_regs_struct { rip: self.code.restore, rsp, orig_rax: call, ..self.before }
    }

    /// Has it go on until it would end the handler, and has it ask for its process id instead: a call that every filter permits who
    /// permitted it to us, and behind which it is about to end the handler again.
    fn come_to_rest(&mut self) -> Result<(), Lost> {
        loop {
            self.tracee.go_to_call(self.until)?;
            let now = self.tracee.registers()?;
            let ends = now.rip == self.code.after_restore() && now.rsp == self.frame.at + 8;
            if ends && frame::call(&now) == Some(libc::SYS_rt_sigreturn) {
                break;
            }
        }
        self.tracee.set_registers(self.at_rest(libc::SYS_getpid as u64))?;
        self.tracee.go_to_call(self.until)
    }

    /// Calls a function.
    pub(super) fn call(&mut self, at: u64, arguments: [u64; 4]) -> Result<(), Lost> {
        let call = Call { at, number: 0, arguments };
        self.tracee.set_registers(call.registers(&self.before, &self.frame))?;
        self.come_to_rest()
    }

    /// Makes a system call; gives what the kernel answers.
    pub(super) fn system_call(&mut self, number: i64, arguments: [u64; 4]) -> Result<i64, Lost> {
        let call = Call { at: self.code.call, number: number as u64, arguments };
        self.tracee.set_registers(call.registers(&self.before, &self.frame))?;
        self.tracee.go_to_call(self.until)?;
        self.tracee.go_to_call(self.until)?;
        let answer = self.tracee.registers()?.rax as i64;
        self.come_to_rest()?;
        Ok(answer)
    }

    /// Puts bytes where calls can find them, until the next ones; gives their address.
    pub(super) fn put(&self, bytes: &[u8]) -> Result<u64, Lost> {
        let length = bytes.len().min(SCRATCH_BYTES as usize);
        self.memory.write_all_at(&bytes[..length], self.frame.scratch)?;
        Ok(self.frame.scratch)
    }

    /// Reads what a call has left there.
    pub(super) fn get(&self, bytes: &mut [u8]) -> Result<(), Lost> {
        Ok(self.memory.read_exact_at(bytes, self.frame.scratch)?)
    }

    /// Where files that the thread has open are found.
    pub(super) fn path_of(&self, fd: i64) -> String {
        format!("/proc/{}/fd/{fd}", self.tid)
    }

    /// Has it go on where it was: what was interrupted is begun again by the kernel, which knows how much of it is left.
    pub(super) fn give_back(mut self) -> Result<(), Lost> {
        self.tracee.interrupt(TO_STOP)?;
        if let Some((at, errno)) = self.errno {
            self.memory.write_all_at(&errno, at)?;
        }
        self.tracee.set_mask(self.mask)?;
        self.tracee.set_state(&self.state)?;
        self.tracee.set_registers(undisturbed(self.tid, &self.before))
    }

    /// Leaves it alone in the midst of a call: it comes back by itself.
    pub(super) fn abandon(mut self) {
        if self.tracee.is_stopped() {
            return; // with all of its process, and stays so when it is let go
        }
        let _ = self.tracee.interrupt(TO_STOP); // so that it can be let go; else the kernel does so when we end
    }
}
