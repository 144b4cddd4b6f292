//! Generated code that keeps no frame pointer: the stubs through which Python calls its functions, one for each, so that
//! profilers can tell them apart. They make room for one word, call, and return.

use crate::process::AddressSpace;

/// Bytes that the stub reserves above the return address into it.
const ROOM_BYTES: u64 = 8;

/// A caller, and the stack pointer there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StubCaller {
    pub(super) return_address: u64,
    pub(super) sp: u64,
}

/// The caller of a stub that has called the function just left. None where the frame pointer leads to a caller, as it does
/// in all other generated code, or where no caller is in the stub's place.
pub(super) fn caller(
    space: &AddressSpace,
    sp: u64,
    bp: u64,
    read: impl Fn(u64) -> Option<u64>,
) -> Option<StubCaller> {
    let word = |base: u64, offset: u64| read(base.checked_add(offset)?);
    let is_code = |word: &u64| space.is_executable(word.wrapping_sub(1));
    let is_framed = bp >= sp
        && word(bp, 0).is_some_and(|outer| outer == 0 || outer > bp)
        && word(bp, 8).filter(is_code).is_some();
    if is_framed {
        return None;
    }
    let return_address = word(sp, ROOM_BYTES).filter(|word| space.is_in_file(word.wrapping_sub(1)))?;
    Some(StubCaller { return_address, sp: sp.checked_add(ROOM_BYTES + 8)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{LoadedObject, ProcessTable};
    use crate::record::{FileId, Mapped};
    use crate::stack::ObjectId;

    const SP: u64 = 0x7000;
    const IN_FILE: u64 = 0x40_0005;
    const GENERATED: u64 = 0x50_0005;

    fn found(bp: u64, words: &[u64]) -> Option<StubCaller> {
        let mut table = ProcessTable::default();
        table.adopt(1, "python3");
        let file = LoadedObject { id: ObjectId(ObjectId::FIRST_FILE), image: None };
        for (start, loaded) in [(0x40_0000, file), (0x50_0000, LoadedObject::UNKNOWN)] {
            let path = "python3".into();
            let mapped = Mapped { pid: 1, start, len: 0x1000, file_offset: 0, file: FileId::default(), path };
            table.mapped(&mapped, |_| loaded);
        }
        let read = |address: u64| words.get(usize::try_from(address.checked_sub(SP)? / 8).ok()?).copied();
        caller(&table.get(1).unwrap().space, SP, bp, read)
    }

    #[test]
    fn a_stub_returns_past_the_room_it_made() {
        let expected = Some(StubCaller { return_address: IN_FILE, sp: SP + 16 });
        for bp in [0, 7, SP - 8, SP, SP + 16, u64::MAX] {
            assert_eq!(found(bp, &[1, IN_FILE, 2, 3]), expected, "{bp:#x}");
        }
        assert_eq!(found(7, &[1, 2, IN_FILE]), None);
        assert_eq!(found(7, &[1, GENERATED]), None, "stubs are called by the interpreter");
        assert_eq!(found(7, &[]), None);
    }

    #[test]
    fn a_frame_pointer_that_leads_to_code_is_believed() {
        assert_eq!(found(SP + 16, &[1, IN_FILE, SP + 64, GENERATED]), None);
        assert_eq!(found(SP, &[SP + 64, IN_FILE]), None);
        assert_eq!(found(SP + 16, &[1, IN_FILE, 0, IN_FILE]), None);
    }
}
