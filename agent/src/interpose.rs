//! Interposed functions of the C library: they follow new threads, protect the agent's signal, and notice
//! system call filters. Every call is passed on; calls that concern the signal are answered as if the agent
//! were not there.
//!
//! A new thread is entered by a jump, so that `pthread_exit`, cancellation and unwinding meet no frame of ours.
//! Its end is the destructor of a key.

use core::ffi::{c_int, c_ulong, c_void};
use core::mem;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::next::Next;
use crate::wanted::WANTED;
use crate::{filter, guard, handler, memory, stack, sys, sysv, threads};

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
type Start = unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void;
type Create = unsafe extern "C" fn(
    *mut libc::pthread_t,
    *const libc::pthread_attr_t,
    *const c_void,
    *mut c_void,
) -> c_int;
type CreateC11 = unsafe extern "C" fn(*mut libc::pthread_t, *const c_void, *mut c_void) -> c_int;
type SigAction = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
type SigMask = unsafe extern "C" fn(c_int, *const libc::sigset_t, *mut libc::sigset_t) -> c_int;
type Signal = unsafe extern "C" fn(c_int, libc::sighandler_t) -> libc::sighandler_t;
type Prctl = unsafe extern "C" fn(c_int, ...) -> c_int;

// SAFETY: its type is that of its manual page.
static CREATE: Next<Create> = unsafe { Next::new(c"pthread_create") };
// SAFETY: its type is that of C11's 7.26.5.1, where a thread is what it is in POSIX.
static CREATE_C11: Next<CreateC11> = unsafe { Next::new(c"thrd_create") };
// SAFETY: its type is that of its manual page.
static SIGACTION: Next<SigAction> = unsafe { Next::new(c"sigaction") };
// SAFETY: its type is that of its manual page.
static SIGNAL: Next<Signal> = unsafe { Next::new(c"signal") };
// SAFETY: its type is that of its manual page.
static SIGPROCMASK: Next<SigMask> = unsafe { Next::new(c"sigprocmask") };
// SAFETY: its type is that of its manual page.
static THREAD_SIGMASK: Next<SigMask> = unsafe { Next::new(c"pthread_sigmask") };
// SAFETY: its type is that of its manual page.
static PRCTL: Next<Prctl> = unsafe { Next::new(c"prctl") };

/// Finds the C library's functions: the program may call ours in a handler, where nothing can be looked for.
pub(crate) fn find() {
    let _ = (CREATE.get(), CREATE_C11.get(), SIGACTION.get(), SIGNAL.get());
    filter::find();
    sysv::find();
    let _ = (SIGPROCMASK.get(), THREAD_SIGMASK.get(), PRCTL.get());
}

/// Whether nothing is done about a signal.
pub(crate) fn is_unused(signal: c_int) -> bool {
    // SAFETY: all-zero is a valid action.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: the pointer is valid for the call.
    let known = unsafe { SIGACTION.get()(signal, core::ptr::null(), &raw mut action) } == 0;
    known && action.sa_sigaction == libc::SIG_DFL
}

/// Whether this handler is in force.
pub(crate) fn is_handled_by(signal: c_int, handler: Handler) -> bool {
    // SAFETY: all-zero is a valid action.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: the pointer is valid for the call.
    let known = unsafe { SIGACTION.get()(signal, core::ptr::null(), &raw mut action) } == 0;
    known && action.sa_sigaction == handler as usize
}

/// Gives a signal back to the program, as it wants it. What is on its way is dropped: an ignored signal waits for nobody.
pub(crate) fn give_back(signal: c_int) {
    let wanted = WANTED.get();
    // SAFETY: all-zero is a valid action; the pointers are valid for the calls.
    unsafe {
        let ignored = libc::sigaction { sa_sigaction: libc::SIG_IGN, ..mem::zeroed() };
        SIGACTION.get()(signal, &raw const ignored, core::ptr::null_mut());
        SIGACTION.get()(signal, &raw const wanted, core::ptr::null_mut());
    }
}

/// Forgets what the program wanted to be done about our signal: it is another one now, which nobody handles.
pub(crate) fn want_nothing() {
    // SAFETY: an action of zeros is the default one.
    WANTED.set(&unsafe { mem::zeroed() });
}

/// Has a signal handled: on the stack for signals where the thread has one, with every signal blocked, and so that system calls
/// that were interrupted go on.
pub(crate) fn handle(signal: c_int, handler: Handler) -> bool {
    // SAFETY: all-zero is a valid action, and the set is its.
    let action = unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
        // The signals of the C library too, which `sigfillset` leaves out: one of them cancels threads.
        (&raw mut action.sa_mask).cast::<u64>().write(u64::MAX);
        action
    };
    // SAFETY: the pointer is valid for the call.
    unsafe { SIGACTION.get()(signal, &raw const action, core::ptr::null_mut()) == 0 }
}

