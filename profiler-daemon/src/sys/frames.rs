//! Stacks of known depth, with a frame pointer and unwind information in each frame, whatever flags this program was
//! built with.

use std::arch::naked_asm;
use std::ffi::c_void;

/// Bytes of stack that each frame takes.
pub(crate) const FRAME_BYTES: usize = 64;

/// Calls `work` below `depth` frames.
pub(crate) fn with_frames(depth: u64, mut work: &mut dyn FnMut()) {
    let argument = (&raw mut work).cast::<c_void>();
    // SAFETY: `descend` keeps what the calling convention asks for, and hands `argument` to `ascend` while `work` lives.
    unsafe { descend(depth, ascend, argument) }
}

extern "C" fn ascend(work: *mut c_void) {
    // SAFETY: the pointer comes from `with_frames`, which waits for this call and uses `work` for nothing else.
    let work = unsafe { &mut *work.cast::<&mut dyn FnMut()>() };
    work();
}

/// Calls itself `depth` times, and then `then` with `argument`.
///
/// # Safety
///
/// `then` must accept `argument`.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn descend(depth: u64, then: extern "C" fn(*mut c_void), argument: *mut c_void) {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "sub rsp, {locals}",
        "test rdi, rdi",
        "jz 2f",
        "dec rdi",
        "call {again}",
        "jmp 3f",
        "2:",
        "mov rdi, rdx",
        "call rsi",
        "3:",
        "mov rsp, rbp",
        "pop rbp",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
        locals = const FRAME_BYTES - 16, // the return address and the frame pointer are the rest
        again = sym descend,
    )
}

/// Calls itself `depth` times, and then `then` with `argument`.
///
/// # Safety
///
/// `then` must accept `argument`.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn descend(depth: u64, then: extern "C" fn(*mut c_void), argument: *mut c_void) {
    naked_asm!(
        ".cfi_startproc",
        "stp x29, x30, [sp, #-{frame}]!",
        ".cfi_def_cfa_offset {frame}",
        ".cfi_offset x29, -{frame}",
        ".cfi_offset x30, 8 - {frame}",
        "mov x29, sp",
        "cbz x0, 2f",
        "sub x0, x0, #1",
        "bl {again}",
        "b 3f",
        "2:",
        "mov x0, x2",
        "blr x1",
        "3:",
        "ldp x29, x30, [sp], #{frame}",
        ".cfi_restore x29",
        ".cfi_restore x30",
        ".cfi_def_cfa_offset 0",
        "ret",
        ".cfi_endproc",
        frame = const FRAME_BYTES,
        again = sym descend,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_is_done_once_and_so_much_further_down() {
        let address = |depth| {
            let mut addresses = Vec::new();
            with_frames(depth, &mut || addresses.push(stack_pointer()));
            addresses
        };
        let (shallow, deep) = (address(10), address(60));
        assert_eq!((shallow.len(), deep.len()), (1, 1));
        assert_eq!(shallow[0].wrapping_sub(deep[0]), 50 * FRAME_BYTES);
    }

    #[inline(never)]
    fn stack_pointer() -> usize {
        let here = 0u8;
        std::hint::black_box(&raw const here).addr()
    }
}
