//! From a sample to the chain of callers.
//!
//! Two ways: frame pointers, followed by the kernel as it takes the sample, or a copy of the stack, unwound
//! here with the tables that compilers leave for exceptions. [`method`] chooses between them, [`copy`] says
//! how much stack to copy, and [`basis`] when to forget both. What both lack, [`earlier`] may know.

pub mod basis;
pub mod copy;
pub mod earlier;
mod ends;
pub mod method;
mod rare;
mod registers;
mod stub;
mod untabled;

use std::ops::{ControlFlow, Range};

use framehop::x86_64::UnwindRegsX86_64;
use framehop::{Error, ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder as _};
use rustc_hash::FxHashMap;

use self::ends::{end, has_caller_beyond, is_absent, is_called_from_entry, is_cut_off, lost};
use crate::elf::rules::ShortRule;
use crate::elf::{ElfImage, FoundRule, Section, SectionBytes};
use crate::machine::Machine;
use crate::process::{AddressSpace, Process};
use crate::profile::Outcome;
use crate::record::{StackCopy, UserRegs};
pub use ends::StackEnd;
use registers::{Caches, MachineRegisters, Unwinders};

/// A stack deeper than this is taken for a loop.
const MAX_FRAMES: usize = 4096;
/// The library counts changes of module sets in 16 bits to detect stale cached rules; the cache is renewed before that
/// count can wrap around. A mapping adds up to three modules, each of which is removed at some time, and each process
/// begins with a module set for each machine: fewer than nine counts for each reported change.
const CACHE_LIFE_CHANGES: u32 = 7_000;
/// Where a stack can be. Outside, the library computes addresses that overflow.
const STACK_ADDRESSES: Range<u64> = 4096..1 << 63;
/// Frames of a chain of frame pointers that may lie beyond the outermost function.
const MADE_UP_CALLERS: usize = 2;
/// Most addresses that are remembered.
const MAX_KNOWN: usize = 1 << 16;

/// The files loaded into one address space, as the unwinding library wants them.
#[derive(Clone, Default)]
pub struct ModuleSet {
    unwinders: Unwinders,
}

impl ModuleSet {
    pub(crate) fn add(&mut self, range: Range<u64>, bias: u64, image: &ElfImage) {
        let (base_svma, tables) = (image.base_svma(), &image.tables);
        if base_svma.checked_add(u64::from(u32::MAX)).is_none() {
            return; // the library adds an offset of 32 bits without a check
        }
        let (eh_frame_svma, eh_frame) = parts(tables.eh_frame.as_ref());
        let (eh_frame_hdr_svma, eh_frame_hdr) = parts(tables.eh_frame_hdr.as_ref());
        let for_library = tables.debug_frame.as_ref().filter(|_| image.machine() != Machine::X86_64);
        let (_, debug_frame) = parts(for_library);
        let sections = ExplicitModuleSectionInfo {
            base_svma,
            eh_frame_svma,
            eh_frame,
            eh_frame_hdr_svma,
            eh_frame_hdr,
            debug_frame,
            ..Default::default()
        };
        let base = base_svma.wrapping_add(bias);
        self.unwinders.add(image.machine(), Module::new(String::new(), range, base, sections));
    }

    pub(crate) fn remove(&mut self, start: u64) {
        self.unwinders.remove(start);
    }
}

fn parts(section: Option<&Section>) -> (Option<Range<u64>>, Option<SectionBytes>) {
    section.map_or((None, None), |s| (Some(s.svma.clone()), Some(s.bytes.clone())))
}

/// The result of unwinding a copied stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unwound {
    /// How it ended.
    pub outcome: Outcome,
    /// Bytes of stack between the innermost and the outermost frame.
    pub depth_bytes: u64,
}

/// What the tables say about an address, to choose how to continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KnownRule {
    /// Nothing.
    Nothing,
    /// A rule that must not be evaluated.
    Unsafe,
    /// A rule that the library supports; in short form, if possible.
    Usual(Option<ShortRule>),
    /// A rule that takes all registers, or that the library does not have.
    Rare,
    /// A program begins here: whatever the rule says, there is no caller.
    Entry,
}

