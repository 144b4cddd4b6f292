//! `report FILE --unknown` through the command line, with programs that lack names in different ways.

#![allow(clippy::print_stderr, reason = "a test that skips says why")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::guards::is_root;
use tests::measured::cpu_s;
use tests::programs::{copy_program, find_in_path, program};
use tests::run::{NOBODY, Sweetspot, run, sweetspot};

fn at_1_khz() -> Sweetspot {
    Sweetspot::new().options(&["--rate", "1000"])
}

/// What `report` says of a file.
fn report(sweetspot_run: &Sweetspot, words: &[&str]) -> Result<String> {
    let file = sweetspot_run.file("p.pb.gz");
    let ended = run(Command::new(sweetspot()).args(["report", &*file]).args(words))?;
    Ok(ended.expect_status(0)?.stdout)
}

fn unknown_json(sweetspot_run: &Sweetspot) -> Result<Value> {
    Ok(serde_json::from_str(&report(sweetspot_run, &["--unknown", "--format", "json"])?)?)
}

/// Records a program into `p.pb.gz`.
fn record(target: &Path) -> Result<Sweetspot> {
    let sweetspot = at_1_khz();
    let words = ["-o", &sweetspot.file("p.pb.gz"), "--", &target.to_string_lossy(), "--cpu", "0.5"];
    let words = [&words[..], &["--out", "/dev/null"]].concat();
    run(&mut sweetspot.command("record", &words))?.expect_status(0)?;
    Ok(sweetspot)
}

/// The entry with the most CPU time of its own, and what its text must hold.
fn check(sweetspot: &Sweetspot, module: &str, reason: &[&str], remedy: &[&str]) -> Result<()> {
    let list = unknown_json(sweetspot)?;
    let first = &list["functions"][0];
    ensure!(list["type"] == "unknown" && first["module"] == module, "{list:#}");
    ensure!(list["nameless_share"].as_f64().context("a share")? > 0.8, "{list:#}");
    let has = |key: &str, words: &[&str]| {
        let text = first[key].as_str().unwrap_or_default();
        words.iter().all(|word| text.contains(word))
    };
    ensure!(has("reason", reason) && has("remedy", remedy), "{first:#}");
    let sum: f64 =
        list["functions"].as_array().context("functions")?.iter().filter_map(|f| f["cpu_s"].as_f64()).sum();
    let all = list["nameless_cpu_s"].as_f64().context("a sum")?;
    ensure!((sum - all).abs() < 1e-6, "{sum} s listed of {all} s");
    let text = report(sweetspot, &["--unknown"])?;
    for word in reason.iter().chain(remedy) {
        // The text is broken into lines at blanks.
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        ensure!(flat.contains(word), "no {word} in:\n{text}");
    }
    ensure!(report(sweetspot, &[])?.contains("nameless"), "the table does not say so");
    Ok(())
}

#[test]
fn a_stripped_program_says_where_its_debug_file_belongs() -> Result<()> {
    let sweetspot = record(&program("mix_stripped")?)?;
    check(&sweetspot, "mix_stripped", &["stripped"], &["profile a build with its symbols"])?;
    let first = unknown_json(&sweetspot)?["functions"][0].clone();
    if let Some(id) = first["build_id"].as_str() {
        let file = format!("/usr/lib/debug/.build-id/{}/{}.debug", &id[..2], &id[2..]);
        ensure!(first["remedy"].as_str().is_some_and(|remedy| remedy.contains(&file)), "{first:#}");
    }
    Ok(())
}

/// The table after a run has the line that the table of its file has.
#[test]
fn the_table_after_a_run_says_what_is_nameless() -> Result<()> {
    let mix = program("mix_stripped")?;
    let words = ["--", &*mix.to_string_lossy(), "--cpu", "0.3", "--out", "/dev/null"];
    let table = run(&mut at_1_khz().command("record", &words))?.expect_status(0)?.stdout;
    let line = table.lines().find(|line| line.starts_with("nameless")).context("no such line")?;
    ensure!(line.contains("without a name") && table.contains("--unknown"), "{table}");
    let named = program("mix_unstripped")?;
    let words = ["--", &*named.to_string_lossy(), "--cpu", "0.3", "--out", "/dev/null"];
    let table = run(&mut at_1_khz().command("record", &words))?.expect_status(0)?.stdout;
    ensure!(table.contains("work_a"), "{table}");
    Ok(())
}

