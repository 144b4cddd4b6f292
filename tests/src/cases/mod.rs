//! Programs whose stacks are known beforehand, profiled by sweetspot and by others: which one finds complete stacks?

mod frames;
mod made;
mod made_rows;
mod recording;
mod rows;

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Serialize;

pub use made::{Made, Prepared};
pub use recording::{Peer, Recording, by_sweetspot};

use self::frames::{frames_of, has_name, is_root, named};
use crate::experiment::percent;
use crate::folded::Stack;
use crate::programs::{find_in_path, program, why_not};

/// Share of the stacks that must be complete, or cut as expected: the start and the end of a program have other stacks.
const COMPLETE: f64 = 0.99;
const CUT: f64 = 0.9;
/// The same for commands that start many short processes: during `execve` a process has no stack.
const COMPLETE_OF_MANY: f64 = 0.98;

/// Frames of start-up code outside of `main` or a thread's function.
const START_UP_FRAMES: usize = 3;

/// Any frames, or none, in a chain.
pub const ANY: &str = "…";

/// How a row's target is started.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    /// One of our programs, with a mode; the seconds follow, then the other programs' paths.
    Program(&'static str, &'static str, &'static [&'static str]),
    /// A command that must be installed, and its words.
    Command(&'static str, &'static [&'static str]),
    /// What is made for the run.
    Made(Made),
}

/// All rows.
pub fn rows() -> impl Iterator<Item = &'static Case> {
    rows::ROWS.iter().chain(made_rows::ROWS)
}

/// What the stacks of a row are.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name in the table.
    pub name: &'static str,
    /// What is profiled.
    pub target: Target,
    /// The function that works, or its names with `|` between them: its samples are compared with the chain. None where
    /// none is known.
    pub leaf: &'static str,
    /// Its callers, outermost first; [`ANY`] stands for frames that are not known.
    pub chain: &'static [&'static str],
    /// The reason for which its stacks cannot be complete, as [`profiler_core::profile::Outcome`] names it.
    pub cut: Option<&'static str>,
    /// Frames of a complete stack of a program without names.
    pub nameless_frames: Option<usize>,
    /// The leaf calls other functions (an interpreter's): where it is in a stack, its callers are looked at.
    pub leaf_calls: bool,
    /// It reports generated code in a jitdump, for which `perf` needs an extra step.
    pub has_jitdump: bool,
}

/// A row of which nothing is known.
const NOTHING_KNOWN: Case = Case {
    name: "",
    target: Target::Command("true", &[]),
    leaf: "",
    chain: &[],
    cut: None,
    nameless_frames: None,
    leaf_calls: false,
    has_jitdump: false,
};

/// What was found in a recording.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Found {
    /// Samples.
    pub samples: u64,
    /// Share of the stacks that begin at a root.
    pub complete_ratio: f64,
    /// Share of the frames that have a name.
    pub named_ratio: f64,
    /// Mean number of named frames of a stack: a profiler that finds and names only one frame scores low here.
    pub named_frames: f64,
    /// Of the samples in the leaf, those with the expected chain; none where there is no such sample.
    pub chain_ratio: Option<f64>,
}

impl Case {
    /// The target, ready for so much work, or why there is none here.
    pub fn prepare(&self, cpu_s: f64) -> Result<Result<Prepared, String>> {
        let (name, mode, others) = match self.target {
            Target::Made(made) => return made.prepare(cpu_s),
            Target::Command(name, words) => {
                let found = find_in_path(name).ok_or_else(|| format!("{name} is not installed"));
                let all = std::iter::once(name).chain(words.iter().copied()).map(str::to_string);
                return Ok(found.map(|_| Prepared::of(all.collect())));
            }
            Target::Program(name, mode, others) => (name, mode, others),
        };
        if let Some(reason) = why_not(name) {
            return Ok(Err(reason));
        }
        let mut words =
            vec![program(name)?.to_string_lossy().into_owned(), mode.to_string(), cpu_s.to_string()];
        for other in others {
            words.push(program(other)?.to_string_lossy().into_owned());
        }
        Ok(Ok(Prepared::of(words)))
    }

