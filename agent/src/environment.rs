//! The environment. The agent's entries (library and memory) are removed before the program starts, which
//! finds its environment unchanged. They are restored for a program that replaces this one or that it starts,
//! if a library can be preloaded into that program (`exec`).

use core::cell::UnsafeCell;
use core::ffi::{c_char, c_void};
use core::ptr;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize};

use agent_memory::{LIBRARY, PLACE, PRELOAD, SEPARATOR};

/// Longest variable of ours that is kept, its name included, and the longest list of libraries (bytes).
const LONGEST: usize = 512;
const LONGEST_LIST: usize = 2048;

/// A string of the environment, as `execve` has them.
pub(crate) type EnvironmentString = *const c_char;

unsafe extern "C" {
    static mut environ: *mut EnvironmentString;
}

/// The program's environment, as it is now.
pub(crate) fn current() -> *const EnvironmentString {
    // SAFETY: a word that the C library keeps; a change meanwhile would meet the C library's own `exec` as well.
    unsafe { (&raw const environ).read_volatile() }
}

fn replace(entries: *mut EnvironmentString) {
    // SAFETY: as above; the entries end with null.
    unsafe { (&raw mut environ).write_volatile(entries) };
}

/// A variable that is kept, as the program may write over its environment.
struct KeptVariable {
    bytes: UnsafeCell<[u8; LONGEST]>,
    length: AtomicUsize,
}

// SAFETY: it is written once, before there is a second thread and before the length is set.
unsafe impl Sync for KeptVariable {}

impl KeptVariable {
    const fn new() -> Self {
        Self { bytes: UnsafeCell::new([0; LONGEST]), length: AtomicUsize::new(0) }
    }

