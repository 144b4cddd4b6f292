use super::*;
use facts::{GroupFacts, KernelFacts, MachineFacts, OwnRights, Untimed, hidepid, is_user_namespace};
use nix::errno::Errno;

/// A machine on which everything works, for a user without privileges.
fn good() -> HostFacts {
    HostFacts {
        kernel: KernelFacts {
            release: "6.12.1-generic".to_owned(),
            architecture: "x86_64",
            paranoid: Some(0),
            mlock_kb: Some(516),
            max_stack: Some(512),
            kptr_restrict: Some(0),
            ptrace_scope: Some(1),
            hidepid: None,
            ticks_hz: 250.0,
        },
        rights: OwnRights {
            capabilities: 0,
            user_namespace: false,
            cpu_wide: true,
            kernel_addresses: true,
            protected: 0,
            seccomp: 0,
            memlock_bytes: 8 << 20,
            open_files: 1 << 20,
            map_files: true,
            open_error: None,
        },
        machine: MachineFacts {
            cpus: 8,
            threads: 100,
            hardware_counters: true,
            virtual_machine: false,
            container: None,
        },
        groups: GroupFacts { hierarchy: Some("/sys/fs/cgroup".into()), error: None, makes_groups: true },
        runtimes: vec![("/run/containerd/containerd.sock".into(), true)],
        agent: Some("/usr/lib/sweetspot/libsweetspot_agent.so".into()),
        handler: None,
        cache: Some("/home/u/.cache/sweetspot/calibration.json".into()),
        calibrated: true,
    }
}

/// The same machine with something changed.
fn with(mut facts: HostFacts, change: impl FnOnce(&mut HostFacts)) -> HostFacts {
    change(&mut facts);
    facts
}

const ALL_CAPABILITIES: u64 = 0x1ff_ffff_ffff;

fn check(facts: &HostFacts, name: &str) -> Check {
    diagnose(facts).into_iter().find(|check| check.name == name).unwrap()
}

#[test]
fn a_good_machine_has_nothing_to_mend() {
    for check in diagnose(&good()) {
        assert_eq!((check.level, check.remedy.as_deref()), (Severity::Ok, None), "{}", check.name);
    }
}

#[test]
fn what_takes_the_samples_of_a_command_is_told_with_its_reason() {
    assert_eq!(check(&good(), "record").finding, "samples by perf events");
    let refused = with(good(), |facts| facts.rights.open_error = Some(Errno::EPERM as i32));
    let found = check(&refused, "record");
    assert_eq!(found.level, Severity::Warn);
    assert!(found.finding.contains("by timer signals") && found.finding.contains("at most 250"), "{found:?}");
    let bare = with(refused.clone(), |facts| facts.agent = None);
    assert!(check(&bare, "record").finding.contains("neither beside"));
    let broken = with(refused, |facts| facts.rights.open_error = Some(Errno::ENOSYS as i32));
    assert_eq!(check(&broken, "record").level, Severity::Fail);
}

#[test]
fn each_level_of_paranoia_is_judged_with_and_without_root() {
    let expected = [
        (-1, Severity::Ok, "kernel frames"),
        (0, Severity::Ok, "kernel frames"),
        (1, Severity::Warn, "no CPU-wide"),
        (2, Severity::Warn, "user frames only"),
        (3, Severity::Fail, "nothing without CAP_SYS_ADMIN"),
        (4, Severity::Fail, "nothing without CAP_SYS_ADMIN"),
    ];
    for (level, judgement, finding) in expected {
        let user = with(good(), |facts| {
            facts.kernel.paranoid = Some(level);
            facts.rights.open_error = (level > 2).then_some(Errno::EACCES as i32);
        });
        let found = check(&user, "kernel.perf_event_paranoid");
        assert_eq!(found.level, judgement, "{level}");
        assert!(found.finding.contains(finding), "{level}: {}", found.finding);
        assert_eq!(found.remedy.is_some(), judgement != Severity::Ok);
        let root = with(user, |facts| facts.rights.capabilities = ALL_CAPABILITIES);
        assert_eq!(check(&root, "kernel.perf_event_paranoid").level, Severity::Ok);
    }
    // A kernel without Debian's patch takes 3 for 2.
    let found = check(&with(good(), |facts| facts.kernel.paranoid = Some(3)), "kernel.perf_event_paranoid");
    assert!(found.level == Severity::Warn && found.finding.contains("3: own processes"), "{found:?}");
}

