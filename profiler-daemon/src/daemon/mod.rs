//! The service: a host's flight recorder.

pub(crate) mod ask;
pub(crate) mod state;
