//! The settings, their units and their defaults.
//!
//! [`SamplingSettings::default`] is the one place where defaults are written; the command line and its help
//! read them from there. Every quantity is a type that knows its unit, parses what a person writes (`1%`,
//! `60s`, `250us`, `99Hz`) and prints it so that it parses again. [`DaemonSettings::parse`] reads the bytes of the
//! daemon's file and says all that is wrong with it. This crate opens no file and reads no flag.
//!
//! ```
//! use config::{Ratio, SamplingSettings};
//!
//! let settings = SamplingSettings { budget: "2%".parse()?, ..SamplingSettings::default() };
//! settings.validate()?;
//! assert_eq!(settings.budget, Ratio::new(0.02)?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod backend;
mod choices;
mod daemon;
mod problem;
mod sampling;
mod section;
mod setting;
mod units;
mod words;

pub use backend::Backend;
pub use choices::{AttachMode, ChoiceError, Each, ExportFormat, RelabelAction, Threads, Unwind};
pub use daemon::{
    BudgetSettings, ContainerSettings, DaemonSettings, ExportSettings, FleetSettings, HowToSample,
    LimitSettings, ListenSettings, RelabelRegex, RelabelRules, RelabelSettings, StoreSettings,
    SymbolSettings, TargetSettings,
};
pub use problem::SettingsProblem;
pub use sampling::{
    DEFAULT_OWN_CPU, InvalidSetting, MAX_BUDGET, MAX_OWN_CPU, MAX_PRECISION, MAX_RATE_HZ, MIN_PRECISION,
    MIN_RATE_HZ, MIN_SYMBOL_MEMORY, SamplingSettings,
};
pub use units::{Bytes, Hertz, Ratio, Span, UnitError};
pub use words::{Mode, Pattern, Patterns, WordError};
