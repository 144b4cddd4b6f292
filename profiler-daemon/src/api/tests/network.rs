//! The network: tokens, names and encryption.

use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::*;

fn write_token(path: &Path, token: &str) {
    let mut file =
        std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path).unwrap();
    writeln!(file, "{token}").unwrap();
}

fn networked(change: impl FnOnce(&mut DaemonSettings, &TempDir)) -> Daemon {
    Daemon::with(ApiBounds::default(), |settings, folder| {
        let file = folder.path().join("token");
        write_token(&file, TOKEN);
        settings.listen.tcp = "127.0.0.1:0".parse().ok();
        settings.listen.token_file = Some(file);
        change(settings, folder);
    })
}

fn address(daemon: &Daemon) -> SocketAddr {
    daemon.server.as_ref().and_then(Server::address).unwrap()
}

fn over_tcp(daemon: &Daemon, path: &str, headers: &str) -> Got {
    let stream = TcpStream::connect(address(daemon)).unwrap();
    exchange(stream, format!("GET {path} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n").as_bytes())
}

#[test]
fn nothing_but_health_answers_without_the_token() {
    let daemon = networked(|_, _| {});
    daemon.heard.ready.store(true, Ordering::Relaxed);
    let secret: Vec<&str> = vec![
        "/v1/status",
        "/v1/targets",
        "/v1/targets/web",
        "/v1/targets/web/decisions",
        "/v1/profile?from=-1h",
        "/v1/openapi.json",
        "/metrics",
        "/debug/pprof/",
        "/debug/pprof/profile?seconds=1",
        "/",
        "/nothing",
        "/v1/attach",
        "/healthz/../v1/status",
        "/healthz%2f",
    ];
    let host = "Host: localhost\r\n";
    for path in &secret {
        let got = over_tcp(&daemon, path, host);
        assert_eq!(got.status, 401, "{path}");
        assert!(got.head.contains("www-authenticate: bearer"), "{}", got.head);
    }
    for path in ["/healthz", "/readyz"] {
        assert_eq!(over_tcp(&daemon, path, host).status, 200, "{path}");
    }
    let cut = &TOKEN[1..];
    for wrong in [
        "Bearer".to_owned(),
        "Bearer ".to_owned(),
        format!("Bearer {cut}"),
        format!("Bearer {TOKEN}0"),
        format!("Bearer {}", TOKEN.to_uppercase()),
        format!("Basic {TOKEN}"),
        TOKEN.to_owned(),
        format!("Bearer {TOKEN}\r\nAuthorization: Bearer {TOKEN}"),
        format!("Bearer {cut}\r\nAuthorization: Bearer {TOKEN}"),
    ] {
        let got = over_tcp(&daemon, "/v1/status", &format!("{host}Authorization: {wrong}\r\n"));
        assert_eq!(got.status, 401, "{wrong}");
        assert!(!got.text().contains(cut), "the token is told");
    }
    assert_eq!(over_tcp(&daemon, &format!("/v1/status?token={TOKEN}"), host).status, 401);
    for right in [format!("Bearer {TOKEN}"), format!("bearer {TOKEN}")] {
        let got = over_tcp(&daemon, "/v1/status", &format!("{host}Authorization: {right}\r\n"));
        assert_eq!(got.status, 200, "{}", got.text());
    }
}

