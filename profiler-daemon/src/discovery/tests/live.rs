//! Discovery among the processes of this machine.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use super::*;
use crate::cgroup::TransientCgroup;

/// A process that ends with the test.
struct Live {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Live {
    /// Starts a shell script, and waits until it has said something.
    fn script(script: &str) -> Self {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        Self::start(command)
    }

    fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut live = Self { child, out };
        live.said();
        live
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line that it says.
    fn said(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Lets a script that waits in `read` go on.
    fn go_on(&mut self) {
        use std::io::Write;
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

fn among(targets: &[TargetSettings]) -> Discovery {
    let mut discovery = Discovery::new(targets);
    discovery.look(SECOND);
    discovery
}

fn belongs(discovery: &Discovery, name: &str, pid: u32) -> bool {
    discovery.targets().any(|(_, found)| found.name == name && found.pids.contains(&pid))
}

#[test]
fn a_process_is_found_by_each_thing_that_it_is() {
    let live = Live::script("echo ready; read line # sweetspot-live-test");
    let pid = live.pid();
    let shell = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    for keys in [
        format!("pid = {pid}"),
        format!("executable = {shell:?}"),
        "executable = \"/bin/sh\"".to_owned(),
        "command = \"^/bin/sh -c .*sweetspot-live-test$\"".to_owned(),
        "process = \"^sh$\"".to_owned(),
        format!("process = \"^{}$\"", shell.file_name().unwrap().to_str().unwrap()),
        format!("user = \"{}\"", nix::unistd::geteuid()),
        "everything = true".to_owned(),
    ] {
        let discovery = among(&[target("a", &keys)]);
        assert!(belongs(&discovery, "a", pid), "{keys}");
        assert!(!belongs(&discovery, "a", std::process::id()), "{keys}");
    }
    for keys in ["process = \"^sweetspot-live\"", "executable = \"/bin/false\"", "user = \"4294967294\""] {
        assert!(!belongs(&among(&[target("a", keys)]), "a", pid), "{keys}");
    }
}

#[test]
fn children_execs_and_ends_are_followed() {
    let mut live = Live::script("echo ready; read line; sleep 61 & echo $!; read line; exec sleep 62");
    let sections =
        [target("a", &format!("pid = {}", live.pid())), target("sleep", "command = \"^sleep 62$\"")];
    let mut discovery = among(&[sections[0].clone()]);
    live.go_on();
    let child: u32 = live.said().parse().unwrap();
    discovery.look(2 * SECOND);
    assert!(belongs(&discovery, "a", child));
    // By what it runs, the creator itself belongs to another.
    let mut discovery = among(&[sections[1].clone(), sections[0].clone()]);
    assert!([live.pid(), child].iter().all(|pid| belongs(&discovery, "a", *pid)));
    live.go_on();
    while !std::fs::read(format!("/proc/{}/cmdline", live.pid())).unwrap().starts_with(b"sleep") {
        std::thread::yield_now();
    }
    discovery.look(3 * SECOND);
    assert!(belongs(&discovery, "sleep", live.pid()) && belongs(&discovery, "sleep", child));
    let pid = live.pid();
    drop(live);
    let changes = discovery.look(4 * SECOND);
    assert!(changes.left.iter().any(|(_, left)| *left == pid));
    assert!(belongs(&discovery, "sleep", child), "it inherited that");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child as i32), nix::sys::signal::Signal::SIGKILL)
        .unwrap();
}

#[test]
fn a_program_that_is_started_again_comes_back() {
    let start = || Live::script("echo ready; read line # sweetspot-restart-test");
    let first = start();
    let mut discovery = among(&[target("a", "command = \"sweetspot-restart-test$\"")]);
    let id = discovery.targets().next().unwrap().0;
    let before = first.pid();
    assert!(belongs(&discovery, "a", before));
    drop(first);
    let second = start();
    let changes = discovery.look(2 * SECOND);
    assert!(changes.left.contains(&(id, before)) && changes.joined.contains(&(id, second.pid())));
}

/// Needs a cgroup v2 hierarchy that may be written to.
#[test]
fn a_control_group_is_found_with_all_in_it() {
    let Ok(group) = TransientCgroup::make() else {
        return; // no hierarchy, or not ours to write to
    };
    let mut live = Live::script("echo ready; read line; sleep 63 & echo $!; read line");
    group.take_in(live.pid()).unwrap();
    live.go_on();
    let child: u32 = live.said().parse().unwrap();
    let path = group.group().name().to_owned();
    let each = [target("all", "everything = true\neach = \"cgroup\"")];
    for targets in [&[target("a", &format!("cgroup = {path:?}"))][..], &each] {
        let mut discovery = among(targets);
        let of_it = |discovery: &Discovery| {
            let found = discovery.targets().find(|(_, found)| found.pids.contains(&live.pid())).unwrap();
            (found.0, found.1.clone())
        };
        let (id, found) = of_it(&discovery);
        assert_eq!(found.pids, [live.pid(), child].into());
        assert_eq!(found.group.as_deref(), Some(path.as_str()));
        assert_eq!(found.labels["cgroup"], path);
        let opened = crate::cgroup::Cgroup::find(std::path::Path::new(&path)).unwrap();
        assert_eq!(opened.name(), path);
        assert!(discovery.cpu_ns(id) < SECOND);
    }
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child as i32), nix::sys::signal::Signal::SIGKILL)
        .unwrap();
}

/// What a look costs here, for whoever asks (`--nocapture`); bounds are in counts.
#[test]
#[allow(clippy::print_stderr, reason = "a figure for whoever asks")]
fn a_look_at_this_machine_reads_little() {
    let mut children: Vec<Child> =
        (0..300).map(|_| Command::new("sleep").arg("600").spawn().unwrap()).collect();
    let mut discovery = among(&[target("all", "everything = true\neach = \"process\"")]);
    (0..4).for_each(|look| drop(discovery.look((2 + look) * SECOND)));
    let (reads, began_ns) = (discovery.reads(), crate::sys::clock::thread_cpu_ns());
    (0..160).for_each(|look| drop(discovery.look((6 + look) * SECOND)));
    let cpu_us = (crate::sys::clock::thread_cpu_ns() - began_ns) / 160_000;
    let processes = discovery.targets().map(|(_, found)| found.pids.len()).sum::<usize>();
    let a_look = (discovery.reads() - reads) as f64 / 160.0;
    eprintln!("{processes} processes: {a_look:.1} reads and {cpu_us} µs of CPU time a look");
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    // Others may start programs meanwhile.
    assert!(processes >= 300 && a_look < processes as f64, "{a_look}");
}