#[test]
fn a_debug_link_to_nothing_is_named() -> Result<()> {
    if find_in_path("objcopy").is_none() {
        eprintln!("skipped: no objcopy; apt-get install binutils");
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let (target, debug) = (folder.path().join("linked"), folder.path().join("linked.debug"));
    copy_program(&program("mix_unstripped")?, &target)?;
    objcopy(&[Path::new("--only-keep-debug"), &target, &debug])?;
    let link = PathBuf::from(format!("--add-gnu-debuglink={}", debug.display()));
    let words = ["--strip-all", "--remove-section=.note.gnu.build-id"].map(Path::new);
    objcopy(&[words[0], words[1], &link, &target])?;
    // With the debug file beside it, everything has its name.
    let named = unknown_json(&record(&target)?)?;
    ensure!(named["nameless_share"].as_f64().is_some_and(|share| share < 0.2), "{named:#}");
    fs::remove_file(&debug)?;
    check(&record(&target)?, "linked", &["linked.debug is missing"], &["/.debug/linked.debug"])
}

fn objcopy(words: &[&Path]) -> Result<()> {
    run(Command::new("objcopy").args(words))?.expect_status(0).map(drop)
}

/// The program itself can be opened through its process by anyone who may profile it, a library that has no name by root alone. A program
/// that the dynamic loader was asked to run is mapped as libraries are.
#[test]
fn a_deleted_file_says_when_it_could_have_been_read() -> Result<()> {
    const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
    if !is_root() || !Path::new(LOADER).exists() {
        eprintln!("skipped: becoming another user needs root, and loading a program as a library {LOADER}");
        return Ok(());
    }
    for (loader, is_named) in [(None, true), (Some(LOADER), false)] {
        let sweetspot = at_1_khz().unprivileged()?;
        let copy = sweetspot.copy_for_all(&program("mix_unstripped")?)?;
        let target = Command::new(NOBODY[0])
            .args(&NOBODY[1..])
            .args(loader)
            .arg(&copy)
            .args(["--cpu", "60", "--out", "/dev/null"])
            .spawn()
            .map(tests::guards::Running)?;
        tests::run::wait_until("the program to run", || {
            let maps = fs::read_to_string(format!("/proc/{}/maps", target.id())).unwrap_or_default();
            maps.contains(&*copy.to_string_lossy()) && cpu_s(target.id()).is_ok_and(|used| used > 0.05)
        })?;
        fs::remove_file(&copy)?;
        let words = ["-o", &sweetspot.file("p.pb.gz"), "--duration", "1s", &target.id().to_string()];
        let ended = run(&mut sweetspot.command("attach", &words))?;
        if ended.status == 77 {
            eprintln!("skipped: only root may profile here");
            return Ok(());
        }
        ended.expect_status(0)?;
        if is_named {
            let named = unknown_json(&sweetspot)?;
            ensure!(named["nameless_share"].as_f64().is_some_and(|share| share < 0.2), "{named:#}");
            continue;
        }
        let name = copy.file_name().context("a name")?.to_string_lossy().into_owned();
        let remedies = ["while the file is there", "CAP_CHECKPOINT_RESTORE"];
        check(&sweetspot, &name, &["the file was deleted"], &remedies)?;
        // With enough privilege it is opened all the same.
        let as_root = at_1_khz();
        let words = ["-o", &as_root.file("p.pb.gz"), "--duration", "1s", &target.id().to_string()];
        run(&mut as_root.command("attach", &words))?.expect_status(0)?;
        let named = unknown_json(&as_root)?;
        ensure!(named["nameless_share"].as_f64().is_some_and(|share| share < 0.2), "{named:#}");
    }
    Ok(())
}

#[test]
fn the_list_is_no_stack() -> Result<()> {
    let words = ["report", "/dev/null", "--unknown", "--format", "folded"];
    let ended = run(Command::new(sweetspot()).args(words))?.expect_status(2)?;
    ensure!(ended.stderr.lines().count() == 1 && ended.stderr.contains("--unknown"), "{ended:?}");
    Ok(())
}

/// The lines, in which every figure has a unit in its name.
#[test]
fn keys_have_their_units() -> Result<()> {
    let list = unknown_json(&record(&program("mix_stripped")?)?)?;
    let known = ["share", "samples"];
    let check = |object: &Value| -> Result<()> {
        for (key, value) in object.as_object().context("an object")? {
            let ends = key.ends_with("_s") || known.iter().any(|known| key.ends_with(known));
            ensure!(!value.is_number() || ends, "{key} has no unit");
        }
        Ok(())
    };
    check(&list)?;
    list["functions"].as_array().context("functions")?.iter().try_for_each(check)?;
    list["truncated"].as_array().context("truncated")?.iter().try_for_each(check)
}
