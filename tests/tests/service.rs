//! What an operator types: a settings file judged, and profiles read from where the daemon keeps them.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use config::DaemonSettings;
use profile_files::FORMATS;
use serde_json::Value;
use tempfile::TempDir;
use tests::run::{Ended, run, sweetspot};

fn typed(words: &[&str]) -> Result<Ended> {
    run(Command::new(sweetspot()).args(words).env("TZ", "UTC"))
}

fn check_config(text: &str) -> Result<Ended> {
    let folder = TempDir::new()?;
    fs::write(folder.path().join("sweetspot.toml"), text)?;
    let mut command = Command::new(sweetspot());
    run(command.args(["check-config", "sweetspot.toml"]).current_dir(folder.path()))
}

#[test]
fn a_sound_settings_file_says_what_it_would_watch_and_cost() -> Result<()> {
    let text = "[[target]]\nname = \"web\"\nunit = \"nginx.service\"\nbudget = \"0.5%\"\n";
    let ended = check_config(text)?.expect_status(0)?;
    let warnings = ended.stdout.lines().skip(1);
    let mut unknown = warnings.filter(|line| !line.starts_with("sweetspot.toml: warning: "));
    ensure!(unknown.next().is_none() && ended.stderr.is_empty(), "{ended:?}");
    let begin = "sweetspot.toml is valid: watches web (unit nginx.service, slowed down by at most 0.5%); costs at most 1% \
                 of the host's CPU time; ";
    ensure!(ended.stdout.starts_with(begin), "{}", ended.stdout);
    Ok(())
}

#[test]
fn every_problem_of_a_settings_file_is_a_line_with_its_place() -> Result<()> {
    let ended = check_config("[budget]\nhost = \"1%%\"\n[stroe]\nage = \"7d\"\n[listen]\nmode = \"0666\"\n")?
        .expect_status(1)?;
    let lines: Vec<&str> = ended.stdout.lines().collect();
    ensure!(lines.len() == 3 && ended.stderr.is_empty(), "{ended:?}");
    for (line, begin) in lines.iter().zip([
        "sweetspot.toml:2:8: budget.host: expected a share",
        "sweetspot.toml:3:2: there is no key stroe; did you mean store?",
        "sweetspot.toml:6:1: listen.mode: 0666 gives every user access",
    ]) {
        ensure!(line.starts_with(begin), "{line}");
    }
    Ok(())
}

/// What the daemon would refuse when it starts is an error, and what is missing or unsafe a warning, a line each.
#[test]
fn what_is_not_there_is_told_before_the_daemon_starts() -> Result<()> {
    let listen =
        "[listen]\ntcp = \"0.0.0.0:7117\"\ntoken_file = \"/no/such/token\"\ngroup = \"no-such-group\"\n";
    let refused = check_config(listen)?.expect_status(1)?;
    for part in
        ["sweetspot.toml: there is no group no-such-group", "sweetspot.toml: /no/such/token cannot be read"]
    {
        ensure!(refused.stdout.lines().any(|line| line.starts_with(part)), "{part}: {refused:?}");
    }
    ensure!(!refused.stdout.contains("is valid"), "{refused:?}");

    let folder = TempDir::new()?;
    let token = folder.path().join("token");
    fs::write(&token, "0123456789abcdef0123456789abcdef")?;
    fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    let targets = "[[target]]\nname = \"a\"\nuser = \"no-such-user\"\nexecutable = \"/no/such/file\"\n[[target]]\n\
                   name = \"b\"\ncgroup = \"/no/such.slice\"\n";
    let listen = format!("[listen]\ntcp = \"0.0.0.0:7117\"\ntoken_file = \"{}\"\n", token.display());
    let sound = check_config(&format!("{listen}{targets}"))?.expect_status(0)?;
    for part in [
        "warning: listen.tcp: at 0.0.0.0:7117 token and profiles go over the network in the clear",
        "warning: target a: there is no user no-such-user",
        "warning: target a: there is no file /no/such/file",
        "warning: target b: its control group cannot be found",
    ] {
        let begin = format!("sweetspot.toml: {part}");
        ensure!(sound.stdout.lines().any(|line| line.starts_with(&begin)), "{part}: {sound:?}");
    }
    Ok(())
}

