//! From a sample to the chain of callers.
//!
//! Two ways: frame pointers, followed by the kernel as it takes the sample, or a copy of the stack, unwound
//! here with the tables that compilers leave for exceptions. [`method`] chooses between them, [`copy`] says
//! how much stack to copy.

pub mod copy;
pub mod method;
mod registers;
mod stub;

use std::ops::Range;

use framehop::x86_64::UnwindRegsX86_64;
use framehop::{Error, ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder as _};
use rustc_hash::FxHashMap;

use crate::elf::{ElfImage, Section, SectionBytes};
use crate::process::{AddressSpace, Process};
use crate::profile::Outcome;
use crate::record::{StackCopy, UserRegs};
use registers::{Caches, Registers, Unwinders};

/// A stack deeper than this is taken for a loop.
const MAX_FRAMES: usize = 4096;
/// The library counts changes of module sets in 16 bits to know which cached rules are stale; the cache is
/// renewed before that count can wrap around. A mapping adds up to three modules, each of which is removed again
/// some day, and a process begins with a set of its own for each machine: less than nine counts for each change that
/// is told.
const CACHE_LIFE_CHANGES: u32 = 7_000;
/// Where a stack can be. Outside, the library computes addresses that overflow.
const STACK_ADDRESSES: Range<u64> = 4096..1 << 63;
/// Vetted addresses that are remembered.
const MAX_VETTED: usize = 1 << 16;
/// Words of stack that start-up code uses, at most.
const START_UP_WORDS: u64 = 64;
/// A caller this far behind the end of the copy may exist (bytes); further away the address is wild.
const REACH_BYTES: u64 = 1 << 20;

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
        let (_, debug_frame) = parts(tables.debug_frame.as_ref());
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

/// What unwinding a copied stack gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unwound {
    /// How it ended.
    pub outcome: Outcome,
    /// Bytes of stack between the innermost and the outermost frame.
    pub depth_bytes: u64,
}

/// Unwinds copied stacks; keeps what it learns about code addresses.
#[derive(Default)]
pub struct StackUnwinder {
    caches: Caches,
    changes: u32,
    /// Addresses whose tables were vetted, by the generation of the process they were met in.
    vetted: FxHashMap<(u64, u64), bool>,
}

impl StackUnwinder {
    /// Tells that some address space has changed since the last stack.
    pub fn note_change(&mut self) {
        self.changes += 1;
        if self.changes > CACHE_LIFE_CHANGES {
            *self = Self::default();
        }
    }

    /// Whether the tables at a lookup address may be evaluated; looked at once.
    fn is_safe(&mut self, process: &Process, address: u64) -> bool {
        if self.vetted.len() > MAX_VETTED {
            self.vetted.clear();
        }
        let vet = || process.space.is_safe_to_unwind(address);
        *self.vetted.entry((process.generation, address)).or_insert_with(vet)
    }

    /// Appends the lookup addresses of all frames to `frames`, innermost first.
    pub fn unwind(
        &mut self,
        process: &Process,
        regs: UserRegs,
        stack: StackCopy<'_>,
        frames: &mut Vec<u64>,
    ) -> Unwound {
        match regs {
            UserRegs::X86_64 { ip, sp, bp } => {
                self.unwind_from(process, ip, UnwindRegsX86_64::new(ip, sp, bp), stack, frames)
            }
            UserRegs::Aarch64 { pc, sp, lr, fp } => {
                let registers = registers::aarch64(&process.space.modules().unwinders, pc, lr, sp, fp);
                self.unwind_from(process, pc, registers, stack, frames)
            }
            UserRegs::Narrow { ip } => {
                frames.push(ip); // all that can be told by 64-bit rules
                Unwound { outcome: Outcome::Broken, depth_bytes: 0 }
            }
        }
    }

