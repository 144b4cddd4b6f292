//! pprof's format: the one file that holds everything a run knows.
//!
//! Names, stacks and weights are where any reader of pprof expects them, and the first mapping is the program that used the most
//! CPU time, which pprof's tools call the `File`. What the format has no place for (windows of time, the run, the history of the
//! rate) is in comments that those tools do not show, in a text that nothing else refers to and in a field that other readers
//! pass over, so that [`read()`] gives back what [`write()`] was given.

mod comments;
mod labels;
mod locations;
mod main_program;
mod message;
mod read;
mod sections;
mod strings;
mod units;
mod windows;
mod wire;
mod write;

pub use read::{MAX_BYTES, ReadError, read, read_cpu_time};
pub use write::{encode, write};

#[cfg(test)]
mod tests;

/// Number of the field that holds the windows of time: far from any that pprof may give out.
const WINDOWS_FIELD: u64 = 5_117;
/// Where a mapping ends of which nobody knows the end, as that of the kernel: pprof adds up what is mapped equally long, so it must not
/// depend on what was sampled.
const EVERYTHING: u64 = !0xfff;
/// Label of a sample: the process id.
const PID: &str = "pid";
/// Label of a sample: the command name.
const COMM: &str = "comm";
/// Label of a sample: how its unwinding ended, where it is not complete.
const OUTCOME: &str = "outcome";
