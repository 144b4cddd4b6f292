//! The system calls. This is the only place that may use `unsafe`, and each use says why it is sound.

#![allow(unsafe_code, reason = "system calls and memory shared with the kernel")]

pub(crate) mod affinity;
pub(crate) mod agent_memory;
pub(crate) mod alarm;
pub(crate) mod clock;
pub(crate) mod confine;
pub(crate) mod family;
pub(crate) mod file;
pub(crate) mod frames;
pub(crate) mod limits;
pub(crate) mod maps;
pub(crate) mod memory;
pub(crate) mod passing;
pub(crate) mod peer;
pub(crate) mod perf_event;
pub(crate) mod priority;
pub(crate) mod proc_text;
pub(crate) mod procfs;
#[cfg(target_arch = "x86_64")]
pub(crate) mod ptrace;
pub(crate) mod ring;
pub(crate) mod root;
pub(crate) mod self_copy;
pub(crate) mod signal;
pub(crate) mod signal_cost;
pub(crate) mod spawn;
pub(crate) mod terminal;
pub(crate) mod timer;
pub(crate) mod tracefs;
