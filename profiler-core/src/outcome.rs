//! How unwinding ends, and how often it ended so.

use serde::{Deserialize, Serialize};

/// How the unwinding of a stack ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The outermost frame was reached. Of what has no user stack it is the kernel's: of a thread of the kernel, and of a task that
    /// is exiting or in the midst of executing another program.
    Complete,
    /// The copy of the stack ended before the outermost frame.
    CopyTooShort,
    /// The stack goes on behind a page that was not in memory, which the kernel does not wait for: a buffer there that
    /// was never written to, or memory that was swapped out.
    StackAbsent,
    /// The kernel's limit on the length of a call chain was reached.
    ChainTooLong,
    /// A frame of code that has no unwind information, and no frame pointer that leads on.
    NoTables,
    /// The stack goes on elsewhere, where nothing was copied: the thread had changed to another one (a signal's, or
    /// that of `-fsplit-stack`).
    OtherStack,
    /// A task of 32 bits, whose stack is not followed.
    Narrow,
    /// More frames than are followed; a loop has as many.
    TooManyFrames,
    /// A frame whose caller could not be found: the stack contradicts the unwind information, or that is damaged.
    Broken,
    /// The sample came without user registers or stack, and without frames of the kernel, which may not be seen; or it is not known
    /// whether there was a user stack.
    NoUserStack,
    /// There were too many distinct stacks to keep another one: only the innermost frame was.
    NotKept,
}

impl Outcome {
    /// All that lack outer frames.
    pub const TRUNCATED: [Outcome; 10] = [
        Outcome::CopyTooShort,
        Outcome::StackAbsent,
        Outcome::ChainTooLong,
        Outcome::NoTables,
        Outcome::OtherStack,
        Outcome::Narrow,
        Outcome::TooManyFrames,
        Outcome::Broken,
        Outcome::NoUserStack,
        Outcome::NotKept,
    ];

    /// Whether the stack lacks outer frames.
    pub fn is_truncated(self) -> bool {
        self != Outcome::Complete
    }

    /// The word in files, as in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Complete => "complete",
            Outcome::CopyTooShort => "copy_too_short",
            Outcome::StackAbsent => "stack_absent",
            Outcome::ChainTooLong => "chain_too_long",
            Outcome::NoTables => "no_tables",
            Outcome::OtherStack => "other_stack",
            Outcome::Narrow => "narrow",
            Outcome::TooManyFrames => "too_many_frames",
            Outcome::Broken => "broken",
            Outcome::NoUserStack => "no_user_stack",
            Outcome::NotKept => "not_kept",
        }
    }

    /// What a person is told of it.
    pub fn in_words(self) -> &'static str {
        match self {
            Outcome::Complete => "complete",
            Outcome::CopyTooShort => "deeper than the copy",
            Outcome::StackAbsent => "with a page that was not in memory",
            Outcome::ChainTooLong => "longer than the kernel follows",
            Outcome::NoTables => "without unwind information",
            Outcome::OtherStack => "on two stacks",
            Outcome::Narrow => "of 32-bit tasks",
            Outcome::TooManyFrames => "of too many frames",
            Outcome::Broken => "that contradict their unwind information",
            Outcome::NoUserStack => "of which nothing was recorded",
            Outcome::NotKept => "that there was no room for",
        }
    }
}

/// Samples whose stack lacks outer frames, by the reason: a key for each [`Outcome`] but the complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the outcomes are documented")]
pub struct TruncatedBy {
    pub copy_too_short: u64,
    pub stack_absent: u64,
    pub chain_too_long: u64,
    pub no_tables: u64,
    pub other_stack: u64,
    pub narrow: u64,
    pub too_many_frames: u64,
    pub broken: u64,
    pub no_user_stack: u64,
    pub not_kept: u64,
}

impl TruncatedBy {
    /// Counts samples, unless their stacks are complete.
    pub fn add(&mut self, outcome: Outcome, samples: u64) {
        let count = match outcome {
            Outcome::Complete => return,
            Outcome::CopyTooShort => &mut self.copy_too_short,
            Outcome::StackAbsent => &mut self.stack_absent,
            Outcome::ChainTooLong => &mut self.chain_too_long,
            Outcome::NoTables => &mut self.no_tables,
            Outcome::OtherStack => &mut self.other_stack,
            Outcome::Narrow => &mut self.narrow,
            Outcome::TooManyFrames => &mut self.too_many_frames,
            Outcome::Broken => &mut self.broken,
            Outcome::NoUserStack => &mut self.no_user_stack,
            Outcome::NotKept => &mut self.not_kept,
        };
        *count = count.saturating_add(samples);
    }

    /// What was counted after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut since = Self::default();
        for outcome in Outcome::TRUNCATED {
            since.add(outcome, self.count(outcome).saturating_sub(earlier.count(outcome)));
        }
        since
    }

    /// Samples that ended so.
    pub fn count(&self, outcome: Outcome) -> u64 {
        match outcome {
            Outcome::Complete => 0,
            Outcome::CopyTooShort => self.copy_too_short,
            Outcome::StackAbsent => self.stack_absent,
            Outcome::ChainTooLong => self.chain_too_long,
            Outcome::NoTables => self.no_tables,
            Outcome::OtherStack => self.other_stack,
            Outcome::Narrow => self.narrow,
            Outcome::TooManyFrames => self.too_many_frames,
            Outcome::Broken => self.broken,
            Outcome::NoUserStack => self.no_user_stack,
            Outcome::NotKept => self.not_kept,
        }
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        Outcome::TRUNCATED.iter().fold(0, |sum, &outcome| sum.saturating_add(self.count(outcome)))
    }

    /// The reasons that there were, the most frequent first: `120 deeper than the copy, 3 on two stacks`.
    pub fn in_words(&self) -> String {
        let mut found: Vec<_> = Outcome::TRUNCATED.into_iter().filter(|&one| self.count(one) > 0).collect();
        found.sort_by_key(|&one| std::cmp::Reverse(self.count(one)));
        let words = found.iter().map(|&one| format!("{} {}", self.count(one), one.in_words()));
        words.collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_counted_under_its_own_word() {
        for outcome in Outcome::TRUNCATED {
            let mut by = TruncatedBy::default();
            by.add(outcome, 3);
            by.add(Outcome::Complete, 5);
            assert_eq!((by.count(outcome), by.total()), (3, 3));
            let mut later = by;
            later.add(outcome, 2);
            assert_eq!(later.since(&by).count(outcome), 2);
            let json = serde_json::to_value(by).unwrap();
            assert_eq!(json[outcome.as_str()], 3);
            assert_eq!(serde_json::to_value(outcome).unwrap(), outcome.as_str());
            assert!(by.in_words().starts_with("3 "));
        }
        assert_eq!(TruncatedBy::default().in_words(), "");
    }
}
