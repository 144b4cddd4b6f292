//! pprof's format: the one file that holds everything a run knows.
//!
//! Names, stacks and weights are where any reader of pprof expects them. What the format has no place for
//! (windows of time, the run, the history of the rate) is in its comments and in texts that nothing else
//! refers to, so that [`read()`] gives back what [`write()`] was given.

mod comments;
mod message;
mod read;
mod sections;
mod strings;
mod units;
mod wire;
mod write;

pub(crate) use read::{ReadError, read};
pub(crate) use write::{encode, write};

#[cfg(test)]
mod tests;

/// Label of a sample: the process id.
const PID: &str = "pid";
/// Label of a sample: the command name.
const COMM: &str = "comm";
/// Label of a sample: how its unwinding ended, where it is not complete.
const OUTCOME: &str = "outcome";
