//! The agent: samples the process that it is loaded into, where the kernel's perf events are not permitted.
//!
//! Each thread has a POSIX timer on its CPU clock. When it expires, a signal comes to the thread, and its
//! handler copies registers and a piece of the stack into the thread's ring in shared memory
//! ([`agent_memory`]). Everything else, from the rate to the names, is decided outside, by the profiler that
//! made the memory. It is preloaded (`LD_PRELOAD`), and finds the memory's place in the environment; or it is
//! loaded into a running process, and receives it in a call (`control`). Without memory it does nothing at
//! all.
//!
//! # Why `unsafe`
//!
//! The agent runs inside other programs: it is called by the C library and by the kernel, it reads the
//! interrupted thread's stack, and it makes its own system calls, so that `errno` is never touched and
//! nothing is called in the handler that may take a lock or allocate. What needs no `unsafe`, the memory and
//! the rings, is in `agent_memory`.
//!
//! # What the handler does not do
//!
//! It does not allocate, take locks, open files, use thread-local variables, touch `errno`, panic, or enter
//! the kernel, but to set its timer to another period, to copy a stack of unknown bounds (a coroutine's), to
//! ask which pages of one are there, and to stop for good. The clock it looks at is read in user space. A
//! process behind a `seccomp` filter sees no unexpected system call (`guard`).
//!
//! # Which signal
//!
//! One of the last real-time signals that has no handler, and not `SIGPROF`: programs have uses for that
//! (`setitimer`, gprof, PHP), and the kernel keeps only one ordinary signal of a number pending, so that the
//! program's and ours would replace each other. A real-time signal without a handler ends the process. So the
//! program's changes to this one signal are recorded and not made (`interpose`). In a process that the library
//! was injected into, nothing can be interposed: there the signal is one that is ignored without a handler.

#![allow(unsafe_code, reason = "see above")]
#![deny(unsafe_op_in_unsafe_fn)]

mod announce;
mod control;
mod environment;
mod exec;
mod filter;
mod fork;
mod guard;
mod handler;
mod interpose;
mod memory;
mod next;
mod stack;
mod sys;
mod sysv;
mod threads;
mod wanted;

use core::sync::atomic::Ordering::Relaxed;

/// Called by the dynamic linker before the program begins, and before its other libraries are initialised.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

/// Called when the program ends by itself.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

extern "C" fn end() {
    if memory::ENABLED.load(Relaxed) && !guard::is_shut() && memory::is_own(sys::getpid()) {
        threads::at_exit();
    }
}

extern "C" fn begin() {
    interpose::find();
    exec::find();
    environment::take();
    let Some(memory) = memory::attach() else { return control::prepare() };
    let pid = sys::getpid();
    memory.end_all(pid); // what ran in this process before is another program now
    if !handler::install() {
        return;
    }
    threads::make_key();
    fork::follow();
    stack::find_first();
    exec::find_linker();
    memory::ENABLED.store(true, Relaxed);
    threads::enter_first(announce::How::Executed);
}