/// The stack holds a frame that only all registers together lead out of.
struct NeedsAll;

/// Unwinds copied stacks; keeps what it learns about code addresses.
#[derive(Default)]
pub struct StackUnwinder {
    caches: Caches,
    changes: u32,
    /// Addresses that were looked up, by the generation of the process they were met in.
    known: FxHashMap<(u64, u64), KnownRule>,
    rules: rare::RuleCache,
    /// The stack pointer in each frame of the last stack.
    places: Vec<u64>,
    /// The word that the outermost one keeps of its caller and that was not copied.
    unread: Option<u64>,
    /// Whether the outermost frame returns to memory that is not known to be executable.
    returns_outside_code: bool,
    /// How a stack ends that goes no further than a return address, by the generation of the process.
    ends: FxHashMap<(u64, u64), StackEnd>,
}

impl StackUnwinder {
    /// The stack pointer in each frame of the last stack, innermost first; none where the stack was not followed.
    pub fn places(&self) -> &[u64] {
        &self.places
    }

    /// Where the last stack was cut: the address of a word that its outermost frame has saved and the copy does not hold.
    pub fn unread(&self) -> Option<u64> {
        self.unread
    }

    /// Whether the last stack returns to memory that is not executable, as far as known.
    pub fn returns_outside_code(&self) -> bool {
        self.returns_outside_code
    }

    /// What it means if a stack ends at a lookup address. `is_return`: the frame is a caller, not the innermost frame,
    /// which has an instruction address instead of a return address.
    pub fn end_at(&mut self, process: &Process, address: u64, is_return: bool) -> StackEnd {
        if !is_return {
            let is_entry = self.known(process, address) == KnownRule::Entry;
            return if is_entry { StackEnd::Outermost } else { StackEnd::Inner };
        }
        if self.ends.len() > MAX_KNOWN {
            self.ends.clear();
        }
        let find = || ends::stack_end(&process.space, address);
        *self.ends.entry((process.generation, address)).or_insert_with(find)
    }

    /// How a call chain by frame pointers ends (lookup addresses, innermost first). The chain is cut at the first
    /// address that is not code: if code keeps other values in the frame pointer register, the chain leads through
    /// data.
    pub fn chain_end(&mut self, process: &Process, chain: &mut Vec<u64>) -> StackEnd {
        let callers = chain.iter().skip(1);
        let code = 1 + callers.take_while(|&&caller| process.space.is_executable(caller)).count();
        let is_cut = code < chain.len();
        chain.truncate(code);
        let Some(end) = self.find_end(process, chain) else {
            return if is_cut { StackEnd::NoCode } else { self.last_end(process, chain) };
        };
        if end == StackEnd::OutermostBeginning
            && let Some(last) = chain.last_mut()
        {
            *last += 1; // this address is no return address
        }
        end
    }

    /// Cuts a chain behind its outermost function, if one of the last frames is: that may hold any number in the register when it
    /// calls the first function with a frame pointer, and the number may lead to a word that looks like a caller.
    fn find_end(&mut self, process: &Process, chain: &mut Vec<u64>) -> Option<StackEnd> {
        let shortest = chain.len().saturating_sub(MADE_UP_CALLERS).max(1);
        let outermost = (shortest..=chain.len()).rev().find_map(|frames| {
            let end = self.last_end(process, chain.get(..frames)?);
            Some((frames, end)).filter(|(_, end)| end.is_outermost())
        });
        let (frames, end) = outermost?;
        chain.truncate(frames);
        Some(end)
    }

    fn last_end(&mut self, process: &Process, chain: &[u64]) -> StackEnd {
        let last = chain.last().map(|&last| self.end_at(process, last, chain.len() > 1));
        last.unwrap_or(StackEnd::Inner)
    }

    /// Tells that some address space has changed since the last stack.
    pub fn note_change(&mut self) {
        self.note_changes(1);
    }