/// As the files of a Secret are: another file takes the place of the old one.
#[test]
fn a_token_that_is_renewed_in_its_file_is_in_force_without_a_reload() {
    let other = "ffffffffffffffffffffffffffffffff";
    let bounds = ApiBounds { renewal: Duration::from_millis(5), ..ApiBounds::default() };
    let mut file = None;
    let daemon = Daemon::with(bounds, |settings, folder| {
        let token = folder.path().join("token");
        write_token(&token, TOKEN);
        settings.listen.tcp = "127.0.0.1:0".parse().ok();
        settings.listen.token_file = Some(token.clone());
        file = Some(token);
    });
    let file = file.unwrap();
    let asked = |token: &str| {
        over_tcp(&daemon, "/v1/status", &format!("Host: localhost\r\nAuthorization: Bearer {token}\r\n"))
            .status
    };
    assert_eq!((asked(TOKEN), asked(other)), (200, 401));
    // One that cannot be used changes nothing.
    std::fs::write(&file, "short").unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(asked(TOKEN), 200);
    let next = file.with_extension("next");
    write_token(&next, other);
    std::fs::rename(&next, &file).unwrap();
    while asked(other) != 200 {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(asked(TOKEN), 401);
}

/// What Prometheus holds opens what Prometheus reads.
#[test]
fn the_token_for_metrics_opens_nothing_else() {
    let other = "eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee";
    let daemon = networked(|settings, folder| {
        let file = folder.path().join("metrics.token");
        write_token(&file, other);
        settings.listen.metrics_token_file = Some(file);
    });
    let asked = |path: &str, token: &str| {
        over_tcp(&daemon, path, &format!("Host: localhost\r\nAuthorization: Bearer {token}\r\n"))
    };
    assert_eq!((asked("/metrics", other).status, asked("/metrics", TOKEN).status), (200, 200));
    for path in ["/v1/status", "/v1/profile?from=-1h", "/v1/stop", "/debug/pprof/", "/nothing", "/metrics/"] {
        let got = asked(path, other);
        assert_eq!(got.status, 401, "{path}");
        assert!(got.text().contains("for /metrics alone"), "{}", got.text());
    }
    assert_eq!(asked("/metrics", &other[1..]).status, 401);
}

#[test]
fn a_name_that_is_not_ours_is_refused_with_the_token_too() {
    let daemon = networked(|_, _| {});
    let port = address(&daemon).port();
    let authorization = format!("Authorization: Bearer {TOKEN}\r\n");
    for (host, status) in [
        (format!("127.0.0.1:{port}"), 200),
        (format!("localhost:{port}"), 200),
        ("localhost".to_owned(), 200),
        ("127.0.0.1".to_owned(), 200),
        (format!("rebound.example.org:{port}"), 421),
        ("localhost.example.org".to_owned(), 421),
        ("127.0.0.1.example.org".to_owned(), 421),
        ("192.0.2.7".to_owned(), 421),
        ("[::ffff:127.0.0.1]".to_owned(), 200),
        ("sweetspot".to_owned(), 421),
    ] {
        let got = over_tcp(&daemon, "/v1/status", &format!("Host: {host}\r\n{authorization}"));
        assert_eq!(got.status, status, "{host}: {}", got.text());
        let open = over_tcp(&daemon, "/healthz", &format!("Host: {host}\r\n"));
        assert_eq!(open.status, status, "{host}");
    }
    assert_eq!(over_tcp(&daemon, "/v1/status", &authorization).status, 421);
    let page = format!("Host: localhost\r\n{authorization}Origin: http://localhost:{port}\r\n");
    assert_eq!(over_tcp(&daemon, "/v1/status", &page).status, 403);
}

#[test]
fn a_new_token_counts_at_once_and_the_network_can_be_left() {
    let mut daemon = networked(|_, _| {});
    let other = "ffffffffffffffffffffffffffffffff";
    write_token(daemon.settings.listen.token_file.as_ref().unwrap(), other);
    let asked = |daemon: &Daemon, token: &str| {
        over_tcp(daemon, "/v1/status", &format!("Host: localhost\r\nAuthorization: Bearer {token}\r\n"))
            .status
    };
    assert_eq!((asked(&daemon, TOKEN), asked(&daemon, other)), (200, 401));
    let mut settings = daemon.settings.clone();
    daemon.server.as_mut().unwrap().reload(&settings).unwrap();
    assert_eq!((asked(&daemon, TOKEN), asked(&daemon, other)), (401, 200));

    let open = TcpStream::connect(address(&daemon)).unwrap();
    // Let in before the settings change, and asked after: the network is no way any more.
    assert_eq!(asked(&daemon, other), 200);
    let left = address(&daemon);
    settings.listen.tcp = None;
    settings.listen.token_file = None;
    daemon.server.as_mut().unwrap().reload(&settings).unwrap();
    let request = format!(
        "GET /v1/status HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {other}\r\nConnection: close\r\n\r\n"
    );
    assert_eq!(exchange(open, request.as_bytes()).status, 403);
    assert_eq!(daemon.get("/v1/status").status, 200);
    assert_eq!(daemon.server.as_ref().unwrap().address(), None);
    while TcpStream::connect(left).is_ok() {
        std::thread::sleep(Duration::from_millis(10)); // until the thread has heard of it
    }
}

#[test]
fn an_address_that_its_own_is_in_the_way_of_takes_its_place_and_a_wrong_one_leaves_it() {
    let mut daemon = networked(|_, _| {});
    let port = address(&daemon).port();
    let mut move_to = |ip: &str| {
        let mut settings = daemon.settings.clone();
        settings.listen.tcp = Some(format!("{ip}:{port}").parse().unwrap());
        let moved = daemon.server.as_mut().unwrap().reload(&settings);
        let status = over_tcp(&daemon, "/healthz", &format!("Host: 127.0.0.1:{port}\r\n")).status;
        (moved.err().map(|error| error.to_string()), status)
    };
    for ip in ["127.0.0.1", "0.0.0.0", "127.0.0.1"] {
        assert_eq!(move_to(ip), (None, 200), "{ip}");
    }
    let (error, status) = move_to("192.0.2.7"); // nobody's
    assert!(error.is_some_and(|error| error.contains("cannot listen at")));
    assert_eq!(status, 200);
    assert_eq!(address(&daemon).port(), port);
}

#[test]
fn settings_that_cannot_be_carried_out_move_no_listener() {
    let mut daemon = networked(|_, _| {});
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut settings = daemon.settings.clone();
    settings.listen.socket = daemon.folder.path().join("new.sock");
    settings.listen.tcp = Some(taken.local_addr().unwrap());
    assert!(daemon.server.as_mut().unwrap().reload(&settings).is_err());
    assert!(!settings.listen.socket.exists());
    assert_eq!(
        (daemon.get("/healthz").status, over_tcp(&daemon, "/healthz", "Host: localhost\r\n").status),
        (200, 200)
    );
}

/// Whoever shows no token takes no more of us than the rate that is meant for all such.
#[test]
fn answers_without_a_token_have_a_rate() {
    let daemon = networked(|_, _| {});
    let begun = std::time::Instant::now();
    let mut stream = TcpStream::connect(address(&daemon)).unwrap();
    for _ in 0..60 {
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut answer = [0; 4096];
        let length = stream.read(&mut answer).unwrap();
        assert_eq!(parse(&answer[..length]).status, 200);
    }
    assert!(begun.elapsed() > Duration::from_millis(900), "{:?}", begun.elapsed());
    // A refusal ends the connection; the socket knows nothing of all this.
    stream.write_all(b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let refused = parse(&answer);
    assert_eq!(refused.status, 401);
    assert!(refused.head.contains("connection: close"), "{}", refused.head);
    // At the network's rate these would take 13 s.
    let begun = std::time::Instant::now();
    (0..300).for_each(|_| assert_eq!(daemon.get("/healthz").status, 200));
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

/// A client that opens connections and says nothing shuts out neither those who show the token nor himself. Heads have an
/// hour: whoever had to wait for one would not be answered.
#[test]
fn connections_that_say_nothing_shut_nobody_out() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    write_token(&token, TOKEN);
    let bounds = ApiBounds { head: Duration::from_secs(3600), ..ApiBounds::default() };
    let daemon = Daemon::with(bounds, |settings, _| {
        settings.listen.tcp = "127.0.0.1:0".parse().ok();
        settings.listen.token_file = Some(token.clone());
    });
    let right = format!("Host: localhost\r\nAuthorization: Bearer {TOKEN}\r\n");
    let ask = format!("GET /v1/status HTTP/1.1\r\n{right}\r\n");
    let mut kept = TcpStream::connect(address(&daemon)).unwrap();
    let answered = |stream: &mut TcpStream| {
        stream.write_all(ask.as_bytes()).unwrap();
        let mut answer = [0; 16 << 10];
        let length = stream.read(&mut answer).unwrap();
        parse(&answer[..length]).status
    };
    assert_eq!(answered(&mut kept), 200);
    let silent: Vec<TcpStream> = (0..193)
        .map(|at| {
            let mut stream = TcpStream::connect(address(&daemon)).unwrap();
            let said: &[u8] = if at % 2 == 0 { b"" } else { b"GET /v1/status HTTP/1.1\r\nHost: loc" };
            stream.write_all(said).unwrap();
            stream
        })
        .collect();
    assert_eq!(over_tcp(&daemon, "/v1/status", &right).status, 200);
    assert_eq!(over_tcp(&daemon, "/healthz", "Host: localhost\r\n").status, 200);
    assert_eq!(answered(&mut kept), 200, "whoever has shown the token keeps his place");
    drop(silent);
}

#[test]
fn an_address_that_is_taken_is_refused_and_nothing_is_left() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    write_token(&token, TOKEN);
    let mut settings = DaemonSettings::default();
    settings.listen.socket = folder.path().join("sock");
    settings.listen.tcp = Some(taken.local_addr().unwrap());
    settings.listen.token_file = Some(token);
    let error = super::super::start(&settings, command::channel().0).err().unwrap().to_string();
    assert!(error.contains("cannot listen at"), "{error}");
    assert!(!settings.listen.socket.exists());
}

/// A key and a certificate of its own for these names, or nothing where there is no openssl.
fn certificate(folder: &Path) -> Option<()> {
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
        ])
        .args([
            "-subj",
            "/CN=profiles.example.org",
            "-addext",
            "subjectAltName=DNS:profiles.example.org,IP:127.0.0.1",
        ])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(folder.join("key.pem"))
        .arg("-out")
        .arg(folder.join("certificate.pem"))
        .output()
        .ok()?;
    made.status.success().then_some(())
}

