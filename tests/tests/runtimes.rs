//! Programs whose code a run-time compiler makes: Node, Python and Java, where they are installed.

#![allow(clippy::print_stderr, reason = "a test that skips says why, and one that runs what it found")]

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use tests::folded::Folded;
use tests::guards::is_root;
use tests::programs::{find_in_path, workspace_folder};
use tests::run::{Sweetspot, run};
use tests::runtimes::{perf_python, remove_perf_maps};
use tests::stats::Stats;

/// So much of the frames, by weight, has a name.
const NAMED: f64 = 0.98;

/// So much of the stacks are whole.
const COMPLETE: f64 = 0.9;

/// Each function that a program names takes more than this share of it.
const LEAST_SHARE: f64 = 0.01;

/// What makes Node's code visible: its compiler would take small functions into those that call them, which leaves no name.
const NODE_FLAGS: [&str; 2] = ["--interpreted-frames-native-stack", "--no-turbo-inlining"];

/// What was found of one run.
struct Found {
    folded: Folded,
    stats: Stats,
}

/// Profiles a command in a folder of its own, and says what it found.
fn record(words: &[&str]) -> Result<Found> {
    let sweetspot = Sweetspot::new().options(&["--rate", "1000"]);
    let mut all = sweetspot.outputs();
    all.push("--".to_string());
    all.extend(words.iter().map(ToString::to_string));
    run(sweetspot.command("record", &all).current_dir(sweetspot.path()))?.expect_status(0)?;
    let folded = Folded::parse(&fs::read_to_string(sweetspot.file("profile.folded"))?)?;
    let stats = Stats::parse(&fs::read_to_string(sweetspot.file("stats.jsonl"))?)?;
    let summary = &stats.summary;
    let complete = 1.0 - summary.truncated as f64 / summary.samples as f64;
    eprintln!(
        "{}: {} samples, {:.2}% of the frames named, {:.2}% of the stacks complete, by {}; not named:\n{}",
        words.join(" "),
        summary.samples,
        100.0 * folded.named_ratio(),
        100.0 * complete,
        summary.unwind,
        folded.nameless()
    );
    Ok(Found { folded, stats })
}

impl Found {
    fn check(&self, functions: &[&str]) -> Result<()> {
        let named = self.folded.named_ratio();
        ensure!(named >= NAMED, "only {named} of the frames have a name:\n{}", self.folded.nameless());
        for function in functions {
            let holds = |frame: &String| frame.contains(function);
            let share = self.folded.weight_of(|stack| stack.frames.iter().any(holds));
            ensure!(share > LEAST_SHARE, "{function} has a share of only {share}");
        }
        let summary = &self.stats.summary;
        let truncated = summary.truncated as f64 / summary.samples as f64;
        ensure!(truncated <= 1.0 - COMPLETE, "{truncated} of the stacks lack outer frames");
        Ok(())
    }
}

fn source(name: &str) -> String {
    workspace_folder().join("tests/programs").join(name).to_string_lossy().into_owned()
}

#[test]
fn node_with_a_perf_map() -> Result<()> {
    let (true, Some(node)) = (is_root(), find_in_path("node")) else {
        eprintln!("skipped: needs root, and `node` (apt-get install nodejs)");
        return Ok(());
    };
    let found = record_node(&node, "--perf-basic-prof")?;
    remove_perf_maps();
    found.check(&["fibonacci", "plus", "words"])
}

#[test]
fn node_with_a_jitdump() -> Result<()> {
    let (true, Some(node)) = (is_root(), find_in_path("node")) else {
        eprintln!("skipped: needs root, and `node` (apt-get install nodejs)");
        return Ok(());
    };
    record_node(&node, "--perf-prof")?.check(&["fibonacci", "plus", "words"])
}

/// Profiles the program in JavaScript; the flag `describe` makes Node describe the code that it compiles.
fn record_node(node: &Path, describe: &str) -> Result<Found> {
    let (node, source) = (node.to_string_lossy(), source("work.js"));
    let words = [&[&*node, describe], &NODE_FLAGS[..], &[&source, "3"]].concat();
    record(&words)
}

#[test]
fn python_with_a_perf_map() -> Result<()> {
    let (true, Some(python)) = (is_root(), perf_python()) else {
        eprintln!("skipped: needs root, and a Python of 3.12 or later that was built with its perf support");
        return Ok(());
    };
    let found = record(&[&python.to_string_lossy(), "-X", "perf", &source("work.py"), "3"])?;
    remove_perf_maps();
    found.check(&["py::fibonacci", "py::Vector.plus", "py::words"])
}

#[test]
fn java_with_a_perf_map() -> Result<()> {
    let (true, Some(java), Some(javac)) = (is_root(), find_in_path("java"), find_in_path("javac")) else {
        eprintln!("skipped: needs root, and `java` and `javac` (apt-get install openjdk-17-jdk-headless)");
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let classes = folder.path().to_string_lossy().into_owned();
    let compiled = Command::new(&javac).args(["-d", &classes, &source("Work.java")]).output()?;
    ensure!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let flags = ["-XX:+UnlockDiagnosticVMOptions", "-XX:+DumpPerfMapAtExit", "-XX:+PreserveFramePointer"];
    let java = java.to_string_lossy();
    let words = [&[&*java][..], &flags, &["-cp", &classes, "Work", "4"]].concat();
    let found = record(&words)?;
    remove_perf_maps();
    found.check(&["Work.fibonacci"])
}
