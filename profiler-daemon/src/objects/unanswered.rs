//! Files on file systems that have not answered yet.

use std::sync::mpsc::{Receiver, TryRecvError};

use profiler_core::record::FileId;
use rustc_hash::{FxHashMap, FxHashSet};

use super::ObjectStore;
use super::finder::FoundFile;
use crate::opener::Mount;

/// Answers that are waited for; others are asked for again.
const MOST_AWAITED: usize = 1_024;
/// Processes that are remembered for having mapped such files.
const MOST_PROCESSES: usize = 4_096;
/// Mounts that are reported.
const MOST_REPORTED: usize = 64;

/// A file, as mappings tell it.
pub(super) type FileKey = (FileId, String);

/// What is found when a file system answers: nothing where it is no file that lasts.
type Answer = Option<FoundFile>;

#[derive(Default)]
pub(super) struct Unanswered {
    answers: FxHashMap<FileKey, Receiver<Answer>>,
    processes: FxHashSet<u32>,
    reported: FxHashSet<Mount>,
    /// Late answers of the opener's when processes were last handed out.
    seen: u64,
}

impl Unanswered {
    /// What was found of a file: in answer to an earlier question, or to this one. None if there is no answer yet.
    pub(super) fn take(
        &mut self,
        key: &FileKey,
        ask: impl FnOnce() -> Result<Answer, Receiver<Answer>>,
    ) -> Option<Answer> {
        if let Some(earlier) = self.answers.remove(key) {
            match earlier.try_recv() {
                Ok(answer) => return Some(answer),
                Err(TryRecvError::Empty) => {
                    self.answers.insert(key.clone(), earlier);
                    return None;
                }
                Err(TryRecvError::Disconnected) => {} // it was refused
            }
        }
        match ask() {
            Ok(answer) => Some(answer),
            Err(later) => {
                if self.answers.len() >= MOST_AWAITED {
                    self.answers.clear();
                }
                self.answers.insert(key.clone(), later);
                None
            }
        }
    }

    /// Notes that a process has mapped such a file; the first of each mount is reported.
    pub(super) fn note(&mut self, pid: u32, path: &str, mount: &Mount) {
        if self.processes.len() >= MOST_PROCESSES {
            self.processes.clear();
        }
        self.processes.insert(pid);
        if self.reported.len() < MOST_REPORTED && self.reported.insert(mount.clone()) {
            tracing::warn!(
                "{path} has no names for now: its file system ({mount}) does not answer; mount it again or unmount it"
            );
        }
    }
}

impl ObjectStore {
    /// Processes to read again, since a file system has answered that did not.
    pub(crate) fn take_answered(&mut self) -> Vec<u32> {
        let answers = self.files.opener().late_answers();
        if std::mem::replace(&mut self.unanswered.seen, answers) == answers {
            return Vec::new();
        }
        self.unanswered.processes.drain().collect()
    }

    /// Own CPU time that was spent on other threads (ns).
    pub(crate) fn elsewhere_ns(&self) -> u64 {
        self.files.opener().cpu_ns()
    }

    /// What asks file systems that may not answer.
    pub(crate) fn opener(&self) -> &crate::opener::Opener {
        self.files.opener()
    }
}
