//! The shared memory, once it is mapped: of the rings as many as the process has threads for, so that little is taken of what
//! it may map or lock.
//!
//! Four times more are mapped whenever they do not suffice, by `mremap` of shared memory with an old length of
//! zero, which needs no file. `mlockall` and limits on address space then meet 4 MiB and not the whole file.

use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};

use agent_memory::{MEMORY_WORDS, Memory, words_for};

use crate::{environment, sys};

/// Rings that are mapped at first, and then: the last are all.
const RINGS: [usize; 5] = [16, 64, 256, 1024, 4096];
const _: () = assert!(words_for(RINGS[RINGS.len() - 1]) == MEMORY_WORDS);

/// The first words of each mapping, or null. The earlier ones stay: handlers may be reading through them.
///
/// All of these are in one order with what a handler and a leaver say of themselves: whoever leaves either sees who is there, or is
/// not found by him any more.
static MAPPED: [AtomicPtr<AtomicU64>; RINGS.len()] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; RINGS.len()];
/// The one that is in use.
static CURRENT: AtomicUsize = AtomicUsize::new(0);
/// The mappings that nobody finds any more, until nobody can be using them.
static HIDDEN: [AtomicPtr<AtomicU64>; RINGS.len()] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; RINGS.len()];

/// Whether threads are sampled: not before everything is set up.
pub(crate) static ENABLED: AtomicBool = AtomicBool::new(false);

/// The process that was sampled last in this memory: a child of `vfork` is another, and changes nothing.
static OWN: AtomicU32 = AtomicU32::new(0);

/// This process is sampled.
pub(crate) fn own(pid: u32) {
    OWN.store(pid, Relaxed);
}

/// The process that is sampled.
#[inline]
pub(crate) fn own_pid() -> u32 {
    OWN.load(Relaxed)
}

/// Whether this is the process that is sampled.
pub(crate) fn is_own(pid: u32) -> bool {
    own_pid() == pid
}

/// The memory, if it is mapped.
#[inline]
pub(crate) fn get() -> Option<Memory<'static>> {
    let current = CURRENT.load(SeqCst);
    view(MAPPED.get(current)?, current)
}

#[inline]
fn view(place: &AtomicPtr<AtomicU64>, number: usize) -> Option<Memory<'static>> {
    let words = place.load(SeqCst);
    if words.is_null() {
        return None;
    }
    // SAFETY: so many words were mapped before it was stored, which nobody unmaps before all who might use them are gone
    // (`release`); they are atomics for whoever shares them.
    Memory::open(unsafe { core::slice::from_raw_parts(words, words_for(RINGS[number])) }).ok()
}

/// A free slot for a thread; more rings are mapped if that takes them. `None` if there is none.
pub(crate) fn claim(pid: u32, tid: u32) -> Option<(Memory<'static>, usize)> {
    loop {
        let current = CURRENT.load(SeqCst);
        let memory = get()?;
        match memory.claim(pid, tid) {
            Some(slot) => return Some((memory, slot)),
            None if grow(current) => {}
            None => return None,
        }
    }
}

/// Maps more of the memory, without a file: whoever shares it may map it again.
fn grow(current: usize) -> bool {
    let next = current + 1;
    let (Some(place), Some(&rings)) = (MAPPED.get(next), RINGS.get(next)) else { return false };
    let first = MAPPED[0].load(SeqCst);
    if first.is_null() {
        return false;
    }
    let bytes = words_for(rings) * 8;
    let Some(at) = sys::map_again(first.cast(), bytes) else { return CURRENT.load(Acquire) != current };
    if place.compare_exchange(core::ptr::null_mut(), at.cast(), SeqCst, SeqCst).is_err() {
        // SAFETY: another thread was first; ours is known to nobody.
        unsafe { sys::unmap(at, bytes) };
    } else if MAPPED[0].load(SeqCst).is_null()
        && place.compare_exchange(at.cast(), core::ptr::null_mut(), SeqCst, SeqCst).is_ok()
    {
        // SAFETY: all was hidden meanwhile, and this one was overlooked: nobody has met it.
        unsafe { sys::unmap(at, bytes) };
    }
    if !MAPPED[0].load(SeqCst).is_null() {
        // Whoever sees the new number sees the words. Done by those who were not the first as well: that one may be a thread which
        // a fork has left in the parent.
        let _ = CURRENT.compare_exchange(current, next, SeqCst, SeqCst);
    }
    true
}

/// Maps the memory that the environment has named; `None` if there is none, or not of our kind.
pub(crate) fn attach() -> Option<Memory<'static>> {
    let place = environment::place();
    if place.is_null() {
        return None;
    }
    let fd = sys::open(place, libc::O_RDWR)?;
    let memory = adopt(fd);
    sys::close(fd);
    memory.filter(|memory| !memory.is_over(sys::monotonic_ns()))
}

/// Maps the memory that is open under this number; `None` if it is not of our kind.
pub(crate) fn adopt(fd: i32) -> Option<Memory<'static>> {
    let words = map(fd)?;
    CURRENT.store(0, SeqCst);
    MAPPED[0].store(words, SeqCst);
    let memory = get();
    if memory.is_none() {
        MAPPED[0].store(core::ptr::null_mut(), SeqCst);
        // SAFETY: it was mapped just now, and nobody else has met it.
        unsafe { sys::unmap(words.cast(), words_for(RINGS[0]) * 8) };
    }
    memory
}

/// Whether anything is mapped, hidden or not: as we know it ourselves, whatever somebody has written into it.
pub(crate) fn is_mapped() -> bool {
    MAPPED.iter().chain(&HIDDEN).any(|place| !place.load(SeqCst).is_null())
}

/// Nobody finds the memory any more; it stays until [`release`].
pub(crate) fn hide() {
    // The first one first: who is about to map more looks at it.
    for (mapped, hidden) in MAPPED.iter().zip(&HIDDEN) {
        let words = mapped.swap(core::ptr::null_mut(), SeqCst);
        if !words.is_null() {
            hidden.store(words, SeqCst); // there was none: nobody attaches before it is gone
        }
    }
}

/// The memory that is hidden, with all its rings.
pub(crate) fn hidden() -> Option<Memory<'static>> {
    HIDDEN.iter().enumerate().rev().find_map(|(number, place)| view(place, number))
}

/// Unmaps the memory that is hidden.
///
/// # Safety
///
/// Nobody found it before and still uses it.
pub(crate) unsafe fn release() {
    for (hidden, rings) in HIDDEN.iter().zip(RINGS) {
        let words = hidden.swap(core::ptr::null_mut(), SeqCst);
        if !words.is_null() {
            // SAFETY: so many were mapped there; the caller answers for the rest.
            unsafe { sys::unmap(words.cast(), words_for(rings) * 8) };
        }
    }
}

fn map(fd: i32) -> Option<*mut AtomicU64> {
    let bytes = words_for(RINGS[0]) * 8;
    // SAFETY: all-zero is a valid `stat`.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: the pointer is valid for the call.
    let long_enough =
        unsafe { libc::fstat(fd, &raw mut stat) } == 0 && stat.st_size as usize >= MEMORY_WORDS * 8;
    if !long_enough {
        return None; // another version's, or no memory of ours at all
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { libc::mmap(core::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, fd, 0) };
    (at != libc::MAP_FAILED).then(|| at.cast())
}
