//! The daemon's interface as its clients meet it: curl's requests, `ctl`, Prometheus and Go's pprof. Live, as root.

#![allow(clippy::print_stderr, reason = "a test that skips says why")]

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::attempts::attempts;
use tests::daemon::Daemon;
use tests::guards::Running;
use tests::privileged;
use tests::programs::{find_in_path, program};
use tests::run::{Ended, Sweetspot, run, start, wait_until_told};

/// A program of known functions that is busy, and a daemon that samples it.
struct Watched {
    daemon: Daemon,
    busy: Running,
}

impl Watched {
    fn new() -> Result<Watched> {
        let busy = start(Command::new(program("mix_nofp")?).args(["--cpu", "300"]))?;
        let section =
            format!("[[target]]\nname = \"busy\"\npid = {}\nlabels = {{ team = \"search\" }}", busy.id());
        let daemon = Daemon::start_ample(60, &section)?;
        daemon.wait_for("busy", "sampled")?;
        Ok(Watched { daemon, busy })
    }

    /// A request over the socket: its status and body.
    fn ask(&self, method: &str, path: &str) -> Result<(u16, Vec<u8>)> {
        let mut stream = UnixStream::connect(self.daemon.socket())?;
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").context("no head")?;
        let head = String::from_utf8_lossy(&answer[..end]);
        let status = head.split(' ').nth(1).context("no status")?.parse()?;
        Ok((status, answer[end + 4..].to_vec()))
    }

    fn text(&self, path: &str) -> Result<String> {
        let (status, body) = self.ask("GET", path)?;
        let text = String::from_utf8_lossy(&body).into_owned();
        ensure!(status == 200, "{path}: {status} {text}");
        Ok(text)
    }

    fn json(&self, path: &str) -> Result<Value> {
        Ok(serde_json::from_str(&self.text(path)?)?)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.daemon.store().join("..").join(name)
    }
}

/// What another program makes of a file.
fn output(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output()?;
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{text}");
    Ok(text)
}

#[test]
fn the_next_seconds_and_the_last_ones_come_in_every_form() -> Result<()> {
    privileged!();
    let watched = Watched::new()?;
    // On a busy machine the program may have to wait for a CPU.
    attempts(|| {
        ensure!(watched.text("/v1/profile?seconds=2&format=folded")?.contains(";work_"));
        Ok(())
    })?;
    // What was just kept, and what is still open.
    let range = "/v1/profile?from=-1m&target=busy";
    ensure!(watched.text(&format!("{range}&format=table"))?.contains("work_"));
    ensure!(watched.text(&format!("{range}&format=svg"))?.contains("work_"));
    ensure!(watched.text(&format!("{range}&format=folded&label=team%3Dsearch"))?.contains(";work_"));
    let json = watched.json(range)?;
    ensure!(json["functions"][0]["cpu_s"].as_f64() > Some(0.0), "{json}");
    ensure!(watched.json(&format!("{range}&format=speedscope.json"))?["profiles"].is_array());
    let (status, none) = watched.ask("GET", "/v1/profile?from=-1m&target=nobody")?;
    ensure!(status == 404, "{status} {}", String::from_utf8_lossy(&none));

    let file = watched.file("go.pb.gz");
    attempts(|| {
        let (status, pprof) = watched.ask("GET", "/debug/pprof/profile?seconds=2")?;
        ensure!(status == 200, "{status}");
        fs::write(&file, pprof)?;
        let report = run(&mut Sweetspot::new().command("report", &[&file]))?.expect_status(0)?;
        ensure!(report.stdout.contains("work_"), "{}", report.stdout);
        Ok(())
    })?;
    if find_in_path("go").is_none() {
        eprintln!("left out: what `go tool pprof` makes of it, since there is no go");
        return Ok(());
    }
    let top = output(Command::new("go").args(["tool", "pprof", "-top", "-symbolize=none"]).arg(&file))?;
    ensure!(top.contains("work_"), "{top}");
    Ok(())
}