    fn note_changes(&mut self, count: usize) {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.changes = self.changes.saturating_add(count);
        if self.changes > CACHE_LIFE_CHANGES {
            (self.caches, self.changes) = (Caches::default(), count);
        }
    }

    /// What the tables say about a lookup address; they are read once for each.
    fn known(&mut self, process: &Process, address: u64) -> KnownRule {
        if self.known.len() > MAX_KNOWN {
            self.known.clear();
        }
        let ask = || match process.space.find_rule(address) {
            FoundRule::Nothing => KnownRule::Nothing,
            FoundRule::Unsafe => KnownRule::Unsafe,
            FoundRule::Rule { .. } if process.space.is_entry_function(address) => KnownRule::Entry,
            FoundRule::Rule { rule, in_library: true } => KnownRule::Usual(rule.short()),
            FoundRule::Rule { in_library: false, .. } => KnownRule::Rare,
        };
        *self.known.entry((process.generation, address)).or_insert_with(ask)
    }

    /// Appends the lookup addresses of all frames to `frames`, innermost first.
    pub fn unwind(
        &mut self,
        process: &Process,
        regs: UserRegs,
        stack: StackCopy<'_>,
        frames: &mut Vec<u64>,
    ) -> Unwound {
        let first = frames.len();
        self.places.clear();
        (self.unread, self.returns_outside_code) = (None, false);
        let (base, unwound) = match regs {
            UserRegs::X86_64 { ip, general } => {
                let [bp, sp] = [6, 7].map(|number| general[number].unwrap_or(0));
                let registers = UnwindRegsX86_64::new(ip, sp, bp);
                (
                    sp,
                    self.by_library(process, ip, registers, stack, frames).unwrap_or_else(|NeedsAll| {
                        frames.truncate(first);
                        self.places.clear();
                        let followed = (&mut *frames, &mut self.places, &mut self.unread);
                        rare::unwind(&mut self.rules, process, (ip, &general), stack, followed)
                    }),
                )
            }
            UserRegs::Aarch64 { pc, sp, lr, fp } => {
                self.note_changes(process.space.modules_to_enter());
                let registers = registers::aarch64(&process.space.modules().unwinders, pc, lr, sp, fp);
                let by_library = self.by_library(process, pc, registers, stack, frames);
                (sp, by_library.unwrap_or((Outcome::Broken, sp))) // of that machine, the library has all rules
            }
            UserRegs::Narrow { ip } => {
                frames.push(ip); // all that 64-bit rules can find
                (0, (Outcome::Narrow, 0))
            }
        };
        let (mut outcome, outermost) = unwound;
        if outcome != Outcome::TooManyFrames && self.drop_what_is_no_code(process, frames, first) {
            self.unread = None; // no frame is left that needs it
            outcome = self.without_caller(process, &frames[first..]);
        }
        if stack.is_empty() && !stack.is_full() && outcome.is_truncated() {
            // In the midst of `execve` the stack is gone, and often the code; else a fault has hit a page of the stack.
            let is_there = |&ip: &u64| process.space.is_executable(ip);
            let known = frames[first..].iter().take_while(|ip| is_there(ip)).count();
            let (gone, known) = match regs.are_of_system_call() {
                Some(false) if known > 0 => (Outcome::StackAbsent, known),
                Some(true) => (Outcome::NoUserStack, 0),
                _ => (Outcome::NoUserStack, known),
            };
            outcome = gone;
            frames.truncate(first + known);
            self.places.truncate(known);
        }
        // The depth of another stack says nothing about the copied one.
        let outermost = if ends::is_elsewhere(outermost, base, stack) { base } else { outermost };
        let depth_bytes = outermost.saturating_sub(base).min(stack.len() as u64);
        Unwound { outcome, depth_bytes }
    }

