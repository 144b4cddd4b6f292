//! `[[export]]` of the service, with a backend that writes down what it gets and answers as backends do at their worst: windows arrive
//! exactly once. Live, as root.

#![allow(clippy::print_stderr, reason = "a test that skips says why")]

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tests::addresses::{Reserved, listen_at};
use tests::daemon::Daemon;
use tests::guards::Running;
use tests::privileged;
use tests::programs::{copy_program, program};
use tests::run::{start, wait_until, wait_until_told};

/// What a backend does with a request that it has read.
#[derive(Clone, Copy)]
enum Play {
    /// Says this status, with these further lines of the head.
    Say(&'static str),
    /// Says this to windows of one target, and takes all others.
    SayOf(&'static str, &'static str),
    /// Says nothing until the client has gone.
    Wait,
}

const OK: Play = Play::Say("200 OK");

/// A request as it came.
struct Request {
    at: Instant,
    line: String,
    token: Option<String>,
    body: Vec<u8>,
    is_taken: bool,
}

impl Request {
    fn read(stream: &TcpStream) -> Result<Request> {
        let mut stream = BufReader::new(stream);
        let (mut line, mut length, mut token) = (String::new(), 0, None);
        stream.read_line(&mut line)?;
        loop {
            let mut header = String::new();
            stream.read_line(&mut header)?;
            if header == "\r\n" {
                break;
            }
            let (name, value) =
                header.split_once(':').context("a client that was killed in the midst of the head")?;
            match name.to_lowercase().as_str() {
                "content-length" => length = value.trim().parse()?,
                "authorization" => token = Some(value.trim().to_owned()),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body)?;
        Ok(Request { at: Instant::now(), line, token, body, is_taken: false })
    }
}

/// A backend at an address of this machine that may be down at first. Its thread ends with the test's process.
struct Backend {
    reserved: Reserved,
    play: Arc<Mutex<Play>>,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Backend {
    fn down() -> Result<Backend> {
        Ok(Backend { reserved: Reserved::new()?, play: Arc::new(Mutex::new(OK)), requests: Arc::default() })
    }

    fn start(play: Play) -> Result<Backend> {
        let backend = Backend::down()?;
        backend.plays(play);
        backend.come_up()?;
        Ok(backend)
    }

    fn come_up(&self) -> Result<()> {
        let listener = listen_at(self.reserved.address())?;
        let (play, requests) = (Arc::clone(&self.play), Arc::clone(&self.requests));
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let Ok(mut request) = Request::read(&stream) else { continue };
                let play = *play.lock().expect("nobody panics with it");
                let answer = match play {
                    Play::SayOf(target, answer) if request.line.contains(&format!("name={target}%7B")) => {
                        answer
                    }
                    Play::SayOf(..) => "200 OK",
                    Play::Say(answer) => answer,
                    Play::Wait => "",
                };
                request.is_taken = answer.starts_with("200");
                requests.lock().expect("nobody panics with it").push(request);
                let _ = match answer {
                    "" => stream.read(&mut [0]).map(drop),
                    answer => {
                        write!(stream, "HTTP/1.1 {answer}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                    }
                };
            }
        });
        Ok(())
    }

    fn plays(&self, play: Play) {
        *self.play.lock().expect("nobody panics with it") = play;
    }

    fn requests(&self) -> MutexGuard<'_, Vec<Request>> {
        self.requests.lock().expect("nobody panics with it")
    }

    /// The bodies that it took, in their order.
    fn taken(&self) -> Vec<Vec<u8>> {
        self.requests()
            .iter()
            .filter(|request| request.is_taken)
            .map(|request| request.body.clone())
            .collect()
    }

    /// The section of an export to it.
    fn section(&self, name: &str, more: &str) -> String {
        format!("[[export]]\nname = {name:?}\nto = \"http://{}\"\n{more}\n", self.reserved.address())
    }
}

/// A program of known functions under a path of its own, so that no other test's is taken for it.
struct Busy {
    _folder: TempDir,
    path: PathBuf,
    _running: Running,
}

impl Busy {
    fn start() -> Result<Busy> {
        Busy::start_as("busy")
    }

    fn start_as(name: &str) -> Result<Busy> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join(name);
        copy_program(&program("mix_nofp")?, &path)?;
        let running = start(Command::new(&path).args(["--cpu", "300"]))?;
        Ok(Busy { _folder: folder, path, _running: running })
    }

    fn section(&self, name: &str) -> String {
        format!("[[target]]\nname = {name:?}\nexecutable = {:?}\n", self.path)
    }
}

