//! `push` through the command line, with a backend that writes down what it gets and answers as backends do at their worst.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use flate2::read::MultiGzDecoder;
use prost::Message;
use tests::addresses::Reserved;
use tests::programs::program;
use tests::run::{Ended, Sweetspot, run, sweetspot};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// What a backend does with a request that it has read.
#[derive(Clone)]
enum Play {
    /// Says this and closes.
    Say(String),
    /// Closes.
    Hang,
    /// Says nothing until the client has gone.
    Wait,
    /// Sends an answer that has no end.
    Endless,
}

/// A request as it came.
#[derive(Debug)]
struct Request {
    line: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Request {
    fn read(stream: &TcpStream) -> Result<Request> {
        let mut stream = BufReader::new(stream);
        let mut next = || -> Result<String> {
            let mut line = String::new();
            stream.read_line(&mut line)?;
            Ok(line.trim_end().to_string())
        };
        let line = next()?;
        let mut headers = Vec::new();
        loop {
            let line = next()?;
            let Some((name, value)) = line.split_once(':') else { break };
            headers.push((name.to_lowercase(), value.trim().to_string()));
        }
        let mut request = Request { line, headers, body: Vec::new() };
        let length: usize = request.header("content-length").context("a length")?.parse()?;
        request.body.resize(length, 0);
        stream.read_exact(&mut request.body)?;
        Ok(request)
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// A backend on this machine. Its thread ends with the test's process.
struct Backend {
    url: String,
    requests: Receiver<Request>,
}

impl Backend {
    /// One that does the same with each request.
    fn start(play: Play) -> Result<Backend> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let url = format!("http://{}", listener.local_addr()?);
        let (sender, requests) = channel();
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let Ok(request) = Request::read(&stream) else { continue };
                let _ = sender.send(request);
                match &play {
                    Play::Say(text) => drop(stream.write_all(text.as_bytes())),
                    Play::Hang => {}
                    Play::Wait => drop(stream.read(&mut [0])),
                    Play::Endless => {
                        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
                        while stream.write_all(&[b'x'; 4096]).is_ok() {}
                    }
                }
            }
        });
        Ok(Backend { url, requests })
    }

    fn saying(text: &str) -> Result<Backend> {
        Backend::start(Play::Say(text.to_string()))
    }

    fn host(&self) -> &str {
        self.url.trim_start_matches("http://")
    }

    /// All requests so far.
    fn requests(&self) -> Vec<Request> {
        self.requests.try_iter().collect()
    }
}

/// A profile of a program that runs two functions, recorded once.
fn profile() -> Result<String> {
    static RECORDED: OnceLock<Result<Sweetspot, String>> = OnceLock::new();
    let record = || -> Result<Sweetspot> {
        let sweetspot = Sweetspot::new().options(&["--rate", "1000"]);
        let mix = program("mix_nofp")?.to_string_lossy().into_owned();
        let words = ["-o", &sweetspot.file("p.pb.gz"), "--", &mix, "--cpu", "0.5", "--out", "/dev/null"];
        run(&mut sweetspot.command("record", &words))?.expect_status(0)?;
        Ok(sweetspot)
    };
    let recorded = RECORDED.get_or_init(|| record().map_err(|error| format!("{error:#}")));
    recorded
        .as_ref()
        .map(|sweetspot| sweetspot.file("p.pb.gz"))
        .map_err(|error| anyhow::anyhow!(error.clone()))
}

fn push(words: &[&str]) -> Result<Ended> {
    let mut command = Command::new(sweetspot());
    // What is between this machine and others does not matter here.
    for proxy in ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"] {
        command.env_remove(proxy);
    }
    run(command.arg("push").args(words))
}

/// The number of samples in `sent FILE to HOST: N samples, …`.
fn samples_of(line: &str) -> Result<u64> {
    let rest = line.split_once(": ").context("no figures")?.1;
    Ok(rest.split_once(" samples, ").context("no samples")?.0.replace(',', "").parse()?)
}