#[test]
fn one_command_prints_or_writes_what_was_sampled() -> Result<()> {
    privileged!();
    let watched = Watched::new()?;
    let ctl = |words: &[&str]| -> Result<Ended> { watched.daemon.ctl(words)?.expect_status(0) };
    attempts(|| {
        let next = ctl(&["profile", "--duration", "2s"])?;
        ensure!(next.stdout.contains("work_") && next.stdout.contains("overhead"), "{}", next.stdout);
        Ok(())
    })?;
    let (svg, pprof) = (watched.file("x.svg"), watched.file("x.pb.gz"));
    let words = [svg.to_string_lossy(), pprof.to_string_lossy()];
    ctl(&["profile", "-o", &words[0], "-o", &words[1]])?;
    ensure!(fs::read_to_string(&svg)?.contains("work_"));
    let range = ["profile", "--from", "-1m", "--to", "now", "--target", "busy", "--label", "team=search"];
    ensure!(ctl(&[&range[..], &["--format", "folded"]].concat())?.stdout.contains(";work_"));
    let json: Value = serde_json::from_str(&ctl(&[&range[..], &["--json"]].concat())?.stdout)?;
    ensure!(json["type"] == "summary" && json["samples"].as_u64() > Some(0), "{json}");
    // The daemon says the same of a file as `report` does of the store that it keeps.
    let (from_file, kept) = (output(&mut report(&[&pprof]))?, watched.daemon.report(&["--from", "-1h"])?);
    ensure!(from_file.contains("work_") && kept.expect_status(0)?.stdout.contains("work_"));
    let status = ctl(&["status"])?.stdout;
    ensure!(status.contains("ready") && status.contains("1 sampled"), "{status}");
    ensure!(ctl(&["targets", "--labels"])?.stdout.contains("team=search"));
    wait_until_told("a decision", || {
        watched.daemon.ctl_json(&["decisions", "busy"]).is_ok_and(|found| found["decisions"][0].is_object())
    })?;
    ensure!(ctl(&["decisions", "busy"])?.stdout.lines().count() > 1);
    Ok(())
}

/// Files of a target in the store.
fn kept(daemon: &Daemon, target: &str) -> Result<usize> {
    let of_it = |path: &&PathBuf| path.to_string_lossy().contains(&format!("_{target}_"));
    Ok(daemon.files()?.iter().filter(of_it).count())
}

#[test]
fn a_profile_of_one_target_ends_no_window_of_another() -> Result<()> {
    privileged!();
    let busy = || start(Command::new(program("mix_nofp")?).args(["--cpu", "300"]));
    let (one, other) = (busy()?, busy()?);
    let section = |name: &str, pid: u32| format!("[[target]]\nname = {name:?}\npid = {pid}\n");
    let daemon = Daemon::start_ample(3600, &(section("one", one.id()) + &section("other", other.id())))?;
    for name in ["one", "other"] {
        wait_until_told("samples", || {
            daemon.target(name).is_ok_and(|found| found["samples"].as_u64() > Some(20))
        })?;
    }
    let asked = |count: usize| -> Result<()> {
        std::thread::scope(|scope| {
            let ask = || daemon.ctl(&["profile", "--from", "-1m", "--target", "one"])?.expect_status(0);
            let clients: Vec<_> = (0..count).map(|_| scope.spawn(ask)).collect();
            clients.into_iter().try_for_each(|client| client.join().expect("no panic").map(drop))
        })
    };
    asked(1)?;
    ensure!((kept(&daemon, "one")?, kept(&daemon, "other")?) == (1, 0), "{:?}", daemon.files()?);
    // Who asks at the same time shares an end, or two: requests come one by one.
    asked(8)?;
    let files = kept(&daemon, "one")?;
    ensure!((2..=5).contains(&files) && kept(&daemon, "other")? == 0, "{files}: {:?}", daemon.files()?);
    daemon.ctl(&["profile", "--from", "-1m"])?.expect_status(0)?;
    ensure!(kept(&daemon, "one")? > files && kept(&daemon, "other")? == 1, "{:?}", daemon.files()?);
    Ok(())
}

