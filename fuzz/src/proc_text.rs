//! Any bytes as the kernel's texts about a process, its control group and the mounts: what stands in them beside numbers
//! is a name that somebody chose.

use procfs::FromRead;

use crate::cgroup_text::{listed_in, mounted, path_in, usage_ns};
use crate::proc_text_of_daemon::{children_ticks, identity_in, switches_in};

/// Takes any bytes.
pub(crate) fn run(data: &[u8]) {
    let _ = (identity_in(data), switches_in(data), children_ticks(data));
    named(data);
    let Ok(text) = std::str::from_utf8(data) else { return };
    assert!(path_in(text).is_none_or(|path| path.is_absolute() && !path.starts_with("/..")));
    let _ = mounted(text);
    assert!(listed_in(text).all(|pid| pid != 0));
    assert!(usage_ns(text).is_none_or(|ns| ns % 1000 == 0));
}

/// The bytes as the name of a process, as the kernel writes it: what follows is found behind any name.
fn named(name: &[u8]) {
    let name: Vec<u8> = name.iter().copied().filter(|byte| !b"\n\0".contains(byte)).take(15).collect();
    let numbers = "S 1 7 7 0 -1 4194560 10 20 0 0 5 6 70 8 20 0 3 0 100 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1";
    let stat = [b"7 (", &name[..], b") ", numbers.as_bytes(), b"\n"].concat();
    assert_eq!(children_ticks(&stat), 78);
    let read = procfs::process::Stat::from_read(&stat[..]).expect("a stat of any name");
    assert_eq!((read.ppid, read.num_threads, read.state), (1, 3, 'S'));
    let status =
        [b"Name:\t", &name[..], b"\nPid:\t7\nUid:\t1\t2\t3\t4\nNSpid:\t7\t9\nvoluntary_ctxt_switches:\t5\n"]
            .concat();
    assert_eq!(identity_in(&status).map(|who| (who.pid, who.user)), Some((9, 4)));
    assert_eq!(switches_in(&status), 5);
}
