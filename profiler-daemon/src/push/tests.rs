//! By TLS, against a backend with a certificate that is made for the test.

#![allow(clippy::print_stdout, reason = "a test that skips says why")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use profile_files::{pprof, store, testing};
use profiler_core::profile::{ProcessIndex, ProcessInfo};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, ServerConnection, Stream};
use ureq::tls::Certificate;

use super::pyroscope_push::tests::Pushed;
use super::*;

/// A certificate in `folder` for 127.0.0.1 that is valid for so many days from now, or nothing where there is no openssl.
pub(super) fn certificate(folder: &Path, days: &str) -> Option<()> {
    let mut request = Command::new("openssl");
    request.current_dir(folder).args([
        "req",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]);
    request.args(["-subj", "/CN=backend", "-addext", "subjectAltName=IP:127.0.0.1"]);
    request.args([
        "-addext",
        "basicConstraints=critical,CA:FALSE",
        "-keyout",
        "key.pem",
        "-out",
        "request.pem",
    ]);
    let mut sign = Command::new("openssl");
    sign.current_dir(folder).args([
        "x509",
        "-req",
        "-in",
        "request.pem",
        "-signkey",
        "key.pem",
        "-days",
        days,
    ]);
    sign.args(["-copy_extensions", "copy", "-out", "certificate.pem"]);
    let is_made = |mut command: Command| command.output().is_ok_and(|ended| ended.status.success());
    (is_made(request) && is_made(sign)).then_some(())
}

/// Answers each request with an acknowledgement, by TLS. The thread ends with the test's process.
fn backend(folder: &Path) -> String {
    let certificates = vec![CertificateDer::from_pem_file(folder.join("certificate.pem")).unwrap()];
    let key = PrivateKeyDer::from_pem_file(folder.join("key.pem")).unwrap();
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = Arc::new(config.with_no_client_auth().with_single_cert(certificates, key).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for mut tcp in listener.incoming().flatten() {
            let mut connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut tls = Stream::new(&mut connection, &mut tcp);
            if read_request(&mut tls).is_ok() {
                let _ = tls.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
            }
        }
    });
    url
}

/// All of a request, and its body: what is left unread when a connection is closed may take the answer with it.
fn read_request(stream: impl Read) -> std::io::Result<Vec<u8>> {
    let mut stream = BufReader::new(stream);
    let (mut line, mut length) = (String::new(), 0);
    while stream.read_line(&mut line)? > 2 {
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or_default();
        }
        line.clear();
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(body)
}

fn send(url: &str, authority: Option<&Path>) -> Result<usize, PushError> {
    let profile = testing::profile();
    send_file(url, authority, PushSource { pprof: pprof::encode(&profile), profile, stamp: None })
}

fn send_file(url: &str, authority: Option<&Path>, source: PushSource) -> Result<usize, PushError> {
    let receiver = Receiver::new(url, None).unwrap();
    let authorities = authority.map(|folder| {
        vec![Certificate::from_pem(&std::fs::read(folder.join("certificate.pem")).unwrap()).unwrap()]
    });
    let access = PushAccess { headers: Vec::new(), authorities, timeout: Duration::from_secs(20) };
    let identity = PushNaming::default().identity(&source.profile, None);
    let mut left = PartsLeft::all_of(source.profile.stacks.len());
    PushClient::new(&receiver, &access).unwrap().send(&source, &identity, &mut left, |_| {})
}

#[test]
fn only_a_certificate_that_is_trusted_and_valid_gets_a_profile() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    if certificate(folder.path(), "2").is_none() || certificate(other.path(), "0").is_none() {
        println!("skipped: this needs openssl");
        return;
    }
    let url = backend(folder.path());
    assert!(send(&url, Some(folder.path())).unwrap() > 0);
    let error = |sent: Result<usize, PushError>| sent.unwrap_err().to_string();
    let unknown = error(send(&url, None));
    assert!(
        unknown.contains("not signed by a known authority") && unknown.contains("--ca-file"),
        "{unknown}"
    );
    let renamed = error(send(&url.replace("127.0.0.1", "localhost"), Some(folder.path())));
    assert!(renamed.contains("is for another name"), "{renamed}");
    // It was valid for the second in which it was made.
    thread::sleep(Duration::from_millis(1_100));
    let ended = error(send(&backend(other.path()), Some(other.path())));
    assert!(ended.contains("has expired"), "{ended}");
    let plain = error(send(&url.replace("https", "http"), None));
    assert!(plain.contains("127.0.0.1"), "{plain}");
}

