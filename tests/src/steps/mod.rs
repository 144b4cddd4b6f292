//! Steps in load, depth, threads, targets and budgets, with the cost of sampling measured: every target is one of
//! a pair of twins, and its extra time over the other is the cost of sampling it.
//!
//! [`scenarios`] defines what happens, [`play`] carries it out with a daemon and twins, [`figures`] computes the costs, and
//! [`judge`] compares them with the budgets and the law.

pub mod figures;
pub mod judge;
pub mod law;
pub mod play;
pub mod scenarios;
