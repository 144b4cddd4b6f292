//! Settings of the allocator.
//!
//! The service limits it to two heaps, maps large buffers so that they are returned when freed, and returns
//! free memory once a minute. By default glibc raises the size of a "large" buffer to 32 MiB and keeps twice
//! that in each of up to sixteen heaps.

/// Buffers of this size and more (bytes) are mapped, and so given back when they are dropped. Where nothing is said, the
/// allocator raises this to 32 MiB after the first big one, and keeps twice as much at the end of each heap.
#[cfg(target_env = "gnu")]
const MAPPED: libc::c_int = 256 << 10;
/// What is kept at the end of a heap for what comes next (bytes).
#[cfg(target_env = "gnu")]
const KEPT: libc::c_int = 1 << 20;
/// Heaps that threads share. Each thread that reads for a moment would otherwise have one of its own, up to eight for a CPU,
/// and none of them gives back what lies below its last piece.
#[cfg(target_env = "gnu")]
const HEAPS: libc::c_int = 2;

/// Has the allocator keep little of what is freed, for a process that goes on for weeks. To be called before there are
/// threads.
pub(crate) fn keep_little() {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in
        [(libc::M_ARENA_MAX, HEAPS), (libc::M_MMAP_THRESHOLD, MAPPED), (libc::M_TRIM_THRESHOLD, KEPT)]
    {
        // SAFETY: it sets a number of the allocator's, under the allocator's own lock.
        unsafe { libc::mallopt(parameter, value) };
    }
}

/// Gives memory that was freed back to the system: the allocator keeps it otherwise.
pub(crate) fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes the allocator's own locks, and moves nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}
