//! What unwinding has to know of each machine.

use framehop::aarch64::{CacheAarch64, PtrAuthMask, UnwindRegsAarch64, UnwinderAarch64};
use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{Error, FrameAddress, Module, Unwinder};

use super::{stub, untabled};
use crate::elf::SectionBytes;
use crate::elf::rules::{ByShortRule, ShortRule};
use crate::machine::Machine;
use crate::process::AddressSpace;

/// The files loaded into one address space, as the unwinding library wants them, by the machine they were made for.
#[derive(Clone, Default)]
pub(super) struct Unwinders {
    x86_64: UnwinderX86_64<SectionBytes>,
    aarch64: UnwinderAarch64<SectionBytes>,
}

impl Unwinders {
    pub(super) fn add(&mut self, machine: Machine, module: Module<SectionBytes>) {
        match machine {
            Machine::X86_64 => self.x86_64.add_module(module),
            Machine::Aarch64 => self.aarch64.add_module(module),
        }
    }

    pub(super) fn remove(&mut self, start: u64) {
        self.x86_64.remove_module(start);
        self.aarch64.remove_module(start);
    }
}

/// The library's caches of code addresses.
#[derive(Default)]
pub(super) struct Caches {
    x86_64: CacheX86_64,
    aarch64: CacheAarch64,
}

/// A machine's registers that unwinding follows.
pub(super) trait MachineRegisters: Sized {
    /// The library's unwinder for them.
    type Unwinder: Unwinder<UnwindRegs = Self, Module = Module<SectionBytes>>;

    fn unwinder(unwinders: &Unwinders) -> &Self::Unwinder;
    fn cache(caches: &mut Caches) -> &mut <Self::Unwinder as Unwinder>::Cache;
    fn sp(&self) -> u64;

    /// Whether [`rare`](super::rare) follows what the library does not.
    const HAS_RULES: bool;

    /// The caller by a short rule, with its registers. Otherwise the address of the missing word, if that is the
    /// reason.
    fn by_rule(
        &self,
        _: &ShortRule,
        _: impl Fn(u64) -> Option<u64>,
    ) -> Result<(FrameAddress, Self), Option<u64>> {
        Err(None)
    }

    /// Whether a frame whose caller was not found for this reason is marked as the outermost one: by a frame pointer of
    /// zero, as the ABIs have it. musl says so in no other way.
    fn mark_the_end(&self, error: &Error) -> bool;

    /// Where a caller is a signal's trampoline without tables: the interrupted instruction and its registers.
    fn interrupted(&self, space: &AddressSpace, word: impl Fn(u64) -> Option<u64>) -> Option<(u64, Self)>;

    /// The return address of generated code that keeps no frame pointer, and the registers of its caller.
    fn past_stub(&self, _: &AddressSpace, _: impl Fn(u64) -> Option<u64>) -> Option<(u64, Self)> {
        None
    }

    /// The return address and the registers of a caller behind what the library takes for the end of the stack.
    fn overlooked(&self, _: impl Fn(u64) -> Option<u64>) -> Option<(u64, Self)> {
        None
    }
}

impl MachineRegisters for UnwindRegsX86_64 {
    type Unwinder = UnwinderX86_64<SectionBytes>;
    const HAS_RULES: bool = true;

    fn unwinder(unwinders: &Unwinders) -> &Self::Unwinder {
        &unwinders.x86_64
    }

    fn cache(caches: &mut Caches) -> &mut CacheX86_64 {
        &mut caches.x86_64
    }

    fn sp(&self) -> u64 {
        self.sp()
    }

    fn by_rule(
        &self,
        rule: &ShortRule,
        word: impl Fn(u64) -> Option<u64>,
    ) -> Result<(FrameAddress, Self), Option<u64>> {
        match rule.caller(self.sp(), self.bp(), word) {
            ByShortRule::Caller { ip, sp, bp } => {
                let caller = FrameAddress::from_return_address(ip).ok_or(None)?;
                Ok((caller, Self::new(ip, sp, bp)))
            }
            ByShortRule::Unread(address) => Err(Some(address)),
            ByShortRule::Unusual => Err(None),
        }
    }

