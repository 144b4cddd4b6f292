//! Signed return addresses of aarch64.
//!
//! Code may sign its return addresses (`-mbranch-protection=standard`, as several distributions build all of theirs),
//! and its tables say where, with an instruction that the unwinding library does not know: for it, the table of the
//! function ends there, and the stack goes wrong. The signature is taken off any return address, so nothing is lost if
//! the instruction becomes one that does nothing.
//!
//! `framehop` also stops where a frame pointer is zero, which hides the outermost caller.

use std::sync::Arc;

use super::ReadLater;
use crate::machine::Machine;

/// `DW_CFA_AARCH64_negate_ra_state`.
const NEGATE_RA_STATE: u8 = 0x2d;
/// `DW_CFA_nop`.
const NOP: u8 = 0;
/// Letters of an augmentation that are read; compilers write five at most.
const MAX_LETTERS: usize = 8;
/// A length that announces the 64-bit format, which nobody writes.
const LONG_FORMAT: usize = 0xffff_ffff;

/// Reads `.eh_frame` sections so that the library can.
pub(super) fn reading(machine: Machine, later: &ReadLater) -> ReadLater {
    let later = Arc::clone(later);
    Arc::new(move |range, takes| later(range, takes).map(|section| readable(machine, section)))
}

/// An `.eh_frame` section without the instructions about signatures. What we cannot read stays as it is.
pub(super) fn readable(machine: Machine, mut section: Vec<u8>) -> Vec<u8> {
    if machine == Machine::Aarch64 {
        all_signing(&section).into_iter().for_each(|at| section[at] = NOP);
    }
    section
}

/// Where the instructions about signatures are in a section.
fn all_signing(section: &[u8]) -> Vec<usize> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(body) = entry(section, at) {
        if let Some(instructions) = function_instructions(section, body) {
            found.extend(signing(instructions));
        }
        at = body.end;
    }
    found
}

/// The part of a section that is still to be read.
#[derive(Clone, Copy)]
struct Input<'a> {
    section: &'a [u8],
    at: usize,
    end: usize,
}

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = (self.at < self.end).then(|| self.section.get(self.at).copied())??;
        self.at += 1;
        Some(byte)
    }

    fn word(&mut self) -> Option<usize> {
        let bytes = self.section.get(self.at..self.at.checked_add(4)?)?;
        self.skip(4)?;
        usize::try_from(u32::from_le_bytes(bytes.try_into().ok()?)).ok()
    }

    fn skip(&mut self, bytes: usize) -> Option<()> {
        self.at = self.at.checked_add(bytes).filter(|&at| at <= self.end)?;
        Some(())
    }

    /// A number in LEB128, of either sign where only its length matters.
    fn leb128(&mut self) -> Option<usize> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            number |= usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    /// Skips what a length before it announces.
    fn block(&mut self) -> Option<()> {
        let len = self.leb128()?;
        self.skip(len)
    }
}

/// The entry at an offset, behind its length.
fn entry(section: &[u8], at: usize) -> Option<Input<'_>> {
    let mut input = Input { section, at, end: section.len() };
    let len = input.word().filter(|&len| len > 0 && len < LONG_FORMAT)?;
    let end = input.at.checked_add(len).filter(|&end| end <= section.len())?;
    Some(Input { end, ..input })
}

/// The instructions of an entry, if it is a function's.
fn function_instructions<'a>(section: &'a [u8], mut body: Input<'a>) -> Option<Input<'a>> {
    let here = body.at;
    let back = body.word().filter(|&back| back > 0)?; // zero: a common entry
    let augmentation = Augmentation::of_common(section, here.checked_sub(back)?)?;
    body.skip(2 * augmentation.pointer_bytes)?;
    if augmentation.has_data {
        body.block()?;
    }
    Some(body)
}

/// What a common entry says of the layout of its functions' entries.
struct Augmentation {
    /// Bytes of an address.
    pointer_bytes: usize,
    /// Whether there is data of stated length before the instructions.
    has_data: bool,
}

impl Augmentation {
    fn of_common(section: &[u8], at: usize) -> Option<Self> {
        let mut body = entry(section, at)?;
        body.word().filter(|&id| id == 0)?;
        let version = body.byte()?;
        let mut letters = body;
        let len = (0..=MAX_LETTERS).find(|_| body.byte().is_none_or(|byte| byte == 0))?;
        if len == 0 {
            return Some(Self { pointer_bytes: 8, has_data: false });
        }
        letters.byte().filter(|&byte| byte == b'z')?;
        body.leb128()?; // alignment of code
        body.leb128()?; // alignment of data
        if version == 1 {
            _ = body.byte()?
        } else {
            _ = body.leb128()?
        } // register of the return address
        body.leb128()?; // bytes of what follows
        let mut pointer_bytes = 8;
        for _ in 1..len {
            match letters.byte()? {
                b'R' => pointer_bytes = encoded_bytes(body.byte()?)?,
                b'P' => {
                    let encoding = body.byte()?;
                    body.skip(encoded_bytes(encoding)?)?;
                }
                b'L' => _ = body.byte()?,
                _ => {} // says something without data
            }
        }
        Some(Self { pointer_bytes, has_data: true })
    }
}

