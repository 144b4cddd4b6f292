//! Which section a process fits, by each thing that a section can ask for.

use super::*;

const ID: &str = "3f4e5d6c7b8a90123f4e5d6c7b8a90123f4e5d6c7b8a90123f4e5d6c7b8a9012";

/// Of three processes, the one with id 20 fits, and the ones with 30 and 31 do not.
fn assert_alone(keys: &str, fitting: Made) {
    let mut host = Host::new();
    host.start(20, fitting);
    host.start(30, Made::program("other", 1).within("/system.slice/other.service"));
    host.start(31, Made { user: 5, ..Made::program("web2", 1).within("/system.slice/web.service2") });
    let watched = watch(&host, &[target("a", keys)]);
    assert_eq!(watched.told.keys().collect::<Vec<_>>(), [&20], "{keys}");
}

#[test]
fn each_condition_finds_those_that_fit_it() {
    let web = || Made { user: 4, ..Made::program("web", 1).within("/system.slice/web.service/inner") };
    for keys in [
        "pid = 20",
        "executable = \"/usr/bin/web\"",
        "command = \"^web --serve$\"",
        "process = \"^web$\"",
        "user = \"4\"",
        "unit = \"web.service\"",
        "cgroup = \"/system.slice/web.service\"",
        "cgroup = \"/system.slice/web.service/inner/\"",
        "unit = \"web.service\"\nuser = \"4\"\nprocess = \"web\"\ncommand = \"serve\"\npid = 20",
        "unit = \"system.slice\"\nuser = \"4\"",
        "cgroup = \"/\"\nexecutable = \"/usr/bin/web\"",
    ] {
        assert_alone(keys, web());
    }
    let docker = format!("/system.slice/docker-{ID}.scope/x");
    assert_alone(&format!("container = \"{}\"", &ID[..12]), web().within(&docker));
    assert_alone(&format!("container = \"{}\"", ID.to_uppercase()), web().within(&docker));
    assert_alone(
        "executable = \"/usr/bin/web\"",
        Made { executable: "/usr/bin/web (deleted)".into(), ..web() },
    );
    let renamed = Made { comm: b"worker".into(), ..web() };
    assert_alone("process = \"^web$\"", renamed.clone());
    assert_alone("process = \"^worker$\"", renamed);
}

#[test]
fn all_that_is_asked_for_has_to_hold() {
    let mut host = Host::new();
    host.start(20, Made { user: 4, ..Made::program("web", 1).within("/system.slice/web.service") });
    let other = format!("\ncontainer = \"{}\"", &ID[..12]);
    for wrong in [
        "\npid = 21",
        "\nexecutable = \"/usr/bin/we\"",
        "\ncommand = \"^serve\"",
        "\nprocess = \"^w$\"",
        "\nuser = \"5\"",
        "\nuser = \"no such user\"",
        "\nunit = \"web\\u002escope\"",
        "\ncgroup = \"/system.slice/web.servic\"",
        "\ncgroup = \"/system.slice/web.service/x\"",
        &other,
    ] {
        for right in ["", "\npid = 20", "\nunit = \"web.service\"", "\nprocess = \"web\"", "\nuser = \"4\""] {
            let key = |line: &str| line.trim().split(' ').next().unwrap_or_default().to_owned();
            if key(right) == key(wrong) || wrong.contains("no such") {
                continue;
            }
            let watched = watch(&host, &[target("a", &format!("{wrong}{right}"))]);
            assert_eq!(watched.target_of(20), None, "{wrong}{right}");
        }
    }
}

#[test]
fn the_first_section_that_fits_takes_a_process_whatever_it_asks_for() {
    let keys = [
        "pid = 20",
        "unit = \"web.service\"",
        "cgroup = \"/system.slice\"",
        "executable = \"/usr/bin/web\"",
        "user = \"4\"",
        "process = \"web\"",
        "command = \"serve\"",
    ];
    let mut host = Host::new();
    host.start(20, Made { user: 4, ..Made::program("web", 1).within("/system.slice/web.service") });
    for first in 0..keys.len() {
        for second in 0..keys.len() {
            let watched = watch(&host, &[target("first", keys[first]), target("second", keys[second])]);
            assert_eq!(watched.target_of(20), Some("first"), "{} before {}", keys[first], keys[second]);
        }
        let all: Vec<TargetSettings> =
            (0..keys.len()).map(|at| target(&format!("t{at}"), keys[(first + at) % keys.len()])).collect();
        assert_eq!(watch(&host, &all).target_of(20), Some("t0"));
    }
}

