//! Processes that come, become others, and go.

use super::*;

fn sections() -> [TargetSettings; 3] {
    [
        target("web", "process = \"^web$\""),
        target("db", "command = \"^db \""),
        target("all", "everything = true"),
    ]
}

#[test]
fn processes_come_and_go() {
    let mut host = Host::new();
    let mut watched = watch(&host, &sections());
    let (web, all) = (watched.id("web"), watched.id("all"));
    assert_eq!(watched.look(), Changes::default());
    host.start(20, Made::program("web", 1));
    host.start(21, Made::program("sh", 1));
    let changes = watched.look();
    assert_eq!(changes.joined, [(web, 20), (all, 21)]);
    host.end(20);
    assert_eq!(watched.look().left, [(web, 20)]);
    host.start(20, Made { start: 200, ..Made::program("web", 1) });
    assert_eq!(watched.look().joined, [(web, 20)], "a restart comes back to its target");
}

#[test]
fn another_process_with_the_same_id_is_told_from_the_first() {
    let mut host = Host::new();
    host.start(20, Made::program("web", 1));
    host.start(30, Made::program("web", 1));
    let mut watched = watch(&host, &sections());
    let (web, all) = (watched.id("web"), watched.id("all"));
    (0..3).for_each(|_| drop(watched.look()));
    // The kernel gives a new process another folder, which shows in the list.
    host.end(20);
    host.start(20, Made { start: 200, ..Made::program("sh", 1) });
    host.end(30);
    host.start(30, Made { start: 200, ..Made::program("web", 1) });
    let changes = watched.look();
    assert_eq!(changes.left, [(web, 20), (web, 30)]);
    assert_eq!(changes.joined, [(web, 30), (all, 20)]);
    // Even one in the same folder is found when its turn comes.
    host.change(30, |made| (made.start, made.comm, made.executable) = (300, b"sh".into(), "/bin/sh".into()));
    watched.look_long();
    assert_eq!(watched.target_of(30), Some("all"));
}

#[test]
fn a_process_that_runs_another_program_is_asked_again() {
    let mut host = Host::new();
    host.start(20, Made { command: b"sh\0-c\0db\0".into(), ..Made::default() });
    let mut watched = watch(&host, &sections());
    assert_eq!(watched.target_of(20), Some("all"));
    let becomes_db = |made: &mut Made| (made.image, made.command) = (2, b"db \0".into());
    host.change(20, becomes_db);
    watched.look();
    assert_eq!(watched.target_of(20), Some("db"), "it is young");
    host.start(21, Made::default());
    host.start(22, Made::default());
    (0..4).for_each(|_| drop(watched.look()));
    host.change(21, becomes_db);
    host.change(22, becomes_db);
    watched.discovery.suspect(21);
    watched.look();
    assert_eq!(watched.target_of(21), Some("db"), "somebody told");
    watched.look_long();
    assert_eq!(watched.target_of(22), Some("db"), "its turn came");
    // Without the right to see where its stack is, whatever may have changed is read in each turn.
    host.start(23, Made { image: 0, ..Made::default() });
    (0..4).for_each(|_| drop(watched.look()));
    host.change(23, |made| made.command = b"db \0".into());
    watched.look_long();
    assert_eq!(watched.target_of(23), Some("db"));
}

#[test]
fn a_process_that_moves_or_changes_its_user_is_asked_again() {
    let mut host = Host::new();
    let sections = [target("unit", "unit = \"web.service\""), target("user", "user = \"4\"")];
    host.start(20, Made::default());
    let mut watched = watch(&host, &sections);
    (0..4).for_each(|_| drop(watched.look()));
    host.change(20, |made| made.user = 4);
    watched.look_long();
    assert_eq!(
        (watched.target_of(20), watched.labels("user").as_str()),
        (Some("user"), "cgroup=/init.scope unit=init.scope user=4")
    );
    host.change(20, |made| made.group = "/system.slice/web.service".into());
    watched.look_long();
    assert_eq!((watched.target_of(20), watched.group("unit").is_some()), (Some("unit"), true));
    host.change(20, |made| made.group = "/system.slice/web.service/below".into());
    watched.look_long();
    assert_eq!(watched.labels("unit"), "cgroup=/system.slice/web.service/below unit=web.service");
}

#[test]
fn what_was_inherited_stays_when_the_creator_ends() {
    let mut host = Host::new();
    host.start(20, Made::program("web", 1));
    host.start(21, Made::program("sh", 20));
    let mut watched = watch(&host, &sections());
    host.end(20);
    host.start(22, Made::program("sh", 21));
    assert_eq!(watched.look().joined, [(watched.id("web"), 22)]);
    watched.look_long();
    assert_eq!([21, 22].map(|pid| watched.target_of(pid)), [Some("web"); 2]);
    // A zombie passes on what it had; it has no target itself.
    host.change(21, |made| made.state = 'Z');
    watched.discovery.suspect(21);
    assert_eq!(watched.look().left, [(watched.id("web"), 21)]);
    assert_eq!(watched.target_of(22), Some("web"));
}

