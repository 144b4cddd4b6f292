//! Whether a process that announces itself is the one with that id here: in a nested PID namespace it has
//! another id, and `/proc` shows a different process under it.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::sys::maps::regions;
use crate::sys::procfs;

/// Most ancestors between a process and the command.
const GENERATIONS: usize = 64;

/// The result of the checks.
#[derive(Default)]
pub(super) struct DescendantCheck {
    root: u32,
    known: FxHashSet<u32>,
    /// Processes that failed the check, and how many of each one's records were left out.
    excluded: FxHashMap<u32, u64>,
}

impl DescendantCheck {
    /// Sets the process that all others must descend from.
    pub(super) fn begin(&mut self, root: u32) {
        self.root = root;
        self.known.insert(root);
    }

    /// Looks at a process that begins.
    pub(super) fn look(&mut self, pid: u32) {
        let parent = |pid| procfs::name_and_parent(pid).map(|(_, parent)| parent);
        if pid == self.root || descends(pid, &self.known, parent) || has_memory(pid) {
            self.known.insert(pid);
            self.excluded.remove(&pid);
        } else {
            self.known.remove(&pid);
            self.excluded.entry(pid).or_insert(0);
        }
    }

    pub(super) fn is_excluded(&self, pid: u32) -> bool {
        self.excluded.contains_key(&pid)
    }

    /// A record of such a process is left out.
    pub(super) fn count_excluded(&mut self, pid: u32) {
        if let Some(records) = self.excluded.get_mut(&pid) {
            *records = records.saturating_add(1);
        }
    }

    /// What the user should know.
    pub(super) fn shortfall(&self) -> Option<String> {
        let processes = self.excluded.len();
        let records = self.excluded.values().fold(0, |sum: u64, &records| sum.saturating_add(records));
        (processes > 0).then(|| {
            format!(
                "{processes} processes started in PID namespaces of their own, and their {records} records \
                 are left out: run sweetspot inside these namespaces"
            )
        })
    }
}

/// Whether a process descends from a known one; a process that has ended passes.
fn descends(pid: u32, known: &FxHashSet<u32>, parent: impl Fn(u32) -> Option<u32>) -> bool {
    let mut at = pid;
    for generation in 0..GENERATIONS {
        // A number may have been given away again.
        if generation > 0 && known.contains(&at) {
            return true;
        }
        match parent(at) {
            None => return true,
            Some(0 | 1) => return false,
            Some(above) => at = above,
        }
    }
    false
}

/// Whether a process maps the agents' memory: an orphan descends from no known process.
fn has_memory(pid: u32) -> bool {
    let Ok(maps) = std::fs::read(format!("/proc/{pid}/maps")) else { return false };
    regions(&maps).any(|region| region.name == b"/memfd:sweetspot (deleted)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_descends_from_the_command_is_believed_and_its_namesake_is_not() {
        let known: FxHashSet<u32> = [70].into_iter().collect();
        let parents = |pid| match pid {
            80 => Some(70),
            81 => Some(80),
            2 => Some(0),
            1 => Some(0),
            90 => Some(1), // it lost its parent
            60 => Some(60),
            70 => Some(69),
            69 => Some(1),
            _ => None,
        };
        assert!([80, 81].iter().all(|&pid| descends(pid, &known, parents)));
        assert!([1, 2, 90, 60].iter().all(|&pid| !descends(pid, &known, parents)));
        assert!(descends(99, &known, parents), "it has ended");
        let mut descendants = DescendantCheck::default();
        descendants.begin(std::process::id());
        descendants.look(1);
        descendants.count_excluded(1);
        assert!(descendants.is_excluded(1) && !descendants.is_excluded(2));
        assert!(
            descendants
                .shortfall()
                .is_some_and(|line| line.starts_with("1 processes") && line.contains("1 records"))
        );
    }
}
