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
//! let decision = controller.step(&reading, &TopShares { counts: vec![(0x401000, 12), (0x402000, 8)], ..TopShares::default() });
//! assert!(decision.rate_hz > first.rate_hz); // two functions are larger than the one that is assumed at first
//! ```

mod account;
mod activity;
pub mod anytime;
mod at_tick;
mod bucket;
pub mod budget_division;
mod budget_grant;
mod bursts;
mod cache_sensitivity;
pub mod calibration;
mod clocks;
mod controller;
mod cost;
mod current_load;
mod decision;
mod dither;
mod fixed_overhead;
mod fleet;
mod function_shares;
mod host;
mod interrupts;
mod last_ten_seconds;
mod limit;
mod load;
mod meter;
pub mod model;
mod modes;
mod non_target;
mod own_cost;
mod prediction;
mod prices;
mod rate_target;
mod reading;
mod sample_cost;
mod sampler_choice;
mod set_up;
mod settings;
mod spending;
mod timeline;
mod unseen;
mod visits;
mod windows;

pub use account::Account;
pub use activity::{Activity, Figure};
pub use at_tick::AtTick;
pub use bucket::TokenBucket;
pub use bursts::BurstSchedule;
pub use cache_sensitivity::{CacheSensitivity, SampleKind};
pub use clocks::{ClockBook, ClockSlot, Hit};
pub use controller::RateController;
pub use cost::{Cost, CostModel};
pub use decision::{DecidedCost, Decision, LawInForce, LawTerms, RateCaps, RateReason, SoFar};
pub use dither::{Dither, usual_step_ns};
pub use fleet::{NotBelieved, Replicas, Usage};
pub use function_shares::{PRIOR_SHARE, TopShares};
pub use host::HostBudget;
pub use interrupts::interrupt_cost;
pub use meter::{OverheadMeter, Spend};
pub use model::{BoundBy, Criterion, Experiment, ExperimentPlan, Law, ModelError, UnknownCriterion};
pub use modes::CostMode;
pub use prediction::{Prediction, predict};
pub use prices::{FieldFigures, HandlerTime, handler_costs};
pub use reading::Reading;
pub(crate) use sample_cost::OWN_COST_FLOOR_CPUS;
pub use sample_cost::SampleCost;
pub use sampler_choice::Sharing;
pub use settings::RateSettings;
pub use timeline::PeriodTimeline;
pub use unseen::UnseenInterrupts;
pub use visits::{Neighbours, ThreadVisits, ratio_at_optimum, variance_ratio};
pub use windows::{WindowLength, first_window_ns, window_batch_pause_ns, windows_at_once};
