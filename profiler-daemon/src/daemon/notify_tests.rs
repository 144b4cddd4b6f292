use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Output};

use tempfile::TempDir;

use super::*;

/// Says everything twice. Runs in a process of its own, whose environment names the manager.
#[test]
#[ignore = "the other tests run it"]
fn speaker() {
    let mut notifier = Notifier::from_env();
    notifier.alive(0);
    notifier.ready("watches 2 targets");
    notifier.status("watches 2 targets");
    notifier.status("watches 3 targets\nREADY=0");
    for now_s in 0..=30 {
        notifier.alive(now_s * 1_000_000_000);
    }
    notifier.reloading();
    notifier.ready("watches 3 targets");
    notifier.stopping();
}

fn speak(environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "daemon::notify::tests::speaker", "--ignored"]);
    command.env_remove("NOTIFY_SOCKET").env_remove("WATCHDOG_USEC").env_remove("WATCHDOG_PID");
    let output = command.envs(environment.iter().copied()).output().unwrap();
    assert!(
        output.status.success() && output.stdout.windows(8).any(|text| text == b"1 passed"),
        "{output:?}"
    );
    output
}

/// What the manager hears, a datagram each.
fn heard(environment: &[(&str, &str)]) -> Vec<String> {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    // The queue holds few datagrams: who does not read makes the speaker wait.
    let said = std::thread::spawn({
        let socket = socket.try_clone().unwrap();
        move || {
            let mut said = Vec::new();
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = socket.recv(&mut bytes) {
                said.push(String::from_utf8(bytes[..length].to_vec()).unwrap());
            }
            said
        }
    });
    speak(&[&[("NOTIFY_SOCKET", path.to_str().unwrap())], environment].concat());
    UnixDatagram::unbound().unwrap().send_to(b"", &path).unwrap(); // ends the reader
    said.join().unwrap()
}

#[test]
fn the_manager_hears_what_it_has_to_and_nothing_twice() {
    let before_us = clock::monotonic_ns() / 1000;
    let mut said = heard(&[]);
    let reloading = said.remove(2);
    let at_us =
        reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").and_then(|rest| rest.trim_end().parse().ok());
    let between = before_us..=clock::monotonic_ns() / 1000;
    assert!(at_us.is_some_and(|at_us: u64| between.contains(&at_us)), "{reloading} is not in {between:?}");
    assert_eq!(
        said,
        [
            "READY=1\nSTATUS=watches 2 targets\n",
            "STATUS=watches 3 targets READY=0\n",
            "READY=1\nSTATUS=watches 3 targets\n",
            "STOPPING=1\nSTATUS=stops\n",
        ]
    );
}

#[test]
fn signs_of_life_come_once_in_half_of_the_managers_patience() {
    let pings = |environment: &[(&str, &str)]| {
        heard(environment).iter().filter(|said| *said == "WATCHDOG=1\n").count()
    };
    assert_eq!(pings(&[("WATCHDOG_USEC", "20000000")]), 4, "at 0, 10, 20 and 30 s");
    assert_eq!(pings(&[("WATCHDOG_USEC", "20000000"), ("WATCHDOG_PID", "1")]), 0, "another's watchdog");
    assert_eq!(pings(&[("WATCHDOG_USEC", "soon")]), 0);
}

#[test]
fn without_a_manager_nothing_happens() {
    let folder = TempDir::new().unwrap();
    let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
    speak(&[("WATCHDOG_USEC", "20000000")]);
    socket.set_nonblocking(true).unwrap();
    assert_eq!(socket.recv(&mut [0; 64]).unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn a_manager_that_is_gone_harms_nobody() {
    speak(&[("NOTIFY_SOCKET", "/no/such/socket"), ("WATCHDOG_USEC", "20000000")]);
}
