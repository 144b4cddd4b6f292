//! Where stacks are counted: for the one target of a session, or for each of many.

use std::hash::{BuildHasher, Hash};

use profiler_core::aggregate::{Aggregator, Chain};
use profiler_core::process::Process;
use profiler_core::profile::Outcome;
use profiler_core::rate::{ThreadVisits, TopShares};
use profiler_core::stack::{Frame, ObjectId};
use rustc_hash::{FxBuildHasher, FxHashMap};

use super::Owners;
use super::owners::Sampled;

/// The counted stacks.
#[derive(Default)]
pub(crate) struct StackCounts {
    /// The counts of a session with one target.
    pub(super) aggregator: Aggregator,
    /// The counts by target, if the session samples many.
    pub(crate) owners: Option<Owners>,
    pub(super) visits: ThreadVisits,
}

impl StackCounts {
    /// Counts the stack of a sample of thread `tid`. None if its process belongs to no target.
    pub(super) fn add(
        &mut self,
        process: &Process,
        tid: u32,
        chain: Chain<'_>,
        sampled: Sampled,
    ) -> Option<Outcome> {
        let weight_ns = sampled.weight_ns;
        let (outcome, function) = match &mut self.owners {
            Some(owners) => owners.add(process, chain, sampled)?,
            None => self.aggregator.add(process, chain, sampled.done_ns),
        };
        self.visits.sampled(tid, key(function), weight_ns);
        Some(outcome)
    }

    /// The frames of all targets since their last cuts.
    pub(super) fn frames(&self) -> impl Iterator<Item = &Frame> {
        let counted = self.owners.iter().flat_map(Owners::all).map(|share| &share.counted);
        counted.chain([&self.aggregator]).flat_map(|counted| counted.frames().frames())
    }

    /// Weights of objects since the last cut.
    pub(super) fn object_weights(&self) -> FxHashMap<ObjectId, f64> {
        let mut weights = self.aggregator.object_weights();
        for share in self.owners.iter().flat_map(Owners::all) {
            for (id, weight) in share.counted.object_weights() {
                *weights.entry(id).or_default() += weight;
            }
        }
        weights
    }

    /// Samples by innermost function since the last call, and how often consecutive ones changed function.
    pub(super) fn take_shares(&mut self) -> TopShares {
        let counts = match &mut self.owners {
            Some(owners) => owners.take_function_counts().into_iter().map(|(of, n)| (key(of), n)).collect(),
            None => self.aggregator.take_function_counts().into_iter().map(|(of, n)| (key(of), n)).collect(),
        };
        TopShares { counts, neighbours: self.visits.take() }
    }
}

/// A stable key for a function.
fn key(function: impl Hash) -> u64 {
    FxBuildHasher.hash_one(function)
}