    fn mark_the_end(&self, error: &Error) -> bool {
        *error == Error::FramepointerUnwindingMovedBackwards && self.bp() == 0
    }

    fn interrupted(&self, space: &AddressSpace, word: impl Fn(u64) -> Option<u64>) -> Option<(u64, Self)> {
        let (ip, general) = untabled::interrupted(self.sp(), |ip| space.is_executable(ip), word)?;
        Some((ip, Self::new(ip, general[7], general[6])))
    }

    fn past_stub(&self, space: &AddressSpace, word: impl Fn(u64) -> Option<u64>) -> Option<(u64, Self)> {
        let stub = stub::caller(space, self.sp(), self.bp(), word)?;
        Some((stub.return_address, Self::new(stub.return_address, stub.sp, self.bp())))
    }
}

/// `struct rt_sigframe` of aarch64: what it holds at which offset from the stack pointer, and its least size. The saved
/// frame pointer and return address are followed by the stack pointer and the instruction pointer.
const SIGNAL_FRAME_FP: u64 = 544;
const SIGNAL_FRAME_BYTES: u64 = 4688;
/// Bits that every user address may have; the mask of signatures has none of them.
const LEAST_ADDRESS_BITS: u64 = (1 << 32) - 1;

/// Registers to start from. A return address is signed in the bits that no address of the process has: how many it may
/// have follows from the highest ones known, since stacks and libraries are mapped at the top.
pub(super) fn aarch64(unwinders: &Unwinders, pc: u64, lr: u64, sp: u64, fp: u64) -> UnwindRegsAarch64 {
    let highest = unwinders.aarch64.max_known_code_address() | pc | sp | LEAST_ADDRESS_BITS;
    UnwindRegsAarch64::new_with_ptr_auth_mask(PtrAuthMask::from_max_known_address(highest), lr, sp, fp)
}

impl MachineRegisters for UnwindRegsAarch64 {
    type Unwinder = UnwinderAarch64<SectionBytes>;
    const HAS_RULES: bool = false;

    fn unwinder(unwinders: &Unwinders) -> &Self::Unwinder {
        &unwinders.aarch64
    }

    fn cache(caches: &mut Caches) -> &mut CacheAarch64 {
        &mut caches.aarch64
    }

    fn sp(&self) -> u64 {
        self.sp()
    }

    fn mark_the_end(&self, error: &Error) -> bool {
        matches!(error, Error::CouldNotReadStack(_)) && self.fp() == 0
    }

    /// The kernel's trampoline has no tables, and what its frame's record leads to is the caller of what was
    /// interrupted. But the frame pointer is where only the kernel puts it, and the record equals the saved registers.
    fn interrupted(&self, _: &AddressSpace, word: impl Fn(u64) -> Option<u64>) -> Option<(u64, Self)> {
        let (sp, fp) = (self.sp(), self.fp());
        fp.checked_sub(sp).filter(|&bytes| bytes >= SIGNAL_FRAME_BYTES)?;
        let mut saved = [0; 4];
        for (register, offset) in saved.iter_mut().zip((SIGNAL_FRAME_FP..).step_by(8)) {
            *register = word(sp.checked_add(offset)?)?;
        }
        let [saved_fp, lr, saved_sp, pc] = saved;
        let is_record = word(fp)? == saved_fp && word(fp.checked_add(8)?)? == lr;
        let is_possible = pc != 0 && saved_sp != 0 && saved_sp % 16 == 0;
        (is_record && is_possible)
            .then(|| (pc, Self::new_with_ptr_auth_mask(self.lr_mask(), lr, saved_sp, saved_fp)))
    }

    /// For the library, a function with a frame pointer is the outermost one if its caller's frame pointer is zero. But
    /// start-up code may call it so, and without frame pointers the register holds any value.
    fn overlooked(&self, word: impl Fn(u64) -> Option<u64>) -> Option<(u64, Self)> {
        let (fp, mask) = (self.fp(), self.lr_mask());
        let is_record = fp >= self.sp() && word(fp)? == 0;
        let lr = word(fp.checked_add(8)?).filter(|_| is_record)?;
        let outer = Self::new_with_ptr_auth_mask(mask, lr, fp.checked_add(16)?, 0);
        Some((mask.strip_ptr_auth(lr), outer))
    }
}
