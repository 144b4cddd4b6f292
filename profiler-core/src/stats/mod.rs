//! How sure a figure is.

pub mod characterise;
mod cholesky;
pub mod estimators;
pub mod interval;
pub mod regression;

pub use interval::{Interval, share_interval, variance_inflation};
