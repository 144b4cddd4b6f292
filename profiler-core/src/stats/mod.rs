//! How sure a figure is.

pub mod estimators;
pub mod interval;

pub use interval::{Interval, share_interval, variance_inflation};
