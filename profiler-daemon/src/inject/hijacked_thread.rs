//! A thread that makes calls for the profiler and then continues as if nothing had happened.
//!
//! - A thread that does not stop in time stops later, when its page has come from the disk, and would then
//!   stand still until this process ends. So every wait also looks for those ([`Stragglers`]).
//! - Being stopped ends `epoll_wait` with an error, as SIGSTOP and SIGCONT do, and calls of sockets that have a
//!   timeout. They are restarted unless a signal is pending, also in threads that were only looked at.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use libc::user_regs_struct;

use super::code::ProcessCode;
use super::frame::{self, InjectedCall, SCRATCH_BYTES, SignalFrame};
use super::status::ThreadStatus;
use crate::sys::procfs;
use crate::sys::ptrace::{TraceError, Tracee};

/// Signals that the processor raises at what a thread does itself: they are let come, for a blocked one is the end.
pub(super) const OWN: [i32; 5] = [libc::SIGILL, libc::SIGTRAP, libc::SIGBUS, libc::SIGFPE, libc::SIGSEGV];
/// A thread that is to stand still does so as soon as it has a CPU, unless it is in the midst of something the kernel does not interrupt.
pub(super) const TO_STOP: Duration = Duration::from_secs(2);
/// How long a thread may wait for its turns: a dozen busy threads on each CPU leave little to one that takes many locks.
const STARVED: Duration = Duration::from_secs(30);
/// Between two looks at one that is late.
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// Has a thread that was only looked at go on as if it had not been stopped.
pub(super) fn resume(tracee: Tracee, tid: u32, registers: &user_regs_struct) -> Result<(), TraceError> {
    let again = undisturbed(tid, registers);
    match again.rip == registers.rip {
        true => Ok(()),
        false => tracee.set_registers(again),
    }
}

/// The registers to go on with where a thread was stopped: a call that this has ended begins again.
fn undisturbed(tid: u32, registers: &user_regs_struct) -> user_regs_struct {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    match ThreadStatus::parse(&status).signals_wait() {
        true => *registers, // it ends for them, as it would have
        false => frame::unended(registers),
    }
}

/// Threads that did not stand still in time, and will as soon as the kernel lets them: then nobody may be waiting for them for long.
#[derive(Default)]
pub(super) struct Stragglers(Vec<(u32, Tracee)>);

impl Stragglers {
    pub(super) fn add(&mut self, tid: u32, tracee: Tracee) {
        self.0.push((tid, tracee));
    }

    pub(super) fn has(&self, tid: u32) -> bool {
        self.0.iter().any(|(straggler, _)| *straggler == tid)
    }

    /// One that stands still by now. Those that have ended are forgotten.
    pub(super) fn next_come(&mut self) -> Option<(u32, Tracee)> {
        let mut index = 0;
        while let Some((_, tracee)) = self.0.get_mut(index) {
            match tracee.has_come() {
                Ok(false) => index += 1,
                Ok(true) => return Some(self.0.swap_remove(index)),
                Err(_) => drop(self.0.swap_remove(index)),
            }
        }
        None
    }

    /// Has those go on that stand still by now.
    pub(super) fn resume(&mut self) {
        while let Some((tid, tracee)) = self.next_come() {
            // One that is gone has nothing to go on with.
            let _ = tracee.registers().and_then(|registers| resume(tracee, tid, &registers));
        }
    }
}

/// A stopped thread with a frame on its stack, by which it comes back to where it was.
pub(super) struct HijackedThread<'a> {
    tracee: Tracee,
    tid: u32,
    memory: &'a File,
    code: &'a ProcessCode,
    frame: SignalFrame,
    before: user_regs_struct,
    state: Vec<u8>,
    mask: u64,
    errno: Option<(u64, [u8; 4])>,
    patience: ThreadPatience,
    stragglers: Stragglers,
    /// To be done all the time, since what the thread does may take long where others are busy, too.
    meanwhile: Box<dyn FnMut()>,
}

/// How long a thread may be away with the calls that it makes.
struct ThreadPatience {
    tid: u32,
    until: Instant,
    /// When it is looked whether it still waits for its turn.
    looks_at: Instant,
    /// CPU time that it had used by the first of these looks (ms).
    used_ms: Option<u64>,
}

