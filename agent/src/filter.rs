//! System call filters that a program is about to install: whether they permit the return from a signal
//! handler.
//!
//! A filter without `rt_sigreturn` ends a thread at its next signal, so its timer has to stop before the
//! filter is in force. Filters are installed by `prctl`, or by `seccomp`, for which the C library has no
//! function: so its `syscall` is interposed as well, by a jump, for these two numbers. A program that makes
//! the call by an instruction of its own is not seen.

use core::ffi::{CStr, c_int, c_long, c_uint, c_ulong};
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

use crate::guard::{self, Lets};
use crate::{memory, sys};

/// `AUDIT_ARCH_…` of this processor.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;
/// Words of `struct seccomp_data`: number, architecture, address of the call, six arguments.
const DATA_WORDS: usize = 16;
/// What it takes to look at a program's file (`exec`).
const LOOKS: [c_long; 5] =
    [libc::SYS_openat, libc::SYS_newfstatat, libc::SYS_pread64, libc::SYS_fgetxattr, libc::SYS_close];
/// What the agent of a program calls as it begins, and as it takes samples: a filter goes on to hold in programs that are executed,
/// and may end those that call what it does not let through.
const BEGINS: [c_long; 17] = [
    libc::SYS_timer_create,
    libc::SYS_timer_settime,
    libc::SYS_timer_delete,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getppid,
    libc::SYS_prctl,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_read,
    libc::SYS_prlimit64,
    libc::SYS_process_vm_readv,
    libc::SYS_clock_gettime,
];
/// Words that a filter may keep to itself.
const SCRATCH: usize = 16;

/// Whether a filter lets a call of this number through that has no arguments; false too if it makes no sense.
fn allows(program: &[libc::sock_filter], number: c_long) -> bool {
    let answer = run(program, number as u32).map(|answer| answer & libc::SECCOMP_RET_ACTION_FULL);
    matches!(answer, Some(libc::SECCOMP_RET_ALLOW | libc::SECCOMP_RET_LOG))
}

/// What the filter returns, as the kernel would run it.
fn run(program: &[libc::sock_filter], number: u32) -> Option<u32> {
    let mut data = [0_u32; DATA_WORDS];
    (data[0], data[1]) = (number, ARCHITECTURE);
    let (mut a, mut x, mut scratch) = (0_u32, 0_u32, [0_u32; SCRATCH]);
    let mut at = 0_usize;
    // Every jump is forward: each instruction runs once at most.
    for _ in 0..program.len() {
        let step = program.get(at)?;
        let (code, k) = (u32::from(step.code), step.k);
        let operand = if code & 0x08 != 0 { x } else { k };
        at += 1;
        match code & 0x07 {
            0x00 | 0x01 => {
                let value = match code & 0xe0 {
                    0x00 => k,                          // BPF_IMM
                    0x20 => *data.get(k as usize / 4)?, // BPF_ABS
                    0x60 => *scratch.get(k as usize)?,  // BPF_MEM
                    0x80 => (DATA_WORDS * 4) as u32,    // BPF_LEN
                    _ => return None,
                };
                *(if code & 0x07 == 0 { &mut a } else { &mut x }) = value;
            }
            0x02 => *scratch.get_mut(k as usize)? = a,
            0x03 => *scratch.get_mut(k as usize)? = x,
            0x04 => a = compute(code & 0xf0, a, operand)?,
            0x05 => {
                let holds = match code & 0xf0 {
                    0x00 => {
                        at = at.checked_add(k as usize)?;
                        continue;
                    }
                    0x10 => a == operand,
                    0x20 => a > operand,
                    0x30 => a >= operand,
                    0x40 => a & operand != 0,
                    _ => return None,
                };
                at += usize::from(if holds { step.jt } else { step.jf });
            }
            0x06 => return Some(if code & 0x18 == 0x10 { a } else { k }),
            _ if code & 0xf8 == 0x00 => x = a,
            _ => a = x,
        }
    }
    None
}

fn compute(operation: u32, a: u32, b: u32) -> Option<u32> {
    Some(match operation {
        0x00 => a.wrapping_add(b),
        0x10 => a.wrapping_sub(b),
        0x20 => a.wrapping_mul(b),
        0x30 => a.checked_div(b)?,
        0x40 => a | b,
        0x50 => a & b,
        0x60 => a.wrapping_shl(b),
        0x70 => a.wrapping_shr(b),
        0x80 => a.wrapping_neg(),
        0xa0 => a ^ b,
        _ => return None,
    })
}