#[test]
fn children_belong_to_their_creator_s_target_unless_they_fit_another() {
    let mut host = Host::new();
    host.start(20, Made::program("web", 1));
    host.start(21, Made::program("helper", 20));
    host.start(22, Made::program("grandchild", 21));
    host.start(23, Made::program("db", 22));
    host.start(24, Made::program("child-of-db", 23));
    let sections = [
        target("web", "process = \"^web$\""),
        target("db", "process = \"^db$\""),
        target("all", "everything = true"),
    ];
    let watched = watch(&host, &sections);
    let of = [1, 20, 21, 22, 23, 24].map(|pid| watched.target_of(pid).unwrap().to_owned());
    assert_eq!(of, ["all", "web", "web", "web", "db", "db"]);
    assert_eq!(watched.target_of(OWN), None, "never ourselves");
}

#[test]
fn ourselves_and_the_kernel_s_threads_belong_to_nobody() {
    let mut host = Host::new();
    host.start(2, Made { is_kernel: true, ..Made::program("kthreadd", 0) });
    host.start(3, Made { is_kernel: true, executable: String::from("x"), ..Made::program("kworker", 2) });
    host.start(20, Made { state: 'Z', ..Made::program("zombie", 1) });
    host.start(100, Made::program("child-of-ours", OWN));
    let own = target("own", &format!("pid = {OWN}"));
    let watched = watch(&host, &[own, target("all", "everything = true")]);
    assert_eq!(watched.told.keys().copied().collect::<Vec<_>>(), [1, 100]);
    assert_eq!(watched.target_of(100), Some("all"));
}

#[test]
fn a_file_is_found_by_a_link_to_it() {
    let folder = tempfile::TempDir::new().unwrap();
    let (file, link) =
        (folder.path().canonicalize().unwrap().join("python3.12"), folder.path().join("python3"));
    std::fs::write(&file, "").unwrap();
    std::os::unix::fs::symlink("python3.12", &link).unwrap();
    let mut host = Host::new();
    host.start(20, Made { executable: file.to_str().unwrap().to_owned(), ..Made::default() });
    let watched = watch(&host, &[target("a", &format!("executable = {:?}", link.to_str().unwrap()))]);
    assert_eq!(watched.target_of(20), Some("a"));
}

/// The processes of what is parted from everything are told one by one, and the rest is everything.
#[test]
fn what_is_parted_from_everything_is_not_everything() {
    let mut host = Host::new();
    host.start(20, Made::program("web", 1).within("/system.slice/web.service"));
    host.start(21, Made::program("db", 1).within("/system.slice/db.service"));
    let watched = watch(&host, &[target("all", "everything = true\neach = \"unit\"")]);
    let targets: Vec<_> = watched.discovery.targets().collect();
    let own: Vec<TargetId> =
        targets.iter().filter(|(_, found)| found.is_everything).map(|(id, _)| *id).collect();
    assert_eq!((targets.len() > 2, own.len()), (true, 1), "{targets:?}");
    assert!(targets.iter().all(|(_, found)| found.own == own[0]));
    assert_eq!(watched.discovery.target(own[0]).unwrap().name, "all");
}

#[test]
fn a_section_may_be_one_target_for_each() {
    let mut host = Host::new();
    let docker = format!("/system.slice/docker-{ID}.scope");
    host.start(20, Made::program("web", 1).within("/system.slice/web.service"));
    host.start(21, Made { user: 4, ..Made::program("worker", 20).within("/system.slice/web.service/w") });
    host.start(22, Made::program("db", 1).within(&docker));
    host.start(23, Made::program("shell", 1).within("/"));
    let of = |each: &str| {
        let watched = watch(&host, &[target("all", &format!("everything = true\neach = \"{each}\""))]);
        [20, 21, 22, 23].map(|pid| watched.target_of(pid).unwrap().to_owned())
    };
    assert_eq!(of("process"), ["all:web", "all:worker", "all:db", "all:shell"]);
    let scope = format!("docker-{ID}.scope");
    let [web, worker, container, rest] = of("unit");
    assert_eq!([web, worker, rest], ["all:web.service", "all:web.service", "all"]);
    assert!(container.starts_with("all:docker-3f4e5d6c") && container.len() <= 64, "{scope} is too long");
    assert_eq!(of("container"), ["all", "all", "all:3f4e5d6c7b8a", "all"]);
    assert_eq!(of("user"), ["all:root", &of("user")[1], "all:root", "all:root"]);
    let [web, worker, container, rest] = of("cgroup");
    assert_eq!([web, worker], ["all:system.slice:web.service", "all:system.slice:web.service:w"]);
    assert_eq!((container.len(), &*rest), (64, "all"));
}