    /// Removes outermost frames in memory that is not executable, as far as known: such words are not return addresses,
    /// or belong to code that was never reported. Returns whether there were any.
    fn drop_what_is_no_code(&mut self, process: &Process, frames: &mut Vec<u64>, first: usize) -> bool {
        let callers = frames.get(first + 1..).unwrap_or_default().iter().rev();
        let none = callers.take_while(|&&caller| !process.space.is_executable(caller)).count();
        frames.truncate(frames.len() - none);
        self.places.truncate(frames.len() - first);
        self.returns_outside_code = none > 0;
        self.returns_outside_code
    }

    /// The outcome of a stack whose outermost frame has no caller in the place of its return address.
    fn without_caller(&mut self, process: &Process, frames: &[u64]) -> Outcome {
        let Some(&last) = frames.last() else { return Outcome::Broken };
        match self.end_at(process, last, frames.len() > 1) {
            end if end.is_outermost() => Outcome::Complete,
            StackEnd::Unknown => lost(&process.space, last, true),
            _ => Outcome::Broken,
        }
    }

    /// By the library, which follows few registers. Gives the outcome and the last stack pointer.
    fn by_library<R: MachineRegisters>(
        &mut self,
        process: &Process,
        ip: u64,
        mut registers: R,
        stack: StackCopy<'_>,
        frames: &mut Vec<u64>,
    ) -> Result<(Outcome, u64), NeedsAll> {
        let space = &process.space;
        let first = frames.len();
        let base = registers.sp();
        let mut at = FrameAddress::from_instruction_pointer(ip);
        let outcome = loop {
            let address = at.address_for_lookup();
            frames.push(address);
            self.places.push(registers.sp());
            if frames.len() - first >= MAX_FRAMES {
                break Outcome::TooManyFrames;
            }
            if !STACK_ADDRESSES.contains(&registers.sp()) {
                break Outcome::Broken;
            }
            let known = self.known(process, address);
            let word = |address: u64| word_at(base, stack, address);
            if let KnownRule::Usual(Some(rule)) = known
                && R::HAS_RULES
            {
                match registers.by_rule(&rule, word) {
                    Ok((caller, outer)) => {
                        (at, registers) = (caller, outer);
                        continue;
                    }
                    Err(Some(address)) if is_cut_off(address, base, stack) => {
                        self.unread = Some(address);
                        break Outcome::CopyTooShort;
                    }
                    Err(_) => {} // the library decides how it ends
                }
            }
            match known {
                KnownRule::Unsafe => break Outcome::Broken,
                KnownRule::Entry => break Outcome::Complete,
                known if R::HAS_RULES && needs_all(space, known, at) => return Err(NeedsAll),
                _ => {}
            }
            if let Some((ip, interrupted)) = interrupted(space, known, at, &registers, word) {
                if let Some(frame) = frames.last_mut() {
                    *frame = at.address(); // no call returns to a trampoline's beginning
                }
                (at, registers) = (FrameAddress::from_instruction_pointer(ip), interrupted);
                continue;
            }
            if space.is_generated(address)
                && at.is_return_address()
                && let Some((caller, outer)) = registers.past_stub(space, word).and_then(returned)
            {
                (at, registers) = (caller, outer);
                continue;
            }
            match self.ask_library(space, known, at, &mut registers, (base, stack)) {
                ControlFlow::Continue(caller) => at = caller,
                ControlFlow::Break(outcome) => break outcome,
            }
        };
        Ok((outcome, registers.sp()))
    }

