//! One process: whether it is left alone, which of its threads is taken, and what that is made to do.

use std::fmt::Display;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use agent_memory::{Answer, Ask, CONTROL, Request, Settings};
use libc::user_regs_struct;
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol};
use profiler_core::machine::Machine;
use profiler_core::profile::Outcome;
use profiler_core::record::{RawData, StackCopy};
use profiler_core::unwind::StackUnwinder;
use profiler_core::unwind::method::{Method, MethodChoice};

use super::captive::{self, Captive, TO_STOP};
use super::code::{self, Area, Code};
use super::frame;
use super::safe::{self, Place};
use super::status::{LeftAlone, Status, blocks_all};
use super::{Attached, Refused};
use crate::objects::Symbols;
use crate::sampler::session::Session;
use crate::sys::agent_memory::{AgentMemory, open_made};
use crate::sys::procfs;
use crate::sys::ptrace::{self, Lost, Tracee};

/// So long a thread is looked for that can be taken, and then so long it may be away.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two rounds of all threads, so that they get on.
const BETWEEN_ROUNDS: Duration = Duration::from_millis(3);
/// In the first rounds threads that let no signal come are passed over: they may be in a handler of ours, which would wait for
/// itself.
const ROUNDS_FOR_HANDLERS: u32 = 50;
/// So long a call of another profiler is waited for, which comes to its end also if that was killed.
const TO_FINISH: Duration = Duration::from_millis(500);
/// What an agent that is loaded into a running process has its timers send: nobody else answers to another one.
const SIGNALS: [i32; 2] = [libc::SIGURG, libc::SIGWINCH];
/// Room that loading a library takes of a stack, and asking one that is loaded (bytes).
const ROOM_TO_LOAD: u64 = 64 << 10;
const ROOM_TO_ASK: u64 = 24 << 10;
/// Of a stack that grows by itself, so much has to be there already.
const ROOM_FOR_FRAME: u64 = 8 << 10;
/// More of a stack is not looked at (bytes).
const MOST_STACK: u64 = 4 << 20;
/// What the library is called where it is mapped.
const LIBRARY_NAME: &str = "sweetspot-agent";
const MEMORY_NAME: &str = "sweetspot";
/// `dlopen` at once, for nobody else's sake, and for good.
const LOAD_MODE: u64 = (libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE) as u64;
/// `MFD_CLOEXEC | MFD_ALLOW_SEALING`, and `MFD_EXEC` where the kernel knows it.
const FILE_FLAGS: u64 = 3;
const FILE_EXECUTABLE: u64 = 0x10;
const IN_HANDLER: &str = "in a signal handler";
const NO_ANSWER: &str = "has an agent that does not answer; start it again";

/// What is asked of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    /// To load the library first.
    Load,
    /// What takes no lock.
    Ask,
}

/// Whether any of these threads of a process has shut itself in.
pub(super) fn is_shut_in(pid: u32, tids: &[u32]) -> bool {
    tids.iter().any(|&tid| status_of(pid, tid).is_ok_and(|status| has_other_filters(pid, &status)))
}

/// Whether a thread blocks a signal, or takes signals by itself: while it waits for them, the kernel says that it lets them come.
pub(super) fn blocks(pid: u32, tid: u32, signal: i32) -> bool {
    status_of(pid, tid).is_ok_and(|status| status.blocks(signal))
        || call_of(pid, tid) == Some(libc::SYS_rt_sigtimedwait)
}

/// The system call that a thread is in; negative if it waits elsewhere, `None` if it runs.
fn call_of(pid: u32, tid: u32) -> Option<i64> {
    let call = fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).ok()?;
    call.split(' ').next()?.parse().ok()
}

