//! Memory of this process.

/// Gives memory that was freed back to the system: the allocator keeps it otherwise.
pub(crate) fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes the allocator's own locks, and moves nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}
