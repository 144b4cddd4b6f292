//! System calls without the C library: they touch no `errno`, and may be made in a handler.

use core::arch::asm;
use core::ffi::c_void;
use core::sync::atomic::AtomicU64;

/// Of a failed call: an error number, negated.
type SyscallResult = isize;

/// Makes a system call.
///
/// # Safety
///
/// What the call needs: pointers that are valid for it.
unsafe fn call(number: libc::c_long, a: [usize; 4]) -> SyscallResult {
    // SAFETY: the caller answers for it.
    unsafe { call_six(number, [a[0], a[1], a[2], a[3], 0, 0]) }
}

/// The same, of up to six arguments.
///
/// # Safety
///
/// As there.
#[inline]
unsafe fn call_six(number: libc::c_long, a: [usize; 6]) -> SyscallResult {
    let answer: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the kernel changes rax, rcx and r11, and what the caller has answered for.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => answer, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
             in("r10") a[3], in("r8") a[4], in("r9") a[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the kernel changes x0, and what the caller has answered for.
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") a[0] => answer, in("x1") a[1], in("x2") a[2], in("x3") a[3],
             in("x4") a[4], in("x5") a[5], options(nostack));
    }
    answer
}

/// `struct sigevent` of the kernel, for `SIGEV_THREAD_ID`.
#[repr(C)]
struct SigEvent {
    value: usize,
    signal: i32,
    notify: i32,
    tid: i32,
    pad: [i32; 11],
}

pub(crate) fn getpid() -> u32 {
    // SAFETY: takes nothing.
    unsafe { call(libc::SYS_getpid, [0; 4]) as u32 }
}

pub(crate) fn getppid() -> u32 {
    // SAFETY: takes nothing.
    unsafe { call(libc::SYS_getppid, [0; 4]) as u32 }
}

pub(crate) fn gettid() -> u32 {
    // SAFETY: takes nothing.
    unsafe { call(libc::SYS_gettid, [0; 4]) as u32 }
}

/// The calling thread's name.
pub(crate) fn name() -> [u8; 16] {
    let mut name = [0_u8; 16];
    // SAFETY: the kernel writes sixteen bytes.
    unsafe { call(libc::SYS_prctl, [libc::PR_GET_NAME as usize, name.as_mut_ptr() as usize, 0, 0]) };
    name
}

/// The CPU clock of a thread of this process.
pub(crate) fn clock_of(tid: u32) -> i32 {
    const OF_A_THREAD: i32 = 4;
    const AS_SCHEDULED: i32 = 2;
    !(tid as i32) << 3 | OF_A_THREAD | AS_SCHEDULED
}

/// Makes a timer on a thread's CPU clock that sends it `signal` with `value`; `None` if it is refused.
pub(crate) fn timer_create(tid: u32, signal: i32, value: usize) -> Option<i32> {
    let event = SigEvent { value, signal, notify: libc::SIGEV_THREAD_ID, tid: tid as i32, pad: [0; 11] };
    let mut id = 0_i32;
    let arguments = [clock_of(tid) as usize, &raw const event as usize, &raw mut id as usize, 0];
    // SAFETY: both pointers are valid for the call, and the event is as the kernel has it.
    let answer = unsafe { call(libc::SYS_timer_create, arguments) };
    (answer == 0).then_some(id)
}

/// Sets a timer to expire when its clock shows `at_ns`, and then every `interval_ns`.
pub(crate) fn timer_settime(id: i32, at_ns: u64, interval_ns: u64) -> bool {
    let spec = libc::itimerspec { it_value: timespec(at_ns), it_interval: timespec(interval_ns) };
    let arguments = [id as usize, libc::TIMER_ABSTIME as usize, &raw const spec as usize, 0];
    // SAFETY: the pointer is valid for the call.
    unsafe { call(libc::SYS_timer_settime, arguments) == 0 }
}

pub(crate) fn timer_delete(id: i32) {
    // SAFETY: takes a number.
    unsafe { call(libc::SYS_timer_delete, [id as usize, 0, 0, 0]) };
}

