//! Where the hierarchy is, and where a process is in it.

use std::fs;
use std::path::PathBuf;

use super::text::{mounted, path_in};

/// Where cgroup v2 is mounted, at its own place or beside the hierarchies of version 1.
pub(crate) fn hierarchy() -> Option<PathBuf> {
    // Any user may mount a file system at a path that is not UTF-8.
    mounted(&String::from_utf8_lossy(&fs::read("/proc/self/mountinfo").ok()?))
}

/// The path of a process in the hierarchy; `None` where it is gone, or outside of what we may see.
pub(super) fn path_of(pid: u32) -> Option<PathBuf> {
    path_in(&String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/cgroup")).ok()?))
}
