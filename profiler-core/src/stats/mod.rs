//! How sure a figure is.
//!
//! | module | what it answers |
//! |---|---|
//! | [`characterise`] | what do operations cost here, and what will a program of these counts take? |
//! | [`compare`] | which functions changed between two profiles? |
//! | [`estimators`] | how long does a program run, from a few runs? |
//! | [`interval`] | within what bounds is a function's share? |
//! | [`mixture`] | which values does a figure gather around? |
//! | [`regression`] | what do operations cost now, as the target runs? |

pub mod characterise;
mod cholesky;
pub mod compare;
pub mod estimators;
pub mod interval;
pub mod mixture;
pub mod regression;

pub use interval::{Interval, share_interval, variance_inflation};
