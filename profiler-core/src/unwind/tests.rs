//! Stacks put together by hand, and unwound by small tables.

use std::sync::Arc;

use proptest::prelude::*;

mod aarch64;
mod rare;
mod short;

use super::*;
use crate::elf::{ElfImage, Segment, UnwindTables};
use crate::machine::Machine;
use crate::process::{LoadedObject, ProcessTable};
use crate::record::{FileId, Mapped, RawData};
use crate::stack::ObjectId;

/// Where the program is mapped, which is where it states to be.
const TEXT: u64 = 0x40_0000;
const TEXT_BYTES: u64 = 0x10_000;
const STACK: u64 = 0x7ffc_0000_0000;
/// Code in no file.
const ANONYMOUS: u64 = 0x7f00_0000_1000;

/// The functions, each of 256 bytes.
const LEAF: u64 = TEXT + 0x100;
const BODY: u64 = TEXT + 0x200;
const START: u64 = TEXT + 0x300;
const REALIGNED: u64 = TEXT + 0x400;
const PING: u64 = TEXT + 0x500;
const PONG: u64 = TEXT + 0x600;
const HOSTILE: u64 = TEXT + 0x700;
/// A function without unwind information.
const ASSEMBLY: u64 = TEXT + 0x900;

const EH_FRAME: u64 = 0x50_0000;
const EH_FRAME_HDR: u64 = 0x4f_0000;

const DEF_CFA: u8 = 0x0c;
const DEF_CFA_OFFSET: u8 = 0x0e;
const DEF_CFA_EXPRESSION: u8 = 0x0f;
const VAL_EXPRESSION: u8 = 0x16;
const UNDEFINED: u8 = 0x07;
const SAVED_BP: u8 = 0x86;
const RBP: u8 = 6;
const RSP: u8 = 7;
const RA: u8 = 16;

fn jump_to(target: u64) -> Vec<u8> {
    let constant = [&[VAL_EXPRESSION, RA, 9, 0x0e][..], &target.to_le_bytes()].concat();
    [&[DEF_CFA, RSP, 0][..], &constant].concat()
}

fn functions(hostile: &[u8]) -> Vec<(u64, Vec<u8>)> {
    vec![
        (LEAF, vec![]),
        (BODY, vec![DEF_CFA_OFFSET, 16]),
        (START, vec![UNDEFINED, RA]),
        // What the library has no rule for: it goes a slower way, and remembers nothing.
        (REALIGNED, vec![DEF_CFA, RBP, 32, SAVED_BP, 2]),
        (PING, jump_to(PONG + 5)),
        (PONG, jump_to(PING + 5)),
        (HOSTILE, hostile.to_vec()),
    ]
}

/// `.eh_frame` and its index. The common entry: code alignment 1, data alignment -8; the frame's address is rsp + 8, the
/// return address is below it.
fn sections(functions: &[(u64, Vec<u8>)]) -> (Vec<u8>, Vec<u8>) {
    sections_of(&[&[0; 4], &[1, 0, 1, 0x78, RA], &[DEF_CFA, RSP, 8, 0x80 | RA, 1]], functions)
}

fn sections_of(common: &[&[u8]], functions: &[(u64, Vec<u8>)]) -> (Vec<u8>, Vec<u8>) {
    let entry = |body: &[&[u8]]| {
        let body = body.concat();
        [&(body.len() as u32).to_le_bytes()[..], &body].concat()
    };
    let relative = |svma: u64, base: u64| (svma.wrapping_sub(base) as u32).to_le_bytes();
    let mut frames = entry(common);
    let mut index = [1, 0x1b, 0x03, 0x3b].to_vec();
    index.extend(relative(EH_FRAME, EH_FRAME_HDR + 4));
    index.extend((functions.len() as u32).to_le_bytes());
    for (start, instructions) in functions {
        index.extend(relative(*start, EH_FRAME_HDR));
        index.extend(relative(EH_FRAME + frames.len() as u64, EH_FRAME_HDR));
        let back = frames.len() as u32 + 4;
        frames.extend(entry(&[
            &back.to_le_bytes(),
            &start.to_le_bytes(),
            &0x100u64.to_le_bytes(),
            instructions,
        ]));
    }
    (frames, index)
}

fn tables(hostile: &[u8], with_index: bool) -> UnwindTables {
    let (frames, index) = sections(&functions(hostile));
    UnwindTables::of_bytes(
        Machine::X86_64,
        Some((EH_FRAME, &frames)),
        with_index.then_some((EH_FRAME_HDR, &index)),
        None,
    )
}

