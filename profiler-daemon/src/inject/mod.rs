//! The agent, in a process that runs already: loaded by the process' own dynamic linker, in one of its
//! threads, and controlled from here.
//!
//! Nothing of ours is executed there before the library is: a thread that was stopped is given registers, as
//! a signal gives it a handler, and a frame to come back by ([`frame`]). So it comes back also if this
//! process is killed in the midst of it. The library and the memory are files without names that the process
//! is made to open, written from here: no path has to be visible there.
//!
//! A library is loaded where that is safe ([`safe`]), and a process that is known to be harmed by it is not
//! touched ([`status`]). Calls of a loaded agent take no lock, and run in any thread with room on its stack.
//!
//! Whatever ends a run removes the agent: signals that ask to stop are blocked from before it is loaded until
//! they are handled, and the sampler stops the agents when it is dropped.

#[cfg(target_arch = "x86_64")]
mod code;
#[cfg(target_arch = "x86_64")]
mod error;
#[cfg(target_arch = "x86_64")]
mod frame;
#[cfg(target_arch = "x86_64")]
mod hijacked_thread;
#[cfg(target_arch = "x86_64")]
mod library;
#[cfg(target_arch = "x86_64")]
mod process;
#[cfg(target_arch = "x86_64")]
mod safe;
#[cfg(target_arch = "x86_64")]
mod signals;
#[cfg(target_arch = "x86_64")]
mod status;
#[cfg(target_arch = "x86_64")]
mod thread_selection;
mod threads;

use std::path::Path;
use std::sync::Arc;

use profiler_core::profile::Outcome;
use profiler_core::record::{StackCopy, UserRegs};

use crate::sys::agent_memory::AgentMemory;
use crate::sys::signal;

pub(crate) use self::threads::ThreadList;

/// Why a process cannot be sampled from inside, said of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InjectionRefused {
    /// We may not trace it, or it must be left alone.
    NotPermitted(String),
    /// It did not work out.
    Failed(String),
}

/// An agent at work in a process.
pub(crate) struct AttachedAgent {
    /// What it writes to.
    pub(crate) memory: Arc<AgentMemory>,
    /// The signal of its timers.
    pub(crate) signal: i32,
    /// Threads that block that signal.
    pub(crate) deaf: usize,
}

/// What is to be done again and again while the agent begins, which takes seconds in a process that keeps all CPUs busy.
pub(crate) type Meanwhile = Box<dyn FnMut()>;

/// Follows the stacks of a process.
pub(crate) trait StackFollower {
    /// Appends the lookup addresses of all frames, innermost first, and says how the stack ends; `None` if the process is not
    /// known.
    fn follow(&mut self, regs: UserRegs, stack: StackCopy<'_>, frames: &mut Vec<u64>) -> Option<Outcome>;
}

/// Prepares to follow the stacks of the process with this id. The error completes a sentence that begins with the process.
pub(crate) type FollowStacks = fn(u32) -> Result<Box<dyn StackFollower>, String>;

/// Has a process sampled by the agent in `library`, which is loaded into it if it is not there yet; `prepare` is given the memory
/// before the agent is.
///
/// # Errors
///
/// Why not; the process is as it was, but for a library that does nothing.
pub(crate) fn attach(
    pid: u32,
    library: &Path,
    follow: FollowStacks,
    prepare: impl FnOnce(&Arc<AgentMemory>) -> std::io::Result<Meanwhile> + Send,
) -> Result<AttachedAgent, InjectionRefused> {
    apart(|| imp::attach(pid, library, follow, prepare))
}

/// Has an agent leave a process alone, unless it serves a memory with another identity by now.
///
/// # Errors
///
/// What of it is still there, and why.
pub(crate) fn leave(pid: u32, library: &Path, identity: u64) -> Result<(), InjectionRefused> {
    apart(|| imp::leave(pid, library, identity))
}

/// Whether any of these threads has shut itself in since the process was attached to: then nothing may be done in it any more.
pub(crate) fn is_shut_in(pid: u32, tids: &[u32]) -> bool {
    imp::is_shut_in(pid, tids)
}

/// Whether a thread blocks a signal: one of ours would come to it who knows when, or to whoever waits for that signal.
pub(crate) fn blocks(pid: u32, tid: u32, signal: i32) -> bool {
    imp::blocks(pid, tid, signal)
}

/// What a signal of ours is called.
pub(crate) fn name_of(signal: i32) -> &'static str {
    nix::sys::signal::Signal::try_from(signal).map_or("our signal", nix::sys::signal::Signal::as_str)
}

/// Sends a thread of a process a signal of ours.
///
/// # Errors
///
/// If it is gone, or may not be signalled.
pub(crate) fn signal(pid: u32, tid: u32, signal: i32, value: u64) -> std::io::Result<()> {
    signal::queue(pid, tid, signal, value)
}

/// On a thread of its own: what that still traces when it ends, the kernel lets go.
fn apart<T: Send>(work: impl FnOnce() -> Result<T, InjectionRefused> + Send) -> Result<T, InjectionRefused> {
    let failed =
        || InjectionRefused::Failed("could not be stopped: no thread could be started for it".to_owned());
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("inject".to_owned()).spawn_scoped(scope, work);
        thread.map_err(|_| failed())?.join().map_err(|_| failed())?
    })
}

#[cfg(target_arch = "x86_64")]
mod imp {
    pub(super) use super::process::{attach, leave};
    pub(super) use super::status::{blocks, is_shut_in};
}

#[cfg(not(target_arch = "x86_64"))]
mod imp {
    //! On other processors nobody has written what a thread is given.

    use super::{AgentMemory, Arc, AttachedAgent, FollowStacks, InjectionRefused, Meanwhile, Path};

    fn refused() -> InjectionRefused {
        let text =
            "cannot be sampled by timer signals on this processor unless it is started by `sweetspot record`";
        InjectionRefused::NotPermitted(text.to_owned())
    }

    pub(super) fn is_shut_in(_: u32, _: &[u32]) -> bool {
        false
    }

    pub(super) fn blocks(_: u32, _: u32, _: i32) -> bool {
        false
    }

    pub(super) fn attach(
        _: u32,
        _: &Path,
        _: FollowStacks,
        _: impl FnOnce(&Arc<AgentMemory>) -> std::io::Result<Meanwhile>,
    ) -> Result<AttachedAgent, InjectionRefused> {
        Err(refused())
    }

    pub(super) fn leave(_: u32, _: &Path, _: u64) -> Result<(), InjectionRefused> {
        Err(refused())
    }
}
