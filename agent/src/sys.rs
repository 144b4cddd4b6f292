//! System calls without the C library: they touch no `errno`, and may be made in a handler.

use core::arch::asm;

/// Of a failed call: an error number, negated.
type Answer = isize;

/// Makes a system call.
///
/// # Safety
///
/// What the call needs: pointers that are valid for it.
unsafe fn call(number: libc::c_long, a: [usize; 4]) -> Answer {
    let answer: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the kernel changes rax, rcx and r11, and what the caller has answered for.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => answer, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
             in("r10") a[3], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the kernel changes x0, and what the caller has answered for.
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") a[0] => answer, in("x1") a[1], in("x2") a[2], in("x3") a[3],
             options(nostack));
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

/// Makes a timer on the calling thread's CPU clock that sends it `signal` with `value`; `None` if it is refused.
pub(crate) fn timer_create(signal: i32, value: usize) -> Option<i32> {
    let event = SigEvent { value, signal, notify: libc::SIGEV_THREAD_ID, tid: gettid() as i32, pad: [0; 11] };
    let mut id = 0_i32;
    let arguments =
        [libc::CLOCK_THREAD_CPUTIME_ID as usize, &raw const event as usize, &raw mut id as usize, 0];
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
    let mut time = timespec(0);
    let arguments = [libc::CLOCK_THREAD_CPUTIME_ID as usize, &raw mut time as usize, 0, 0];
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

pub(crate) fn close(fd: i32) {
    // SAFETY: takes a number; the callers close what they have opened.
    unsafe { call(libc::SYS_close, [fd as usize, 0, 0, 0]) };
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
