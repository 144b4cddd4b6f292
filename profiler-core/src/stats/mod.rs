//! How sure a figure is.
//!
//! | question | answer |
//! |---|---|
//! | How sure is each function of a profile, of this run and in the long run? | [`IntervalTable`] |
//! | Is the profile precise enough, and how long would it take? | [`Goal::judge`] |
//! | What is a level of confidence, split over many statements? | [`Confidence`] |
//! | Which shares do `x` of `n` samples not contradict? | [`proportion::wilson`], [`proportion::clopper_pearson`] |
//! | … at every look, however often one looks? | [`sequence::beta_binomial`] |
//! | Is foo above bar? | [`order::is_resolved`], watched: [`order::is_resolved_while_watched`] |
//! | How sure is a mean? | [`mean::Mean`] |
//! | How many samples are needed? | [`sample_size`] |
//! | How much less do samples in bouts know? | [`batch`] |
//! | What did the target do in this very run? | [`successive_difference`] |
//! | Has a share changed? | [`Cusum`] |
//! | Which functions changed between two profiles? | [`mod@compare`] |
//! | What do operations cost here, and what will a program of these counts take? | [`characterise`] |
//! | What do operations cost now, as the target runs? | [`regression`] |
//! | Which values does a figure gather around? | [`mixture`] |
//! | How long does a program run, from a few runs? | [`estimators`] |
//! | What does sampling add to a program, on a noisy machine? | [`twins`] |

pub mod batch;
pub mod characterise;
mod cholesky;
pub mod compare;
pub mod confidence;
pub mod cusum;
pub mod estimators;
pub mod interval;
pub mod mean;
pub mod mixture;
pub mod order;
pub mod precision;
pub mod proportion;
mod quantile;
pub mod regression;
pub mod sample_size;
pub mod sequence;
pub mod successive_difference;
pub mod table;
pub mod twins;
mod weighted_sum;

pub use batch::window_ns;
pub use confidence::Confidence;
pub use cusum::Cusum;
pub use interval::Interval;
pub use precision::{Goal, Precision};
pub use table::{IntervalTable, Part, Row, WindowSums};
pub use weighted_sum::WeightedSum;
