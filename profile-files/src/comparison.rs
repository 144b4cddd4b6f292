//! Two profiles side by side: which functions take another share of the CPU time than before, and by how much more than chance brings.
//!
//! Shares are compared, not seconds: one run may be longer or busier than the other, and each was sampled at a rate of its own.
//! How much a share varies from run to run is seen between stretches of each ([`compare`](profiler_core::stats::compare)). A run that is
//! short, or goes through phases as long as itself, does not show it. Then these two runs alone are compared, by the intervals of what each
//! really did (Newcombe 1998, method 10): for a job that does the same work each time that is all there is to know, and for others it is said.

use profiler_core::profile::{Measure, Run, SymbolizedProfile};
use profiler_core::stats::Confidence;
use profiler_core::stats::compare::{Change, SEGMENTS, TwoRuns, compare};
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::functions::{FunctionInStretches, RunInStretches, in_stretches};

mod text;

pub use text::render;

/// Of the functions that are called changed, the share that may not be.
const FALSE_CHANGES: f64 = 0.05;
/// How sure the interval of each change is at least, by itself.
const CONFIDENCE: f64 = 0.95;
/// Samples that a function without any may have missed: in one of twenty runs, more.
const UNSEEN: f64 = 3.0;

/// Two profiles, and what changed between them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The first.
    pub old: ComparedRun,
    /// The second.
    pub new: ComparedRun,
    /// What the shares are of.
    #[serde(skip)]
    pub measure: Measure,
    /// Whether a function's time is that in itself and in what it called.
    pub with_called: bool,
    /// Of the functions called changed, the share that may not be.
    pub false_changes_ratio: f64,
    /// Level of the interval of each change.
    pub confidence: f64,
    /// What functions are called changed by.
    pub basis: Basis,
    /// Functions of either: those that changed first, then by the size of the change.
    pub functions: Vec<FunctionChange>,
}

/// What functions are called changed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// By how much shares vary from run to run.
    LongRun,
    /// By what these two runs did; others may differ by more.
    TheseRuns,
    /// None is: one of the profiles does not say what was sampled when, or has no samples.
    Nothing,
}

/// One of the two.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedRun {
    /// What was profiled.
    pub target: String,
    /// Samples.
    pub samples: u64,
    /// CPU time of the target (s).
    pub target_cpu_s: f64,
    /// Whether the run shows how much others may differ from it: it is long enough, and its visits to functions are short against it.
    pub tells_of_others: bool,
}

/// A function in both runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FunctionChange {
    /// Its name.
    pub name: String,
    /// The module that holds its code; in the new run, where it is there.
    pub module: String,
    /// Share of the old run, 0 to 1.
    pub old_share: f64,
    /// Share of the new run.
    pub new_share: f64,
    /// `new_share − old_share`.
    pub change: f64,
    /// Low end of the interval of `change`; absent where nothing can be said.
    pub change_low: Option<f64>,
    /// High end of the same.
    pub change_high: Option<f64>,
    /// The share of false ones among the functions called changed from which on this one would be, too; absent unless by [`Basis::LongRun`].
    pub adjusted_p_value: Option<f64>,
    /// How often a stretch of the new run has more than one of the old; absent unless it changed by [`Basis::LongRun`].
    pub probability_more: Option<f64>,
    /// Whether it changed by more than chance brings, as far as [`Comparison::basis`] tells.
    pub is_changed: bool,
}

impl Comparison {
    /// Compares two profiles of the same measure.
    pub fn of(old: &SymbolizedProfile, new: &SymbolizedProfile, with_called: bool) -> Self {
        let confidence = Confidence::new(CONFIDENCE);
        let [old_run, new_run] =
            [old, new].map(|profile| in_stretches(profile, with_called, SEGMENTS, confidence));
        let pairs = pairs(&old_run, &new_run);
        let basis = basis(&old_run, &new_run);
        let unseen = [old, new].map(|profile| UNSEEN / profile.run.counts.samples.max(1) as f64);
        let sizes: Vec<Size> = match basis {
            Basis::LongRun => changes(&old_run, &new_run, &pairs).iter().map(Size::in_the_long_run).collect(),
            Basis::TheseRuns => pairs.iter().map(|pair| Size::in_these_runs(pair, unseen)).collect(),
            Basis::Nothing => vec![Size::default(); pairs.len()],
        };
        let mut functions: Vec<FunctionChange> =
            pairs.iter().zip(sizes).map(|(pair, size)| function(pair, size)).collect();
        functions.sort_by(|a, b| {
            let size = b.change.abs().total_cmp(&a.change.abs());
            b.is_changed
                .cmp(&a.is_changed)
                .then(size)
                .then_with(|| (&a.name, &a.module).cmp(&(&b.name, &b.module)))
        });
        Comparison {
            old: compared(&old.run, &old_run),
            new: compared(&new.run, &new_run),
            measure: new.run.measure.clone(),
            with_called,
            false_changes_ratio: FALSE_CHANGES,
            confidence: CONFIDENCE,
            basis,
            functions,
        }
    }
}

fn basis(old: &RunInStretches<'_>, new: &RunInStretches<'_>) -> Basis {
    let has_ends = |run: &RunInStretches<'_>| run.functions.iter().any(|function| function.ends.is_some());
    match old.tells_of_others && new.tells_of_others {
        true => Basis::LongRun,
        false if has_ends(old) && has_ends(new) => Basis::TheseRuns,
        false => Basis::Nothing,
    }
}