#[test]
fn what_all_share_is_labelled_and_a_group_of_their_own_is_told() {
    let mut host = Host::new();
    host.start(20, Made::program("web", 1).within("/system.slice/web.service"));
    host.start(21, Made::program("worker", 20).within("/system.slice/web.service/w"));
    let web = target("web", "unit = \"web.service\"\nlabels = { team = \"a\" }");
    let mut watched = watch(&host, &[web.clone(), target("all", "everything = true")]);
    assert_eq!(watched.group("web").unwrap(), "/system.slice/web.service");
    assert_eq!(watched.labels("web"), "team=a unit=web.service");
    assert_eq!(
        (watched.group("all"), watched.labels("all")),
        (None, "cgroup=/init.scope unit=init.scope".to_owned())
    );
    // A child elsewhere belongs to it, and is outside of the group.
    host.start(22, Made::program("helper", 20));
    let changes = watched.look();
    assert_eq!((watched.group("web"), watched.labels("web")), (None, "team=a".to_owned()));
    assert!(changes.changed.contains(&watched.id("web")));
    host.end(22);
    watched.look();
    assert_eq!(watched.group("web").unwrap(), "/system.slice/web.service");
    // Another target takes one out of the group.
    let mut watched = watch(&host, &[target("one", "pid = 21"), web]);
    assert_eq!(
        (watched.group("web"), watched.labels("one").as_str()),
        (None, "cgroup=/system.slice/web.service/w unit=web.service")
    );
    host.end(21);
    watched.look();
    assert_eq!(watched.group("web").unwrap(), "/system.slice/web.service");
    assert_eq!(watched.labels("web"), "cgroup=/system.slice/web.service team=a unit=web.service");
    host.end(20);
    watched.look();
    assert_eq!(
        (watched.group("web"), watched.labels("web").contains("unit")),
        (None, true),
        "as of the last"
    );
}

/// Whoever samples from within a container has a namespace of control groups: others' have names there and no folder.
#[test]
fn groups_outside_of_the_own_namespace_tell_containers_and_units_apart() {
    let mut host = Host::new();
    let above = format!("/../../kubepods-pod7.slice/cri-containerd-{ID}.scope");
    host.start(20, Made::program("web", 1).within("/../../../system.slice/web.service"));
    host.start(21, Made::program("db", 1).within(&above));
    host.start(22, Made::program("ours", 1).within("/"));
    let watched = watch(&host, &[target("all", "everything = true\neach = \"container\"")]);
    let name = format!("all:{}", &ID[..12]);
    assert_eq!(watched.target_of(21), Some(&*name));
    assert_eq!(watched.group(&name), None, "there is no folder to read");
    let watched = watch(&host, &[target("all", "everything = true\neach = \"unit\"")]);
    assert_eq!(watched.target_of(20), Some("all:web.service"));
}

#[test]
fn each_unit_and_container_is_a_group() {
    let mut host = Host::new();
    let docker = format!("/system.slice/docker-{ID}.scope");
    host.start(20, Made::program("web", 1).within("/system.slice/web.service"));
    host.start(21, Made { user: 4, ..Made::program("db", 1).within(&format!("{docker}/init")) });
    let mut watched = watch(&host, &[target("all", "everything = true\neach = \"unit\"")]);
    assert_eq!(watched.group("all:web.service").unwrap(), "/system.slice/web.service");
    assert_eq!(watched.group("all"), None);
    host.start(22, Made::program("sh", OWN).within("/system.slice/sweetspot.service"));
    watched.look();
    assert_eq!(watched.group("all:sweetspot.service"), None, "we are in it too");
    let container = watch(&host, &[target("all", "everything = true\neach = \"container\"")]);
    assert_eq!(container.group("all:3f4e5d6c7b8a").unwrap(), docker);
    assert_eq!(
        container.labels("all:3f4e5d6c7b8a"),
        format!("cgroup={docker}/init container={ID} unit=docker-{ID}.scope")
    );
    let user = watch(&host, &[target("all", "everything = true\neach = \"user\"")]);
    assert!(user.labels("all:root").contains("user=root") && user.group("all:root").is_none());
}
