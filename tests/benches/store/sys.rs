//! The one room of the system calls that the store needs.

#[allow(dead_code, unused_imports)]
#[path = "../../../profiler-daemon/src/sys/root.rs"]
pub(crate) mod root;
