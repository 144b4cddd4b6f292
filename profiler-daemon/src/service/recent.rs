//! The last decisions of a target's controller.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::state::DecisionEntry;
use crate::output::{DecisionLine, DecisionLog};
use crate::sys::clock;

/// Decisions that are remembered: half a minute of them while nothing changes.
const REMEMBERED: usize = 32;

/// The recent decisions of a target. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecentDecisions(Arc<Mutex<VecDeque<DecisionEntry>>>);

impl RecentDecisions {
    /// Oldest first.
    pub(crate) fn list(&self) -> Vec<DecisionEntry> {
        self.entries().iter().cloned().collect()
    }

    /// Adds a decision.
    pub(crate) fn remember(&self, entry: DecisionEntry) {
        let mut entries = self.entries();
        if entries.len() == REMEMBERED {
            entries.pop_front();
        }
        entries.push_back(entry);
    }

    fn entries(&self) -> MutexGuard<'_, VecDeque<DecisionEntry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DecisionLog for RecentDecisions {
    fn decision(&mut self, line: &DecisionLine<'_>) {
        let at_unix_s = clock::unix_ns() as f64 * 1e-9;
        self.remember(DecisionEntry { at_unix_s, decision: *line.decision });
    }
}