fn image(tables: UnwindTables) -> ElfImage {
    let text = Segment { file_offset: 0, file_len: TEXT_BYTES, svma: TEXT, executable: true };
    ElfImage { segments: vec![text], tables, ..ElfImage::default() }
}

fn map(processes: &mut ProcessTable, start: u64, len: u64, image: Option<ElfImage>) {
    let (file, path) = (FileId::default(), String::new());
    let mapped = Mapped { pid: 1, start, len, file_offset: start - TEXT, file, path };
    let id = if image.is_some() { ObjectId(ObjectId::FIRST_FILE) } else { ObjectId::UNKNOWN };
    processes.mapped(&mapped, |_| LoadedObject { id, image: image.map(Arc::new) });
}

fn process(image: ElfImage) -> ProcessTable {
    let mut processes = ProcessTable::default();
    processes.adopt(1, "program");
    map(&mut processes, TEXT, TEXT_BYTES, Some(image));
    processes
}

fn program() -> ProcessTable {
    process(image(tables(&[], true)))
}

/// The general registers hold their numbers, but these two.
fn registers(ip: u64, sp: u64, bp: u64) -> UserRegs {
    let mut general = std::array::from_fn(|number| Some(number as u64));
    (general[usize::from(RSP)], general[usize::from(RBP)]) = (Some(sp), Some(bp));
    UserRegs::X86_64 { ip, general }
}

/// A stack that was copied whole, or of which there is more.
#[derive(Clone, Copy)]
enum Copied {
    Whole,
    More,
}

fn unwind_with(
    unwinder: &mut StackUnwinder,
    processes: &ProcessTable,
    (ip, sp, bp): (u64, u64, u64),
    words: &[u64],
    copied: Copied,
) -> (Vec<u64>, Unwound) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let requested = bytes.len() + usize::from(matches!(copied, Copied::Whole));
    let mut frames = Vec::new();
    let stack = StackCopy::new(RawData::Single(&bytes), requested);
    let regs = registers(ip, sp, bp);
    let unwound = unwinder.unwind(processes.get(1).unwrap(), regs, stack, &mut frames);
    (frames, unwound)
}

fn unwind(processes: &ProcessTable, ip: u64, bp: u64, words: &[u64], copied: Copied) -> (Vec<u64>, Outcome) {
    let mut unwinder = StackUnwinder::default();
    let (frames, unwound) = unwind_with(&mut unwinder, processes, (ip, STACK, bp), words, copied);
    (frames, unwound.outcome)
}

/// `LEAF`, called by `BODY`, called by `START`.
const THREE_FRAMES: [u64; 4] = [BODY + 5, 0, START + 5, 0];
const THREE_LOOKUPS: [u64; 3] = [LEAF, BODY + 4, START + 4];

#[test]
fn a_stack_is_unwound_to_the_function_that_has_no_caller() {
    for with_index in [true, false] {
        let processes = process(image(tables(&[], with_index)));
        let mut unwinder = StackUnwinder::default();
        for _ in 0..2 {
            let regs = (LEAF, STACK, 0xbad);
            let (frames, unwound) = unwind_with(&mut unwinder, &processes, regs, &THREE_FRAMES, Copied::More);
            assert_eq!(frames, THREE_LOOKUPS);
            assert_eq!(unwound, Unwound { outcome: Outcome::Complete, depth_bytes: 24 });
        }
    }
}

#[test]
fn a_caller_behind_the_copy_is_cut_off_and_one_behind_the_stack_is_wild() {
    let unwind = |words: usize, copied| unwind(&program(), LEAF, 0xbad, &THREE_FRAMES[..words], copied);
    assert_eq!(unwind(2, Copied::More), (THREE_LOOKUPS[..2].to_vec(), Outcome::CopyTooShort));
    assert_eq!(unwind(2, Copied::Whole), (THREE_LOOKUPS[..2].to_vec(), Outcome::Broken));
    assert_eq!(unwind(0, Copied::More), (vec![LEAF], Outcome::CopyTooShort));
    assert_eq!(unwind(3, Copied::More).1, Outcome::Complete);
}

