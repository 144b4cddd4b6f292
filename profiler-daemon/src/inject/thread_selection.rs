//! Selects the thread of a process that makes the calls: one that can load a library, or call the agent,
//! without side effects.

use std::fs;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use libc::user_regs_struct;
use profiler_core::machine::Machine;
use profiler_core::profile::Outcome;
use profiler_core::record::{RawData, StackCopy};

use super::code::{self, Area};
use super::error::{InjectError, denied};
use super::frame;
use super::hijacked_thread::{self, HijackedThread, Stragglers};
use super::process::TracedProcess;
use super::safe::{self, CodeRegion};
use super::status::{LeftAlone, blocks_all, call_of, is_shut_in, status_of};
use super::{InjectionRefused, StackFollower};
use crate::sys::procfs;
use crate::sys::ptrace::{TraceError, Tracee};

/// How long to look for a suitable thread, and then how long that thread may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// During this time, threads that block all signals are skipped: they may be in a handler of ours, which would wait for
/// itself.
const FOR_HANDLERS: Duration = Duration::from_millis(200);
/// Pause between two rounds over all threads. It doubles from round to round (about 25 rounds in 5 s); the short first
/// ones catch threads that are safe only briefly.
const FIRST_PAUSE: Duration = Duration::from_millis(3);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// A thread that has not stopped by then may do so later, while others are tried.
const TO_STOP: Duration = Duration::from_millis(200);
/// Stack space needed to load a library, and to call one that is loaded (bytes).
const ROOM_TO_LOAD: u64 = 64 << 10;
const ROOM_TO_CALL: u64 = 24 << 10;
/// Of a stack that grows automatically, this much must already be mapped (bytes).
const ROOM_FOR_FRAME: u64 = 8 << 10;
/// Most bytes of a stack that are examined.
const MOST_STACK: u64 = 4 << 20;
const IN_HANDLER: &str = "in a signal handler";

/// What a thread is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ThreadTask {
    /// To load the library first.
    Load,
    /// To make a call that takes no lock.
    CallAgent,
}

