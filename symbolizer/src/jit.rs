//! Names of code that a program generates as it runs.
//!
//! No file holds such code; the compilers that generate it can write it down in one of two ways: a list of
//! names ([`PerfMap`], text, the present state) or a journal with times ([`JitDump`], binary).

mod code;
mod jitdump;
mod perf_map;

pub use self::jitdump::{CodePlace, JitDump};
pub use self::perf_map::PerfMap;
