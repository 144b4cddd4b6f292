//! Frame pointers or copied stacks: which of the two gives complete stacks for this target, at what price.
//!
//! Following frame pointers costs the target next to nothing, but fails silently where code was built without them. So
//! the first samples carry both, and frame pointers are only used if they agree with the unwind tables. The comparison
//! is repeated every half minute, since a program may move on to code without frame pointers: there, a leaf function
//! would hide its caller unnoticed.
//!
//! A chain of frame pointers is also used where a copy ends early at a page that is not in memory: if the chain
//! holds all of the cut stack and ends as complete stacks do, it is the whole stack.

use rustc_hash::FxHashSet;
use serde::Serialize;

use super::StackEnd;
use crate::profile::Outcome;
use crate::stack::Frame;

/// Comparisons that a decision for frame pointers takes.
const TRIAL_SAMPLES: u32 = 200;
/// The first stacks of a program belong to the dynamic linker, which is rarely built with frame pointers. If they
/// disagree, the comparison restarts after this many stacks.
const FIRST_STACKS: u32 = 50;
/// Samples after which a comparison is given up, because too few stacks are complete enough to compare chains with.
const TRIAL_LIMIT: u32 = 10 * TRIAL_SAMPLES;
/// Disagreements that frame pointers may have; a sample inside a function's prologue is one.
const TOLERATED: u32 = 1;
/// If there is a disagreement, this many times the samples are compared: one in two hundred would be too many.
const LONGER_TRIAL: u32 = 5;
/// The frames outside `main` or a thread's function, which C libraries build without frame pointers.
const START_UP_FRAMES: usize = 3;
/// Stacks with an unknown outermost frame, among [`WATCH_SAMPLES`], that end the trust in frame pointers.
const BROKEN_TO_REVERT: u32 = 5;
/// Stacks among which broken ones are counted.
const WATCH_SAMPLES: u32 = 1000;
/// Frames of the tables and of the chain that must agree before the chain continues a stack.
const AGREEING_FRAMES: usize = 2;
/// Of the tables' outermost frames, how many may be wrong: words that the thread has left on its stack.
const MADE_UP_FRAMES: usize = 2;
/// If only frame pointers lead to the end of at least one stack in this many, samples carry both.
const BOTH_FOR_ONE_IN: u32 = 50;
/// If the tables lose at least one stack in this many, frame pointers are compared again: at once the first time, then
/// after pauses that double from [`AUDIT_AFTER_NS`] to [`LONGEST_PAUSE_NS`].
const LOST_ONE_IN: u32 = 50;
/// Longest pause between such comparisons (ns).
const LONGEST_PAUSE_NS: u64 = 3_600_000_000_000;
/// How long frame pointers are trusted before they are compared again.
const AUDIT_AFTER_NS: u64 = 30_000_000_000;

/// What a sample carries to find the callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// The kernel follows frame pointers.
    Fp,
    /// The stack is copied and unwound by tables.
    Dwarf,
    /// Both, to compare them.
    Trial,
}

impl Method {
    /// The name in outputs.
    pub fn as_str(self) -> &'static str {
        match self {
            Method::Fp => "fp",
            Method::Dwarf => "dwarf",
            Method::Trial => "trial",
        }
    }

    /// Whether samples carry a copy of the stack.
    pub fn copies_stack(self) -> bool {
        self != Method::Fp
    }

    /// Whether the kernel follows frame pointers in user space.
    pub fn follows_frame_pointers(self) -> bool {
        self != Method::Dwarf
    }
}

/// Where the call chain continues a stack that the tables lost: after `tables` of their frames, with the chain's frames
/// from `chain` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Continuation {
    tables: usize,
    chain: usize,
    /// Whether the chain leaves out a frame of the tables: a function that keeps no frame pointer hides its caller.
    leaves_out: bool,
}

impl Continuation {
    /// The chain continues after all frames of the tables.
    fn behind(stack: &[u64]) -> Self {
        Self { tables: stack.len(), chain: stack.len(), leaves_out: false }
    }

    /// The chain continues after the frames that agree, if the tables have at most `MADE_UP_FRAMES` beyond them.
    fn find(chain: &[u64], stack: &[u64]) -> Option<Self> {
        let agreeing =
            |chain: &[u64], stack: &[u64]| chain.iter().zip(stack).take_while(|(a, b)| a == b).count();
        let straight = agreeing(chain, stack);
        let behind_one = match (chain, stack) {
            ([ip, chain @ ..], [same, _, stack @ ..]) if ip == same && straight == 1 => {
                agreeing(chain, stack)
            }
            _ => 0,
        };
        let found = match behind_one {
            0 => Self { tables: straight, chain: straight, leaves_out: false },
            frames => Self { tables: frames + 2, chain: frames + 1, leaves_out: true },
        };
        let rest = stack.len().checked_sub(found.tables)?;
        let goes_further = chain.len().saturating_sub(found.chain) > rest;
        (found.tables >= AGREEING_FRAMES && rest <= MADE_UP_FRAMES && goes_further).then_some(found)
    }

