//! How sure a figure is.

pub mod characterise;
mod cholesky;
pub mod confidence;
pub mod estimators;
pub mod interval;
pub mod precision;
pub mod regression;
pub mod table;

pub use confidence::Confidence;
pub use interval::{Interval, share_interval, variance_inflation};
pub use precision::{Goal, Precision};
pub use table::{IntervalTable, Part, Row, Window};