#[test]
fn pyroscope_gets_the_file_and_whose_it_is() -> Result<()> {
    let (file, backend) = (profile()?, Backend::saying(OK)?);
    let words = [
        "--to",
        &backend.url,
        "--label",
        "team=a b",
        "--label",
        "host.name=web-1",
        "--header",
        "X-Scope-OrgID: t1",
    ];
    let ended = push(&[&[&*file][..], &words].concat())?.expect_status(0)?;
    let [request] = &backend.requests()[..] else { anyhow::bail!("not one request") };
    let name = "POST /ingest?name=mix_nofp%7Bhost_name%3Dweb-1%2Cprocess_executable_name%3Dmix_nofp%2Cteam%3Da+b%7D&from=";
    ensure!(request.line.starts_with(name) && request.line.ends_with(" HTTP/1.1"), "{request:?}");
    ensure!(request.line.contains("&until=") && request.line.contains("&format=pprof&"), "{request:?}");
    ensure!(request.header("x-scope-orgid") == Some("t1"), "{request:?}");
    ensure!(
        request.header("content-encoding").is_none(),
        "Pyroscope would look for pprof in what is unpacked"
    );
    ensure!(request.body == fs::read(&file)?, "not the file");
    let begin = format!("sent {file} to {}: ", backend.host());
    ensure!(ended.stdout.starts_with(&begin) && ended.stdout.ends_with(" KiB\n"), "{ended:?}");
    ensure!(
        samples_of(&ended.stdout[begin.len() - 2..])? > 0 && ended.stdout.contains(" CPU s, "),
        "{ended:?}"
    );
    ensure!(ended.stderr.is_empty(), "{ended:?}");
    Ok(())
}

/// The messages of Pyroscope's `push.v1.PusherService/Push` (`push.proto`).
mod pyroscope_push {
    #[derive(prost::Message)]
    pub(super) struct Request {
        #[prost(message, repeated, tag = "1")]
        pub(super) series: Vec<Series>,
    }
    #[derive(prost::Message)]
    pub(super) struct Series {
        #[prost(message, repeated, tag = "1")]
        pub(super) labels: Vec<Label>,
        #[prost(message, repeated, tag = "2")]
        pub(super) samples: Vec<Sample>,
    }
    #[derive(prost::Message)]
    pub(super) struct Label {
        #[prost(string, tag = "1")]
        pub(super) name: String,
        #[prost(string, tag = "2")]
        pub(super) value: String,
    }
    #[derive(prost::Message)]
    pub(super) struct Sample {
        #[prost(bytes = "vec", tag = "1")]
        pub(super) pprof: Vec<u8>,
    }
}

/// The acknowledgement of Pyroscope's Connect interface.
const OK_BY_CONNECT: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: application/proto\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

#[test]
fn pyroscope_gets_a_call_of_its_push_service() -> Result<()> {
    let (file, backend) = (profile()?, Backend::saying(OK_BY_CONNECT)?);
    let words = ["--format", "pyroscope-push", "--name", "a shop", "--label", "host.name=web-1"];
    let ended = push(&[&[&*file, "--to", &backend.url][..], &words].concat())?.expect_status(0)?;
    let [request] = &backend.requests()[..] else { anyhow::bail!("not one request") };
    ensure!(request.line == "POST /push.v1.PusherService/Push HTTP/1.1", "{request:?}");
    ensure!(request.header("content-type") == Some("application/proto"), "{request:?}");
    ensure!(request.header("connect-protocol-version") == Some("1"), "{request:?}");
    ensure!(request.header("content-encoding").is_none(), "{request:?}");
    let message = pyroscope_push::Request::decode(request.body.as_slice())?;
    let [series] = &message.series[..] else { anyhow::bail!("not one series: {message:?}") };
    let labels: Vec<String> =
        series.labels.iter().map(|label| format!("{}={}", label.name, label.value)).collect();
    let expected = [
        "__delta__=false",
        "__name__=process_cpu",
        "host_name=web-1",
        "process_executable_name=mix_nofp",
        "pyroscope_spy=sweetspot",
        "service_name=a_shop",
    ];
    ensure!(labels == expected, "{labels:?}");
    let [sample] = &series.samples[..] else { anyhow::bail!("{} samples", series.samples.len()) };
    ensure!(sample.pprof == fs::read(&file)?, "not the file");
    ensure!(ended.stdout.starts_with(&format!("sent {file} to {}: ", backend.host())), "{ended:?}");
    // The path says it as well.
    let url = format!("{}/push.v1.PusherService/Push", backend.url);
    push(&[&file, "--to", &url])?.expect_status(0)?;
    ensure!(backend.requests()[0].line == request.line);
    Ok(())
}