#[test]
fn a_wild_return_address_is_no_frame_where_the_copy_ends_behind_it() {
    const DATA: u64 = 0x1234_5678;
    for bp in [STACK + 24 + 0x100, STACK + 24, STACK + (1 << 40)] {
        let found = unwind(&program(), LEAF, bp, &[BODY + 5, 0, DATA], Copied::More);
        assert_eq!(found, (vec![LEAF, BODY + 4], Outcome::Broken), "{bp:#x}");
    }
    let by_all_registers = [7, 7, STACK + 0x120, DATA];
    let found = unwind(&program(), REALIGNED, STACK, &by_all_registers, Copied::More);
    assert_eq!(found, (vec![REALIGNED], Outcome::Broken));
}

#[test]
fn a_word_that_the_copy_holds_only_half_of_is_cut_off() {
    let bytes = [1; 20]; // the frame pointer leads to the last four bytes
    let mut frames = Vec::new();
    let stack = StackCopy::new(RawData::Single(&bytes), bytes.len());
    let regs = registers(ANONYMOUS, STACK, STACK + 16);
    let processes = program();
    let unwound = StackUnwinder::default().unwind(processes.get(1).unwrap(), regs, stack, &mut frames);
    assert_eq!(unwound.outcome, Outcome::CopyTooShort);
}

#[test]
fn a_wild_return_address_breaks_the_stack() {
    for bp in [0, 0x1234, STACK - 8, STACK + (1 << 40), u64::MAX] {
        let (frames, outcome) = unwind(&program(), LEAF, bp, &[0xdead_0000, 1, 2, 3], Copied::More);
        assert_eq!((frames, outcome), (vec![LEAF], Outcome::Broken), "{bp:#x}");
    }
}

#[test]
fn generated_code_in_the_middle_is_passed_by_its_frame_pointer() {
    // `LEAF` < generated < `BODY` < `START`
    let words = [ANONYMOUS + 5, 7, 7, 0, BODY + 5, 0, START + 5, 0];
    let (frames, outcome) = unwind(&program(), LEAF, STACK + 24, &words, Copied::More);
    assert_eq!(frames, [LEAF, ANONYMOUS + 4, BODY + 4, START + 4]);
    assert_eq!(outcome, Outcome::Complete);
}

#[test]
fn a_stack_that_ends_in_generated_code_is_not_complete() {
    let mut processes = program();
    let found =
        |processes: &ProcessTable| unwind(processes, LEAF, 0, &[ANONYMOUS + 5, 0, 0, 0], Copied::More);
    // Where nobody has told of code, none was called.
    assert_eq!(found(&processes), (vec![LEAF], Outcome::Broken));
    map(&mut processes, ANONYMOUS & !0xfff, 0x1000, None);
    assert_eq!(found(&processes), (vec![LEAF, ANONYMOUS + 4], Outcome::NoTables));
}

/// A program whose start-up code is a function of the compiler's has a rule there as everywhere, and by it, the word that the kernel
/// leaves is a return address: the number of arguments.
#[test]
fn a_stack_ends_where_its_program_begins_whatever_the_rule() {
    let words = [BODY + 5, 1, STACK + 64, 0];
    let found = |is_program, ip, words: &[u64]| {
        let processes = process(ElfImage { entry: BODY, is_program, ..image(tables(&[], true)) });
        unwind(&processes, ip, 0, words, Copied::More)
    };
    assert_eq!(found(true, LEAF, &words), (vec![LEAF, BODY + 4], Outcome::Complete));
    assert_eq!(found(true, LEAF, &words[..1]), (vec![LEAF, BODY + 4], Outcome::Complete));
    // Of a library, linkers state the beginning of its code: a function like any other.
    assert_eq!(found(false, LEAF, &THREE_FRAMES), (THREE_LOOKUPS.to_vec(), Outcome::Complete));
    // So it is where all registers are followed.
    let rare = [7, 7, 7, 7, BODY + 5, 1];
    assert_eq!(found(true, REALIGNED, &rare).1, Outcome::Complete);
    let rare = [7, 7, STACK + 64, BODY + 5, 1, 1];
    let processes = process(ElfImage { entry: BODY, is_program: true, ..image(tables(&[], true)) });
    let (frames, outcome) = unwind(&processes, REALIGNED, STACK, &rare, Copied::More);
    assert_eq!((frames, outcome), (vec![REALIGNED, BODY + 4], Outcome::Complete));
}

