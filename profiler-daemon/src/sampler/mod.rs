//! Where samples come from.

pub(crate) mod access;
pub(crate) mod handler_time;
pub(crate) mod handler_tracer;
#[cfg_attr(not(test), expect(dead_code, reason = "a run of its own has the whole process"))]
pub(crate) mod own_time;
pub(crate) mod perf;
mod rereads;
mod rings;
pub(crate) mod session;
pub(crate) mod switches;
pub(crate) mod target_cpu;
pub(crate) mod watch;
