//! An agent in a running process: it is notified of new threads, and removed at the end.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use agent_memory::enter;
use profiler_core::profile::Outcome;
use profiler_core::record::{StackCopy, UserRegs};
use profiler_core::unwind::StackUnwinder;
use profiler_core::unwind::method::{Method, MethodChoice};
use rustc_hash::FxHashSet;

use super::new_thread;
use crate::inject::{self, AttachedAgent, InjectionRefused, Meanwhile, StackFollower, ThreadList};
use crate::objects::Symbols;
use crate::sampler::session::Session;
use crate::sys::agent_memory::AgentMemory;
use crate::sys::procfs::ProgramPlacement;
use crate::sys::{clock, procfs};

/// Threads that are checked each time, besides the first one and new ones: whether they have entered a sandbox.
const LOOKED_AT: usize = 4;
/// A thread that blocks the signal may still be starting: it is seen this many times before it counts as deaf.
const LOOKS_AT_DEAF: u32 = 3;
/// Threads that could not be signalled at their start, and are checked again each time.
const LOOKED_AT_AGAIN: usize = 16;

/// A process, and the agent's file.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) pid: u32,
    pub(crate) library: PathBuf,
}

/// Follows the stacks of one process by its unwind tables.
struct OneProcess {
    pid: u32,
    session: Session,
    unwinder: StackUnwinder,
}

/// Reads the unwind tables of a process.
fn stacks_of(pid: u32) -> Result<Box<dyn StackFollower>, String> {
    let symbols = Symbols::new(config::SamplingSettings::default().symbol_memory.get());
    let mut session = Session::new(MethodChoice::fixed(Method::Dwarf), &symbols);
    session.adopt(pid).map_err(|error| format!("cannot be looked at ({error}); start it again"))?;
    session.code.objects.read_tables();
    Ok(Box::new(OneProcess { pid, session, unwinder: StackUnwinder::default() }))
}

impl StackFollower for OneProcess {
    fn follow(&mut self, regs: UserRegs, stack: StackCopy<'_>, frames: &mut Vec<u64>) -> Option<Outcome> {
        let process = self.session.processes.get(self.pid)?;
        Some(self.unwinder.unwind(process, regs, stack, frames).outcome)
    }
}

/// The agent in a process.
pub(super) struct InjectedAgent {
    host: Host,
    /// Identity of our memory: a later profiler has another.
    identity: u64,
    /// None before it is loaded, and after it has left.
    signal: Option<i32>,
    /// The signal's name.
    signal_name: &'static str,
    threads: ThreadList,
    /// Threads that existed when the agent was loaded.
    first: BTreeSet<u32>,
    /// Where the program is, as long as it is the one that the agent was loaded into.
    image: Option<ProgramPlacement>,
    /// Live threads that were missing from a list: a list omits some while others end.
    overlooked: Vec<u32>,
    /// New threads that could not be signalled yet.
    waiting: VecDeque<WaitingThread>,
    /// Threads that block the signal.
    deaf: usize,
    /// Threads that could not be signalled to have themselves sampled.
    unsignalled: u64,
    /// CPU time that threads had used before they were signalled (ms).
    late_ms: u64,
    /// Whether the process has shut itself in.
    is_shut: bool,
    /// Whether the process runs another program.
    has_changed: bool,
    /// Why the agent, or a part of it, is still in the process.
    left: Option<InjectionRefused>,
}

/// A thread that is to be signalled.
struct WaitingThread {
    tid: u32,
    /// How often it was met blocking the signal.
    deaf_looks: u32,
}

impl InjectedAgent {
    pub(super) fn new(host: Host, identity: u64) -> Self {
        Self {
            host,
            identity,
            signal: None,
            signal_name: "our signal",
            threads: ThreadList::default(),
            first: BTreeSet::new(),
            image: None,
            overlooked: Vec::new(),
            waiting: VecDeque::new(),
            deaf: 0,
            unsignalled: 0,
            late_ms: 0,
            is_shut: false,
            has_changed: false,
            left: None,
        }
    }

