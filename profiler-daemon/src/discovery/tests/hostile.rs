//! Processes that call themselves what they like, and files that end early or are not there any more.

use std::fs;

use proptest::prelude::*;

use super::super::places::Places;
use super::super::stat::{Stat, effective_user};
use super::*;

#[test]
fn names_may_be_any_bytes() {
    let mut host = Host::new();
    let nasty: &[u8] = b"web) S 1 1 1 0\n(\xff\xf0\x9f";
    host.start(20, Made { comm: nasty.into(), command: b"\xff\0\n\0".into(), ..Made::default() });
    host.start(
        21,
        Made { comm: b"".into(), command: b"".into(), executable: "/\u{1}/".into(), ..Made::default() },
    );
    let each = target("all", "everything = true\neach = \"process\"");
    let mut watched = watch(&host, &[target("c", "command = \"^(?-u:\\\\xff) \\n$\""), each]);
    assert_eq!(watched.target_of(20), Some("c"));
    assert!(watched.target_of(21).unwrap().starts_with("all:-"));
    for (_, found) in watched.discovery.targets() {
        assert!(found.name.len() <= 64 && found.name.chars().all(TargetSettings::is_name_character));
    }
    assert_eq!(watched.look(), Changes::default());
}

#[test]
fn long_texts_are_bounded() {
    let mut host = Host::new();
    let group = format!("/system.slice/{}.service", "µ".repeat(120));
    let deep = "/x".repeat(30_000);
    let command = [b"begin\0".as_slice(), &vec![b'x'; 4 << 20], b"\0end\0"].concat();
    host.start(20, Made { command, ..Made::default().within(&format!("{group}{}", "/y".repeat(100))) });
    host.start(21, Made::default().within(&deep));
    let sections =
        [target("end", "command = \"end$\""), target("begin", "command = \"^begin \"\neach = \"cgroup\"")];
    let watched =
        watch(&host, &[&sections[..], &[target("all", "everything = true\neach = \"cgroup\"")]].concat());
    let name = watched.target_of(20).unwrap();
    assert!(name.starts_with("begin:system.slice:"), "its end is not read");
    let found = watched.discovery.target(watched.id(name)).unwrap();
    assert!(found.labels.values().all(|text| text.len() <= TargetSettings::MAX_LABEL));
    assert!(found.labels["cgroup"].ends_with('…') && found.labels["unit"].ends_with(".service"));
    assert!(watched.target_of(21).unwrap().len() <= 64);
}

#[test]
fn labels_are_one_line() {
    let mut host = Host::new();
    host.start(20, Made::program("web", 1).within("/a\u{1b}[2J.service"));
    let watched = watch(&host, &[target("web", "process = \"^web$\"")]);
    assert_eq!(watched.labels("web"), "cgroup=/a\u{fffd}[2J.service unit=a\u{fffd}[2J.service");
}

/// Every file of a process may be gone, or half of it, at any moment between two reads.
#[test]
fn a_process_that_ends_between_two_reads_is_not_there() {
    let keys = "command = \"serve\"\nuser = \"0\"\nunit = \"web.service\"\nexecutable = \"/usr/bin/web\"";
    let sections = [target("web", keys), target("all", "everything = true\neach = \"unit\"")];
    for missing in ["stat", "cmdline", "cgroup", "status", "exe"] {
        let mut host = Host::new();
        host.start(20, Made::program("web", 1).within("/web.service"));
        fs::remove_file(host.path().join("20").join(missing)).unwrap();
        let mut watched = watch(&host, &sections);
        let of = watched.target_of(20);
        assert!(of.is_none() == (missing == "stat") && of != Some("web"), "{missing}");
        fs::remove_dir_all(host.path().join("20")).unwrap();
        watched.look();
        assert!(!watched.told.contains_key(&20));
    }
    for file in ["stat", "cmdline", "cgroup", "status"] {
        let mut host = Host::new();
        host.start(20, Made::program("web", 1).within("/web.service"));
        let path = host.path().join("20").join(file);
        let whole = fs::read(&path).unwrap();
        let mut watched = watch(&host, &sections);
        assert_eq!(watched.target_of(20), Some("web"));
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            watched.discovery.suspect(20);
            watched.look();
        }
        fs::write(&path, &whole).unwrap();
        watched.discovery.suspect(20);
        watched.look();
        assert_eq!(watched.target_of(20), Some("web"), "{file} is whole again");
    }
}

#[test]
fn a_folder_that_cannot_be_listed_changes_nothing() {
    let mut host = Host::new();
    host.start(20, Made::program("web", 1));
    let mut watched = watch(&host, &[target("all", "everything = true")]);
    let (path, aside) = (host.path().to_owned(), host.path().with_extension("aside"));
    fs::rename(&path, &aside).unwrap();
    assert_eq!(watched.look(), Changes::default());
    fs::rename(&aside, &path).unwrap();
    assert_eq!(watched.look(), Changes::default());
}

#[test]
fn folders_that_are_no_processes_are_left_alone() {
    let host = Host::new();
    for name in ["0", "007", "+5", "4294967296", "5x", "sys", "-1", "٣"] {
        fs::create_dir(host.path().join(name)).unwrap();
        fs::copy(host.path().join("1/stat"), host.path().join(name).join("stat")).unwrap();
    }
    let watched = watch(&host, &[target("all", "everything = true")]);
    assert_eq!(watched.told.keys().collect::<Vec<_>>(), [&1]);
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), path in "[/a-f0-9x.@_:µ-]{0,200}") {
        let _ = effective_user(&bytes);
        if let Some(stat) = Stat::parse(&bytes) {
            prop_assert!(stat.comm.len() < bytes.len());
        }
        let mut places = Places::default();
        let id = places.enter(&path);
        prop_assert_eq!((places.processes(id), places.is_within(id, id)), (1, true));
        places.leave(id);
        prop_assert_eq!(places.processes(id), 0);
    }
}