/// Its first thread has ended while others run: there is no memory to be seen, and no link to its program.
#[test]
fn a_process_stays_in_its_target_when_its_first_thread_ends() {
    let mut host = Host::new();
    host.start(20, Made::program("server", 1));
    let mut watched = watch(
        &host,
        &[target("server", "executable = \"/usr/bin/server\""), target("all", "everything = true")],
    );
    assert_eq!(watched.target_of(20), Some("server"));
    host.change(20, |made| {
        (made.state, made.threads, made.has_memory, made.executable) = ('Z', 2, false, "/gone".into());
    });
    watched.look_long();
    assert_eq!(watched.target_of(20), Some("server"));
    host.change(20, |made| {
        (made.state, made.threads, made.has_memory, made.image) = ('S', 1, true, 7);
        made.executable = "/usr/bin/other".into();
    });
    watched.look_long();
    assert_eq!(watched.target_of(20), Some("all"), "another thread runs another program");
}

#[test]
fn children_follow_their_creator_while_it_lives() {
    let mut host = Host::new();
    host.start(20, Made::default());
    host.start(21, Made::program("child", 20));
    host.start(22, Made::program("grandchild", 21));
    let mut watched = watch(&host, &sections());
    host.change(20, |made| (made.image, made.comm) = (2, b"web".into()));
    watched.look();
    assert_eq!([20, 21, 22].map(|pid| watched.target_of(pid)), [Some("web"); 3]);
    host.change(20, |made| (made.image, made.comm) = (3, b"sh".into()));
    watched.look();
    assert_eq!([20, 21, 22].map(|pid| watched.target_of(pid)), [Some("all"); 3]);
}

#[test]
fn a_record_tells_of_creators_that_nobody_saw() {
    let mut host = Host::new();
    host.start(20, Made::program("web", 1));
    let mut watched = watch(&host, &sections());
    host.end(20);
    // 20 created 21, which created 22, and both ended before anybody looked.
    host.start(22, Made::program("sh", 1));
    host.start(23, Made::program("sh", 1));
    watched.discovery.born(21, 20);
    watched.discovery.born(22, 21);
    watched.discovery.born(40, 41);
    watched.discovery.born(41, 40);
    host.start(40, Made::default());
    watched.look();
    assert_eq!([22, 23, 40].map(|pid| watched.target_of(pid).unwrap()), ["web", "all", "all"]);
}

#[test]
fn a_parent_that_began_later_is_none() {
    let mut host = Host::new();
    host.start(20, Made { start: 500, ..Made::program("web", 1) });
    host.start(21, Made { start: 400, ..Made::program("sh", 20) });
    // Two that call each other their parents end no look.
    host.start(30, Made::program("sh", 31));
    host.start(31, Made::program("sh", 30));
    host.start(32, Made::program("sh", 32));
    let watched = watch(&host, &sections());
    assert_eq!([21, 30, 31, 32].map(|pid| watched.target_of(pid)), [Some("all"); 4]);
}

#[test]
fn an_id_is_the_process_that_had_it_first() {
    let mut host = Host::new();
    host.start(20, Made::default());
    let mut watched = watch(&host, &[target("one", "pid = 20"), target("later", "pid = 30")]);
    let (one, later) = (watched.id("one"), watched.id("later"));
    host.end(20);
    assert_eq!(watched.look().left, [(one, 20)]);
    host.start(20, Made { start: 200, ..Made::default() });
    host.start(30, Made { start: 200, ..Made::default() });
    assert_eq!(watched.look().joined, [(later, 30)]);
}

#[test]
fn a_unit_that_is_restarted_stays_the_target_it_was() {
    let mut host = Host::new();
    let unit = || Made::program("web", 1).within("/system.slice/web.service");
    host.start(20, unit());
    let mut watched = watch(&host, &[target("all", "everything = true\neach = \"unit\"")]);
    let web = watched.id("all:web.service");
    host.end(20);
    (0..59).for_each(|_| assert!(watched.look().gone.is_empty()));
    host.start(21, Made { start: 200, ..unit() });
    assert_eq!(watched.look().joined, [(web, 21)]);
    host.end(21);
    (0..61).for_each(|_| assert!(watched.look().gone.is_empty()));
    assert_eq!(watched.look().gone, [web]);
    host.start(22, Made { start: 300, ..unit() });
    let changes = watched.look();
    assert!(changes.appeared.len() == 1 && !changes.appeared.contains(&web));
}

#[test]
fn cpu_time_is_what_was_used_since_a_process_was_seen() {
    let mut host = Host::new();
    host.start(20, Made { ticks: 1000, ..Made::program("web", 1) });
    let mut watched = watch(&host, &sections());
    let tick_ns = SECOND / procfs::ticks_per_second();
    let web = watched.id("web");
    assert_eq!(watched.discovery.cpu_ns(web), 0, "what it used before is nobody's");
    host.change(20, |made| made.ticks = 1007);
    assert_eq!(watched.discovery.cpu_ns(web), 7 * tick_ns);
    host.start(21, Made { ticks: 5, ..Made::program("web", 1) });
    watched.look();
    assert_eq!(watched.discovery.cpu_ns(web), 12 * tick_ns, "it began since the last look");
    host.change(21, |made| made.ticks = 8);
    watched.look();
    host.end(21);
    watched.look();
    host.change(20, |made| made.ticks = 900);
    assert_eq!(watched.discovery.cpu_ns(web), 15 * tick_ns, "no total ever shrinks");
}
