//! What there is to tell of the symbolizer process.

use std::collections::VecDeque;

/// Lines for a person that are kept until somebody takes them.
const MOST_NOTES: usize = 16;

/// What there is to tell of the process.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProcessStatus {
    /// Times that one was started.
    pub(crate) started: u64,
    /// Times that a file has ended it, or kept it for too long.
    pub(crate) broken: u64,
    /// Why objects are read in this process.
    pub(crate) obstacle: Option<String>,
    /// Its id, while it runs.
    pub(crate) pid: Option<u32>,
    /// The last file that did so, with what came of it.
    pub(super) last: Option<String>,
    /// What is new, in lines for a person.
    pub(super) notes: VecDeque<String>,
}

impl ProcessStatus {
    pub(super) fn say(&mut self, line: String) {
        self.notes.push_back(line);
        if self.notes.len() > MOST_NOTES {
            self.notes.pop_front();
        }
    }

    /// What is not as it should be, in lines for a person.
    pub(crate) fn problems(&self) -> Vec<String> {
        let obstacle = self.obstacle.iter().map(|why| {
            format!("the service reads files itself, symbol tables only, since no symbolizer process can be started: {why}")
        });
        let last = self.last.iter().map(|last| match self.broken {
            1 => last.clone(),
            times => format!("{last}; files have ended the symbolizer process {times} times"),
        });
        obstacle.chain(last).collect()
    }
}