    /// Errors in sweetspot's own findings.
    pub fn judge(&self, ours: &Found, truncated_by: &BTreeMap<String, u64>) -> Vec<String> {
        let mut failures = Vec::new();
        if ours.samples == 0 {
            failures.push("no sample at all".to_owned());
        }
        match ours.chain_ratio {
            None if !self.leaf.is_empty() => failures.push(format!("no sample in {}", self.leaf)),
            Some(ratio) if ratio < 1.0 => {
                failures.push(format!("{} of the chains are whole", percent(ratio)))
            }
            _ => {}
        }
        if let Some(reason) = self.cut {
            let told = truncated_by.get(reason).copied().unwrap_or(0) as f64 / ours.samples.max(1) as f64;
            let all = truncated_by.values().sum::<u64>() as f64 / ours.samples.max(1) as f64;
            if told < CUT || all + ours.complete_ratio < COMPLETE {
                failures.push(format!("{} of the stacks are said to end by {reason}", percent(told)));
            }
        } else if ours.complete_ratio.is_nan() || ours.complete_ratio < self.least_complete() {
            failures.push(format!("only {} of the stacks are complete", percent(ours.complete_ratio)));
        }
        failures
    }

    fn least_complete(&self) -> f64 {
        if self.leaf.is_empty() { COMPLETE_OF_MANY } else { COMPLETE }
    }

    /// Evaluates a recording.
    pub fn look_at(&self, recording: &Recording) -> Found {
        let stacks = &recording.stacks;
        let all = stacks.weight_of(|_| true);
        let in_leaf = |stack: &Stack| self.callers_of_leaf(stack).is_some();
        let leaf = if self.leaf.is_empty() { 0.0 } else { stacks.weight_of(in_leaf) };
        let with_chain = stacks.weight_of(|stack| self.has_chain(stack));
        Found {
            samples: recording.samples,
            complete_ratio: stacks.weight_of(|stack| self.is_complete(stack)) / all,
            named_ratio: named(stacks) / stacks.0.iter().map(frames_of).sum::<f64>(),
            named_frames: named(stacks) / all,
            chain_ratio: (leaf > 0.0).then(|| with_chain / leaf),
        }
    }

    /// The start-up code of some C libraries has no names; then the outermost function that is known must be close to
    /// the end.
    fn is_complete(&self, stack: &Stack) -> bool {
        let known = self.chain.first().filter(|name| **name != ANY && self.cut.is_none());
        let outermost = || stack.frames.iter().take(START_UP_FRAMES + 1);
        match self.nameless_frames {
            Some(frames) => stack.frames.len() >= frames,
            None => {
                stack.frames.first().is_some_and(|first| is_root(first))
                    || known.is_some_and(|name| outermost().any(|frame| has_name(frame, name)))
            }
        }
    }

    /// The callers of the leaf, outermost first; none where the stack is another function's.
    fn callers_of_leaf<'s>(&self, stack: &'s Stack) -> Option<&'s [String]> {
        let is_leaf = |frame: &String| has_name(frame, self.leaf);
        let at = match self.leaf_calls {
            true => stack.frames.iter().rposition(is_leaf)?,
            false => stack.frames.len().checked_sub(1).filter(|&at| is_leaf(&stack.frames[at]))?,
        };
        Some(&stack.frames[..at])
    }

    /// Whether the callers of the leaf are the expected ones, from it to the outermost of the chain.
    pub fn has_chain(&self, stack: &Stack) -> bool {
        let Some(callers) = self.callers_of_leaf(stack) else { return false };
        let expected: Vec<&str> = self.chain.iter().rev().copied().collect();
        let found: Vec<&str> = callers.iter().rev().map(String::as_str).collect();
        begins_with(&found, &expected)
    }
}

fn begins_with(found: &[&str], expected: &[&str]) -> bool {
    match (expected.split_first(), found.split_first()) {
        (None, _) => true,
        (Some((&ANY, rest)), _) => (0..=found.len()).any(|skipped| begins_with(&found[skipped..], rest)),
        (Some((name, rest)), Some((frame, outer))) => has_name(frame, name) && begins_with(outer, rest),
        (Some(_), None) => false,
    }
}

