//! What a look costs, in files that are read.

use super::super::look::{TURNS, YOUNG_LOOKS};
use super::super::table::MAX_INSTANCES;
use super::*;

/// A host of so many processes, in a hundred services.
fn crowd(count: u32) -> Host {
    let mut host = Host::new();
    for pid in 1000..1000 + count {
        host.start(pid, service(pid));
    }
    host
}

fn service(pid: u32) -> Made {
    let number = pid % 100;
    let group = format!("/system.slice/s{number}.service");
    Made { user: number, ..Made::program(&format!("program{number}"), 1).within(&group) }
}

fn reads(watched: &mut Watched, act: impl FnOnce(&mut Watched)) -> u64 {
    let before = watched.discovery.reads();
    act(watched);
    watched.discovery.reads() - before
}

const EACH_UNIT: &str = "everything = true\neach = \"unit\"";

#[test]
fn a_look_at_a_steady_host_reads_a_sixteenth_of_it() {
    const COUNT: u64 = 1600;
    let host = crowd(COUNT as u32);
    for (keys, for_new, for_known) in [
        ("everything = true", 2, 2),     // stat, cgroup for the labels
        (EACH_UNIT, 2, 2),               // the same
        ("pid = 1000", 1, 1),            // stat, and the group of that one
        ("process = \"^no$\"", 2, 1),    // stat, exe
        ("command = \"^no$\"", 2, 1),    // stat, cmdline
        ("user = \"4000\"", 2, 2),       // stat, status
        ("unit = \"no.service\"", 2, 2), // stat, cgroup
    ] {
        let mut watched = Watched::new(&host, &[target("a", keys)]);
        let all = COUNT + 2;
        let first = reads(&mut watched, |watched| drop(watched.look()));
        assert!((for_new * all - 3..=for_new * all + 2).contains(&first), "{keys}: {first}");
        (0..YOUNG_LOOKS).for_each(|_| drop(watched.look()));
        let mut sum = 0;
        for _ in 0..TURNS {
            let look = reads(&mut watched, |watched| drop(watched.look()));
            assert!(look <= for_known * all.div_ceil(TURNS) + 1, "{keys}: {look}");
            sum += look;
        }
        assert!(sum >= all && sum <= for_known * all + 1, "{keys}: each once in {TURNS} looks, not {sum}");
    }
}

#[test]
fn who_is_new_is_read_once_and_looked_at_twice_again() {
    let mut host = crowd(1600);
    let mut watched = watch(&host, &[target("a", "process = \"^program7$\""), target("all", EACH_UNIT)]);
    watched.look_long();
    let steady = reads(&mut watched, Watched::look_long);
    (5000..5100).for_each(|pid| host.start(pid, service(pid)));
    let with_new = reads(&mut watched, Watched::look_long);
    // stat, exe and cgroup at first; stat and cgroup in two looks after it, and in its turn.
    let most = 100 * (3 + 2 * (YOUNG_LOOKS + 1));
    assert!(with_new - steady <= most && with_new - steady >= 100 * 3, "{with_new} and {steady}");
}

/// Ten thousand processes come and go within a minute.
#[test]
fn a_host_that_starts_ten_thousand_processes_in_a_minute_costs_by_their_number() {
    const A_LOOK: u32 = 167;
    let mut host = crowd(300);
    let mut watched = watch(&host, &[target("all", EACH_UNIT)]);
    (0..4).for_each(|_| drop(watched.look()));
    let mut next = 10_000;
    for _ in 0..60 {
        let there: Vec<u32> = (next - A_LOOK..next).filter(|pid| host.all.contains_key(pid)).collect();
        there.into_iter().for_each(|pid| host.end(pid));
        (next..next + A_LOOK).for_each(|pid| host.start(pid, service(pid)));
        next += A_LOOK;
        let look = reads(&mut watched, |watched| drop(watched.look()));
        let most = 2 * (u64::from(A_LOOK) + 302_u64.div_ceil(TURNS)) + 2;
        assert!(look <= most, "{look}");
    }
    assert_eq!(watched.told.len(), 301 + A_LOOK as usize);
    assert_eq!(watched.discovery.targets().count(), 102, "a hundred services, init's and the section's own");
}

/// Two thousand sections of all kinds take no more reads than one of each.
#[test]
fn two_thousand_sections_read_what_a_few_do() {
    let host = crowd(400);
    let kinds = [
        ("unit", "unit = \"s_.service\"\nprocess = \"program\""),
        ("process", "process = \"^program_$\"\nuser = \"_\""),
        ("command", "command = \"^program_ --serve$\""),
        ("executable", "executable = \"/usr/bin/program_\""),
        ("container", "container = \"0000000000_\""),
    ];
    let sections = |count: usize| -> Vec<TargetSettings> {
        let section = |at: usize| {
            let (kind, keys) = kinds[at % kinds.len()];
            let number = at / kinds.len() + 1000; // of nobody here
            target(&format!("{kind}{number}"), &keys.replace('_', &number.to_string()))
        };
        (0..count)
            .map(section)
            .chain([target("s7", "unit = \"s7.service\""), target("all", "everything = true")])
            .collect()
    };
    let (mut few, mut many) = (Watched::new(&host, &sections(10)), Watched::new(&host, &sections(2000)));
    let of_few = reads(&mut few, |watched| drop(watched.look()));
    let of_many = reads(&mut many, |watched| drop(watched.look()));
    assert_eq!(of_few, of_many);
    for watched in [few, many] {
        assert_eq!([1007, 1008].map(|pid| watched.target_of(pid)), [Some("s7"), Some("all")]);
    }
}

#[test]
fn targets_of_an_each_are_bounded() {
    let mut host = Host::new();
    for pid in 1000..1000 + 4200 {
        host.start(pid, Made::program(&format!("p{pid}"), 1));
    }
    let mut watched = watch(&host, &[target("all", "everything = true\neach = \"process\"")]);
    assert_eq!(watched.discovery.targets().count(), 1 + MAX_INSTANCES);
    let own = watched.discovery.target(watched.id("all")).unwrap();
    assert_eq!(own.pids.len(), 4201 - MAX_INSTANCES);
    assert!(watched.discovery.remarks()[0].contains("more than 4096 targets"));
    (1000..1200).for_each(|pid| host.end(pid));
    (0..62).for_each(|_| drop(watched.look()));
    assert!(watched.discovery.remarks().is_empty());
}
