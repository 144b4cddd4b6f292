//! Profiles as files.

mod aside;
mod formats;
pub mod functions;
mod intervals;
pub mod names;
pub mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod unknown;
pub mod when;

pub use aside::Aside;
pub use formats::{Format, folded, pprof, stats, table};
