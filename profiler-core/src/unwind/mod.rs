//! From a sample to the chain of callers.
//!
//! Two ways: frame pointers, followed by the kernel as it takes the sample, or a copy of the stack, unwound
//! here with the tables that compilers leave for exceptions. [`method`] chooses between them, [`copy`] says
//! how much stack to copy.

pub mod copy;
mod ends;
pub mod method;
mod registers;
mod untabled;

use std::ops::Range;

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{Error, ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder as _};
use rustc_hash::FxHashMap;

use self::ends::{end, is_called_from_entry};
use self::untabled::interrupted;
use crate::elf::{ElfImage, Found, Section, SectionBytes};
use crate::process::Process;
use crate::profile::Outcome;
use crate::record::{StackCopy, UserRegs};

/// A stack deeper than this is taken for a loop.
const MAX_FRAMES: usize = 4096;
/// The library counts changes of module sets in 16 bits to know which cached rules are stale; the cache is
/// renewed before that count can wrap around. A mapping adds up to three modules, each of which is removed again
/// some day, and a process begins with a set of its own: less than eight counts for each change that is told.
const CACHE_LIFE_CHANGES: u32 = 8_000;
/// Where a stack can be. Outside, the library computes addresses that overflow.
const STACK_ADDRESSES: Range<u64> = 4096..1 << 63;
/// Addresses that are remembered.
const MAX_KNOWN: usize = 1 << 16;
/// The files loaded into one address space, as the unwinding library wants them.
#[derive(Clone, Default)]
pub struct ModuleSet {
    unwinder: UnwinderX86_64<SectionBytes>,
}

impl ModuleSet {
    pub(crate) fn add(&mut self, range: Range<u64>, bias: u64, image: &ElfImage) {
        let (base_svma, tables) = (image.base_svma(), &image.tables);
        if base_svma.checked_add(u64::from(u32::MAX)).is_none() {
            return; // the library adds an offset of 32 bits without a check
        }
        let (eh_frame_svma, eh_frame) = parts(tables.eh_frame.as_ref());
        let (eh_frame_hdr_svma, eh_frame_hdr) = parts(tables.eh_frame_hdr.as_ref());
        let sections = ExplicitModuleSectionInfo {
            base_svma,
            eh_frame_svma,
            eh_frame,
            eh_frame_hdr_svma,
            eh_frame_hdr,
            ..Default::default()
        };
        let base = base_svma.wrapping_add(bias);
        self.unwinder.add_module(Module::new(String::new(), range, base, sections));
    }

    pub(crate) fn remove(&mut self, start: u64) {
        self.unwinder.remove_module(start);
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

/// What the tables know of an address, for the choice of how to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// Nothing.
    Nothing,
    /// What must not be evaluated.
    Unsafe,
    /// A rule that the library follows as well.
    Usual,
    /// A rule that takes all registers, or that the library does not have.
    Rare,
}

/// Unwinds copied stacks; keeps what it learns about code addresses.
#[derive(Default)]
pub struct StackUnwinder {
    cache: CacheX86_64,
    changes: u32,
    /// Addresses that were looked up, by the generation of the process they were met in.
    known: FxHashMap<(u64, u64), Known>,
    rules: registers::RuleCache,
}

impl StackUnwinder {
    /// Tells that some address space has changed since the last stack.
    pub fn note_change(&mut self) {
        self.changes += 1;
        if self.changes > CACHE_LIFE_CHANGES {
            *self = Self::default();
        }
    }

