//! How the registers of a caller are found from those of a function: one row of its unwind table, kept to be used
//! again.
//!
//! The unwinding library follows three registers and evaluates no expression that reads memory. These rules know
//! all registers and all expressions: signal trampolines, realigned frames, lazy binding, assembly code.

use gimli::{
    AArch64, BaseAddresses, CfaRule, Encoding, EndianSlice, Evaluation, EvaluationResult,
    FrameDescriptionEntry, LittleEndian, Register, RegisterRule, UnwindContext, UnwindExpression,
    UnwindSection, Value, X86_64,
};

use crate::machine::Machine;

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// The general registers and the return address, in DWARF's numbering.
pub(crate) const REGISTERS: usize = 17;
const RBX: usize = 3;
const RBP: usize = 6;
const RSP: usize = 7;
const R12: usize = 12;
const R15: usize = 15;
const RA: usize = 16;
const WORD: u64 = 8;
/// From here on, no address is a program's; the library does not compute there.
const KERNEL_ADDRESSES: u64 = 1 << 63;
/// Operations of an expression that are evaluated at most.
const MAX_OPERATIONS: u32 = 200;

/// The registers of one frame, as far as they are known; the return address's is the instruction pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registers([Option<u64>; REGISTERS]);

impl Registers {
    /// The general registers in DWARF's numbering, and the instruction pointer.
    pub(crate) fn new(ip: u64, general: &[Option<u64>; 16]) -> Self {
        let mut all = [None; REGISTERS];
        all.iter_mut().zip(general).for_each(|(known, &value)| *known = value);
        all[RA] = Some(ip);
        Self(all)
    }

    /// The instruction pointer.
    pub(crate) fn ip(&self) -> u64 {
        self.0[RA].unwrap_or(0)
    }

    /// The stack pointer.
    pub(crate) fn sp(&self) -> u64 {
        self.0[RSP].unwrap_or(0)
    }

    /// The frame pointer, if it is known.
    pub(crate) fn bp(&self) -> Option<u64> {
        self.0[RBP]
    }

    /// These registers in a caller found without tables: what it kept in the others is taken to be there still.
    pub(crate) fn moved_to(mut self, ip: u64, sp: u64, bp: u64) -> Self {
        (self.0[RA], self.0[RSP], self.0[RBP]) = (Some(ip), Some(sp), Some(bp));
        self
    }
}

/// Why a rule gave no caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoCaller {
    /// The function has none: it is the outermost.
    Outermost,
    /// It takes the word at this address, which cannot be read.
    Unread(u64),
    /// It takes a register that is not known, or its expression fails.
    Unknown,
}

/// Where the frame is.
#[derive(Clone, Debug)]
enum FrameAt {
    Register(usize, i64),
    Expression(DwarfExpression),
    /// By a register that is not followed.
    Unknown,
}

/// Where the caller's value of a register is.
#[derive(Clone, Debug)]
enum Saved {
    /// The table does not say.
    Unstated,
    Nowhere,
    Same,
    /// In memory, from the frame's address.
    At(i64),
    /// The frame's address itself and an offset.
    Is(i64),
    In(usize),
    AtProgram(DwarfExpression),
    IsProgram(DwarfExpression),
}

/// An expression.
#[derive(Clone, Debug)]
struct DwarfExpression {
    code: Box<[u8]>,
    encoding: Encoding,
}

/// The rule at one address.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    frame: FrameAt,
    saved: [Saved; REGISTERS],
    is_trampoline: bool,
    is_at_beginning: bool,
}

/// The rule of almost all that compilers make, in few bytes: the frame lies by the stack pointer or the frame pointer, the
/// return address right below it, and the caller's frame pointer in the frame or where it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShortRule {
    by: Pointer,
    /// From that pointer to the frame's address; at least a word.
    frame_offset: u32,
    /// From the frame's address to the caller's frame pointer.
    saved_bp: Option<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pointer {
    Stack,
    Frame,
}

