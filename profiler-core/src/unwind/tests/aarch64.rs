//! The same for aarch64, on whatever machine the tests run: what differs is the register that holds the return address,
//! its signature, and the frames of signals.

use super::*;

const FP: u8 = 29;
const LR: u8 = 30;
const SP: u8 = 31;
const SAVED: u8 = 0x80;
const NEGATE_RA_STATE: u8 = 0x2d;
/// A function that signs its return address.
const SIGNED: u64 = REALIGNED;
/// Where a signature is, in a process whose highest addresses have 47 bits.
const SIGNATURE: u64 = 0x0055_8000_0000_0000;
/// Where the kernel puts things in the frame of a signal, in words.
const SIGNAL_WORDS: usize = 586;
const SAVED_WORDS: usize = 68;

/// The common entry: code alignment 1, data alignment -8; the frame's address is the stack pointer.
fn tables(machine: Machine, hostile: &[u8]) -> UnwindTables {
    let saved = |bytes: u8| vec![DEF_CFA_OFFSET, bytes, SAVED | FP, bytes / 8, SAVED | LR, bytes / 8 - 1];
    let functions = [
        (LEAF, vec![]),
        (BODY, saved(32)),
        (START, vec![UNDEFINED, LR]),
        (SIGNED, [vec![NEGATE_RA_STATE], saved(16), vec![NEGATE_RA_STATE]].concat()),
        (HOSTILE, hostile.to_vec()),
    ];
    let (frames, index) = sections_of(&[&[0; 4], &[1, 0, 1, 0x78, LR], &[DEF_CFA, SP, 0]], &functions);
    UnwindTables::of_bytes(machine, Some((EH_FRAME, &frames)), Some((EH_FRAME_HDR, &index)), None)
}

#[derive(Clone, Copy)]
struct Regs {
    pc: u64,
    lr: u64,
    fp: u64,
}

fn unwind_at(processes: &ProcessTable, regs: Regs, sp: u64, words: &[u64]) -> (Vec<u64>, Unwound) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let stack = StackCopy::new(RawData::Single(&bytes), bytes.len());
    let regs = UserRegs::Aarch64 { pc: regs.pc, sp, lr: regs.lr, fp: regs.fp };
    let mut frames = Vec::new();
    let process = processes.get(1).unwrap();
    let unwound = StackUnwinder::default().unwind(process, regs, stack, &mut frames);
    (frames, unwound)
}

fn unwind(regs: Regs, words: &[u64]) -> (Vec<u64>, Outcome) {
    let processes = process(image(tables(Machine::Aarch64, &[])));
    let (frames, unwound) = unwind_at(&processes, regs, STACK, words);
    (frames, unwound.outcome)
}

#[test]
fn a_leafs_caller_is_in_the_register_and_the_others_are_on_the_stack() {
    let regs = Regs { pc: LEAF, lr: BODY + 5, fp: 0xbad };
    let processes = process(image(tables(Machine::Aarch64, &[])));
    let (frames, unwound) = unwind_at(&processes, regs, STACK, &[0, START + 5, 7, 7]);
    assert_eq!(frames, THREE_LOOKUPS);
    assert_eq!(unwound, Unwound { outcome: Outcome::Complete, depth_bytes: 32 });
}

#[test]
fn signatures_are_taken_off_return_addresses() {
    let words = [1, (BODY + 5) | SIGNATURE, 0, (START + 5) | SIGNATURE, 7, 7];
    // What the register holds in the middle of a function is no return address.
    let regs = Regs { pc: SIGNED + 9, lr: 0xbad, fp: 0xbad };
    let expected = vec![SIGNED + 9, BODY + 4, START + 4];
    assert_eq!(unwind(regs, &words), (expected, Outcome::Complete));
    let regs = Regs { pc: LEAF, lr: (BODY + 5) | SIGNATURE, fp: 0xbad };
    assert_eq!(unwind(regs, &words[2..]), (THREE_LOOKUPS.to_vec(), Outcome::Complete));
}

