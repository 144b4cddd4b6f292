//! A simulated host: a clock, a program of known shares and known cost, sampled by the real controller.
//!
//! A [`Scenario`] is a script and the bands its run has to stay within; [`run()`] plays it for one seed and
//! returns what the bands are held against. The host charges the *true* cost of each sample; the controller
//! sees readings and believes a calibration that is off by what the scenario says.

mod host;
mod program;
mod run;
mod scenario;

pub use run::{Outcome, run};
pub use scenario::{Bands, Phase, Scenario};
