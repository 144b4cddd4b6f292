//! What is said of a sample beside its stack.

use profiler_core::profile::Outcome;

use super::message::PprofLabel;
use super::read::ReadError;
use super::sections::RawMessages;
use super::{COMM, OUTCOME, PID};

/// The labels of a sample that we know.
#[derive(Clone, Copy)]
pub(super) struct SampleLabels<'a> {
    pub(super) pid: u32,
    pub(super) comm: &'a str,
    pub(super) outcome: Outcome,
}

impl<'a> SampleLabels<'a> {
    pub(super) fn read(sections: &RawMessages<'a>, labels: &[PprofLabel]) -> Result<Self, ReadError> {
        let mut read = Self { pid: 0, comm: "", outcome: Outcome::Complete };
        for label in labels {
            match sections.text(label.key)? {
                PID => read.pid = u32::try_from(label.number).unwrap_or_default(),
                COMM => read.comm = sections.text(label.text)?,
                OUTCOME => read.outcome = outcome(sections.text(label.text)?),
                _ => {} // another tool's
            }
        }
        Ok(read)
    }
}

fn outcome(word: &str) -> Outcome {
    let known = Outcome::TRUNCATED.into_iter().find(|outcome| outcome.as_str() == word);
    known.unwrap_or(Outcome::Complete)
}