fn compared(run: &Run, in_stretches: &RunInStretches<'_>) -> ComparedRun {
    ComparedRun {
        target: run.target.clone(),
        samples: run.counts.samples,
        target_cpu_s: run.cpu.target_cpu_s,
        tells_of_others: in_stretches.tells_of_others,
    }
}

/// A function as either run saw it; at least one did.
type Pair<'a> = [Option<&'a FunctionInStretches<'a>>; 2];

/// Pairs functions by name and module, and what is left by name alone where each run has one: a library of the next version is another
/// module.
fn pairs<'a>(old: &'a RunInStretches<'a>, new: &'a RunInStretches<'a>) -> Vec<Pair<'a>> {
    let mut places: FxHashMap<(&str, &str), usize> = FxHashMap::default();
    let mut pairs: Vec<Pair<'a>> = Vec::new();
    for function in &old.functions {
        places.insert((function.name, function.module), pairs.len());
        pairs.push([Some(function), None]);
    }
    let mut unpaired = Vec::new();
    for function in &new.functions {
        match places.get(&(function.name, function.module)) {
            Some(&at) => pairs[at][1] = Some(function),
            None => unpaired.push(function),
        }
    }
    let mut of_name: FxHashMap<&str, Vec<usize>> = FxHashMap::default();
    for (at, pair) in pairs.iter().enumerate() {
        if let [Some(function), None] = pair {
            of_name.entry(function.name).or_default().push(at);
        }
    }
    let mut named: FxHashMap<&str, usize> = FxHashMap::default();
    unpaired.iter().for_each(|function| *named.entry(function.name).or_default() += 1);
    for function in unpaired {
        match of_name.get(function.name).map(Vec::as_slice) {
            Some(&[at]) if named[function.name] == 1 => pairs[at][1] = Some(function),
            _ => pairs.push([None, Some(function)]),
        }
    }
    pairs
}

fn changes(old: &RunInStretches<'_>, new: &RunInStretches<'_>, pairs: &[Pair<'_>]) -> Vec<Change> {
    let beside_all = |function: Option<&FunctionInStretches<'_>>, all_ns: &[f64]| -> Vec<(f64, f64)> {
        let own_ns = |at: usize| function.map_or(0.0, |function| function.own_ns[at]);
        all_ns.iter().enumerate().map(|(at, all_ns)| (own_ns(at).min(*all_ns), *all_ns)).collect()
    };
    let stretches: Vec<[Vec<(f64, f64)>; 2]> = pairs
        .iter()
        .map(|[in_old, in_new]| [beside_all(*in_old, &old.all_ns), beside_all(*in_new, &new.all_ns)])
        .collect();
    let runs: Vec<TwoRuns<'_>> = stretches.iter().map(|[old, new]| TwoRuns { old, new }).collect();
    compare(&runs, FALSE_CHANGES, CONFIDENCE)
}

/// A function's share in the two runs; 0 where it was not seen.
fn shares(pair: &Pair<'_>) -> [f64; 2] {
    pair.map(|function| function.map_or(0.0, |function| function.share))
}

/// How far a change may be from what was seen, and what that says.
#[derive(Clone, Copy, Default)]
struct Size {
    /// By how much the change may be lower, and higher.
    reach: Option<(f64, f64)>,
    adjusted_p_value: Option<f64>,
    probability_more: Option<f64>,
    is_changed: bool,
}

impl Size {
    fn in_the_long_run(change: &Change) -> Self {
        Size {
            reach: Some((change.half_width, change.half_width)),
            adjusted_p_value: Some(change.adjusted_p_value),
            probability_more: change.effect.map(|effect| effect.probability_more),
            is_changed: change.adjusted_p_value <= FALSE_CHANGES,
        }
    }

    /// `unseen` is what the share of a function may be in each run that has no sample of it.
    fn in_these_runs(pair: &Pair<'_>, unseen: [f64; 2]) -> Self {
        let [old, new] = shares(pair);
        let ends = |at: usize| match pair[at] {
            Some(function) => function.ends,
            None => Some((0.0, unseen[at])),
        };
        let Some(((old_low, old_high), (new_low, new_high))) = ends(0).zip(ends(1)) else {
            return Size::default();
        };
        let (lower, higher) = ((new - new_low).hypot(old_high - old), (new_high - new).hypot(old - old_low));
        let change = new - old;
        Size {
            reach: Some((lower, higher)),
            is_changed: change - lower > 0.0 || change + higher < 0.0,
            ..Size::default()
        }
    }
}

fn function(pair: &Pair<'_>, size: Size) -> FunctionChange {
    let [old, new] = pair;
    let (name, module) = new
        .or(*old)
        .map(|function| (function.name.to_owned(), function.module.to_owned()))
        .unwrap_or_default();
    let [old_share, new_share] = shares(pair);
    let change = new_share - old_share;
    FunctionChange {
        name,
        module,
        old_share,
        new_share,
        change,
        change_low: size.reach.map(|(lower, _)| (change - lower).max(-1.0)),
        change_high: size.reach.map(|(_, higher)| (change + higher).min(1.0)),
        adjusted_p_value: size.adjusted_p_value,
        probability_more: size.probability_more,
        is_changed: size.is_changed,
    }
}

#[cfg(test)]
mod tests;