/// What a short rule gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByShortRule {
    /// A caller.
    Caller { ip: u64, sp: u64, bp: u64 },
    /// The word at this address is missing.
    Unread(u64),
    /// What is no usual frame: the library decides.
    Unusual,
}

impl ShortRule {
    /// The caller of a frame with these pointers. `read` gives a word of the stack.
    pub(crate) fn caller(&self, sp: u64, bp: u64, read: impl Fn(u64) -> Option<u64>) -> ByShortRule {
        let pointer = if self.by == Pointer::Stack { sp } else { bp };
        let frame = pointer.checked_add(u64::from(self.frame_offset));
        let Some(frame) = frame.filter(|&frame| frame > sp && frame < KERNEL_ADDRESSES) else {
            return ByShortRule::Unusual;
        };
        // Below the stack pointer lies what was popped already, or nothing that is the function's.
        let word = |address: u64| match read(address) {
            None if address < sp => Err(ByShortRule::Unusual),
            word => word.ok_or(ByShortRule::Unread(address)),
        };
        let saved_bp =
            self.saved_bp.map_or(Ok(bp), |offset| word(frame.wrapping_add_signed(i64::from(offset))));
        match saved_bp.and_then(|bp| Ok((bp, word(frame - WORD)?))) {
            Ok((bp, ip)) if ip != 0 => ByShortRule::Caller { ip, sp: frame, bp },
            Ok(_) => ByShortRule::Unusual,
            Err(without) => without,
        }
    }
}

