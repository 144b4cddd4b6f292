//! Where a thread's stack ends, so that no more of it is read than there is.
//!
//! Between the stack pointer and the end of its stack everything is mapped, and nowhere else is that certain. So the stack pointer
//! is compared with what is known of the thread. Where it lies elsewhere (a coroutine's stack), the kernel is asked for a copy, since
//! it knows what is mapped.
//!
//! The kernel says where the first thread's stack ends, the C library keeps a thread's description at the end
//! of its stack, and the interrupted context says which stack signals use. Of a thread that was there before
//! the agent, only the end of the stack is known: the kernel is asked page by page, by a change of the signal
//! mask that changes nothing ([`ProvenStack`]), because opening a file would take a descriptor that the program
//! counts on.

use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

use crate::{announce, sys};

/// The lowest address that counts as a stack, and where the stack ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StackBounds {
    pub(crate) low: usize,
    pub(crate) high: usize,
}

impl StackBounds {
    /// Bytes that can be read from `sp` on.
    #[inline]
    pub(crate) fn readable(&self, sp: usize) -> usize {
        if sp >= self.low && sp < self.high { self.high - sp } else { 0 }
    }
}

/// The kernel leaves at least twice as much room below the first thread's stack.
const MOST_OF_FIRST: usize = 64 << 20;
/// What lies at the very bottom of a thread's stack may be its neighbour's: the size that was asked for includes the thread's
/// own variables, and the guard in some versions of the C library.
const MARGIN: usize = 128 << 10;

static FIRST_LOW: AtomicUsize = AtomicUsize::new(0);
static FIRST_HIGH: AtomicUsize = AtomicUsize::new(0);
static USUAL_SIZE: AtomicUsize = AtomicUsize::new(0);

/// Finds the first thread's stack, and how big those of others are. To be called on the first thread.
pub(crate) fn find_first() {
    let here = 0_u8;
    set_first(announce::end_of_mapping(&raw const here as usize));
    find_usual_size();
}

/// Finds how big the stacks of threads are unless their creators say otherwise. Takes a lock of the C library.
pub(crate) fn find_usual_size() {
    // SAFETY: all-zero bytes are overwritten by `pthread_attr_init`.
    let mut usual: libc::pthread_attr_t = unsafe { core::mem::zeroed() };
    // SAFETY: attributes of our own, initialised and destroyed here.
    unsafe {
        if libc::pthread_attr_init(&raw mut usual) == 0 {
            USUAL_SIZE.store(size_of(&raw const usual), Relaxed);
            libc::pthread_attr_destroy(&raw mut usual);
        }
    }
}

/// Finds the first thread's stack from any thread.
pub(crate) fn find_first_from_elsewhere() {
    set_first(announce::end_of_first_stack().unwrap_or(0));
}

fn set_first(high: usize) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is valid for the call.
    unsafe { libc::getrlimit(libc::RLIMIT_STACK, &raw mut limit) };
    let size = usize::try_from(limit.rlim_cur).unwrap_or(MOST_OF_FIRST).min(MOST_OF_FIRST);
    FIRST_HIGH.store(high, Relaxed);
    FIRST_LOW.store(high.saturating_sub(size), Relaxed);
}

/// The first thread's stack.
pub(crate) fn first() -> StackBounds {
    StackBounds { low: FIRST_LOW.load(Relaxed), high: FIRST_HIGH.load(Relaxed) }
}

/// How big the stack of a thread will be that is created with these attributes (bytes).
///
/// # Safety
///
/// They are null, or initialised.
pub(crate) unsafe fn size_for(attributes: *const libc::pthread_attr_t) -> usize {
    let usual = USUAL_SIZE.load(Relaxed);
    if attributes.is_null() {
        return usual;
    }
    // SAFETY: the caller answers for them.
    match unsafe { size_of(attributes) } {
        0 => usual,
        size => size,
    }
}

/// # Safety
///
/// The attributes are initialised.
unsafe fn size_of(attributes: *const libc::pthread_attr_t) -> usize {
    let mut size = 0;
    // SAFETY: the caller answers for the attributes.
    let known = unsafe { libc::pthread_attr_getstacksize(attributes, &raw mut size) } == 0;
    if known { size } else { 0 }
}

/// The stack of the calling thread, which is not the first, by its size. The C library keeps a thread's description at the end of
/// its stack, also of one that the program has brought along.
pub(crate) fn of_thread(size: usize) -> StackBounds {
    // SAFETY: takes nothing.
    let high = unsafe { libc::pthread_self() } as usize;
    let margin = MARGIN.min(size / 4);
    StackBounds { low: high.saturating_sub(size.saturating_sub(margin)), high }
}

/// Where the stack of the calling thread can be, which runs since before we came and is not the first: it is in one piece with the
/// thread's description, which is there for as long as the thread. How far it reaches is known of a stack of the usual size; of a
/// smaller one, others may lie below: so what is read of it has to be proven ([`ProvenStack`]).
pub(crate) fn of_running_thread() -> StackBounds {
    // SAFETY: takes nothing.
    let high = unsafe { libc::pthread_self() } as usize;
    let size = match USUAL_SIZE.load(Relaxed) {
        0 => MOST_OF_FIRST,
        size => size - MARGIN.min(size / 4),
    };
    // Where the kernel tells nothing by the question, nothing can be proven.
    let can_prove = !sys::is_readable(NOWHERE);
    StackBounds { low: if can_prove { high.saturating_sub(size) } else { high }, high }
}

/// No process can read there.
const NOWHERE: usize = usize::MAX & !0xfff;
/// The least that is mapped, or is not.
const PAGE: usize = 4096;

/// What of a stack is known to be readable. The kernel was asked page by page, with no file: a descriptor of ours, however brief,
/// would take a number that another thread of the program counts on, and there may be none left.
pub(crate) struct ProvenStack {
    low: AtomicUsize,
    high: AtomicUsize,
}

impl ProvenStack {
    /// Nothing.
    pub(crate) const fn new() -> Self {
        Self { low: AtomicUsize::new(0), high: AtomicUsize::new(0) }
    }

    /// Of a thread that has begun to be followed, nothing is known.
    pub(crate) fn forget(&self) {
        self.low.store(0, Relaxed);
        self.high.store(0, Relaxed);
    }

    /// Bytes that can be read from `sp` on, where so many could be. To be called by the thread itself: the stack that it is on stays
    /// where it is.
    #[inline]
    pub(crate) fn readable(&self, sp: usize, bytes: usize) -> usize {
        let end = sp + bytes;
        if sp >= self.low.load(Relaxed) && end <= self.high.load(Relaxed) {
            return bytes;
        }
        self.prove(sp, end)
    }

    #[cold]
    fn prove(&self, sp: usize, end: usize) -> usize {
        let (mut low, mut high) = (self.low.load(Relaxed), self.high.load(Relaxed));
        let from = sp & !(PAGE - 1);
        // What is known and lies in the way is passed over.
        let mut at = from;
        while at < end {
            if (low..high).contains(&at) {
                at = high;
            } else if sys::is_readable(at) {
                at += PAGE;
            } else {
                break;
            }
        }
        let meets_known = from <= high && low <= at;
        (low, high) = if meets_known { (low.min(from), high.max(at)) } else { (from, at) };
        self.low.store(low, Relaxed);
        self.high.store(high, Relaxed);
        at.min(end).saturating_sub(sp)
    }
}
