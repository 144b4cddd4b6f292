//! How sure a figure is.

pub mod interval;

pub use interval::{Interval, share_interval, variance_inflation};