/// Whether filters of system calls are in force for a thread that may not be those of a container that we share.
fn has_other_filters(pid: u32, status: &Status) -> bool {
    let own = || Status::parse(&fs::read_to_string("/proc/self/status").unwrap_or_default());
    let is_beside_us = || namespace("self", "mnt").is_some_and(|ours| namespace(pid, "mnt") == Some(ours));
    status.is_filtered() && !(status.has_as_many_filters_as(&own()) && is_beside_us())
}

/// Which namespace of a kind a process is in; `None` if we may not know.
fn namespace(pid: impl Display, kind: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok()
}

/// The process as it is looked at before it is touched.
struct Process {
    pid: u32,
    memory: File,
    code: Code,
    agent: Agent,
    /// Where the agent is in the process, if it is there.
    loaded: Option<u64>,
}

/// The agent's file, as far as it is loaded.
struct Agent {
    bytes: Vec<u8>,
    control: u64,
    /// Where its code is in the file, and how long it is.
    text: (u64, u64),
}

pub(super) fn attach(
    pid: u32,
    library: &Path,
    prepare: impl FnOnce(&AgentMemory),
) -> Result<Attached, Refused> {
    let process = Process::look(pid, library)?;
    let task = if process.loaded.is_some() { Task::Ask } else { Task::Load };
    let mut captive = process.take_thread(task)?;
    let done = process.begin(&mut captive, prepare);
    settle(captive, done).map(|(memory, signal)| {
        let deaf = procfs::threads(pid).into_iter().filter(|&tid| blocks(pid, tid, signal)).count();
        Attached { memory, signal, deaf }
    })
}

pub(super) fn leave(pid: u32, library: &Path, identity: u64) -> Result<(), Refused> {
    let process = Process::look(pid, library)?;
    let Some(loaded) = process.loaded else { return Ok(()) };
    let mut captive = process.take_thread(Task::Ask)?;
    let done = process.ask(&mut captive, loaded, Ask::Leave, identity);
    let done = done.and_then(|(answer, _)| match answer {
        Answer::Done | Answer::Busy => Ok(()), // whoever has come after us has taken everything over
        answer => Err(refusal(answer)),
    });
    settle(captive, done)
}

/// Gives a thread back, whatever came of it.
fn settle<T>(captive: Captive<'_>, done: Result<T, Trouble>) -> Result<T, Refused> {
    match done {
        Err(trouble @ (Trouble::Late | Trouble::Halted)) => {
            captive.abandon();
            Err(trouble.into())
        }
        done => {
            let back = captive.give_back().map_err(Trouble::from);
            Ok(done.and_then(|done| back.map(|()| done))?)
        }
    }
}

/// Why a call did not come to its end.
#[derive(Debug)]
enum Trouble {
    /// It may still do so.
    Late,
    /// It will when the process goes on.
    Halted,
    Refused(Refused),
}

impl From<Lost> for Trouble {
    fn from(lost: Lost) -> Self {
        match lost {
            Lost::Late => Self::Late,
            Lost::Halted => Self::Halted,
            Lost::Gone => failed("has ended, or has become another program; start it again"),
            Lost::Refused(error) => failed(&format!("could not be changed ({error}); use perf events")),
        }
    }
}

impl From<Trouble> for Refused {
    fn from(trouble: Trouble) -> Self {
        let text = match trouble {
            Trouble::Refused(refused) => return refused,
            Trouble::Late => {
                "did not come back from a call in time; it may still do so, and goes on after that as before"
            }
            Trouble::Halted => "was stopped meanwhile; let it go on first (`kill -CONT`)",
        };
        Self::Failed(text.to_owned())
    }
}

fn failed(text: &str) -> Trouble {
    Trouble::Refused(Refused::Failed(text.to_owned()))
}

