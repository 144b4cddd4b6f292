//! Processes that come and go, files that go with them, and little memory for all their names. Live; needs root.

#![allow(clippy::print_stderr, reason = "a test that skips says why")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::attempts::{attempts, attempts_of};
use tests::brood::{BRIEF, Brood, Profiled};
use tests::folded::{Folded, Stack};
use tests::guards::is_root;
use tests::programs::{copy_program, find_in_path, program};
use tests::run::{Sweetspot, run, start, sweetspot};

/// Leaves a test that needs root where this is not root.
macro_rules! needs_root {
    () => {
        if !is_root() {
            eprintln!("skipped: sampling whole CPUs needs root");
            return Ok(());
        }
    };
}

/// Descriptors that the profiler has beside those of the objects: events, rings, roots, outputs.
const OTHER_DESCRIPTORS: usize = 64;
const MOST_OPEN: usize = 64;

/// A recorded run of `brood` with programs of one's own choice.
struct Run {
    sweetspot: Sweetspot,
    summary: Value,
    folded: Folded,
}

impl Run {
    fn record(options: &[&str], count: u64, ms: &str, programs: &[PathBuf]) -> Result<Run> {
        // The usual limit: with a higher one more files are held.
        let sweetspot = Sweetspot::new().through(&["prlimit", "--nofile=1024:1024"]);
        let mut words: Vec<String> = options.iter().map(ToString::to_string).collect();
        words.extend(sweetspot.outputs());
        words.extend(["-o".to_owned(), sweetspot.file("p.pb.gz"), "--".to_owned()]);
        words.push(program("brood")?.to_string_lossy().into_owned());
        words.extend([count.to_string(), "2".to_owned(), ms.to_owned(), sweetspot.file("progress")]);
        words.extend(programs.iter().map(|path| path.to_string_lossy().into_owned()));
        run(&mut sweetspot.command("record", &words))?.expect_status(0)?;
        let stats = fs::read_to_string(sweetspot.file("stats.jsonl"))?;
        let summary = serde_json::from_str(stats.lines().last().context("no summary")?)?;
        let folded = Folded::parse(&fs::read_to_string(sweetspot.file("profile.folded"))?)?;
        Ok(Run { sweetspot, summary, folded })
    }

    fn count(&self, key: &str) -> Result<u64> {
        self.summary[key].as_u64().with_context(|| format!("{key} is no number: {}", self.summary[key]))
    }

    /// The reasons for which functions have no name.
    fn reasons(&self) -> Result<Vec<(String, String)>> {
        let words = ["report", &*self.sweetspot.file("p.pb.gz"), "--unknown", "--format", "json"];
        let ended = run(Command::new(sweetspot()).args(words))?.expect_status(0)?;
        let list: Value = serde_json::from_str(&ended.stdout)?;
        let functions = list["functions"].as_array().context("functions")?;
        let text = |function: &Value, key: &str| function[key].as_str().unwrap_or_default().to_owned();
        Ok(functions.iter().map(|function| (text(function, "module"), text(function, "reason"))).collect())
    }

    fn weight_of(&self, name: &str) -> f64 {
        self.folded.weight_of(|stack| stack.has(name))
    }
}