/// The capabilities of a user namespace are all there, and open nothing.
#[test]
fn what_a_user_namespace_gives_is_not_promised() {
    let inside = with(good(), |facts| {
        facts.kernel.paranoid = Some(2);
        facts.rights.capabilities = ALL_CAPABILITIES;
        facts.rights.user_namespace = true;
        facts.rights.cpu_wide = false;
        facts.rights.kernel_addresses = false;
        facts.rights.protected = 40;
        facts.kernel.mlock_kb = Some(16);
        facts.rights.memlock_bytes = 0;
    });
    let found = check(&inside, "kernel.perf_event_paranoid");
    assert_eq!(found.level, Severity::Warn);
    assert!(found.finding.contains("no CPU-wide") && found.finding.contains("user namespace"), "{found:?}");
    assert_eq!(check(&inside, "ring memory").level, Severity::Warn);
    assert_eq!(check(&inside, "kernel.kptr_restrict").level, Severity::Warn);
    assert!(check(&inside, "/proc/PID/maps").finding.contains("our own processes"));
    let root = with(inside.clone(), |facts| {
        facts.rights.user_namespace = false;
        facts.rights.protected = 1;
    });
    assert!(check(&root, "/proc/PID/maps").finding.contains("all processes but one"));
    let refused = with(inside, |facts| facts.kernel.paranoid = Some(0));
    assert!(check(&refused, "kernel.perf_event_paranoid").finding.contains("are refused"));
    for (map, is_one) in [("0 0 4294967295", false), ("0 1000 1", true), ("", true)] {
        assert_eq!(is_user_namespace(map), is_one, "{map}");
    }
}

#[test]
fn root_without_capabilities_is_no_root() {
    let confined = with(good(), |facts| {
        facts.kernel.paranoid = Some(4);
        facts.rights.capabilities = 1 << 2;
        facts.rights.open_error = Some(Errno::EACCES as i32);
    });
    assert_eq!(check(&confined, "kernel.perf_event_paranoid").level, Severity::Fail);
}

#[test]
fn a_denial_is_told_with_who_denied_it() {
    let denied = with(good(), |facts| facts.rights.open_error = Some(Errno::EPERM as i32));
    let finding = |facts: &HostFacts| check(facts, "perf_event_open").finding;
    assert!(
        finding(&with(denied.clone(), |facts| facts.kernel.paranoid = Some(4)))
            .contains("perf_event_paranoid")
    );
    assert!(finding(&with(denied.clone(), |facts| facts.rights.seccomp = 2)).contains("system call filter"));
    assert!(
        finding(&with(denied.clone(), |facts| facts.machine.container = Some("docker"))).contains("docker")
    );
    assert!(finding(&denied).contains("security module"));
    let missing = with(good(), |facts| facts.rights.open_error = Some(Errno::ENOSYS as i32));
    assert!(finding(&missing).contains("CONFIG_PERF_EVENTS"));
    let odd = with(good(), |facts| facts.rights.open_error = Some(0));
    assert_eq!(check(&odd, "perf_event_open").level, Severity::Fail);
}

#[test]
fn what_is_short_is_told_with_its_command() {
    let poor = with(good(), |facts| {
        facts.kernel.mlock_kb = Some(128);
        facts.rights.memlock_bytes = 64 << 10;
        facts.kernel.max_stack = Some(127);
        facts.kernel.kptr_restrict = Some(2);
        facts.rights.kernel_addresses = false;
        facts.rights.open_files = 1024;
        facts.machine.threads = 500;
        facts.kernel.hidepid = Some("2".to_owned());
        facts.rights.map_files = false;
    });
    for (name, command) in [
        ("ring memory", "kernel.perf_event_mlock_kb=516"),
        ("kernel.perf_event_max_stack", "kernel.perf_event_max_stack=512"),
        ("kernel.kptr_restrict", "kernel.kptr_restrict=0"),
        ("open files", "--nofile=5024:5024"),
        ("/proc/PID/maps", "cap_sys_ptrace"),
        ("/proc/PID/map_files", "cap_checkpoint_restore"),
    ] {
        let check = check(&poor, name);
        assert_eq!(check.level, Severity::Warn, "{name}");
        assert!(check.remedy.as_ref().unwrap().contains(command), "{name}: {check:?}");
    }
}