#[test]
fn a_daemon_that_does_not_start_says_each_problem_of_its_settings_in_a_line() -> Result<()> {
    let folder = TempDir::new()?;
    let file = folder.path().join("sweetspot.toml");
    fs::write(&file, "[budget]\nhost = \"1%%\"\n[stroe]\nage = \"7d\"\n")?;
    let file = file.to_string_lossy();
    let ended = typed(&["daemon", "--config", &file])?.expect_status(2)?;
    let lines: Vec<&str> = ended.stderr.lines().collect();
    ensure!(lines.len() == 2, "{ended:?}");
    ensure!(lines[0].starts_with(&format!("sweetspot: {file}:2:8: budget.host: ")), "{ended:?}");
    ensure!(lines[1].starts_with(&format!("sweetspot: {file}:3:2: there is no key stroe")), "{ended:?}");
    Ok(())
}

#[test]
fn a_settings_file_that_cannot_be_read_is_a_usage_error() -> Result<()> {
    for words in [
        &["check-config", "/no/such/file"][..],
        &["check-config", "/"],
        &["check-config"],
        &["check-config", "--default", "x"],
    ] {
        let ended = typed(words)?.expect_status(2)?;
        ensure!(ended.stdout.is_empty() && ended.stderr.lines().count() == 1, "{ended:?}");
    }
    Ok(())
}

#[test]
fn the_commented_file_is_printed_and_sound() -> Result<()> {
    let ended = typed(&["check-config", "--default"])?.expect_status(0)?;
    ensure!(ended.stdout == DaemonSettings::default_file());
    check_config(&ended.stdout)?.expect_status(0)?;
    Ok(())
}

/// Twenty minutes of two targets from nine o'clock on, but for the tenth to the fourteenth; some of it merged. The daemon's
/// own tests write it, and read it as long as this version's files are read.
fn kept() -> Result<TempDir> {
    let folder = TempDir::new()?;
    let day = folder.path().join("2026-11-16");
    fs::create_dir(&day)?;
    for file in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/store/2026-11-16"))? {
        let file = file?;
        fs::copy(file.path(), day.join(file.file_name()))?;
    }
    Ok(folder)
}

fn report(folder: &Path, words: &[&str]) -> Result<Ended> {
    let folder = folder.to_string_lossy().into_owned();
    typed(&[&["report", "--store", &folder], words].concat())
}

#[test]
fn a_range_of_what_was_kept_is_reported() -> Result<()> {
    let kept = kept()?;
    let range = ["--from", "2026-11-16T09:05Z", "--to", "2026-11-16 09:16"];
    let folded = report(kept.path(), &[&range[..], &["--format", "folded"]].concat())?.expect_status(0)?;
    ensure!(folded.stdout == "db;work 7000000\nweb;work 7000000\n", "{folded:?}");
    let gap = "nothing was kept from 2026-11-16 09:10:00+00:00 to 2026-11-16 09:14:00+00:00";
    ensure!(folded.stderr.contains(gap), "{folded:?}");

    let words = [&range[..], &["--format", "json", "--target", "web"]].concat();
    let json: Value = serde_json::from_str(&report(kept.path(), &words)?.expect_status(0)?.stdout)?;
    ensure!(json["samples"] == 700 && json["target_cpu_s"] == 7.0 && json["target"] == "web", "{json}");
    ensure!(json["functions"][0]["name"] == "work" && json["functions"][0]["cpu_s"] == 7.0, "{json}");
    ensure!(json["notes"][0] == gap, "{json}");

    let table = report(kept.path(), &[&range[..], &["--label", "tier=2"]].concat())?.expect_status(0)?;
    ensure!(table.stdout.contains("work") && table.stdout.contains("samples   700"), "{}", table.stdout);
    ensure!(table.stdout.contains("nothing was kept") && table.stderr.is_empty(), "said once: {table:?}");
    Ok(())
}