impl TracedProcess {
    /// Takes over a thread that can do `task`; one that is to load is judged by its stack.
    pub(super) fn take_thread(
        &self,
        task: ThreadTask,
        mut follower: Option<Box<dyn StackFollower>>,
    ) -> Result<HijackedThread<'_>, InjectionRefused> {
        let begin = Instant::now();
        let until = begin + PATIENCE;
        let (mut why, mut stragglers, mut pause) = (None, Stragglers::default(), FIRST_PAUSE);
        while Instant::now() < until {
            let spares_handlers = task == ThreadTask::CallAgent && begin.elapsed() < FOR_HANDLERS;
            let mut candidates = self.candidates().into_iter();
            while Instant::now() < until {
                // Whoever has come late stands still until he is looked at.
                let tried = match stragglers.next_come() {
                    Some((tid, tracee)) => {
                        self.try_stopped(tracee, tid, task, follower.as_deref_mut(), spares_handlers)
                    }
                    None => match candidates.find(|&tid| !stragglers.has(tid)) {
                        Some(tid) => self.try_thread(tid, task, follower.as_deref_mut(), spares_handlers),
                        None => break,
                    },
                };
                match tried {
                    Ok(thread) => return Ok(thread.beside(stragglers)),
                    Err(Try::ShutIn) => {
                        return Err(InjectionRefused::NotPermitted(LeftAlone::ShutIn.in_words()));
                    }
                    Err(Try::Denied) => return Err(denied()),
                    Err(Try::Late(tid, tracee)) => stragglers.add(tid, tracee),
                    Err(Try::Lost(TraceError::Halted)) => return Err(InjectError::Halted.into()),
                    Err(Try::Lost(_)) => {}
                    Err(Try::Unsafe(reason)) => why = Some(reason),
                }
            }
            if procfs::has_ended(self.pid) {
                return Err(InjectError::from(TraceError::Gone).into());
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        let why = why.unwrap_or("asleep where it cannot be interrupted");
        Err(InjectionRefused::Failed(format!(
            "has no thread that could load the library safely: in {} s each was {why}; try again",
            PATIENCE.as_secs()
        )))
    }

    /// Threads in the order in which they are tried: those that wait in calls that are begun again without a trace, those that wait
    /// otherwise, those that run.
    fn candidates(&self) -> Vec<u32> {
        let rank = |tid: u32| match call_of(self.pid, tid) {
            Some(libc::SYS_futex | libc::SYS_poll | libc::SYS_read | libc::SYS_clock_nanosleep) => 0,
            Some(number) if number >= 0 => 1,
            _ => 2,
        };
        let mut threads: Vec<(i32, u32)> =
            procfs::threads(self.pid).into_iter().map(|tid| (rank(tid), tid)).collect();
        threads.sort_unstable();
        threads.into_iter().map(|(_, tid)| tid).collect()
    }

    fn try_thread(
        &self,
        tid: u32,
        task: ThreadTask,
        follower: Option<&mut (dyn StackFollower + 'static)>,
        spares_handlers: bool,
    ) -> Result<HijackedThread<'_>, Try> {
        if is_asleep_for_good(self.pid, tid) {
            return Err(Try::Unsafe("asleep where it cannot be interrupted"));
        }
        if spares_handlers && status_of(self.pid, tid).is_ok_and(|status| status.blocks_all()) {
            return Err(Try::Unsafe(IN_HANDLER));
        }
        let mut tracee = Tracee::seize(tid).map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM) => Try::Denied,
            _ => Try::Lost(error.into()),
        })?;
        match tracee.interrupt(TO_STOP) {
            Ok(()) => self.try_stopped(tracee, tid, task, follower, spares_handlers),
            Err(TraceError::Late) => Err(Try::Late(tid, tracee)),
            Err(lost) => Err(lost.into()),
        }
    }

    /// The same of a thread that stands still.
    fn try_stopped(
        &self,
        tracee: Tracee,
        tid: u32,
        task: ThreadTask,
        follower: Option<&mut (dyn StackFollower + 'static)>,
        spares_handlers: bool,
    ) -> Result<HijackedThread<'_>, Try> {
        let registers = tracee.registers()?;
        match self.judge(&tracee, tid, task, follower, spares_handlers, &registers) {
            Ok(()) => {
                Ok(HijackedThread::take(tracee, tid, &self.memory, &self.code, Instant::now() + PATIENCE)?)
            }
            Err(refused) => {
                hijacked_thread::resume(tracee, tid, &registers)?;
                Err(refused)
            }
        }
    }

    /// Whether a stopped thread can do it.
    fn judge(
        &self,
        tracee: &Tracee,
        tid: u32,
        task: ThreadTask,
        follower: Option<&mut (dyn StackFollower + 'static)>,
        spares_handlers: bool,
        registers: &user_regs_struct,
    ) -> Result<(), Try> {
        if is_shut_in(self.pid, &[tid]) {
            return Err(Try::ShutIn);
        }
        if spares_handlers && blocks_all(tracee.mask()?) {
            return Err(Try::Unsafe(IN_HANDLER));
        }
        let stack = self.stack(tid, task, registers).map_err(Try::Unsafe)?;
        if frame::call(registers).is_none() && self.is_in_sequence(tracee) {
            return Err(Try::Unsafe("in a restartable sequence"));
        }
        if let Some(follower) = follower {
            self.judge_stack(follower, registers, &stack).map_err(|reason| Try::Unsafe(reason.in_words()))?;
        }
        Ok(())
    }

    /// The part of a stopped thread's stack that is in use; the reason if it is no stack of a thread, or too small.
    fn stack(
        &self,
        tid: u32,
        task: ThreadTask,
        registers: &user_regs_struct,
    ) -> Result<(u64, u64), &'static str> {
        if registers.cs != frame::CODE_64 {
            return Err("in 32-bit code");
        }
        // The C library keeps the address of a thread's description in itself.
        let mut own = [0; 8];
        let described = self.memory.read_exact_at(&mut own, registers.fs_base.wrapping_add(16)).is_ok();
        if !described || u64::from_le_bytes(own) != registers.fs_base {
            return Err("no thread of the C library");
        }
        let areas = code::areas(self.pid).map_err(|_| "gone")?;
        let holds = |area: &&Area, address: u64| (area.start..area.end).contains(&address);
        let area = areas.iter().find(|area| holds(area, registers.rsp)).ok_or("on no stack")?;
        let (is_first, room) = (area.name == "[stack]", registers.rsp - area.start);
        let end = match (is_first, holds(&area, registers.fs_base)) {
            (true, _) if tid == self.pid => area.end,
            (false, true) if registers.fs_base > registers.rsp => registers.fs_base,
            _ => return Err("on a stack that it allocated itself"),
        };
        let needed = match task {
            ThreadTask::Load => ROOM_TO_LOAD,
            ThreadTask::CallAgent => ROOM_TO_CALL,
        };
        let (there, allowed) = match is_first {
            true => (ROOM_FOR_FRAME, stack_limit(self.pid)),
            false => (needed, u64::MAX),
        };
        // Guards that the C library has put into a mapping are not listed, and cannot be read.
        let below = needed.min(room);
        let is_there = self.memory.read_exact_at(&mut vec![0; below as usize], registers.rsp - below).is_ok();
        if room < there || !is_there || area.end - registers.rsp + needed > allowed {
            return Err("at the end of its stack");
        }
        Ok((registers.rsp, end))
    }

    /// Whether a thread that was not in the kernel is in a sequence that it expects to be begun again when it is interrupted.
    fn is_in_sequence(&self, tracee: &Tracee) -> bool {
        const SEQUENCE_AT: u64 = 8;
        let area = tracee.sequence_area();
        let mut sequence = [0; 8];
        let read = area != 0 && self.memory.read_exact_at(&mut sequence, area + SEQUENCE_AT).is_ok();
        read && sequence != [0; 8]
    }
}

