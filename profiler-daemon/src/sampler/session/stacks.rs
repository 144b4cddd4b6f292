//! From a sample to its stack: by the method in force, completed with what its copy lacks.

use profiler_core::process::Process;
use profiler_core::profile::Outcome;
use profiler_core::record::{RawSample, UserRegs};
use profiler_core::unwind::basis::Basis;
use profiler_core::unwind::copy::CopySize;
use profiler_core::unwind::earlier::{EarlierStacks, Followed};
use profiler_core::unwind::method::{Method, MethodChoice};
use profiler_core::unwind::{StackEnd, StackUnwinder};

use super::deeper::DeeperStacks;
use crate::sys::limits;

/// Turns samples into stacks, and learns from them how the next are best found.
pub(crate) struct StackReader {
    pub(super) unwinder: StackUnwinder,
    pub(super) earlier: EarlierStacks,
    pub(super) deeper: DeeperStacks,
    choice: MethodChoice,
    copy: CopySize,
    /// Processes that `choice` and `copy` were decided by.
    basis: Basis,
    program_changed: bool,
    /// Entries that the kernel keeps of a call chain.
    chain_limit: usize,
    chains: Chains,
}

/// The frames of the present sample, innermost first; kept between samples to spare allocations.
#[derive(Default)]
pub(super) struct Chains {
    pub(super) kernel: Vec<u64>,
    pub(super) user: Vec<u64>,
    /// What the kernel found by frame pointers.
    pub(super) by_frame_pointer: Vec<u64>,
    /// The stack pointer in each frame of `user`, as far as it is known.
    places: Vec<u64>,
}

/// What was found of a stack; its frames are in [`Chains`].
pub(super) struct StackRead {
    pub(super) outcome: Outcome,
    /// Whether it was completed with frames that its copy lacks.
    pub(super) is_completed: bool,
    /// Whether it returns to memory that is not known to hold code.
    pub(super) returns_outside_code: bool,
}

/// A stack by the method in force, before it is completed.
struct FoundStack {
    outcome: Outcome,
    returns_outside_code: bool,
    /// Bytes of the stack down to its outermost frame, if it was unwound.
    depth_bytes: Option<u64>,
}

impl StackReader {
    pub(super) fn new(choice: MethodChoice) -> Self {
        Self {
            unwinder: StackUnwinder::default(),
            earlier: EarlierStacks::default(),
            deeper: DeeperStacks::default(),
            choice,
            copy: CopySize::default(),
            basis: Basis::default(),
            program_changed: false,
            chain_limit: limits::max_call_chain(),
            chains: Chains::default(),
        }
    }

    /// How stacks are found.
    pub(crate) fn method(&self) -> Method {
        self.choice.method()
    }

    /// Bytes of stack to copy.
    pub(crate) fn copy_bytes(&self) -> u32 {
        self.copy.bytes()
    }

    /// Entries that the kernel keeps of a call chain.
    pub(crate) fn chain_limit(&self) -> usize {
        self.chain_limit
    }

    /// Decides by what was seen until now how stacks are found from now on, and how much of them is copied.
    pub(crate) fn revise(&mut self, now_ns: u64) {
        if std::mem::take(&mut self.program_changed) {
            self.choice.program_changed();
            self.copy.program_changed();
        }
        self.choice.revise(now_ns);
        self.copy.revise(now_ns);
    }

    /// A process executes another program; it may be the target's only one.
    pub(super) fn executes(&mut self, pid: u32, is_only: bool) {
        self.program_changed |= self.basis.program_changed(pid, is_only);
    }

    pub(super) fn forget_process(&mut self, pid: u32) {
        self.earlier.forget_process(pid);
        self.deeper.forget(pid);
    }

    /// Drops what was remembered of unwind tables: they are no longer in memory.
    pub(super) fn forget_tables(&mut self) {
        self.unwinder = StackUnwinder::default();
    }

    /// The frames that the kernel found, as a beginning; those in user space only if `has_user`.
    pub(super) fn begin(&mut self, sample: &RawSample<'_>, has_user: bool) {
        let Chains { kernel, user, by_frame_pointer, places } = &mut self.chains;
        kernel.clear();
        user.clear();
        by_frame_pointer.clear();
        places.clear();
        sample.kernel_chain(kernel);
        if has_user {
            sample.user_chain(by_frame_pointer);
        }
    }

    /// The frames of the present sample.
    pub(super) fn chains(&mut self) -> &mut Chains {
        &mut self.chains
    }