/// What of the store has been written until now, file by file.
fn stored(daemon: &Daemon) -> Result<BTreeSet<Vec<u8>>> {
    daemon.files()?.iter().map(|path| fs::read(path).with_context(|| path.display().to_string())).collect()
}

/// An export as the status shows it.
fn export(daemon: &Daemon, name: &str) -> Result<Value> {
    let status = daemon.ctl_json(&["status"])?;
    let exports = status["exports"].as_array().context("exports")?;
    exports.iter().find(|export| export["name"] == name).cloned().with_context(|| status.to_string())
}

fn wait_for_windows(daemon: &Daemon, count: usize) -> Result<()> {
    wait_until("windows", || daemon.files().is_ok_and(|files| files.len() >= count))
}

/// Waits until the backend has taken all that is in the store now; how often it was given more than once.
fn wait_for_all(daemon: &Daemon, backend: &Backend) -> Result<usize> {
    let stored = stored(daemon)?;
    wait_until("all windows at the backend", || {
        let taken: BTreeSet<_> = backend.taken().into_iter().collect();
        stored.is_subset(&taken)
    })?;
    let taken = backend.taken();
    Ok(taken.len() - taken.iter().collect::<BTreeSet<_>>().len())
}

#[test]
fn windows_arrive_once_though_the_backend_is_down_and_the_daemon_is_killed() -> Result<()> {
    privileged!();
    let (busy, backend) = (Busy::start()?, Backend::down()?);
    let mut daemon = Daemon::start_ample(1, &(busy.section("web") + &backend.section("lab", "")))?;
    wait_for_windows(&daemon, 3)?;
    wait_until_told("a failure", || {
        export(&daemon, "lab").is_ok_and(|export| export["problem"].is_string())
    })?;
    let waits = export(&daemon, "lab")?;
    ensure!(waits["pending"].as_u64() >= Some(2) && waits["lag_s"].as_f64() > Some(0.5), "{waits}");
    ensure!(waits["problem"].as_str().is_some_and(|text| text.contains("refuses the connection")), "{waits}");
    let text = daemon.ctl(&["status"])?.expect_status(0)?.stdout;
    ensure!(
        text.contains("export     lab to 127.0.0.1:") && text.contains(" wait, the oldest for "),
        "{text}"
    );
    let killed = daemon.stop(Signal::SIGKILL)?;
    let told = killed.stderr.matches("windows wait in the store").count();
    ensure!(told == 1, "{told} lines of {}", killed.stderr);
    daemon.start_again()?;
    backend.come_up()?;
    let repeated = wait_for_all(&daemon, &backend)?;
    ensure!(repeated == 0, "{repeated} windows came twice");
    // Killed while it sends: of what is on its way then, nobody knows whether it arrived.
    for _ in 0..3 {
        wait_for_windows(&daemon, daemon.files()?.len() + 2)?;
        daemon.stop(Signal::SIGKILL)?;
        daemon.start_again()?;
    }
    let repeated = wait_for_all(&daemon, &backend)?;
    ensure!(repeated <= 3, "{repeated} windows came twice");
    let shown = export(&daemon, "lab")?;
    ensure!(shown["dropped"] == 0 && shown["refused"] == 0 && shown["problem"].is_null(), "{shown}");
    daemon.stop(Signal::SIGTERM)?.expect_status(0)?;
    let stored = stored(&daemon)?;
    let requests = backend.requests();
    let others = requests.iter().filter(|request| request.is_taken && !stored.contains(&request.body));
    let others: Vec<&str> = others.map(|request| request.line.as_str()).collect();
    ensure!(others.is_empty(), "{others:?} arrived, but the store has {:?}", daemon.files()?);
    Ok(())
}

