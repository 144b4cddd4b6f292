//! Profiles out of a store: two targets, twenty minutes, six days before the clock of the tests was written.

use std::path::Path;

use profile_files::FORMATS;
use profile_files::store::{Now, RealDisk, Store, StoreTerms, TargetWindow};

use super::*;

const STORE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/store");
const RANGE: &str = "from=2026-11-16T09:00Z&to=2026-11-16T09:20Z";

fn daemon() -> Daemon {
    Daemon::with(ApiBounds::default(), |settings, _| {
        settings.store.folder = Path::new(STORE).canonicalize().unwrap()
    })
}

#[test]
fn a_range_comes_in_every_form() {
    let daemon = daemon();
    let asked = |rest: &str| {
        let got = daemon.get(&format!("/v1/profile?{RANGE}{rest}"));
        assert_eq!(got.status, 200, "{rest}: {}", got.text());
        got
    };
    let json = asked("");
    assert!(json.head.contains("content-type: application/json"));
    assert_eq!(
        (json.json()["samples"].as_u64(), json.json()["functions"][0]["name"].as_str()),
        (Some(3200), Some("work"))
    );
    assert!(json.text().contains("nothing was kept from"), "the gap is told");
    assert_eq!(asked("&format=json").body, json.body);
    assert_eq!(asked("&format=folded").text(), "db;work 16000000\nweb;work 16000000\n");
    assert_eq!(asked("&format=folded&target=web").text(), "web;work 16000000\n");
    assert_eq!(asked("&format=folded&target=web&target=db").text().lines().count(), 2);
    assert_eq!(asked("&format=folded&label=tier%3D2").text(), "db;work 16000000\n");
    assert!(asked("&format=table").text().contains("work [web]"));
    assert_eq!(
        asked("&format=speedscope.json").json()["exporter"].as_str().map(|name| &name[..9]),
        Some("sweetspot")
    );
    let svg = asked("&format=svg");
    assert!(svg.text().contains("</svg>") && svg.head.contains("content-type: image/svg+xml"));
    assert!(svg.head.contains(
        "content-security-policy: default-src 'none'; script-src 'unsafe-inline'; \
        style-src 'unsafe-inline'; sandbox allow-scripts allow-modals"
    ));
    let html = asked("&format=html");
    assert!(html.head.contains("content-type: text/html") && html.text().contains("<code>work [web]</code>"));
    assert!(asked("&format=md").text().contains("| `work [web]` |"));
    assert_eq!(asked("&format=firefox.json").json()["threads"].as_array().map(Vec::len), Some(2));
    let pprof = asked("&format=pb.gz");
    assert!(pprof.head.contains("filename=\"profile.pb.gz\""));
    let read = profile_files::pprof::read(pprof.body.as_slice()).unwrap();
    assert_eq!(read.run.counts.samples, 3200);
    // Long ago: nothing open can belong to it.
    assert_eq!(daemon.heard.flushes.load(Ordering::Relaxed), 0);
}

/// A browser neither shows what is binary nor runs more than the script of what it shows.
#[test]
fn every_format_is_answered_as_the_document_says() {
    let daemon = daemon();
    let operation = &daemon.get("/v1/openapi.json").json()["paths"]["/v1/profile"]["get"];
    let parameters = operation["parameters"].as_array().unwrap();
    let parameter = parameters.iter().find(|parameter| parameter["name"] == "format").unwrap();
    let contents = &operation["responses"]["200"]["content"];
    assert_eq!(parameter["schema"]["enum"].as_array().unwrap().len(), FORMATS.len());
    for format in FORMATS {
        assert!(parameter["schema"]["enum"].as_array().unwrap().contains(&format.name.into()), "{format}");
        assert!(parameter["description"].as_str().unwrap().contains(format.about), "{format}");
        let got = daemon.get(&format!("/v1/profile?{RANGE}&format={format}"));
        assert_eq!(got.status, 200, "{format}: {}", got.text());
        let kind = format!("content-type: {}", format.media_type);
        assert!(got.head.contains(&kind), "{format}: {}", got.head);
        let bare = format.media_type.split(';').next().unwrap();
        assert!(contents[bare].is_object(), "{format}: {contents}");
        let is_attached = got.head.contains(&format!("attachment; filename=\"profile.{format}\""));
        assert_eq!(is_attached, format.is_binary(), "{format}: {}", got.head);
        let is_confined = got.head.contains("content-security-policy: default-src 'none'; script-src");
        assert_eq!(is_confined, format.has_script, "{format}: {}", got.head);
    }
    assert!(contents["application/json"]["schema"]["$ref"].as_str().unwrap().ends_with("/Profile"));
}

