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
/// They are reported after so long: on a machine that is overloaded, sound disks take longer than the thread that samples waits (ns).
const REPORTED_AFTER_NS: u64 = 5_000_000_000;

/// A file, as mappings tell it.
pub(super) type FileKey = (FileId, String);

/// What is found when a file system answers: nothing where it is no file that lasts.
type Answer = Option<FoundFile>;

#[derive(Default)]
pub(super) struct Unanswered {
    answers: FxHashMap<FileKey, Receiver<Answer>>,
    processes: FxHashSet<u32>,
    /// Mounts that may have to be reported, with the first path of each.
    suspects: FxHashMap<Mount, String>,
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

    /// Notes that a process has mapped such a file.
    pub(super) fn note(&mut self, pid: u32, path: &str, mount: &Mount) {
        if self.processes.len() >= MOST_PROCESSES {
            self.processes.clear();
        }
        self.processes.insert(pid);
        if self.suspects.len() + self.reported.len() < MOST_REPORTED && !self.reported.contains(mount) {
            self.suspects.entry(mount.clone()).or_insert_with(|| path.to_owned());
        }
    }

    /// The mounts that do not answer, each once, with a path; `stalled_ns` says for how long one has not (0 if it does).
    fn take_stalled(&mut self, stalled_ns: impl Fn(&Mount) -> u64) -> Vec<(Mount, String)> {
        let mut stalled = Vec::new();
        self.suspects.retain(|mount, path| {
            let ns = stalled_ns(mount);
            if ns >= REPORTED_AFTER_NS {
                stalled.push((mount.clone(), std::mem::take(path)));
            }
            (1..REPORTED_AFTER_NS).contains(&ns)
        });
        self.reported.extend(stalled.iter().map(|(mount, _)| mount.clone()));
        stalled
    }
}

impl ObjectStore {
    /// Processes to read again, since a file system has answered that did not.
    pub(crate) fn take_answered(&mut self) -> Vec<u32> {
        let opener = self.files.opener();
        for (mount, path) in self.unanswered.take_stalled(|mount| opener.stalled_ns(mount)) {
            tracing::warn!(
                "{path} has no names for now: its file system ({mount}) does not answer; mount it again or unmount it"
            );
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_reported_once_and_only_if_it_does_not_answer_for_long() {
        let mut unanswered = Unanswered::default();
        let mount = |minor| Mount::Device { major: 8, minor };
        let stalled = |unanswered: &mut Unanswered, ns: [u64; 2]| -> Vec<String> {
            let of = |mount: &Mount| ns[usize::from(*mount == Mount::Device { major: 8, minor: 1 })];
            unanswered.take_stalled(of).into_iter().map(|(_, path)| path).collect()
        };
        unanswered.note(1, "/a", &mount(0));
        unanswered.note(2, "/b", &mount(1));
        unanswered.note(2, "/c", &mount(1));
        assert!(stalled(&mut unanswered, [60_000_000, 60_000_000]).is_empty(), "a disk that is busy");
        assert_eq!(stalled(&mut unanswered, [0, REPORTED_AFTER_NS]), ["/b"]);
        unanswered.note(2, "/c", &mount(1));
        assert!(
            stalled(&mut unanswered, [2 * REPORTED_AFTER_NS; 2]).is_empty(),
            "the one answered, the other was reported"
        );
        unanswered.note(1, "/a", &mount(0));
        assert_eq!(stalled(&mut unanswered, [REPORTED_AFTER_NS, 0]), ["/a"]);
    }
}
