//! Which imports are allowed: between the crates of the workspace, and between the rooms of the program, from the bottom up. Nothing
//! points up, so there are no circles.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const WORKSPACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The crates of ours that each crate depends on, tests and experiments left out.
const CRATES: [(&str, &[&str]); 7] = [
    ("agent", &["agent-memory"]),
    ("agent-memory", &[]),
    ("config", &["profiler-core"]),
    ("profile-files", &["config", "profiler-core"]),
    ("profiler-core", &[]),
    ("profiler-daemon", &["agent-memory", "config", "profile-files", "profiler-core", "symbolizer"]),
    ("symbolizer", &[]),
];

/// The rooms of `profiler-daemon`, the lowest first. A room imports those before it.
const ROOMS: [&str; 36] = [
    "sys",
    "opener",
    "plot",
    "failure",
    "cgroup",
    "terminal",
    "standstill",
    "containers",
    "debuginfod",
    "discovery",
    "roots",
    "symbol_process",
    "objects",
    "jit",
    "inject",
    "sampler",
    "explain",
    "output",
    "calibrate",
    "targets",
    "run",
    "plan",
    "evaluate",
    "report",
    "compare",
    "push",
    "fleet",
    "doctor",
    "service",
    "api",
    "daemon",
    "check_config",
    "ctl",
    "cli",
    "settings",
    "docs",
];

#[test]
fn crates_depend_on_those_below_them() {
    let manifest = |folder: &str| -> toml::Table {
        fs::read_to_string(Path::new(WORKSPACE).join(folder).join("Cargo.toml")).unwrap().parse().unwrap()
    };
    let members = manifest("")["workspace"]["members"].clone();
    let members: BTreeSet<&str> =
        members.as_array().unwrap().iter().filter_map(|name| name.as_str()).collect();
    let ours: BTreeSet<&str> = CRATES.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        members,
        ours.iter().copied().chain(["tests", "tests/experiments"]).collect(),
        "CRATES lists every crate"
    );
    for (name, expected) in CRATES {
        let manifest = manifest(name);
        let dependencies = manifest.get("dependencies").and_then(toml::Value::as_table);
        let names = dependencies.into_iter().flat_map(toml::Table::keys);
        let mut found: Vec<&str> = names.map(String::as_str).filter(|name| ours.contains(name)).collect();
        found.sort_unstable();
        assert_eq!(found, expected, "what {name} depends on");
    }
}

#[test]
fn rooms_import_those_below_them() {
    let source = Path::new(WORKSPACE).join("profiler-daemon/src");
    let mut rooms = BTreeSet::new();
    let mut upward: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for path in files(&source) {
        let place = place(path.strip_prefix(&source).unwrap());
        let room = place[0].clone();
        if room == "main" || place.iter().any(|name| is_test(name)) {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        for other in imports(&without_tests(&text), place.len()) {
            let height = |name: &str| ROOMS.iter().position(|room| *room == name);
            if let (Some(own), Some(others)) = (height(&room), height(&other))
                && others > own
            {
                upward.entry((room.clone(), other)).or_default().push(path.display().to_string());
            }
        }
        rooms.insert(room);
    }
    assert_eq!(rooms, ROOMS.into_iter().map(str::to_owned).collect(), "ROOMS lists every room");
    assert_eq!(upward, BTreeMap::new(), "a room imports only rooms below it");
}

#[test]
fn imports_are_found_as_they_are_written() {
    let text = "\
//! crate::comment
use crate::sys::{clock, root};
use crate::{failure::usage, plot as drawn, run::{self, names}};
use super::super::store;
use super::sibling;
fn f() -> crate::terminal::Terminal { crate::cli::x() } // crate::other
#[cfg(test)]
mod tests {
    use crate::daemon;
}
";
    let found = imports(&without_tests(text), 2);
    assert_eq!(found, ["sys", "failure", "plot", "run", "terminal", "cli", "store"]);
    assert_eq!(imports("use super::run;", 1), ["run"]);
    assert_eq!(place(Path::new("api/listen/mod.rs")), ["api", "listen"]);
    assert_eq!(place(Path::new("report.rs")), ["report"]);
}

/// All source files under a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
    found
}

/// The modules that lead to a file.
fn place(path: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        path.with_extension("").iter().map(|name| name.to_string_lossy().into_owned()).collect();
    if names.last().is_some_and(|name| name == "mod") {
        names.pop();
    }
    names
}

fn is_test(module: &str) -> bool {
    module == "tests" || module == "testing" || module.ends_with("_tests")
}

/// The text without comments and without modules of tests.
fn without_tests(text: &str) -> String {
    let mut kept = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line != "#[cfg(test)]" {
            kept.push_str(line.split("//").next().unwrap_or_default());
            kept.push('\n');
        } else if lines.next().is_some_and(|line| line.ends_with('{')) {
            lines.by_ref().find(|line| *line == "}");
        }
    }
    kept
}

/// The rooms that are named in the text of a file that lies `depth` modules deep.
fn imports(text: &str, depth: usize) -> Vec<String> {
    let mut found: Vec<String> = text.split("crate::").skip(1).flat_map(first_names).collect();
    let root = "super::".repeat(depth);
    let from_root = text.match_indices(&root).filter(|(at, _)| !text[..*at].ends_with("super::"));
    let names = from_root.flat_map(|(at, _)| first_names(&text[at + root.len()..]));
    found.extend(names);
    found
}

/// The first name of a path, or of each in braces.
fn first_names(path: &str) -> Vec<String> {
    let name = |text: &str| -> String {
        text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let Some(group) = path.strip_prefix('{') else { return vec![name(path)] };
    let (mut depth, mut start, mut names) = (0, 0, Vec::new());
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            ',' if depth == 0 => {
                names.push(name(&group[start..at]));
                start = at + 1;
            }
            '}' if depth == 0 => {
                names.push(name(&group[start..at]));
                break;
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    names
}