#[test]
fn the_owner_is_told_of_damaged_files_that_a_reader_meets() {
    let daemon = Daemon::new();
    let (from, to) = (Path::new(STORE).join("2026-11-16"), daemon.settings.store.folder.join("2026-11-16"));
    std::fs::create_dir(&to).unwrap();
    let mut names: Vec<_> = std::fs::read_dir(from).unwrap().map(|file| file.unwrap().path()).collect();
    names.sort();
    for path in &names {
        std::fs::copy(path, to.join(path.file_name().unwrap())).unwrap();
    }
    let spoilt = to.join(names.last().unwrap().file_name().unwrap());
    let mut bytes = std::fs::read(&spoilt).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&spoilt, bytes).unwrap();
    let got = daemon.get(&format!("/v1/profile?{RANGE}"));
    assert!(got.text().contains("left out, since they are damaged"), "{}", got.text());
    while daemon.heard.suspects.lock().unwrap().is_empty() {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(
        *daemon.heard.suspects.lock().unwrap(),
        [spoilt.strip_prefix(&daemon.settings.store.folder).unwrap()]
    );
}

#[test]
fn moments_are_unix_seconds_too() {
    let daemon = daemon();
    let nine = 1_794_819_600_u64;
    let got = daemon.get(&format!("/v1/profile?format=folded&from={nine}.5&to={}", nine + 600));
    assert_eq!((got.status, got.text()), (200, "db;work 10000000\nweb;work 10000000\n".to_owned()));
}

#[test]
fn what_cannot_be_meant_is_said_in_a_line() {
    let daemon = daemon();
    let many = "&target=x".repeat(101);
    for (query, status, said) in [
        ("", 400, "from or seconds is required"),
        ("to=now", 400, "from or seconds is required"),
        ("from=", 400, "from is not a time"),
        ("from=yesterday", 400, "from is not a time"),
        ("from=-1", 400, "from is not a time"),
        ("from=99999999999999999999", 400, "from is not a time"),
        ("from=now", 400, "from is not before"),
        ("from=-1h&to=-2h", 400, "from is not before"),
        ("from=2099-01-01T00:00Z", 400, "from is not before"),
        ("from=0", 400, "at most 31 days"),
        ("from=-32d", 400, "at most 31 days"),
        ("from=-1h&from=-2h", 400, "more than 1 times"),
        ("from=-1h&seconds=5", 400, "give one or the other"),
        ("seconds=0", 400, "seconds is not a number"),
        ("seconds=3601", 400, "from 1 to 3600"),
        ("seconds=1.5", 400, "seconds is not a number"),
        ("seconds=+5", 400, "seconds is not a number"),
        ("seconds=", 400, "seconds is not a number"),
        ("seconds=99999999999999999999999", 400, "seconds is not a number"),
        ("from=-1h&format=png", 400, "format is not one of"),
        ("from=-1h&format=JSON", 400, "format is not one of"),
        ("from=-1h&label=tier", 400, "write KEY=TEXT"),
        ("from=-1h&label==x", 400, "write KEY=TEXT"),
        ("from=-1h&label=a%3D1&label=a%3D2", 400, "the label a is given with two texts"),
        ("from=-1h&target=a%00b", 400, "control character"),
        ("from=-1h&token=x", 400, "there is no parameter token"),
        (&format!("from=-1h{many}"), 400, "more than 100 times"),
        ("from=2026-11-16T09:00Z&to=2026-11-16T09:20Z&target=nobody", 404, "no such profile"),
        ("from=2026-11-16T09:00Z&to=2026-11-16T09:20Z&target=../../etc", 404, "no such profile"),
        ("from=2026-11-01T00:00Z&to=2026-11-02T00:00Z", 404, "no such profile"),
    ] {
        let got = daemon.get(&format!("/v1/profile?{query}"));
        assert_eq!(got.status, status, "{query}: {}", got.text());
        let detail = got.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(said), "{query}: {detail}");
    }
    assert_eq!(daemon.get("/v1/status?x=1").status, 400);
    assert_eq!(daemon.get("/debug/pprof/profile?from=-1h").status, 400);
}

