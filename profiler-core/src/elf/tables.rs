//! Tables of unwind information, and what they say of an address.
//!
//! A function that an index leads to is vetted when it is met, since a big program has hundreds of thousands; tables
//! without an index are vetted as a whole.

use std::sync::OnceLock;

use gimli::{
    BaseAddresses, DebugFrame, EhFrame, EhFrameOffset, FrameDescriptionEntry, LittleEndian, UnwindSection,
};

use super::index::{Functions, Information, SearchTable, is_usual_index};
use super::rules::{Rule, returns};
use super::vetting::{Slice, Vetting};
use super::{Section, pointer_auth};
use crate::machine::Machine;

/// Entries of an index that may begin at one address (folded functions).
const MAX_SAME_START: usize = 64;

/// What the tables say of an address.
#[derive(Clone, Debug)]
pub(crate) enum FoundRule {
    /// Nothing: they know no function there.
    Nothing,
    /// What must not be evaluated.
    Unsafe,
    /// A rule. The library finds the same one if `in_library` says so.
    Rule { rule: Box<Rule>, in_library: bool },
}

/// What the tables say of the callers of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Callers {
    /// Nothing: they know no function there.
    Unknown,
    /// It has none.
    None,
    /// The same, and its very beginning is returned to, one byte behind the address.
    NoneAtBeginning,
    /// It has some.
    Some,
}

/// A question to the information of one function.
trait Question {
    type Answer;
    fn answer<'a, S: UnwindSection<Slice<'a>>>(
        &self,
        function: &FrameDescriptionEntry<Slice<'a>>,
        section: &S,
        bases: &BaseAddresses,
    ) -> Option<Self::Answer>;
}

/// What it says.
enum Answered<T> {
    Nothing,
    Unsafe,
    Answer { answer: T, is_loaded: bool },
}

/// Which rule holds at a stated address?
struct RuleAt(u64);

impl Question for RuleAt {
    type Answer = Rule;
    fn answer<'a, S: UnwindSection<Slice<'a>>>(
        &self,
        function: &FrameDescriptionEntry<Slice<'a>>,
        section: &S,
        bases: &BaseAddresses,
    ) -> Option<Rule> {
        Rule::of(function, section, bases, self.0)
    }
}

/// Does the function that runs at a stated address return?
struct Returns(Machine, u64);

impl Question for Returns {
    type Answer = bool;
    fn answer<'a, S: UnwindSection<Slice<'a>>>(
        &self,
        function: &FrameDescriptionEntry<Slice<'a>>,
        section: &S,
        bases: &BaseAddresses,
    ) -> Option<bool> {
        returns(self.0, function, section, bases, self.1)
    }
}

/// Where an address lies among the functions that tables know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressPosition {
    /// In the function that begins here.
    Within { start: u64 },
    /// In none; the last one before it ends here.
    Behind { end: u64 },
}

/// The tables of unwind information of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnwindTables {
    /// The machine whose registers they speak of.
    pub(crate) machine: Machine,
    /// Call frame information.
    pub(crate) eh_frame: Option<Section>,
    /// Its index.
    pub(crate) eh_frame_hdr: Option<Section>,
    /// Call frame information that is not loaded into memory, for functions that the other does not cover.
    pub(crate) debug_frame: Option<Section>,
    /// Whether the index is in order; known once it was looked at.
    is_in_order: OnceLock<bool>,
    /// What stands in for the index where there is none, once it was looked at; none where it is not safe to read.
    eh_frame_functions: OnceLock<Option<Functions>>,
    /// The same of `debug_frame`, once it was looked at.
    debug_frame_functions: OnceLock<Option<Functions>>,
}

