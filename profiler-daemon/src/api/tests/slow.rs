//! Clients that are slow, many, half there, or gone.

use std::path::Path;
use std::time::Instant;

use nix::sys::fanotify::{
    EventFFlags, Fanotify, FanotifyEvent, FanotifyResponse, InitFlags, MarkFlags, MaskFlags, Response,
};

use super::*;

/// Long enough for a client that does its part on a busy machine, short enough for a test.
fn hasty() -> ApiBounds {
    let short = Duration::from_millis(300);
    ApiBounds { head: short, body: short, rest: short, connections: 8, ..ApiBounds::default() }
}

#[test]
fn slow_and_silent_clients_are_dropped_and_others_come_to_their_turn() {
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
fn an_answer_says_how_to_get_windows_that_take_long_to_name() {
    let naming = Duration::from_millis(200);
    let daemon = Daemon::with(ApiBounds { naming, ..ApiBounds::default() }, |_, _| {});
    daemon.heard.keeps_nothing.store(true, Ordering::Relaxed);
    let answer = daemon.get("/v1/profile?seconds=1");
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    assert_eq!(answer.status, 503, "{text}");
    let (_, from) = text.split_once("from=").unwrap();
    let (from, to) = from.split_once(" and to=").unwrap();
    let to = to.split('"').next().unwrap();
    daemon.heard.keeps_nothing.store(false, Ordering::Relaxed);
    let answer = daemon.get(&format!("/v1/profile?from={from}&to={to}"));
    assert!(matches!(answer.status, 200 | 404), "{}", String::from_utf8_lossy(&answer.body));
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
    // The connection must stay open if this thread pauses between two requests.
    let long = Duration::from_secs(3);
    let daemon = Daemon::with(ApiBounds { head: long, rest: long, ..hasty() }, |_, _| {});
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
    let daemon = Daemon::with(ApiBounds::default(), |settings, _| settings.limits.requests = 100);
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

/// Two clients that wait for the profile of an hour.
fn two_that_wait(daemon: &Daemon) -> Vec<UnixStream> {
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
    clients
}

#[test]
fn who_is_too_many_is_told_to_come_back_and_health_is_not_too_many() {
    let daemon = Daemon::with(ApiBounds::default(), |settings, _| settings.limits.requests = 2);
    let clients = two_that_wait(&daemon);
    let another = "/v1/profile?seconds=0.1";
    let refused = daemon.get(another);
    assert_eq!(refused.status, 429);
    assert!(refused.head.contains("retry-after: 1") && refused.text().contains("limits.requests"));
    assert_eq!(daemon.get("/healthz").status, 200);
    // Who leaves is waited for no more.
    drop(clients);
    while daemon.get(another).status == 429 {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn profiles_that_are_waited_for_keep_no_other_request_out() {
    let daemon = Daemon::with(ApiBounds::default(), |settings, _| settings.limits.requests = 2);
    let _clients = two_that_wait(&daemon);
    for path in ["/metrics", "/v1/status", "/v1/targets", "/debug/pprof/"] {
        assert_eq!(daemon.get(path).status, 200, "{path}");
    }
    assert_eq!(daemon.get("/debug/pprof/profile?seconds=1").status, 429);
}

/// A disk that takes its time: whoever opens one of its files waits until that is allowed. Dropped, it allows all of them.
struct SlowDisk(Fanotify);

impl SlowDisk {
    /// That of a folder; nothing where this may not be done.
    fn of(folder: &Path) -> Option<Self> {
        let slow = || {
            let group = Fanotify::init(
                InitFlags::FAN_CLASS_CONTENT | InitFlags::FAN_NONBLOCK | InitFlags::FAN_CLOEXEC,
                EventFFlags::O_RDONLY | EventFFlags::O_CLOEXEC,
            )?;
            let opens = MaskFlags::FAN_OPEN_PERM | MaskFlags::FAN_EVENT_ON_CHILD;
            group.mark(MarkFlags::FAN_MARK_ADD, opens, nix::fcntl::AT_FDCWD, Some(folder))?;
            Ok::<_, nix::Error>(Self(group))
        };
        slow().inspect_err(|error| println!("skipped: opens cannot be held up ({error})")).ok()
    }

    /// Somebody waits for a file, if that is so.
    fn asked(&self) -> Option<FanotifyEvent> {
        self.0.read_events().ok()?.pop()
    }

    fn allow(&self, asked: &FanotifyEvent) {
        let file = asked.fd().unwrap();
        self.0.write_response(FanotifyResponse::new(file, Response::FAN_ALLOW)).unwrap();
    }
}

/// A day in the store with files that are no profiles, on a slow disk.
fn with_a_slow_disk(bounds: ApiBounds, files: u32) -> Option<(Daemon, SlowDisk)> {
    let daemon = Daemon::with(bounds, |_, _| {});
    let day = daemon.settings.store.folder.join("2026-11-16");
    std::fs::create_dir(&day).unwrap();
    for second in 1..=files {
        let name = format!("09-14-0{second}_window_60.000s_web_5f1d2c3b-36840000_9617ec96.pb.gz");
        std::fs::write(day.join(name), "no profile").unwrap();
    }
    let disk = SlowDisk::of(&day)?;
    Some((daemon, disk))
}

const OF_THE_DAY: &str = "/v1/profile?from=2026-11-16T09:00Z&to=2026-11-16T10:00Z";

#[test]
fn a_range_that_takes_too_long_is_given_up_with_a_word() {
    let rendering = Duration::from_millis(200);
    let bounds = ApiBounds { rendering, ..ApiBounds::default() };
    let Some((daemon, disk)) = with_a_slow_disk(bounds, 1) else { return };
    let got = daemon.get(OF_THE_DAY);
    assert_eq!(got.status, 503, "{}", got.text());
    assert!(got.text().contains("shorter range"), "{}", got.text());
    let api = std::sync::Arc::clone(&daemon.server.as_ref().unwrap().api);
    assert_eq!(api.counters.profiles_abandoned(), 0, "the client is there");
    drop(disk);
    while api.renderings.available_permits() < api.bounds.renderings {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_range_may_take_longer_than_other_answers() {
    let short = Duration::from_millis(100);
    let bounds = ApiBounds { body: short, answer: short, ..ApiBounds::default() };
    let Some((daemon, disk)) = with_a_slow_disk(bounds, 1) else { return };
    let allows = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(1));
        drop(disk);
    });
    let got = daemon.get(OF_THE_DAY);
    assert_eq!(got.status, 404, "{}", got.text());
    assert!(got.text().contains("damaged"), "{}", got.text());
    allows.join().unwrap();
}

#[test]
fn nothing_is_read_on_for_a_client_that_has_left() {
    let Some((daemon, disk)) = with_a_slow_disk(ApiBounds::default(), 2) else { return };
    let api = std::sync::Arc::clone(&daemon.server.as_ref().unwrap().api);
    let ask =
        "GET /v1/profile?from=2026-11-16T09:00Z&to=2026-11-16T10:00Z HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut client = UnixStream::connect(daemon.socket()).unwrap();
    client.write_all(ask.as_bytes()).unwrap();
    let first = loop {
        if let Some(asked) = disk.asked() {
            break asked; // it is being read
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(api.renderings.available_permits(), api.bounds.renderings - 1);
    drop(client);
    while api.counters.profiles_abandoned() == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    disk.allow(&first);
    while api.renderings.available_permits() < api.bounds.renderings {
        assert!(disk.asked().is_none(), "it reads on");
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
