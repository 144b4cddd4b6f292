//! Starting and stopping the agent in a running process.
//!
//! The profiler calls the one function in a thread that it has stopped, with every signal blocked, on that
//! thread's stack. The thread may be anywhere, in the midst of `malloc` too: so nothing is called here that
//! may take a lock. What does is called once, by the dynamic linker ([`prepare`]).
//!
//! To stop, the agent hides the memory, waits until no handler that could have found it before is running,
//! and only then unmaps it.
//!
//! Each call names the memory that it is about. A profiler that was suspended while another one took its place
//! therefore changes nothing for the new one. If two calls arrive at once, the second is refused and repeated.
//!
//! Waiting uses `pselect6`: the interrupted thread may be about to continue a sleep, and `nanosleep` would
//! overwrite what the kernel has noted about it.

use core::ffi::c_int;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU32};

use agent_memory::{AgentCommand, AgentReply, Request, UsableSignals};

use crate::{fork, guard, handler, memory, stack, sys, threads};

/// How often it is looked whether everybody has left the handler, a tenth of a millisecond apart.
const LOOKS: u32 = 1000;

/// Whether we were injected: loaded, and nothing stands before the C library.
static INJECTED: AtomicBool = AtomicBool::new(false);
/// Places outside of the handler of our timers that use the memory at the moment.
static USING: AtomicU32 = AtomicU32::new(0);
/// The process that makes a call at the moment, in our memory; 0 if none does. Another's was made in a parent, whose child this is.
static CALLER: AtomicU32 = AtomicU32::new(0);

/// Whether the process is sampled without having been begun for it.
#[inline]
pub(crate) fn is_injected() -> bool {
    INJECTED.load(Acquire)
}

/// Does what can only be done where locks may be taken: called by the dynamic linker, whoever loads us.
pub(crate) fn prepare() {
    fork::follow();
    stack::find_usual_size();
}

/// What the profiler calls: see [`AgentCommand`] and [`AgentReply`].
///
/// # Safety
///
/// The request is valid, and nobody else's.
#[unsafe(no_mangle)]
unsafe extern "C" fn sweetspot_agent_control(request: *mut Request) {
    // SAFETY: the caller answers for it.
    let request = unsafe { &mut *request };
    let (pid, caller) = (sys::getpid(), CALLER.load(Relaxed));
    // That of a profiler that was killed goes on, and the next one may be here before it is over.
    let is_alone = caller != pid && CALLER.compare_exchange(caller, pid, Acquire, Relaxed).is_ok();
    let signals = UsableSignals::of(request);
    let answer = match AgentCommand::of(request) {
        _ if !is_alone => AgentReply::Occupied,
        Some(AgentCommand::Attach) => attach(request[1] as c_int, signals),
        Some(AgentCommand::Leave) => leave_if(request[1], signals),
        None => AgentReply::Unknown,
    };
    if is_alone {
        CALLER.store(0, Release);
    }
    request[1] = handler::signal() as u64;
    request[3] = answer as u64;
}

/// While there is one, memory that is found is not unmapped.
pub(crate) struct Using(());

impl Using {
    /// To be made before the memory is looked for.
    pub(crate) fn begin() -> Self {
        // ATOMICS: whoever takes the memory away sees that somebody is here, or nobody finds it here.
        USING.fetch_add(1, SeqCst);
        Self(())
    }
}

impl Drop for Using {
    fn drop(&mut self) {
        USING.fetch_sub(1, Release);
    }
}

fn attach(fd: c_int, signals: UsableSignals) -> AgentReply {
    let pid = sys::getpid();
    if memory::is_mapped() {
        if !memory::is_own(pid) {
            leave_child(); // of a process that was sampled, past the C library
        } else if memory::get().is_some_and(|memory| !memory.is_over(sys::monotonic_ns())) {
            return AgentReply::Busy;
        } else if leave(signals) != AgentReply::Done {
            return AgentReply::Unfinished;
        }
    }
    let Some(memory) = memory::adopt(fd) else { return AgentReply::NoMemory };
    if guard::is_shut() || !handler::install_injected(signals) {
        // SAFETY: nobody else has had the time to find it: no timer runs.
        unsafe {
            memory::hide();
            memory::release();
        }
        return AgentReply::NoSignal;
    }
    stack::find_first_from_elsewhere();
    memory::own(pid);
    INJECTED.store(true, Release);
    threads::enter_all(&memory);
    AgentReply::Done
}

/// Leaves unless the memory is another profiler's by now: whoever asks was stopped for so long that it was taken for gone.
fn leave_if(identity: u64, signals: UsableSignals) -> AgentReply {
    match memory::get() {
        Some(memory) if memory.identity() != identity => AgentReply::Busy,
        _ => leave(signals),
    }
}

fn leave(signals: UsableSignals) -> AgentReply {
    memory::ENABLED.store(false, Relaxed);
    memory::hide();
    threads::stop_all(); // so that nobody comes into the handler again and again, whoever is waited for
    let is_empty = (0..LOOKS).any(|look| {
        if look > 0 {
            sys::pause_briefly();
        }
        // ATOMICS: in one order with whether there is memory to be found.
        !threads::are_inside() && USING.load(SeqCst) == 0
    });
    threads::stop_all(); // of whoever had found the memory just before
    handler::remove(signals);
    INJECTED.store(false, Release);
    if !is_empty {
        return AgentReply::Unfinished;
    }
    if let Some(memory) = memory::hidden() {
        memory.end_all(sys::getpid()); // what was written can still be read, on the other side
    }
    // SAFETY: it was hidden, and nobody was in a handler after that.
    unsafe { memory::release() };
    AgentReply::Done
}

/// In the child of a fork: what other threads were about to do, they do in the parent.
pub(crate) fn begin_child() {
    USING.store(0, Relaxed);
    CALLER.store(0, Relaxed);
}

/// In the child of a fork, whose only thread is no handler of ours: it has no timers, and is left as if we had never been there.
pub(crate) fn leave_child() {
    memory::ENABLED.store(false, Relaxed);
    threads::forget_all();
    USING.store(0, Relaxed);
    memory::hide();
    handler::remove(UsableSignals::default()); // what waits for the parent does not for its child
    INJECTED.store(false, Release);
    // SAFETY: the only thread is here.
    unsafe { memory::release() };
}

/// Has the calling thread sampled: somebody has told it to, by a signal that carries this.
pub(crate) fn enter(value: u64) {
    let _using = Using::begin();
    if let Some(memory) = memory::get()
        && value == agent_memory::enter(memory.identity())
        && !memory.is_shut()
        && !memory.is_over(sys::monotonic_ns())
    {
        threads::enter_latecomer(&memory);
    }
}