impl UnwindTables {
    /// Takes the sections `.eh_frame`, `.eh_frame_hdr` and `.debug_frame`, as far as they are there and of use. Of
    /// an `.eh_frame` with an index, and on x86-64 of `.debug_frame`, nothing is read yet.
    pub(super) fn new(
        machine: Machine,
        eh_frame: Option<Section>,
        eh_frame_hdr: Option<Section>,
        debug_frame: Option<Section>,
    ) -> Self {
        let mut tables = Self::none(machine);
        // On other machines the library reads it, and takes no other beside it.
        let is_safe = |section: &Section| {
            machine == Machine::X86_64
                || eh_frame.is_none()
                    && Functions::of(machine, &debug_frame_of(section), &BaseAddresses::default()).is_some()
        };
        tables.debug_frame = debug_frame.filter(is_safe);
        let Some(eh_frame) = eh_frame else { return tables };
        (tables.eh_frame, tables.eh_frame_hdr) = (Some(eh_frame), eh_frame_hdr);
        if tables.eh_frame_hdr.is_none() && tables.eh_frame_functions().is_none() {
            tables.eh_frame = None;
        }
        tables
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

    /// The same, to be read anew, and looked at anew: they may be other bytes.
    pub(super) fn unread(&self) -> Self {
        let unread = |section: &Section| Section { bytes: section.bytes.unread(), ..section.clone() };
        Self {
            machine: self.machine,
            eh_frame: self.eh_frame.as_ref().map(unread),
            eh_frame_hdr: self.eh_frame_hdr.as_ref().map(unread),
            debug_frame: self.debug_frame.as_ref().map(unread),
            is_in_order: OnceLock::new(),
            eh_frame_functions: OnceLock::new(),
            debug_frame_functions: OnceLock::new(),
        }
    }

    /// What all sections take of memory.
    pub(super) fn bytes(&self) -> u64 {
        let sections = [&self.eh_frame, &self.eh_frame_hdr, &self.debug_frame];
        sections.into_iter().flatten().map(|section| section.takes).sum()
    }

    /// Reads all that any program needs.
    pub(super) fn read(&self) {
        self.is_in_order();
        if let Some(eh_frame) = &self.eh_frame {
            eh_frame.bytes.read();
        }
        self.eh_frame_functions();
    }

    /// Whether the index, if there is one, is in order. Were it not, the library might find another function than we do.
    fn is_in_order(&self) -> bool {
        *self.is_in_order.get_or_init(|| {
            let Some(section) = &self.eh_frame_hdr else { return true };
            SearchTable::of(section).is_some_and(|index| index.is_in_order())
        })
    }

    fn eh_frame_functions(&self) -> Option<&Functions> {
        let make = || match &self.eh_frame {
            Some(section) if self.eh_frame_hdr.is_none() => {
                Functions::of(self.machine, &eh_frame_of(section), &bases(section, None))
            }
            _ => Some(Functions::default()),
        };
        self.eh_frame_functions.get_or_init(make).as_ref()
    }

    fn debug_frame_functions(&self) -> Option<&Functions> {
        let make = || {
            let section = self.debug_frame.as_ref()?;
            Some(Functions::each_of(self.machine, &debug_frame_of(section), &BaseAddresses::default()))
        };
        self.debug_frame_functions.get_or_init(make).as_ref()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.eh_frame.is_none() && self.debug_frame.is_none()
    }

    /// Where the function that holds a stated address begins, as far as the tables tell.
    pub(super) fn function_start(&self, svma: u64) -> Option<u64> {
        match self.extent(svma) {
            AddressPosition::Within { start } => Some(start),
            AddressPosition::Behind { .. } => None,
        }
    }

    /// The function that holds a stated address, or the end of what the tables cover before it.
    pub(super) fn extent(&self, svma: u64) -> AddressPosition {
        let by_debug_frame = || self.debug_frame_functions()?.extent(svma);
        let by_functions = || self.eh_frame_functions()?.extent(svma);
        let by_index = || self.extent_by_index(svma);
        let tables: [&dyn Fn() -> Option<AddressPosition>; 3] = [&by_debug_frame, &by_functions, &by_index];
        let mut covered = 0;
        for table in tables {
            match table() {
                Some(within @ AddressPosition::Within { .. }) => return within,
                Some(AddressPosition::Behind { end }) => covered = covered.max(end),
                None => {}
            }
        }
        AddressPosition::Behind { end: covered }
    }

    /// An index tells where functions begin; where one ends is in its information.
    fn extent_by_index(&self, svma: u64) -> Option<AddressPosition> {
        let index = SearchTable::of(self.eh_frame_hdr.as_ref()?)?;
        let entry = index.find(svma)?;
        let start = index.start(entry)?;
        let end = index.information_offset(entry).and_then(|offset| self.end_of(offset));
        // Information that cannot be read tells no end.
        Some(match end.filter(|&end| end <= svma) {
            Some(end) => AddressPosition::Behind { end },
            None => AddressPosition::Within { start },
        })
    }

    fn end_of(&self, offset: usize) -> Option<u64> {
        let section = self.eh_frame.as_ref()?;
        let bases = bases(section, self.eh_frame_hdr.as_ref());
        let frame = eh_frame_of(section);
        let function = frame.fde_from_offset(&bases, EhFrameOffset(offset), EhFrame::cie_from_offset).ok()?;
        Some(function.end_address())
    }

    /// What holds at a stated address.
    pub(crate) fn find(&self, svma: u64) -> FoundRule {
        match self.find_function(svma) {
            // What a fiber's first function returns to has no call before it: a function begins there. Not every C
            // library says that it has no caller.
            FoundRule::Nothing if self.has_rules() && self.begins_at(svma.wrapping_add(1)) => {
                FoundRule::Rule { rule: Box::new(Rule::beginning()), in_library: false }
            }
            found => found,
        }
    }

    fn begins_at(&self, svma: u64) -> bool {
        self.function_start(svma) == Some(svma) && self.knows(svma)
    }

    fn find_function(&self, svma: u64) -> FoundRule {
        match self.ask(svma, &RuleAt(svma)) {
            Answered::Nothing => FoundRule::Nothing,
            Answered::Unsafe => FoundRule::Unsafe,
            Answered::Answer { answer, is_loaded } => FoundRule::Rule {
                in_library: !self.has_rules() || is_loaded && answer.is_usual(),
                rule: Box::new(answer),
            },
        }
    }

    /// What they say of the callers of the function that a call, at a stated address, returns to.
    pub(crate) fn callers(&self, svma: u64) -> Callers {
        match self.ask(svma, &Returns(self.machine, svma)) {
            Answered::Answer { .. } if self.is_no_call(svma) => Callers::None,
            Answered::Answer { answer: true, .. } => Callers::Some,
            Answered::Answer { answer: false, .. } => Callers::None,
            Answered::Nothing if self.begins_at(svma.wrapping_add(1)) => Callers::NoneAtBeginning,
            Answered::Nothing | Answered::Unsafe => Callers::Unknown,
        }
    }

    /// Whether no call can end at a stated address, since it would begin before its function does: who made the stack put the
    /// return address there, to have it end in this function.
    fn is_no_call(&self, svma: u64) -> bool {
        let shorter_than_call = match self.machine {
            Machine::X86_64 => 1,
            Machine::Aarch64 => 4,
        };
        self.function_start(svma).is_some_and(|start| svma.wrapping_sub(start) < shorter_than_call)
    }

    fn knows(&self, svma: u64) -> bool {
        matches!(self.find_function(svma), FoundRule::Rule { .. })
    }

    fn ask<Q: Question>(&self, svma: u64, question: &Q) -> Answered<Q::Answer> {
        match self.ask_eh_frame(svma, question) {
            Answered::Nothing => self.ask_debug_frame(svma, question),
            answered => answered,
        }
    }

    /// Whether our own rules are for this machine; on others, all is the library's.
    fn has_rules(&self) -> bool {
        self.machine == Machine::X86_64
    }

    fn ask_eh_frame<Q: Question>(&self, svma: u64, question: &Q) -> Answered<Q::Answer> {
        let Some(eh_frame) = &self.eh_frame else { return Answered::Nothing };
        let frame = eh_frame_of(eh_frame);
        let bases = bases(eh_frame, self.eh_frame_hdr.as_ref());
        let answer_at = |offset: usize| {
            let function =
                frame.fde_from_offset(&bases, EhFrameOffset(offset), EhFrame::cie_from_offset).ok()?;
            Some(function)
                .filter(|function| function.contains(svma))
                .and_then(|function| question.answer(&function, &frame, &bases))
        };
        let offset = match &self.eh_frame_hdr {
            None => match self.eh_frame_functions().map(|functions| functions.information(svma)) {
                None | Some(Some(Information::Unsafe)) => return Answered::Unsafe,
                Some(Some(Information::At(offset))) => Some(offset),
                Some(None) => None,
            },
            Some(_) if !self.is_in_order() => return Answered::Unsafe,
            Some(section) => match vetted(self.machine, section, &frame, &bases, svma) {
                Err(NotSafe) => return Answered::Unsafe,
                Ok(offset) => offset,
            },
        };
        let answer = offset.and_then(answer_at);
        answer.map_or(Answered::Nothing, |answer| Answered::Answer { answer, is_loaded: true })
    }

    fn ask_debug_frame<Q: Question>(&self, svma: u64, question: &Q) -> Answered<Q::Answer> {
        let information = self.debug_frame_functions().and_then(|functions| functions.information(svma));
        let (Some(section), Some(information)) = (&self.debug_frame, information) else {
            return Answered::Nothing;
        };
        let Information::At(offset) = information else { return Answered::Unsafe };
        let (frame, bases) = (debug_frame_of(section), BaseAddresses::default());
        let function = frame.fde_from_offset(&bases, offset.into(), DebugFrame::cie_from_offset);
        let answer = function.ok().and_then(|function| question.answer(&function, &frame, &bases));
        answer.map_or(Answered::Nothing, |answer| Answered::Answer { answer, is_loaded: false })
    }
}

/// The library would evaluate what it must not.
struct NotSafe;

/// Where the information lies for the function that an index leads to, once everything that the library may take for
/// it has been vetted; `None` before the first function.
fn vetted(
    machine: Machine,
    section: &Section,
    frame: &EhFrame<Slice<'_>>,
    bases: &BaseAddresses,
    svma: u64,
) -> Result<Option<usize>, NotSafe> {
    let index = SearchTable::of(section).ok_or(NotSafe)?;
    let Some(found) = index.find(svma) else { return Ok(None) };
    let same = (0..=found).rev().take_while(|&entry| index.start(entry) == index.start(found)).count();
    if same > MAX_SAME_START {
        return Err(NotSafe); // the library may take any of them
    }
    let mut vetting = Vetting::new(machine, frame, bases);
    let mut offset = None;
    for entry in found + 1 - same..=found {
        // The library subtracts without a check.
        let at = index.information_offset(entry).ok_or(NotSafe)?;
        let function = frame.fde_from_offset(bases, EhFrameOffset(at), EhFrame::cie_from_offset);
        // What cannot be read is not evaluated either.
        if function.is_ok_and(|function| !vetting.function(&function)) {
            return Err(NotSafe);
        }
        offset = Some(at);
    }
    Ok(offset)
}

fn bases(eh_frame: &Section, index: Option<&Section>) -> BaseAddresses {
    let bases = BaseAddresses::default().set_eh_frame(eh_frame.svma.start);
    match index {
        Some(index) => bases.set_eh_frame_hdr(index.svma.start),
        None => bases,
    }
}

fn eh_frame_of(section: &Section) -> EhFrame<Slice<'_>> {
    let mut frame = EhFrame::from(Slice::new(&section.bytes, LittleEndian));
    frame.set_address_size(8);
    frame
}

fn debug_frame_of(section: &Section) -> DebugFrame<Slice<'_>> {
    let mut frame = DebugFrame::from(Slice::new(&section.bytes, LittleEndian));
    frame.set_address_size(8);
    frame
}