/// A copy of a program, with another byte behind its end, so that no other has the same length.
fn copy(of: &str, to: &Path, more: usize) -> Result<()> {
    let longer = to.with_extension("longer");
    let mut bytes = fs::read(program(of)?)?;
    bytes.resize(bytes.len() + more, 0);
    fs::write(&longer, bytes)?;
    copy_program(&longer, to)?;
    fs::remove_file(longer)?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

fn profile(brood: &Brood) -> Result<Profiled> {
    let found = brood.profile()?;
    ensure!(found.samples > brood.processes / 4, "only {} samples", found.samples);
    Ok(found)
}

#[test]
fn hundreds_of_short_lives_have_names_and_leave_nothing_behind() -> Result<()> {
    needs_root!();
    attempts(|| {
        let options = ["--rate", "1000"].map(str::to_owned).to_vec();
        let found = profile(&Brood { processes: 400, at_once: 2, ms: 5.0, options })?;
        let named = found.named_samples_ratio.min(found.named_weight_ratio);
        ensure!(named >= 0.99, "{named} of the samples have names: {:?}", found.reasons);
        let most = found.held.iter().map(|held| held.descriptors).max().context("no look")?;
        ensure!(most <= OTHER_DESCRIPTORS + MOST_OPEN, "{most} descriptors");
        let objects = found.summary["objects"].as_u64().context("objects")?;
        ensure!(
            (BRIEF.len() as u64 + 1..40).contains(&objects),
            "{objects} objects of a handful of programs"
        );
        ensure!(found.summary["files_lost"] == 0, "{}", found.summary["files_lost"]);
        Ok(())
    })
}

/// Each program is a file of its own, without a build that another has.
#[test]
fn more_programs_than_files_that_are_held() -> Result<()> {
    needs_root!();
    attempts(|| {
        let folder = tempfile::tempdir()?;
        let paths: Vec<PathBuf> = (0..100).map(|i| folder.path().join(format!("program{i}"))).collect();
        for (i, path) in paths.iter().enumerate() {
            copy(BRIEF[i % 4], path, i)?;
        }
        let run = Run::record(&["--rate", "1000", "--attach-mode", "cpu"], 200, "10", &paths)?;
        ensure!(run.count("objects")? >= 100 && run.count("files_lost")? == 0, "{}", run.summary);
        // How much of the time is the kernel's depends on what else runs; what is the programs' has its names.
        let reasons = run.reasons()?;
        ensure!(!reasons.iter().any(|(module, _)| module.starts_with("program")), "{reasons:?}");
        let all = run.folded.weight_of(|stack| BRIEF.iter().any(|name| stack.has(&format!("{name}_inner"))));
        ensure!(all > 0.0, "no work at all");
        Ok(())
    })
}

/// The same, of which the first ones are gone by the end: their names are lost, with the reason, and nobody else's are
/// given to them.
#[test]
fn files_that_had_to_be_closed_and_are_gone_are_counted() -> Result<()> {
    needs_root!();
    attempts(|| {
        let folder = tempfile::tempdir()?;
        let paths: Vec<PathBuf> = (0..120).map(|i| folder.path().join(format!("program{i}"))).collect();
        for (i, path) in paths.iter().enumerate() {
            copy(BRIEF[i % 2], path, i)?;
        }
        // The last program removes all the files, while the profiler cannot hold them all.
        let (text, remover) = (folder.path().join("text"), folder.path().join("remove"));
        fs::write(&text, format!("#!/bin/sh\nrm -f {}/program*\n", folder.path().display()))?;
        copy_program(&text, &remover)?;
        fs::set_permissions(&remover, fs::Permissions::from_mode(0o755))?;
        let with_remover: Vec<PathBuf> = paths.iter().cloned().chain([remover]).collect();
        let run = Run::record(&["--rate", "1000", "--attach-mode", "cpu"], 121, "10", &with_remover)?;
        ensure!(run.count("files_lost")? > 0, "{}", run.summary);
        let reasons = run.reasons()?;
        let lost = |(module, reason): &(String, String)| {
            module.starts_with("program") && reason.contains("too many files were in use")
        };
        ensure!(reasons.iter().any(lost), "{reasons:?}");
        // What is still held has its names.
        ensure!(run.weight_of("brief_a_inner") + run.weight_of("brief_b_inner") > 0.0, "no names at all");
        Ok(())
    })
}

/// While a process lives, its file may go: it is held.
#[test]
fn a_program_that_deletes_itself_keeps_its_names() -> Result<()> {
    needs_root!();
    attempts(|| {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("deleted");
        copy("brief_a", &path, 7)?;
        let script = format!("{0} 400 & sleep 0.2; rm {0}; wait", path.display());
        let found = record_script(&script)?;
        ensure!(found.weight_of(|stack| stack.has("brief_a_inner")) > 0.0, "no names");
        Ok(())
    })
}

/// Under one path, first one build and then another: each has its own names.
#[test]
fn a_program_that_was_replaced_by_another_build_is_told_apart() -> Result<()> {
    needs_root!();
    let folded = || {
        let folder = tempfile::tempdir()?;
        let (path, next) = (folder.path().join("program"), folder.path().join("next"));
        copy("brief_a", &path, 0)?;
        copy("brief_b", &next, 0)?;
        // Copied after the first was removed, the second may get the same inode.
        let script = format!("{0} 200; rm {0}; cp {1} {0}; {0} 200; wait", path.display(), next.display());
        let found = record_script(&script)?;
        let mixed = found.weight_of(|stack| {
            (stack.has("brief_a_outer") || stack.has("brief_a_inner"))
                && (stack.has("brief_b_outer") || stack.has("brief_b_inner"))
        });
        ensure!(mixed == 0.0, "names of both builds in one stack");
        Ok(found)
    };
    let check = |found: &Folded| {
        let of = |name: &str| found.weight_of(|stack| stack.has(name));
        let (first, second) = (of("brief_a_inner"), of("brief_b_inner"));
        ensure!(first > 0.0 && second > 0.0, "{first} and {second}");
        ensure!((0.3..3.0).contains(&(first / second)), "{first} and {second} of equal work");
        Ok(())
    };
    attempts_of(folded, check).map(drop)
}

/// The same written into the very file, as a plain copy does, while the profiler has the first one open: nothing of the second
/// bears a name of the first.
#[test]
fn a_program_that_was_rewritten_in_place_is_told_apart() -> Result<()> {
    needs_root!();
    let of = |found: &Folded, name: &str| found.weight_of(|stack| stack.has(name));
    let folded = || {
        let folder = tempfile::tempdir()?;
        let (path, next) = (folder.path().join("program"), folder.path().join("next"));
        copy("brief_a", &path, 0)?;
        copy("brief_b", &next, 8)?;
        let script = format!("{0} 200; cp {1} {0}; {0} 200; wait", path.display(), next.display());
        let found = record_script(&script)?;
        ensure!(of(&found, "brief_a_inner") == 0.0, "names were read of a file that is not there any more");
        Ok(found)
    };
    let check = |found: &Folded| {
        ensure!(of(found, "brief_b_inner") > 0.0, "the second has no names");
        Ok(())
    };
    attempts_of(folded, check).map(drop)
}

/// Whoever makes a file can give it the build id of another; its names are of its own functions alone.
#[test]
fn programs_that_say_they_are_of_one_build_have_their_own_names() -> Result<()> {
    needs_root!();
    let programs = [program("namesake_a")?, program("namesake_b")?];
    let [one, other] = programs.each_ref().map(fs::metadata);
    ensure!(one?.len() == other?.len(), "nothing but the names may tell them apart");
    let of = |found: &Folded, program: &str, name: &str| {
        let is_its =
            |stack: &Stack| stack.frames[0].starts_with(program) && stack.has(&format!("{name}_inner"));
        found.weight_of(is_its)
    };
    let folded = || {
        let [one, other] = programs.each_ref().map(|path| path.display());
        let found = record_script(&format!("{one} 400 & sleep 0.1; {other} 400; wait"))?;
        for (own, foreign) in [("namesake_a", "namesake_b"), ("namesake_b", "namesake_a")] {
            let wrong = of(&found, own, foreign);
            ensure!(wrong == 0.0, "{own} has {wrong} of names of {foreign}");
        }
        Ok(found)
    };
    let check = |found: &Folded| {
        for own in ["namesake_a", "namesake_b"] {
            ensure!(of(found, own, own) > 0.0, "{own} has no names");
        }
        Ok(())
    };
    attempts_of(folded, check).map(drop)
}

fn record_script(script: &str) -> Result<Folded> {
    let sweetspot = Sweetspot::new();
    let mut words = ["--rate", "1000"].map(str::to_owned).to_vec();
    words.extend(sweetspot.outputs());
    words.extend(["--", "sh", "-c", script].map(str::to_owned));
    run(&mut sweetspot.command("record", &words))?.expect_status(0)?;
    Folded::parse(&fs::read_to_string(sweetspot.file("profile.folded"))?)
}

/// With little memory there are fewer names, each with its reason, and none is wrong.
#[test]
fn little_memory_names_less_and_never_wrongly() -> Result<()> {
    needs_root!();
    let programs = [program("brief_a")?];
    let work = |run: &Run| run.weight_of("brief_a_inner") / run.folded.weight_of(|_| true);
    let memories = ["4KiB", "64KiB", "2MiB", "256MiB"];
    let runs = || {
        let whole = named(&Run::record(&["--rate", "1000"], 20, "20", &programs)?);
        let with = |memory: &str| {
            let run = Run::record(&["--rate", "1000", "--symbol-memory", memory], 20, "20", &programs)?;
            let cap: u64 = memory.parse::<config::Bytes>()?.get();
            ensure!(run.count("symbol_bytes_peak")? <= cap, "{memory}: {}", run.summary["symbol_bytes_peak"]);
            for (module, reason) in run.reasons()? {
                ensure!(!reason.is_empty(), "{memory}: {module} has no names and no reason");
            }
            let may_have_names = memory != "4KiB" || run.weight_of("brief_a_inner") == 0.0;
            ensure!(may_have_names, "a page held the symbol table of a program");
            // What has a name has the one that it has with all memory.
            let inner = |name: &str| name.starts_with("brief_");
            let other = named(&run).into_iter().find(|name| inner(name) && !whole.contains(name));
            ensure!(other.is_none(), "{memory}: {other:?}");
            Ok(run)
        };
        memories.into_iter().map(with).collect::<Result<Vec<_>>>()
    };
    let check = |runs: &Vec<Run>| {
        let is_told = |(_, reason): &(String, String)| reason.contains("too large");
        ensure!(runs[0].reasons()?.iter().any(is_told), "{:?}", runs[0].reasons()?);
        for (memory, run) in memories.into_iter().zip(runs).skip(1) {
            ensure!(work(run) > 0.5, "{memory}: {} of the weight has its name", work(run));
        }
        let names: Vec<usize> = runs.iter().map(|run| named(run).len()).collect();
        ensure!(names[0] < names[3], "{names:?}");
        Ok(())
    };
    attempts_of(runs, check).map(drop)
}

/// The names of all frames.
fn named(run: &Run) -> Vec<String> {
    let frames = run.folded.0.iter().flat_map(|stack| stack.frames.iter().skip(1));
    let mut names: Vec<String> = frames.filter(|name| !name.contains("+0x")).cloned().collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The kernel leaves the mark of a profiler that asks for build ids on the records of others.
#[test]
fn another_profiler_that_asks_for_build_ids_takes_no_names_away() -> Result<()> {
    needs_root!();
    if find_in_path("perf").is_none() {
        eprintln!("skipped: no perf; apt-get install linux-perf");
        return Ok(());
    }
    attempts(|| {
        let folder = tempfile::tempdir()?;
        let data = folder.path().join("perf.data");
        let mut perf = Command::new("perf");
        perf.args(["record", "-a", "--buildid-mmap", "-e", "cpu-clock", "-F", "10", "-o"]).arg(&data);
        let mut perf = start(perf.args(["--", "sleep", "60"]))?;
        tests::run::wait_until("perf to record", || {
            let has_ended = perf.try_wait().map_or(true, |ended| ended.is_some());
            has_ended || fs::metadata(&data).is_ok_and(|file| file.len() > 0)
        })?;
        if perf.try_wait()?.is_some() {
            eprintln!("skipped: this perf does not record build ids");
            return Ok(());
        }
        let run = Run::record(&["--rate", "1000"], 20, "20", &[program("brief_a")?])?;
        let work = run.weight_of("brief_a_inner") / run.folded.weight_of(|_| true);
        ensure!(work > 0.5, "{work} of the weight has its name: {:?}", run.reasons()?);
        ensure!(run.count("undecodable")? == 0, "{}", run.summary["undecodable"]);
        Ok(())
    })
}