#[test]
fn what_reaches_into_the_open_windows_ends_them_first() {
    let daemon = daemon();
    assert_eq!(daemon.get("/v1/profile?from=-1m").status, 404);
    assert_eq!(daemon.heard.flushes.load(Ordering::Relaxed), 1);
    assert_eq!(daemon.get("/v1/profile?from=-1h&to=-30m").status, 404);
    assert_eq!(daemon.heard.flushes.load(Ordering::Relaxed), 1);
    assert_eq!(daemon.get("/v1/profile?seconds=1").status, 404);
    assert_eq!(daemon.heard.flushes.load(Ordering::Relaxed), 3);
    assert_eq!(daemon.get("/debug/pprof/profile?seconds=1&target=web&label=tier%3D2").status, 404);
    assert_eq!(daemon.heard.flushes.load(Ordering::Relaxed), 5);
    // Those that are asked for, and whether a time ends that was waited for.
    let flushed = daemon.heard.flushed.lock().unwrap();
    let whose: Vec<_> =
        flushed.iter().map(|flush| (flush.targets.clone(), flush.labels.len(), flush.is_end)).collect();
    let web = || vec!["web".to_owned()];
    let all = Vec::new;
    assert_eq!(
        whose,
        [(all(), 0, false), (all(), 0, false), (all(), 0, true), (web(), 1, false), (web(), 1, true)]
    );
}

#[test]
fn a_folder_that_cannot_be_read_is_an_error_of_ours() {
    let daemon =
        Daemon::with(ApiBounds::default(), |settings, _| settings.store.folder = "/nowhere/at/all".into());
    let got = daemon.get("/v1/profile?from=-2h&to=-1h");
    assert_eq!(got.status, 500);
    assert!(got.text().contains("/nowhere/at/all cannot be read"), "{}", got.text());
}

#[test]
fn profiles_are_added_up_by_a_few_threads_and_all_who_ask_are_answered() {
    let daemon = daemon();
    std::thread::scope(|scope| {
        let asked = || daemon.get(&format!("/v1/profile?{RANGE}&format=folded")).text();
        let clients: Vec<_> = (0..12).map(|_| scope.spawn(asked)).collect();
        for client in clients {
            assert_eq!(client.join().unwrap(), "db;work 16000000\nweb;work 16000000\n");
        }
    });
}

/// Keeps a window of `RANGE` in the folder, with names of one to two MiB.
fn keep_long_window(folder: &Path) {
    let mut profile = profile_files::testing::profile();
    for function in &mut profile.functions {
        function.name = format!("{}{}", function.name, "x".repeat(100_000));
    }
    let begin_unix_ns = 1_794_819_600_000_000_000; // 2026-11-16T09:00Z
    (profile.run.start_unix_ns, profile.run.duration_s) = (begin_unix_ns, 60.0);
    let ever = u64::MAX;
    let terms = StoreTerms { age_ns: ever, bytes: 1 << 30, hourly_after_ns: ever, daily_after_ns: ever };
    let mut store = Store::open(folder, terms, RealDisk).unwrap();
    let (from_ns, to_ns) = (1_000_000_000, 61_000_000_000);
    let now = Now { unix_ns: begin_unix_ns + 60_000_000_000, boot: "boot".to_owned(), monotonic_ns: to_ns };
    let (target, boot) = ("web".to_owned(), "boot".to_owned());
    let labels = std::collections::BTreeMap::new();
    store
        .write(&now, TargetWindow { target, labels, boot, from_ns, to_ns, begin_unix_ns }, &profile)
        .unwrap();
}

/// Answers that wait for slow clients take no more memory than they may.
#[test]
fn a_long_profile_waits_until_others_have_been_taken() {
    let bounds = ApiBounds { answers_mib: 1, ..ApiBounds::default() };
    let daemon = Daemon::with(bounds, |settings, _| keep_long_window(&settings.store.folder));
    let path = format!("/v1/profile?{RANGE}&format=folded");
    let length = daemon.get(&path).body.len();
    assert!((1 << 20..2 << 20).contains(&length), "{length}");
    let mut slow = UnixStream::connect(daemon.socket()).unwrap();
    slow.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).unwrap();
    let api = Arc::clone(&daemon.server.as_ref().unwrap().api);
    while api.answers_mib.available_permits() > 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let refused = daemon.get(&path);
    assert_eq!(refused.status, 429, "{}", refused.text());
    assert!(refused.text().contains("1 MiB; try again"), "{}", refused.text());
    assert_eq!(
        daemon.get(&format!("/v1/profile?{RANGE}&format=pb.gz")).status,
        200,
        "a short one needs no room"
    );
    drop(slow);
    while daemon.get(&path).status == 429 {
        std::thread::sleep(Duration::from_millis(5));
    }
}