#[test]
fn a_stack_ends_where_its_program_begins_without_tables() {
    let words = [ASSEMBLY + 5, 1, STACK + 64, 0];
    for (is_program, expected) in [(true, Outcome::Complete), (false, Outcome::NoTables)] {
        let processes = process(ElfImage { entry: ASSEMBLY, is_program, ..image(tables(&[], true)) });
        let found = unwind(&processes, LEAF, 0xbad, &words, Copied::More);
        assert_eq!(found, (vec![LEAF, ASSEMBLY + 4], expected));
    }
}

/// BLAKE3's loops over vectors save all registers before the frame pointer, and realign the stack below it.
#[test]
fn assembly_that_saved_its_callers_registers_first_is_left() {
    let processes = process(image(tables(&[], true)));
    let found = |saved: &[u64]| {
        let words = [&[7, 7, STACK + 900][..], saved, &THREE_FRAMES].concat();
        unwind(&processes, ASSEMBLY + 4, STACK + 16, &words, Copied::More)
    };
    let whole = [&[ASSEMBLY + 4][..], &THREE_LOOKUPS[1..]].concat();
    assert_eq!(found(&[1, 2, 3, 4, 5]), (whole, Outcome::Complete));
    let lost = (vec![ASSEMBLY + 4], Outcome::NoTables);
    assert_eq!(found(&[1, 2, 3, 4, 5, 6]), lost, "more than there are to save");
    assert_eq!(found(&[1, LEAF, 3, 4, 5, 6]), lost, "a pointer to a function is no return address");
}

/// A coroutine's first function runs for ever, and where its return address would be lies what the stack held before.
#[test]
fn what_never_returns_is_the_outermost_where_it_has_no_caller() {
    let advance = |bytes: u8| 0x40 | bytes;
    let set_up = vec![advance(4), DEF_CFA_OFFSET, 16];
    let cases = [
        (set_up.clone(), Outcome::Complete),
        ([&set_up[..], &[advance(40), DEF_CFA_OFFSET, 8]].concat(), Outcome::Broken),
        (vec![DEF_CFA_OFFSET, 16], Outcome::Broken), // the cold part of a function, which jumps back
    ];
    for (instructions, expected) in cases {
        let processes = process(image(tables(&instructions, true)));
        for garbage in [0x1234_5678_9abc, EH_FRAME] {
            let words = [HOSTILE + 9, 7, garbage, garbage];
            let found = unwind(&processes, LEAF, 0xbad, &words, Copied::Whole);
            assert_eq!(found, (vec![LEAF, HOSTILE + 8], expected), "{instructions:?}");
        }
        // A caller that is there is followed.
        let (frames, _) = unwind(&processes, LEAF, 0xbad, &[HOSTILE + 9, 7, START + 5], Copied::Whole);
        assert_eq!(frames, [LEAF, HOSTILE + 8, START + 4]);
    }
}

#[test]
fn a_chain_of_frame_pointers_ends_in_an_outermost_function_or_leads_into_data() {
    let processes = program();
    let mut unwinder = StackUnwinder::default();
    let mut end = |chain: &[u64]| {
        let mut chain = chain.to_vec();
        (unwinder.chain_end(processes.get(1).unwrap(), &mut chain), chain)
    };
    let whole = THREE_LOOKUPS.to_vec();
    let data = [0x1234, BODY + 4, START + 4];
    assert_eq!(end(&whole), (StackEnd::Outermost, whole.clone()));
    assert_eq!(end(&[&whole[..], &data].concat()), (StackEnd::Outermost, whole.clone()));
    // What the outermost function holds in the register may lead to a word that looks like a caller.
    assert_eq!(end(&[&whole[..], &[BODY + 4]].concat()), (StackEnd::Outermost, whole.clone()));
    assert_eq!(end(&[&whole[..], &[BODY + 4; 9]].concat()).0, StackEnd::Inner);
    assert_eq!(end(&whole[..2]), (StackEnd::Inner, whole[..2].to_vec()), "callers are missing");
    assert_eq!(end(&[&whole[..2], &data].concat()), (StackEnd::NoCode, whole[..2].to_vec()));
    assert_eq!(end(&[LEAF, LEAF - 1]), (StackEnd::OutermostBeginning, vec![LEAF, LEAF]));
    assert_eq!(
        end(&[ANONYMOUS]),
        (StackEnd::Inner, vec![ANONYMOUS]),
        "the sampled instruction is where it is"
    );
    assert_eq!(end(&[]), (StackEnd::Inner, vec![]));
}