/// What came of a call where nothing came of it.
fn refusal(answer: Answer) -> Trouble {
    let patience_s = Settings::default().patience_ns / 1_000_000_000;
    let is_busy = format!(
        "is sampled by another sweetspot already; end that, or wait for {patience_s} seconds if it was killed"
    );
    failed(match answer {
        Answer::Busy => &is_busy,
        Answer::NoSignal => "handles SIGURG and SIGWINCH itself, or has shut itself in; use perf events",
        Answer::NoMemory => "could not map the memory for the samples (`ulimit -v`?); use perf events",
        Answer::Unfinished => {
            "has a thread that does not come out of the library's handler; the memory stays mapped"
        }
        Answer::Occupied => "is being asked by another sweetspot; try again",
        Answer::Done | Answer::Unknown => NO_ANSWER,
    })
}

fn status_of(pid: u32, tid: u32) -> io::Result<Status> {
    Ok(Status::parse(&fs::read_to_string(format!("/proc/{pid}/task/{tid}/status"))?))
}

/// Why it may not be traced.
fn denied() -> Refused {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let also = match scope.trim() {
        "" | "0" => "run as its owner or as root, with the capability SYS_PTRACE in a container",
        "3" => "kernel.yama.ptrace_scope is 3, which permits nobody to, until the machine is started again",
        _ => "kernel.yama.ptrace_scope is not 0: run as root",
    };
    Refused::NotPermitted(format!("may not be changed: {also}"))
}

impl Process {
    fn look(pid: u32, library: &Path) -> Result<Self, Refused> {
        let not = |reason: &str| Refused::NotPermitted(reason.to_owned());
        let left_alone = |reason: LeftAlone| Refused::NotPermitted(reason.in_words());
        let status = status_of(pid, pid).unwrap_or_default();
        let same_namespace =
            namespace(pid, "pid").is_none_or(|theirs| Some(theirs) == namespace("self", "pid"));
        if let Some(reason) = status.left_alone(same_namespace) {
            return Err(left_alone(reason));
        }
        if is_shut_in(pid, &procfs::threads(pid)) {
            return Err(left_alone(LeftAlone::ShutIn));
        }
        if ptrace::share_memory(pid, status.parent()) {
            return Err(left_alone(LeftAlone::InMemoryOf(status.parent())));
        }
        let areas = code::areas(pid).map_err(|_| denied())?;
        if areas.is_empty() {
            return Err(not("has ended; start it again"));
        }
        let mut header = [0; 20];
        let program = File::open(format!("/proc/{pid}/exe"));
        if program.is_ok_and(|program| program.read_exact_at(&mut header, 0).is_ok()) && !is_ours(&header) {
            return Err(not("was built for another processor, and cannot be sampled by timer signals"));
        }
        if let Some(reason) = code::refusal(&areas) {
            return Err(not(&format!("{reason}, so the library cannot be loaded into it; use perf events")));
        }
        let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"));
        let memory = memory.map_err(|_| denied())?;
        let agent = Agent::read(library).map_err(|error| {
            Refused::Failed(format!(
                "cannot be given {} ({error}); install sweetspot again",
                library.display()
            ))
        })?;
        let loaded = agent.find(&areas, &memory)?;
        let mapped = procfs::executable_maps(pid).map_err(|_| denied())?;
        let code = Code::read(pid, &memory, &mapped).map_err(not)?;
        Ok(Self { pid, memory, code, agent, loaded })
    }