    /// The stack by both; `stack` is what the tables gave.
    pub fn apply(self, chain: &[u64], stack: &mut Vec<u64>) {
        stack.truncate(self.tables);
        stack.extend_from_slice(chain.get(self.chain..).unwrap_or_default());
    }
}

/// Chooses the method, and judges stacks found by frame pointers.
#[derive(Clone, Debug)]
pub struct MethodChoice {
    method: Method,
    fixed: bool,
    tried: u32,
    compared: u32,
    disagreed: u32,
    /// Stacks that only the chain followed to the end.
    by_chain_alone: u32,
    /// Whether samples carry both because both are needed.
    takes_both: bool,
    /// Whether the comparison began with the start of a program.
    is_beginning: bool,
    /// Outermost frames of trustworthy frame-pointer chains: the return addresses into start-up code, wherever a process has
    /// that mapped.
    outermost: FxHashSet<Frame>,
    watched: u32,
    broken: u32,
    audit_at_ns: Option<u64>,
    /// When stacks that the tables lose may be compared again (ns), and the pause after that (ns).
    retry_at_ns: u64,
    retry_pause_ns: u64,
}

impl MethodChoice {
    /// Chooses by comparison.
    pub fn auto() -> Self {
        Self::with(Method::Trial, false)
    }

    /// Keeps to `method`.
    pub fn fixed(method: Method) -> Self {
        Self::with(method, true)
    }

    fn with(method: Method, fixed: bool) -> Self {
        Self {
            method,
            fixed,
            tried: 0,
            compared: 0,
            disagreed: 0,
            by_chain_alone: 0,
            takes_both: false,
            is_beginning: true,
            outermost: FxHashSet::default(),
            watched: 0,
            broken: 0,
            audit_at_ns: None,
            retry_at_ns: 0,
            retry_pause_ns: AUDIT_AFTER_NS,
        }
    }

    /// The method in force.
    pub fn method(&self) -> Method {
        self.method
    }

    /// Compares the call chain by frame pointers with the unwound stack of the same sample (lookup addresses); the
    /// chain ended at `end`, and `locate` finds the code at an address. If the tables lost the stack and the chain
    /// leads to its outermost frame, returns how the chain continues it.
    pub fn compare(
        &mut self,
        by_frame_pointer: &[u64],
        by_tables: &[u64],
        outcome: Outcome,
        end: StackEnd,
        locate: impl Fn(u64) -> Frame,
    ) -> Option<Continuation> {
        self.tried += 1;
        let last = by_frame_pointer.last().map(|&last| locate(last));
        let is_whole = end.is_outermost() || last.is_some_and(|last| self.outermost.contains(&last));
        let continued = Continuation::find(by_frame_pointer, by_tables).filter(|_| is_whole);
        // A stack that seems whole may end in words that another thread has left; it does end if all its frames are
        // right.
        let is_lost =
            |continued: &Continuation| outcome != Outcome::Complete || continued.tables < by_tables.len();
        match (outcome, last) {
            (Outcome::Complete, Some(last)) if agree(by_frame_pointer, by_tables) => {
                self.compared += 1;
                self.outermost.insert(last);
                None
            }
            (Outcome::CopyTooShort | Outcome::StackAbsent, _) if !by_frame_pointer.starts_with(by_tables) => {
                self.disagreed += 1;
                None
            }
            (Outcome::CopyTooShort | Outcome::StackAbsent, _) => {
                self.compared += u32::from(is_whole);
                is_whole.then(|| Continuation::behind(by_tables))
            }
            (Outcome::Complete | Outcome::Broken | Outcome::NoTables | Outcome::OtherStack, _)
                if let Some(continued) = continued.filter(is_lost) =>
            {
                self.compared += 1;
                self.by_chain_alone += 1;
                self.disagreed += u32::from(continued.leaves_out);
                Some(continued)
            }
            (Outcome::Complete, _) => {
                self.compared += 1;
                self.disagreed += 1;
                None
            }
            _ => None, // nothing to compare the chain with
        }
    }

    /// Judges a chain by frame pointers alone, which ended at `end`.
    pub fn judge(
        &mut self,
        chain: &[u64],
        chain_limit_reached: bool,
        end: StackEnd,
        locate: impl Fn(u64) -> Frame,
    ) -> Outcome {
        let outcome = match chain.last() {
            None => Outcome::NoUserStack,
            // Where code was built without frame pointers, a chain leads into data.
            Some(_) if end == StackEnd::NoCode => Outcome::Broken,
            Some(_) if chain_limit_reached => Outcome::ChainTooLong,
            Some(&last) => match locate(last) {
                last if last.object.is_in_no_file() => Outcome::Broken,
                _ if end.is_outermost() => Outcome::Complete,
                last if self.outermost.contains(&last) => Outcome::Complete,
                // It cannot be decided here, and the user chose frame pointers.
                _ if self.fixed && end == StackEnd::Unknown => Outcome::Complete,
                _ => Outcome::Broken,
            },
        };
        self.watched += 1;
        self.broken += u32::from(outcome.is_truncated());
        outcome
    }