#[test]
fn what_a_stack_ends_in_tells_whether_it_is_whole() {
    let advance = |bytes: u8| 0x40 | bytes;
    let processes = process(image(tables(&[advance(4), DEF_CFA_OFFSET, 16], true)));
    let mut unwinder = StackUnwinder::default();
    let mut end = |address, is_return| unwinder.end_at(processes.get(1).unwrap(), address, is_return);
    for _ in 0..2 {
        assert_eq!(end(START + 4, true), StackEnd::Outermost, "its table says so");
        assert_eq!(end(HOSTILE + 8, true), StackEnd::Outermost, "it never returns");
        assert_eq!(end(HOSTILE + 8, false), StackEnd::Inner, "what runs is called by something");
        assert_eq!(end(BODY + 4, true), StackEnd::Inner);
        // Before the first byte of a function no call lies, and in one none can.
        assert_eq!(end(BODY, true), StackEnd::Outermost, "the return address was put there");
        assert_eq!(end(LEAF - 1, true), StackEnd::OutermostBeginning);
        assert_eq!(end(TEXT + 0xa00, true), StackEnd::Unknown);
        assert_eq!(end(ANONYMOUS, true), StackEnd::Inner);
    }
}

#[test]
fn a_loop_of_frames_ends() {
    let (frames, outcome) = unwind(&program(), PING, 0, &[0; 4], Copied::More);
    assert_eq!((frames.len(), outcome), (MAX_FRAMES, Outcome::TooManyFrames));
}

#[test]
fn start_up_code_without_tables_is_complete_if_the_entry_point_called_it() {
    // BODY is called by ASSEMBLY, which uses the frame pointer for something else.
    let entry = ASSEMBLY + 0x100;
    let outcome = |called_from: u64| {
        let processes = process(ElfImage { entry, ..image(tables(&[], true)) });
        let words = [BODY + 5, 0, ASSEMBLY + 5, 7, called_from, 0];
        unwind(&processes, LEAF, 0xbad, &words, Copied::More).1
    };
    assert_eq!(outcome(entry + 0x16), Outcome::Complete);
    assert_eq!(outcome(entry), Outcome::NoTables); // nothing returns to the first instruction
    assert_eq!(outcome(entry + 0x80), Outcome::NoTables);
}

#[test]
fn a_frame_pointer_of_zero_marks_the_outermost_frame_even_without_tables() {
    // As musl starts a program: assembly code without unwind information clears the frame pointer.
    let words = [BODY + 5, 0, ASSEMBLY + 5, 0];
    let expected = vec![LEAF, BODY + 4, ASSEMBLY + 4];
    assert_eq!(unwind(&program(), LEAF, 0, &words, Copied::More), (expected.clone(), Outcome::Complete));
    assert_eq!(unwind(&program(), LEAF, 8, &words, Copied::More), (expected, Outcome::NoTables));
}

#[test]
fn behind_code_without_tables_two_words_of_data_are_no_frame() {
    // What the frame pointer leads to is a pair of numbers of the function's own.
    let data = [STACK + 4096, 0x5678];
    let called = [&[ASSEMBLY + 5, 7][..], &data].concat();
    let expected = (vec![LEAF, ASSEMBLY + 4], Outcome::NoTables);
    assert_eq!(unwind(&program(), LEAF, STACK + 16, &called, Copied::More), expected);
    let innermost = [&[7, 7][..], &data].concat();
    let expected = (vec![ASSEMBLY], Outcome::NoTables);
    assert_eq!(unwind(&program(), ASSEMBLY, STACK + 16, &innermost, Copied::More), expected);
    // The same of a stack that is followed with all registers.
    let rare = [&[0, 0, 0, STACK + 48, ASSEMBLY + 5, 7][..], &data].concat();
    let expected = (vec![REALIGNED, ASSEMBLY + 4], Outcome::NoTables);
    assert_eq!(unwind(&program(), REALIGNED, STACK + 8, &rare, Copied::More), expected);
}

