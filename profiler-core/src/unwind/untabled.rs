//! Callers of code that no table knows: assembly, generated code.
//!
//! Behind such code, a word is a caller only if it points to code. The stack is complete only if no return
//! address into a function with tables lies between it and the program's entry point: the C library may have
//! called back (`ends.rs`).

/// Registers that a function has to save if it uses them, beside the frame pointer: `rbx` and `r12` to `r15`.
const SAVED_REGISTERS: u64 = 5;

/// A caller: its instruction, stack and frame pointers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Caller {
    pub(super) ip: u64,
    pub(super) sp: u64,
    pub(super) bp: u64,
}

/// Why a word of the stack does not give a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotACaller {
    /// The word at this address is missing.
    Unread(u64),
    /// The frame pointer is zero, which marks the outermost frame.
    Outermost,
    /// The frame pointer leads nowhere.
    Wild,
}

/// The caller by the frame pointer: it points to the caller's frame pointer, with the return address above it.
pub(super) fn by_frame_pointer(
    sp: u64,
    bp: u64,
    read: impl Fn(u64) -> Option<u64>,
) -> Result<Caller, NotACaller> {
    if bp == 0 {
        return Err(NotACaller::Outermost);
    }
    if bp < sp {
        return Err(NotACaller::Wild);
    }
    let above = bp.checked_add(8).ok_or(NotACaller::Wild)?;
    let word = |address| read(address).ok_or(NotACaller::Unread(address));
    Ok(Caller { bp: word(bp)?, ip: word(above)?, sp: above.wrapping_add(8) })
}

/// Of the innermost function, which may have set up its frame or not yet, or have none. `is_code` says whether a word
/// points to code, `is_return_address` whether it is one into a function with tables. In a file, the function was most likely
/// written by hand and has no frame; generated code has.
pub(super) fn of_innermost(
    sp: u64,
    bp: u64,
    in_file: bool,
    is_code: impl Fn(u64) -> bool,
    is_return_address: impl Fn(u64) -> bool,
    read: impl Fn(u64) -> Option<u64>,
) -> Result<Caller, NotACaller> {
    let top = read(sp).ok_or(NotACaller::Unread(sp))?;
    let returns_to = |address: u64| read(address).filter(|&word| is_code(word.wrapping_sub(1)));
    if top == bp
        && let Some(ip) = returns_to(sp.wrapping_add(8))
    {
        return Ok(Caller { ip, sp: sp.wrapping_add(16), bp }); // frame pointer pushed, but not set yet
    }
    let framed = by_frame_pointer(sp, bp, &read).ok().filter(|caller| is_code(caller.ip.wrapping_sub(1)));
    let frameless = returns_to(sp).map(|ip| Caller { ip, sp: sp.wrapping_add(8), bp });
    let pushed = || above_pushed_registers(sp, bp, &is_code, &is_return_address, &read);
    let found = if in_file { frameless.or_else(pushed).or(framed) } else { framed.or(frameless) };
    // A frame pointer of zero may be any number that the function computes with.
    let otherwise = || by_frame_pointer(sp, bp, read);
    found.map_or_else(otherwise, Ok).map_err(|error| match error {
        NotACaller::Outermost => NotACaller::Wild,
        other => other,
    })
}

/// The caller of an innermost function in a file that saved its caller's registers before it set up its frame pointer, as
/// hand-written code does (BLAKE3): its return address lies above them. `is_return_address` says whether a word is one into
/// a function with tables; other words are not taken for it.
pub(super) fn above_saved_registers(
    sp: u64,
    bp: u64,
    is_return_address: impl Fn(u64) -> bool,
    read: impl Fn(u64) -> Option<u64>,
) -> Option<Caller> {
    let outer = Some(bp).filter(|&bp| bp >= sp).and_then(&read)?;
    let slots = (1..=SAVED_REGISTERS + 1).filter_map(|word| bp.checked_add(8 * word));
    let (slot, ip) =
        slots.filter_map(|slot| Some((slot, read(slot)?))).find(|&(_, word)| is_return_address(word))?;
    Some(Caller { ip, sp: slot.checked_add(8)?, bp: outer })
}