/// Whether ours is below another's by more than chance can explain: three standard errors of the difference, and
/// two stacks in a thousand.
pub fn is_below(ours: (f64, u64), theirs: (f64, u64)) -> bool {
    let ((p, n), (q, m)) = ((ours.0, ours.1.max(1) as f64), (theirs.0, theirs.1.max(1) as f64));
    let pooled = (p * n + q * m) / (n + m);
    let se = (pooled * (1.0 - pooled) * (1.0 / n + 1.0 / m)).max(0.0).sqrt();
    q - p > 3.0 * se + 0.002
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folded::Folded;

    fn case(leaf: &'static str, chain: &'static [&'static str]) -> Case {
        let target = Target::Command("true", &[]);
        Case { name: "a case", target, leaf, chain, ..NOTHING_KNOWN }
    }

    fn recording(text: &str) -> Recording {
        Recording { samples: 4, stacks: Folded::parse(text).unwrap(), ..Recording::default() }
    }

    #[test]
    fn a_chain_is_whole_from_its_leaf_to_its_outermost_caller() {
        let whole =
            recording("_start;main;level1;level2;leaf 3\n_start;main;level2;leaf 1\n_start;main;other 9");
        let found = case("leaf", &["main", "level1", "level2"]).look_at(&whole);
        assert_eq!(found.chain_ratio, Some(0.75));
        let with_gap = case("leaf", &["main", ANY, "level2"]).look_at(&whole);
        assert_eq!(with_gap.chain_ratio, Some(1.0));
        assert_eq!(case("absent", &["main"]).look_at(&whole).chain_ratio, None);
    }

    #[test]
    fn a_leaf_may_call_others() {
        let calls = recording("_start;main;level2;leaf;interpreter 3\n_start;main;leaf;interpreter 1");
        assert_eq!(case("leaf", &["main", "level2"]).look_at(&calls).chain_ratio, None);
        let case = Case { leaf_calls: true, ..case("leaf", &["main", "level2"]) };
        assert_eq!(case.look_at(&calls).chain_ratio, Some(0.75));
    }

    #[test]
    fn a_stack_is_complete_from_where_programs_begin() {
        let text = "_start;main 1\n__libc_start_main@@GLIBC_2.34;main 1\nmain;leaf 1\n[unknown];leaf 1";
        let found = case("leaf", &[]).look_at(&recording(text));
        assert_eq!((found.complete_ratio, found.named_ratio), (0.5, 0.875));
        assert_eq!(case("leaf", &["main"]).look_at(&recording(text)).complete_ratio, 0.75);
        let made_up = recording("fun_19b0;fun_d;funny;fun_time 1");
        assert_eq!(case("leaf", &[]).look_at(&made_up).named_ratio, 0.5);
    }

    #[test]
    fn a_row_is_judged_by_itself_though_nothing_is_known_of_its_program() {
        let judge = |case: &Case, found: &Recording| case.judge(&case.look_at(found), &BTreeMap::new());
        let named = case("", &[]);
        let nameless = Case { nameless_frames: Some(3), ..case("", &[]) };
        assert_eq!(judge(&named, &recording("_start;main 4")), Vec::<String>::new());
        assert_eq!(judge(&nameless, &recording("a+1;b+2;c+3 4")), Vec::<String>::new());
        assert_eq!(judge(&named, &recording("main;other 4")).len(), 1);
        assert_eq!(judge(&nameless, &recording("a+1;b+2 4")).len(), 1);
        for case in [named, nameless] {
            let nothing = Recording { samples: 0, ..recording("") };
            assert_eq!(judge(&case, &nothing).len(), 2);
        }
    }

    #[test]
    fn chance_is_no_difference() {
        assert!(!is_below((0.98, 1000), (0.99, 1000)));
        assert!(is_below((0.90, 1000), (0.99, 1000)));
        assert!(!is_below((1.0, 10), (0.5, 1000)));
    }
}