/// CPU time of the calling thread (ns).
pub(crate) fn thread_cpu_ns() -> u64 {
    cpu_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// The time of a CPU clock (ns).
pub(crate) fn cpu_ns(clock: i32) -> u64 {
    let mut time = timespec(0);
    let arguments = [clock as usize, &raw mut time as usize, 0, 0];
    // SAFETY: the pointer is valid for the call.
    unsafe { call(libc::SYS_clock_gettime, arguments) };
    ns(time)
}

/// The monotonic clock (ns): read in user space, where this machine's clock can be.
#[inline]
pub(crate) fn monotonic_ns() -> u64 {
    let mut time = timespec(0);
    // SAFETY: the pointer is valid for the call, which is safe in a handler and fails for no clock that exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    ns(time)
}

pub(crate) fn open(path: *const libc::c_char, flags: i32) -> Option<i32> {
    let flags = flags | libc::O_CLOEXEC;
    // SAFETY: the callers give strings that end.
    let answer =
        unsafe { call(libc::SYS_openat, [libc::AT_FDCWD as usize, path as usize, flags as usize, 0]) };
    (answer >= 0).then_some(answer as i32)
}

/// Bytes read; 0 at the end and after an error.
pub(crate) fn read(fd: i32, into: &mut [u8]) -> usize {
    // SAFETY: the kernel writes no more than the length.
    let answer = unsafe { call(libc::SYS_read, [fd as usize, into.as_mut_ptr() as usize, into.len(), 0]) };
    usize::try_from(answer).unwrap_or(0)
}

/// The same from an offset on, which the file's own position has nothing to do with.
pub(crate) fn read_at(fd: i32, into: &mut [u8], at: u64) -> usize {
    let arguments = [fd as usize, into.as_mut_ptr() as usize, into.len(), at as usize];
    // SAFETY: the kernel writes no more than the length.
    let answer = unsafe { call(libc::SYS_pread64, arguments) };
    usize::try_from(answer).unwrap_or(0)
}

/// What the kernel knows of a file.
pub(crate) fn stat_at(folder: i32, path: *const libc::c_char, flags: i32) -> Option<libc::stat> {
    // SAFETY: all-zero is a valid `stat`, which is laid out as the kernel has it on every 64-bit Linux.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    let arguments = [folder as usize, path as usize, &raw mut stat as usize, flags as usize];
    // SAFETY: the callers give strings that end, and the pointer is valid for the call.
    let answer = unsafe { call(libc::SYS_newfstatat, arguments) };
    (answer == 0).then_some(stat)
}

/// Whether a program has rights by itself, beyond those of the process that runs it.
pub(crate) fn has_capabilities(fd: i32) -> bool {
    const NAME: &core::ffi::CStr = c"security.capability";
    // SAFETY: the name ends with a zero; of no room, only the length is told.
    unsafe { call(libc::SYS_fgetxattr, [fd as usize, NAME.as_ptr() as usize, 0, 0]) > 0 }
}

pub(crate) fn close(fd: i32) {
    // SAFETY: takes a number; the callers close what they have opened.
    unsafe { call(libc::SYS_close, [fd as usize, 0, 0, 0]) };
}

/// Entries of a folder, as the kernel packs them; 0 bytes at the end and after an error.
pub(crate) fn getdents(fd: i32, into: &mut [u8]) -> usize {
    let arguments = [fd as usize, into.as_mut_ptr() as usize, into.len(), 0];
    // SAFETY: the kernel writes no more than the length.
    let answer = unsafe { call(libc::SYS_getdents64, arguments) };
    usize::try_from(answer).unwrap_or(0)
}

/// Lets others run. By a call that leaves alone what the kernel has noted of an interrupted one: a thread that calls us may be about
/// to go on with a sleep of its own, and `nanosleep` would have that end with an error.
pub(crate) fn pause_briefly() {
    let time = libc::timespec { tv_sec: 0, tv_nsec: 100_000 };
    // SAFETY: the pointer is valid for the call, which waits for no file.
    unsafe { call_six(libc::SYS_pselect6, [0, 0, 0, 0, &raw const time as usize, 0]) };
}

/// Whether eight bytes can be read at this address, which is a multiple of eight.
#[inline]
pub(crate) fn is_readable(address: usize) -> bool {
    /// Nothing that can be done with a mask: the kernel reads the new one, and then leaves the old one as it is.
    const NOTHING: usize = 99;
    // SAFETY: the kernel reads the bytes if they can be read, and changes nothing.
    let answer = unsafe { call(libc::SYS_rt_sigprocmask, [NOTHING, address, 0, 8]) };
    answer == -(libc::EINVAL as SyscallResult)
}

/// Maps so many bytes of shared memory once more, from the beginning of this mapping on; `None` if that is refused.
pub(crate) fn map_again(first: *mut c_void, bytes: usize) -> Option<*mut c_void> {
    let arguments = [first as usize, 0, bytes, libc::MREMAP_MAYMOVE as usize];
    // SAFETY: an old length of zero leaves the old mapping as it is, and the kernel finds another place.
    let answer = unsafe { call(libc::SYS_mremap, arguments) };
    (answer > 0).then_some(answer as *mut c_void)
}

/// Takes a mapping back.
///
/// # Safety
///
/// Nobody uses it.
pub(crate) unsafe fn unmap(at: *mut c_void, bytes: usize) {
    // SAFETY: the caller answers for it.
    unsafe { call(libc::SYS_munmap, [at as usize, bytes, 0, 0]) };
}

/// Copies words from an address of this process, mapped or not, to where there is room, one piece after the other; returns how
/// many came.
#[inline]
pub(crate) fn copy_words(pid: u32, from: usize, to: [&[AtomicU64]; 2]) -> usize {
    let pieces =
        to.map(|words| libc::iovec { iov_base: words.as_ptr() as *mut c_void, iov_len: size_of_val(words) });
    let whole = libc::iovec { iov_base: from as *mut c_void, iov_len: pieces[0].iov_len + pieces[1].iov_len };
    let (here, there) = (&raw const pieces as usize, &raw const whole as usize);
    // SAFETY: the kernel writes into the pieces alone, which may be written to through shared references; what it reads it checks.
    let answer = unsafe { call_six(libc::SYS_process_vm_readv, [pid as usize, here, 2, there, 1, 0]) };
    usize::try_from(answer).unwrap_or(0) / 8
}

/// Lets a signal come to the calling thread.
pub(crate) fn unblock(signal: i32) {
    let set = 1_u64 << (signal - 1);
    // SAFETY: the pointer is to the eight bytes of a mask.
    unsafe { call(libc::SYS_rt_sigprocmask, [libc::SIG_UNBLOCK as usize, &raw const set as usize, 0, 8]) };
}

fn timespec(ns: u64) -> libc::timespec {
    libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

fn ns(time: libc::timespec) -> u64 {
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}