impl Rule {
    /// The rule of `function` at a stated address within it.
    pub(super) fn of<'a, S: UnwindSection<Slice<'a>>>(
        function: &FrameDescriptionEntry<Slice<'a>>,
        section: &S,
        bases: &BaseAddresses,
        svma: u64,
    ) -> Option<Self> {
        let mut context = UnwindContext::new();
        let row = function.unwind_info_for_address(section, bases, &mut context, svma).ok()?;
        let encoding = function.cie().encoding();
        let program = |expression: &UnwindExpression<usize>| {
            let code = expression.get(section).ok()?.0.slice().into();
            Some(DwarfExpression { code, encoding })
        };
        let frame = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                followed(*register).map_or(FrameAt::Unknown, |number| FrameAt::Register(number, *offset))
            }
            CfaRule::Expression(expression) => FrameAt::Expression(program(expression)?),
        };
        let mut saved = std::array::from_fn(|_| Saved::Unstated);
        for (register, rule) in row.registers() {
            let Some(number) = followed(*register) else { continue };
            saved[number] = match rule {
                RegisterRule::SameValue => Saved::Same,
                RegisterRule::Offset(offset) => Saved::At(*offset),
                RegisterRule::ValOffset(offset) => Saved::Is(*offset),
                RegisterRule::Register(other) => followed(*other).map_or(Saved::Nowhere, Saved::In),
                RegisterRule::Expression(expression) => Saved::AtProgram(program(expression)?),
                RegisterRule::ValExpression(expression) => Saved::IsProgram(program(expression)?),
                _ => Saved::Nowhere,
            };
        }
        let is_trampoline = function.is_signal_trampoline();
        Some(Self { frame, saved, is_trampoline, is_at_beginning: false })
    }

    /// That of a function which nobody calls, and whose very beginning is returned to.
    pub(super) fn beginning() -> Self {
        let saved = std::array::from_fn(|_| Saved::Unstated);
        Self { frame: FrameAt::Unknown, saved, is_trampoline: false, is_at_beginning: true }
    }

    /// Whether the library follows this rule as it is meant: the frame lies by the stack pointer or the frame
    /// pointer, and the return address right below it.
    pub(crate) fn is_usual(&self) -> bool {
        let by_pointer = matches!(self.frame, FrameAt::Register(RSP | RBP, _));
        let keeps_bp = matches!(self.saved[RBP], Saved::Unstated | Saved::Same | Saved::At(_));
        self.has_no_caller()
            || by_pointer && keeps_bp && matches!(self.saved[RA], Saved::At(-8)) && !self.is_trampoline
    }

    /// The same in short, where the library follows it as it is stated.
    pub(crate) fn short(&self) -> Option<ShortRule> {
        let FrameAt::Register(number, offset) = self.frame else { return None };
        let saved_bp = match self.saved[RBP] {
            Saved::At(offset) => Some(i32::try_from(offset).ok()?),
            Saved::Unstated | Saved::Same => None,
            _ => return None,
        };
        let by = match number {
            RSP => Pointer::Stack,
            RBP if saved_bp.is_some() => Pointer::Frame,
            _ => return None,
        };
        let frame_offset = u32::try_from(offset).ok().filter(|&bytes| u64::from(bytes) >= WORD)?;
        // From the stack pointer, the library counts in whole words.
        let in_words = |offset: i64| by == Pointer::Frame || offset % WORD as i64 == 0;
        let is_as_stated = in_words(offset) && saved_bp.is_none_or(|offset| in_words(i64::from(offset)));
        (self.is_usual() && !self.has_no_caller() && is_as_stated).then_some(ShortRule {
            by,
            frame_offset,
            saved_bp,
        })
    }

    /// Whether the frame was made by the kernel to deliver a signal: the caller is where the signal hit.
    pub(crate) fn is_trampoline(&self) -> bool {
        self.is_trampoline
    }

    /// Whether no call returns there: a return address was put on the stack by hand, and is the function's beginning.
    pub(crate) fn is_at_beginning(&self) -> bool {
        self.is_at_beginning
    }

    /// Whether the function is the outermost.
    pub(crate) fn has_no_caller(&self) -> bool {
        matches!(self.saved[RA], Saved::Unstated | Saved::Nowhere)
    }

    /// The caller's registers. `read` gives a word of the stack.
    pub(crate) fn caller(
        &self,
        of: &Registers,
        read: impl Fn(u64) -> Option<u64>,
    ) -> Result<Registers, NoCaller> {
        if self.has_no_caller() {
            return Err(NoCaller::Outermost);
        }
        let frame = match &self.frame {
            FrameAt::Register(number, offset) => {
                let frame = of.0[*number].ok_or(NoCaller::Unknown)?.wrapping_add_signed(*offset);
                // A callee that did not leave the register alone makes it any number.
                Some(frame)
                    .filter(|&frame| number == &RSP || is_kept(*number) || frame > of.sp())
                    .ok_or(NoCaller::Unknown)?
            }
            FrameAt::Expression(program) => program.run(None, of, &read)?,
            FrameAt::Unknown => return Err(NoCaller::Unknown),
        };
        let word = |address| read(address).ok_or(NoCaller::Unread(address));
        let mut caller = Registers([None; REGISTERS]);
        for (number, saved) in self.saved.iter().enumerate() {
            let value = match saved {
                Saved::Unstated if number == RSP => Ok(frame),
                // Also of those that callees may overwrite: where a caller's frame lies by one, as in hand-written code, it
                // calls only what leaves that register alone.
                Saved::Unstated | Saved::Same => of.0[number].ok_or(NoCaller::Unknown),
                Saved::Nowhere => Err(NoCaller::Unknown),
                Saved::At(offset) => match (word(frame.wrapping_add_signed(*offset)), of.0[number]) {
                    // Behind the stack's end: popped already, though few compilers say so.
                    (Err(NoCaller::Unread(address)), Some(value)) if number != RA && address < of.sp() => {
                        Ok(value)
                    }
                    (word, _) => word,
                },
                Saved::Is(offset) => Ok(frame.wrapping_add_signed(*offset)),
                Saved::In(other) => of.0[*other].ok_or(NoCaller::Unknown),
                Saved::AtProgram(program) => program.run(Some(frame), of, &read).and_then(word),
                Saved::IsProgram(program) => program.run(Some(frame), of, &read),
            };
            match value {
                Ok(value) => caller.0[number] = Some(value),
                // Without the others, the caller can still be told.
                Err(error) if number == RA || number == RSP => return Err(error),
                Err(_) => {}
            }
        }
        if caller.sp() == of.sp() && caller.ip() == of.ip() {
            return Err(NoCaller::Unknown); // would go on for ever
        }
        Ok(caller)
    }
}

