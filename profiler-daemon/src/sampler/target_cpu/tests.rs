use super::*;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::Write;
use std::process::{Child, Command, Stdio};

/// Sixty milliseconds of work or more, in a child.
const WORK: &str = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";

/// Has a script go on that waits in `read go`.
fn go(script: &mut Child) {
    script.stdin.take().unwrap().write_all(b"go\n").unwrap();
}

#[test]
fn a_process_counts_from_its_adoption_and_not_twice_with_its_children() {
    // A parent of its own: other tests' children are waited for by this process.
    let script = format!("sh -c 'read go; {WORK}'; exec sleep 60");
    let mut parent = Command::new("sh").args(["-c", &script]).stdin(Stdio::piped()).spawn().unwrap();
    let mut cpu = TargetCpu::default();
    cpu.adopt(parent.id());
    let child = loop {
        match procfs::descendants(&[parent.id()]).pop() {
            Some(child) => break child.pid,
            None => std::thread::yield_now(),
        }
    };
    cpu.forked(child, parent.id());
    let (_, mut gone) = cpu.read();
    go(&mut parent);
    while gone.is_empty() {
        std::thread::sleep(std::time::Duration::from_millis(5));
        gone = cpu.read().1;
    }
    let (total, expected) = (cpu.read().0, procfs::waited_children_cpu_ns(parent.id()));
    parent.kill().unwrap();
    parent.wait().unwrap();
    assert_eq!(gone, [child]);
    assert!(total + 2 * TICK_NS >= expected, "{total} of {expected}");
    assert!(total < 3 * expected, "{total} of {expected}");
}

