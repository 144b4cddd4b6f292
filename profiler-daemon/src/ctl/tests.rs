//! What `ctl` prints.

use super::TargetList;
use super::TargetOrder;
use super::shown::{Decisions, ShownAttached, ShownStatus, Targets};
use super::{tables, targets};

const STATUS: &str = r#"{"version":"0.1.0","pid":4711,"uptime_s":7384.2,"ready":false,
    "degraded":["there is no group sweetspot\u001b[31m"],"new_key":1,
    "settings":{"file":"/etc/sweetspot/sweetspot.toml","read_unix_s":0,"problem":"12:3: there is no key bugdet"},
    "targets":{"sampled":3,"waiting":2,"left_out":1,"failed":0,"dropped":5},
    "host":{"cpus":64,"budget_ratio":0.01,"overhead_last_10s_ratio":0.0031,"overhead_worst_10s_ratio":0.0098,"self_cpu_s":12.34,"setup_cpu_s":1.25},
    "memory":{"resident_bytes":125829120,"ring_bytes":8388608,"limit_bytes":536870912,"symbol_bytes":1000,"pressed":2,"open_files":321},
    "store":{"folder":"/var/lib/sweetspot","files":210,"bytes":94371840,"limit_bytes":2147483648,"queued_bytes":2048,"dropped_full":4,"damaged":1},
    "exports":[{"name":"cloud","to":"p:4040","pushed":1234,"sent_bytes":2048},
        {"name":"lab","to":"l:1","pushed":1,"refused":2,"left_out":5,"dropped":3,"pending":4,"lag_s":61.5,"problem":"l:1 is down\u001b","retry_s":8.2}],
    "fleet":{"prometheus":"p:9090\u001b","label":"target","age_s":42.5,"services":57,"members":2}}"#;

const TARGETS: &str = r#"{"targets":[
    {"name":"web","state":"sampled","processes":12,"attach_mode":"cgroup","unwind":"fp","rate_hz":118.44,
     "slowdown_ratio":0.0042,"own_budget_ratio":0.01,"own_cpu_ratio":0.0031,"budget_ratio":0.02,"cpu_s":1234.5,"samples":145000,"lost":3,
     "labels":{"team":"search"}},
    {"name":"asked","state":"left_out","processes":1,"reason":"others are more active","ends_in_s":61.5,"own_budget_ratio":0.005},
    {"name":"idle","state":"left_out","processes":2,"reason":"others are more active","own_budget_ratio":0.005,"cpu_s":3,"cpu_s_low":2.7,"cpu_s_high":3.44},
    {"name":"a-service-of-a-name-that-is-longer-than-most","state":"sampled","processes":1,"attach_mode":"cpu","unwind":"dwarf",
     "rate_hz":9.9,"slowdown_ratio":0.009,"own_budget_ratio":0.01,"own_cpu_ratio":0.0001,"cpu_s":99999.9,"samples":123456789,"lost":4},
    {"name":"db","state":"sampled","processes":1,"attach_mode":"cpu","unwind":"dwarf","rate_hz":99.0,"own_budget_ratio":0.01,"cpu_s":7},
    {"name":"cron","state":"waiting","own_budget_ratio":0.01,"taken_by":["asked\u001b"],"labels":{"unit":"cron"}},
    {"name":"backup","state":"waiting","own_budget_ratio":0.01,"cpu_s":12}]}"#;

const DECISIONS: &str = r#"{"target":"web","decisions":[{"at_unix_s":1760000000.5,"rate_hz":118.44,"optimum_rate_hz":120.1,
    "reason":"retune","bound_by":"law","overhead_us":16.3,"overhead_se_us":2.5,"slowdown_ratio":0.0042,"budget_ratio":0.01,
    "utilisation_cpus":1.98,"budget_cap_hz":null}]}"#;

#[test]
fn answers_are_told_to_a_person() {
    let status: ShownStatus = serde_json::from_str(STATUS).unwrap();
    let text = tables::status(&status);
    for part in [
        "process 4711, NOT READY, up 2 h 3 min",
        "3 sampled, 2 waiting, 1 left out, 0 failed; 5 dropped by relabelling rules",
        "0.31% of 64 CPUs in the last 10 s, worst 0.98%, budget 1.00%; own CPU time 12.3 s, of it set-up 1.2 s",
        "120.0 MiB and 8.0 MiB of rings, of 512.0 MiB, names 1000 B, 321 open files, short of it 2 times",
        "210 files, 90.0 MiB of 2.0 GiB, 2.0 KiB wait, 4 windows dropped, 1 damaged files",
        "export     cloud to p:4040: 1234 windows sent, 2.0 KiB\n",
        "export     lab to l:1: 1 windows sent, 0 B, 4 wait, the oldest for 1 min 1 s, 2 refused, 5 left out, 3 dropped; l:1 is down\\x1b; tried \
         again in 8 s\n",
        "fleet      2 of 6 targets have replicas elsewhere that are known, by target at p:9090\\x1b: 57 services 42 s ago\n",
        "problem    12:3: there is no key bugdet",
        "problem    there is no group sweetspot\\x1b[31m",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
}

#[test]
fn targets_and_decisions_are_tables() {
    let targets: Targets = serde_json::from_str(TARGETS).unwrap();
    insta::assert_snapshot!(targets::table(
        &targets,
        TargetList { top: usize::MAX, ..TargetList::default() }
    ));
    let decisions: Decisions = serde_json::from_str(DECISIONS).unwrap();
    let text = tables::decisions(&decisions);
    assert!(
        text.contains("118.4     120.1 retune       law       16.30 ± 4.90    0.42%    1.00%   1.98"),
        "{text}"
    );
    assert!(!text.contains("one sampler"));
    let text = tables::decisions(&Decisions { shared_by: 3, ..Decisions::default() });
    assert!(
        text.starts_with("one sampler for 3 targets: the figures are of all of them together\n"),
        "{text}"
    );
    assert!(text.contains("not sampled now"), "{text}");
    assert!(targets::table(&Targets::default(), TargetList::default()).contains("no targets"));
}

#[test]
fn how_many_replicas_there_are_is_said_once_for_those_that_are_alike() {
    let all = r#"{"targets":[
        {"name":"web","state":"sampled","fleet":{"replicas":6.04,"source":"prometheus","reason":null}},
        {"name":"db","state":"sampled","fleet":{"replicas":1.0,"source":"prometheus","reason":null}},
        {"name":"a","state":"sampled","fleet":{"replicas":1.0,"source":"none","reason":"no one\u001b says"}},
        {"name":"b","state":"sampled","fleet":{"replicas":1.0,"source":"none","reason":"no one\u001b says"}},
        {"name":"cart","state":"sampled","fleet":{"replicas":1000,"source":"settings","reason":null}}]}"#;
    let text = targets::table(&serde_json::from_str(all).unwrap(), TargetList::default());
    for line in [
        "web: one of 6.0 replicas, for which the law's rate is 0.55 of that of one alone, by Prometheus\n",
        "cart: one of 1000.0 replicas, for which the law's rate is 0.10 of that of one alone, by the settings\n",
        "2 targets: a, b: a fleet of one: no one\\x1b says\n",
    ] {
        assert!(text.contains(line), "{line} is missing in\n{text}");
    }
    assert!(!text.contains("db:"), "{text}");
    let decisions = DECISIONS.replace("1.98", "1.98,\"replicas\":6.04");
    let text = tables::decisions(&serde_json::from_str(&decisions).unwrap());
    assert!(
        text.ends_with("\nnow one of 6.0 replicas, for which the law's rate is 0.55 of that of one alone\n")
    );
}

