//! How much of perf maps and journals is read at a time.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use crate::opener::Wait;

/// Of each journal that is read where it is named, and of each that is read on the thread that samples (bytes).
const LONGEST_JOURNAL: u64 = 1 << 30;
const MOST_OF_ENDED: u64 = 8 << 20;
/// The same of all perf maps that are read on that thread at a time.
const LISTS_OF_ENDED: u64 = 8 << 20;

/// What one call may read.
#[derive(Clone)]
pub(super) struct ReadLimits {
    /// Of each journal (bytes).
    pub(super) journal_bytes: u64,
    /// Of all perf maps, yet (bytes).
    list_bytes: u64,
    may_wait: bool,
    /// Whether something was left unread.
    is_exceeded: bool,
}

impl ReadLimits {
    /// For a thread that names what was cut.
    pub(super) fn of_naming() -> Self {
        Self { journal_bytes: LONGEST_JOURNAL, list_bytes: u64::MAX, may_wait: true, is_exceeded: false }
    }

    /// For the thread that samples. It does not wait until another thread has read a perf map.
    pub(super) fn of_sampling() -> Self {
        Self { journal_bytes: MOST_OF_ENDED, list_bytes: LISTS_OF_ENDED, may_wait: false, is_exceeded: false }
    }

    /// For a thread that names and has no time left: nothing is read.
    pub(super) fn of_known() -> Self {
        Self { journal_bytes: 0, list_bytes: 0, may_wait: false, is_exceeded: false }
    }

    /// How long a file system is waited for.
    pub(super) fn wait(&self) -> Wait {
        if self.may_wait { Wait::Naming } else { Wait::Sampling }
    }

    /// Whether so many bytes of a perf map may be read.
    pub(super) fn take(&mut self, bytes: u64) -> bool {
        let left = self.list_bytes.checked_sub(bytes);
        self.list_bytes = left.unwrap_or(self.list_bytes);
        self.is_exceeded |= left.is_none();
        left.is_some()
    }

    /// What is locked while it is read.
    pub(super) fn lock<'a, T>(&mut self, mutex: &'a Mutex<T>) -> Option<MutexGuard<'a, T>> {
        if self.may_wait {
            return Some(mutex.lock().unwrap_or_else(PoisonError::into_inner));
        }
        match mutex.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => {
                self.is_exceeded = true;
                None
            }
        }
    }

    /// Whether something was left unread since the last call.
    pub(super) fn take_exceeded(&mut self) -> bool {
        std::mem::take(&mut self.is_exceeded)
    }
}
