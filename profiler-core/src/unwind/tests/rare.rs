//! Frames that only all registers lead out of, and tables beside the usual ones.

use super::*;

const RBX: u8 = 3;
const EXPRESSION: u8 = 0x10;
const SAVED_BX: u8 = 0x80 | RBX;
/// A function that finds its frame by `rbx`, as lazy binding does.
const BINDER: u64 = TEXT + 0x700;
/// Where the kernel puts a signal's frame, from the stack pointer in its trampoline.
const SAVED_BP_AT: u64 = 120;
const SAVED_SP_AT: u64 = 160;
const SAVED_IP_AT: u64 = 168;

/// `DW_OP_breg7 (rsp)` and an offset.
fn from_rsp(offset: u64) -> Vec<u8> {
    vec![0x77, (offset & 0x7f) as u8 | 0x80, (offset >> 7) as u8]
}

fn sized(expression: &[u8]) -> Vec<u8> {
    [&[expression.len() as u8], expression].concat()
}

/// As the C library describes what a handler returns to.
fn trampoline() -> Vec<u8> {
    let saved = |register: u8, offset: u64| [&[EXPRESSION, register][..], &sized(&from_rsp(offset))].concat();
    let frame = [&from_rsp(SAVED_SP_AT)[..], &[0x06]].concat();
    let mut instructions = [&[DEF_CFA_EXPRESSION][..], &sized(&frame)].concat();
    instructions.extend(saved(RBP, SAVED_BP_AT));
    instructions.extend(saved(RSP, SAVED_SP_AT));
    instructions.extend(saved(RA, SAVED_IP_AT));
    instructions
}

/// The sections with a second common entry for signal frames, which the last function belongs to.
fn with_trampoline() -> UnwindTables {
    let (mut frames, _) = sections(&functions(&[])[..6]);
    let entry = |body: &[&[u8]]| {
        let body = body.concat();
        [&(body.len() as u32).to_le_bytes()[..], &body].concat()
    };
    let common_at = frames.len();
    // Augmented with `S`.
    frames.extend(entry(&[&[0; 4], &[1, b'S', 0, 1, 0x78, RA], &[DEF_CFA, RSP, 8, 0x80 | RA, 1]]));
    let back = (frames.len() - common_at) as u32 + 4;
    let instructions = trampoline();
    frames.extend(entry(&[
        &back.to_le_bytes(),
        &HOSTILE.to_le_bytes(),
        &0x100u64.to_le_bytes(),
        &instructions,
    ]));
    UnwindTables::of_bytes(Machine::X86_64, Some((EH_FRAME, &frames)), None, None)
}

/// `LEAF` as the handler, below the kernel's frame for a signal that hit `ip` with its stack at `sp`.
fn signalled(ip: u64, sp: u64, bp: u64) -> Vec<u64> {
    let mut words = vec![HOSTILE + 1];
    words.resize(1 + 32, 0xbad);
    for (at, word) in [(SAVED_BP_AT, bp), (SAVED_SP_AT, sp), (SAVED_IP_AT, ip)] {
        words[1 + at as usize / 8] = word;
    }
    words
}

#[test]
fn a_signal_is_followed_to_the_very_instruction_that_it_hit() {
    // The first instruction of `BODY`, whose caller is `START`: a byte before lies `LEAF`'s last.
    let mut words = signalled(BODY, STACK + 33 * 8, 0xbad);
    words.extend([0, START + 5]);
    let processes = process(image(with_trampoline()));
    let (frames, outcome) = unwind(&processes, LEAF, 0, &words, Copied::More);
    assert_eq!(frames, [LEAF, HOSTILE + 1, BODY, START + 4]);
    assert_eq!(outcome, Outcome::Complete);
}

#[test]
fn what_is_returned_to_at_its_beginning_is_the_outermost() {
    // As a fiber's first function returns to what ends the fiber; nothing lies before it.
    let words = [7, LEAF, 7, 7, START + 5];
    let (frames, outcome) = unwind(&process(image(tables(&[], true))), BODY, 0, &words, Copied::More);
    assert_eq!((frames, outcome), (vec![BODY, LEAF], Outcome::Complete));
}

#[test]
fn a_frame_whose_address_lies_below_the_stack_pointer_is_found_by_its_copy() {
    // `DW_OP_breg7 (rsp) -8; DW_OP_deref; DW_OP_plus_uconst 8`
    let red_zone = [DEF_CFA_EXPRESSION, 5, 0x77, 0x78, 0x06, 0x23, 8];
    let processes = process(image(tables(&red_zone, true)));
    let unwind = |words: &[u64]| unwind(&processes, HOSTILE, 0, words, Copied::More);
    // Neither a word that leads down nor one that leads to no code counts.
    let words = [STACK, STACK + 24, STACK + 40, 1, 2, START + 5];
    assert_eq!(unwind(&words), (vec![HOSTILE, START + 4], Outcome::Complete));
    assert_eq!(unwind(&[STACK, STACK + 24, 1, 2, 3, START + 5]), (vec![HOSTILE], Outcome::Broken));
}

