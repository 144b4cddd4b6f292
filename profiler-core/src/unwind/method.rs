//! Frame pointers or copied stacks: which of the two gives complete stacks for this target, at what price.
//!
//! Following frame pointers costs the target next to nothing, but goes wrong without a word where code was
//! built without them. So the first samples carry both, and frame pointers are taken only if they tell the
//! same story as the unwind tables. The comparison is repeated now and then, since a program may move on to
//! code that has none.
//!
//! The comparison is repeated every half minute. A leaf function without a frame would otherwise hide its
//! caller unnoticed.
//!
//! A chain of frame pointers is also used where a copy ends early at a page that is not in memory: if the chain
//! holds all of the cut stack and ends as complete stacks do, it is the whole stack.

use rustc_hash::FxHashSet;
use serde::Serialize;

use super::StackEnd;
use crate::profile::Outcome;
use crate::stack::Frame;

/// Samples that are compared before frame pointers are trusted.
const TRIAL_SAMPLES: u32 = 200;
/// The first stacks of a program are the dynamic linker's, which few have built with frame pointers: where so few of them
/// disagree, the comparison begins anew with those that follow.
const FIRST_STACKS: u32 = 50;
/// Samples after which a comparison is given up for want of complete stacks to hold the chains against.
const TRIAL_LIMIT: u32 = 10 * TRIAL_SAMPLES;
/// Disagreements that frame pointers may have (a sample inside a function's prologue is one), and how many times more
/// samples are then compared: one in two hundred would be too many.
const TOLERATED: u32 = 1;
const LONGER_TRIAL: u32 = 5;
/// The frames outside `main` or a thread's function, which C libraries build without frame pointers.
const START_UP_FRAMES: usize = 3;
/// Stacks with an unknown outermost frame, out of [`WATCH_SAMPLES`], that end the trust in frame pointers.
const BROKEN_TO_REVERT: u32 = 5;
const WATCH_SAMPLES: u32 = 1000;
/// Frames of the tables and of the chain that must agree before one goes on with the other, and how many of the outermost may be
/// no callers: words of a stack that the thread has left.
const AGREEING_FRAMES: usize = 2;
const MADE_UP_FRAMES: usize = 2;
/// One stack in so many that frame pointers alone lead to its end takes both.
const BOTH_FOR_ONE_IN: u32 = 50;
/// One stack in so many that the tables lose takes a comparison, first after so long, and then ever more rarely (ns).
const LOST_ONE_IN: u32 = 50;
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

/// Where a stack goes on that the tables lost: behind so many of their frames, and of the chain's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Continuation {
    tables: usize,
    chain: usize,
    /// Whether the chain leaves out a frame of the tables: a function that keeps no frame pointer hides its caller.
    leaves_out: bool,
}

impl Continuation {
    /// Where the chain goes on from all frames of the tables.
    fn behind(stack: &[u64]) -> Self {
        Self { tables: stack.len(), chain: stack.len(), leaves_out: false }
    }

    /// Where the chain of a sample goes on from the frames that the tables gave, but perhaps the outermost.
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
    /// Stacks that the chain alone led to their end.
    by_chain_alone: u32,
    /// Whether samples carry both because both are needed.
    takes_both: bool,
    /// Whether the comparison has begun with a program, and not amid it.
    is_beginning: bool,
    /// Outermost frames of trustworthy frame-pointer chains: the return addresses into start-up code, wherever a process has
    /// that mapped.
    outermost: FxHashSet<Frame>,
    watched: u32,
    broken: u32,
    audit_at_ns: Option<u64>,
    /// When stacks that the tables lose may be compared again, and how long until the time after that (ns).
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

    /// Compares the frame-pointer chain of a sample with its unwound stack (lookup addresses). Where the tables lost the stack and
    /// the chain, which ends at `end`, leads to its outermost frame, tells how the stack goes on: it is whole then. `locate` says
    /// which code an address is.
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
        // One that seems whole may end in words that another thread has left; where all its frames are right, it does end.
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
            _ => None, // nothing to hold the chain against
        }
    }

    /// How a chain found by frame pointers alone ended, which does at `end`.
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
                // There is no telling, and the user chose frame pointers.
                _ if self.fixed && end == StackEnd::Untold => Outcome::Complete,
                _ => Outcome::Broken,
            },
        };
        self.watched += 1;
        self.broken += u32::from(outcome.is_truncated());
        outcome
    }

    /// How a stack ended that was unwound by tables alone.
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

    /// Frame pointers disagree with the tables: where they alone lead to the end of many stacks, both are taken.
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

    /// The tables may lose stacks that frame pointers would not: a thread that has changed stacks, or code that has come since.
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

    /// Comparisons that a decision for frame pointers takes.
    fn needed(&self) -> u32 {
        if self.disagreed == 0 { TRIAL_SAMPLES } else { LONGER_TRIAL * TRIAL_SAMPLES }
    }

    /// A process has begun another program: what was learnt does not hold for it.
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

/// The chain holds every frame of the stack, but perhaps the outermost ones of start-up code.
fn agree(chain: &[u64], stack: &[u64]) -> bool {
    stack.starts_with(chain) && stack.len() - chain.len() < START_UP_FRAMES
}

#[cfg(test)]
mod tests;