/// A signal with our number that none of our timers has sent.
///
/// # Safety
///
/// The arguments are those of a handler.
pub(crate) unsafe fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let wanted = WANTED.get();
    match wanted.sa_sigaction {
        libc::SIG_IGN => {}
        libc::SIG_DFL if handler::is_ignored_by_default(signal) => {}
        libc::SIG_DFL => end_by(signal),
        // SAFETY: the program has said that this is a handler, and of which kind.
        address => unsafe {
            if wanted.sa_flags & libc::SA_SIGINFO != 0 {
                mem::transmute::<usize, Handler>(address)(signal, info, context);
            } else {
                mem::transmute::<usize, extern "C" fn(c_int)>(address)(signal);
            }
        },
    }
}

/// What the kernel does with a real-time signal that nobody handles, as soon as the handler returns.
#[cold]
fn end_by(signal: c_int) {
    // SAFETY: an action of zeros is the default one; `raise` is safe in a handler.
    unsafe {
        let action: libc::sigaction = mem::zeroed();
        SIGACTION.get()(signal, &raw const action, core::ptr::null_mut());
        libc::raise(signal);
    }
}

/// Whether it is ours to keep: a child of `vfork`, which runs in our memory, has actions of its own.
pub(crate) fn is_ours(signal: c_int) -> bool {
    signal != 0 && signal == handler::signal() && (guard::is_shut() || memory::is_own(sys::getpid()))
}

/// What the new thread is given in place of the argument.
struct Beginning {
    start: Start,
    argument: *mut c_void,
    stack_size: usize,
}

/// Where a new thread really begins.
#[repr(C)]
struct Really {
    start: Start,
    argument: *mut c_void,
}

/// See pthread_create(3).
///
/// # Safety
///
/// As there.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: as we were called.
    let create = |start: Start, argument| unsafe {
        CREATE.get()(thread, attributes, start as *const c_void, argument)
    };
    // SAFETY: the attributes are as we were given them.
    begin_with(start, argument, || unsafe { stack::size_for(attributes) }, create)
}

/// See thrd_create(3).
///
/// # Safety
///
/// As there. What it returns is a number, which is what our beginning leaves as it is, too.
#[unsafe(no_mangle)]
unsafe extern "C" fn thrd_create(thread: *mut libc::pthread_t, start: Start, argument: *mut c_void) -> c_int {
    // SAFETY: as we were called.
    let create =
        |start: Start, argument| unsafe { CREATE_C11.get()(thread, start as *const c_void, argument) };
    // SAFETY: no attributes are the usual ones.
    begin_with(start, argument, || unsafe { stack::size_for(core::ptr::null()) }, create)
}

/// Has a thread created that is sampled and then is what it was to be, or one as it was to be if it is not followed.
fn begin_with(
    start: Start,
    argument: *mut c_void,
    stack_size: impl FnOnce() -> usize,
    create: impl FnOnce(Start, *mut c_void) -> c_int,
) -> c_int {
    let begin = if memory::ENABLED.load(Relaxed) {
        // SAFETY: so many bytes, or null.
        unsafe { libc::malloc(size_of::<Beginning>()) }.cast::<Beginning>()
    } else {
        core::ptr::null_mut()
    };
    if begin.is_null() {
        return create(start, argument);
    }
    // SAFETY: memory for one that is ours until the thread takes it.
    unsafe { begin.write(Beginning { start, argument, stack_size: stack_size() }) };
    let answer = create(begin_thread, begin.cast());
    if answer != 0 {
        // SAFETY: no thread has taken it.
        unsafe { libc::free(begin.cast()) };
    }
    answer
}

/// Has the thread sampled, and then is its start: by a jump, so that neither its stack nor what unwinds it (`pthread_exit`,
/// cancellation, exceptions) meets a frame of ours.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C-unwind" fn begin_thread(_: *mut c_void) -> *mut c_void {
    core::arch::naked_asm!(
        ".cfi_startproc", "sub rsp, 8", ".cfi_adjust_cfa_offset 8", "call {enter}", "add rsp, 8",
        ".cfi_adjust_cfa_offset -8", "mov rdi, rdx", "jmp rax", ".cfi_endproc", enter = sym enter_thread,
    )
}

/// The same.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C-unwind" fn begin_thread(_: *mut c_void) -> *mut c_void {
    core::arch::naked_asm!(
        "stp x29, x30, [sp, #-16]!", "bl {enter}", "ldp x29, x30, [sp], #16", "mov x9, x0", "mov x0, x1", "br x9",
        enter = sym enter_thread,
    )
}

extern "C" fn enter_thread(begin: *mut Beginning) -> Really {
    // SAFETY: `pthread_create` made it for this thread alone.
    let Beginning { start, argument, stack_size } = unsafe { begin.read() };
    // SAFETY: it came from `malloc`, and was read.
    unsafe { libc::free(begin.cast()) };
    threads::enter_new(stack_size);
    Really { start, argument }
}

