//! Where samples come from.

pub(crate) mod access;
pub(crate) mod perf;
pub(crate) mod session;
pub(crate) mod target_cpu;
