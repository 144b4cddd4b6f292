//! The shared memory, once it is mapped.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64};

use agent_memory::{MEMORY_WORDS, Memory, PLACE};

use crate::sys;

/// The first word, or null.
static WORDS: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());

/// Whether threads are sampled: not before everything is set up.
pub(crate) static ENABLED: AtomicBool = AtomicBool::new(false);

/// The process that was sampled last in this memory: a child of `vfork` is another, and changes nothing.
static OWN: AtomicU32 = AtomicU32::new(0);

/// This process is sampled.
pub(crate) fn own(pid: u32) {
    OWN.store(pid, Relaxed);
}

/// Whether this is the process that is sampled.
pub(crate) fn is_own(pid: u32) -> bool {
    OWN.load(Relaxed) == pid
}

/// Longest place that is believed (bytes).
const LONGEST: usize = 256;

/// The memory, if it is mapped.
#[inline]
pub(crate) fn get() -> Option<Memory<'static>> {
    let words = WORDS.load(Acquire);
    if words.is_null() {
        return None;
    }
    // SAFETY: `attach` stored it after it had mapped so many words, which nobody unmaps; they are atomics for whoever shares them.
    Memory::open(unsafe { core::slice::from_raw_parts(words, MEMORY_WORDS) }).ok()
}

/// Maps the memory that the environment names; `None` if there is none, or not of our kind.
pub(crate) fn attach() -> Option<Memory<'static>> {
    let mut name = [0_u8; 32];
    name[..PLACE.len()].copy_from_slice(PLACE.as_bytes());
    // SAFETY: the name ends with a zero; nobody changes the environment before the program begins.
    let place = unsafe { libc::getenv(name.as_ptr().cast()) };
    // SAFETY: what `getenv` returns is null or a string that ends.
    if place.is_null() || unsafe { libc::strnlen(place, LONGEST) } == LONGEST {
        return None;
    }
    let fd = sys::open(place, libc::O_RDWR)?;
    let words = map(fd);
    sys::close(fd);
    WORDS.store(words?, Release);
    let memory = get();
    if memory.is_none() {
        WORDS.store(core::ptr::null_mut(), Relaxed);
    }
    memory.filter(|memory| !memory.is_over(sys::monotonic_ns()))
}

fn map(fd: i32) -> Option<*mut AtomicU64> {
    let bytes = MEMORY_WORDS * 8;
    // SAFETY: all-zero is a valid `stat`.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: the pointer is valid for the call.
    let long_enough = unsafe { libc::fstat(fd, &raw mut stat) } == 0 && stat.st_size as usize >= bytes;
    if !long_enough {
        return None; // another version's, or no memory of ours at all
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { libc::mmap(core::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, fd, 0) };
    (at != libc::MAP_FAILED).then(|| at.cast())
}
