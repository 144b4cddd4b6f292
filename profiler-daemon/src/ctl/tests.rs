//! What `ctl` prints.

use super::shown::{Decisions, Status, Targets};
use super::tables;

const STATUS: &str = r#"{"version":"0.1.0","pid":4711,"uptime_s":7384.2,"ready":false,
    "degraded":["there is no group sweetspot\u001b[31m"],"new_key":1,
    "settings":{"file":"/etc/sweetspot/sweetspot.toml","read_unix_s":0,"problem":"12:3: there is no key bugdet"},
    "targets":{"sampled":3,"waiting":2,"left_out":1,"failed":0},
    "host":{"cpus":64,"budget_ratio":0.01,"overhead_last_10s_ratio":0.0031,"overhead_worst_10s_ratio":0.0098,"self_cpu_s":12.34,"setup_cpu_s":1.25},
    "memory":{"resident_bytes":125829120,"ring_bytes":8388608,"limit_bytes":536870912,"symbol_bytes":1000,"pressed":2,"open_files":321},
    "store":{"folder":"/var/lib/sweetspot","files":210,"bytes":94371840,"limit_bytes":2147483648,"queued_bytes":2048,"dropped_full":4,"damaged":1}}"#;

const TARGETS: &str = r#"{"targets":[
    {"name":"web","state":"sampled","processes":12,"attach_mode":"cgroup","unwind":"fp","rate_hz":118.44,
     "slowdown_ratio":0.0042,"own_budget_ratio":0.01,"own_cpu_ratio":0.0031,"budget_ratio":0.02,"cpu_s":1234.5,"samples":145000,"lost":3,
     "labels":{"team":"search"}},
    {"name":"asked","state":"left_out","reason":"others are more active","ends_in_s":61.5,"own_budget_ratio":0.005}]}"#;

const DECISIONS: &str = r#"{"target":"web","decisions":[{"at_unix_s":1760000000.5,"rate_hz":118.44,"optimum_rate_hz":120.1,
    "reason":"retune","bound_by":"law","overhead_us":16.3,"slowdown_ratio":0.0042,"budget_ratio":0.01,
    "utilisation_cpus":1.98,"budget_cap_hz":null}]}"#;

#[test]
fn answers_are_told_to_a_person() {
    let status: Status = serde_json::from_str(STATUS).unwrap();
    let text = tables::status(&status);
    for part in [
        "process 4711, NOT READY, up 2 h 3 min",
        "3 sampled, 2 waiting, 1 left out, 0 failed",
        "0.31% of 64 CPUs in the last 10 s, worst 0.98%, budget 1.00%; own CPU time 12.3 s, of it set-up 1.2 s",
        "120.0 MiB and 8.0 MiB of rings, of 512.0 MiB, names 1000 B, 321 open files, short of it 2 times",
        "210 files, 90.0 MiB of 2.0 GiB, 2.0 KiB wait, 4 windows dropped, 1 damaged files",
        "problem    12:3: there is no key bugdet",
        "problem    there is no group sweetspot\\x1b[31m",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
}

#[test]
fn targets_and_decisions_are_tables() {
    let targets: Targets = serde_json::from_str(TARGETS).unwrap();
    insta::assert_snapshot!(tables::targets(&targets));
    let decisions: Decisions = serde_json::from_str(DECISIONS).unwrap();
    let text = tables::decisions(&decisions);
    assert!(
        text.contains("118.4     120.1 retune       law          16.30    0.42%    1.00%   1.98"),
        "{text}"
    );
    assert!(tables::targets(&Targets::default()).contains("no targets"));
}
