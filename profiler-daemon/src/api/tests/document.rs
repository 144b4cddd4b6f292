//! The OpenAPI document and the metrics, held to what is really answered and to what the state holds.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};

use profile_files::store;
use profiler_core::attach::AttachMode;
use profiler_core::profile::OverheadParts;
use profiler_core::unwind::method::Method;
use serde_json::{Value, json};

use super::super::metrics::{self, Form};
use super::super::observe::ApiCounters;
use super::super::openapi;
use super::super::routes::ROUTES;
use super::*;
use crate::containers::{Protocol, RuntimeStatus};
use crate::fleet::{FleetStatus, Membership, ReplicaSource};
use crate::service::state::{
    ExportStatus, HostStatus, MemoryStatus, Origin, SamplingStatus, SettingsStatus, StoreStatus,
    SymbolizerStatus, TargetCounts, TargetState, TargetTotals,
};

/// A status in which every figure is another.
fn status() -> Status {
    Status {
        version: "9.9".to_owned(),
        pid: 4711,
        age_s: 1039.0,
        uptime_s: 1001.0,
        ready: true,
        degraded: vec!["one".to_owned(); 7],
        settings: SettingsStatus {
            file: Some("/etc/x".to_owned()),
            read_unix_s: 1002.0,
            problem: Some("x".to_owned()),
            reloads: 1003,
            reloads_failed: 1004,
        },
        targets: TargetCounts { sampled: 1005, waiting: 1006, left_out: 1007, failed: 1008, dropped: 1212 },
        host: HostStatus {
            cpus: 1009,
            budget_ratio: 1010.0,
            overhead_last_10s_ratio: 1011.0,
            overhead_worst_10s_ratio: 1012.0,
            charged_s: 1013.0,
            self_cpu_s: 1014.0,
            housekeeping_cpu_s: 1015.0,
            busy_cpu_s: 1200.0,
            targets_cpu_s: 1201.0,
            setup_cpu_s: 1098.0,
        },
        memory: MemoryStatus {
            resident_bytes: 1016,
            ring_bytes: 1099,
            limit_bytes: 1017,
            symbol_bytes: 1018,
            pressed: 1019,
            open_files: 1020,
        },
        symbolizer: SymbolizerStatus { apart: true, started: 1210, broken: 1211 },
        store: store_status(),
        exports: vec![
            export("cloud", 3000),
            ExportStatus { problem: None, retry_s: None, ..export("lab", 0) },
        ],
        runtimes: vec![RuntimeStatus {
            socket: "/run/containerd/containerd.sock".to_owned(),
            protocol: Some(Protocol::Cri),
            containers: 12,
            asked: 3,
            failed: 1,
            problem: Some("it does not answer".to_owned()),
            retry_s: 5.0,
        }],
        fleet: Some(fleet_status()),
    }
}

fn store_status() -> StoreStatus {
    StoreStatus {
        folder: "/var".to_owned(),
        problem: Some("x".to_owned()),
        files: 1021,
        bytes: 1022,
        limit_bytes: 1023,
        window_s: 1030.0,
        queued_bytes: 1024,
        dropped_queue: 1025,
        unnamed_files: 1043,
        unspooled: 1044,
        counters: store::Counters {
            written: 1026,
            recovered: 1045,
            dropped_full: 1027,
            dropped_refused: 1028,
            expired: 1029,
            evicted: 1030,
            evicted_disk_full: 1039,
            vanished: 1040,
            remade: 1041,
            merged: 1031,
            unmerged: 1032,
            damaged: 1033,
            unsynced: 1034,
            cleaned: 1035,
        },
        left_alone_files: 1042,
        notes: Vec::new(),
        waiting: store::UnmergedFiles { files: 1036, needed_bytes: 1037, retry_s: 1038.0, why: None },
    }
}

fn fleet_status() -> FleetStatus {
    FleetStatus {
        prometheus: Some("prometheus:9090".to_owned()),
        label: "target".to_owned(),
        asked: 4001,
        failed: 4002,
        age_s: Some(4003.0),
        services: 4004,
        members: 5,
        problem: Some("it does not answer".to_owned()),
    }
}

