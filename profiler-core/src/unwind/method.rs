//! Frame pointers or copied stacks: which of the two gives complete stacks for this target, at what price.
//!
//! Following frame pointers costs the target next to nothing, but goes wrong without a word where code was
//! built without them. So the first samples carry both, and frame pointers are taken only if they tell the
//! same story as the unwind tables. The comparison is repeated now and then, since a program may move on to
//! code that has none.

use rustc_hash::FxHashSet;
use serde::Serialize;

use crate::profile::Outcome;

/// Samples that are compared before frame pointers are trusted.
const TRIAL_SAMPLES: u32 = 200;
/// Samples after which a comparison is given up for want of complete stacks to hold the chains against.
const TRIAL_LIMIT: u32 = 10 * TRIAL_SAMPLES;
/// Disagreements that frame pointers may have among them (a sample inside a function's prologue is one).
const TOLERATED: u32 = 1;
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
    /// Outermost frames of trustworthy frame-pointer chains: the return addresses into start-up code.
    outermost: FxHashSet<u64>,
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

    /// Compares the frame-pointer chain of a sample with its unwound stack (lookup addresses).
    pub fn compare(&mut self, by_frame_pointer: &[u64], by_tables: &[u64], outcome: Outcome) {
        self.tried += 1;
        if outcome != Outcome::Complete {
            return; // nothing to hold the chain against
        }
        self.compared += 1;
        match by_frame_pointer.last() {
            Some(&last) if agree(by_frame_pointer, by_tables) => {
                self.outermost.insert(last);
            }
            _ => self.disagreed += 1,
        }
    }

    /// How a chain found by frame pointers alone ended.
    pub fn judge(&mut self, chain: &[u64], chain_limit_reached: bool) -> Outcome {
        let outcome = match chain.last() {
            None => Outcome::NoUserStack,
            Some(_) if chain_limit_reached => Outcome::ChainTooLong,
            // Without a comparison there is no telling: the user chose frame pointers.
            Some(last) if self.fixed || self.outermost.contains(last) => Outcome::Complete,
            Some(_) => Outcome::Broken,
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
            Method::Trial if self.disagreed > TOLERATED => self.take(Method::Dwarf, None),
            Method::Trial if self.compared >= TRIAL_SAMPLES => {
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

    /// A process has begun another program: what was learnt does not hold for it.
    pub fn program_changed(&mut self) -> Option<Method> {
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STACK: [u64; 6] = [10, 20, 30, 40, 50, 60];

    fn trial(chain: &[u64], samples: u32) -> (MethodChoice, Option<Method>) {
        let mut choice = MethodChoice::auto();
        let decided = (0..samples).find_map(|_| {
            choice.compare(chain, &STACK, Outcome::Complete);
            choice.revise(0)
        });
        (choice, decided)
    }

    #[test]
    fn agreeing_chains_are_trusted_and_their_outermost_frame_is_the_mark_of_a_complete_one() {
        let (mut choice, decided) = trial(&STACK[..4], TRIAL_SAMPLES);
        assert_eq!(decided, Some(Method::Fp));
        assert_eq!(choice.judge(&[1, 2, 40], false), Outcome::Complete);
        assert_eq!(choice.judge(&[1, 2, 41], false), Outcome::Broken);
        assert_eq!(choice.judge(&[1, 2, 40], true), Outcome::ChainTooLong);
        assert_eq!(choice.judge(&[], false), Outcome::NoUserStack);
    }

    #[test]
    fn a_chain_that_skips_a_caller_or_ends_early_is_not_trusted() {
        assert_eq!(trial(&[10, 30, 40, 50, 60], 2).1, Some(Method::Dwarf));
        assert_eq!(trial(&STACK[..2], 2).1, Some(Method::Dwarf));
    }

    #[test]
    fn trust_ends_with_unknown_ends_and_is_renewed_by_audits() {
        let (mut choice, _) = trial(&STACK, TRIAL_SAMPLES);
        assert_eq!(choice.revise(AUDIT_AFTER_NS - 1), None);
        assert_eq!(choice.clone().revise(AUDIT_AFTER_NS), Some(Method::Trial));
        for _ in 0..BROKEN_TO_REVERT {
            choice.judge(&[7], false);
        }
        assert_eq!(choice.revise(0), Some(Method::Dwarf));
    }

    #[test]
    fn another_program_is_compared_anew() {
        let (mut choice, _) = trial(&STACK, TRIAL_SAMPLES);
        assert_eq!(choice.program_changed(), Some(Method::Trial));
        assert_eq!(MethodChoice::fixed(Method::Fp).program_changed(), None);
    }

    #[test]
    fn a_comparison_that_no_complete_stack_allows_is_given_up() {
        let mut choice = MethodChoice::auto();
        let decided = (1..=TRIAL_LIMIT).find_map(|samples| {
            choice.compare(&STACK, &STACK[..2], Outcome::CopyTooShort);
            Some((samples, choice.revise(0)?))
        });
        assert_eq!(decided, Some((TRIAL_LIMIT, Method::Dwarf)));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Compare { agrees: bool, outcome: Outcome },
        Judge { chain: Vec<u64>, limit_reached: bool },
        Pass(u64),
        Program,
    }

    fn step() -> impl Strategy<Value = Step> {
        let outcome =
            prop_oneof![Just(Outcome::Complete), Just(Outcome::Broken), Just(Outcome::CopyTooShort)];
        let compare = (prop::bool::weighted(0.99), outcome);
        let chain = prop::collection::vec(prop_oneof![Just(50u64), Just(60), Just(7)], 0..3);
        prop_oneof![
            20 => compare.prop_map(|(agrees, outcome)| Step::Compare { agrees, outcome }),
            20 => (chain, any::<bool>()).prop_map(|(chain, limit_reached)| Step::Judge { chain, limit_reached }),
            2 => (0u64..40_000_000_000).prop_map(Step::Pass),
            1 => Just(Step::Program),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_history_ends_in_a_method_that_was_announced(
            steps in prop::collection::vec((step(), 1usize..120), 0..80),
            fixed in prop::option::of(prop_oneof![Just(Method::Fp), Just(Method::Dwarf)]),
        ) {
            let mut choice = fixed.map_or_else(MethodChoice::auto, MethodChoice::fixed);
            let (mut method, mut now_ns, mut agreed) = (choice.method(), 0u64, 0);
            for (step, times) in steps {
                for _ in 0..times {
                    let mut announced = None;
                    match &step {
                        Step::Compare { agrees, outcome } if method == Method::Trial => {
                            choice.compare(if *agrees { &STACK[..5] } else { &STACK[..1] }, &STACK, *outcome);
                            agreed += u32::from(*agrees && *outcome == Outcome::Complete);
                        }
                        Step::Compare { .. } => {}
                        Step::Judge { chain, limit_reached } => {
                            let outcome = choice.judge(chain, *limit_reached);
                            prop_assert_eq!(outcome == Outcome::NoUserStack, chain.is_empty());
                            // Without a comparison, only the user's word makes a chain complete.
                            let trusted = fixed.is_some() || agreed > 0;
                            prop_assert!(outcome != Outcome::Complete || trusted);
                        }
                        Step::Pass(ns) => now_ns += ns / 100,
                        Step::Program => announced = choice.program_changed(),
                    }
                    announced = choice.revise(now_ns).or(announced);
                    prop_assert_eq!(announced.unwrap_or(method), choice.method());
                    prop_assert!(fixed.is_none_or(|fixed| fixed == choice.method()));
                    // Frame pointers alone are taken after a trial, and only then.
                    let from_trial = method == Method::Trial && agreed > 0;
                    prop_assert!(announced != Some(Method::Fp) || from_trial);
                    method = choice.method();
                }
            }
        }
    }
}