#[test]
fn code_without_tables_that_called_back_lacks_its_caller_however_near_the_entry_is() {
    // LEAF < ASSEMBLY, as `bsearch` is that of some C libraries, < BODY, which is `main`, < ASSEMBLY < the entry.
    let entry = ASSEMBLY + 0x100;
    let found = |main: u64, bp: u64| {
        let processes = process(ElfImage { entry, ..image(tables(&[], true)) });
        let words = [ASSEMBLY + 5, 7, main, 7, ASSEMBLY + 5, 7, entry + 0x16];
        unwind(&processes, LEAF, bp, &words, Copied::More)
    };
    let frames = vec![LEAF, ASSEMBLY + 4];
    for bp in [0xbad, 0] {
        assert_eq!(found(BODY + 5, bp), (frames.clone(), Outcome::NoTables), "{bp:#x}");
        // A pointer to a function is no caller.
        assert_eq!(found(BODY, bp), (frames.clone(), Outcome::Complete), "{bp:#x}");
    }
}

#[test]
fn a_program_without_tables_is_unwound_by_frame_pointers_to_the_zero_at_their_end() {
    let processes = process(image(UnwindTables::default()));
    let words = [0, 0, STACK + 32, LEAF + 5, 0, START + 5];
    let (frames, outcome) = unwind(&processes, BODY, STACK + 16, &words, Copied::More);
    assert_eq!((frames, outcome), (vec![BODY, LEAF + 4, START + 4], Outcome::Complete));
    // In a function that computes with the register, zero means nothing.
    assert_eq!(unwind(&processes, BODY, 0, &words, Copied::More), (vec![BODY], Outcome::NoTables));
}

#[test]
fn a_signals_frame_leads_to_what_was_interrupted() {
    // `LEAF` handles a signal that hit `BODY`; nothing is known of the trampoline.
    let mut words = [&[ASSEMBLY + 5][..], &[0; 24], &[0xbad, START + 5]].concat();
    let context = |at: u64| 1 + at as usize / 8;
    let hit = [(0, 7), (120, 0xbad), (160, STACK + 200), (168, BODY), (176, 0x246), (184, 0x2b << 48 | 0x33)];
    hit.iter().for_each(|&(at, value)| words[context(at)] = value);
    let found = |words: &[u64]| unwind(&program(), LEAF, 0xbad, words, Copied::Whole);
    let frames = vec![LEAF, ASSEMBLY + 5, BODY, START + 4];
    assert_eq!(found(&words), (frames, Outcome::Complete));
    // Another record was not made by the kernel.
    for (at, value) in [(0, 8), (8, 1), (168, ANONYMOUS), (176, u64::MAX), (184, 0x10)] {
        let mut other = words.clone();
        other[context(at)] = value;
        assert_eq!(found(&other), (vec![LEAF, ASSEMBLY + 4], Outcome::NoTables), "{at}");
    }
}

#[test]
fn a_copy_too_short_for_a_rare_rule_spoils_no_later_stack() {
    let mut unwinder = StackUnwinder::default();
    let processes = program();
    let regs = (REALIGNED, STACK, STACK + 16);
    // The frame's address is rbp + 32; two words below it the caller's frame pointer.
    let words = [0, 0, 0, LEAF + 5, 0xbad, BODY + 5, 0, START + 5];
    let (frames, cut) = unwind_with(&mut unwinder, &processes, regs, &words[..4], Copied::More);
    assert_eq!((frames, cut.outcome), (vec![REALIGNED], Outcome::CopyTooShort));
    assert_eq!(unwinder.known.len(), 1, "its rule is not looked up again");
    let (frames, whole) = unwind_with(&mut unwinder, &processes, regs, &words, Copied::More);
    assert_eq!((frames, whole.outcome), (vec![REALIGNED, BODY + 4, START + 4], Outcome::Complete));
}

#[test]
fn a_32_bit_task_is_not_unwound_by_64_bit_rules() {
    let regs = UserRegs::Narrow { ip: LEAF };
    let bytes: Vec<u8> = THREE_FRAMES.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut frames = Vec::new();
    let stack = StackCopy::new(RawData::Single(&bytes), bytes.len());
    let processes = program();
    let unwound = StackUnwinder::default().unwind(processes.get(1).unwrap(), regs, stack, &mut frames);
    assert_eq!((frames, unwound), (vec![LEAF], Unwound { outcome: Outcome::Narrow, depth_bytes: 0 }));
}

#[test]
fn what_is_left_of_a_mapping_keeps_its_tables() {
    let mut processes = program();
    map(&mut processes, TEXT + 0x4000, 0x1000, None);
    let unwound = || unwind(&processes, LEAF, 0xbad, &THREE_FRAMES, Copied::More);
    assert_eq!(unwound(), (THREE_LOOKUPS.to_vec(), Outcome::Complete));
}