#[test]
fn targets_come_in_the_order_that_is_asked_for() {
    let all: Targets = serde_json::from_str(TARGETS).unwrap();
    let first = |order, top| {
        let text = targets::table(&all, TargetList { order, top, labels: false });
        let rows = text.lines().skip(1).take_while(|line| !line.is_empty() && !line.starts_with('…'));
        rows.map(|line| line.split(' ').next().unwrap()[..2].to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(first(TargetOrder::Cpu, 9), ["a-", "we", "db", "id", "as"]);
    assert_eq!(first(TargetOrder::Name, 9), ["a-", "as", "db", "id", "we"]);
    assert_eq!(first(TargetOrder::Samples, 2), ["a-", "we"]);
    assert_eq!(
        first(TargetOrder::Slowdown, 3),
        ["a-", "we", "as"],
        "those that are not sampled last, by name"
    );
    assert_eq!(first(TargetOrder::Own, 2), ["we", "a-"]);
    let text = targets::table(&all, TargetList { top: 1, labels: true, ..TargetList::default() });
    assert!(text.contains("…and 4 more targets (1244.5 CPU s); --top 0 shows them"), "{text}");
    assert!(!text.contains("team=search") && !text.contains("unit=cron"), "of the row that is shown: {text}");
    let text = targets::table(&all, TargetList { top: 2, labels: true, ..TargetList::default() });
    assert!(text.contains("\nweb: team=search\n") && !text.contains("unit=cron"), "{text}");
    let text = targets::table(&all, TargetList { top: usize::MAX, labels: true, ..TargetList::default() });
    assert!(text.contains("\nweb: team=search\n") && text.contains("\ncron: unit=cron\n"), "{text}");
    for line in targets::table(&all, TargetList { top: usize::MAX, ..TargetList::default() }).lines() {
        assert!(line.contains("a-service") || line.chars().count() <= 100, "{line}");
    }
}

/// Most targets of a host are sampled in one way.
#[test]
fn what_all_have_in_common_is_said_once() {
    let one = |at: u32| {
        serde_json::json!({"name": format!("svc:{at}"), "state": "sampled", "processes": 1, "attach_mode": "cpu", "unwind": "fp",
            "rate_hz": 50.0, "cpu_s": 1, "reason": "as user"})
    };
    let of = |count| -> Targets {
        serde_json::from_value(serde_json::json!({"targets": (0..count).map(one).collect::<Vec<_>>()}))
            .unwrap()
    };
    let text = |count| targets::table(&of(count), TargetList { top: usize::MAX, ..TargetList::default() });
    assert!(
        text(5).ends_with(
            "\n\nsampled by events on whole CPUs, stacks by frame pointers (5 targets)\n\
             5 targets: svc:0, svc:1, svc:2 and 2 more: as user\n"
        ),
        "{}",
        text(5)
    );
    assert_eq!(text(5).matches("as user").count(), 1);
    assert!(
        text(1).ends_with("\nsampled by events on whole CPUs, stacks by frame pointers\nsvc:0: as user\n")
    );
    let waiting = r#"{"targets":[{"name":"a","state":"waiting"}]}"#;
    let waiting: Targets = serde_json::from_str(waiting).unwrap();
    assert_eq!(targets::table(&waiting, TargetList::default()), "1 waits for a process: a\n");
}

#[test]
fn who_lacks_processes_for_a_target_that_was_asked_for_is_told() {
    let told = |json: &str| tables::attached(&serde_json::from_str::<ShownAttached>(json).unwrap());
    assert_eq!(
        told(r#"{"name":"probe","takes_from":["web","rest"]}"#),
        "profiling probe; `sweetspot ctl detach probe` ends it early\n\
         until it ends, its processes are not counted in web, rest\n"
    );
    assert_eq!(told(r#"{"name":"probe"}"#).lines().count(), 1);
}
