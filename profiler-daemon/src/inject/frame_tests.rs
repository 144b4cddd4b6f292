//! Frames by themselves; that the kernel takes them is seen where processes come back by them (`tests/tests/injection`).

use super::*;

fn registers() -> user_regs_struct {
    // SAFETY-free: every field is a number.
    user_regs_struct {
        r15: 15,
        r14: 14,
        r13: 13,
        r12: 12,
        rbp: 6,
        rbx: 3,
        r11: 11,
        r10: 10,
        r9: 9,
        r8: 8,
        rax: 1,
        rcx: 2,
        rdx: 4,
        rsi: 5,
        rdi: 7,
        orig_rax: u64::MAX,
        rip: 0x40_1000,
        cs: 0x33,
        eflags: 0x246,
        rsp: 0x7fff_0000_1238,
        ss: 0x2b,
        fs_base: 0,
        gs_base: 0,
        ds: 0,
        es: 0,
        fs: 0,
        gs: 0,
    }
}

fn word(frame: &SignalFrame, offset: usize) -> u64 {
    u64::from_le_bytes(frame.bytes[offset..offset + 8].try_into().unwrap())
}

#[test]
fn a_frame_lies_below_the_red_zone_and_is_aligned_as_a_function_expects() {
    for sp in 0x7fff_0000_1200..0x7fff_0000_1280 {
        let frame = SignalFrame::new(&user_regs_struct { rsp: sp, ..registers() }, &[0; 2696], 0, 77);
        assert_eq!(frame.at % 16, 8);
        assert_eq!(word(&frame, at::STATE) % 64, 0, "the processor asks for it");
        assert!(frame.scratch + SCRATCH_BYTES <= sp - RED_ZONE);
        assert_eq!(frame.at + frame.bytes.len() as u64, frame.scratch);
        assert!(word(&frame, at::STATE) >= frame.at + at::END as u64);
        assert!(word(&frame, at::STATE) + 2700 <= frame.scratch);
        assert_eq!(word(&frame, 0), 77);
    }
}

#[test]
fn registers_mask_and_state_are_in_their_places() {
    let mut state = vec![9; 2696];
    state[STATE_WORDS_AT..STATE_WORDS_AT + 8].copy_from_slice(&0x207_u64.to_le_bytes());
    let frame = SignalFrame::new(&registers(), &state, 0xabc, 77);
    assert_eq!(word(&frame, at::REGISTERS + 8 * 15), 0x7fff_0000_1238, "the stack pointer");
    assert_eq!(word(&frame, at::REGISTERS + 8 * 16), 0x40_1000, "the instruction pointer");
    assert_eq!((word(&frame, at::MASK), word(&frame, at::SELECTORS)), (0xabc, 0x2b << 48 | 0x33));
    let state_at = (word(&frame, at::STATE) - frame.at) as usize;
    assert_eq!(word(&frame, state_at + STATE_WORDS_AT), 2700 << 32 | u64::from(STATE_MAGIC));
    assert_eq!(word(&frame, state_at + STATE_WORDS_AT + 8), 0x207);
    assert_eq!(word(&frame, state_at + 2696) as u32, STATE_END_MAGIC);
}

#[test]
fn only_what_was_interrupted_begins_again() {
    let stopped = |number: i64, answer: i64| user_regs_struct {
        orig_rax: number as u64,
        rax: answer as u64,
        ..registers()
    };
    for error in RESTARTS {
        let again = begun_again(&stopped(libc::SYS_poll, error));
        assert_eq!((again.rax, again.rip), (libc::SYS_poll as u64, 0x40_1000 - 2));
        let by_kernel = unended(&stopped(libc::SYS_poll, error));
        assert_eq!((by_kernel.rax as i64, by_kernel.rip), (error, 0x40_1000));
    }
    for number in [libc::SYS_epoll_wait, libc::SYS_recvfrom, libc::SYS_read] {
        let ended = stopped(number, -4);
        assert_eq!((unended(&ended).rip, begun_again(&ended).rip), (0x40_1000 - 2, 0x40_1000 - 2));
    }
    let connects = stopped(libc::SYS_connect, -4); // goes on by itself, and cannot be begun twice
    let of_32_bits = user_regs_struct { cs: 0x23, ..stopped(libc::SYS_read, -4) };
    for told in
        [connects, of_32_bits, stopped(libc::SYS_read, -11), stopped(libc::SYS_epoll_wait, 3), registers()]
    {
        assert_eq!((begun_again(&told).rip, begun_again(&told).rax), (told.rip, told.rax));
    }
}