    /// Loads the agent, and has it sample every thread that there is.
    pub(super) fn attach(
        &mut self,
        prepare: impl FnOnce(&Arc<AgentMemory>) -> io::Result<Meanwhile> + Send,
    ) -> Result<Arc<AgentMemory>, InjectionRefused> {
        let Self { host, .. } = self;
        // Before loading: threads that start from here on count as new and are signalled, which is harmless if they are
        // sampled already.
        self.first = procfs::threads(host.pid).into_iter().collect();
        self.threads.begin(self.first.iter().copied());
        let before = procfs::image(host.pid);
        let AttachedAgent { memory, signal, deaf } =
            inject::attach(host.pid, &host.library, stacks_of, prepare)?;
        self.image = procfs::image(host.pid);
        if self.image != before {
            // It is not known which of the two programs has the agent.
            let _ = inject::leave(host.pid, &host.library, self.identity);
            let why = "has become another program or has ended meanwhile; try again";
            return Err(InjectionRefused::Failed(why.to_owned()));
        }
        (self.signal, self.deaf, self.signal_name) = (Some(signal), deaf, inject::name_of(signal));
        Ok(memory)
    }

    /// Threads that it has at the moment.
    pub(super) fn thread_count(&self) -> usize {
        procfs::thread_count(self.host.pid)
    }

    /// Notes the threads that the agent found itself. All others have to be signalled, also those that it should have
    /// found: its list, like ours, omits some while others end.
    pub(super) fn found(&mut self, sampled: impl Iterator<Item = u32>) {
        self.threads.begin(sampled);
    }

    /// Whether the process has entered a sandbox: it is left alone from then on.
    pub(super) fn is_shut(&self) -> bool {
        self.is_shut
    }

    /// Signals new threads to start their sampling, unless they are in `sampled`; returns the threads that have ended.
    pub(super) fn follow_threads(&mut self, sampled: impl FnOnce() -> FxHashSet<u32>) -> Vec<u32> {
        let Some(signal) = self.signal else { return Vec::new() };
        let pid = self.host.pid;
        let looked = self.threads.look(pid, clock::monotonic_ns(), clock::monotonic_ns);
        let Some(mut changes) = looked else { return Vec::new() };
        let gone = self.gone(changes.gone, &changes.come, |tid| procfs::has_thread(pid, tid));
        if self.has_become_another() {
            return gone;
        }
        let mut to_look_at = self.threads.some(LOOKED_AT);
        to_look_at.extend(changes.come.iter().chain([&pid]));
        to_look_at.sort_unstable();
        to_look_at.dedup();
        if inject::is_shut_in(pid, &to_look_at) {
            (self.is_shut, self.signal) = (true, None);
            return gone;
        }
        if !changes.come.is_empty() {
            let sampled = sampled();
            let waits = |tid| self.waiting.iter().any(|waiting| waiting.tid == tid);
            changes.come.retain(|&tid| !sampled.contains(&tid) && !waits(tid));
        }
        self.waiting.retain(|waiting| !gone.contains(&waiting.tid));
        let again = self.waiting.len().min(LOOKED_AT_AGAIN);
        let come = changes.come.into_iter().map(|tid| WaitingThread { tid, deaf_looks: 0 });
        let looked_at: Vec<WaitingThread> = self.waiting.drain(..again).chain(come).collect();
        for WaitingThread { tid, deaf_looks } in looked_at {
            match inject::blocks(pid, tid, signal) {
                true if deaf_looks < LOOKS_AT_DEAF => {
                    self.waiting.push_back(WaitingThread { tid, deaf_looks: deaf_looks + 1 });
                }
                true => self.deaf += 1,
                false if new_thread::may_be_signalled(pid, tid) => self.signal(tid, signal),
                false => self.waiting.push_back(WaitingThread { tid, deaf_looks }),
            }
        }
        gone
    }

    /// Which of the unlisted threads have ended.
    fn gone(&mut self, unlisted: Vec<u32>, come: &[u32], lives: impl Fn(u32) -> bool) -> Vec<u32> {
        let doubtful = std::mem::take(&mut self.overlooked).into_iter().filter(|tid| !come.contains(tid));
        let doubtful = doubtful.chain(unlisted);
        let (overlooked, gone) = doubtful.partition(|&tid| lives(tid));
        self.overlooked = overlooked;
        gone
    }