#[test]
fn a_range_is_written_in_every_format() -> Result<()> {
    let kept = kept()?;
    let out = TempDir::new()?;
    let file = |name: &str| out.path().join(name).to_string_lossy().into_owned();
    let written = FORMATS.into_iter().filter(|format| format.readers.is_some());
    let mut files = ["a.pb.gz", "a.folded", "a.svg", "a.speedscope.json"].map(file).to_vec();
    files.extend(written.map(|format| file(&format!("b.{format}"))));
    let mut words = vec!["--from", "2026-11-16T09:00Z", "--to", "2026-11-16T09:20Z"];
    files.iter().for_each(|file| words.extend(["-o", file]));
    let ended = report(kept.path(), &words)?.expect_status(0)?;
    ensure!(ended.stdout.is_empty(), "{ended:?}");
    for path in &files {
        ensure!(fs::metadata(path)?.len() > 0, "{path} is empty");
    }
    let again = typed(&["report", &files[0], "--format", "folded"])?.expect_status(0)?;
    ensure!(again.stdout == "db;work 16000000\nweb;work 16000000\n", "{again:?}");
    ensure!(again.stdout == fs::read_to_string(&files[1])?);
    ensure!(fs::read_to_string(&files[2])?.contains("<svg"));
    let speedscope: Value = serde_json::from_slice(&fs::read(&files[3])?)?;
    ensure!(speedscope["profiles"].as_array().context("profiles")?.len() == 2);
    Ok(())
}

#[test]
fn damage_is_told_and_left_out() -> Result<()> {
    let kept = kept()?;
    let day = kept.path().join("2026-11-16");
    let mut files: Vec<_> = fs::read_dir(&day)?.map(|file| Ok(file?.path())).collect::<Result<_>>()?;
    files.sort();
    let last = files.last().context("a file")?;
    let mut bytes = fs::read(last)?;
    let at = bytes.len() - 1;
    bytes[at] ^= 1;
    fs::write(last, bytes)?;
    let words = ["--from", "2026-11-16T09:00Z", "--to", "2026-11-16T09:20Z", "--format", "json"];
    let ended = report(kept.path(), &words)?.expect_status(0)?;
    let json: Value = serde_json::from_str(&ended.stdout)?;
    ensure!(json["samples"] == 3100, "{json}");
    ensure!(ended.stderr.contains("damaged: 2026-11-16/09-19-00_window_60.000s_web_"), "{ended:?}");
    ensure!(last.exists(), "a reader moves nothing");
    Ok(())
}

#[test]
fn a_range_without_profiles_and_times_that_are_none_are_errors() -> Result<()> {
    let kept = kept()?;
    let none = report(kept.path(), &["--from", "2026-11-17T09:00Z", "--to", "2026-11-17T10:00Z"])?
        .expect_status(1)?;
    ensure!(
        none.stderr
            .contains("has no such profile from 2026-11-17 09:00:00+00:00 to 2026-11-17 10:00:00+00:00"),
        "{none:?}"
    );
    let other = report(
        kept.path(),
        &["--from", "2026-11-16T09:00Z", "--to", "2026-11-16T10:00Z", "--target", "cache"],
    )?;
    other.expect_status(1)?;
    report(&kept.path().join("none"), &["--from", "-1h"])?.expect_status(1)?;
    report(kept.path(), &["--from", "-1h", "--to", "now"])?.expect_status(1)?;
    for words in [
        &["--from", "tomorrow"][..],
        &["--from", "now", "--to", "-1h"],
        &["--from", "-1000h", "--label", "tier"],
        &[],
        &["--to", "now"],
        &["file.pb.gz", "--from", "-1h"],
    ] {
        report(kept.path(), words)?.expect_status(2)?;
    }
    Ok(())
}