#[test]
fn a_file_mapped_in_pieces_is_unwound_in_each() {
    let mut processes = ProcessTable::default();
    processes.adopt(1, "program");
    for piece in [TEXT, TEXT + 0x1000, TEXT + 0x2000] {
        map(&mut processes, piece, 0x1000, Some(image(tables(&[], true))));
    }
    let unwound = unwind(&processes, LEAF, 0xbad, &THREE_FRAMES, Copied::More);
    assert_eq!(unwound, (THREE_LOOKUPS.to_vec(), Outcome::Complete));
}

/// Tables that the library would evaluate without end, or overflow on.
#[test]
fn hostile_tables_count_as_none_and_harm_no_other_function() {
    let endless = [DEF_CFA_EXPRESSION, 3, 0x2f, 0xfd, 0xff];
    let endless_and_growing = [DEF_CFA_EXPRESSION, 4, 0x30, 0x2f, 0xfc, 0xff];
    let endless_register = [VAL_EXPRESSION, RA, 3, 0x2f, 0xfd, 0xff];
    let frame_at_zero = [DEF_CFA_EXPRESSION, 1, 0x30];
    let frame_below_zero = [0x13, 0x7f, 0x80 | RA, 1, DEF_CFA, RBP, 0];
    let saved_far_away = [5, RBP, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f];
    let long = [0; 70_000];
    let hostile: [&[u8]; 7] = [
        &endless,
        &endless_and_growing,
        &endless_register,
        &frame_at_zero,
        &frame_below_zero,
        &saved_far_away,
        &long,
    ];
    for instructions in hostile {
        let processes = process(image(tables(instructions, true)));
        let unwind = |ip| unwind(&processes, ip, 0, &THREE_FRAMES, Copied::More);
        // Without tables, the word on top is taken for the return address.
        assert_eq!(unwind(HOSTILE).0[0], HOSTILE, "{instructions:?}");
        assert_eq!(unwind(LEAF), (THREE_LOOKUPS.to_vec(), Outcome::Complete), "{instructions:?}");
        assert!(tables(instructions, false).is_empty(), "{instructions:?}");
    }
}

#[test]
fn an_index_that_points_below_the_tables_is_vetted_too() {
    let (frames, mut index) = sections(&functions(&[]));
    // The information of the second function, `BODY`.
    index[24..28].copy_from_slice(&0i32.to_le_bytes());
    let tables = UnwindTables::of_bytes(
        Machine::X86_64,
        Some((EH_FRAME, &frames)),
        Some((EH_FRAME_HDR, &index)),
        None,
    );
    let processes = process(image(tables));
    let (frames, outcome) = unwind(&processes, LEAF, 0xbad, &THREE_FRAMES, Copied::More);
    assert_eq!((frames, outcome), (THREE_LOOKUPS[..2].to_vec(), Outcome::Broken));
}

