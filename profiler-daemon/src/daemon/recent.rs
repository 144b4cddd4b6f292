//! The last decisions of a target's controller.

use std::collections::VecDeque;

use super::state::DecisionEntry;
use crate::run::{DecisionLine, DecisionLog};
use crate::sys::clock;

/// So many are remembered: half a minute of a target where nothing changes.
const REMEMBERED: usize = 32;

/// Remembers decisions.
#[derive(Debug, Default)]
pub(crate) struct RecentDecisions(VecDeque<DecisionEntry>);

impl RecentDecisions {
    /// Oldest first.
    pub(crate) fn list(&self) -> Vec<DecisionEntry> {
        self.0.iter().cloned().collect()
    }
}

impl DecisionLog for RecentDecisions {
    fn decision(&mut self, line: &DecisionLine<'_>) {
        if self.0.len() == REMEMBERED {
            self.0.pop_front();
        }
        let at_unix_s = clock::unix_ns() as f64 * 1e-9;
        self.0.push_back(DecisionEntry { at_unix_s, decision: *line.decision });
    }
}