#[test]
fn an_error_of_pyroscopes_push_service_is_one_line_with_its_message() -> Result<()> {
    let file = profile()?;
    let faults = [
        ("400 Bad Request", "invalid_argument", 1, "refuses it (400): no labels;"),
        ("401 Unauthorized", "unauthenticated", 77, "asks for a token (401): no labels;"),
        (
            "429 Too Many Requests\r\nretry-after: 30",
            "resource_exhausted",
            1,
            "(429): no labels; push it again after 30 s",
        ),
        ("501 Not Implemented", "unimplemented", 1, "at /push.v1.PusherService/Push (501): no labels;"),
        ("503 Service Unavailable", "unavailable", 1, "(503): no labels; push it again later"),
        ("200 OK", "unknown", 1, "answers 200 without acknowledging a profile"),
    ];
    for (status, code, expected, words) in faults {
        let body = format!(r#"{{"code":"{code}","message":"no\nlabels"}}"#);
        let length = body.len();
        let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}");
        let backend = Backend::saying(&format!("{head}\r\nconnection: close\r\n\r\n{body}"))?;
        let ended =
            push(&[&file, "--to", &backend.url, "--format", "pyroscope-push"])?.expect_status(expected)?;
        ensure!(ended.stdout.is_empty() && ended.stderr.lines().count() == 1, "{code}: {ended:?}");
        ensure!(ended.stderr.contains(words) && !ended.stderr.contains('{'), "no {words} in {ended:?}");
    }
    Ok(())
}

/// The parts of a message that are looked at, with the numbers of protocol 1.10.
mod otlp {
    #[derive(prost::Message)]
    pub(super) struct Request {
        #[prost(message, repeated, tag = "1")]
        pub(super) resources: Vec<ResourceProfiles>,
        #[prost(message, optional, tag = "2")]
        pub(super) dictionary: Option<Dictionary>,
    }
    #[derive(prost::Message)]
    pub(super) struct ResourceProfiles {
        #[prost(message, repeated, tag = "2")]
        pub(super) scopes: Vec<ScopeProfiles>,
    }
    #[derive(prost::Message)]
    pub(super) struct ScopeProfiles {
        #[prost(message, repeated, tag = "2")]
        pub(super) profiles: Vec<Profile>,
    }
    #[derive(prost::Message)]
    pub(super) struct Dictionary {
        #[prost(string, repeated, tag = "5")]
        pub(super) strings: Vec<String>,
    }
    #[derive(prost::Message)]
    pub(super) struct Profile {
        #[prost(message, repeated, tag = "2")]
        pub(super) samples: Vec<Sample>,
        #[prost(int64, tag = "6")]
        pub(super) period: i64,
    }
    #[derive(prost::Message)]
    pub(super) struct Sample {
        #[prost(int64, repeated, tag = "4")]
        pub(super) values: Vec<i64>,
    }
}

