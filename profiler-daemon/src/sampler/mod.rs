//! Where samples come from.

pub(crate) mod access;
pub(crate) mod handler_time;
pub(crate) mod handler_tracer;
pub(crate) mod interrupt_probe;
pub(crate) mod own_time;
pub(crate) mod perf;
mod reporters;
mod rereads;
mod rings;
pub(crate) mod session;
pub(crate) mod shared_reports;
pub(crate) mod source;
pub(crate) mod switches;
pub(crate) mod target_cpu;
pub(crate) mod timer_signal;
pub(crate) mod watch;