#[test]
fn a_signal_on_a_stack_of_its_own_is_followed_to_where_it_hit_and_the_rest_is_elsewhere() {
    let elsewhere = STACK + (1 << 32);
    let processes = process(image(with_trampoline()));
    let (frames, outcome) = unwind(&processes, LEAF, 0, &signalled(BODY, elsewhere, 0), Copied::Whole);
    assert_eq!((frames, outcome), (vec![LEAF, HOSTILE + 1, BODY], Outcome::OtherStack));
}

#[test]
fn a_frame_is_found_by_a_register_that_an_inner_function_saved() {
    let mut functions = functions(&[DEF_CFA, RBX, 24]);
    functions[1].1 = vec![DEF_CFA_OFFSET, 24, SAVED_BX, 2];
    let (frames, index) = sections(&functions);
    let tables = UnwindTables::of_bytes(
        Machine::X86_64,
        Some((EH_FRAME, &frames)),
        Some((EH_FRAME_HDR, &index)),
        None,
    );
    // BODY keeps its caller's rbx, by which BINDER finds its frame, behind 40 bytes of its own.
    let words = [0, STACK + 64, BINDER + 5, 1, 2, 3, 4, 5, 6, 7, START + 5];
    let (frames, outcome) = unwind(&process(image(tables)), BODY, 0, &words, Copied::More);
    assert_eq!(frames, [BODY, BINDER + 4, START + 4]);
    assert_eq!(outcome, Outcome::Complete);
}

/// As in hand-written ciphers: the caller keeps the address of its frame in `rax`, which its own piece of code leaves alone.
#[test]
fn a_frame_is_found_by_a_register_that_the_callee_leaves_alone() {
    const RAX: u8 = 0;
    let processes = process(image(tables(&[DEF_CFA, RAX, 8], true)));
    let words = [HOSTILE + 5, 7, 7, 7, START + 5];
    let found = |rax: u64| {
        let UserRegs::X86_64 { ip, mut general } = registers(LEAF, STACK, 0xbad) else { unreachable!() };
        general[usize::from(RAX)] = Some(rax);
        let bytes: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        let stack = StackCopy::new(RawData::Single(&bytes), bytes.len() + 1);
        let (mut frames, regs) = (Vec::new(), UserRegs::X86_64 { ip, general });
        let process = processes.get(1).unwrap();
        (StackUnwinder::default().unwind(process, regs, stack, &mut frames).outcome, frames)
    };
    assert_eq!(found(STACK + 32), (Outcome::Complete, vec![LEAF, HOSTILE + 4, START + 4]));
    // A number that the callee left there leads nowhere.
    assert_eq!(found(7), (Outcome::Broken, vec![LEAF, HOSTILE + 4]));
    assert_eq!(found(STACK - 64), (Outcome::Broken, vec![LEAF, HOSTILE + 4]));
}

#[test]
fn a_realigned_frame_is_found_through_memory() {
    // rbp - 8 holds the frame's address; the word there is not the one that the frame pointer leads to.
    let realigned = [DEF_CFA_EXPRESSION, 3, 0x76, 0x78, 0x06, EXPRESSION, RBP, 2, 0x76, 0];
    let tables = tables(&realigned, true);
    let words = [STACK + 40, 0xbad, 0xbad, 7, START + 5];
    let (frames, outcome) = unwind(&process(image(tables)), HOSTILE, STACK + 8, &words, Copied::More);
    assert_eq!((frames, outcome), (vec![HOSTILE, START + 4], Outcome::Complete));
}

#[test]
fn what_one_table_does_not_cover_is_looked_up_in_the_other() {
    let (eh_frame, index) = sections(&functions(&[])[2..3]); // `START`, as start-up code has it
    let (debug_frame, _) = sections(&functions(&[])[..2]);
    // There, a common entry is marked otherwise, and entries point to it from the section's start.
    let mut debug_frame = debug_frame;
    debug_frame[4..8].fill(0xff);
    let common_bytes = u32::from_le_bytes(debug_frame[..4].try_into().unwrap()) as usize + 4;
    let mut at = common_bytes;
    while at < debug_frame.len() {
        let bytes = u32::from_le_bytes(debug_frame[at..at + 4].try_into().unwrap()) as usize + 4;
        debug_frame[at + 4..at + 8].fill(0);
        at += bytes;
    }
    let eh_frame = Some((EH_FRAME, &eh_frame[..]));
    let both = UnwindTables::of_bytes(
        Machine::X86_64,
        eh_frame,
        Some((EH_FRAME_HDR, &index)),
        Some((0, &debug_frame)),
    );
    assert!(both.debug_frame.is_some());
    let unwound = unwind(&process(image(both)), LEAF, 0xbad, &THREE_FRAMES, Copied::More);
    assert_eq!(unwound, (THREE_LOOKUPS.to_vec(), Outcome::Complete));
    let one = UnwindTables::of_bytes(Machine::X86_64, eh_frame, Some((EH_FRAME_HDR, &index)), None);
    let unwound = unwind(&process(image(one)), LEAF, 0xbad, &THREE_FRAMES, Copied::More);
    assert_eq!(unwound.1, Outcome::NoTables);
}