#[test]
fn a_receiver_of_otlp_gets_every_sample_and_name() -> Result<()> {
    let (file, backend) = (profile()?, Backend::saying(OK)?);
    let ended = push(&[&file, "--to", &backend.url, "--format", "otlp"])?.expect_status(0)?;
    let [request] = &backend.requests()[..] else { anyhow::bail!("not one request") };
    ensure!(request.line == "POST /v1development/profiles HTTP/1.1", "{request:?}");
    ensure!(request.header("content-type") == Some("application/x-protobuf"), "{request:?}");
    ensure!(request.header("content-encoding") == Some("gzip"), "{request:?}");
    let mut bytes = Vec::new();
    MultiGzDecoder::new(request.body.as_slice()).read_to_end(&mut bytes)?;
    let message = otlp::Request::decode(bytes.as_slice())?;
    let [cpu, samples] = &message.resources[0].scopes[0].profiles[..] else {
        anyhow::bail!("not two profiles")
    };
    let sum = |profile: &otlp::Profile| profile.samples.iter().flat_map(|sample| &sample.values).sum::<i64>();
    let shown = samples_of(ended.stdout.trim_start_matches(&format!("sent {file} to {}", backend.host())))?;
    ensure!(sum(samples) as u64 == shown, "{} samples, and {shown} are shown", sum(samples));
    let cpu_s = format!(", {:.1} CPU s, ", sum(cpu) as f64 * 1e-9);
    ensure!(ended.stdout.contains(&cpu_s) && sum(cpu) > 300_000_000, "no {cpu_s} in {}", ended.stdout);
    ensure!(cpu.period > 0 && samples.period > 0);
    let strings = message.dictionary.context("a dictionary")?.strings;
    ensure!(strings.iter().any(|text| text == "work_a"), "{strings:?}");
    Ok(())
}

