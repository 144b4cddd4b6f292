//! The law: how many samples make the estimated CPU seconds per function least wrong.
//!
//! A sample costs the target `o` seconds, so `λ` samples a CPU-second dilate it by `λ·o`; fewer samples leave
//! more sampling error. [`Law`] balances the two for a [`Criterion`] over the largest functions of a profile;
//! [`Experiment`] is the closed form for one function and one run (Stoker, eq. 4.12, 4.13 and 4.16).
//!
//! ```
//! use profiler_core::rate::model::{Caps, Criterion, Law, spread};
//!
//! let spread = spread([0.4, 0.3, 0.2, 0.1], 4).unwrap();
//! let law = Law::new(Criterion::MeanAbsolute, spread, 12.6e-6, 60.0);
//! let caps = Caps { own_hz: f64::INFINITY, budget_hz: 600.0, kernel_hz: 50_000.0, bytes_hz: f64::INFINITY };
//! let optimum = law.optimum(&caps);
//! assert_eq!((optimum.rate_hz.round(), optimum.bound_by.as_str()), (554.0, "law"));
//! ```

mod caps;
mod criterion;
mod error;
mod experiment;
mod law;

pub use caps::{BoundBy, Caps};
pub use criterion::{Criterion, UnknownCriterion};
pub use error::ModelError;
pub use experiment::{Experiment, ExperimentPlan, TimeInterval};
pub use law::{Horizon, Law, Optimum, Threads, function_weight, optimum_rate_hz, relative_loss, spread};

#[cfg(test)]
mod tests;