    /// Finds the stack of a sample that [`Self::begin`] has begun; `has_user` as there.
    pub(super) fn read(&mut self, sample: &RawSample<'_>, process: &Process, has_user: bool) -> StackRead {
        self.basis.observe(sample.pid);
        let found = match has_user {
            true => self.find(sample, process),
            false => {
                FoundStack { outcome: Outcome::NoUserStack, returns_outside_code: false, depth_bytes: None }
            }
        };
        let is_completed = self.complete(sample, process, found.outcome);
        let Chains { kernel, user, .. } = &self.chains;
        let is_whole = is_completed
            || sample.chain_len() < self.chain_limit && is_all_kernel(found.outcome, kernel, user);
        let outcome = if is_whole { Outcome::Complete } else { found.outcome };
        if let Some(depth_bytes) = found.depth_bytes {
            self.copy.observe(depth_bytes, outcome == Outcome::CopyTooShort);
        }
        StackRead { outcome, is_completed, returns_outside_code: found.returns_outside_code }
    }

    fn find(&mut self, sample: &RawSample<'_>, process: &Process) -> FoundStack {
        let Chains { user, by_frame_pointer, places, .. } = &mut self.chains;
        match (self.choice.method(), sample.regs, sample.stack) {
            (Method::Dwarf | Method::Trial, Some(regs), Some(stack)) => {
                let unwound = self.unwinder.unwind(process, regs, stack, user);
                let returns_outside_code = self.unwinder.returns_outside_code();
                let depth_bytes = Some(unwound.depth_bytes);
                let is_trial = self.choice.method() == Method::Trial && !by_frame_pointer.is_empty();
                let continued = is_trial.then(|| {
                    let end = self.unwinder.chain_end(process, by_frame_pointer);
                    let locate = |address| process.locate(address);
                    self.choice.compare(by_frame_pointer, user, unwound.outcome, end, locate)
                });
                if let Some(continued) = continued.flatten() {
                    continued.apply(by_frame_pointer, user);
                    return FoundStack { outcome: Outcome::Complete, returns_outside_code, depth_bytes };
                }
                if !is_trial {
                    self.choice.note_unwound(unwound.outcome);
                }
                places.extend_from_slice(self.unwinder.places());
                FoundStack { outcome: unwound.outcome, returns_outside_code, depth_bytes }
            }
            // Also samples still on their way when the method changed: they carry a chain.
            (_, _, None) if !by_frame_pointer.is_empty() => {
                std::mem::swap(user, by_frame_pointer);
                let limit_reached = sample.chain_len() >= self.chain_limit;
                let end = self.unwinder.chain_end(process, user);
                let outcome = self.choice.judge(user, limit_reached, end, |address| process.locate(address));
                FoundStack { outcome, returns_outside_code: end == StackEnd::NoCode, depth_bytes: None }
            }
            (_, Some(regs), Some(stack)) => {
                let outcome = self.unwinder.unwind(process, regs, stack, user).outcome;
                places.extend_from_slice(self.unwinder.places());
                FoundStack { outcome, returns_outside_code: false, depth_bytes: None }
            }
            _ => FoundStack { outcome: Outcome::NoUserStack, returns_outside_code: false, depth_bytes: None },
        }
    }

    /// Completes a stack that was cut, with the outer frames of an earlier one or with what lies beyond its copy by now. Returns
    /// whether it could be.
    fn complete(&mut self, sample: &RawSample<'_>, process: &Process, outcome: Outcome) -> bool {
        let Chains { user, places, .. } = &mut self.chains;
        let unread = self.unwinder.unread().filter(|_| !places.is_empty());
        let same_function = |a, b| process.space.function(a) == process.space.function(b);
        let thread = (sample.pid, sample.tid);
        if self.earlier.take(thread, outcome, Followed { frames: user, places, unread }, same_function) {
            return true;
        }
        let (Some(regs), Some(stack), Outcome::CopyTooShort | Outcome::StackAbsent) =
            (sample.regs, sample.stack, outcome)
        else {
            return false;
        };
        // Whether the outermost call still runs is told by the return address right below its caller's frame, which is not there on
        // this machine.
        if matches!(regs, UserRegs::Aarch64 { .. }) {
            return false;
        }
        let Some(whole) = self.deeper.read(sample.pid, stack, places, same_function) else { return false };
        user.clear();
        let outcome = self.unwinder.unwind(process, regs, whole, user).outcome;
        places.clear();
        places.extend_from_slice(self.unwinder.places());
        let stack = Followed { frames: user, places, unread: self.unwinder.unread() };
        self.earlier.take(thread, outcome, stack, same_function) || outcome == Outcome::Complete
    }
}

/// Whether a stack has kernel frames only: a kernel thread's, or that of a task that is exiting or executing another
/// program.
pub(super) fn is_all_kernel(outcome: Outcome, kernel: &[u64], user: &[u64]) -> bool {
    outcome == Outcome::NoUserStack && user.is_empty() && !kernel.is_empty()
}