    /// Takes a thread that can do it.
    fn take_thread(&self, task: Task) -> Result<Captive<'_>, Refused> {
        let until = Instant::now() + PATIENCE;
        let mut watcher = match task {
            Task::Load => Some(Watcher::new(self.pid).map_err(Refused::Failed)?),
            Task::Ask => None,
        };
        let (mut why, mut has_kept, mut rounds) = (None, false, 0);
        while Instant::now() < until {
            let spares_handlers = task == Task::Ask && rounds < ROUNDS_FOR_HANDLERS;
            for tid in self.candidates() {
                match self.try_thread(tid, task, watcher.as_mut(), spares_handlers) {
                    Ok(captive) => return Ok(captive),
                    Err(Try::ShutIn) => return Err(Refused::NotPermitted(LeftAlone::ShutIn.in_words())),
                    Err(Try::Denied) if !has_kept => return Err(denied()),
                    Err(Try::Denied) => {} // by us: it did not stand still, and is let go when we end
                    Err(Try::Next(Lost::Late)) => has_kept = true,
                    Err(Try::Next(Lost::Halted)) => return Err(Trouble::Halted.into()),
                    Err(Try::Next(_)) => {}
                    Err(Try::Unsafe(reason)) => why = Some(reason),
                }
                if Instant::now() > until {
                    break;
                }
            }
            if procfs::has_ended(self.pid) {
                return Err(Trouble::from(Lost::Gone).into());
            }
            rounds += 1;
            std::thread::sleep(BETWEEN_ROUNDS);
        }
        let why = why.unwrap_or("asleep where it cannot be interrupted");
        Err(Refused::Failed(format!(
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
        task: Task,
        watcher: Option<&mut Watcher>,
        spares_handlers: bool,
    ) -> Result<Captive<'_>, Try> {
        if is_asleep_for_good(self.pid, tid) {
            return Err(Try::Unsafe("asleep where it cannot be interrupted"));
        }
        if spares_handlers && status_of(self.pid, tid).is_ok_and(|status| status.blocks_all()) {
            return Err(Try::Unsafe(IN_HANDLER));
        }
        let mut tracee = Tracee::seize(tid).map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM) => Try::Denied,
            _ => Try::Next(error.into()),
        })?;
        tracee.interrupt(TO_STOP)?;
        let registers = tracee.registers()?;
        match self.judge(&tracee, tid, task, watcher, spares_handlers, &registers) {
            Ok(()) => Ok(Captive::take(tracee, tid, &self.memory, &self.code, Instant::now() + PATIENCE)?),
            Err(refused) => {
                captive::let_go(tracee, tid, &registers)?;
                Err(refused)
            }
        }
    }

    /// Whether a stopped thread can do it.
    fn judge(
        &self,
        tracee: &Tracee,
        tid: u32,
        task: Task,
        watcher: Option<&mut Watcher>,
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
        if let Some(watcher) = watcher {
            watcher.judge(self, registers, &stack).map_err(|reason| Try::Unsafe(reason.in_words()))?;
        }
        Ok(())
    }

    /// The part of a stopped thread's stack that is in use; the reason if it is no stack of a thread, or too small.
    fn stack(&self, tid: u32, task: Task, registers: &user_regs_struct) -> Result<(u64, u64), &'static str> {
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
            _ => return Err("on a stack of its own making"),
        };
        let needed = match task {
            Task::Load => ROOM_TO_LOAD,
            Task::Ask => ROOM_TO_ASK,
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

    /// Loads the agent if need be, and has it begin.
    fn begin(
        &self,
        captive: &mut Captive<'_>,
        prepare: impl FnOnce(&AgentMemory),
    ) -> Result<(AgentMemory, i32), Trouble> {
        let loaded = match self.loaded {
            Some(loaded) => loaded,
            None => self.load(captive)?,
        };
        let fd = make_file(captive, MEMORY_NAME, 0)?;
        let memory = AgentMemory::of(&captive.path_of(fd)).map_err(|error| {
            failed(&format!("could not be given memory for the samples ({error}); free some, and try again"))
        });
        let asked = memory.and_then(|memory| {
            prepare(&memory);
            let (answer, [_, signal, _]) = self.ask(captive, loaded, Ask::Attach, fd as u64)?;
            match (answer, SIGNALS.into_iter().find(|&known| known as u64 == signal)) {
                (Answer::Done, Some(signal)) => Ok((memory, signal)),
                (answer, _) => Err(refusal(answer)),
            }
        });
        close_after(captive, fd, asked)
    }

    fn load(&self, captive: &mut Captive<'_>) -> Result<u64, Trouble> {
        let fd = make_file(captive, LIBRARY_NAME, FILE_EXECUTABLE)?;
        let written = open_made(&captive.path_of(fd));
        let written = written.and_then(|file| file.write_all_at(&self.agent.bytes, 0));
        let written = written.map_err(|error| {
            failed(&format!("could not be given the library ({error}); free some memory, and try again"))
        });
        let loaded = written.and_then(|()| {
            let at = captive.put(format!("/proc/thread-self/fd/{fd}\0").as_bytes())?;
            Ok(captive.call(self.code.load, [at, LOAD_MODE, 0, 0])?)
        });
        close_after(captive, fd, loaded)?;
        let areas = code::areas(self.pid).map_err(|_| Trouble::from(Lost::Gone))?;
        let found = self.agent.find(&areas, &self.memory).map_err(Trouble::Refused)?;
        found.ok_or_else(|| {
            failed(
                "could not load the library (`dlopen` failed: /proc may be missing there, or files in memory be barred from \
                 being executed); use perf events",
            )
        })
    }

    /// Asks the agent, again if somebody else is about to.
    fn ask(
        &self,
        captive: &mut Captive<'_>,
        loaded: u64,
        ask: Ask,
        argument: u64,
    ) -> Result<(Answer, Request), Trouble> {
        let until = Instant::now() + TO_FINISH;
        loop {
            let bytes: Vec<u8> = ask.request(argument).iter().flat_map(|word| word.to_le_bytes()).collect();
            let at = captive.put(&bytes)?;
            captive.call(loaded + self.agent.control, [at, 0, 0, 0])?;
            let mut words = [[0; 8]; 3];
            captive.get(words.as_flattened_mut())?;
            let request = words.map(u64::from_le_bytes);
            match Answer::of(&request) {
                Some(Answer::Occupied) if Instant::now() < until => std::thread::sleep(BETWEEN_ROUNDS),
                Some(answer) => return Ok((answer, request)),
                None => return Err(failed(NO_ANSWER)),
            }
        }
    }
}