/// By Pyroscope's Connect call: what it has no room for waits, what it refuses is skipped, and all else arrives.
#[test]
fn windows_arrive_by_connect_except_those_that_are_refused() -> Result<()> {
    privileged!();
    let (busy, backend) =
        (Busy::start()?, Backend::start(Play::Say("429 Too Many Requests\r\nretry-after: 2"))?);
    let section = backend.section("lab", "format = \"pyroscope-push\"\nlabels = { team = \"a\" }");
    let mut daemon = Daemon::start_ample(1, &(busy.section("web") + &section))?;
    let count =
        |key: &str| export(&daemon, "lab").ok().and_then(|export| export[key].as_u64()).unwrap_or_default();
    wait_until_told("a wait", || {
        let problem = export(&daemon, "lab").map(|export| export["problem"].to_string());
        count("pending") >= 2 && problem.is_ok_and(|text| text.contains("(429)"))
    })?;
    ensure!(count("pushed") + count("refused") + count("dropped") == 0, "{}", export(&daemon, "lab")?);
    backend.plays(Play::Say("400 Bad Request"));
    wait_until_told("a refusal", || count("refused") >= 1)?;
    // A page of a proxy acknowledges nothing.
    backend.plays(OK);
    wait_until_told("a failure", || {
        let problem = export(&daemon, "lab").map(|export| export["problem"].to_string());
        problem.is_ok_and(|text| text.contains("without acknowledging a profile"))
    })?;
    ensure!(count("pushed") == 0, "{}", export(&daemon, "lab")?);
    let before = backend.requests().len();
    backend.plays(Play::Say("200 OK\r\ncontent-type: application/proto"));
    wait_until_told("windows", || count("pushed") >= 3)?;
    daemon.stop(Signal::SIGTERM)?.expect_status(0)?;
    let stored = stored(&daemon)?;
    let requests = backend.requests();
    let contains = |body: &[u8], part: &[u8]| body.windows(part.len()).any(|window| window == part);
    for request in requests.iter().skip(before) {
        ensure!(request.line == "POST /push.v1.PusherService/Push HTTP/1.1\r\n", "{}", request.line);
        for text in ["process_cpu", "service_name\x12\x03web", "team\x12\x01a"] {
            ensure!(contains(&request.body, text.as_bytes()), "no {text:?}");
        }
        let files = stored.iter().filter(|file| contains(&request.body, file)).count();
        ensure!(files == 1, "{files} windows of the store in a request");
    }
    Ok(())
}

/// Rules of the targets drop one and name the others; those of the export leave one of these out.
#[test]
fn rules_drop_a_target_and_leave_out_windows() -> Result<()> {
    privileged!();
    let busy = (Busy::start()?, Busy::start()?, Busy::start_as("logger-of-test")?);
    let backend = Backend::start(OK)?;
    let targets = busy.0.section("web") + &busy.1.section("db") + &busy.2.section("log");
    let rest = "[[target]]\nname = \"rest\"\neverything = true\n";
    let drop = "[[relabel]]\nsource_labels = [\"__target__\"]\nregex = \"log\"\naction = \"drop\"\n";
    let name = "[[relabel]]\nsource_labels = [\"__target__\"]\ntarget_label = \"team.name\"\nreplacement = \"of-$1\"\n";
    let rules = "relabel = [{ source_labels = [\"team.name\"], regex = \"of-(db|rest)\", action = \"drop\" },\n\
                 { source_labels = [\"team.name\"], target_label = \"service.name\" }]";
    let export_section = backend.section("lab", rules);
    let all = |drop: &str| format!("{targets}{rest}{drop}{name}{export_section}");
    let mut daemon = Daemon::start_ample(1, &all(drop))?;
    let count =
        |key: &str| export(&daemon, "lab").ok().and_then(|export| export[key].as_u64()).unwrap_or_default();
    wait_until_told("windows", || count("left_out") >= 4 && count("pushed") >= 3)?;
    let shown = export(&daemon, "lab")?;
    ensure!(shown["refused"] == 0 && shown["dropped"] == 0 && shown["problem"].is_null(), "{shown}");
    let names: BTreeSet<String> =
        daemon.targets()?.iter().filter_map(|target| Some(target["name"].as_str()?.to_owned())).collect();
    ensure!(names == ["db", "rest", "web"].map(str::to_owned).into(), "{names:?}");
    ensure!(daemon.ctl_json(&["status"])?["targets"]["dropped"] == 1);
    ensure!(daemon.target("db")?["labels"]["team.name"] == "of-db", "{}", daemon.target("db")?);
    // It is not the rest's either. No other test's program is called so.
    let words = ["--from", "-10m", "--target", "rest", "--format", "folded"];
    wait_until_told("a window of the rest", || daemon.report(&words).is_ok_and(|report| report.status == 0))?;
    let folded = daemon.report(&words)?.stdout;
    ensure!(!folded.is_empty() && !folded.contains("logger-of-test"), "{folded}");
    // Rules that go let it come.
    daemon.write_settings(1, &all(""))?;
    daemon.ctl(&["reload"])?.expect_status(0)?;
    daemon.wait_for("log", "sampled")?;
    daemon.stop(Signal::SIGTERM)?.expect_status(0)?;
    let requests = backend.requests();
    let is_other = |request: &&Request| {
        !["name=of-web%7B", "name=of-log%7B"].iter().any(|name| request.line.contains(name))
    };
    let others: Vec<&str> = requests.iter().filter(is_other).map(|request| request.line.as_str()).collect();
    ensure!(others.is_empty(), "{others:?}");
    Ok(())
}

