//! Frames that are followed without the library give what it gives.

use framehop::Unwinder as _;
use framehop::x86_64::CacheX86_64;

use super::*;
use crate::elf::rules::ByShortRule;

fn one_function(instructions: Vec<u8>) -> ProcessTable {
    let (frames, index) = sections(&[(BODY, instructions), (BODY + 0x100, vec![])]);
    let tables = UnwindTables::of_bytes(
        Machine::X86_64,
        Some((EH_FRAME, &frames)),
        Some((EH_FRAME_HDR, &index)),
        None,
    );
    process(image(tables))
}

#[test]
fn the_library_is_not_entered_for_usual_frames() {
    let processes = program();
    let to_enter = || processes.get(1).unwrap().space.modules_to_enter();
    let before = to_enter();
    let cut = unwind(&processes, LEAF, 0xbad, &THREE_FRAMES[..2], Copied::More);
    assert_eq!(cut, (THREE_LOOKUPS[..2].to_vec(), Outcome::CopyTooShort));
    assert_eq!(to_enter(), before);
    assert_eq!(unwind(&processes, LEAF, 0xbad, &THREE_FRAMES, Copied::More).1, Outcome::Complete);
    assert_eq!(to_enter(), 0, "it says which function is the outermost");
}

proptest! {
    #[test]
    fn a_short_rule_gives_what_the_library_gives(
        by_bp in any::<bool>(),
        offset in 0u8..100,
        saved in prop::option::of(0u8..16),
        is_first in any::<bool>(),
        bp in prop_oneof![STACK - 64..STACK + 512, any::<u64>()],
        words in prop::collection::vec(prop_oneof![Just(0), any::<u64>()], 0..40),
    ) {
        let register = if by_bp { RBP } else { RSP };
        let saved = saved.map_or(vec![], |at| vec![SAVED_BP, at]);
        let processes = one_function([vec![DEF_CFA, register, offset], saved].concat());
        let space = &processes.get(1).unwrap().space;
        let read = |address: u64| {
            let at = usize::try_from(address.checked_sub(STACK)? / 8).ok()?;
            words.get(at).copied().filter(|_| address.is_multiple_of(8))
        };
        let FoundRule::Rule { rule, .. } = space.find_rule(BODY + 4) else { return Ok(()) };
        let Some(rule) = rule.short() else { return Ok(()) };
        let at = match is_first {
            true => FrameAddress::from_instruction_pointer(BODY + 4),
            false => FrameAddress::from_return_address(BODY + 5).unwrap(),
        };
        let mut registers = UnwindRegsX86_64::new(BODY + 4, STACK, bp);
        let mut missing = None;
        let by_library = <UnwindRegsX86_64 as MachineRegisters>::unwinder(&space.modules().unwinders).unwind_frame(
            at,
            &mut registers,
            &mut CacheX86_64::default(),
            &mut |address| read(address).ok_or_else(|| _ = missing.get_or_insert(address)),
        );
        match rule.caller(STACK, bp, read) {
            ByShortRule::Caller { ip, sp, bp } => {
                prop_assert_eq!(by_library, Ok(Some(ip)));
                prop_assert_eq!((registers.sp(), registers.bp()), (sp, bp));
            }
            ByShortRule::Unread(address) => prop_assert_eq!(missing, Some(address)),
            ByShortRule::Unusual => {}
        }
    }
}
