//! Clients that are slow, many, half there, or gone.

use std::time::Instant;

use super::*;

/// Long enough for a client that does its part on a busy machine, short enough for a test.
fn hasty() -> Bounds {
    let short = Duration::from_millis(300);
    Bounds { head: short, body: short, rest: short, connections: 8, ..Bounds::default() }
}

#[test]
fn slow_and_silent_clients_are_let_go_and_others_come_to_their_turn() {
    let daemon = Daemon::with(hasty(), |_, _| {});
    // All the places there are, and twice as many that wait for one: silent, or in the middle of a head.
    let mut clients: Vec<UnixStream> =
        (0..24).map(|_| UnixStream::connect(daemon.socket()).unwrap()).collect();
    for client in clients.iter_mut().step_by(2) {
        client.write_all(b"GET /healthz HTTP/1.1\r\nHost: loc").unwrap();
    }
    assert_eq!(daemon.get("/healthz").status, 200);
    for mut client in clients {
        let mut rest = Vec::new();
        let _ = client.read_to_end(&mut rest); // it ends: the other end does not wait for ever
        assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 408"), "{}", rest.escape_ascii());
    }
}

#[test]
fn a_head_in_drops_is_cut_off() {
    let daemon = Daemon::with(hasty(), |_, _| {});
    let mut client = UnixStream::connect(daemon.socket()).unwrap();
    let begun = Instant::now();
    let mut sent = 0;
    let drops = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ".bytes().chain(std::iter::repeat(b'x'));
    for byte in drops {
        if client.write_all(&[byte]).is_err() {
            break;
        }
        sent += 1;
        std::thread::sleep(Duration::from_millis(10));
        // Far beyond the bound; it is no measure of it.
        assert!(begun.elapsed() < Duration::from_secs(60), "{sent} bytes were taken");
    }
}

#[test]
fn a_body_that_does_not_come_is_not_waited_for() {
    let daemon = Daemon::with(hasty(), |_, _| {});
    let head = "POST /v1/attach HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{";
    assert_eq!(daemon.send(head).status, 408);
}

#[test]
fn a_connection_serves_many_requests_and_may_not_rest_for_ever() {
    let daemon = Daemon::with(hasty(), |_, _| {});
    let mut client = UnixStream::connect(daemon.socket()).unwrap();
    for _ in 0..20 {
        client.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut answer = vec![0; 4096];
        let length = client.read(&mut answer).unwrap();
        assert_eq!(parse(&answer[..length]).status, 200);
    }
    let mut rest = Vec::new();
    let _ = client.read_to_end(&mut rest);
    assert!(rest.is_empty(), "{}", rest.escape_ascii());
}

#[test]
fn a_hundred_clients_at_once_are_all_answered() {
    let daemon = Daemon::with(Bounds::default(), |settings, _| settings.limits.requests = 100);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..100)
            .map(|at| {
                let daemon = &daemon;
                scope.spawn(move || {
                    daemon.get(["/healthz", "/v1/status", "/v1/targets", "/metrics"][at % 4]).status
                })
            })
            .collect();
        for client in clients {
            // The loop's queue is shorter than a hundred: who meets it full is told so.
            let status = client.join().unwrap();
            assert!([200, 429].contains(&status), "{status}");
        }
    });
    assert_eq!(daemon.get("/v1/status").status, 200);
}

