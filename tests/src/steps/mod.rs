//! Steps of what the daemon samples, in load, depth, threads, targets and budgets, by the stopwatch: every target is one of
//! a pair of twins, and what it takes more than the other is what sampling costs it.
//!
//! [`scenarios`] says what happens, [`play`] does it with a daemon and twins, [`figures`] reads off what it cost, and
//! [`judge`] holds that against the budgets and the law.

pub mod figures;
pub mod judge;
pub mod law;
pub mod play;
pub mod scenarios;