#[test]
fn what_compilers_and_linkers_write_is_kept() {
    let trampoline = vec![DEF_CFA_EXPRESSION, 3, 0x77, 0xa0, 1];
    let linkage = vec![DEF_CFA_EXPRESSION, 11, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
    let realigned = vec![DEF_CFA_EXPRESSION, 3, 0x76, 0x78, 0x06];
    let context_switch = vec![DEF_CFA, 5, 0];
    for instructions in [trampoline, linkage, realigned, context_switch] {
        let (frames, index) = sections(&functions(&instructions));
        let tables = UnwindTables::of_bytes(
            Machine::X86_64,
            Some((EH_FRAME, &frames)),
            Some((EH_FRAME_HDR, &index)),
            None,
        );
        assert_eq!(tables.eh_frame_hdr.unwrap().bytes[..], index[..], "{instructions:?}");
    }
}

#[test]
fn registers_and_addresses_at_the_edges_do_not_overflow() {
    let edges = [0, 1, 7, 8, 4095, 4096, (1 << 63) - 1, 1 << 63, u64::MAX - 160, u64::MAX];
    let trampoline = [DEF_CFA_EXPRESSION, 3, 0x77, 0xa0, 1];
    let processes = process(image(tables(&trampoline, true)));
    let unwind = |regs| {
        unwind_with(&mut StackUnwinder::default(), &processes, regs, &[0; 4], Copied::More);
    };
    for ip in [LEAF, PING, REALIGNED, HOSTILE, ASSEMBLY, ANONYMOUS] {
        edges.iter().for_each(|&sp| edges.iter().for_each(|&bp| unwind((ip, sp, bp))));
    }
    let mut far = image(tables(&[], true));
    far.segments[0].svma = !0xfff;
    let _ =
        unwind_with(&mut StackUnwinder::default(), &process(far), (LEAF, STACK, 0), &[0; 4], Copied::More);
}

proptest! {
    #[test]
    fn any_instructions_end(
        instructions in prop::collection::vec(any::<u8>(), 0..40),
        words in prop::collection::vec(prop_oneof![Just(HOSTILE + 5), any::<u64>()], 0..40),
        bp in prop_oneof![0..2000u64, Just(STACK), STACK..STACK + 400, any::<u64>()],
    ) {
        let processes = process(image(tables(&instructions, true)));
        let (frames, _) = unwind(&processes, HOSTILE + 4, bp, &words, Copied::More);
        prop_assert!(frames.len() <= MAX_FRAMES);
    }

    #[test]
    fn the_cache_never_answers_for_code_that_was_replaced(changes in prop::collection::vec(0usize..3, 1..60)) {
        // Three programs in turn at the same addresses, whose `BODY` has frames of different sizes.
        let programs = [8, 16, 24].map(|bytes| {
            let mut functions = functions(&[]);
            functions[1].1 = vec![DEF_CFA_OFFSET, bytes];
            let (frames, index) = sections(&functions);
            image(UnwindTables::of_bytes(Machine::X86_64, Some((EH_FRAME, &frames)), Some((EH_FRAME_HDR, &index)), None))
        });
        let mut unwinder = StackUnwinder::default();
        let mut processes = program();
        for program in changes {
            processes.renamed(1, 1, "next", true);
            map(&mut processes, TEXT, TEXT_BYTES, Some(programs[program].clone()));
            unwinder.note_change();
            let mut words = [0xbad; 6];
            (words[0], words[program + 1]) = (BODY + 5, START + 5);
            let (frames, unwound) =
                unwind_with(&mut unwinder, &processes, (LEAF, STACK, 0), &words, Copied::More);
            prop_assert_eq!(frames, THREE_LOOKUPS);
            prop_assert_eq!(unwound.outcome, Outcome::Complete);
        }
    }
}

#[test]
fn the_cache_is_renewed_before_the_librarys_count_wraps_around() {
    let mut unwinder = StackUnwinder::default();
    for change in 1..100_000u32 {
        unwinder.note_change();
        assert!(unwinder.changes <= change.min(CACHE_LIFE_CHANGES));
    }
}

#[test]
fn a_copy_of_nothing_is_no_stack_and_no_contradiction() {
    let processes = process(image(tables(&[], true)));
    let call = |ip| {
        let UserRegs::X86_64 { ip, mut general } = registers(ip, STACK, 0) else { unreachable!() };
        general[2] = Some(ip); // where a system call returns to
        let stack = StackCopy::new(RawData::Single(&[]), 8);
        let (mut frames, regs) = (Vec::new(), UserRegs::X86_64 { ip, general });
        let process = processes.get(1).unwrap();
        (StackUnwinder::default().unwind(process, regs, stack, &mut frames).outcome, frames)
    };
    assert_eq!(call(LEAF), (Outcome::NoUserStack, vec![]), "it executes another program");
    assert_eq!(
        unwind(&processes, LEAF, 0, &[], Copied::Whole),
        (vec![LEAF], Outcome::StackAbsent),
        "a fault"
    );
    // The code of the program before, which is mapped no more.
    assert_eq!(unwind(&processes, STACK - 64, 0, &[], Copied::Whole), (vec![], Outcome::NoUserStack));
}

/// The kernel copies up to a page that is not in memory, and the stack goes on behind it.
#[test]
fn a_stack_behind_a_missing_page_is_absent() {
    let processes = process(image(tables(&[], true)));
    let page = [BODY + 5; 512];
    let found = |bp: u64, words: &[u64]| unwind(&processes, REALIGNED, bp, words, Copied::Whole);
    assert_eq!(found(STACK + 4200, &page), (vec![REALIGNED], Outcome::StackAbsent));
    // Neither a copy that ends within a page nor a wild address is a page's doing.
    assert_eq!(found(STACK + 4200, &page[1..]).1, Outcome::Broken);
    assert_eq!(found(STACK + (1 << 30), &page).1, Outcome::Broken);
}
