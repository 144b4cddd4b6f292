//! One process: it is checked, one of its threads is selected, and that thread loads or calls the agent.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_memory::{AgentCommand, AgentReply, Memory, Request, UsableSignals};

use super::code::{self, ProcessCode};
use super::error::{InjectError, NO_ANSWER, NO_SIGNAL, denied, failed, refusal};
use super::hijacked_thread::HijackedThread;
use super::library::{Agent, LIBRARY_NAME};
use super::signals::{self, SIGNALS};
use super::status::{LeftAlone, blocks, is_shut_in, namespace, status_of};
use super::thread_selection::ThreadTask;
use super::{AttachedAgent, FollowStacks, InjectionRefused, Meanwhile};
use crate::sys::agent_memory::{AgentMemory, is_left, open_made};
use crate::sys::procfs;
use crate::sys::ptrace::{self, TraceError};

/// So long another call is waited for at a time.
const BETWEEN_CALLS: Duration = Duration::from_millis(3);
/// So long a call of another profiler is waited for, which comes to its end also if that was killed.
const TO_FINISH: Duration = Duration::from_millis(500);
const MEMORY_NAME: &str = "sweetspot";
/// `dlopen` at once, for nobody else's sake, and for good.
const LOAD_MODE: u64 = (libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE) as u64;
/// `MFD_CLOEXEC | MFD_ALLOW_SEALING`, and `MFD_EXEC` where the kernel knows it.
const FILE_FLAGS: u64 = 3;
const FILE_EXECUTABLE: u64 = 0x10;

/// The process as it is looked at before it is touched.
pub(super) struct TracedProcess {
    pub(super) pid: u32,
    pub(super) memory: File,
    pub(super) code: ProcessCode,
    agent: Agent,
    /// Where the agent is in the process, if it is there.
    loaded: Option<u64>,
    /// What the process does with the signals that an agent may use.
    signals: UsableSignals,
    /// Files of profilers that did not come to their end.
    left: Vec<u64>,
}

pub(super) fn attach(
    pid: u32,
    library: &Path,
    follow: FollowStacks,
    prepare: impl FnOnce(&Arc<AgentMemory>) -> io::Result<Meanwhile>,
) -> Result<AttachedAgent, InjectionRefused> {
    let process = TracedProcess::look(pid, library)?;
    if process.signals.usable().next().is_none() {
        return Err(InjectionRefused::NotPermitted(NO_SIGNAL.to_owned()));
    }
    let task = if process.loaded.is_some() { ThreadTask::CallAgent } else { ThreadTask::Load };
    let follower =
        (task == ThreadTask::Load).then(|| follow(pid)).transpose().map_err(InjectionRefused::Failed)?;
    let mut thread = process.take_thread(task, follower)?;
    let mut shared = None;
    let done = process.begin(&mut thread, prepare, &mut shared);
    let settled = settle(thread, done);
    // An agent may have begun: it ends at its next sample.
    let left = shared.as_ref().filter(|_| settled.is_err());
    left.and_then(|memory: &Arc<AgentMemory>| Memory::of_own(memory.words())).iter().for_each(Memory::stop);
    settled.map(|(memory, signal)| {
        let deaf = procfs::threads(pid).into_iter().filter(|&tid| blocks(pid, tid, signal)).count();
        AttachedAgent { memory, signal, deaf }
    })
}

pub(super) fn leave(pid: u32, library: &Path, identity: u64) -> Result<(), InjectionRefused> {
    let process = TracedProcess::look(pid, library)?;
    let Some(loaded) = process.loaded else { return Ok(()) };
    let mut thread = process.take_thread(ThreadTask::CallAgent, None)?;
    let done = process.close_left(&mut thread);
    let done = done.and_then(|()| process.command(&mut thread, loaded, AgentCommand::Leave, identity));
    let done = done.and_then(|(answer, _)| match answer {
        AgentReply::Done | AgentReply::Busy => Ok(()), // whoever has come after us has taken everything over
        answer => Err(refusal(answer)),
    });
    settle(thread, done)
}

/// Gives a thread back, whatever came of it.
fn settle<T>(thread: HijackedThread<'_>, done: Result<T, InjectError>) -> Result<T, InjectionRefused> {
    match done {
        Err(trouble @ (InjectError::Late | InjectError::Halted)) => {
            thread.abandon();
            Err(trouble.into())
        }
        done => {
            let back = thread.give_back().map_err(InjectError::from);
            Ok(done.and_then(|done| back.map(|()| done))?)
        }
    }
}

