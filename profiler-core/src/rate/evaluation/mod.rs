//! How wrong a profile will be, in closed form.
//!
//! The figure is the time-cMAPE (Stoker, eq. 5.1): the absolute errors of the largest functions' CPU seconds,
//! relative to the true ones, summed up. Shares alone would not show what sampling costs, since it dilates all
//! functions alike.
//!
//! ```
//! use profiler_core::rate::evaluation::Workload;
//!
//! let program = Workload::new(&[0.4, 0.3, 0.2, 0.1], 60.0).unwrap();
//! let best = program.best(12.6e-6).unwrap();
//! assert!(best.time_cmape < program.time_cmape(99.0, 12.6e-6));
//! assert!(best.time_cmape < program.time_cmape(9_999.0, 12.6e-6));
//! ```

mod workload;

pub use workload::{Best, TOP, Workload};

#[cfg(test)]
mod tests;