/// Why a thread was not taken.
enum Try {
    Denied,
    ShutIn,
    Late(u32, Tracee),
    Lost(TraceError),
    Unsafe(&'static str),
}

impl From<TraceError> for Try {
    fn from(lost: TraceError) -> Self {
        Self::Lost(lost)
    }
}

/// How big the first thread's stack may become (bytes).
fn stack_limit(pid: u32) -> u64 {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max stack size"));
    let soft = line.and_then(|line| line.split_ascii_whitespace().next());
    soft.and_then(|soft| soft.parse().ok()).unwrap_or(u64::MAX) // `unlimited`
}

/// Whether a thread is in a call that nothing interrupts: it would not stop before that is over.
fn is_asleep_for_good(pid: u32, tid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['D', 'Z', 'X']))
}

impl TracedProcess {
    /// Whether the stack of a thread that stands still is one that a call may be put on.
    fn judge_stack(
        &self,
        follower: &mut dyn StackFollower,
        registers: &user_regs_struct,
        (from, to): &(u64, u64),
    ) -> Result<(), safe::Unsafe> {
        let mut stack = vec![0; (to - from).min(MOST_STACK) as usize];
        self.memory.read_exact_at(&mut stack, *from).map_err(|_| safe::Unsafe::Cut)?;
        let r = registers;
        let noted = [
            r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13,
            r.r14, r.r15, r.rip,
        ];
        let copy = StackCopy::new(RawData::Single(&stack), stack.len() + 1);
        let mut frames = Vec::new();
        let regs = Machine::X86_64.noted_regs(&noted);
        let outcome = follower.follow(regs, copy, &mut frames).ok_or(safe::Unsafe::Cut)?;
        let places: Vec<CodeRegion<'_>> = frames.iter().map(|&address| self.code.place(address)).collect();
        safe::judge(&places, outcome == Outcome::Complete)
    }
}