/// A backend that reads nothing but the head of a request closes the connection in the midst of a long body.
#[test]
fn a_body_that_is_too_long_is_refused_before_it_is_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let head = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
        let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
        stream.write_all(b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 0\r\n\r\n").unwrap();
        // A client that was kept from reading this for a second sends its body all the same.
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
        head
    });
    let profile = testing::profile();
    let identity = PushNaming::default().identity(&profile, None);
    let source = PushSource { profile, pprof: vec![0; 8 << 20], stamp: None };
    let access = PushAccess { headers: Vec::new(), authorities: None, timeout: Duration::from_secs(60) };
    let mut client = PushClient::new(&Receiver::new(&url, None).unwrap(), &access).unwrap();
    let refused = client.request(&source, &identity, true).unwrap_err();
    assert!(
        matches!(&refused, PushError::TooLong(text) if text.contains("does not accept a body of 8.0 MiB (413)")),
        "{refused}"
    );
    drop(client);
    let head = head.join().unwrap();
    assert!(head.iter().any(|line| line.eq_ignore_ascii_case("expect: 100-continue")), "{head:?}");
}

/// A proxy may know nothing of `Expect` (RFC 9110, 10.1.1).
#[test]
fn a_backend_that_refuses_to_be_asked_beforehand_gets_the_body_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let refusals = Arc::new(AtomicUsize::new(0));
    let refused = Arc::clone(&refusals);
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = BufReader::new(stream.try_clone().unwrap());
            let lines = request.by_ref().lines().map_while(Result::ok).map(|line| line.to_lowercase());
            let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            let value = |name: &str| head.iter().find_map(|line| line.strip_prefix(name));
            let status = if value("expect:").is_some() {
                refused.fetch_add(1, Ordering::Relaxed);
                "417 Expectation Failed"
            } else {
                let length = value("content-length:").unwrap().trim().parse().unwrap();
                std::io::copy(&mut request.by_ref().take(length), &mut std::io::sink()).unwrap();
                "200 OK"
            };
            write!(stream, "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").unwrap();
            // A client that was kept from reading this for a second sends its body all the same.
            let _ = stream.set_read_timeout(Some(Duration::from_secs(20)));
            let _ = std::io::copy(&mut request, &mut std::io::sink());
        }
    });
    let profile = testing::profile();
    let identity = PushNaming::default().identity(&profile, None);
    let source = PushSource { profile, pprof: vec![0; 1 << 20], stamp: None };
    let access = PushAccess { headers: Vec::new(), authorities: None, timeout: Duration::from_secs(60) };
    let mut client = PushClient::new(&Receiver::new(&url, None).unwrap(), &access).unwrap();
    for _ in 0..2 {
        assert_eq!(client.request(&source, &identity, true).unwrap(), 1 << 20);
    }
    assert_eq!(refusals.load(Ordering::Relaxed), 1, "it is asked once");
}

/// Answers by the length of a body, and by how many it took before; the bodies that it took.
fn choosy(status: fn(usize, usize) -> &'static str) -> (String, Arc<Mutex<Vec<Vec<u8>>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let taken = Arc::<Mutex<Vec<Vec<u8>>>>::default();
    let takes = Arc::clone(&taken);
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let Ok(body) = read_request(&stream) else { continue };
            let mut taken = takes.lock().unwrap();
            let status = status(body.len(), taken.len());
            if status.starts_with("200") {
                taken.push(body);
            }
            let _ = write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        }
    });
    (url, taken)
}

/// A profile of so many stacks that differ by their process.
pub(super) fn large(stacks: u32) -> PushSource {
    let mut profile = testing::profile();
    let (stack, process) = (profile.stacks[0].clone(), profile.processes[0].clone());
    for pid in 0..stacks {
        let at = ProcessIndex(profile.processes.len() as u32);
        profile.processes.push(ProcessInfo { pid: 1_000 + pid, ..process.clone() });
        profile.stacks.push(WeightedStack { process: at, ..stack.clone() });
    }
    PushSource { pprof: source::gzip(&pprof::encode(&profile)).unwrap(), profile, stamp: None }
}

/// One that fails after two parts, and takes the rest when it is asked again.
#[test]
fn a_profile_that_is_too_long_arrives_once_in_parts_though_the_backend_fails_midway() {
    static FAILURES: AtomicUsize = AtomicUsize::new(0);
    let (url, taken) = choosy(|bytes, taken| match (bytes, taken) {
        (4_001.., _) => "413 Content Too Large",
        (_, 2) if FAILURES.fetch_add(1, Ordering::Relaxed) == 0 => "500 Internal Server Error",
        _ => "200 OK",
    });
    let source = large(3_000);
    assert!(source.pprof.len() > 8_000, "{}", source.pprof.len());
    let access = PushAccess { headers: Vec::new(), authorities: None, timeout: Duration::from_secs(60) };
    let mut client = PushClient::new(&Receiver::new(&url, None).unwrap(), &access).unwrap();
    let identity = PushNaming::default().identity(&source.profile, None);
    let mut left = PartsLeft::all_of(source.profile.stacks.len());
    let mut kept = None;
    let failed = client.send(&source, &identity, &mut left, |left| kept = Some(left.clone())).unwrap_err();
    assert!(matches!(failed, PushError::Failed { .. }) && left.acknowledged() == 2, "{failed:?}");
    // One that is killed here goes on with what was kept.
    let mut left = kept.filter(|kept| kept.acknowledged() == 2).unwrap();
    let bytes = client.send(&source, &identity, &mut left, |_| {}).unwrap();
    let taken = taken.lock().unwrap();
    assert_eq!(bytes, taken.iter().map(Vec::len).sum::<usize>());
    let stacks = taken.iter().map(|body| pprof::read(body.as_slice()).unwrap().stacks);
    let mut sent: Vec<(u64, u64)> = stacks.flatten().map(|stack| (stack.cpu_ns, stack.samples)).collect();
    let mut all: Vec<_> = source.profile.stacks.iter().map(|stack| (stack.cpu_ns, stack.samples)).collect();
    sent.sort_unstable();
    all.sort_unstable();
    assert_eq!(sent, all);
}

