//! What this process may do, and why it cannot start to sample.

use std::io;

use profiler_core::record::RecordFormat;

use crate::cgroup::Cgroup;
use crate::sys::limits;
use crate::sys::perf_event::{ClockEvent, Event, EventReports, Scope};

/// What this process may do, and for how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// Events for whole CPUs.
    pub(crate) cpu_wide: bool,
    /// Samples inside the kernel, and its frames.
    pub(crate) kernel: bool,
    /// How many targets are sampled at once, and share the memory for their rings.
    pub(crate) targets: usize,
}

/// Why sampling cannot start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    /// No permission for any event.
    #[error("not permitted to open perf events")]
    NotPermitted(#[source] io::Error),
    /// None of the threads could be attached to.
    #[error("not permitted to profile this process")]
    TargetNotPermitted(#[source] io::Error),
    /// All threads ended before they could be attached to.
    #[error("the process ended before it could be attached to")]
    TargetGone,
    /// The memory for the rings was refused.
    #[error("the kernel refused memory for the ring buffers")]
    RingMemory(#[source] io::Error),
    /// More events than files may be open.
    #[error("{needed} events are needed, but only {limit} files may be open")]
    TooManyEvents {
        /// Threads times CPUs.
        needed: u64,
        /// `RLIMIT_NOFILE`.
        limit: u64,
    },
    /// Anything else.
    #[error("perf events do not work here")]
    Other(#[source] io::Error),
}

impl OpenError {
    /// The kernel's error.
    pub(crate) fn into_io(self) -> io::Error {
        match self {
            Self::NotPermitted(error)
            | Self::TargetNotPermitted(error)
            | Self::RingMemory(error)
            | Self::Other(error) => error,
            Self::TargetGone | Self::TooManyEvents { .. } => io::Error::other(self),
        }
    }
}

/// Finds out what this process may do, by trying on itself.
pub(crate) fn probe_access() -> Result<Access, OpenError> {
    let cpu = limits::online_cpus()[0];
    if Event::clock(Scope::Cpu(cpu), &trial(true)).is_ok() {
        return Ok(Access { cpu_wide: true, kernel: true, targets: 1 });
    }
    let own = Scope::Task { tid: std::process::id(), cpu };
    if Event::clock(own, &trial(true)).is_ok() {
        return Ok(Access { cpu_wide: false, kernel: true, targets: 1 });
    }
    match Event::clock(own, &trial(false)) {
        Ok(_) => Ok(Access { cpu_wide: false, kernel: false, targets: 1 }),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(OpenError::NotPermitted(error)),
        Err(error) => Err(OpenError::Other(error)),
    }
}

/// Whether an event for a control group can be opened.
pub(crate) fn probe_group(group: &Cgroup) -> io::Result<()> {
    let cpu = limits::online_cpus()[0];
    Event::clock(Scope::Cgroup { folder: group.folder(), cpu }, &trial(true)).map(drop)
}

fn trial(kernel: bool) -> ClockEvent {
    ClockEvent {
        period_ns: 1_000_000_000,
        format: RecordFormat::new(false),
        stack_bytes: 0,
        user_chain: false,
        kernel,
        reports: EventReports::Own,
    }
}
