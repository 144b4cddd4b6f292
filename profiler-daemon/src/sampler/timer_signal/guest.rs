//! An agent that is loaded into a running process: told of threads that come, and made to leave.

use std::io;
use std::path::PathBuf;

use agent_memory::enter;

use crate::inject::{self, Attached, Refused, Threads};
use crate::sys::agent_memory::AgentMemory;
use crate::sys::{clock, procfs};

/// So many threads are looked at each time, beside the first one and those that are new: whether they have shut themselves in.
const LOOKED_AT: usize = 4;
/// A thread that blocks the signal may be about to begin: it is met so often before that is believed.
const LOOKS_AT_DEAF: u32 = 3;

/// A process, and the agent's file.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) pid: u32,
    pub(crate) library: PathBuf,
}

/// An agent in it.
pub(super) struct Guest {
    host: Host,
    /// Of the memory: a profiler that comes after us has another.
    identity: u64,
    /// None before it is loaded, and after it has left.
    signal: Option<i32>,
    threads: Threads,
    /// Threads that have come and block the signal, and how often they were met.
    waiting: Vec<(u32, u32)>,
    /// Threads that block the signal, and what it is called.
    deaf: usize,
    signal_name: &'static str,
    /// Threads that could not be told to have themselves sampled.
    untold: u64,
    /// Whether the process has shut itself in.
    is_shut: bool,
    /// What is left of it, and why.
    left: Option<Refused>,
}

impl Guest {
    pub(super) fn new(host: Host, identity: u64) -> Self {
        let (threads, waiting) = (Threads::default(), Vec::new());
        Self {
            host,
            identity,
            signal: None,
            threads,
            waiting,
            deaf: 0,
            signal_name: "",
            untold: 0,
            is_shut: false,
            left: None,
        }
    }

    /// Loads the agent, and has it sample every thread that there is.
    pub(super) fn attach(
        &mut self,
        prepare: impl FnOnce(&AgentMemory) -> io::Result<()> + Send,
    ) -> Result<AgentMemory, Refused> {
        let Self { host, .. } = self;
        // Before: who comes from here on is found to be new, and told, which whoever is sampled already does not mind.
        self.threads.begin(procfs::threads(host.pid));
        let Attached { memory, signal, deaf } = inject::attach(host.pid, &host.library, prepare)?;
        (self.signal, self.deaf, self.signal_name) = (Some(signal), deaf, inject::name_of(signal));
        Ok(memory)
    }

    /// Threads that it has at the moment.
    pub(super) fn thread_count(&self) -> usize {
        procfs::thread_count(self.host.pid)
    }

    /// Whether the process has shut itself in: nothing is done in it from then on.
    pub(super) fn is_shut(&self) -> bool {
        self.is_shut
    }

    /// Tells threads that have come to have themselves sampled; gives those that have ended.
    pub(super) fn follow_threads(&mut self) -> Vec<u32> {
        let Some(signal) = self.signal else { return Vec::new() };
        let looked = self.threads.look(self.host.pid, clock::monotonic_ns(), clock::monotonic_ns);
        let Some(changes) = looked else { return Vec::new() };
        let mut to_look_at = self.threads.some(LOOKED_AT);
        to_look_at.extend(changes.come.iter().chain([&self.host.pid]));
        to_look_at.sort_unstable();
        to_look_at.dedup();
        if inject::is_shut_in(self.host.pid, &to_look_at) {
            (self.is_shut, self.signal) = (true, None);
            return changes.gone;
        }
        let waiting = std::mem::take(&mut self.waiting);
        let come = changes.come.into_iter().map(|tid| (tid, 0));
        for (tid, looks) in waiting.into_iter().chain(come) {
            match inject::blocks(self.host.pid, tid, signal) {
                true if looks < LOOKS_AT_DEAF => self.waiting.push((tid, looks + 1)),
                true => self.deaf += 1,
                false => self.tell(tid, signal),
            }
        }
        changes.gone
    }

    fn tell(&mut self, tid: u32, signal: i32) {
        match inject::tell(self.host.pid, tid, signal, enter(self.identity)) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {} // it has ended
            Err(_) => self.untold += 1,
        }
    }

    /// Has it leave.
    pub(super) fn leave(&mut self) {
        if self.signal.take().is_some() && !procfs::has_ended(self.host.pid) {
            self.left = inject::leave(self.host.pid, &self.host.library, self.identity).err();
        }
    }

    /// What a person should know.
    pub(super) fn shortfalls(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let pid = self.host.pid;
        if self.deaf > 0 {
            lines.push(format!(
                "{} threads of process {pid} block {}: they are sampled late, or not at all",
                self.deaf, self.signal_name
            ));
        }
        if self.untold > 0 {
            lines.push(format!(
                "{} threads that came later were not sampled: they may not be signalled",
                self.untold
            ));
        }
        if self.is_shut {
            lines.push(format!(
                "process {pid} has shut itself in (seccomp) and was not sampled from then on; a signal handler and a mapping stay in it"
            ));
        }
        if let Some(Refused::NotPermitted(why) | Refused::Failed(why)) =
            self.left.as_ref().filter(|_| !procfs::has_ended(pid))
        {
            lines.push(format!(
                "process {pid} {why}: a signal handler and a mapping stay in it, which do nothing, until the next attach"
            ));
        }
        lines
    }
}