/// One list of rights, which is the service's: `setcap` with another one would take away what the first gave.
#[test]
fn every_advice_grants_what_the_service_has() {
    let service = include_str!("../../../systemd/sweetspot.service");
    let granted = service.lines().find_map(|line| line.strip_prefix("AmbientCapabilities=")).unwrap();
    assert_eq!(granted.to_lowercase().split(' ').collect::<Vec<_>>(), diagnose::CAPABILITIES);
    let poor = with(good(), |facts| {
        facts.kernel.paranoid = Some(4);
        facts.kernel.kptr_restrict = Some(1);
        facts.rights.kernel_addresses = false;
        facts.kernel.hidepid = Some("2".to_owned());
        facts.rights.map_files = false;
        facts.handler = Some(Untimed::Refused);
        facts.rights.open_error = Some(Errno::EPERM as i32);
    });
    let advice: Vec<String> = diagnose(&poor).into_iter().filter_map(|check| check.remedy).collect();
    let granting = advice.iter().filter(|advice| advice.contains("setcap"));
    let whole = diagnose::CAPABILITIES.join(",");
    assert!(granting.clone().count() >= 4, "{advice:?}");
    granting.for_each(|advice| assert!(advice.contains(&format!("setcap {whole}=ep")), "{advice}"));
}

#[test]
fn container_runtimes_are_named_with_whether_they_can_be_asked() {
    let found = |runtimes| check(&with(good(), |facts| facts.runtimes = runtimes), "container names");
    let (containerd, docker) = ("/run/containerd/containerd.sock", "/run/docker.sock");
    assert_eq!((found(vec![]).level, found(vec![]).remedy), (Severity::Ok, None));
    assert!(found(vec![(containerd.into(), true)]).finding.contains(containerd));
    let one_closed = found(vec![(containerd.into(), true), (docker.into(), false)]);
    assert_eq!(one_closed.level, Severity::Warn);
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
    let found = |facts: HostFacts| check(&facts, "cgroup events");
    assert!(found(good()).finding.contains("/sys/fs/cgroup"));
    let unmounted = found(with(good(), |facts| facts.groups.hierarchy = None));
    let by_others = found(with(good(), |facts| facts.groups.makes_groups = false));
    assert!(by_others.finding.contains("of existing groups only"), "{by_others:?}");
    assert!(unmounted.remedy.unwrap().contains("mount -t cgroup2"));
    for (error, word, remedy) in [
        (Errno::EACCES, "not permitted", true),
        (Errno::ENOENT, "CONFIG_CGROUP_PERF", false),
        (Errno::ENOMEM, "failed", false),
    ] {
        let found = found(with(good(), |facts| facts.groups.error = Some(error as i32)));
        assert!(found.finding.contains(word) && found.remedy.is_some() == remedy, "{found:?}");
        assert_eq!(found.level, Severity::Warn);
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
        let found = check(&with(good(), |facts| facts.handler = Some(why)), "handler time");
        assert_eq!(found.level, Severity::Warn);
        assert_eq!(found.remedy.is_some(), remedy.is_some(), "{found:?}");
        assert!(found.remedy.unwrap_or_default().contains(remedy.unwrap_or_default()));
    }
}

#[test]
fn old_kernels_and_other_machines() {
    let level =
        |kernel: &str| check(&with(good(), |facts| facts.kernel.release = kernel.to_owned()), "kernel").level;
    assert_eq!(level("6.18.44-fc-v595"), Severity::Ok);
    assert_eq!(level("5.4.0-42-generic"), Severity::Warn);
    assert_eq!(level("3.10.0"), Severity::Fail);
    assert_eq!(level(""), Severity::Warn);
    let other = with(good(), |facts| facts.kernel.architecture = "riscv64");
    assert_eq!(check(&other, "architecture").level, Severity::Fail);
    let guest = with(good(), |facts| facts.machine.virtual_machine = true);
    assert_eq!(check(&guest, "machine").level, Severity::Warn);
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
    let facts = HostFacts::read(|| Ok(()));
    assert!(!facts.kernel.release.is_empty());
    assert!(facts.machine.cpus > 0 && facts.machine.threads > 0);
    let checks = diagnose(&facts);
    assert_eq!(json(&checks).unwrap().lines().count(), checks.len());
    assert!(text(&checks).contains("kernel.perf_event_paranoid"));
}