/// The caller of an innermost function in a file that has pushed registers and set up no frame, as hand-written code does (GMP): its
/// return address is the first word above them that points to code, and one into a function with tables; the frame pointer is still its
/// caller's, or a number that it computes with. Of pushed registers, one that leads to such a frame is the caller's frame pointer.
fn above_pushed_registers(
    sp: u64,
    bp: u64,
    is_code: impl Fn(u64) -> bool,
    is_return_address: impl Fn(u64) -> bool,
    read: impl Fn(u64) -> Option<u64>,
) -> Option<Caller> {
    let slots = (0..=SAVED_REGISTERS + 1).filter_map(|word| sp.checked_add(8 * word));
    let mut words = slots.take_while(|&slot| slot != bp).filter_map(|slot| Some((slot, read(slot)?)));
    let (slot, ip) = words.find(|&(_, word)| is_code(word.wrapping_sub(1)))?;
    let leads_to_frame =
        |outer: u64| outer > slot && outer.checked_add(8).and_then(&read).is_some_and(&is_return_address);
    let pushed = (sp..slot).step_by(8).filter_map(&read).find(|&word| leads_to_frame(word));
    let caller = Caller { ip, sp: slot.checked_add(8)?, bp: pushed.unwrap_or(bp) };
    is_return_address(ip).then_some(caller)
}

/// What a signal handler returns to, where no table says so (musl): the kernel's frame, by its looks. Gives the
/// instruction that the signal hit and the general registers there, in DWARF's numbering.
pub(super) fn interrupted(
    sp: u64,
    is_code: impl Fn(u64) -> bool,
    read: impl Fn(u64) -> Option<u64>,
) -> Option<(u64, [u64; 16])> {
    let word = |offset: u64| read(sp.checked_add(offset)?);
    let is_context = word(0)? <= MAX_CONTEXT_FLAGS && word(8)? == 0;
    let is_user_code = word(SEGMENTS)? & 0xffff == USER_CODE_SEGMENT && word(FLAGS)? & !EFLAGS == 0;
    let ip = word(INSTRUCTION)?;
    if !(is_context && is_user_code && is_code(ip)) {
        return None;
    }
    let mut general = [0; 16];
    for (register, offset) in general.iter_mut().zip(GENERAL) {
        *register = word(offset)?;
    }
    Some((ip, general))
}

/// Offsets in the kernel's `struct ucontext`, which a handler returns to on x86-64.
const GENERAL: [u64; 16] = [144, 136, 152, 128, 112, 104, 120, 160, 40, 48, 56, 64, 72, 80, 88, 96];
const INSTRUCTION: u64 = 168;
const FLAGS: u64 = 176;
const SEGMENTS: u64 = 184;
/// `UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS`.
const MAX_CONTEXT_FLAGS: u64 = 7;
/// Bits of the flags register that are in use.
const EFLAGS: u64 = (1 << 22) - 1;
/// `__USER_CS`.
const USER_CODE_SEGMENT: u64 = 0x33;

#[cfg(test)]
mod tests {
    use super::*;

    const SP: u64 = 0x7000;
    const CODE: u64 = 0x40_0005;
    const OUTER: u64 = 0x41_0005;

    fn innermost(bp: u64, in_file: bool, words: &[u64]) -> Result<Caller, NotACaller> {
        let read = |address: u64| words.get(usize::try_from(address.checked_sub(SP)? / 8).ok()?).copied();
        of_innermost(SP, bp, in_file, |word| (0x40_0000..0x42_0000).contains(&word), |_| false, read)
    }

    #[test]
    fn a_function_without_a_frame_returns_to_the_word_on_top() {
        let expected = Caller { ip: CODE, sp: SP + 8, bp: 1 };
        assert_eq!(innermost(1, true, &[CODE, 0]), Ok(expected));
        assert_eq!(innermost(1, false, &[CODE, 0]), Ok(expected));
    }

    #[test]
    fn a_frame_that_is_half_set_up_hides_no_caller() {
        let bp = SP + 24;
        let words = [bp, CODE, 0, 0, OUTER];
        assert_eq!(innermost(bp, true, &words), Ok(Caller { ip: CODE, sp: SP + 16, bp }));
    }

    #[test]
    fn where_both_may_be_generated_code_has_a_frame_and_assembly_has_none() {
        let bp = SP + 16;
        let words = [CODE, 0, SP + 64, OUTER];
        assert_eq!(innermost(bp, true, &words), Ok(Caller { ip: CODE, sp: SP + 8, bp }));
        assert_eq!(innermost(bp, false, &words), Ok(Caller { ip: OUTER, sp: SP + 32, bp: SP + 64 }));
    }

    #[test]
    fn assembly_with_a_frame_is_left_by_its_frame_pointer() {
        let words = [7, 7, SP + 64, OUTER];
        assert_eq!(innermost(SP + 16, true, &words), Ok(Caller { ip: OUTER, sp: SP + 32, bp: SP + 64 }));
    }