    fn unwind_from<R: Registers>(
        &mut self,
        process: &Process,
        ip: u64,
        mut registers: R,
        stack: StackCopy<'_>,
        frames: &mut Vec<u64>,
    ) -> Unwound {
        let space = &process.space;
        let first = frames.len();
        let base = registers.sp();
        let mut at = FrameAddress::from_instruction_pointer(ip);
        let outcome = loop {
            frames.push(at.address_for_lookup());
            if frames.len() - first >= MAX_FRAMES || !STACK_ADDRESSES.contains(&registers.sp()) {
                break Outcome::Broken;
            }
            if !self.is_safe(process, at.address_for_lookup()) {
                break Outcome::Broken;
            }
            let word = |address: u64| address.checked_sub(base).and_then(|offset| stack.word(offset));
            if at.is_return_address()
                && let Some((ip, interrupted)) = registers.interrupted(space, word)
            {
                (at, registers) = (FrameAddress::from_instruction_pointer(ip), interrupted);
                continue;
            }
            let is_generated = space.is_generated(at.address_for_lookup());
            if is_generated
                && at.is_return_address()
                && let Some((caller, outer)) = registers.past_stub(space, word).and_then(returned)
            {
                (at, registers) = (caller, outer);
                continue;
            }
            let mut unread = None;
            let mut read = |address| word(address).ok_or_else(|| _ = unread.get_or_insert(address));
            let unwinder = R::unwinder(&space.modules().unwinders);
            let caller = unwinder.unwind_frame(at, &mut registers, R::cache(&mut self.caches), &mut read);
            if let Some(address) = unread.filter(|&address| is_cut_off(address, base, stack)) {
                if caller != Err(Error::CouldNotReadStack(address)) {
                    // The library fell back to the frame pointer, and will do so at this address from now on.
                    *self = Self::default();
                }
                break Outcome::CopyTooShort;
            }
            match caller.map(|caller| caller.and_then(FrameAddress::from_return_address)) {
                // A word of generated code's frame that is no caller; it shall not be shown as one.
                Ok(Some(caller)) if is_generated && !space.is_executable(caller.address_for_lookup()) => {
                    break Outcome::Broken;
                }
                Ok(Some(caller)) => at = caller,
                Ok(None) => match registers.overlooked(word).and_then(returned) {
                    Some((caller, outer)) if space.is_in_file(caller.address_for_lookup()) => {
                        (at, registers) = (caller, outer);
                    }
                    _ => break end(space, at),
                },
                Err(error) if registers.mark_the_end(&error) => break end(space, at),
                Err(_) if is_called_from_entry(space, base, registers.sp(), stack) => {
                    break end(space, at);
                }
                Err(_) => break Outcome::Broken,
            }
        };
        let depth_bytes = registers.sp().saturating_sub(base).min(stack.len() as u64);
        Unwound { outcome, depth_bytes }
    }
}

/// A caller by its return address, unless that is zero.
fn returned<R>((address, registers): (u64, R)) -> Option<(FrameAddress, R)> {
    FrameAddress::from_return_address(address).map(|caller| (caller, registers))
}

/// What the library takes for the end of the stack. The outermost function is always some file's; elsewhere the
/// end is a guess that failed. So it is where the innermost function has no tables: a frame pointer of zero may be
/// any number that the function computes with.
fn end(space: &AddressSpace, at: FrameAddress) -> Outcome {
    let address = at.address_for_lookup();
    let is_trusted = at.is_return_address() || space.has_tables(address);
    if is_trusted && space.is_in_file(address) { Outcome::Complete } else { Outcome::Broken }
}

/// Whether the return address into the program's entry point lies right above `sp`. The start-up code of some C
/// libraries (musl) has no tables, and nothing else says that a stack which ends in it is complete.
fn is_called_from_entry(space: &AddressSpace, base: u64, sp: u64, stack: StackCopy<'_>) -> bool {
    let words = (0..START_UP_WORDS).filter_map(|i| stack.word(sp.checked_sub(base)?.checked_add(8 * i)?));
    words.into_iter().any(|word| space.is_at_entry(word))
}

/// Whether the word at `address` is missing only because the copy ended too early: more bytes would have helped. At
/// a wild address they would not.
fn is_cut_off(address: u64, sp: u64, stack: StackCopy<'_>) -> bool {
    let end = sp.saturating_add(stack.len() as u64);
    stack.is_full() && (end.saturating_sub(7)..end.saturating_add(REACH_BYTES)).contains(&address)
}

#[cfg(test)]
mod tests;