impl TracedProcess {
    fn look(pid: u32, library: &Path) -> Result<Self, InjectionRefused> {
        let not = |reason: &str| InjectionRefused::NotPermitted(reason.to_owned());
        let left_alone = |reason: LeftAlone| InjectionRefused::NotPermitted(reason.in_words());
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
            InjectionRefused::Failed(format!(
                "cannot be given {} ({error}); install sweetspot again",
                library.display()
            ))
        })?;
        let loaded = agent.find(&areas, &memory)?;
        let mapped = procfs::executable_maps(pid).map_err(|_| denied())?;
        let code = ProcessCode::read(pid, &memory, &mapped).map_err(not)?;
        let (signals, left) = (signals::look(pid, &memory), left_files(pid));
        Ok(Self { pid, memory, code, agent, loaded, signals, left })
    }

    /// Loads the agent if need be, and has it begin.
    fn begin(
        &self,
        thread: &mut HijackedThread<'_>,
        prepare: impl FnOnce(&Arc<AgentMemory>) -> io::Result<Meanwhile>,
        shared: &mut Option<Arc<AgentMemory>>,
    ) -> Result<(Arc<AgentMemory>, i32), InjectError> {
        self.close_left(thread)?;
        let loaded = match self.loaded {
            Some(loaded) => loaded,
            None => self.load(thread)?,
        };
        let fd = make_file(thread, MEMORY_NAME, 0)?;
        let memory = AgentMemory::of(&thread.path_of(fd)).map(Arc::new);
        let memory = memory.and_then(|memory| prepare(&memory).map(|meanwhile| (memory, meanwhile)));
        let memory = memory.map_err(|error| {
            failed(&format!("could not be given memory for the samples ({error}); free some, and try again"))
        });
        let asked = memory.and_then(|(memory, meanwhile)| {
            thread.do_meanwhile(meanwhile);
            *shared = Some(Arc::clone(&memory));
            let (answer, [_, signal, ..]) = self.command(thread, loaded, AgentCommand::Attach, fd as u64)?;
            match (answer, SIGNALS.into_iter().find(|&known| known as u64 == signal)) {
                (AgentReply::Done, Some(signal)) => Ok((memory, signal)),
                (answer, _) => Err(refusal(answer)),
            }
        });
        close_after(thread, fd, asked)
    }

    /// Closes what profilers have left open that were killed in the midst of it, or had to leave a thread alone.
    fn close_left(&self, thread: &mut HijackedThread<'_>) -> Result<(), InjectError> {
        for &fd in self.left.iter().filter(|fd| is_named_as_ours(self.pid, **fd)) {
            thread.system_call(libc::SYS_close, [fd, 0, 0, 0])?;
        }
        Ok(())
    }

    fn load(&self, thread: &mut HijackedThread<'_>) -> Result<u64, InjectError> {
        let fd = make_file(thread, LIBRARY_NAME, FILE_EXECUTABLE)?;
        let written = open_made(&thread.path_of(fd));
        // Open until the library is loaded: so nobody takes it for one that was left.
        let written = written.and_then(|file| file.write_all_at(&self.agent.bytes, 0).map(|()| file));
        let written = written.map_err(|error| {
            failed(&format!("could not be given the library ({error}); free some memory, and try again"))
        });
        let loaded = written.and_then(|_file| {
            let at = thread.put(format!("/proc/thread-self/fd/{fd}\0").as_bytes())?;
            Ok(thread.call(self.code.load, [at, LOAD_MODE, 0, 0])?)
        });
        close_after(thread, fd, loaded)?;
        let areas = code::areas(self.pid).map_err(|_| InjectError::from(TraceError::Gone))?;
        let found = self.agent.find(&areas, &self.memory).map_err(InjectError::Refused)?;
        found.ok_or_else(|| {
            failed(
                "could not load the library (`dlopen` failed: /proc may be missing there, or files in memory be barred from \
                 being executed); use perf events",
            )
        })
    }

    /// Sends the agent a command, again if somebody else is about to.
    fn command(
        &self,
        thread: &mut HijackedThread<'_>,
        loaded: u64,
        command: AgentCommand,
        argument: u64,
    ) -> Result<(AgentReply, Request), InjectError> {
        let until = Instant::now() + TO_FINISH;
        loop {
            let signals = signals::with_waiting(self.signals, self.pid);
            let request = command.request(argument, signals);
            let bytes: Vec<u8> = request.iter().flat_map(|word| word.to_le_bytes()).collect();
            let at = thread.put(&bytes)?;
            thread.call(loaded + self.agent.control, [at, 0, 0, 0])?;
            let mut words = [[0; 8]; 4];
            thread.get(words.as_flattened_mut())?;
            let request = words.map(u64::from_le_bytes);
            match AgentReply::of(&request) {
                Some(AgentReply::Occupied) if Instant::now() < until => std::thread::sleep(BETWEEN_CALLS),
                Some(answer) => return Ok((answer, request)),
                None => return Err(failed(NO_ANSWER)),
            }
        }
    }
}

/// Closes a file in the process, unless the thread is on its way elsewhere.
fn close_after<T>(
    thread: &mut HijackedThread<'_>,
    fd: i64,
    done: Result<T, InjectError>,
) -> Result<T, InjectError> {
    if !matches!(done, Err(InjectError::Late | InjectError::Halted)) {
        thread.system_call(libc::SYS_close, [fd as u64, 0, 0, 0])?;
    }
    done
}

/// Makes the thread open a file without a name.
fn make_file(thread: &mut HijackedThread<'_>, name: &str, flags: u64) -> Result<i64, InjectError> {
    let at = thread.put(format!("{name}\0").as_bytes())?;
    let mut make = |flags| thread.system_call(libc::SYS_memfd_create, [at, flags, 0, 0]);
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

/// Files of ours that a process has open, and that serve nobody.
fn left_files(pid: u32) -> Vec<u64> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let numbers = files.filter_map(|file| file.file_name().to_str()?.parse().ok());
    numbers.filter(|&fd| is_named_as_ours(pid, fd) && is_left(&format!("/proc/{pid}/fd/{fd}"))).collect()
}

fn is_named_as_ours(pid: u32, fd: u64) -> bool {
    let names = [MEMORY_NAME, LIBRARY_NAME].map(|name| format!("/memfd:{name} (deleted)"));
    let link = std::fs::read_link(format!("/proc/{pid}/fd/{fd}"));
    link.is_ok_and(|link| names.iter().any(|name| link.as_os_str() == name.as_str()))
}

fn is_ours(header: &[u8; 20]) -> bool {
    const CLASS_64: u8 = 2;
    const X86_64: [u8; 2] = [62, 0];
    header[4] == CLASS_64 && header[18..] == X86_64
}
