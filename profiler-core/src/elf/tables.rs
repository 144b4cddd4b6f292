//! Tables of unwind information, vetted before anyone evaluates them.
//!
//! The unwinding library trusts the tables in two ways that an object made to harm could turn against us: an
//! expression may jump backwards, and is evaluated without a limit; and addresses are computed from it without a
//! check for overflow. No compiler writes such tables. A function that an index leads to is vetted when it is met,
//! since a big program has hundreds of thousands; tables without an index are vetted as a whole.

use std::sync::OnceLock;

use gimli::{
    BaseAddresses, CallFrameInstruction, CieOrFde, CommonInformationEntry, DebugFrame, EhFrame,
    EhFrameOffset, Encoding, EndianSlice, FrameDescriptionEntry, LittleEndian, Operation, Register,
    UnwindExpression, UnwindSection, X86_64,
};
use rustc_hash::FxHashMap;

use super::{Section, pointer_auth};
use crate::machine::Machine;

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Bytes of an entry of the index's table: where a function starts, and where its information is.
const INDEX_ENTRY_BYTES: usize = 8;
/// Bytes before that table: version, three encodings, the pointer to `.eh_frame`, the number of entries.
const INDEX_HEADER_BYTES: usize = 12;
/// How every linker writes the index: version 1; the pointer `DW_EH_PE_pcrel | DW_EH_PE_sdata4`; the number of
/// entries `DW_EH_PE_udata4`; the table `DW_EH_PE_datarel | DW_EH_PE_sdata4`.
const USUAL_HEADER: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
/// A function's table is evaluated from its beginning, so the longest ones bound what a frame may cost.
const MAX_ENTRY_BYTES: usize = 64 << 10;
/// Entries of an index that may begin at one address (folded functions).
const MAX_SAME_START: usize = 64;
/// No register is saved further than this from the frame (bytes).
const MAX_SAVED_OFFSET: u64 = 1 << 40;

/// The tables of unwind information of one object. They are safe to evaluate where `is_safe_at` says so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnwindTables {
    /// The machine whose registers they speak of.
    pub(crate) machine: Machine,
    /// Call frame information.
    pub(crate) eh_frame: Option<Section>,
    /// Its index.
    pub(crate) eh_frame_hdr: Option<Section>,
    /// Call frame information that is not loaded into memory, where there is no other.
    pub(crate) debug_frame: Option<Section>,
    /// Whether the index is in order; known once it was looked at.
    is_in_order: OnceLock<bool>,
}

impl UnwindTables {
    /// Takes the sections `.eh_frame`, `.eh_frame_hdr` and `.debug_frame`, as far as they are there and of use. Of
    /// those with an index nothing is read yet.
    pub(super) fn new(
        machine: Machine,
        eh_frame: Option<Section>,
        eh_frame_hdr: Option<Section>,
        debug_frame: Option<Section>,
    ) -> Self {
        let Some(eh_frame) = eh_frame else {
            let debug_frame = debug_frame.filter(|section| is_safe_debug_frame(machine, section));
            return Self { debug_frame, ..Self::none(machine) };
        };
        // One source is enough, and this one is loaded with the program.
        let has_index = eh_frame_hdr.is_some();
        let eh_frame = Some(eh_frame).filter(|section| has_index || is_safe_eh_frame(machine, section));
        Self { eh_frame, eh_frame_hdr, ..Self::none(machine) }
    }

    /// Those of an object that has none.
    pub(super) fn none(machine: Machine) -> Self {
        Self { machine, ..Self::default() }
    }

    /// The same of bytes, each section with its stated address.
    ///
    /// An index of another form counts for nothing: the library makes one of its own.
    pub fn of_bytes(
        machine: Machine,
        eh_frame: Option<(u64, &[u8])>,
        eh_frame_hdr: Option<(u64, &[u8])>,
        debug_frame: Option<(u64, &[u8])>,
    ) -> Self {
        let section = |given: Option<(u64, &[u8])>| given.and_then(|(svma, bytes)| Section::new(svma, bytes));
        let index = section(eh_frame_hdr).filter(|index| is_usual_index(&index.bytes));
        let eh_frame = eh_frame.map(|(svma, bytes)| (svma, pointer_auth::readable(machine, bytes.to_vec())));
        let eh_frame = eh_frame.as_ref().map(|(svma, bytes)| (*svma, &bytes[..]));
        Self::new(machine, section(eh_frame), index, section(debug_frame))
    }

    /// Reads all of it.
    pub(super) fn read(&self) {
        self.is_in_order();
        if let Some(eh_frame) = &self.eh_frame {
            eh_frame.bytes.read();
        }
    }

    /// Whether the index, if there is one, is in order. Were it not, the library might find another function than we do.
    fn is_in_order(&self) -> bool {
        *self.is_in_order.get_or_init(|| {
            let Some(section) = &self.eh_frame_hdr else { return true };
            Index::of(section).is_some_and(|index| index.is_in_order())
        })
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.eh_frame.is_none() && self.debug_frame.is_none()
    }

    /// Where the function that holds a stated address begins, by the index.
    pub(super) fn function_start(&self, svma: u64) -> Option<u64> {
        let index = Index::of(self.eh_frame_hdr.as_ref()?)?;
        index.start(index.find(svma)?)
    }

