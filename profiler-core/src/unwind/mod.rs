//! From a sample to the chain of callers.
//!
//! Two ways: frame pointers, followed by the kernel as it takes the sample, or a copy of the stack, unwound
//! here with the tables that compilers leave for exceptions. [`method`] chooses between them, [`copy`] says
//! how much stack to copy.

pub mod copy;
pub mod method;

use std::ops::Range;

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{Error, ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder as _};

use crate::elf::{ElfImage, Section, SectionBytes};
use crate::process::AddressSpace;
use crate::profile::Outcome;
use crate::record::{StackCopy, UserRegs};

/// A stack deeper than this is taken for a loop.
const MAX_FRAMES: usize = 4096;
/// The library counts changes of module sets in 16 bits to know which cached rules are stale; the cache is
/// renewed before that count can wrap around.
const CACHE_LIFE_CHANGES: u32 = 30_000;

/// The files loaded into one address space, as the unwinding library wants them.
#[derive(Clone, Default)]
pub struct ModuleSet {
    unwinder: UnwinderX86_64<SectionBytes>,
}

impl ModuleSet {
    pub(crate) fn add(&mut self, range: Range<u64>, bias: u64, image: &ElfImage) {
        let base_svma = image.base_svma();
        let (eh_frame_svma, eh_frame) = parts(image.eh_frame.as_ref());
        let (eh_frame_hdr_svma, eh_frame_hdr) = parts(image.eh_frame_hdr.as_ref());
        let (_, debug_frame) = parts(image.debug_frame.as_ref());
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

/// Unwinds copied stacks; keeps what it learns about code addresses.
#[derive(Default)]
pub struct StackUnwinder {
    cache: CacheX86_64,
    changes: u32,
}

impl StackUnwinder {
    /// Tells that some address space has changed since the last stack.
    pub fn note_change(&mut self) {
        self.changes += 1;
        if self.changes > CACHE_LIFE_CHANGES {
            *self = Self::default();
        }
    }

    /// Appends the lookup addresses of all frames to `frames`, innermost first.
    pub fn unwind(
        &mut self,
        space: &AddressSpace,
        regs: UserRegs,
        stack: StackCopy<'_>,
        frames: &mut Vec<u64>,
    ) -> Unwound {
        let first = frames.len();
        let mut registers = UnwindRegsX86_64::new(regs.ip, regs.sp, regs.bp);
        let mut read = |address: u64| {
            let offset = address.checked_sub(regs.sp).ok_or(())?;
            stack.word(offset).ok_or(())
        };
        let mut at = FrameAddress::from_instruction_pointer(regs.ip);
        let end = loop {
            frames.push(at.address_for_lookup());
            if frames.len() - first >= MAX_FRAMES {
                break Outcome::Broken;
            }
            let modules = &space.modules().unwinder;
            let caller = modules.unwind_frame(at, &mut registers, &mut self.cache, &mut read);
            match caller.map(|caller| caller.and_then(FrameAddress::from_return_address)) {
                Ok(Some(caller)) => at = caller,
                // The outermost function is always some file's; elsewhere an end is a guess that failed.
                Ok(None) if space.is_in_file(at.address_for_lookup()) => break Outcome::Complete,
                Ok(None) => break Outcome::Broken,
                Err(error) => break failure(error, regs.sp, stack),
            }
        };
        Unwound { outcome: end, depth_bytes: registers.sp().saturating_sub(regs.sp) }
    }
}

fn failure(error: Error, sp: u64, stack: StackCopy<'_>) -> Outcome {
    let end = sp.saturating_add(stack.len() as u64);
    // A caller that lies within reach behind the copy: more bytes would have helped. A wild address would not.
    let reach = end.saturating_add(1 << 20);
    match error {
        Error::CouldNotReadStack(address)
            if stack.is_full() && (end.saturating_sub(8)..reach).contains(&address) =>
        {
            Outcome::CopyTooShort
        }
        _ => Outcome::Broken,
    }
}
