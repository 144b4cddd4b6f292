//! The processes of a target, and how they changed since the last scan.

use std::collections::BTreeSet;

/// The processes that belong to a target.
#[derive(Default)]
pub(crate) struct TargetProcesses {
    pids: BTreeSet<u32>,
    /// Those that joined since the last scan.
    joined: Vec<u32>,
    /// Those that left or ended since the last scan.
    left: Vec<u32>,
}

impl TargetProcesses {
    /// A process joins. Returns whether it is new.
    pub(super) fn join(&mut self, pid: u32) -> bool {
        let is_new = self.pids.insert(pid);
        if is_new {
            self.joined.push(pid);
        }
        is_new
    }

    /// A process does not belong to the target any more, or has ended.
    pub(super) fn leave(&mut self, pid: u32) {
        if self.pids.remove(&pid) {
            self.joined.retain(|joined| *joined != pid);
            self.left.push(pid);
        }
    }

    /// Those that joined and those that left since the last call.
    pub(super) fn take_changes(&mut self) -> (Vec<u32>, Vec<u32>) {
        (std::mem::take(&mut self.joined), std::mem::take(&mut self.left))
    }

    pub(crate) fn len(&self) -> usize {
        self.pids.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pids.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        self.pids.iter().copied()
    }
}
