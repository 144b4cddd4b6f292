//! What the tests share: programs of known truth, and a simulated host.

pub mod sim;