#[test]
fn what_is_not_acknowledged_is_an_error_of_a_line_that_says_what_to_do() -> Result<()> {
    let file = profile()?;
    let say = |text: &str| Play::Say(format!("HTTP/1.1 {text}\r\nconnection: close\r\n\r\n"));
    let said = |status: &str, body: &str| {
        let length = body.len();
        Play::Say(format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"))
    };
    let faults: &[(Play, i32, &[&str])] = &[
        (said("400 Bad Request", "labels are bad\n"), 1, &["refuses it (400): labels are bad", "--format"]),
        (say("401 Unauthorized"), 77, &["(401)", "--token-file"]),
        (say("403 Forbidden"), 77, &["(403)", "may write"]),
        (say("404 Not Found"), 1, &["does not accept profiles at /ingest (404)", "--to"]),
        (say("413 Content Too Large"), 1, &["does not accept a body of", "(413)", "limit"]),
        (say("429 Too Many Requests\r\nretry-after: 30"), 1, &["(429)", "after 30 s"]),
        (say("502 Bad Gateway"), 1, &["failed (502)", "later"]),
        (
            say("302 Found\r\nlocation: http://127.0.0.1:1/login"),
            1,
            &["redirects to http://127.0.0.1:1/login"],
        ),
        (Play::Hang, 1, &["broke off", "log"]),
        (Play::Wait, 1, &["did not answer in full within 2 s", "--timeout"]),
        (Play::Endless, 1, &["answers with more than 64 KiB", "--to"]),
        (Play::Say("SSH-2.0-OpenSSH_9.2\r\n".to_string()), 1, &["gives an unreadable answer", "--to"]),
    ];
    for (play, status, words) in faults {
        let backend = Backend::start(play.clone())?;
        let began = Instant::now();
        let timeout = if matches!(play, Play::Wait) { "2s" } else { "60s" };
        let ended = push(&[&file, "--to", &backend.url, "--timeout", timeout])?.expect_status(*status)?;
        ensure!(began.elapsed() < Duration::from_secs(20), "{:?} for {words:?}", began.elapsed());
        ensure!(ended.stdout.is_empty() && ended.stderr.lines().count() == 1, "{words:?}: {ended:?}");
        let begin = format!("sweetspot: {file} is not sent: {} ", backend.host());
        ensure!(ended.stderr.starts_with(&begin), "no {begin} in {ended:?}");
        ensure!(words.iter().all(|word| ended.stderr.contains(word)), "no {words:?} in {ended:?}");
    }
    Ok(())
}

#[test]
fn nobody_who_listens_is_an_error() -> Result<()> {
    let reserved = Reserved::new()?;
    let free = reserved.address();
    let ended = push(&[&profile()?, "--to", &format!("http://{free}")])?.expect_status(1)?;
    ensure!(ended.stderr.contains(&format!("{free} refuses the connection")), "{ended:?}");
    let ended = push(&[&profile()?, "--to", "http://nowhere.invalid:4040"])?.expect_status(1)?;
    ensure!(ended.stderr.contains("nowhere.invalid:4040"), "{ended:?}");
    Ok(())
}

#[test]
fn a_page_that_says_200_acknowledges_no_otlp_profile() -> Result<()> {
    let page = "<html>log in</html>";
    let length = page.len();
    let backend = Backend::saying(&format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{page}"))?;
    let ended = push(&[&profile()?, "--to", &backend.url, "--format", "otlp"])?.expect_status(1)?;
    ensure!(ended.stderr.contains("without acknowledging a profile"), "{ended:?}");
    Ok(())
}

#[test]
fn a_redirect_is_not_followed() -> Result<()> {
    let elsewhere = TcpListener::bind("127.0.0.1:0")?;
    elsewhere.set_nonblocking(true)?;
    let address = elsewhere.local_addr()?;
    for status in ["301 Moved Permanently", "302 Found", "303 See Other", "307 Temporary Redirect"] {
        let head = format!("HTTP/1.1 {status}\r\nlocation: http://{address}/\r\ncontent-length: 0\r\n\r\n");
        let ended = push(&[&profile()?, "--to", &Backend::saying(&head)?.url])?.expect_status(1)?;
        ensure!(ended.stderr.contains(&format!("redirects to http://{address}/")), "{ended:?}");
        ensure!(elsewhere.accept().is_err(), "{status}: it went elsewhere");
    }
    Ok(())
}

#[test]
fn a_token_is_sent_and_shown_nowhere() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let token = folder.path().join("token");
    fs::write(&token, "s3cret-t0ken\n")?;
    let body = "do not know s3cret-t0ken";
    let length = body.len();
    let backend =
        Backend::saying(&format!("HTTP/1.1 401 Unauthorized\r\ncontent-length: {length}\r\n\r\n{body}"))?;
    let mut command = Command::new(sweetspot());
    command
        .args(["push", &profile()?, "--to", &backend.url, "--token-file"])
        .arg(&token)
        .env("SWEETSPOT_LOG", "trace");
    let ended = run(&mut command)?.expect_status(77)?;
    ensure!(ended.stderr.contains("(401): do not know"), "{ended:?}");
    ensure!(!format!("{ended:?}").contains("s3cret"), "{ended:?}");
    let [request] = &backend.requests()[..] else { anyhow::bail!("not one request") };
    ensure!(request.header("authorization") == Some("Bearer s3cret-t0ken"), "{request:?}");
    Ok(())
}

#[test]
fn a_file_that_is_no_profile_stops_no_other() -> Result<()> {
    let (folder, backend) = (tempfile::tempdir()?, Backend::saying(OK)?);
    let other = folder.path().join("notes.txt");
    fs::write(&other, "no profile")?;
    let (other, gone) =
        (other.to_string_lossy(), folder.path().join("gone.pb.gz").to_string_lossy().into_owned());
    let ended = push(&[&other, &gone, &profile()?, "--to", &backend.url])?.expect_status(1)?;
    ensure!(ended.stdout.lines().count() == 1 && ended.stdout.starts_with("sent "), "{ended:?}");
    let [first, second] = &ended.stderr.lines().collect::<Vec<_>>()[..] else { anyhow::bail!("{ended:?}") };
    ensure!(first.contains(&*other) && first.contains("not a profile in pprof's format"), "{first}");
    ensure!(second.contains(&gone) && second.contains("cannot be read"), "{second}");
    ensure!(backend.requests().len() == 1);
    Ok(())
}

#[test]
fn a_backend_that_takes_nothing_is_asked_once() -> Result<()> {
    let backend = Backend::saying("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n")?;
    let file = profile()?;
    let ended = push(&[&file, &file, &file, "--to", &backend.url])?.expect_status(1)?;
    ensure!(backend.requests().len() == 1 && ended.stderr.contains("2 more files are not sent"), "{ended:?}");
    Ok(())
}