    /// Notes the outcome of a stack that was unwound by tables alone.
    pub fn note_unwound(&mut self, outcome: Outcome) {
        self.watched += 1;
        self.broken +=
            u32::from(matches!(outcome, Outcome::Broken | Outcome::NoTables | Outcome::OtherStack));
    }

    /// The next method, when it is time to change; it is then in force.
    pub fn revise(&mut self, now_ns: u64) -> Option<Method> {
        if self.fixed {
            return None;
        }
        match self.method {
            Method::Trial if self.disagreed > TOLERATED && self.is_beginning => {
                if self.tried >= FIRST_STACKS {
                    self.is_beginning = false;
                    self.compare_anew();
                }
                None
            }
            Method::Trial if self.disagreed > TOLERATED => self.take_both_or_tables(),
            Method::Trial if self.compared >= self.needed() => {
                self.is_beginning = false;
                self.take(Method::Fp, Some(now_ns.saturating_add(AUDIT_AFTER_NS)))
            }
            // The tables follow frame pointers too where they know nothing better.
            Method::Trial if self.tried >= TRIAL_LIMIT => self.take_both_or_tables(),
            Method::Fp if self.broken >= BROKEN_TO_REVERT => self.take(Method::Dwarf, None),
            Method::Fp if self.audit_at_ns.is_some_and(|at| now_ns >= at) => self.take(Method::Trial, None),
            Method::Dwarf if self.watched >= TRIAL_SAMPLES => self.compare_what_is_lost(now_ns),
            _ => {
                if self.watched >= WATCH_SAMPLES {
                    (self.watched, self.broken) = (0, 0);
                }
                None
            }
        }
    }

    /// Frame pointers disagree with the tables: if many stacks are only complete by frame pointers, samples carry both.
    fn take_both_or_tables(&mut self) -> Option<Method> {
        let is_early = self.takes_both && self.tried < TRIAL_SAMPLES;
        self.takes_both = is_early || BOTH_FOR_ONE_IN * self.by_chain_alone >= self.tried;
        if !self.takes_both {
            return self.take(Method::Dwarf, None);
        }
        if self.tried >= TRIAL_SAMPLES {
            self.compare_anew();
        }
        None
    }

    /// The tables may lose stacks that frame pointers can follow: a thread has switched stacks, or new code was loaded.
    fn compare_what_is_lost(&mut self, now_ns: u64) -> Option<Method> {
        let loses = LOST_ONE_IN * self.broken >= self.watched;
        (self.watched, self.broken) = (0, 0);
        if !loses || now_ns < self.retry_at_ns {
            return None;
        }
        self.retry_at_ns = now_ns.saturating_add(self.retry_pause_ns);
        self.retry_pause_ns = (2 * self.retry_pause_ns).min(LONGEST_PAUSE_NS);
        let method = self.take(Method::Trial, None);
        self.takes_both = true; // until enough samples say otherwise
        method
    }

    fn compare_anew(&mut self) {
        (self.tried, self.compared, self.disagreed, self.by_chain_alone) = (0, 0, 0, 0);
    }

    /// Comparisons needed to decide for frame pointers.
    fn needed(&self) -> u32 {
        if self.disagreed == 0 { TRIAL_SAMPLES } else { LONGER_TRIAL * TRIAL_SAMPLES }
    }

    /// A process runs another program: what was learnt no longer holds.
    pub fn program_changed(&mut self) -> Option<Method> {
        self.is_beginning = true;
        self.takes_both = false;
        (self.retry_at_ns, self.retry_pause_ns) = (0, AUDIT_AFTER_NS);
        if self.fixed || self.method == Method::Trial {
            self.compare_anew();
            return None;
        }
        self.take(Method::Trial, None)
    }

    fn take(&mut self, method: Method, audit_at_ns: Option<u64>) -> Option<Method> {
        self.method = method;
        self.audit_at_ns = audit_at_ns;
        self.takes_both = false;
        self.compare_anew();
        (self.watched, self.broken) = (0, 0);
        Some(method)
    }
}

/// Whether the chain has every frame of the stack, except perhaps the outermost ones of start-up code. One that found no caller at
/// all says nothing of start-up code: where nothing sets the frame pointer, it is zero from a thread's start on, and each chain
/// ends where it begins.
fn agree(chain: &[u64], stack: &[u64]) -> bool {
    let most_missing = if chain.len() > 1 { START_UP_FRAMES - 1 } else { 0 };
    stack.starts_with(chain) && stack.len() - chain.len() <= most_missing
}

#[cfg(test)]
mod tests;