impl ThreadPatience {
    /// Whether it has been away for too long. After `until`, a thread is waited for that has something to do and gets little CPU time
    /// for it.
    fn is_over(&mut self) -> bool {
        let now = Instant::now();
        if now <= self.looks_at {
            return false;
        }
        self.looks_at = now + BETWEEN_LOOKS;
        let now_ms = procfs::thread_cpu_ms(self.tid, self.tid);
        let used_ms = now_ms.saturating_sub(*self.used_ms.get_or_insert(now_ms));
        let late = now.saturating_duration_since(self.until);
        !procfs::is_runnable(self.tid) || !is_starved(late, Duration::from_millis(used_ms))
    }
}

/// Whether a thread waits for its turn, by the CPU time that it got while it was late. One that gets half of a CPU goes round in circles.
fn is_starved(late: Duration, used: Duration) -> bool {
    late < STARVED && used <= late / 2 + BETWEEN_LOOKS * 10
}

impl<'a> HijackedThread<'a> {
    /// Takes a thread that stands still, with room for a frame below its stack pointer. It is given back within the time, or comes back by
    /// itself.
    pub(super) fn take(
        tracee: Tracee,
        tid: u32,
        memory: &'a File,
        code: &'a ProcessCode,
        until: Instant,
    ) -> Result<Self, TraceError> {
        let (before, state, mask) = (tracee.registers()?, tracee.state()?, tracee.mask()?);
        let frame = SignalFrame::new(&frame::begun_again(&before), &state, mask, code.restore);
        let (errno, stragglers, meanwhile) = (None, Stragglers::default(), Box::new(|| {}));
        let mut thread = Self {
            tracee,
            tid,
            memory,
            code,
            frame,
            before,
            state,
            mask,
            errno,
            patience: ThreadPatience { tid, until, looks_at: until, used_ms: None },
            stragglers,
            meanwhile,
        };
        thread.memory.write_all_at(&thread.frame.bytes, thread.frame.bottom())?;
        thread.errno = thread.read_errno();
        // In this order: from here on the thread is on its way back, and the way back ends with the mask that it had.
        thread.tracee.set_registers(thread.at_rest(u64::MAX))?;
        thread.tracee.set_mask(OWN.iter().fold(u64::MAX, |mask, signal| mask & !(1 << (signal - 1))))?;
        thread.run_to_rest()?;
        Ok(thread)
    }

    /// Has these go on as they come, while it makes calls.
    pub(super) fn beside(self, stragglers: Stragglers) -> Self {
        Self { stragglers, ..self }
    }

    /// Has this done from now on while it makes calls.
    pub(super) fn do_meanwhile(&mut self, meanwhile: Box<dyn FnMut()>) {
        self.meanwhile = meanwhile;
    }