#[test]
fn with_a_certificate_its_name_is_ours_too_and_nothing_goes_in_the_clear() {
    let folder = tempfile::tempdir().unwrap();
    if certificate(folder.path()).is_none() {
        println!("skipped: this needs openssl");
        return;
    }
    let daemon = networked(|settings, _| {
        settings.listen.tls_certificate = Some(folder.path().join("certificate.pem"));
        settings.listen.tls_key = Some(folder.path().join("key.pem"));
    });
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(folder.path().join("certificate.pem")).unwrap()).unwrap();
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let config = Arc::new(config);
    let asked = |name: &'static str, host: &str| {
        let name = ServerName::try_from(name).unwrap();
        let tls = ClientConnection::new(Arc::clone(&config), name).unwrap();
        let stream = TcpStream::connect(address(&daemon)).unwrap();
        let request = format!(
            "GET /v1/status HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n"
        );
        exchange(StreamOwned::new(tls, stream), request.as_bytes()).status
    };
    assert_eq!(asked("profiles.example.org", "profiles.example.org:7117"), 200);
    assert_eq!(asked("127.0.0.1", "127.0.0.1"), 200);
    assert_eq!(asked("127.0.0.1", "profiles.example.org"), 421);
    assert_eq!(asked("profiles.example.org", "other.example.org"), 421);
    assert_eq!(over_tcp(&daemon, "/healthz", "Host: localhost\r\n").status, 0);
}

