//! The C library's own functions, behind the interposed ones.

use core::ffi::{CStr, c_void};
use core::marker::PhantomData;
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::Relaxed;

/// A function of the C library of type `F`, found when it is first asked for.
pub(crate) struct Next<F> {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
    of: PhantomData<F>,
}

impl<F: Copy> Next<F> {
    /// # Safety
    ///
    /// The C library has a function of this name, and `F` is a pointer to such a function.
    pub(crate) const unsafe fn new(name: &'static CStr) -> Self {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        Self { name, found: AtomicPtr::new(core::ptr::null_mut()), of: PhantomData }
    }

    /// Whether the C library has it: some are younger than the oldest that serves.
    pub(crate) fn is_there(&self) -> bool {
        !self.find().is_null()
    }

    /// The function.
    pub(crate) fn get(&self) -> F {
        let address = self.find();
        // SAFETY: as whoever made it answers for.
        unsafe { core::mem::transmute_copy::<*mut c_void, F>(&address) }
    }

    fn find(&self) -> *mut c_void {
        let mut address = self.found.load(Relaxed);
        if address.is_null() {
            // SAFETY: the name ends.
            address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            self.found.store(address, Relaxed);
        }
        address
    }
}
