//! What is refused on the socket, and how.

use super::*;
use crate::discovery::LookedUp;

#[test]
fn every_path_answers_what_it_says() {
    let daemon = Daemon::new();
    assert_eq!(daemon.get("/healthz").json()["status"], "ok");
    assert_eq!(daemon.get("/readyz").status, 503);
    daemon.heard.ready.store(true, Ordering::Relaxed);
    assert_eq!(daemon.get("/readyz").status, 200);
    assert_eq!(daemon.get("/v1/status").json()["pid"], 7);
    assert_eq!(daemon.get("/v1/targets").json()["targets"][1]["name"], "db@1:x");
    assert_eq!(daemon.get("/v1/targets/db%401%3ax").json()["name"], "db@1:x");
    assert_eq!(daemon.get("/v1/targets/web/decisions").json()["decisions"][0]["rate_hz"], 2.0);
    assert!(daemon.get("/debug/pprof/").text().contains("/debug/pprof/profile"));
    assert_eq!(daemon.ask("POST", "/v1/reload").json()["message"], "the settings are in force");
    assert_eq!(daemon.ask("DELETE", "/v1/targets/asked-1").status, 204);
    assert_eq!(daemon.ask("DELETE", "/v1/targets/web").status, 409);
    assert_eq!(daemon.ask("POST", "/v1/stop").status, 200);
    let head = daemon.ask("HEAD", "/v1/status");
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert!(
        head.head.contains("x-content-type-options: nosniff")
            && head.head.contains("cache-control: no-store")
    );
}

