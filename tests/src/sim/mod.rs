//! A simulated host: a clock, a program of known shares and known cost, sampled by the real controller.
//!
//! A [`Scenario`] is a script and the bands its run must stay within; [`run()`] plays it for one seed and
//! returns the figures that are compared with the bands. The host charges the *true* cost of each sample; the controller
//! sees readings and uses a calibration that is off by what the scenario says. [`profile()`] plays a scenario and returns
//! its profile: windows of weights and samples beside the truth. [`Scenario::of`] makes one in code.
//!
//! A [`Day`] is the same for a big machine and a long time, with counts in place of single threads; [`run_day`]
//! plays it. A [`Fleet`] is several targets with a budget of the host between them; [`run_fleet`] plays it. A [`Service`] is one
//! program on many hosts; [`run_service`] plays it.

mod crowd;
mod day;
mod fleet;
mod host;
mod profile;
mod program;
mod replicas;
mod run;
mod scenario;

pub use day::{Day, DayOutcome, OwnCosts, run_day};
pub use fleet::{Fleet, FleetOutcome, Member, run_fleet};
pub use profile::{Functions, Profile, profile};
pub use replicas::{Service, ServiceOutcome, run_service};
pub use run::{Outcome, prediction, run};
pub use scenario::{Bands, Phase, Scenario};