fn export(name: &str, first: u32) -> ExportStatus {
    ExportStatus {
        name: name.to_owned(),
        to: "backend:4040".to_owned(),
        pushed: u64::from(first) + 1,
        refused: u64::from(first) + 2,
        left_out: u64::from(first) + 8,
        dropped: u64::from(first) + 3,
        sent_bytes: u64::from(first) + 4,
        pending: u64::from(first) + 5,
        lag_s: f64::from(first) + 6.0,
        problem: Some("down".to_owned()),
        retry_s: Some(f64::from(first) + 7.0),
    }
}

/// The same of a target.
fn full_target() -> TargetStatus {
    TargetStatus {
        name: "web".to_owned(),
        labels: BTreeMap::from([
            ("team".to_owned(), "a \"b\"\\\n".to_owned()),
            ("le".to_owned(), "x".to_owned()),
        ]),
        origin: Origin::Request,
        state: TargetState::LeftOut,
        reason: Some("others".to_owned()),
        taken_by: vec!["asked".to_owned()],
        ends_in_s: Some(2001.0),
        processes: 2002,
        sampling: SamplingStatus {
            attach_mode: Some(AttachMode::Cgroup),
            unwind: Some(Method::Dwarf),
            rate_hz: Some(2003.0),
            optimum_rate_hz: Some(2004.0),
            overhead_us: Some(2005e6),
            overhead_se_us: Some(2006e6),
            overhead_last_1s_ratio: Some(2007.0),
            overhead_worst_1s_ratio: Some(2008.0),
            overhead_parts: Some(OverheadParts {
                base_ratio: 2009.0,
                frames_ratio: 2010.0,
                stack_ratio: 2011.0,
                switches_ratio: 2012.0,
                unseen_ratio: 2030.0,
                side_records_ratio: 2013.0,
                foreign_ratio: 2014.0,
                self_ratio: 2015.0,
                fixed_ratio: 2016.0,
            }),
            slowdown_ratio: Some(2026.0),
            slowdown_worst_10s_ratio: Some(2027.0),
            own_cpu_ratio: Some(2028.0),
        },
        budget_ratio: 2017.0,
        own_budget_ratio: 2025.0,
        fleet: Some(Membership {
            replicas: 2029.0,
            source: ReplicaSource::None,
            reason: Some("none".to_owned()),
        }),
        totals: TargetTotals {
            cpu_s: 2018.0,
            cpu_s_low: 2017.5,
            cpu_s_high: 2018.5,
            overhead_s: 2019.0,
            samples: 2020,
            lost: 2021,
            truncated: 2022,
            unnamed: 2023,
            windows: 2024,
        },
    }
}

/// Whether a value has the shape that the document says, no key more and none less.
fn check(value: &Value, schema: &Value, schemas: &Value, at: &str) {
    if let Some(name) = schema["$ref"].as_str().and_then(|name| name.rsplit('/').next()) {
        assert!(schemas[name].is_object(), "{at}: there is no schema {name}");
        return check(value, &schemas[name], schemas, at);
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        let fits = |choice: &&Value| choice["type"].is_null() != value.is_null();
        return check(value, choices.iter().find(fits).unwrap(), schemas, at);
    }
    if let Some(words) = schema["enum"].as_array() {
        assert!(words.contains(value), "{at}: {value} is none of {words:?}");
        return;
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_u64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        other => panic!("{at}: {other}"),
    };
    assert!(
        kinds.contains(&kind) || (kind == "integer" && kinds.contains(&"number")),
        "{at}: {value} is no {kinds:?}"
    );
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        check(item, &schema["items"], schemas, &format!("{at}[{index}]"));
    }
    let (Some(found), Some(known)) = (value.as_object(), schema["properties"].as_object()) else { return };
    assert_eq!(found.keys().collect::<BTreeSet<_>>(), known.keys().collect(), "{at}");
    for (key, value) in found {
        check(value, &known[key], schemas, &format!("{at}.{key}"));
    }
    let required = schema["required"].as_array().unwrap();
    assert!(required.iter().all(|key| known.contains_key(key.as_str().unwrap())), "{at}");
}