#[test]
fn who_is_too_many_is_told_to_come_back_and_health_is_not_too_many() {
    let daemon = Daemon::with(Bounds::default(), |settings, _| settings.limits.requests = 2);
    let waiting = "GET /v1/profile?seconds=3600 HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut clients = Vec::new();
    for count in 1..=2 {
        let mut client = UnixStream::connect(daemon.socket()).unwrap();
        client.write_all(waiting.as_bytes()).unwrap();
        clients.push(client);
        while daemon.heard.flushes.load(Ordering::Relaxed) < count {
            std::thread::sleep(Duration::from_millis(5)); // until it is one of those that are answered
        }
    }
    let refused = daemon.get("/v1/status");
    assert_eq!(refused.status, 429);
    assert!(refused.head.contains("retry-after: 1") && refused.text().contains("limits.requests"));
    assert_eq!(daemon.get("/healthz").status, 200);
    // Who leaves is waited for no more.
    drop(clients);
    while daemon.get("/v1/status").status == 429 {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(daemon.get("/v1/status").status, 200);
}

/// A file that is a pipe: whoever reads it waits until somebody writes to it.
fn with_a_pipe(bounds: Bounds) -> (Daemon, PathBuf) {
    let daemon = Daemon::with(bounds, |_, _| {});
    let day = daemon.settings.store.folder.join("2026-11-16");
    std::fs::create_dir(&day).unwrap();
    let pipe = day.join("09-14-01_window_60.000s_web_5f1d2c3b-36840000_9617ec96.pb.gz");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    (daemon, pipe)
}

const WITH_THE_PIPE: &str = "/v1/profile?from=2026-11-16T09:00Z&to=2026-11-16T10:00Z";

#[test]
fn a_range_that_takes_too_long_is_given_up_with_a_word() {
    let rendering = Duration::from_millis(200);
    let (daemon, pipe) = with_a_pipe(Bounds { rendering, ..Bounds::default() });
    let got = daemon.get(WITH_THE_PIPE);
    assert_eq!(got.status, 503, "{}", got.text());
    assert!(got.text().contains("shorter range"), "{}", got.text());
    let api = std::sync::Arc::clone(&daemon.server.as_ref().unwrap().api);
    assert_eq!(api.counters.profiles_abandoned(), 0, "the client is there");
    drop(std::fs::OpenOptions::new().write(true).open(pipe).unwrap());
    while api.renderings.available_permits() < api.bounds.renderings {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_range_may_take_longer_than_other_answers() {
    let short = Duration::from_millis(100);
    let (daemon, pipe) = with_a_pipe(Bounds { body: short, answer: short, ..Bounds::default() });
    let writer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(1));
        drop(std::fs::OpenOptions::new().write(true).open(pipe).unwrap());
    });
    let got = daemon.get(WITH_THE_PIPE);
    assert_eq!(got.status, 404, "{}", got.text());
    assert!(got.text().contains("damaged"), "{}", got.text());
    writer.join().unwrap();
}

/// Two files that are pipes: whoever reads one waits until somebody writes to it.
#[test]
fn nothing_is_read_on_for_a_client_that_has_left() {
    use std::fs::OpenOptions;
    use std::os::unix::fs::OpenOptionsExt;

    let daemon = Daemon::new();
    let day = daemon.settings.store.folder.join("2026-11-16");
    std::fs::create_dir(&day).unwrap();
    let pipe = |second: u32| {
        let name = format!("09-14-0{second}_window_60.000s_web_5f1d2c3b-36840000_9617ec96.pb.gz");
        nix::unistd::mkfifo(&day.join(&name), nix::sys::stat::Mode::S_IRWXU).unwrap();
        day.join(name)
    };
    let (first, second) = (pipe(1), pipe(2));
    let api = std::sync::Arc::clone(&daemon.server.as_ref().unwrap().api);
    let write = |pipe: &PathBuf| {
        OpenOptions::new().write(true).custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits()).open(pipe)
    };
    let ask =
        "GET /v1/profile?from=2026-11-16T09:00Z&to=2026-11-16T10:00Z HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut client = UnixStream::connect(daemon.socket()).unwrap();
    client.write_all(ask.as_bytes()).unwrap();
    let end_of_first = loop {
        if let Ok(pipe) = write(&first) {
            break pipe; // it is being read
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(api.renderings.available_permits(), api.bounds.renderings - 1);
    drop(client);
    while api.counters.profiles_abandoned() == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(end_of_first);
    while api.renderings.available_permits() < api.bounds.renderings {
        assert!(write(&second).is_err(), "it reads on");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(api.counters.profiles_abandoned(), 1);
    assert!(daemon.get("/metrics").text().contains("sweetspot_http_profiles_abandoned_total 1"));
}

#[test]
fn the_end_waits_for_nobody() {
    let mut daemon = Daemon::new();
    let mut clients: Vec<UnixStream> =
        (0..10).map(|_| UnixStream::connect(daemon.socket()).unwrap()).collect();
    for client in clients.iter_mut().take(5) {
        client.write_all(b"GET /v1/profile?seconds=3600 HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    }
    while daemon.heard.flushes.load(Ordering::Relaxed) < 5 {
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(daemon.server.take()); // would hang for an hour
    for mut client in clients {
        let mut rest = Vec::new();
        let _ = client.read_to_end(&mut rest);
        assert!(rest.is_empty());
    }
    assert!(!daemon.socket().exists());
}
