//! What was measured since the last step.

/// Counts of one step of the daemon (25 ms at the start of a run, 100 ms later). All are increments since the reading before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// When it was taken: ns on the monotonic clock.
    pub at_ns: u64,
    /// CPU time that the scheduler charged to the target (ns).
    pub target_cpu_ns: u64,
    /// CPU time of the profiler itself (ns).
    pub self_cpu_ns: u64,
    /// The part of `self_cpu_ns` for one-time work, like reading an object's unwind tables (ns): it is overhead, but
    /// says nothing about the next sample.
    pub self_once_ns: u64,
    /// Samples of the target that arrived.
    pub samples: u64,
    /// Samples that interrupted something else (attach mode `cpu`).
    pub foreign_samples: u64,
    /// Frames that the kernel walked for the target's samples (not for foreign ones): its own, and by frame pointers
    /// the program's.
    pub frames: u64,
    /// Bytes of stack that the kernel copied for the target's samples (not for foreign ones).
    pub stack_bytes: u64,
    /// Interrupts that brought no sample: the kernel dropped it, another clock had sampled the same time, or they switched
    /// tracepoints on and off.
    pub lost: u64,
    /// Interrupts in code that may not be sampled: nothing was walked or copied for them.
    pub unseen: u64,
    /// Context switches of the target, where they cost something (attach mode `task`), else 0.
    pub switches: u64,
    /// Other records of the target: mappings and names; for whole CPUs forks and exits too.
    pub side_records: u64,
    /// Such records of non-target processes (attach mode `cpu`).
    pub foreign_side_records: u64,
    /// Tasks that the target created and that inherited its events (attach mode `task`), else 0.
    pub forks: u64,
    /// Records of the tracepoints that time the kernel's handler.
    pub trace_records: u64,
}
