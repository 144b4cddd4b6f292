//! Which processes may have ended: those whose first thread ended, or one of those that went on without it.
//! Checking every thread that ends took a third of the daemon's time next to servers whose threads start and
//! end all the time.

use std::collections::BTreeSet;

use profiler_core::record::Task;
use rustc_hash::FxHashSet;

/// The processes to check.
#[derive(Debug, Default)]
pub(super) struct Exits {
    /// To be checked at the next reading.
    doubtful: BTreeSet<u32>,
    /// They have outlived their first thread: any other may be their last.
    headless: FxHashSet<u32>,
}

impl Exits {
    /// A thread has ended.
    pub(super) fn note(&mut self, task: Task) {
        if task.tid == task.pid || self.headless.contains(&task.pid) {
            self.doubtful.insert(task.pid);
        }
    }

    /// A process may have ended.
    pub(super) fn doubt(&mut self, pid: u32) {
        self.doubtful.insert(pid);
    }

    /// Whether there is no process to check.
    pub(super) fn is_empty(&self) -> bool {
        self.doubtful.is_empty()
    }

    /// The processes that have ended, among those to check and those in `gone`.
    pub(super) fn take(
        &mut self,
        gone: impl IntoIterator<Item = u32>,
        has_ended: impl Fn(u32) -> bool,
    ) -> Vec<u32> {
        self.doubtful.extend(gone);
        let (ended, headless): (Vec<u32>, Vec<u32>) =
            std::mem::take(&mut self.doubtful).into_iter().partition(|&pid| has_ended(pid));
        for pid in &ended {
            self.headless.remove(pid);
        }
        self.headless.extend(headless);
        ended
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn exit(pid: u32, tid: u32) -> Task {
        Task { pid, parent_pid: 1, tid, time_ns: 0 }
    }

    #[test]
    fn one_thread_of_many_is_no_reason_to_ask_and_the_last_one_is() {
        let asked = RefCell::new(Vec::new());
        let alive = |pid| {
            asked.borrow_mut().push(pid);
            false
        };
        let mut exits = Exits::default();
        (11..1_000).for_each(|tid| exits.note(exit(10, tid)));
        assert_eq!((exits.take([], alive), asked.take()), (vec![], vec![]));
        // Its first thread leaves, and the others go on.
        (0..2).for_each(|_| exits.note(exit(10, 10)));
        assert_eq!((exits.take([], alive), asked.take()), (vec![], vec![10]));
        assert_eq!((exits.take([], alive), asked.take()), (vec![], vec![]));
        exits.note(exit(10, 1_000));
        assert_eq!(exits.take([], |_| true), [10]);
        exits.note(exit(10, 1_001)); // of another that has its number
        assert_eq!((exits.take([], alive), asked.take()), (vec![], vec![]));
    }

    #[test]
    fn who_seems_to_be_gone_is_asked_about_once() {
        let mut exits = Exits::default();
        exits.note(exit(7, 7));
        assert_eq!(exits.take([9, 7], |pid| pid == 7), [7]);
    }
}
