//! Sweetspot: a sampling profiler that chooses its own rate.

fn main() {}