#[test]
fn a_signals_frame_leads_to_what_was_interrupted() {
    // `LEAF` handles a signal that hit `LEAF`: both callers of leaves are in registers, one of them saved.
    let mut words = vec![0; SIGNAL_WORDS];
    let above = STACK + 8 * (SIGNAL_WORDS as u64 + 2);
    words[SAVED_WORDS..SAVED_WORDS + 4].copy_from_slice(&[0xf00, BODY + 5, above, LEAF + 0x10]);
    words.extend([0xf00, BODY + 5]); // the record that the frame pointer leads to
    words.extend([0, START + 5, 7, 7]);
    let regs = Regs { pc: LEAF, lr: ANONYMOUS, fp: STACK + 8 * SIGNAL_WORDS as u64 };
    let expected = vec![LEAF, ANONYMOUS, LEAF + 0x10, BODY + 4, START + 4];
    assert_eq!(unwind(regs, &words), (expected, Outcome::Complete));
    // A record that holds something else was not made by the kernel.
    words[SIGNAL_WORDS] += 16;
    assert_eq!(unwind(regs, &words), (vec![LEAF], Outcome::Broken));
}

#[test]
fn a_frame_pointer_of_zero_marks_the_outermost_frame() {
    let outermost = |fp| unwind(Regs { pc: LEAF, lr: ASSEMBLY + 5, fp }, &[0; 4]);
    assert_eq!(outermost(0), (vec![LEAF, ASSEMBLY + 4], Outcome::Complete));
    assert_eq!(outermost(8), (vec![LEAF, ASSEMBLY + 4], Outcome::NoTables));
}

#[test]
fn a_frame_pointer_of_zero_hides_no_caller() {
    let by_frame_pointer = [DEF_CFA, FP, 16, SAVED | FP, 2, SAVED | LR, 1];
    let processes = process(image(tables(Machine::Aarch64, &by_frame_pointer)));
    let found = |caller| {
        let regs = Regs { pc: LEAF, lr: HOSTILE + 5, fp: STACK + 16 };
        let (frames, unwound) = unwind_at(&processes, regs, STACK, &[7, 7, 0, caller, 7, 7]);
        (frames, unwound.outcome)
    };
    assert_eq!(found(START + 5), (vec![LEAF, HOSTILE + 4, START + 4], Outcome::Complete));
    assert_eq!(found((START + 5) | SIGNATURE), found(START + 5));
    assert_eq!(found(0), (vec![LEAF, HOSTILE + 4], Outcome::Complete));
    assert_eq!(found(ANONYMOUS), found(0));
}

#[test]
fn tables_of_another_machine_are_not_evaluated() {
    let processes = process(image(tables(Machine::X86_64, &[])));
    let regs = Regs { pc: LEAF, lr: BODY + 5, fp: 0xbad };
    assert_eq!(unwind_at(&processes, regs, STACK, &[0, START + 5, 7, 7]).0, [LEAF]);
}

#[test]
fn endless_expressions_count_as_no_tables() {
    let endless = [DEF_CFA_EXPRESSION, 3, 0x2f, 0xfd, 0xff];
    let processes = process(image(tables(Machine::Aarch64, &endless)));
    let regs = Regs { pc: HOSTILE, lr: BODY + 5, fp: 0 };
    let (frames, unwound) = unwind_at(&processes, regs, STACK, &[0; 4]);
    assert_eq!((frames, unwound.outcome), (vec![HOSTILE], Outcome::Broken));
}

#[test]
fn registers_at_the_edges_do_not_overflow() {
    let edges = [0, 1, 7, 8, 4096, STACK, STACK + 8, (1 << 63) - 1, 1 << 63, u64::MAX - 4096, u64::MAX];
    let processes = process(image(tables(Machine::Aarch64, &[DEF_CFA, FP, 0xff, 0x7f])));
    for pc in [LEAF, BODY, SIGNED, HOSTILE, ASSEMBLY, ANONYMOUS, 0, u64::MAX] {
        for (sp, fp) in edges.iter().flat_map(|&sp| edges.map(|fp| (sp, fp))) {
            edges.iter().for_each(|&lr| _ = unwind_at(&processes, Regs { pc, lr, fp }, sp, &[0; 4]));
        }
    }
}

proptest! {
    #[test]
    fn any_instructions_end(
        instructions in prop::collection::vec(any::<u8>(), 0..40),
        words in prop::collection::vec(prop_oneof![Just(HOSTILE + 5), any::<u64>()], 0..40),
        fp in prop_oneof![0..2000u64, Just(STACK), STACK..STACK + 400, any::<u64>()],
    ) {
        let processes = process(image(tables(Machine::Aarch64, &instructions)));
        let regs = Regs { pc: HOSTILE + 4, lr: HOSTILE + 9, fp };
        prop_assert!(unwind_at(&processes, regs, STACK, &words).0.len() <= MAX_FRAMES);
    }
}