    /// Whether the process now runs another program: the agent is gone with the former one, and a signal of ours would
    /// be unexpected.
    fn has_become_another(&mut self) -> bool {
        let has_changed = self.image.zip(procfs::image(self.host.pid)).is_some_and(|(was, now)| was != now);
        if has_changed {
            (self.has_changed, self.signal) = (true, None);
        }
        has_changed
    }

    fn signal(&mut self, tid: u32, signal: i32) {
        let used_ms = self.used_ms(tid);
        match inject::signal(self.host.pid, tid, signal, enter(self.identity)) {
            Ok(()) => self.late_ms += used_ms,
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {} // it has ended
            Err(_) => self.unsignalled += 1,
        }
    }

    /// CPU time of a new thread so far (ms); 0 for threads that existed before.
    fn used_ms(&self, tid: u32) -> u64 {
        if self.first.contains(&tid) { 0 } else { procfs::thread_cpu_ms(self.host.pid, tid) }
    }

    /// Removes the agent.
    pub(super) fn leave(&mut self) {
        self.late_ms += self.waiting.iter().map(|waiting| self.used_ms(waiting.tid)).sum::<u64>();
        if self.signal.is_none() || self.has_become_another() {
            return;
        }
        self.signal = None;
        if !procfs::has_ended(self.host.pid) {
            self.left = inject::leave(self.host.pid, &self.host.library, self.identity).err();
        }
    }

    /// CPU time that threads had used before they could be signalled to have themselves sampled (ms).
    pub(super) fn late_ms(&self) -> u64 {
        self.late_ms
    }

    /// What the user should know, in lines.
    pub(super) fn shortfalls(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let pid = self.host.pid;
        if self.deaf > 0 {
            lines.push(format!(
                "{} threads of process {pid} block {}: they are sampled late, or not at all",
                self.deaf, self.signal_name
            ));
        }
        if self.unsignalled > 0 {
            lines.push(format!(
                "{} threads that started later were not sampled: they cannot be signalled",
                self.unsignalled
            ));
        }
        if self.has_changed {
            lines.push(format!(
                "process {pid} became another program, which was not sampled; attach to it again"
            ));
        }
        if self.is_shut {
            lines.push(format!(
                "process {pid} has installed a seccomp filter and was not sampled from then on; a signal handler and a mapping stay in it"
            ));
        }
        if let Some(InjectionRefused::NotPermitted(why) | InjectionRefused::Failed(why)) =
            self.left.as_ref().filter(|_| !procfs::has_ended(pid))
        {
            lines.push(format!(
                "process {pid} {why}: a signal handler and a mapping stay in it, which do nothing, until the next attach"
            ));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent() -> InjectedAgent {
        InjectedAgent::new(Host { pid: std::process::id(), library: PathBuf::new() }, 1)
    }

    #[test]
    fn threads_that_a_list_leaves_out_have_not_ended() {
        let mut agent = agent();
        let alive = |those: &'static [u32]| move |tid: u32| those.contains(&tid);
        assert_eq!(agent.gone(vec![2, 3], &[], alive(&[1, 2])), [3], "2 was overlooked");
        assert!(agent.gone(vec![], &[2], alive(&[1, 2])).is_empty(), "and is listed again");
        assert!(agent.gone(vec![], &[], alive(&[])).is_empty(), "so it is not asked about");
        assert!(agent.gone(vec![1, 2], &[], alive(&[1, 2])).is_empty(), "no list could be read");
        assert_eq!(agent.gone(vec![], &[1], alive(&[1])), [2], "and 2 has ended meanwhile");
    }

    #[test]
    fn another_image_is_another_program() {
        let mut agent = agent();
        (agent.image, agent.signal) = (procfs::image(agent.host.pid), Some(libc::SIGURG));
        assert!(!agent.has_become_another() && agent.signal.is_some());
        agent.image = Some(ProgramPlacement::default());
        assert!(agent.has_become_another() && agent.signal.is_none());
        assert!(agent.shortfalls()[0].contains("became another program"));
    }
}