/// A chain of shells in which the last works, and then all but the first end at once; with readings in between or without.
#[test]
fn a_chain_that_ends_at_once_counts_once() {
    for (reads_between, reads_after) in [(true, true), (false, true), (false, false)] {
        let inner = format!("sh -c 'read go; {WORK}; :'; :");
        let script = format!("sh -c \"{}\"; exec sleep 60", inner.replace('$', "\\$"));
        let mut first = Command::new("sh").args(["-c", &script]).stdin(Stdio::piped()).spawn().unwrap();
        let mut cpu = TargetCpu::default();
        cpu.adopt(first.id());
        let chain = loop {
            let chain = procfs::descendants(&[first.id()]);
            if chain.len() == 2 {
                break chain;
            }
            std::thread::yield_now();
        };
        chain.iter().for_each(|child| cpu.forked(child.pid, child.parent));
        go(&mut first);
        let ended = || chain.iter().all(|child| clock::process_cpu_ns(child.pid).is_none());
        while !ended() {
            if reads_between {
                cpu.read();
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let expected =
            clock::process_cpu_ns(first.id()).unwrap() + procfs::waited_children_cpu_ns(first.id());
        if reads_after {
            let total = cpu.read().0;
            assert!(total.abs_diff(expected) <= 4 * TICK_NS, "{reads_between}: {total} of {expected}");
        }
        first.kill().unwrap();
        first.wait().unwrap();
        cpu.waited_for(first.id(), expected);
        let total = cpu.read().0;
        assert!(
            total.abs_diff(expected) <= 4 * TICK_NS,
            "{reads_between}, {reads_after}, in the end: {total} of {expected}"
        );
    }
}

#[test]
fn what_a_child_used_before_it_was_adopted_never_counts() {
    const LATE: u64 = 8 * TICK_NS;
    let script = "sh -c 'while :; do :; done'; exec sleep 60";
    let mut parent = Command::new("sh").args(["-c", script]).spawn().unwrap();
    let used = |child: &procfs::Child| clock::process_cpu_ns(child.pid).unwrap_or(0);
    let child = loop {
        let worked = |child: &procfs::Child| used(child) >= LATE;
        match procfs::descendants(&[parent.id()]).into_iter().find(worked) {
            Some(child) => break child,
            None => std::thread::yield_now(),
        }
    };
    let mut cpu = TargetCpu::default();
    cpu.adopt(parent.id());
    let before = used(&child);
    cpu.adopt_child(child.pid, child.parent);
    let after = used(&child); // it works on meanwhile
    kill(Pid::from_raw(child.pid as i32), Signal::SIGKILL).unwrap();
    while !cpu.read().1.contains(&child.pid) {
        std::thread::yield_now();
    }
    let (total, waited) = (cpu.read().0, procfs::waited_children_cpu_ns(parent.id()));
    parent.kill().unwrap();
    parent.wait().unwrap();
    let possible = (before + total).saturating_sub(4 * TICK_NS)..=after + total + 4 * TICK_NS;
    assert!(possible.contains(&waited), "{waited} is not {before} (or up to {after}) + {total}");
}

/// A look finds both, the child first; then the record of the child's birth is read.
#[test]
fn a_child_that_was_found_before_its_birth_was_read_does_not_count_twice() {
    for told_later in [true, false] {
        let script = format!("sh -c 'read go; {WORK}'; exec sleep 60");
        let mut parent = Command::new("sh").args(["-c", &script]).stdin(Stdio::piped()).spawn().unwrap();
        let child = loop {
            match procfs::descendants(&[parent.id()]).pop() {
                Some(child) => break child.pid,
                None => std::thread::yield_now(),
            }
        };
        let mut cpu = TargetCpu::default();
        match told_later {
            true => cpu.adopt(child),
            false => cpu.adopt_child(child, parent.id()),
        }
        cpu.adopt(parent.id());
        if told_later {
            cpu.forked(child, parent.id());
        }
        cpu.read();
        go(&mut parent);
        while !cpu.read().1.contains(&child) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let (total, expected) = (cpu.read().0, procfs::waited_children_cpu_ns(parent.id()));
        parent.kill().unwrap();
        parent.wait().unwrap();
        assert!(total.abs_diff(expected) <= 4 * TICK_NS, "{total} of {expected}");
    }
}

#[test]
fn who_leaves_the_target_leaves_what_was_used_until_then() {
    let script = "sh -c 'read go; while :; do :; done'; exec sleep 60";
    let mut parent = Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap();
    let child = loop {
        match procfs::descendants(&[parent.id()]).pop() {
            Some(child) => break child.pid,
            None => std::thread::yield_now(),
        }
    };
    let used = || clock::process_cpu_ns(child).unwrap_or(0);
    let mut cpu = TargetCpu::default();
    cpu.adopt(parent.id());
    cpu.adopt_child(child, parent.id());
    go(&mut parent);
    let until = |ns: u64| {
        while used() < ns {
            std::thread::yield_now()
        }
    };
    until(8 * TICK_NS);
    let (then, _) = cpu.read();
    assert!(then >= 4 * TICK_NS, "{then}");
    cpu.leave(child);
    until(24 * TICK_NS);
    assert!(cpu.read().0.abs_diff(then) <= 2 * TICK_NS, "{} and not {then}", cpu.read().0);
    // Stopped, it uses nothing between the last reading of its clock and its end.
    kill(Pid::from_raw(child as i32), Signal::SIGSTOP).unwrap();
    while !std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap().contains(") T ") {
        std::thread::yield_now();
    }
    cpu.read();
    kill(Pid::from_raw(child as i32), Signal::SIGKILL).unwrap();
    while !cpu.read().1.contains(&child) {
        std::thread::yield_now();
    }
    let total = cpu.read().0;
    parent.kill().unwrap();
    parent.wait().unwrap();
    assert!(total.abs_diff(then) <= 4 * TICK_NS, "{total} and not {then}");
}

#[test]
fn what_others_used_before_the_machine_was_followed_is_not_taken_off() {
    const AN_HOUR_NS: u64 = 3_600_000_000_000;
    let mut cpu = TargetCpu::default();
    cpu.follow_machine();
    cpu.others_used(AN_HOUR_NS);
    assert!(Command::new("sh").args(["-c", WORK]).status().unwrap().success());
    let used_ns = cpu.read().0;
    assert!(used_ns >= TICK_NS, "{used_ns}");
    cpu.others_used(3 * AN_HOUR_NS);
    assert!(Command::new("sh").args(["-c", WORK]).status().unwrap().success());
    assert_eq!(cpu.read().0, used_ns);
}

#[test]
fn where_the_kernel_keeps_the_sum_ends_are_looked_for_now_and_then() {
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let mut cpu = TargetCpu::default();
    cpu.follow_machine();
    cpu.adopt(child.id());
    assert!(cpu.read().1.is_empty());
    child.kill().unwrap();
    child.wait().unwrap();
    cpu.next_look_ns = u64::MAX;
    assert!(cpu.read().1.is_empty(), "it was asked just now");
    cpu.next_look_ns = 0;
    assert_eq!(cpu.read().1, [child.id()]);
}

#[test]
fn a_process_that_nobody_accounts_for_keeps_its_last_reading() {
    let script = format!("read go; {WORK}");
    let mut child = Command::new("sh").args(["-c", &script]).stdin(Stdio::piped()).spawn().unwrap();
    let mut cpu = TargetCpu::default();
    cpu.adopt(child.id());
    go(&mut child);
    while cpu.read().0 < TICK_NS {
        std::thread::yield_now();
    }
    child.wait().unwrap();
    let (total, gone) = cpu.read();
    assert_eq!(gone, [child.id()]);
    assert!(total >= TICK_NS);
    assert_eq!(cpu.read().0, total);
}
