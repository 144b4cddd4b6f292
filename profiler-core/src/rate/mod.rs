//! How often to sample: what a sample costs, the law that follows from it, and the loop that keeps to it.
//!
//! ```
//! use profiler_core::rate::{CostModel, RateController, RateSettings, Reading, TopShares};
//!
//! let mut controller = RateController::new(RateSettings::default(), CostModel::default());
//! let first = controller.start(0); // open the events with first.period_ns
//! let reading = Reading {
//!     at_ns: 100_000_000,
//!     target_cpu_ns: 90_000_000,
//!     samples: 20,
//!     frames: 400,
//!     ..Reading::default()
//! };
//! let decision = controller.tick(&reading, &TopShares { counts: vec![(0x401000, 12), (0x402000, 8)] });
//! assert_eq!(decision.rate_hz, first.rate_hz); // too early for another rate
//! ```

mod account;
mod bucket;
pub mod calibration;
mod clocks;
mod controller;
mod cost;
mod decision;
mod dither;
pub mod evaluation;
mod meter;
pub mod model;
mod own_cost;
mod present;
mod reading;
mod settings;
mod shares;
mod strangers;
mod timeline;

pub use account::Account;
pub use bucket::TokenBucket;
pub use clocks::{ClockBook, Hit, Slot};
pub use controller::RateController;
pub use cost::{Cost, CostModel};
pub use decision::{Decision, Reason};
pub use dither::Dither;
pub use meter::{OverheadMeter, SampleCost, Spend};
pub use model::{BoundBy, Criterion, Experiment, Law, ModelError, Plan};
pub use reading::Reading;
pub use settings::RateSettings;
pub use shares::TopShares;
pub use timeline::PeriodTimeline;
