//! What the service and its interface say to each other: commands and their answers, and the status that is published.

pub(crate) mod command;
pub(crate) mod recent;
pub(crate) mod state;
pub(crate) mod status_snapshot;