    #[test]
    fn in_a_file_pushed_registers_are_passed_over_before_the_frame_pointer_is_believed() {
        let bp = SP + 40;
        let words = [7, 7, CODE, 0, 0, SP + 64, OUTER];
        let read = |address: u64| words.get(usize::try_from(address.checked_sub(SP)? / 8).ok()?).copied();
        let is_code = |word| (0x40_0000..0x42_0000).contains(&word);
        let found =
            |in_file, is_return: fn(u64) -> bool| of_innermost(SP, bp, in_file, is_code, is_return, read);
        let framed = Ok(Caller { ip: OUTER, sp: SP + 56, bp: SP + 64 });
        assert_eq!(found(true, |word| word == CODE), Ok(Caller { ip: CODE, sp: SP + 24, bp }));
        assert_eq!(found(true, |_| false), framed);
        assert_eq!(found(false, |word| word == CODE), framed, "generated code has a frame");
    }

    #[test]
    fn registers_that_were_saved_first_lie_below_the_return_address() {
        let words = [7, 7, OUTER, 1, 2, 3, 4, 5, CODE, 9];
        let read = |address: u64| words.get(usize::try_from(address.checked_sub(SP)? / 8).ok()?).copied();
        let found = |bp, is_return: fn(u64) -> bool| above_saved_registers(SP, bp, is_return, read);
        assert_eq!(found(SP + 16, |word| word == CODE), Some(Caller { ip: CODE, sp: SP + 72, bp: OUTER }));
        assert_eq!(found(SP + 16, |_| false), None);
        assert_eq!(found(SP + 8, |word| word == CODE), None, "too far above");
        for wild in [0, 7, SP - 8, SP + 800, u64::MAX] {
            assert_eq!(found(wild, |_| true), None, "{wild:#x}");
        }
    }

    #[test]
    fn registers_that_were_pushed_lie_below_the_return_address() {
        let found = |bp, words: &[u64]| {
            let read = |address: u64| words.get(usize::try_from(address.checked_sub(SP)? / 8).ok()?).copied();
            let is_code = |word| (0x40_0000..0x42_0000).contains(&word);
            above_pushed_registers(SP, bp, is_code, |word| word == CODE || word == OUTER, read)
        };
        let frame = SP + 48;
        // The frame pointer is the caller's, or was pushed and is a number now.
        let words = [1, 2, 3, CODE, 7, 7, 0, OUTER];
        assert_eq!(found(frame, &words), Some(Caller { ip: CODE, sp: SP + 32, bp: frame }));
        let words = [1, frame, 3, CODE, 7, 7, 0, OUTER];
        assert_eq!(found(99, &words), Some(Caller { ip: CODE, sp: SP + 32, bp: frame }));
        assert_eq!(found(99, &[1, CODE]), Some(Caller { ip: CODE, sp: SP + 16, bp: 99 }));
        // A frame of its own says more; a caller without tables may be no caller; what lies too far above is none.
        assert_eq!(found(frame, &[1, 0x40_1000, CODE]), None);
        assert_eq!(found(SP + 8, &[1, SP + 64, CODE]), None);
        assert_eq!(found(99, &[0, 1, 2, 3, 4, 5, 6, CODE]), None);
        assert_eq!(found(u64::MAX, &[]), None);
    }

    #[test]
    fn a_number_in_the_frame_pointer_leads_nowhere() {
        assert_eq!(innermost(0, true, &[7, 7]), Err(NotACaller::Wild));
        assert_eq!(innermost(SP - 8, true, &[7, 7]), Err(NotACaller::Wild));
        assert_eq!(innermost(SP + 800, true, &[7, 7]), Err(NotACaller::Unread(SP + 800)));
        assert_eq!(innermost(1, true, &[]), Err(NotACaller::Unread(SP)));
        assert_eq!(innermost(u64::MAX, true, &[7, 7]), Err(NotACaller::Wild));
    }

    #[test]
    fn the_kernels_frame_is_known_by_its_looks() {
        let mut words: Vec<u64> = (0..24).map(|at| 1000 + at).collect();
        (words[0], words[1]) = (7, 0);
        (words[21], words[22], words[23]) = (CODE, 0x246, 0x2b << 48 | 0x33);
        let found = |words: &[u64]| {
            let read = |address: u64| words.get(usize::try_from(address.checked_sub(SP)? / 8).ok()?).copied();
            interrupted(SP, |ip| ip == CODE, read)
        };
        let (ip, general) = found(&words).unwrap();
        assert_eq!((ip, general[7], general[6], general[15]), (CODE, 1020, 1015, 1012));
        assert_eq!(found(&words[..20]), None);
        for (at, value) in [(0, 8), (1, 1), (21, CODE + 1), (22, u64::MAX), (23, 0x10)] {
            let mut other = words.clone();
            other[at] = value;
            assert_eq!(found(&other), None, "{at}");
        }
    }
}
