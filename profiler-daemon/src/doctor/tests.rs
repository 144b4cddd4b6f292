use super::*;
use facts::{Untimed, hidepid, is_user_namespace};
use nix::errno::Errno;

/// A machine on which everything works, for a user without privileges.
fn good() -> Facts {
    Facts {
        kernel: "6.12.1-generic".to_owned(),
        architecture: "x86_64",
        paranoid: Some(0),
        mlock_kb: Some(516),
        max_stack: Some(512),
        kptr_restrict: Some(0),
        ptrace_scope: Some(1),
        capabilities: 0,
        user_namespace: false,
        cpu_wide: true,
        kernel_addresses: true,
        protected: 0,
        seccomp: 0,
        memlock_bytes: 8 << 20,
        open_files: 1 << 20,
        cpus: 8,
        threads: 100,
        hardware_counters: true,
        virtual_machine: false,
        container: None,
        hidepid: None,
        map_files: true,
        runtimes: vec![("/run/containerd/containerd.sock".into(), true)],
        open_error: None,
        agent: Some("/usr/lib/sweetspot/libsweetspot_agent.so".into()),
        ticks_hz: 250.0,
        hierarchy: Some("/sys/fs/cgroup".into()),
        group_error: None,
        makes_groups: true,
        handler: None,
        cache: Some("/home/u/.cache/sweetspot/calibration.json".into()),
        calibrated: true,
    }
}

const ALL_CAPABILITIES: u64 = 0x1ff_ffff_ffff;

fn check(facts: &Facts, name: &str) -> Check {
    diagnose(facts).into_iter().find(|check| check.name == name).unwrap()
}

#[test]
fn a_good_machine_has_nothing_to_mend() {
    for check in diagnose(&good()) {
        assert_eq!((check.level, check.remedy.as_deref()), (Level::Ok, None), "{}", check.name);
    }
}

#[test]
fn what_takes_the_samples_of_a_command_is_told_with_its_reason() {
    assert_eq!(check(&good(), "record").finding, "samples by perf events");
    let refused = Facts { open_error: Some(Errno::EPERM as i32), ..good() };
    let found = check(&refused, "record");
    assert_eq!(found.level, Level::Warn);
    assert!(found.finding.contains("by timer signals") && found.finding.contains("at most 250"), "{found:?}");
    let bare = Facts { agent: None, ..refused.clone() };
    assert!(check(&bare, "record").finding.contains("neither beside"));
    let broken = Facts { open_error: Some(Errno::ENOSYS as i32), ..refused };
    assert_eq!(check(&broken, "record").level, Level::Fail);
}

#[test]
fn each_level_of_paranoia_is_judged_with_and_without_root() {
    let expected = [
        (-1, Level::Ok, "kernel frames"),
        (0, Level::Ok, "kernel frames"),
        (1, Level::Warn, "no CPU-wide"),
        (2, Level::Warn, "user frames only"),
        (3, Level::Fail, "nothing without CAP_PERFMON"),
        (4, Level::Fail, "nothing without CAP_PERFMON"),
    ];
    for (level, judgement, finding) in expected {
        let user = Facts { paranoid: Some(level), ..good() };
        let found = check(&user, "kernel.perf_event_paranoid");
        assert_eq!(found.level, judgement, "{level}");
        assert!(found.finding.contains(finding), "{level}: {}", found.finding);
        assert_eq!(found.remedy.is_some(), judgement != Level::Ok);
        let root = Facts { capabilities: ALL_CAPABILITIES, ..user };
        assert_eq!(check(&root, "kernel.perf_event_paranoid").level, Level::Ok);
    }
}

