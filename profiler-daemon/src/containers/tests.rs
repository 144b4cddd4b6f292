//! Runtimes on sockets of their own: one that is sound, and those that hang, are missing or send rubbish.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tempfile::TempDir;

use super::*;

/// Serves CRI for the rest of the test: `containers` of the list, and status 12 for pods if they are not served.
fn serve_cri(socket: &Path, list: Vec<u8>, status: &'static str) {
    let listener = UnixListener::bind(socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::UnixListener::from_std(listener).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let list = list.clone();
                let answer = service_fn(move |request: Request<hyper::body::Incoming>| {
                    let message =
                        if request.uri().path() == cri::CONTAINERS { list.clone() } else { Vec::new() };
                    async move { Ok::<_, Infallible>(grpc(message, status)) }
                });
                let connection =
                    http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), answer);
                tokio::spawn(connection);
            }
        });
    });
}

fn grpc(
    message: Vec<u8>,
    status: &str,
) -> Response<impl hyper::body::Body<Data = Bytes, Error = Infallible> + use<>> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", status.parse().unwrap());
    let data = Full::new(Bytes::from(frame::framed(&message)));
    let body = data.with_trailers(std::future::ready(Some(Ok(trailers))));
    Response::builder().header("content-type", "application/grpc").body(body).unwrap()
}

/// A list of one container: its id, its name and its image.
fn list() -> Vec<u8> {
    let field = |number: u8, bytes: &[u8]| [&[number << 3 | 2, bytes.len() as u8], bytes].concat();
    let (name, image) = (field(1, b"server"), field(1, b"cart:1"));
    field(1, &[field(1, id().as_bytes()), field(3, &name), field(4, &image)].concat())
}

fn id() -> String {
    "a".repeat(64)
}

/// Answers each connection with these bytes, whatever is sent, and keeps it open.
fn serve_bytes(socket: &Path, bytes: &'static [u8]) {
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            if !bytes.is_empty() {
                let _ = stream.read(&mut [0; 1000]);
                let _ = stream.write_all(bytes);
            }
            open.push(stream);
        }
    });
}

fn settings(sockets: &[PathBuf]) -> DaemonSettings {
    let sockets: Vec<String> = sockets.iter().map(|socket| format!("{socket:?}")).collect();
    let text = format!(
        "[containers]\nsockets = [{}]\n[[target]]\nname = \"a\"\nnamespace = \"x\"\n",
        sockets.join(", ")
    );
    DaemonSettings::parse(text.as_bytes()).unwrap()
}

/// The runtimes once all of them were asked.
fn asked(sockets: &[PathBuf]) -> (Runtimes, Arc<ContainerNames>) {
    let mut runtimes = Runtimes::default();
    runtimes.adopt(&settings(sockets), Need::Nothing);
    let until = Instant::now() + Duration::from_secs(120);
    loop {
        if let Some(names) = runtimes.take() {
            return (runtimes, names);
        }
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn one_runtime_answers_beside_others_that_do_not() {
    let folder = TempDir::new().unwrap();
    let [cri, docker, hanging, missing, rubbish] =
        ["cri", "a.sock", "hanging", "missing", "docker.sock"].map(|name| folder.path().join(name));
    serve_cri(&cri, list(), "0");
    serve_bytes(&docker, b"HTTP/1.1 200 OK\r\ncontent-length: 105\r\n\r\n[{\"Id\":\"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\",\"Names\":[\"/web\"],\"Image\":\"i\"}]  ");
    serve_bytes(&hanging, b"");
    serve_bytes(&rubbish, b"\x00\xff\x00rubbish\r\n\r\n");
    let began = Instant::now();
    let (runtimes, names) = asked(&[cri, docker, hanging, missing, rubbish]);
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    assert_eq!(names.get(&id()).and_then(|container| container.name.as_deref()), Some("server"));
    let web = names.get(&"b".repeat(64)).unwrap_or_else(|| panic!("{:?}", runtimes.status()));
    assert_eq!(web.name.as_deref(), Some("web"), "the name of the socket is only a hint");
    let status = runtimes.status();
    let protocols: Vec<_> = status.iter().map(|one| one.protocol).collect();
    assert_eq!(protocols, [Some(Protocol::Cri), Some(Protocol::Engine), None, None, None]);
    assert_eq!(status.iter().map(|one| one.failed).collect::<Vec<_>>(), [0, 0, 1, 1, 1]);
    let degraded = runtimes.degraded();
    assert_eq!(degraded.len(), 3, "{degraded:?}");
    assert!(
        degraded[0].contains("does not answer within") && degraded[1].contains("no such socket"),
        "{degraded:?}"
    );
    runtimes.end();
}

#[test]
fn a_runtime_that_does_not_serve_this_version_says_so() {
    let folder = TempDir::new().unwrap();
    let [old, refusing, broken] = ["old", "refusing", "broken"].map(|name| folder.path().join(name));
    serve_cri(&old, list(), "12");
    serve_cri(&refusing, list(), "7");
    serve_cri(&broken, b"\xff\xff\xff".to_vec(), "0");
    let (runtimes, names) = asked(&[old, refusing, broken]);
    assert_eq!(names.len(), 0);
    let degraded = runtimes.degraded().join("\n");
    for text in ["does not serve runtime.v1", "it refused the request (status 7)", "is not understood"] {
        assert!(degraded.contains(text), "{degraded}");
    }
    runtimes.end();
}

#[test]
fn nobody_is_asked_for_what_nobody_needs() {
    let folder = TempDir::new().unwrap();
    let mut settings = settings(&[folder.path().join("cri")]);
    settings.targets[0].namespace = None;
    settings.targets[0].each = Some(config::Each::Unit);
    let mut runtimes = Runtimes::default();
    runtimes.adopt(&settings, Need::Nothing);
    assert!(!runtimes.are_needed() && !runtimes.has_thread && runtimes.degraded().is_empty());
    let rule = b"[[relabel]]\nsource_labels = [\"k8s.pod.name\"]\naction = \"keep\"\n";
    let rules = DaemonSettings::parse(rule).unwrap().relabel;
    assert_eq!(Need::of(&DaemonSettings { relabel: rules, ..settings.clone() }), Need::Labels);
    settings.targets[0].each = Some(config::Each::Container);
    assert_eq!(Need::of(&settings), Need::Labels);
    settings.targets[0].each = Some(config::Each::Workload);
    assert_eq!(Need::of(&settings), Need::Targets);
    runtimes.adopt(&settings, Need::Nothing);
    assert!(runtimes.has_thread);
    runtimes.end();
}