/// The parts of a profile for Pyroscope's Connect call are whole files, each with the labels and an id of its own.
#[test]
fn a_call_that_is_too_long_arrives_in_parts_of_one_series() {
    let (url, taken) = choosy(|bytes, _| match bytes {
        4_001.. => "413 Content Too Large",
        _ => "200 OK\r\ncontent-type: application/proto",
    });
    let source = large(3_000);
    let access = PushAccess { headers: Vec::new(), authorities: None, timeout: Duration::from_secs(60) };
    let receiver = Receiver::new(&url, Some(ExportFormat::PyroscopePush)).unwrap();
    let identity = PushNaming::default().identity(&source.profile, None);
    let mut left = PartsLeft::all_of(source.profile.stacks.len());
    let sent = PushClient::new(&receiver, &access).unwrap().send(&source, &identity, &mut left, |_| {});
    let taken = taken.lock().unwrap();
    assert_eq!(sent.unwrap(), taken.iter().map(Vec::len).sum::<usize>());
    let parts: Vec<Pushed> = taken.iter().map(|body| Pushed::read(body)).collect();
    assert!(parts.len() > 2 && parts.iter().all(|part| part.labels == parts[0].labels), "{}", parts.len());
    let ids: BTreeSet<&str> = parts.iter().map(|part| part.id.as_str()).collect();
    assert_eq!(ids.len(), parts.len());
    let stacks = parts.iter().map(|part| pprof::read(part.pprof.as_slice()).unwrap().stacks);
    let mut sent: Vec<(u64, u64)> = stacks.flatten().map(|stack| (stack.cpu_ns, stack.samples)).collect();
    let mut all: Vec<_> = source.profile.stacks.iter().map(|stack| (stack.cpu_ns, stack.samples)).collect();
    sent.sort_unstable();
    all.sort_unstable();
    assert_eq!(sent, all);
}

#[test]
fn a_file_of_the_store_is_called_as_its_target_with_its_labels() {
    let folder = tempfile::tempdir().unwrap();
    let minute_ns = 60_000_000_000;
    let mut profile = testing::profile();
    (profile.run.duration_s, profile.run.target) = (60.0, "4 processes".to_owned());
    let now =
        store::Now { unix_ns: profile.run.start_unix_ns, boot: "boot".to_owned(), monotonic_ns: minute_ns };
    let settings = store::StoreTerms {
        age_ns: u64::MAX,
        bytes: 1 << 30,
        hourly_after_ns: u64::MAX,
        daily_after_ns: u64::MAX,
    };
    let labels = BTreeMap::from([("team".to_owned(), "search".to_owned())]);
    let window = store::TargetWindow {
        target: "shop".to_owned(),
        labels,
        boot: "boot".to_owned(),
        from_ns: 0,
        to_ns: minute_ns,
        begin_unix_ns: profile.run.start_unix_ns,
    };
    let mut store = store::Store::open(folder.path(), settings, store::RealDisk).unwrap();
    store.write(&now, window, &profile).unwrap();
    let files = |folder: &Path| {
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
    };
    let day = files(folder.path()).into_iter().find(|path| path.is_dir()).unwrap();
    let source = PushSource::read(&files(&day)[0]).unwrap();
    let identity = PushNaming::default().identity(&source.profile, source.stamp.as_ref());
    assert_eq!((identity.service.as_str(), identity.labels["team"].as_str()), ("shop", "search"));
}

#[test]
fn a_profile_that_is_not_compressed_is_sent_compressed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.pb");
    std::fs::write(&path, pprof::encode(&testing::profile())).unwrap();
    let source = PushSource::read(&path).unwrap();
    assert_eq!(source.pprof[..2], [0x1f, 0x8b]);
    assert_eq!(pprof::read(source.pprof.as_slice()).unwrap().stacks.len(), source.profile.stacks.len());
}

#[test]
fn a_line_says_what_was_sent() {
    assert_eq!(contents(&testing::profile()), "602 samples, 10.0 CPU s");
}