/// The capabilities of a user namespace are all there, and open nothing.
#[test]
fn what_a_user_namespace_gives_is_not_promised() {
    let inside = Facts {
        paranoid: Some(2),
        capabilities: ALL_CAPABILITIES,
        user_namespace: true,
        cpu_wide: false,
        kernel_addresses: false,
        protected: 40,
        mlock_kb: Some(16),
        memlock_bytes: 0,
        ..good()
    };
    let found = check(&inside, "kernel.perf_event_paranoid");
    assert_eq!(found.level, Level::Warn);
    assert!(found.finding.contains("no CPU-wide") && found.finding.contains("user namespace"), "{found:?}");
    assert_eq!(check(&inside, "ring memory").level, Level::Warn);
    assert_eq!(check(&inside, "kernel.kptr_restrict").level, Level::Warn);
    assert!(check(&inside, "/proc/PID/maps").finding.contains("our own processes"));
    let root = Facts { user_namespace: false, protected: 1, ..inside.clone() };
    assert!(check(&root, "/proc/PID/maps").finding.contains("all processes but one"));
    let refused = Facts { paranoid: Some(0), ..inside };
    assert!(check(&refused, "kernel.perf_event_paranoid").finding.contains("are refused"));
    for (map, is_one) in [("0 0 4294967295", false), ("0 1000 1", true), ("", true)] {
        assert_eq!(is_user_namespace(map), is_one, "{map}");
    }
}

#[test]
fn root_without_capabilities_is_no_root() {
    let confined = Facts { paranoid: Some(4), capabilities: 1 << 2, ..good() };
    assert_eq!(check(&confined, "kernel.perf_event_paranoid").level, Level::Fail);
}

#[test]
fn a_denial_is_told_with_who_denied_it() {
    let denied = Facts { open_error: Some(Errno::EPERM as i32), ..good() };
    let finding = |facts: &Facts| check(facts, "perf_event_open").finding;
    assert!(finding(&Facts { paranoid: Some(4), ..denied.clone() }).contains("perf_event_paranoid"));
    assert!(finding(&Facts { seccomp: 2, ..denied.clone() }).contains("system call filter"));
    assert!(finding(&Facts { container: Some("docker"), ..denied.clone() }).contains("docker"));
    assert!(finding(&denied).contains("security module"));
    let missing = Facts { open_error: Some(Errno::ENOSYS as i32), ..good() };
    assert!(finding(&missing).contains("CONFIG_PERF_EVENTS"));
    let odd = Facts { open_error: Some(0), ..good() };
    assert_eq!(check(&odd, "perf_event_open").level, Level::Fail);
}

#[test]
fn what_is_short_is_told_with_its_command() {
    let poor = Facts {
        mlock_kb: Some(128),
        memlock_bytes: 64 << 10,
        max_stack: Some(127),
        kptr_restrict: Some(2),
        kernel_addresses: false,
        open_files: 1024,
        threads: 500,
        hidepid: Some("2".to_owned()),
        map_files: false,
        ..good()
    };
    for (name, command) in [
        ("ring memory", "kernel.perf_event_mlock_kb=516"),
        ("kernel.perf_event_max_stack", "kernel.perf_event_max_stack=512"),
        ("kernel.kptr_restrict", "kernel.kptr_restrict=0"),
        ("open files", "--nofile=5024:5024"),
        ("/proc/PID/maps", "cap_sys_ptrace"),
        ("/proc/PID/map_files", "cap_checkpoint_restore"),
    ] {
        let check = check(&poor, name);
        assert_eq!(check.level, Level::Warn, "{name}");
        assert!(check.remedy.as_ref().unwrap().contains(command), "{name}: {check:?}");
    }
}

/// One list of rights, which is the service's: `setcap` with another one would take away what the first gave.
#[test]
fn every_advice_grants_what_the_service_has() {
    let service = include_str!("../../../systemd/sweetspot.service");
    let granted = service.lines().find_map(|line| line.strip_prefix("AmbientCapabilities=")).unwrap();
    assert_eq!(granted.to_lowercase().split(' ').collect::<Vec<_>>(), diagnose::CAPABILITIES);
    let poor = Facts {
        paranoid: Some(4),
        kptr_restrict: Some(1),
        kernel_addresses: false,
        hidepid: Some("2".to_owned()),
        map_files: false,
        handler: Some(Untimed::Refused),
        open_error: Some(Errno::EPERM as i32),
        ..good()
    };
    let advice: Vec<String> = diagnose(&poor).into_iter().filter_map(|check| check.remedy).collect();
    let granting = advice.iter().filter(|advice| advice.contains("setcap"));
    let whole = diagnose::CAPABILITIES.join(",");
    assert!(granting.clone().count() >= 4, "{advice:?}");
    granting.for_each(|advice| assert!(advice.contains(&format!("setcap {whole}=ep")), "{advice}"));
}

