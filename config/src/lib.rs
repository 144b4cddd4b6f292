//! The settings, their units and their defaults.
//!
//! [`SamplingSettings::default`] is the one place where defaults are written; the command line and its help
//! read them from there. Every quantity is a type that knows its unit, parses what a person writes (`1%`,
//! `60s`, `250us`, `99Hz`) and prints it so that it parses again. This crate reads no file and no flag.
//!
//! ```
//! use config::{Ratio, SamplingSettings};
//!
//! let settings = SamplingSettings { budget: "2%".parse()?, ..SamplingSettings::default() };
//! settings.validate()?;
//! assert_eq!(settings.budget, Ratio::new(0.02)?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod choices;
mod sampling;
mod units;

pub use choices::{AttachMode, Backend, ChoiceError, Criterion, Source, Unwind};
pub use sampling::{
    InvalidSetting, MAX_BUDGET, MAX_PRECISION, MAX_RATE_HZ, MIN_PRECISION, MIN_RATE_HZ, MIN_SYMBOL_MEMORY,
    SamplingSettings,
};
pub use units::{Bytes, Hertz, Ratio, Span, UnitError};