    /// What the tables know of a lookup address; they are asked once.
    fn known(&mut self, process: &Process, address: u64) -> Known {
        if self.known.len() > MAX_KNOWN {
            self.known.clear();
        }
        let ask = || match process.space.find_rule(address) {
            Found::Nothing => Known::Nothing,
            Found::Unsafe => Known::Unsafe,
            Found::Rule { in_library: true, .. } => Known::Usual,
            Found::Rule { in_library: false, .. } => Known::Rare,
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
        if !regs.is_64_bit {
            frames.push(regs.ip); // all that can be told by 64-bit rules
            return Unwound { outcome: Outcome::NoTables, depth_bytes: 0 };
        }
        let first = frames.len();
        let (outcome, sp) = self.by_library(process, regs, stack, frames).unwrap_or_else(|NeedsAll| {
            frames.truncate(first);
            registers::unwind(&mut self.rules, process, regs, stack, frames)
        });
        // How deep another stack is tells nothing of the copied one.
        let outermost = if ends::is_elsewhere(sp, regs.sp, stack) { regs.sp } else { sp };
        let depth_bytes = outermost.saturating_sub(regs.sp).min(stack.len() as u64);
        Unwound { outcome, depth_bytes }
    }

    /// By the library, which follows three registers. Gives the outcome and the last stack pointer.
    fn by_library(
        &mut self,
        process: &Process,
        regs: UserRegs,
        stack: StackCopy<'_>,
        frames: &mut Vec<u64>,
    ) -> Result<(Outcome, u64), NeedsAll> {
        let space = &process.space;
        let first = frames.len();
        let mut registers = UnwindRegsX86_64::new(regs.ip, regs.sp, regs.bp);
        let mut at = FrameAddress::from_instruction_pointer(regs.ip);
        let outcome = loop {
            let address = at.address_for_lookup();
            frames.push(address);
            if frames.len() - first >= MAX_FRAMES {
                break Outcome::TooManyFrames;
            }
            if !STACK_ADDRESSES.contains(&registers.sp()) {
                break Outcome::Broken;
            }
            let known = self.known(process, address);
            match known {
                Known::Unsafe => break Outcome::Broken,
                Known::Rare => return Err(NeedsAll),
                // Of the innermost function, or of what a signal handler returns to, the frame pointer tells nothing.
                Known::Nothing if space.is_executable(address) => {
                    let read = |address| word_at(regs.sp, stack, address);
                    let is_code = |address| space.is_executable(address);
                    if !at.is_return_address() || interrupted(registers.sp(), is_code, read).is_some() {
                        return Err(NeedsAll);
                    }
                }
                Known::Nothing | Known::Usual => {}
            }
            let mut unread = None;
            let mut read = |address: u64| {
                let word = word_at(regs.sp, stack, address);
                word.ok_or_else(|| _ = unread.get_or_insert(address))
            };
            let modules = &space.modules().unwinder;
            let caller = modules.unwind_frame(at, &mut registers, &mut self.cache, &mut read);
            if let Some(address) = unread.filter(|&address| ends::is_cut_off(address, regs.sp, stack)) {
                if caller != Err(Error::CouldNotReadStack(address)) {
                    // The library fell back to the frame pointer, and will do so at this address from now on.
                    *self = Self::default();
                }
                break Outcome::CopyTooShort;
            }
            match caller.map(|caller| caller.and_then(FrameAddress::from_return_address)) {
                Ok(Some(caller)) => at = caller,
                Ok(None) => break end(space, at),
                // The outermost frame is marked by a frame pointer of zero, as the ABI has it; musl says so in no
                // other way.
                Err(Error::FramepointerUnwindingMovedBackwards) if registers.bp() == 0 => {
                    break end(space, at);
                }
                Err(_) if is_called_from_entry(space, regs.sp, registers.sp(), stack) => {
                    break end(space, at);
                }
                Err(_) => break ends::lost(space, address, known == Known::Nothing),
            }
        };
        Ok((outcome, registers.sp()))
    }
}

/// The stack holds a frame that only all registers together lead out of.
struct NeedsAll;

/// The word at an address, if the copy that begins at `sp` holds it.
fn word_at(sp: u64, stack: StackCopy<'_>, address: u64) -> Option<u64> {
    stack.word(address.checked_sub(sp)?)
}

#[cfg(test)]
mod tests;