    /// Whether the library may evaluate the tables at a stated address.
    pub(crate) fn is_safe_at(&self, svma: u64) -> bool {
        let (Some(eh_frame), Some(section)) = (&self.eh_frame, &self.eh_frame_hdr) else { return true };
        let Some(index) = Index::of(section).filter(|_| self.is_in_order()) else { return false };
        let Some(found) = index.find(svma) else { return true }; // before the first function: nothing to evaluate
        let same = (0..=found).rev().take_while(|&entry| index.start(entry) == index.start(found)).count();
        if same > MAX_SAME_START {
            return false; // the library may take any of them
        }
        let bases =
            BaseAddresses::default().set_eh_frame(eh_frame.svma.start).set_eh_frame_hdr(section.svma.start);
        let mut frame = EhFrame::from(Slice::new(&eh_frame.bytes, LittleEndian));
        frame.set_address_size(8);
        let mut vetting = Vetting::new(self.machine, &frame, &bases);
        (found + 1 - same..=found).all(|entry| match index.information_offset(entry) {
            // The library subtracts without a check.
            None => false,
            Some(offset) => {
                let function = frame.fde_from_offset(&bases, EhFrameOffset(offset), EhFrame::cie_from_offset);
                // What cannot be read is not evaluated either.
                function.map_or(true, |function| vetting.function(&function))
            }
        })
    }
}

/// The table of an index of the usual form.
struct Index<'a> {
    /// Stated address of the index: its numbers count from there.
    svma: u64,
    /// Stated address of the tables that it leads to.
    tables_svma: u64,
    entries: &'a [u8],
}

impl<'a> Index<'a> {
    fn of(section: &'a Section) -> Option<Self> {
        let (header, entries) = section.bytes.split_at_checked(INDEX_HEADER_BYTES)?;
        let number = |at: usize| Some(u32::from_le_bytes(header.get(at..at + 4)?.try_into().ok()?));
        let count = usize::try_from(number(8)?).ok()?;
        let entries = entries.get(..count.checked_mul(INDEX_ENTRY_BYTES)?)?;
        let svma = section.svma.start;
        let tables_svma = svma.wrapping_add(4).wrapping_add_signed(i64::from(number(4)? as i32));
        (header[..4] == USUAL_HEADER).then_some(Self { svma, tables_svma, entries })
    }

    fn len(&self) -> usize {
        self.entries.len() / INDEX_ENTRY_BYTES
    }

    /// A big library has hundreds of thousands of entries, so that this has to be quick.
    fn is_in_order(&self) -> bool {
        let start = |entry: &[u8; INDEX_ENTRY_BYTES]| {
            let [a, b, c, d, ..] = *entry;
            self.svma.wrapping_add_signed(i64::from(i32::from_le_bytes([a, b, c, d])))
        };
        self.entries.as_chunks().0.iter().map(start).is_sorted()
    }

    fn number(&self, at: usize) -> Option<i64> {
        let bytes = self.entries.get(at..at + 4)?;
        Some(i64::from(i32::from_le_bytes(bytes.try_into().ok()?)))
    }

    /// The stated address where an entry's function begins.
    fn start(&self, entry: usize) -> Option<u64> {
        Some(self.svma.wrapping_add_signed(self.number(entry * INDEX_ENTRY_BYTES)?))
    }

    /// Where an entry's information lies in the tables.
    fn information_offset(&self, entry: usize) -> Option<usize> {
        let svma = self.svma.wrapping_add_signed(self.number(entry * INDEX_ENTRY_BYTES + 4)?);
        usize::try_from(svma.checked_sub(self.tables_svma)?).ok()
    }

    /// The last entry that begins at or before a stated address.
    fn find(&self, svma: u64) -> Option<usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            if self.start(middle)? <= svma { low = middle + 1 } else { high = middle }
        }
        low.checked_sub(1)
    }
}

/// Whether an index that begins so has the usual form.
pub(super) fn is_usual_index(start: &[u8]) -> bool {
    start.starts_with(&USUAL_HEADER)
}

fn is_safe_eh_frame(machine: Machine, section: &Section) -> bool {
    let mut frame = EhFrame::from(Slice::new(&section.bytes, LittleEndian));
    frame.set_address_size(8);
    is_safe(machine, &frame, &BaseAddresses::default().set_eh_frame(section.svma.start))
}

fn is_safe_debug_frame(machine: Machine, section: &Section) -> bool {
    let mut frame = DebugFrame::from(Slice::new(&section.bytes, LittleEndian));
    frame.set_address_size(8);
    is_safe(machine, &frame, &BaseAddresses::default())
}

/// Whether a section without an index can be read to its end, and every function in it is safe. (The library makes
/// an index of such a section, and none where it cannot be read.)
fn is_safe<'a, S: UnwindSection<Slice<'a>>>(machine: Machine, section: &S, bases: &BaseAddresses) -> bool {
    let mut vetting = Vetting::new(machine, section, bases);
    let mut entries = section.entries(bases);
    loop {
        match entries.next() {
            Ok(None) => return true,
            Ok(Some(CieOrFde::Cie(_))) => {}
            Ok(Some(CieOrFde::Fde(partial))) => match partial.parse(S::cie_from_offset) {
                Ok(function) if vetting.function(&function) => {}
                _ => return false,
            },
            Err(_) => return false,
        }
    }
}

/// The rule for the frame's address, as far as it matters here.
type FrameRule = (Register, i64);

/// Looks through a section, function by function.
struct Vetting<'s, S> {
    machine: Machine,
    section: &'s S,
    bases: &'s BaseAddresses,
    /// Common entries by their offset: the rule they end with, `None` where they are not safe.
    common: FxHashMap<usize, Option<FrameRule>>,
}

impl<'s, 'a: 's, S: UnwindSection<Slice<'a>>> Vetting<'s, S> {
    fn new(machine: Machine, section: &'s S, bases: &'s BaseAddresses) -> Self {
        Self { machine, section, bases, common: FxHashMap::default() }
    }

    fn function(&mut self, function: &FrameDescriptionEntry<Slice<'a>>) -> bool {
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