/// See sigaction(2). What is done about our signal stays.
///
/// # Safety
///
/// As there.
#[unsafe(no_mangle)]
unsafe extern "C" fn sigaction(
    signal: c_int,
    action: *const libc::sigaction,
    before: *mut libc::sigaction,
) -> c_int {
    if !is_ours(signal) {
        // SAFETY: as we were called.
        return unsafe { act_with_ours_open(signal, action, before) };
    }
    let was = WANTED.get();
    // SAFETY: both pointers are null or valid, as the caller answers for.
    unsafe {
        if let Some(action) = action.as_ref() {
            WANTED.set(action);
        }
        if !before.is_null() {
            before.write(was);
        }
    }
    0
}

/// A bit for each signal whose handler is to run with ours blocked, as the program wants it.
static BLOCKED_IN: AtomicU64 = AtomicU64::new(0);

/// Sets the action of another signal, with ours never blocked in its handler: what the handler does would count where it returns
/// to. A program that asks for the action gets the one that it has set.
///
/// # Safety
///
/// As for sigaction(2).
unsafe fn act_with_ours_open(
    signal: c_int,
    action: *const libc::sigaction,
    before: *mut libc::sigaction,
) -> c_int {
    // What is no signal has none: the C library refuses it.
    let bit = |signal: c_int| {
        let at = signal.checked_sub(1).and_then(|at| u32::try_from(at).ok());
        at.and_then(|at| 1_u64.checked_shl(at)).unwrap_or(0)
    };
    let (ours, this) = (bit(handler::signal()), bit(signal));
    // SAFETY: both pointers are null or valid, as the caller answers for; a set is at least eight bytes of bits.
    unsafe {
        let mask_of = |action: *mut libc::sigaction| (&raw mut (*action).sa_mask).cast::<u64>();
        let mut open = action.as_ref().copied();
        let blocks = open.as_mut().is_some_and(|open| {
            let mask = mask_of(open);
            let wanted = mask.read_unaligned();
            mask.write_unaligned(wanted & !ours);
            wanted & ours != 0
        });
        let set = open.as_ref().map_or(core::ptr::null(), |open| &raw const *open);
        let answer = SIGACTION.get()(signal, set, before);
        if answer == 0 && !before.is_null() && BLOCKED_IN.load(Relaxed) & this != 0 {
            let mask = mask_of(before);
            mask.write_unaligned(mask.read_unaligned() | ours);
        }
        if answer == 0 && open.is_some() {
            if blocks {
                BLOCKED_IN.fetch_or(this, Relaxed)
            } else {
                BLOCKED_IN.fetch_and(!this, Relaxed)
            };
        }
        answer
    }
}

/// See signal(2). What is done about our signal stays.
///
/// # Safety
///
/// As there.
#[unsafe(no_mangle)]
unsafe extern "C" fn signal(signal: c_int, wanted: libc::sighandler_t) -> libc::sighandler_t {
    if !is_ours(signal) {
        // SAFETY: as we were called.
        return unsafe { SIGNAL.get()(signal, wanted) };
    }
    let was = WANTED.get();
    WANTED.set(&libc::sigaction { sa_sigaction: wanted, sa_flags: libc::SA_RESTART, ..was });
    was.sa_sigaction
}

/// Whether a signal mask of the program's would keep our signal away; and the mask without it.
///
/// # Safety
///
/// The set is null or valid.
unsafe fn without_ours(how: c_int, set: *const libc::sigset_t) -> Option<libc::sigset_t> {
    if handler::signal() == 0 || set.is_null() || how == libc::SIG_UNBLOCK {
        return None;
    }
    // SAFETY: the caller answers for it.
    let mut set = unsafe { set.read() };
    // SAFETY: the pointer is valid for the call.
    unsafe { libc::sigdelset(&raw mut set, handler::signal()) };
    Some(set)
}

/// See sigprocmask(2). Our signal is never blocked, as those of the C library are not: threads that block every signal would
/// never be seen.
///
/// # Safety
///
/// As there.
#[unsafe(no_mangle)]
unsafe extern "C" fn sigprocmask(
    how: c_int,
    set: *const libc::sigset_t,
    before: *mut libc::sigset_t,
) -> c_int {
    // SAFETY: as we were called.
    unsafe {
        let ours = without_ours(how, set);
        let set = ours.as_ref().map_or(set, |set| &raw const *set);
        SIGPROCMASK.get()(how, set, before)
    }
}

/// See pthread_sigmask(3), and [`sigprocmask`].
///
/// # Safety
///
/// As there.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_sigmask(
    how: c_int,
    set: *const libc::sigset_t,
    before: *mut libc::sigset_t,
) -> c_int {
    // SAFETY: as we were called.
    unsafe {
        let ours = without_ours(how, set);
        let set = ours.as_ref().map_or(set, |set| &raw const *set);
        THREAD_SIGMASK.get()(how, set, before)
    }
}

/// See prctl(2).
///
/// # Safety
///
/// As there.
#[unsafe(no_mangle)]
unsafe extern "C" fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
    // SAFETY: so the program has said.
    unsafe { filter::before_prctl(option, a, b as *const libc::sock_fprog) };
    // SAFETY: as we were called; what was not given is not looked at.
    unsafe { PRCTL.get()(option, a, b, c, d) }
}
