//! The code that the target runs: its objects, the names of generated code, and which unwind tables stay in memory.

use profiler_core::process::ProcessTable;
use profiler_core::stack::ObjectId;
use rustc_hash::FxHashMap;

use super::stack_counts::StackCounts;
use crate::jit::JitStore;
use crate::objects::{ObjectStore, Symbols};
use crate::sys::clock;

/// Shortest time between two decisions which unwind tables stay in memory, if there is no room for all (ns).
const BETWEEN_REBALANCES_NS: u64 = 2_000_000_000;
/// How much of the earlier weights of objects still counts after a cut or a round, when it is decided which unwind
/// tables stay.
const REMEMBERED: f64 = 0.5;

/// The code of the target's processes.
pub(crate) struct TargetCode {
    pub(crate) objects: ObjectStore,
    pub(super) jit: JitStore,
    /// Weights of objects up to the last cut, decayed.
    past_weights: FxHashMap<ObjectId, f64>,
    rebalance_at_ns: u64,
}

impl TargetCode {
    pub(super) fn new(symbols: &Symbols) -> Self {
        Self {
            objects: ObjectStore::new(symbols),
            jit: JitStore::default(),
            past_weights: FxHashMap::default(),
            rebalance_at_ns: 0,
        }
    }

    pub(super) fn fade_weights(&mut self) {
        self.past_weights.retain(|_, weight| {
            *weight *= REMEMBERED;
            *weight >= 1.0
        });
    }

    /// Adds these weights of objects to the remembered ones, if there is no room for all unwind tables.
    pub(super) fn remember_weights(&mut self, weights: FxHashMap<ObjectId, f64>) {
        if self.objects.is_short_of_room() {
            weights.into_iter().for_each(|(id, weight)| *self.past_weights.entry(id).or_default() += weight);
        }
    }

    /// If there is no room for all unwind tables, the ones with the most weight stay. Returns whether others are in memory
    /// now.
    pub(super) fn rebalance(&mut self, counted: &StackCounts, processes: &mut ProcessTable) -> bool {
        let now_ns = clock::monotonic_ns();
        if now_ns < self.rebalance_at_ns {
            return false;
        }
        self.rebalance_at_ns = now_ns + BETWEEN_REBALANCES_NS;
        let past = &self.past_weights;
        let weights = || {
            let mut weights = past.clone();
            let present = counted.object_weights();
            present.into_iter().for_each(|(id, weight)| *weights.entry(id).or_default() += weight);
            weights
        };
        self.objects.rebalance(weights, processes)
    }
}
