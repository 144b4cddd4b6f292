//! How often to sample: what a sample costs, the law that follows from it, and the loop that keeps to it.

pub mod model;
mod reading;

pub use reading::Reading;