    /// To be called by the first thread, before the program begins.
    fn keep(&self, parts: [&[u8]; 3]) {
        let length = parts.iter().map(|part| part.len()).sum::<usize>();
        if length >= LONGEST || self.length.load(Relaxed) > 0 {
            return; // nothing is given on
        }
        // SAFETY: there is one thread, and no reference yet.
        let bytes = unsafe { &mut *self.bytes.get() };
        let mut at = 0;
        for part in parts {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        self.length.store(length, Release);
    }

    /// Without the zero behind it; empty if there is none.
    fn get(&self) -> &[u8] {
        let length = self.length.load(Acquire);
        // SAFETY: it is not written to after the length was set.
        unsafe { &*self.bytes.get() }.get(..length).unwrap_or_default()
    }

    fn entry(&self) -> EnvironmentString {
        self.get().as_ptr().cast()
    }
}

/// `SWEETSPOT_AGENT=…`, and `LD_PRELOAD=…` with the library alone.
static OUR_PLACE: KeptVariable = KeptVariable::new();
static OUR_LIBRARY: KeptVariable = KeptVariable::new();

/// The environment without ours, if there is room for both before its first entry.
static FIRST: AtomicPtr<EnvironmentString> = AtomicPtr::new(ptr::null_mut());
/// Calls that have ours put there at the moment.
static LENT: AtomicUsize = AtomicUsize::new(0);
/// Whether ours are in the program's own environment meanwhile.
static IS_LENT: AtomicBool = AtomicBool::new(false);

/// The memory's place, which ends with a zero; null if the environment had none.
pub(crate) fn place() -> EnvironmentString {
    match OUR_PLACE.get().get(PLACE.len() + 1..) {
        Some(place) => place.as_ptr().cast(),
        None => ptr::null(),
    }
}

/// The library's path, which ends with a zero; null if it is not known.
pub(crate) fn library() -> EnvironmentString {
    match OUR_LIBRARY.get().get(PRELOAD.len() + 1..) {
        Some(path) => path.as_ptr().cast(),
        None => ptr::null(),
    }
}

/// Takes what is ours out of the environment. To be called by the first thread, before the program begins.
pub(crate) fn take() {
    let entries = current().cast_mut();
    // SAFETY: these are the environment's.
    let (Some(at), preload) = (unsafe { (find(entries, PLACE), find(entries, PRELOAD)) }) else { return };
    // SAFETY: both were found there, and end with zeros.
    unsafe {
        let place = value_of(*entries.add(at), PLACE);
        OUR_PLACE.keep([PLACE.as_bytes(), b"=", place]);
        remove(at);
        if let Some(preload) = preload {
            take_preload(if preload < at { preload } else { preload - 1 });
        }
    }
}

/// The same for the list of libraries: what was in it before ours stays.
///
/// # Safety
///
/// It is the variable with this number.
unsafe fn take_preload(at: usize) {
    // SAFETY: the caller answers for it.
    let entry = unsafe { *current().add(at) };
    // SAFETY: it ends with a zero.
    let list = unsafe { value_of(entry, PRELOAD) };
    let library = list.rsplit(|&byte| matches!(byte, b':' | b' ')).next().unwrap_or_default();
    if !library.ends_with(LIBRARY.as_bytes()) {
        return;
    }
    OUR_LIBRARY.keep([PRELOAD.as_bytes(), b"=", library]);
    let separator = list.windows(SEPARATOR.len()).rposition(|part| part == SEPARATOR.as_bytes());
    match separator {
        // SAFETY: within the string, which belongs to the program.
        Some(own) => unsafe { entry.cast_mut().add(PRELOAD.len() + 1 + own).write(0) },
        // SAFETY: as the caller answers for.
        None => unsafe {
            remove(at);
            FIRST.store(current().cast_mut(), Release);
        },
    }
}

/// Removes a variable. The ones before it move up: the end has to stay where it is, since programs find what the kernel has put behind
/// the environment by it.
///
/// # Safety
///
/// There are more than so many.
unsafe fn remove(at: usize) {
    let entries = current().cast_mut();
    // SAFETY: the caller answers for it.
    unsafe {
        ptr::copy(entries, entries.add(1), at);
        if !(*entries.add(1)).is_null() {
            *entries = *entries.add(1); // to a reader that still begins here, it is there twice
        }
        replace(entries.add(1));
    }
}

/// The last variable of this name, which is the one that counts to the dynamic linker.
///
/// # Safety
///
/// It is an environment, or null.
unsafe fn find(entries: *const EnvironmentString, name: &str) -> Option<usize> {
    let mut found = None;
    // SAFETY: the caller answers for it.
    for at in 0..unsafe { count(entries) } {
        // SAFETY: there are so many, which end with zeros.
        let is_it = unsafe {
            let entry = *entries.add(at);
            libc::strncmp(entry, name.as_ptr().cast(), name.len()) == 0
                && *entry.add(name.len()) == b'=' as c_char
        };
        if is_it {
            found = Some(at);
        }
    }
    found
}

/// # Safety
///
/// It is an environment, or null.
unsafe fn count(entries: *const EnvironmentString) -> usize {
    let mut count = 0;
    // SAFETY: it ends with null.
    while !entries.is_null() && !unsafe { *entries.add(count) }.is_null() {
        count += 1;
    }
    count
}

/// # Safety
///
/// It is a variable of this name.
unsafe fn value_of<'a>(entry: EnvironmentString, name: &str) -> &'a [u8] {
    // SAFETY: the caller answers for it.
    unsafe {
        let value = entry.add(name.len() + 1);
        core::slice::from_raw_parts(value.cast(), libc::strlen(value))
    }
}

/// Calls with an environment without what another thread has lent to a shell at the moment: the program that is started may not
/// bear it.
///
/// # Safety
///
/// It is an environment, or null.
pub(crate) unsafe fn without_lent<R>(
    entries: *const EnvironmentString,
    call: impl FnOnce(*const EnvironmentString) -> R,
) -> R {
    let first = FIRST.load(Acquire).cast_const();
    if !first.is_null() && entries == first.wrapping_sub(2) {
        return call(first);
    }
    if !IS_LENT.load(Acquire) {
        return call(entries);
    }
    // SAFETY: the caller answers for it, and there are so many.
    unsafe {
        let number = count(entries);
        if !(0..number).any(|at| is_ours(*entries.add(at))) {
            return call(entries);
        }
        // A thread has added a variable meanwhile, which made a copy of them all.
        match number + 1 {
            0..=64 => others::<64, R>(entries, number, call),
            65..=256 => others::<256, R>(entries, number, call),
            257..=1024 => others::<1024, R>(entries, number, call),
            _ => call(entries),
        }
    }
}

/// Calls with the entries that are not ours.
///
/// # Safety
///
/// There are so many entries, one less than `N` at most.
#[inline(never)]
unsafe fn others<const N: usize, R>(
    entries: *const EnvironmentString,
    number: usize,
    call: impl FnOnce(*const EnvironmentString) -> R,
) -> R {
    let mut all = [ptr::null(); N];
    // SAFETY: the caller answers for it.
    let others = (0..number).map(|at| unsafe { *entries.add(at) }).filter(|entry| !is_ours(*entry));
    all.iter_mut().zip(others).for_each(|(entry, other)| *entry = other);
    call(all.as_ptr())
}

/// Calls with an environment that has ours as well, and `first` before the library; with the given one where there is no room, or
/// where it names a profiler's memory already. On the stack: in the child of a `vfork` whatever is allocated stays in the parent.
///
/// # Safety
///
/// It is an environment, or null.
pub(crate) unsafe fn with_ours<R>(
    entries: *const EnvironmentString,
    first: &[u8],
    call: impl FnOnce(*const EnvironmentString) -> R,
) -> R {
    // SAFETY: the caller answers for it.
    let (number, place, own) = unsafe { (count(entries), find(entries, PLACE), find(entries, PRELOAD)) };
    if place.is_some() || library().is_null() {
        return call(entries);
    }
    let mut list = ListVariable { bytes: [0; LONGEST_LIST], length: 0 };
    // SAFETY: it was found there.
    let own = own.map(|at| (at, unsafe { value_of(*entries.add(at), PRELOAD) }));
    let is_whole = list.push(PRELOAD.as_bytes())
        && list.push(b"=")
        && own.is_none_or(|(_, own)| list.push(own) && list.push(SEPARATOR.as_bytes()))
        && (first.is_empty() || list.push(first) && list.push(b":"))
        && list.push(&OUR_LIBRARY.get()[PRELOAD.len() + 1..])
        && list.push(b"\0");
    if !is_whole {
        return call(entries);
    }
    let (list, own) = (list.bytes.as_ptr().cast(), own.map(|(at, _)| at));
    // SAFETY: so many there are, and the list ends with a zero.
    unsafe {
        match number + 3 {
            0..=64 => copied::<64, R>(entries, number, own, list, call),
            65..=256 => copied::<256, R>(entries, number, own, list, call),
            257..=1024 => copied::<1024, R>(entries, number, own, list, call),
            _ => call(entries),
        }
    }
}

/// # Safety
///
/// There are so many entries, three less than `N` at most, and the list ends with a zero.
#[inline(never)]
unsafe fn copied<const N: usize, R>(
    entries: *const EnvironmentString,
    number: usize,
    own: Option<usize>,
    list: EnvironmentString,
    call: impl FnOnce(*const EnvironmentString) -> R,
) -> R {
    let mut all = [ptr::null(); N];
    for (at, entry) in all.iter_mut().enumerate().take(number) {
        // SAFETY: the caller answers for it.
        *entry = unsafe { *entries.add(at) };
    }
    let mut end = number;
    match own {
        Some(own) => all[own] = list,
        None => {
            all[end] = list;
            end += 1;
        }
    }
    all[end] = OUR_PLACE.entry();
    call(all.as_ptr())
}

/// A variable that is put together.
struct ListVariable {
    bytes: [u8; LONGEST_LIST],
    length: usize,
}

impl ListVariable {
    /// False if there is no room.
    fn push(&mut self, more: &[u8]) -> bool {
        let end = self.length + more.len();
        let Some(room) = self.bytes.get_mut(self.length..end) else { return false };
        room.copy_from_slice(more);
        self.length = end;
        true
    }
}

/// Puts ours back into the program's own environment, for a call of the C library that starts a shell with that one, until
/// [`take_back`]. Only where the environment is still the one that the program began with, and has room.
pub(crate) fn lend() {
    let first = FIRST.load(Acquire);
    if LENT.fetch_add(1, Relaxed) > 0 || first.is_null() || current() != first.cast_const() {
        return;
    }
    // SAFETY: two entries were there before.
    unsafe {
        first.sub(1).write(OUR_PLACE.entry());
        first.sub(2).write(OUR_LIBRARY.entry());
        replace(first.sub(2));
    }
    IS_LENT.store(true, Release);
}

/// Takes them out again.
pub(crate) fn take_back() {
    let first = FIRST.load(Acquire);
    if LENT.fetch_sub(1, Relaxed) == 1 && IS_LENT.swap(false, AcqRel) {
        take_out(first);
    }
}

/// In the child of a fork: no thread of it takes back what one of its parent's has lent.
pub(crate) fn begin_child() {
    let first = FIRST.load(Acquire);
    // The parent's thread may have been between two of its steps.
    let is_lent = LENT.swap(0, Relaxed) > 0 || IS_LENT.swap(false, Relaxed);
    if !first.is_null() && (is_lent || current() == first.wrapping_sub(2).cast_const()) {
        IS_LENT.store(false, Relaxed);
        take_out(first);
    }
}

fn is_ours(entry: EnvironmentString) -> bool {
    entry == OUR_PLACE.entry() || entry == OUR_LIBRARY.entry()
}

/// Restores the environment that the program has without ours, which began at `first`.
fn take_out(first: *mut EnvironmentString) {
    if current() == first.wrapping_sub(2).cast_const() {
        return replace(first);
    }
    // Another thread has added a variable meanwhile, which made a copy of them all.
    // SAFETY: this is the environment; a variable moves down by one at a time, as the C library has it.
    unsafe {
        let entries = current().cast_mut();
        let mut to = 0;
        for from in 0..count(entries) {
            let entry = *entries.add(from);
            if is_ours(entry) {
                continue;
            }
            // What comes before ours is left as it is: another thread may be writing there.
            if to < from {
                *entries.add(to) = entry;
            }
            to += 1;
        }
        if to < count(entries) {
            *entries.add(to) = ptr::null();
        }
    }
}

/// Where the program's dynamic linker says that it is: as the program names it.
pub(crate) fn linker() -> EnvironmentString {
    // SAFETY: takes a number.
    let (headers, number) =
        unsafe { (libc::getauxval(libc::AT_PHDR) as usize, libc::getauxval(libc::AT_PHNUM)) };
    let headers = headers as *const libc::Elf64_Phdr;
    if headers.is_null() {
        return ptr::null();
    }
    // SAFETY: the kernel says that so many are there, and they stay mapped.
    let headers = unsafe { core::slice::from_raw_parts(headers, number as usize) };
    let address_of = |kind| headers.iter().find(|header| header.p_type == kind).map(|header| header.p_vaddr);
    match (address_of(libc::PT_PHDR), address_of(libc::PT_INTERP)) {
        (Some(table), Some(name)) => {
            let moved_by = (headers.as_ptr() as usize).wrapping_sub(table as usize);
            (name as usize).wrapping_add(moved_by) as *const c_void as EnvironmentString
        }
        _ => ptr::null(),
    }
}
