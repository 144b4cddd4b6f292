//! Unwind information is vetted before anyone evaluates it.
//!
//! The unwinding library trusts the tables in two ways that an object made to harm could turn against us: an
//! expression may jump backwards, and is evaluated without a limit; and addresses are computed from it without a
//! check for overflow. No compiler writes such tables.
//!
//! `framehop` and `gimli` evaluate some crafted tables without end, or overflow.

use gimli::{
    BaseAddresses, CallFrameInstruction, CommonInformationEntry, Encoding, EndianSlice,
    FrameDescriptionEntry, LittleEndian, Operation, Register, UnwindExpression, UnwindSection, X86_64,
};
use rustc_hash::FxHashMap;

use crate::machine::Machine;

pub(super) type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// A function's table is evaluated from its beginning, so the longest ones bound what a frame may cost.
const MAX_ENTRY_BYTES: usize = 64 << 10;
/// No register is saved further than this from the frame (bytes).
const MAX_SAVED_OFFSET: u64 = 1 << 40;

/// The rule for the frame's address, as far as it matters here.
type FrameRule = (Register, i64);

/// Looks through a section, function by function.
pub(super) struct Vetting<'s, S> {
    machine: Machine,
    section: &'s S,
    bases: &'s BaseAddresses,
    /// Common entries by their offset: the rule they end with, `None` where they are not safe.
    common: FxHashMap<usize, Option<FrameRule>>,
}

impl<'s, 'a: 's, S: UnwindSection<Slice<'a>>> Vetting<'s, S> {
    pub(super) fn new(machine: Machine, section: &'s S, bases: &'s BaseAddresses) -> Self {
        Self { machine, section, bases, common: FxHashMap::default() }
    }

    pub(super) fn function(&mut self, function: &FrameDescriptionEntry<Slice<'a>>) -> bool {
        let common = function.cie();
        let rule = match self.common.get(&common.offset()) {
            Some(&known) => known,
            None => {
                let rule = self.common_entry(common);
                self.common.insert(common.offset(), rule);
                rule
            }
        };
        let instructions = function.instructions(self.section, self.bases);
        rule.is_some_and(|rule| {
            function.entry_len() <= MAX_ENTRY_BYTES && self.last_rule(common, instructions, rule).is_some()
        })
    }

    fn common_entry(&self, entry: &CommonInformationEntry<Slice<'a>>) -> Option<FrameRule> {
        if entry.entry_len() > MAX_ENTRY_BYTES {
            return None;
        }
        self.last_rule(entry, entry.instructions(self.section, self.bases), (Register(0), 0))
    }

    /// Follows the instructions from `rule` on; `None` where one of them is not safe.
    fn last_rule(
        &self,
        common: &CommonInformationEntry<Slice<'a>>,
        mut instructions: gimli::CallFrameInstructionIter<'_, Slice<'a>>,
        rule: FrameRule,
    ) -> Option<FrameRule> {
        let (mut register, mut offset) = rule;
        let factored = |value: i64| value.wrapping_mul(common.data_alignment_factor());
        let mut remembered = Vec::new();
        // Behind an instruction that cannot be read, nothing is evaluated.
        while let Ok(Some(instruction)) = instructions.next() {
            use CallFrameInstruction as Cfi;
            match instruction {
                Cfi::DefCfa { register: r, offset: o } => (register, offset) = (r, o as i64),
                Cfi::DefCfaSf { register: r, factored_offset } => {
                    (register, offset) = (r, factored(factored_offset));
                }
                Cfi::DefCfaRegister { register: r } => register = r,
                Cfi::DefCfaOffset { offset: o } => offset = o as i64,
                Cfi::DefCfaOffsetSf { factored_offset } => offset = factored(factored_offset),
                Cfi::DefCfaExpression { expression } => {
                    self.frame_expression(&expression, common.encoding())?
                }
                Cfi::Expression { expression, .. } | Cfi::ValExpression { expression, .. } => {
                    self.expression(&expression, common.encoding())?;
                }
                Cfi::Offset { factored_offset, .. } => saved_at(factored(factored_offset as i64))?,
                Cfi::OffsetExtendedSf { factored_offset, .. } => saved_at(factored(factored_offset))?,
                Cfi::RememberState => remembered.push((register, offset)),
                Cfi::RestoreState => (register, offset) = remembered.pop().unwrap_or(rule),
                _ => {}
            }
            self.frame_at(register, offset)?;
        }
        Some((register, offset))
    }

    /// An expression ends if it never jumps.
    fn expression(
        &self,
        expression: &UnwindExpression<usize>,
        encoding: Encoding,
    ) -> Option<Vec<Operation<Slice<'a>>>> {
        let mut operations = expression.get(self.section).ok()?.operations(encoding);
        let mut all = Vec::new();
        while let Ok(Some(operation)) = operations.next() {
            if matches!(operation, Operation::Bra { .. } | Operation::Skip { .. }) {
                return None;
            }
            all.push(operation);
        }
        Some(all)
    }

    /// On x86-64 the return address lies in the eight bytes below the frame's address, and the library looks there
    /// without a check: that must not be where there are none. The stack pointer is known to be far enough from zero.
    fn frame_at(&self, register: Register, offset: i64) -> Option<()> {
        let lowest = if register == X86_64::RSP { 0 } else { 8 };
        (self.machine != Machine::X86_64 || !is_known(register) || offset >= lowest).then_some(())
    }

    /// An expression for the frame's address: on x86-64 one of the two that the library can evaluate and that there are
    /// (signal trampolines and linkage tables), or one that it gives up on.
    fn frame_expression(&self, expression: &UnwindExpression<usize>, encoding: Encoding) -> Option<()> {
        use Operation as Op;
        let operations = self.expression(expression, encoding)?;
        if self.machine != Machine::X86_64 {
            return Some(()); // the library checks what it computes from the frame's address
        }
        let gives_up = |operation: &Op<Slice<'a>>| match operation {
            Op::Deref { .. } => true,
            Op::RegisterOffset { register, .. } => !is_known(*register),
            _ => false,
        };
        let usual = match &operations[..] {
            [Op::RegisterOffset { register: X86_64::RSP, offset, .. }, rest @ ..] if *offset >= 8 => {
                matches!(
                    rest,
                    [] | [
                        Op::RegisterOffset { .. },
                        Op::UnsignedConstant { .. },
                        Op::And,
                        Op::UnsignedConstant { .. },
                        Op::Ge,
                        Op::UnsignedConstant { .. },
                        Op::Shl,
                        Op::Plus,
                    ]
                )
            }
            _ => false,
        };
        (usual || operations.iter().any(gives_up)).then_some(())
    }
}

/// The registers that the library follows on x86-64.
fn is_known(register: Register) -> bool {
    [X86_64::RSP, X86_64::RBP, X86_64::RA].contains(&register)
}

fn saved_at(offset: i64) -> Option<()> {
    (offset.unsigned_abs() < MAX_SAVED_OFFSET).then_some(())
}