#[test]
fn a_window_that_is_refused_is_skipped_and_others_are_not() -> Result<()> {
    privileged!();
    let (busy, other) = (Busy::start()?, Busy::start()?);
    let backend = Backend::start(Play::SayOf("web", "400 Bad Request"))?;
    let targets = busy.section("web") + &other.section("db");
    let mut daemon = Daemon::start_ample(1, &(targets + &backend.section("lab", "")))?;
    let count =
        |key: &str| export(&daemon, "lab").ok().and_then(|export| export[key].as_u64()).unwrap_or_default();
    wait_until_told("refusals", || count("refused") >= 2 && count("pushed") >= 2)?;
    let ended = daemon.stop(Signal::SIGTERM)?.expect_status(0)?;
    let told = ended.stderr.matches("a window of web is refused").count();
    ensure!(told == 1 && ended.stderr.contains("refuses it (400)"), "{told}: {}", ended.stderr);
    let requests = backend.requests();
    let bodies: BTreeSet<_> = requests.iter().map(|request| &request.body).collect();
    ensure!(bodies.len() == requests.len(), "a window was sent again");
    Ok(())
}

/// A backend may fail with one window again and again, and with no other.
#[test]
fn a_window_that_breaks_the_backend_keeps_no_other_waiting() -> Result<()> {
    privileged!();
    let (busy, other) = (Busy::start()?, Busy::start()?);
    let backend = Backend::start(Play::SayOf("web", "500 Internal Server Error"))?;
    let targets = busy.section("web") + &other.section("db");
    let daemon = Daemon::start_ample(1, &(targets + &backend.section("lab", "")))?;
    wait_until_told("others beside one that fails", || {
        let has_failed = backend.requests().iter().any(|request| !request.is_taken);
        has_failed && export(&daemon, "lab").is_ok_and(|export| export["pushed"].as_u64() >= Some(4))
    })?;
    let requests = backend.requests();
    let repeated = requests
        .iter()
        .filter(|request| request.is_taken)
        .map(|request| &request.body)
        .collect::<BTreeSet<_>>();
    ensure!(
        repeated.len() == requests.iter().filter(|request| request.is_taken).count(),
        "a window came twice"
    );
    Ok(())
}

#[test]
fn a_backend_that_asks_to_wait_is_left_alone_for_that_time_and_gets_every_window() -> Result<()> {
    privileged!();
    let busy = Busy::start()?;
    // Unasked, the first pause is of a second at most.
    for answer in ["429 Too Many Requests\r\nretry-after: 3", "503 Service Unavailable\r\nretry-after: 3"] {
        let backend = Backend::start(Play::Say(answer))?;
        let daemon = Daemon::start_ample(1, &(busy.section("web") + &backend.section("lab", "")))?;
        wait_until("a request", || !backend.requests().is_empty())?;
        backend.plays(OK);
        wait_until("another", || backend.requests().len() >= 2)?;
        let requests = backend.requests();
        let waited = requests[1].at - requests[0].at;
        ensure!(waited >= Duration::from_millis(2_900) && waited < Duration::from_secs(60), "{waited:?}");
        ensure!(!requests[0].is_taken && requests[1].is_taken);
        // It may have been too large for a limit on the rate: others go first.
        let first = requests[0].body.clone();
        drop(requests);
        wait_until("the first window", || backend.taken().contains(&first))?;
        ensure!(wait_for_all(&daemon, &backend)? == 0, "windows came twice");
        ensure!(export(&daemon, "lab")?["refused"] == 0);
    }
    Ok(())
}

#[test]
fn a_backend_that_hangs_delays_neither_windows_nor_the_end() -> Result<()> {
    privileged!();
    let (busy, backend) = (Busy::start()?, Backend::start(Play::Wait)?);
    let other = Backend::start(OK)?;
    let exports = backend.section("stuck", "") + &other.section("lab", "");
    let mut daemon = Daemon::start_ample(1, &(busy.section("web") + &exports))?;
    wait_until("a request", || !backend.requests().is_empty() && other.taken().len() >= 3)?;
    let began = Instant::now();
    daemon.stop(Signal::SIGTERM)?.expect_status(0)?;
    // A request may take 30 s, which would be waited for.
    ensure!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    let first = backend.requests()[0].body.clone();
    backend.plays(OK);
    daemon.start_again()?;
    wait_for_all(&daemon, &backend)?;
    ensure!(backend.taken().contains(&first), "what was on its way is lost");
    ensure!(wait_for_all(&daemon, &other)? == 0, "windows came twice");
    Ok(())
}