/// Whether a function returns to a caller, by its table. What has no caller says so, or never takes its frame down: start-up code
/// that calls `main` and exits, the first function of a thread, an endless loop. `None` where the table cannot be read.
pub(super) fn returns<'a, S: UnwindSection<Slice<'a>>>(
    machine: Machine,
    function: &FrameDescriptionEntry<Slice<'a>>,
    section: &S,
    bases: &BaseAddresses,
    svma: u64,
) -> Option<bool> {
    let return_address = function.cie().return_address_register();
    let mut context = UnwindContext::new();
    let mut rows = function.rows(section, bases, &mut context).ok()?;
    let (mut begins, mut is_set_up, mut is_taken_down) = (None, false, false);
    while let Some(row) = rows.next_row().ok()? {
        if row.contains(svma) && row.register(return_address) == Some(RegisterRule::Undefined) {
            return Some(false);
        }
        let is_bare = is_bare(machine, row.cfa());
        is_taken_down |= is_set_up && is_bare;
        is_set_up |= !is_bare;
        begins = begins.or(Some(is_bare));
    }
    // The cold part of a function begins amid its frame, and jumps back.
    let is_whole = begins == Some(true);
    Some(!(is_whole && is_set_up && !is_taken_down))
}

/// Whether a frame is as a call leaves it.
fn is_bare<T: gimli::ReaderOffset>(machine: Machine, frame: &CfaRule<T>) -> bool {
    let (sp, pushed) = match machine {
        Machine::X86_64 => (X86_64::RSP, WORD as i64),
        Machine::Aarch64 => (AArch64::SP, 0),
    };
    *frame == CfaRule::RegisterAndOffset { register: sp, offset: pushed }
}

/// Whether every function leaves a register as it found it, by the ABI.
fn is_kept(number: usize) -> bool {
    number == RBX || number == RBP || (R12..=R15).contains(&number)
}

fn followed(register: Register) -> Option<usize> {
    let number = usize::from(register.0);
    (number <= usize::from(X86_64::RA.0)).then_some(number)
}

impl DwarfExpression {
    fn run(
        &self,
        start: Option<u64>,
        of: &Registers,
        read: impl Fn(u64) -> Option<u64>,
    ) -> Result<u64, NoCaller> {
        let mut evaluation = Evaluation::new(EndianSlice::new(&self.code, LittleEndian), self.encoding);
        evaluation.set_max_iterations(MAX_OPERATIONS);
        if let Some(start) = start {
            evaluation.set_initial_value(start);
        }
        let mut state = evaluation.evaluate();
        loop {
            state = match state.map_err(|_| NoCaller::Unknown)? {
                EvaluationResult::Complete => break,
                EvaluationResult::RequiresRegister { register, .. } => {
                    let value = followed(register).and_then(|number| of.0[number]);
                    evaluation.resume_with_register(Value::Generic(value.ok_or(NoCaller::Unknown)?))
                }
                EvaluationResult::RequiresMemory { address, size: 8, space: None, .. } => {
                    let word = read(address).ok_or(NoCaller::Unread(address))?;
                    evaluation.resume_with_memory(Value::Generic(word))
                }
                _ => return Err(NoCaller::Unknown),
            };
        }
        match evaluation.value_result() {
            Some(Value::Generic(value)) => Ok(value),
            _ => Err(NoCaller::Unknown),
        }
    }
}
