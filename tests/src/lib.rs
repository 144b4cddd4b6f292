//! What the tests and experiments share: programs of known truth, the profiler run from its command line,
//! what came of it, and a simulated host for the control loop.

pub mod aliasing;
pub mod attempts;
pub mod bouts;
pub mod brood;
pub mod cases;
pub mod checks;
pub mod coverage;
pub mod daemon;
pub mod experiment;
pub mod figures;
pub mod first_seconds;
pub mod folded;
pub mod groups;
pub mod guards;
pub mod host;
pub mod injections;
pub mod measured;
pub mod paper;
pub mod peers;
pub mod portfolio;
pub mod programs;
pub mod replay;
pub mod run;
pub mod runtimes;
pub mod sim;
pub mod slope;
pub mod soak;
pub mod stats;
pub mod steps;
pub mod suites;
pub mod symbols;
pub mod ticked;
pub mod truth;
pub mod twins;
pub mod verdict;