#[test]
fn exports_come_change_and_go_with_the_settings() -> Result<()> {
    privileged!();
    let (busy, other, backend) = (Busy::start()?, Busy::start()?, Backend::start(OK)?);
    let targets = busy.section("web") + &other.section("db");
    let daemon = Daemon::start_ample(1, &targets)?;
    wait_for_windows(&daemon, 4)?;
    let before = stored(&daemon)?;
    let folder = tempfile::tempdir()?;
    let token = folder.path().join("token");
    fs::write(&token, "s3cret-one\n")?;
    let more = format!("targets = [\"^web$\"]\nlabels = {{ site = \"west\" }}\ntoken_file = {token:?}\n");
    daemon.write_settings(1, &(targets.clone() + &backend.section("lab", &more)))?;
    daemon.ctl(&["reload"])?.expect_status(0)?;
    wait_until("windows at the backend", || backend.requests().len() >= 3)?;
    for request in backend.requests().iter() {
        ensure!(
            request.line.contains("name=web%7B") && request.line.contains("site%3Dwest"),
            "{}",
            request.line
        );
        ensure!(request.token.as_deref() == Some("Bearer s3cret-one"));
        ensure!(!before.contains(&request.body), "a window from before");
    }
    // A token that changes is read anew once the old one is refused.
    backend.plays(Play::Say("401 Unauthorized"));
    wait_until_told("a failure", || {
        export(&daemon, "lab").is_ok_and(|export| export["problem"].is_string())
    })?;
    let problem = export(&daemon, "lab")?["problem"].to_string();
    ensure!(problem.contains("asks for a token (401)") && problem.contains("token_file"), "{problem}");
    fs::write(&token, "s3cret-two\n")?;
    backend.plays(OK);
    wait_until("the other token", || {
        backend.requests().iter().any(|request| request.token.as_deref() == Some("Bearer s3cret-two"))
    })?;
    // What cannot be carried out is refused, and the settings in force stay.
    fs::remove_file(&token)?;
    let refused = daemon.ctl(&["reload"])?;
    ensure!(
        refused.status != 0
            && refused.stderr.contains("export lab: ")
            && refused.stderr.contains("cannot be read"),
        "{refused:?}"
    );
    ensure!(daemon.store().join("exports/lab").is_file());
    daemon.write_settings(1, &targets)?;
    daemon.ctl(&["reload"])?.expect_status(0)?;
    wait_until("the cursor's end", || !daemon.store().join("exports/lab").exists())?;
    let (count, files) = (backend.requests().len(), daemon.files()?.len());
    wait_for_windows(&daemon, files + 4)?;
    ensure!(backend.requests().len() <= count + 1, "it goes on");
    ensure!(export(&daemon, "lab").is_err());
    Ok(())
}

#[test]
fn check_config_says_what_of_exports_the_daemon_would_refuse() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let check = |text: &str| -> Result<tests::run::Ended> {
        fs::write(folder.path().join("sweetspot.toml"), text)?;
        let mut command = Command::new(tests::run::sweetspot());
        tests::run::run(command.args(["check-config", "sweetspot.toml"]).current_dir(folder.path()))
    };
    let socket = |folder: &Path| format!("[listen]\nsocket = {:?}\n", folder.join("socket"));
    let export = "[[export]]\nname = \"lab\"\n";
    for (lines, word) in [
        ("to = \"http://backend:4040\"\ntoken_file = \"/nowhere/token\"", "without encryption"),
        ("to = \"https://backend\"\ntoken_file = \"/nowhere/token\"", "/nowhere/token cannot be read"),
        ("to = \"https://me@backend\"", "a user or a password"),
    ] {
        let ended = check(&format!("{}{export}{lines}\n", socket(folder.path())))?.expect_status(1)?;
        let line = "sweetspot.toml: export lab: ";
        ensure!(ended.stdout.contains(line) && ended.stdout.contains(word), "{lines}: {ended:?}");
    }
    let sound = check(&format!("{}{export}to = \"http://backend:4040\"\n", socket(folder.path())))?
        .expect_status(0)?;
    ensure!(sound.stdout.contains("; sends to lab\n"), "{sound:?}");
    ensure!(
        sound
            .stdout
            .contains("warning: export lab: profiles go to backend:4040 over the network in the clear"),
        "{sound:?}"
    );
    Ok(())
}
