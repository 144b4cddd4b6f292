//! The service: a host's flight recorder.

pub(crate) mod ask;
pub(crate) mod log;
pub(crate) mod notify;
pub(crate) mod state;