#[test]
fn a_family_of_targets_is_watched_and_left_together() -> Result<()> {
    privileged!();
    let watched = Watched::new()?;
    let ctl = |words: &[&str]| watched.daemon.ctl(words);
    let name = format!("^{}$", fs::read_to_string(format!("/proc/{}/comm", watched.busy.id()))?.trim());
    let attach = ["attach", "--name", &name, "--each", "process", "--as", "family", "--duration", "60s"];
    ctl(&attach)?.expect_status(0)?;
    let family = || -> Result<Vec<Value>> {
        let targets = watched.daemon.ctl_json(&["targets"])?;
        let targets = targets["targets"].as_array().context("no list")?.clone();
        let is_of_it = |name: &Value| name.as_str().is_some_and(|name| name.starts_with("family"));
        Ok(targets.into_iter().filter(|target| is_of_it(&target["name"])).collect())
    };
    wait_until_told("one of the family", || {
        family().is_ok_and(|family| family.iter().any(|one| one["state"] == "sampled"))
    })?;
    let members = family()?;
    ensure!(members.len() == 2 && members.iter().all(|one| one["origin"] == "request"), "{members:?}");
    for one in &members {
        ensure!(one["ends_in_s"].as_f64().context("ends_in_s")? <= 60.0, "{members:?}");
    }
    let member = members.iter().find(|one| one["name"] != "family").context("a member")?;
    let refused = ctl(&["detach", member["name"].as_str().context("a name")?])?;
    ensure!(refused.status == 1 && refused.stderr.contains("one of the targets of family"), "{refused:?}");
    ctl(&["detach", "family"])?.expect_status(0)?;
    ensure!(family()?.is_empty(), "{:?}", family()?);
    // Of everything there is one.
    ctl(&["attach", "--all", "--duration", "60s", "--as", "rest"])?.expect_status(0)?;
    let twice = ctl(&["attach", "--all", "--duration", "60s"])?;
    ensure!(twice.status == 1 && twice.stderr.contains("profiled already, as rest"), "{twice:?}");
    Ok(())
}

fn report(files: &[&Path]) -> Command {
    Sweetspot::new().command("report", files)
}