#[test]
fn a_target_can_be_asked_for_within_bounds() {
    let daemon = Daemon::new();
    let made = daemon.post("/v1/attach", r#"{"pid": 4711, "duration_s": 60, "budget_ratio": 0.005}"#);
    assert_eq!((made.status, made.json()["name"].as_str()), (201, Some("asked-1")));
    assert_eq!(made.json()["takes_from"], serde_json::json!(["web"]));
    assert!(made.head.contains("location: /v1/targets/asked-1"), "{}", made.head);
    let wanted = daemon.heard.attached.lock().unwrap().pop().unwrap();
    assert_eq!((wanted.target.pid, wanted.time), (Some(4711), Duration::from_secs(60)));
    assert_eq!(wanted.target.budget.map(config::Ratio::get), Some(0.005));
    assert_eq!(daemon.post("/v1/attach", r#"{"user": "root", "duration_s": 1}"#).status, 201);
    let wanted = daemon.heard.attached.lock().unwrap().pop().unwrap();
    assert_eq!(wanted.looked_up, LookedUp::of(&wanted.target));
    assert_ne!(wanted.looked_up, LookedUp::default());
    assert_eq!(daemon.post("/v1/attach", r#"{"name": "web", "pid": 1, "duration_s": 1}"#).status, 409);
    for (body, status, said) in [
        (r#"{"pid": 4711}"#, 400, "duration_s"),
        (r#"{"pid": 4711, "duration_s": 0}"#, 400, "duration_s"),
        (r#"{"pid": 4711, "duration_s": 3601}"#, 400, "at most 3600"),
        (r#"{"pid": 4711, "duration_s": -1}"#, 400, "duration_s"),
        (r#"{"duration_s": 60}"#, 400, "nothing says which processes"),
        (r#"{"pid": 0, "duration_s": 60}"#, 400, "pid: 0 is not a process id"),
        (r#"{"process": "(", "duration_s": 60}"#, 400, "process: "),
        (r#"{"pid": 1, "duration_s": 60, "budget_ratio": 2}"#, 400, "budget_ratio"),
        (r#"{"pid": 1, "duration_s": 60, "name": "a b"}"#, 400, "name: `a b` is not a valid name"),
        (r#"{"pid": 1, "duration_s": 60, "labels": {"target": "x"}}"#, 400, "labels.target"),
        (r#"{"pid": 1, "duration_s": 60, "colour": "red"}"#, 400, "colour"),
        (r#"{"pid": -1, "duration_s": 60}"#, 400, "expected u32"),
        ("[", 400, "not understood"),
        ("", 400, "not understood"),
    ] {
        let got = daemon.post("/v1/attach", body);
        assert_eq!(got.status, status, "{body}: {}", got.text());
        let detail = got.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(said) && !detail.contains('\n'), "{body}: {detail}");
        assert!(got.head.contains("content-type: application/problem+json"));
    }
}

#[test]
fn paths_lead_nowhere_else() {
    let daemon = Daemon::new();
    for path in [
        "/",
        "/v1",
        "/v1/",
        "/v1/targets/",
        "/v1/targets/../../etc/passwd",
        "/v1/targets/..%2f..%2fetc%2fpasswd",
        "/v1/targets/..",
        "/v1/targets/%2e%2e/decisions",
        "/v1/targets/web%2f..%2fdb",
        "/v1/targets/web%00",
        "/v1/targets/%ff%fe",
        "/v1/targets/%",
        "/v1/targets/%zz",
        "/v1//targets",
        "/V1/targets",
        "/v1/targets/web/decisions/",
        "/metrics/",
        "/healthz/x",
        "//etc/passwd",
        "/v1/targets/nobody",
        "/v1/targets/nobody/decisions",
    ] {
        let got = daemon.get(path);
        assert_eq!(got.status, 404, "{path}: {} {}", got.head, got.text());
        assert!(got.json()["detail"].as_str().is_some_and(|text| !text.contains(['\n', '\0'])), "{path}");
    }
    let long = format!("/v1/targets/{}", "x".repeat(2000));
    assert_eq!(daemon.get(&long).status, 404);
}

#[test]
fn methods_that_a_path_does_not_take_are_named() {
    let daemon = Daemon::new();
    for (method, path, allow) in [
        ("POST", "/v1/status", "get, head"),
        ("DELETE", "/v1/stop", "post"),
        ("GET", "/v1/attach", "post"),
        ("PUT", "/v1/targets/web", "get, delete, head"),
        ("OPTIONS", "/v1/profile", "get, head"),
        ("TRACE", "/metrics", "get, head"),
        ("X-ODD", "/healthz", "get, head"),
    ] {
        let got = daemon.ask(method, path);
        assert_eq!(got.status, 405, "{method} {path}");
        assert!(got.head.contains(&format!("allow: {allow}")), "{method} {path}: {}", got.head);
    }
    assert_eq!(daemon.ask("CONNECT", "example.org:443").status / 100, 4);
}

#[test]
fn no_page_of_a_browser_may_ask() {
    let daemon = Daemon::new();
    for (header, status) in [
        ("Host: localhost\r\nOrigin: https://example.org", 403),
        ("Host: localhost\r\nOrigin: null", 403),
        ("Host: localhost\r\nOrigin: http://localhost", 403),
        ("Host: example.org", 421),
        ("Host: sweetspot.example.org:80", 421),
        ("Host: 192.0.2.1", 421),
        ("Host: localhost\r\nHost: localhost", 400),
        ("Host: a b", 400),
        ("Host: user@localhost", 400),
        ("Host: \u{1}", 400),
        ("Host: localhost", 200),
        ("Host: LOCALHOST:1234", 200),
        ("Host: sweetspot", 200),
        ("Host: 127.0.0.1:80", 200),
        ("Host: [::1]", 200),
        ("Host: ", 200),
        ("X: y", 200),
    ] {
        for path in ["/healthz", "/v1/status"] {
            let got = daemon.send(format!("GET {path} HTTP/1.1\r\n{header}\r\nConnection: close\r\n\r\n"));
            assert_eq!(got.status, status, "{header:?} {path}: {}", got.text());
        }
    }
    let absolute =
        "GET http://example.org/v1/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(daemon.send(absolute).status, 421);
}

#[test]
fn what_is_too_long_is_refused_before_it_is_read() {
    let daemon = Daemon::new();
    let header = format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(70 << 10));
    assert_eq!(daemon.send(header).status, 431);
    let many = "X: y\r\n".repeat(2000);
    assert_eq!(daemon.send(format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\n{many}\r\n")).status, 431);
    let line = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "x".repeat(70 << 10));
    assert!([414, 431].contains(&daemon.send(line).status));
    let attach = "POST /v1/attach HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n";
    let told = format!("{attach}Content-Length: 99999999999\r\n\r\n");
    assert_eq!(daemon.send(told).status, 413);
    let length = 65 << 10;
    let endless = format!("{attach}Transfer-Encoding: chunked\r\n\r\n{length:x}\r\n{}", "x".repeat(length));
    assert_eq!(daemon.send(endless).status, 413);
    let kind =
        "POST /v1/attach HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
    assert_eq!(daemon.send(kind).status, 415);
}

#[test]
fn what_is_no_http_is_refused() {
    let daemon = Daemon::new();
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"hello\r\n\r\n",
        b"GET /healthz HTTP/9.9\r\n\r\n",
        b"GET /healthz\r\n\r\n",
        b"GET /heal\0thz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n folded: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /v1/attach HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        b"POST /v1/attach HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\nxx",
        b"POST /v1/attach HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\nxx",
    ] {
        let status = daemon.send(bytes).status;
        assert!(status == 0 || status / 100 == 4, "{}: {status}", bytes.escape_ascii());
    }
    assert_eq!(daemon.get("/healthz").status, 200);
}

#[test]
fn a_family_of_targets_can_be_asked_for() {
    let daemon = Daemon::new();
    let asked = daemon.post("/v1/attach", r#"{"cgroup": "/", "each": "unit", "duration_s": 5}"#);
    assert_eq!(asked.status, 201, "{}", asked.text());
    assert_eq!(daemon.heard.attached.lock().unwrap()[0].target.each, Some(config::Each::Unit));
    for (body, said) in [
        (r#"{"cgroup": "/", "each": "node", "duration_s": 5}"#, "each: expected process, unit"),
        (r#"{"user": "root", "each": "user", "duration_s": 5}"#, "of one user already"),
        (r#"{"each": "unit", "duration_s": 5}"#, "nothing says which processes"),
        (r#"{"everything": true, "pid": 1, "duration_s": 5}"#, "contradicts pid 1"),
    ] {
        let refused = daemon.post("/v1/attach", body);
        assert!(refused.status == 400 && refused.text().contains(said), "{body}: {}", refused.text());
    }
}

#[test]
fn a_loop_that_does_not_answer_is_said_and_not_waited_for() {
    let short = Duration::from_millis(50);
    let bounds = ApiBounds { answer: short, naming: short, ..ApiBounds::default() };
    let daemon = Daemon::with(bounds, |_, _| {});
    while daemon.get("/v1/status").status != 200 {
        std::thread::sleep(Duration::from_millis(5)); // a busy machine may need longer than the 50 ms
    }
    daemon.heard.deaf.store(true, Ordering::Relaxed);
    for path in ["/healthz", "/readyz", "/v1/profile?from=-1m", "/debug/pprof/profile?seconds=1"] {
        let got = daemon.get(path);
        assert_eq!(got.status, 503, "{path}: {}", got.text());
        assert!(got.head.contains("retry-after: 1"), "{}", got.head);
        let is_waited_for = path.contains("profile");
        assert!(!is_waited_for || got.text().contains("did not answer"), "{path}: {}", got.text());
    }
    // What it said last is still there to see, with its age. Each round puts three questions into its queue, which holds 64: whether
    // it is full or not, it is not waited for.
    for _ in 0..25 {
        let status = daemon.get("/v1/status").json();
        assert!(status["age_s"].as_f64() > Some(2.0) && status["pid"] == 7, "{status}");
        let profile = daemon.get("/v1/profile?from=-1m").status;
        assert!([429, 503].contains(&profile), "{profile}");
    }
    assert_eq!(daemon.get("/v1/targets").json()["targets"][0]["name"], "web");
    assert_eq!(daemon.get("/v1/targets/web/decisions").json()["decisions"][0]["rate_hz"], 2.0);
    assert!(daemon.get("/metrics").text().contains("sweetspot_status_age_seconds"));
    daemon.heard.deaf.store(false, Ordering::Relaxed);
}