    fn go_to_call(&mut self) -> Result<(), TraceError> {
        let Self { tracee, patience, stragglers, meanwhile, .. } = self;
        meanwhile();
        let go_on = || {
            stragglers.resume();
            meanwhile();
        };
        tracee.go_to_call(|| patience.is_over(), go_on)
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
    fn run_to_rest(&mut self) -> Result<(), TraceError> {
        loop {
            self.go_to_call()?;
            let now = self.tracee.registers()?;
            let ends = now.rip == self.code.after_restore() && now.rsp == self.frame.at + 8;
            if ends && frame::call(&now) == Some(libc::SYS_rt_sigreturn) {
                break;
            }
        }
        self.tracee.set_registers(self.at_rest(libc::SYS_getpid as u64))?;
        self.go_to_call()
    }

    /// Calls a function.
    pub(super) fn call(&mut self, at: u64, arguments: [u64; 4]) -> Result<(), TraceError> {
        let call = InjectedCall { at, number: 0, arguments };
        self.tracee.set_registers(call.registers(&self.before, &self.frame))?;
        self.run_to_rest()
    }

    /// Makes a system call; gives what the kernel answers.
    pub(super) fn system_call(&mut self, number: i64, arguments: [u64; 4]) -> Result<i64, TraceError> {
        let call = InjectedCall { at: self.code.call, number: number as u64, arguments };
        self.tracee.set_registers(call.registers(&self.before, &self.frame))?;
        self.go_to_call()?;
        self.go_to_call()?;
        let answer = self.tracee.registers()?.rax as i64;
        self.run_to_rest()?;
        Ok(answer)
    }

    /// Puts bytes where calls can find them, until the next ones; gives their address.
    pub(super) fn put(&self, bytes: &[u8]) -> Result<u64, TraceError> {
        let length = bytes.len().min(SCRATCH_BYTES as usize);
        self.memory.write_all_at(&bytes[..length], self.frame.scratch)?;
        Ok(self.frame.scratch)
    }

    /// Reads what a call has left there.
    pub(super) fn get(&self, bytes: &mut [u8]) -> Result<(), TraceError> {
        Ok(self.memory.read_exact_at(bytes, self.frame.scratch)?)
    }

    /// Where files that the thread has open are found.
    pub(super) fn path_of(&self, fd: i64) -> String {
        format!("/proc/{}/fd/{fd}", self.tid)
    }

    /// Has it go on where it was: what was interrupted is begun again by the kernel, which knows how much of it is left.
    pub(super) fn give_back(mut self) -> Result<(), TraceError> {
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

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// Has a process stand in `vfork` for as long as nobody opens the file.
    const STANDS: &str = "import os, sys\n\
        os.waitpid(os.posix_spawn('/bin/true', ['true'], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)]), 0)";

    const CREATE: [i64; 2] = [libc::SYS_clone, libc::SYS_clone3];

    #[test]
    fn a_thread_that_gets_little_cpu_time_is_waited_for_and_one_that_spins_is_not() {
        let ms = Duration::from_millis;
        for (late_ms, used_ms, is_waited_for) in [
            (10, 0, true),
            (10, 100, true),
            (1_000, 60, true),
            (1_000, 990, false),
            (300, 290, false),
            (30_000, 0, false),
        ] {
            assert_eq!(is_starved(ms(late_ms), ms(used_ms)), is_waited_for, "{used_ms} of {late_ms} ms");
        }
    }

    /// It has nothing to do, and has not come: it waits for something else than its turn.
    #[test]
    fn a_thread_that_sleeps_is_late_when_its_time_is_over() {
        let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
        let patience = |until| ThreadPatience { tid: sleeper.id(), until, looks_at: until, used_ms: None };
        assert!(!patience(Instant::now() + Duration::from_secs(3_600)).is_over());
        let begun = Instant::now();
        let mut late = patience(begun);
        while !late.is_over() {
            assert!(begun.elapsed() < STARVED, "it sleeps");
            std::thread::yield_now();
        }
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }

    /// Whoever waits where nothing interrupts him stops when that is over: then nobody may be waiting for him.
    #[test]
    #[allow(clippy::print_stderr, reason = "a test that skips says why")]
    fn a_thread_that_stops_late_goes_on_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        let python = Command::new("mkfifo").arg(&file).status().is_ok_and(|status| status.success());
        let started = Command::new("python3").args(["-c", STANDS]).arg(&file).stderr(Stdio::null()).spawn();
        let (true, Ok(mut process)) = (python, started) else {
            eprintln!("skipped: there is no python3");
            return;
        };
        // Whoever waits for a disk is not interrupted either, but only until it has answered: the call tells them apart.
        let stands = |pid: u32| {
            let read = |name| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
            let waits = read("stat").rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('D'));
            let call = read("syscall").split(' ').next().and_then(|number| number.parse().ok());
            waits && call.is_some_and(|call| CREATE.contains(&call))
        };
        let until = Instant::now() + Duration::from_secs(20);
        while !stands(process.id()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(stands(process.id()), "it does not stand in `vfork`");
        let mut tracee = Tracee::seize(process.id()).unwrap();
        assert!(matches!(tracee.interrupt(Duration::from_millis(50)), Err(TraceError::Late)));
        let mut stragglers = Stragglers::default();
        stragglers.add(process.id(), tracee);
        stragglers.resume();
        assert!(stragglers.has(process.id()), "it does not stand still yet");
        drop(std::fs::File::options().write(true).open(&file).unwrap());
        while stragglers.has(process.id()) && Instant::now() < until {
            stragglers.resume();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!stragglers.has(process.id()), "it was not let go");
        assert!(process.wait().unwrap().success());
    }
}