/// The program is about to install this filter, for all its threads or for the calling one. What is no filter is the kernel's to
/// refuse.
///
/// # Safety
///
/// It is a filter, as the kernel is about to be given it, or null.
pub(crate) unsafe fn before(program: *const libc::sock_fprog, is_for_all: bool) {
    // A child of `vfork` runs in the memory of its parent, which goes on as before.
    if program.is_null() || guard::is_mute() || !memory::is_own(sys::getpid()) {
        return;
    }
    // SAFETY: the caller answers for it.
    let steps = unsafe {
        let libc::sock_fprog { len, filter } = *program;
        if filter.is_null() { &[][..] } else { core::slice::from_raw_parts(filter, usize::from(len)) }
    };
    let lets = Lets {
        end_handlers: allows(steps, libc::SYS_rt_sigreturn),
        set: allows(steps, libc::SYS_timer_settime),
        give_on: LOOKS.iter().chain(&BEGINS).all(|&number| allows(steps, number)),
        stop: allows(steps, libc::SYS_getpid) && allows(steps, libc::SYS_timer_delete),
    };
    guard::before_filter(lets, is_for_all);
}

/// The program is about to call `prctl` with these arguments.
///
/// # Safety
///
/// As for [`before`], where the option is `PR_SET_SECCOMP` and `mode` that of filters.
pub(crate) unsafe fn before_prctl(option: c_int, mode: c_ulong, program: *const libc::sock_fprog) {
    guard::before_prctl(option, mode);
    if option == libc::PR_SET_SECCOMP && mode == c_ulong::from(libc::SECCOMP_MODE_FILTER) {
        // SAFETY: as the caller answers for.
        unsafe { before(program, false) };
    }
}

/// The C library's `syscall`.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Finds it.
pub(crate) fn find() {
    const NAME: &CStr = c"syscall";
    // SAFETY: the name ends.
    NEXT.store(unsafe { libc::dlsym(libc::RTLD_NEXT, NAME.as_ptr()) } as usize, Relaxed);
}

/// Before `syscall` is made with these arguments; the first time, whatever it is.
unsafe extern "C" fn before_syscall(
    number: c_long,
    operation: c_long,
    mode: c_ulong,
    program: *const libc::sock_fprog,
) {
    if NEXT.load(Relaxed) == 0 {
        find();
    }
    if number == libc::SYS_prctl {
        // SAFETY: as for `prctl`, where the filter is the second argument behind the option.
        return unsafe { before_prctl(operation as c_int, mode, program) };
    }
    if number != libc::SYS_seccomp {
        return;
    }
    let flags = mode as c_uint;
    match operation as c_uint {
        libc::SECCOMP_SET_MODE_STRICT => {
            guard::before_prctl(libc::PR_SET_SECCOMP, c_ulong::from(libc::SECCOMP_MODE_STRICT));
        }
        // SAFETY: so the program has said.
        libc::SECCOMP_SET_MODE_FILTER => unsafe {
            before(program, c_long::from(flags) & libc::SECCOMP_FILTER_FLAG_TSYNC as c_long != 0);
        },
        _ => {}
    }
}

/// See syscall(2).
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn syscall() {
    core::arch::naked_asm!(
        ".cfi_startproc", "cmp qword ptr [rip + {next}], 0", "je 2f", "cmp rdi, {seccomp}", "je 2f",
        "cmp rdi, {prctl}", "je 2f", "jmp qword ptr [rip + {next}]",
        "2:", "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "sub rsp, 8",
        ".cfi_adjust_cfa_offset 56", "call {before}", "add rsp, 8", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi",
        "pop rdi", ".cfi_adjust_cfa_offset -56", "jmp qword ptr [rip + {next}]", ".cfi_endproc",
        next = sym NEXT, seccomp = const libc::SYS_seccomp, prctl = const libc::SYS_prctl, before = sym before_syscall,
    )
}

/// The same.
#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn syscall() {
    core::arch::naked_asm!(
        "adrp x16, {next}", "ldr x16, [x16, :lo12:{next}]", "cbz x16, 2f", "cmp x0, {seccomp}", "b.eq 2f",
        "cmp x0, {prctl}", "b.eq 2f", "br x16",
        "2:", "stp x29, x30, [sp, #-80]!", "stp x0, x1, [sp, #16]", "stp x2, x3, [sp, #32]", "stp x4, x5, [sp, #48]",
        "str x6, [sp, #64]", "bl {before}", "ldr x6, [sp, #64]", "ldp x4, x5, [sp, #48]", "ldp x2, x3, [sp, #32]",
        "ldp x0, x1, [sp, #16]", "ldp x29, x30, [sp], #80", "adrp x16, {next}", "ldr x16, [x16, :lo12:{next}]", "br x16",
        next = sym NEXT, seccomp = const libc::SYS_seccomp, prctl = const libc::SYS_prctl, before = sym before_syscall,
    )
}