/// Closes a file in the process, unless the thread is on its way elsewhere.
fn close_after<T>(captive: &mut Captive<'_>, fd: i64, done: Result<T, Trouble>) -> Result<T, Trouble> {
    if !matches!(done, Err(Trouble::Late | Trouble::Halted)) {
        captive.system_call(libc::SYS_close, [fd as u64, 0, 0, 0])?;
    }
    done
}

/// Why a thread was not taken.
enum Try {
    Denied,
    ShutIn,
    Next(Lost),
    Unsafe(&'static str),
}

impl From<Lost> for Try {
    fn from(lost: Lost) -> Self {
        Self::Next(lost)
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

/// Makes the thread open a file without a name.
fn make_file(captive: &mut Captive<'_>, name: &str, flags: u64) -> Result<i64, Trouble> {
    let at = captive.put(format!("{name}\0").as_bytes())?;
    let mut make = |flags| captive.system_call(libc::SYS_memfd_create, [at, flags, 0, 0]);
    let mut fd = make(FILE_FLAGS | flags)?;
    if fd == -i64::from(libc::EINVAL) {
        fd = make(FILE_FLAGS)?;
    }
    if fd < 0 {
        let error = io::Error::from_raw_os_error(-fd as i32);
        return Err(failed(&format!("could not open a file in memory ({error}); use perf events")));
    }
    Ok(fd)
}

fn is_ours(header: &[u8; 20]) -> bool {
    const CLASS_64: u8 = 2;
    const X86_64: [u8; 2] = [62, 0];
    header[4] == CLASS_64 && header[18..] == X86_64
}

impl Agent {
    /// The parts of the file that are loaded: names and lines for debuggers would only take memory.
    fn read(path: &Path) -> Result<Self, String> {
        let bytes = fs::read(path).map_err(|error| error.to_string())?;
        let unknown = || "it is no agent".to_owned();
        let elf = ElfFile64::<Endianness>::parse(&*bytes).map_err(|error| error.to_string())?;
        let control =
            elf.dynamic_symbols().find(|symbol| symbol.name() == Ok(CONTROL)).ok_or_else(unknown)?;
        let control = control.address();
        let endian = elf.endian();
        let segments =
            elf.elf_header().program_headers(endian, &*bytes).map_err(|error| error.to_string())?;
        let loaded = || segments.iter().filter(|segment| segment.p_type(endian) == object::elf::PT_LOAD);
        let length = loaded().map(|segment| segment.p_offset(endian) + segment.p_filesz(endian)).max();
        let text = loaded().find(|segment| {
            segment.p_vaddr(endian) <= control && control < segment.p_vaddr(endian) + segment.p_memsz(endian)
        });
        let text =
            text.map(|segment| (segment.p_offset(endian), segment.p_filesz(endian))).ok_or_else(unknown)?;
        let length = length.and_then(|length| usize::try_from(length).ok()).ok_or_else(unknown)?;
        let mut bytes = bytes.get(..length).ok_or_else(unknown)?.to_vec();
        for (at, count) in [(40, 8), (58, 6)] {
            bytes[at..at + count].fill(0); // the table of sections, which lies behind
        }
        Ok(Self { bytes, control, text })
    }

    /// Where the agent lies in a process, if it does.
    fn find(&self, areas: &[Area], memory: &File) -> Result<Option<u64>, Refused> {
        let is_agent = |area: &&Area| {
            area.name == format!("/memfd:{LIBRARY_NAME}") || area.file() == "libsweetspot_agent.so"
        };
        let mut parts = areas.iter().filter(is_agent);
        let Some(first) = parts.find(|area| area.offset == 0) else { return Ok(None) };
        let (offset, length) = self.text;
        let text = self.bytes.get(offset as usize..(offset + length) as usize);
        let code = areas.iter().filter(is_agent).find(|area| area.executable && area.start >= first.start);
        let is_same = code.zip(text).is_some_and(|(code, text)| {
            let mut there = vec![0; text.len()];
            let at = code.start + (offset - code.offset.min(offset));
            memory.read_exact_at(&mut there, at).is_ok() && there == text
        });
        if is_same {
            return Ok(Some(first.start));
        }
        Err(Refused::Failed(
            "has loaded the agent of another version of sweetspot; attach with that one, or start it again"
                .to_owned(),
        ))
    }
}

/// Follows the stacks of stopped threads.
struct Watcher {
    session: Session,
    unwinder: StackUnwinder,
}

impl Watcher {
    fn new(pid: u32) -> Result<Self, String> {
        let symbols = Symbols::new(config::SamplingSettings::default().symbol_memory.get());
        let mut session = Session::new(MethodChoice::fixed(Method::Dwarf), &symbols);
        session.adopt(pid).map_err(|error| format!("cannot be looked at ({error}); start it again"))?;
        session.objects.read_tables();
        Ok(Self { session, unwinder: StackUnwinder::default() })
    }

    fn judge(
        &mut self,
        process: &Process,
        registers: &user_regs_struct,
        (from, to): &(u64, u64),
    ) -> Result<(), safe::Unsafe> {
        let mut stack = vec![0; (to - from).min(MOST_STACK) as usize];
        let followed = self.session.processes.get(process.pid).ok_or(safe::Unsafe::Cut)?;
        process.memory.read_exact_at(&mut stack, *from).map_err(|_| safe::Unsafe::Cut)?;
        let r = registers;
        let noted = [
            r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13,
            r.r14, r.r15, r.rip,
        ];
        let copy = StackCopy::new(RawData::Single(&stack), stack.len() + 1);
        let mut frames = Vec::new();
        let unwound = self.unwinder.unwind(followed, Machine::X86_64.noted_regs(&noted), copy, &mut frames);
        let places: Vec<Place<'_>> = frames.iter().map(|&address| process.code.place(address)).collect();
        safe::judge(&places, unwound.outcome == Outcome::Complete)
    }
}
