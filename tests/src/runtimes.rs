//! Programs that compile code at run time, and the files that they leave.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use crate::programs::find_in_path;

/// A Python that can tell perf of its functions: 3.12 or later, built with that support.
pub fn perf_python() -> Option<PathBuf> {
    let home = env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let versions = fs::read_dir(home.join(".pyenv/versions")).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = versions.map(|version| version.path().join("bin/python3")).collect();
    found.sort();
    let tells = |python: &PathBuf| {
        let mut command = Command::new(python);
        command.args(["-X", "perf", "-c", "import sys; assert sys.is_stack_trampoline_active()"]);
        command.output().is_ok_and(|output| output.status.success())
    };
    find_in_path("python3").into_iter().chain(found).find(tells)
}

/// Removes the perf maps of programs that have ended: the next process with the same id would append to them.
pub fn remove_perf_maps() {
    let maps = fs::read_dir("/tmp").into_iter().flatten().flatten();
    let is_map =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("perf-"));
    for path in maps.map(|entry| entry.path()).filter(is_map) {
        let number =
            path.file_stem().and_then(|stem| stem.to_str()?.strip_prefix("perf-")?.parse::<u32>().ok());
        if number.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_file(path);
        }
    }
}