#[test]
fn container_runtimes_are_named_with_whether_they_can_be_asked() {
    let found = |runtimes| check(&Facts { runtimes, ..good() }, "container names");
    let (containerd, docker) = ("/run/containerd/containerd.sock", "/run/docker.sock");
    assert_eq!((found(vec![]).level, found(vec![]).remedy), (Level::Ok, None));
    assert!(found(vec![(containerd.into(), true)]).finding.contains(containerd));
    let one_closed = found(vec![(containerd.into(), true), (docker.into(), false)]);
    assert_eq!(one_closed.level, Level::Warn);
    assert!(one_closed.finding.contains("its containers have no names"), "{one_closed:?}");
    let closed = found(vec![(docker.into(), false)]);
    assert!(closed.finding.contains("containers and pods have no names"), "{closed:?}");
    assert!(
        one_closed.finding.contains(docker) && !one_closed.finding.contains(containerd),
        "{one_closed:?}"
    );
}

#[test]
fn control_groups_are_told_of_with_what_they_lack() {
    let found = |facts: Facts| check(&facts, "cgroup events");
    assert!(found(good()).finding.contains("/sys/fs/cgroup"));
    let unmounted = found(Facts { hierarchy: None, ..good() });
    let by_others = found(Facts { makes_groups: false, ..good() });
    assert!(by_others.finding.contains("of existing groups only"), "{by_others:?}");
    assert!(unmounted.remedy.unwrap().contains("mount -t cgroup2"));
    for (error, word, remedy) in [
        (Errno::EACCES, "not permitted", true),
        (Errno::ENOENT, "CONFIG_CGROUP_PERF", false),
        (Errno::ENOMEM, "failed", false),
    ] {
        let found = found(Facts { group_error: Some(error as i32), ..good() });
        assert!(found.finding.contains(word) && found.remedy.is_some() == remedy, "{found:?}");
        assert_eq!(found.level, Level::Warn);
    }
}

#[test]
fn a_handler_that_cannot_be_timed_is_told_with_what_mends_it() {
    for (why, remedy) in [
        (Untimed::NotMounted, Some("mount -t tracefs")),
        (Untimed::NotReadable, Some("remount,gid=")),
        (Untimed::OtherLayout, None),
        (Untimed::Refused, Some("cap_perfmon")),
    ] {
        let found = check(&Facts { handler: Some(why), ..good() }, "handler time");
        assert_eq!(found.level, Level::Warn);
        assert_eq!(found.remedy.is_some(), remedy.is_some(), "{found:?}");
        assert!(found.remedy.unwrap_or_default().contains(remedy.unwrap_or_default()));
    }
}

#[test]
fn old_kernels_and_other_machines() {
    let level = |kernel: &str| check(&Facts { kernel: kernel.to_owned(), ..good() }, "kernel").level;
    assert_eq!(level("6.18.44-fc-v595"), Level::Ok);
    assert_eq!(level("5.4.0-42-generic"), Level::Warn);
    assert_eq!(level("3.10.0"), Level::Fail);
    assert_eq!(level(""), Level::Warn);
    let other = Facts { architecture: "riscv64", ..good() };
    assert_eq!(check(&other, "architecture").level, Level::Fail);
    let guest = Facts { virtual_machine: true, ..good() };
    assert_eq!(check(&guest, "machine").level, Level::Warn);
}

#[test]
fn hidden_processes_are_found_in_the_mounts() {
    assert_eq!(
        hidepid("proc /proc proc rw,nosuid,hidepid=invisible,gid=4 0 0"),
        Some("invisible".to_owned())
    );
    assert_eq!(hidepid("proc /proc proc rw,hidepid=0 0 0"), None);
    assert_eq!(hidepid("proc /proc proc rw,relatime 0 0"), None);
    assert_eq!(hidepid(""), None);
}

#[test]
fn this_machine_can_be_read() {
    let facts = Facts::read(|| Ok(()));
    assert!(!facts.kernel.is_empty());
    assert!(facts.cpus > 0 && facts.threads > 0);
    let checks = diagnose(&facts);
    assert_eq!(json(&checks).unwrap().lines().count(), checks.len());
    assert!(text(&checks).contains("kernel.perf_event_paranoid"));
}
