//! Frame pointers or copied stacks: which of the two gives complete stacks for this target, at what price.
//!
//! Following frame pointers costs the target next to nothing, but goes wrong without a word where code was
//! built without them. So the first samples carry both, and frame pointers are taken only if they tell the
//! same story as the unwind tables. The comparison is repeated now and then, since a program may move on to
//! code that has none.

use rustc_hash::FxHashSet;
use serde::Serialize;

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

/// Chooses the method, and judges stacks found by frame pointers.
#[derive(Clone, Debug)]
pub struct MethodChoice {
    method: Method,
    fixed: bool,
    tried: u32,
    compared: u32,
    disagreed: u32,
    /// Whether the comparison has begun with a program, and not amid it.
    is_beginning: bool,
    /// Outermost frames of trustworthy frame-pointer chains: the return addresses into start-up code, wherever a process has
    /// that mapped.
    outermost: FxHashSet<Frame>,
    watched: u32,
    broken: u32,
    audit_at_ns: Option<u64>,
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
            is_beginning: true,
            outermost: FxHashSet::default(),
            watched: 0,
            broken: 0,
            audit_at_ns: None,
        }
    }

    /// The method in force.
    pub fn method(&self) -> Method {
        self.method
    }

    /// Compares the frame-pointer chain of a sample with its unwound stack (lookup addresses). Tells whether the chain is
    /// the stack's whole: that was cut, and the chain goes on from there to where complete ones end. `locate` says which code
    /// an address is.
    pub fn compare(
        &mut self,
        by_frame_pointer: &[u64],
        by_tables: &[u64],
        outcome: Outcome,
        locate: impl Fn(u64) -> Frame,
    ) -> bool {
        self.tried += 1;
        let last = by_frame_pointer.last().map(|&last| locate(last));
        match (outcome, last) {
            (Outcome::Complete, Some(last)) if agree(by_frame_pointer, by_tables) => {
                self.compared += 1;
                self.outermost.insert(last);
                false
            }
            (Outcome::Complete, _) => {
                self.compared += 1;
                self.disagreed += 1;
                false
            }
            (Outcome::CopyTooShort | Outcome::StackAbsent, _) if !by_frame_pointer.starts_with(by_tables) => {
                self.disagreed += 1;
                false
            }
            (Outcome::CopyTooShort | Outcome::StackAbsent, Some(last)) if self.outermost.contains(&last) => {
                self.compared += 1;
                true
            }
            _ => false, // nothing to hold the chain against
        }
    }

    /// How a chain found by frame pointers alone ended.
    pub fn judge(
        &mut self,
        chain: &[u64],
        chain_limit_reached: bool,
        locate: impl Fn(u64) -> Frame,
    ) -> Outcome {
        let outcome = match chain.last() {
            None => Outcome::NoUserStack,
            Some(_) if chain_limit_reached => Outcome::ChainTooLong,
            Some(&last) => match locate(last) {
                // Where code was built without frame pointers, a chain leads into data.
                last if last.object.is_in_no_file() => Outcome::Broken,
                // Without a comparison there is no telling: the user chose frame pointers.
                last if self.fixed || self.outermost.contains(&last) => Outcome::Complete,
                _ => Outcome::Broken,
            },
        };
        self.watched += 1;
        self.broken += u32::from(outcome.is_truncated());
        outcome
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
                    (self.tried, self.compared, self.disagreed) = (0, 0, 0);
                }
                None
            }
            Method::Trial if self.disagreed > TOLERATED => self.take(Method::Dwarf, None),
            Method::Trial if self.compared >= self.needed() => {
                self.is_beginning = false;
                self.take(Method::Fp, Some(now_ns.saturating_add(AUDIT_AFTER_NS)))
            }
            // The tables follow frame pointers too where they know nothing better.
            Method::Trial if self.tried >= TRIAL_LIMIT => self.take(Method::Dwarf, None),
            Method::Fp if self.broken >= BROKEN_TO_REVERT => self.take(Method::Dwarf, None),
            Method::Fp if self.audit_at_ns.is_some_and(|at| now_ns >= at) => self.take(Method::Trial, None),
            _ => {
                if self.watched >= WATCH_SAMPLES {
                    (self.watched, self.broken) = (0, 0);
                }
                None
            }
        }
    }

    /// Comparisons that a decision for frame pointers takes.
    fn needed(&self) -> u32 {
        if self.disagreed == 0 { TRIAL_SAMPLES } else { LONGER_TRIAL * TRIAL_SAMPLES }
    }

    /// A process has begun another program: what was learnt does not hold for it.
    pub fn program_changed(&mut self) -> Option<Method> {
        self.is_beginning = true;
        if self.fixed || self.method == Method::Trial {
            (self.tried, self.compared, self.disagreed) = (0, 0, 0);
            return None;
        }
        self.take(Method::Trial, None)
    }

    fn take(&mut self, method: Method, audit_at_ns: Option<u64>) -> Option<Method> {
        self.method = method;
        self.audit_at_ns = audit_at_ns;
        (self.tried, self.compared, self.disagreed) = (0, 0, 0);
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