/// Bytes of a pointer in a `DW_EH_PE_…` encoding.
fn encoded_bytes(encoding: u8) -> Option<usize> {
    match encoding & 0x7 {
        0 | 4 => Some(8),
        2 => Some(2),
        3 => Some(4),
        _ => None,
    }
}

/// Where instructions about signatures lie.
fn signing(mut input: Input<'_>) -> Vec<usize> {
    let mut found = Vec::new();
    loop {
        let at = input.at;
        let Some(code) = input.byte() else { return found };
        if code == NEGATE_RA_STATE {
            found.push(at);
        } else if operands(code, &mut input).is_none() {
            return found;
        }
    }
}

/// Skips the operands of an instruction of call frame information (DWARF 5, section 7.24).
fn operands(code: u8, input: &mut Input<'_>) -> Option<()> {
    match (code & 0xc0, code) {
        (0x40 | 0xc0, _) => {} // advance, restore
        (0x80, _) => _ = input.leb128()?,
        (_, 0 | 0x0a | 0x0b) => {}
        (_, 0x02) => input.skip(1)?,
        (_, 0x03) => input.skip(2)?,
        (_, 0x04) => input.skip(4)?,
        (_, 0x06..=0x08 | 0x0d | 0x0e | 0x13 | 0x2e) => _ = input.leb128()?,
        (_, 0x05 | 0x09 | 0x0c | 0x11 | 0x12 | 0x14 | 0x15) => {
            input.leb128()?;
            input.leb128()?;
        }
        (_, 0x0f) => input.block()?,
        (_, 0x10 | 0x16) => {
            input.leb128()?;
            input.block()?;
        }
        _ => return None, // not known, and nobody writes `DW_CFA_set_loc`
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry_of(body: &[&[u8]]) -> Vec<u8> {
        let body = body.concat();
        [&(body.len() as u32).to_le_bytes()[..], &body].concat()
    }

    /// A section as compilers write it: a common entry with this augmentation, and a function.
    fn section(letters: &[u8], data: &[u8], addresses: &[u8], instructions: &[u8]) -> Vec<u8> {
        let common =
            entry_of(&[&[0; 4], &[1], letters, &[0, 4, 0x78, 30, data.len() as u8], data, &[0x0c, 31, 0]]);
        let back = (common.len() as u32 + 4).to_le_bytes();
        let personal = if letters.contains(&b'L') { &[4, 0x2d, 0x2d, 0x2d, 0x2d][..] } else { &[0] };
        [common, entry_of(&[&back, addresses, personal, instructions]), vec![0; 4]].concat()
    }

    #[test]
    fn instructions_about_signatures_are_replaced_and_nothing_else() {
        // advance 0x2d; def_cfa_offset 0x2d; x29 at 0x2d; the instruction; restore; an expression of its bytes; again.
        let instructions =
            [2, 0x2d, 0x0e, 0x2d, 0x9d, 0x2d, 0x2d, 0xdd, 0x16, 29, 2, 0x2d, 0x2d, 4, 0x2d, 0, 0, 0, 0x2d, 0];
        let mut expected = instructions;
        (expected[6], expected[18]) = (NOP, NOP);
        let personality = [0x9b, 0x2d, 0x2d, 0x2d, 0x2d, 0x1b, 0x1b];
        let layouts: [(&[u8], &[u8], &[u8]); 3] = [
            (b"zR", &[0x1b], &[0x2d; 8]),
            (b"zPLR", &personality, &[0x2d; 8]),
            (b"zRB", &[0x1c], &[0x2d; 16]),
        ];
        for (letters, data, addresses) in layouts {
            let given = section(letters, data, addresses, &instructions);
            assert_eq!(readable(Machine::X86_64, given.clone()), given);
            let changed = readable(Machine::Aarch64, given);
            assert_eq!(changed, section(letters, data, addresses, &expected));
            assert!(all_signing(&changed).is_empty());
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(
            bytes in prop::collection::vec(prop_oneof![3 => any::<u8>(), 1 => Just(0)], 0..200),
            instructions in prop::collection::vec(any::<u8>(), 0..60),
            flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        ) {
            readable(Machine::Aarch64, bytes);
            let mut section = section(b"zR", &[0x1b], &[0; 8], &instructions);
            for (at, byte) in flips {
                let at = at.index(section.len());
                section[at] = byte;
            }
            let changed = readable(Machine::Aarch64, section.clone());
            prop_assert_eq!(changed.len(), section.len());
            let is_replaced = |(old, new): (&u8, &u8)| old == new || (*old, *new) == (NEGATE_RA_STATE, NOP);
            prop_assert!(section.iter().zip(&changed).all(is_replaced));
        }
    }
}