    /// The caller of a frame by the library's own reading of the tables, or by what it assumes where they say nothing; or how
    /// the stack ends there. The copy of the stack begins at the given address.
    fn ask_library<R: MachineRegisters>(
        &mut self,
        space: &AddressSpace,
        known: KnownRule,
        at: FrameAddress,
        registers: &mut R,
        (base, stack): (u64, StackCopy<'_>),
    ) -> ControlFlow<Outcome, FrameAddress> {
        let word = |address: u64| word_at(base, stack, address);
        let address = at.address_for_lookup();
        self.note_changes(space.modules_to_enter());
        let (mut unread, sp) = (None, registers.sp());
        let mut read = |address| word(address).ok_or_else(|| _ = unread.get_or_insert(address));
        let unwinder = R::unwinder(&space.modules().unwinders);
        let caller = unwinder.unwind_frame(at, registers, R::cache(&mut self.caches), &mut read);
        // What an interrupted function has popped lies below its stack pointer, and the library does without.
        let is_needed = |address: &u64| at.is_return_address() || *address >= sp;
        if let Some(address) = unread.filter(is_needed) {
            self.unread = Some(address);
            let has_fallen_back = caller != Err(Error::CouldNotReadStack(address));
            if has_fallen_back {
                // The library fell back to the frame pointer, and caches that for this address, whatever the rule
                // says.
                (self.caches, self.changes) = (Caches::default(), 0);
            }
            if is_cut_off(address, base, stack) {
                return ControlFlow::Break(Outcome::CopyTooShort);
            }
            if has_fallen_back {
                let is_absent = is_absent(address, base, stack);
                return ControlFlow::Break(if is_absent { Outcome::StackAbsent } else { Outcome::Broken });
            }
        }
        if caller.is_ok() {
            self.unread = None; // the caller was found without it
        }
        let is_amid = |sp| known == KnownRule::Nothing && has_caller_beyond(space, base, sp, stack);
        let outcome = match caller.map(|caller| caller.and_then(FrameAddress::from_return_address)) {
            // A word of the frame that is not a caller must not be reported as one.
            Ok(Some(caller))
                if known == KnownRule::Nothing
                    && space.is_executable(address)
                    && !space.is_executable(caller.address_for_lookup()) =>
            {
                lost(space, address, true)
            }
            Ok(Some(caller)) => return ControlFlow::Continue(caller),
            Ok(None) => match registers.overlooked(word).and_then(returned) {
                Some((caller, outer)) if space.is_in_file(caller.address_for_lookup()) => {
                    *registers = outer;
                    return ControlFlow::Continue(caller);
                }
                _ if is_amid(sp) => lost(space, address, true),
                _ => end(space, at),
            },
            Err(error) if registers.mark_the_end(&error) => {
                if is_amid(sp) {
                    lost(space, address, true)
                } else {
                    end(space, at)
                }
            }
            Err(_) if is_called_from_entry(space, base, registers.sp(), stack) => end(space, at),
            Err(Error::CouldNotReadStack(word)) if is_absent(word, base, stack) => Outcome::StackAbsent,
            Err(_) => lost(space, address, known == KnownRule::Nothing),
        };
        ControlFlow::Break(outcome)
    }
}

/// Whether finding the caller takes all registers, or a search of the stack: for a rule that the library does not follow, and
/// in an innermost frame without a rule, since its function may not have set up its frame pointer yet.
fn needs_all(space: &AddressSpace, known: KnownRule, at: FrameAddress) -> bool {
    let address = at.address_for_lookup();
    match known {
        KnownRule::Rare => true,
        KnownRule::Nothing => {
            !at.is_return_address() && !space.is_generated(address) && space.is_in_file(address)
        }
        _ => false,
    }
}

/// What a signal interrupted, if this is the frame of a trampoline that returns from the signal's handler.
fn interrupted<R: MachineRegisters>(
    space: &AddressSpace,
    known: KnownRule,
    at: FrameAddress,
    registers: &R,
    word: impl Fn(u64) -> Option<u64>,
) -> Option<(u64, R)> {
    let has_usual_rule = matches!(known, KnownRule::Usual(_)) && R::HAS_RULES;
    let may_be = !has_usual_rule && at.is_return_address();
    may_be.then(|| registers.interrupted(space, word)).flatten()
}

/// A caller by its return address, unless that is zero.
fn returned<R>((address, registers): (u64, R)) -> Option<(FrameAddress, R)> {
    FrameAddress::from_return_address(address).map(|caller| (caller, registers))
}

/// The word at an address, if the copy that begins at `sp` holds it.
fn word_at(sp: u64, stack: StackCopy<'_>, address: u64) -> Option<u64> {
    stack.word(address.checked_sub(sp)?)
}

#[cfg(test)]
mod tests;