#[test]
fn what_is_answered_has_the_shape_that_the_document_says() {
    let schemas = openapi::schemas();
    let shape = |value: Value, name: &str| check(&value, &json!({ "$ref": name }), &schemas, name);
    shape(serde_json::to_value(status()).unwrap(), "Status");
    shape(serde_json::to_value(Status::default()).unwrap(), "Status");
    for state in [TargetState::Waiting, TargetState::Sampled, TargetState::LeftOut, TargetState::Failed] {
        shape(serde_json::to_value(TargetStatus { state, ..full_target() }).unwrap(), "Target");
    }
    for unwind in [Method::Fp, Method::Dwarf, Method::Trial] {
        let sampling = SamplingStatus { unwind: Some(unwind), ..SamplingStatus::default() };
        shape(serde_json::to_value(TargetStatus { sampling, ..target("x") }).unwrap(), "Target");
    }
    let daemon = Daemon::new();
    shape(daemon.get("/v1/targets").json(), "Targets");
    shape(daemon.get("/v1/targets/web/decisions").json(), "Decisions");
    shape(daemon.get("/healthz").json(), "Word");
    shape(daemon.get("/nothing").json(), "Problem");
    shape(daemon.ask("POST", "/v1/reload").json(), "Message");
    shape(daemon.post("/v1/attach", r#"{"pid": 1, "duration_s": 1}"#).json(), "Named");
    // Every key that is read is in the document, and every other is refused.
    let known = schemas["Attach"]["properties"].as_object().unwrap();
    for key in known.keys() {
        let error = daemon.post("/v1/attach", &json!({ key: [[]] }).to_string()).text();
        assert!(!error.contains("unknown field"), "{key}: {error}");
    }
    let error = daemon.post("/v1/attach", r#"{"other": 1}"#).text();
    assert_eq!(error.matches('`').count(), 2 * (known.len() + 1), "{error}");
}

#[test]
fn the_document_is_what_the_router_does() {
    let daemon = Daemon::new();
    let document = daemon.get("/v1/openapi.json").json();
    assert_eq!(document["openapi"], "3.1.0");
    let mut count = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        let concrete = path.replace("{name}", "nobody");
        for method in ["get", "post", "delete", "put", "patch"] {
            let Some(operation) = operations.get(method) else {
                if method != "get" {
                    assert_eq!(daemon.ask(&method.to_uppercase(), &concrete).status, 405, "{method} {path}");
                }
                continue;
            };
            count += 1;
            let got = match path.as_str() {
                // It would wait for half a minute.
                "/debug/pprof/profile" => daemon.get("/debug/pprof/profile?seconds=1"),
                _ => daemon.ask(&method.to_uppercase(), &concrete),
            };
            assert_ne!(got.status, 405, "{method} {path}");
            assert!(
                operation["responses"][got.status.to_string()].is_object(),
                "{method} {path}: {}",
                got.status
            );
            // A parameter that is not in the document is refused, and one that is, is read.
            assert_eq!(
                daemon.ask(&method.to_uppercase(), &format!("{concrete}?unheard=1")).status,
                400,
                "{path}"
            );
            for parameter in operation["parameters"].as_array().unwrap() {
                if parameter["in"] == "query" {
                    let name = parameter["name"].as_str().unwrap();
                    let text = daemon.ask(&method.to_uppercase(), &format!("{concrete}?{name}=%00")).text();
                    assert!(
                        text.contains(&format!("{name} has a control character")),
                        "{path} {name}: {text}"
                    );
                }
            }
        }
    }
    assert_eq!(count, ROUTES.len());
    let ids: BTreeSet<String> = ROUTES.iter().map(|route| format!("{:?}", route.operation)).collect();
    assert_eq!(ids.len(), ROUTES.len());
}

fn written(form: Form) -> String {
    let second = TargetStatus { name: "db".to_owned(), ..target("db") };
    metrics::write(status(), vec![full_target(), second], &ApiCounters::default(), form).unwrap()
}

#[test]
fn every_figure_is_a_metric() {
    for form in [Form::Text, Form::OpenMetrics] {
        let text = written(form);
        let values: BTreeSet<&str> =
            text.lines().filter_map(|line| line.rsplit_once(' ')).map(|(_, value)| value).collect();
        for figure in (1001..=1039).chain(2001..=2029).chain(3001..=3008).chain(4001..=4004).chain([1212]) {
            let is_there = [format!("{figure}"), format!("{figure}.0")]
                .iter()
                .any(|text| values.contains(text.as_str()));
            assert!(is_there, "{figure} is missing in\n{text}");
        }
        assert!(text.contains("sweetspot_degraded 7"), "{text}");
        assert!(text.contains("sweetspot_export_failing{export=\"cloud\"} 1"), "{text}");
        assert!(text.contains("sweetspot_export_failing{export=\"lab\"} 0"), "{text}");
        assert!(text.contains("sweetspot_fleet_failing 1"), "{text}");
        assert!(text.contains("sweetspot_fleet_alone{target=\"web\"} 1"), "{text}");
        assert!(text.contains("sweetspot_build_info{version=\"9.9\"} 1"), "{text}");
        assert!(text.contains(r#"label_team="a \"b\"\\\n""#), "{text}");
        assert!(text.contains(
            "sweetspot_target_info{target=\"web\",state=\"left_out\",origin=\"request\",attach_mode=\"cgroup\",unwind=\"dwarf\"} 1"
        ));
    }
}

/// What is deployed to read the metrics.
const READERS: [(&str, &str); 2] = [
    ("packaging/grafana/sweetspot.json", include_str!("../../../../packaging/grafana/sweetspot.json")),
    ("packaging/prometheus/rules.yml", include_str!("../../../../packaging/prometheus/rules.yml")),
];

/// The metrics that a dashboard or an alert names.
fn metrics_named_in(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with("sweetspot_"))
        .collect()
}

#[test]
fn what_dashboard_and_alerts_read_is_a_metric() {
    let text = written(Form::Text);
    let known: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .filter_map(|line| line.split(' ').next())
        .collect();
    for (file, reader) in READERS {
        let named = metrics_named_in(reader);
        assert!(named.len() > 10, "{file} reads {named:?}");
        let unknown: Vec<_> = named.difference(&known).collect();
        assert!(unknown.is_empty(), "{file} reads {unknown:?}, which the daemon does not write");
    }
}

#[test]
fn the_form_is_what_is_asked_for() {
    let daemon = Daemon::new();
    let plain = daemon.get("/metrics");
    assert!(plain.head.contains("content-type: text/plain; version=0.0.4"), "{}", plain.head);
    assert!(!plain.text().contains("# EOF"));
    let open = daemon.send(
        "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAccept: application/openmetrics-text;version=1.0.0;q=0.5,*/*\r\n\r\n",
    );
    assert!(open.head.contains("content-type: application/openmetrics-text"), "{}", open.head);
    assert!(open.text().ends_with("# EOF\n"));
    let counted = daemon.get("/metrics").text();
    assert!(counted.contains("sweetspot_http_requests_total{code=\"200\"} 2"), "{counted}");
}

/// Skipped where there is no promtool (Debian's package prometheus).
#[test]
fn promtool_has_nothing_to_say() {
    let tool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut tool) = tool else {
        println!("skipped: there is no promtool");
        return;
    };
    let daemon = Daemon::new();
    daemon.get("/v1/status");
    let own = daemon.get("/metrics").text();
    let own: String =
        own.split_inclusive('\n').filter(|line| line.contains("sweetspot_http_requests")).collect();
    let text = written(Form::Text) + &own;
    tool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = tool.wait_with_output().unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
}
