//! The decisions of the profiler, and nothing else.
//!
//! This crate turns the kernel's records into stacks, stacks into a profile, and readings of what sampling
//! costs into the next sampling period. It opens no file, reads no clock, starts no thread and holds no
//! `unsafe`: bytes, readings and times come in as arguments, decisions come out. So a day of control runs in
//! milliseconds under a simulated host, and every parser can be fuzzed.

pub mod aggregate;
pub mod attach;
pub mod elf;
pub mod handler_trace;
pub mod machine;
pub mod merge;
mod outcome;
pub mod process;
pub mod profile;
pub mod rate;
pub mod record;
pub mod reports;
pub mod resources;
pub mod sorter;
pub mod stack;
pub mod stats;
pub mod unwind;