#[test]
fn the_exit_status_says_what_went_wrong() -> Result<()> {
    privileged!();
    let watched = Watched::new()?;
    let status = |words: &[&str]| -> Result<(i32, String)> {
        let ended = watched.daemon.ctl(words)?;
        ensure!(ended.stderr.lines().count() == 1, "one line: {ended:?}");
        Ok((ended.status, ended.stderr))
    };
    let pid = watched.busy.id().to_string();
    for (words, expected, said) in [
        (&["decisions", "nobody"][..], 1, "no target is called nobody"),
        (&["detach", "nobody"], 1, "no target is called nobody"),
        (&["detach", "busy"], 1, "busy"),
        (&["profile", "--from", "-10m", "--to", "-9m"], 1, "no such profile"),
        (&["profile", "--from", "now"], 2, "--from is not before"),
        (&["profile", "--from", "-40d"], 2, "at most 31 days"),
        (&["profile", "--duration", "2h"], 2, "1s to 1h"),
        (&["profile", "--duration", "1h", "--target", "bussy"], 1, "no target is called bussy"),
        (&["attach", &pid], 2, "--duration"),
        (&["attach", &pid, "--duration", "2h"], 2, "at most 1h"),
        (&["attach", "--name", "(", "--duration", "1s"], 2, "process: "),
        (&["attach", &pid, "--duration", "1s", "--as", "a b"], 2, "is not a valid name"),
        (&["attach", "4194303", "--duration", "1s"], 1, "no process"),
        (&["shout"], 2, "shout"),
    ] {
        let (got, text) = status(words)?;
        ensure!(got == expected && text.contains(said), "{words:?}: {got} {text}");
    }
    let elsewhere = ["--socket", "/nowhere/sweetspot.sock", "status"];
    let ended = run(&mut Sweetspot::new().command("ctl", &elsewhere))?;
    ensure!(ended.status == 1 && ended.stderr.contains("no sweetspot answers at /nowhere"), "{ended:?}");
    // Somebody who may not: the folder is open to all, the socket is not.
    let socket = watched.daemon.socket();
    tests::guards::open_to_all(socket.parent().context("a folder")?)?;
    let words = ["--socket", &socket.to_string_lossy(), "status"];
    let ended = run(&mut Sweetspot::new().unprivileged()?.command("ctl", &words))?;
    ensure!(ended.status == 77 && ended.stderr.contains("may not be opened"), "{ended:?}");
    let store = watched.daemon.store();
    fs::set_permissions(&store, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
    let words = ["--store", &store.to_string_lossy(), "--from", "-1h"];
    let ended = run(&mut Sweetspot::new().unprivileged()?.command("report", &words))?;
    ensure!(ended.status == 77 && ended.stderr.contains("sweetspot ctl profile"), "{ended:?}");
    Ok(())
}

/// The values of a metric, added up.
fn metric(text: &str, name: &str) -> f64 {
    let of_it = |line: &&str| line.split(['{', ' ']).next() == Some(name);
    text.lines().filter(of_it).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

#[test]
fn prometheus_can_read_the_figures_that_people_see() -> Result<()> {
    privileged!();
    let watched = Watched::new()?;
    wait_until_told("samples", || {
        watched.daemon.target("busy").is_ok_and(|busy| busy["samples"].as_u64() > Some(100))
    })?;
    let before = watched.daemon.target("busy")?;
    let text = watched.text("/metrics")?;
    let after = watched.daemon.target("busy")?;
    for (name, key) in [
        ("sweetspot_target_samples_total", "samples"),
        ("sweetspot_target_cpu_seconds_total", "cpu_s"),
        ("sweetspot_target_overhead_cpu_seconds_total", "overhead_s"),
    ] {
        let (low, high) = (before[key].as_f64().context(key)?, after[key].as_f64().context(key)?);
        let value = metric(&text, name);
        ensure!((low..=high).contains(&value), "{name}: {value} is not within {low} to {high}");
    }
    let labels = text.lines().find(|line| line.starts_with("sweetspot_target_labels{target=\"busy\""));
    ensure!(labels.is_some_and(|labels| labels.contains("label_team=\"search\"")), "{text}");
    ensure!(metric(&text, "sweetspot_targets") == 1.0, "{text}");
    if find_in_path("promtool").is_none() {
        eprintln!("left out: what promtool makes of it, since there is none");
        return Ok(());
    }
    let file = watched.file("metrics");
    fs::write(&file, &text)?;
    let checked =
        Command::new("promtool").args(["check", "metrics"]).stdin(fs::File::open(&file)?).output()?;
    let said =
        String::from_utf8_lossy(&checked.stdout).into_owned() + &String::from_utf8_lossy(&checked.stderr);
    ensure!(checked.status.success() && said.is_empty(), "{said}");
    Ok(())
}

#[test]
fn it_ends_by_a_request_whoever_waits_for_it() -> Result<()> {
    privileged!();
    let mut watched = Watched::new()?;
    let mut waiting = UnixStream::connect(watched.daemon.socket())?;
    write!(waiting, "GET /v1/profile?seconds=3600 HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    let _silent = UnixStream::connect(watched.daemon.socket())?;
    let (status, _) = watched.ask("POST", "/v1/stop")?;
    ensure!(status == 200);
    let ended = watched.daemon.ended()?;
    ensure!(ended.status == 0 && !watched.daemon.socket().exists(), "{ended:?}");
    Ok(())
}