#[test]
fn keys_and_certificates_that_do_not_fit_are_refused() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    if certificate(one.path()).is_none() || certificate(other.path()).is_none() {
        println!("skipped: this needs openssl");
        return;
    }
    let token = one.path().join("token");
    write_token(&token, TOKEN);
    let empty = one.path().join("empty");
    std::fs::write(&empty, "").unwrap();
    let refused = |certificate: &Path, key: &Path| {
        let mut settings = DaemonSettings::default();
        settings.listen.socket = one.path().join("sock");
        settings.listen.tcp = "127.0.0.1:0".parse().ok();
        settings.listen.token_file = Some(token.clone());
        settings.listen.tls_certificate = Some(certificate.to_owned());
        settings.listen.tls_key = Some(key.to_owned());
        super::super::start(&settings, command::channel().0).err().map(|error| error.to_string())
    };
    let (certificate, key) = (one.path().join("certificate.pem"), one.path().join("key.pem"));
    for (certificate, key) in [
        (&certificate, &other.path().join("key.pem")),
        (&empty, &key),
        (&certificate, &empty),
        (&key, &key),
        (&one.path().join("missing"), &key),
    ] {
        let error = refused(certificate, key).unwrap();
        assert!(error.contains("cannot be used") && error.contains("PEM"), "{error}");
    }
    assert_eq!(refused(&certificate, &key), None);
}
