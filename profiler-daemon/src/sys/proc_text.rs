//! Texts of `/proc/PID` that are read without a library.
//!
//! The name of a process stands in them, and is its own to choose: any bytes, and often a character of several that the
//! kernel cut in the middle. The library gives up on a `status` that is not UTF-8.

/// Who a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessIdentity {
    /// Its number as it sees it itself, in the innermost of the namespaces that it is in.
    pub(crate) pid: u32,
    /// The user that its files belong to, by our count.
    pub(crate) user: u32,
}

/// Who a process is, by its `status`.
pub(crate) fn identity_in(status: &[u8]) -> Option<ProcessIdentity> {
    let pid =
        field(status, "NSpid:").or_else(|| field(status, "Pid:"))?.split_ascii_whitespace().next_back()?;
    // Real, effective, saved, and that of files.
    let user = field(status, "Uid:")?.split_ascii_whitespace().nth(3)?;
    Some(ProcessIdentity { pid: pid.parse().ok()?, user: user.parse().ok()? })
}

/// Context switches of both kinds, by a `status`.
pub(crate) fn switches_in(status: &[u8]) -> u64 {
    let kinds = ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"];
    let counts = kinds.into_iter().filter_map(|kind| field(status, kind)?.trim().parse::<u64>().ok());
    counts.fold(0, u64::saturating_add)
}

/// What a `status` says under a name.
fn field<'a>(status: &'a [u8], name: &str) -> Option<&'a str> {
    let line = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(name.as_bytes()))?;
    std::str::from_utf8(line).ok()
}

/// Where the code and the stack of a program were put when it was begun: at random, so that another one, or the same begun again, is
/// elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProgramPlacement([u64; 3]);

/// That of a `stat` line; `None` where the first thread has ended, which the line is about.
pub(crate) fn image_in(stat: &[u8]) -> Option<ProgramPlacement> {
    let mut fields = behind_name(stat).skip(23).map_while(|field| field.parse().ok());
    Some(ProgramPlacement([fields.next()?, fields.next()?, fields.next()?]))
        .filter(|image| *image != ProgramPlacement::default())
}

/// What a thread is doing as far as signals matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SystemCall {
    /// It runs, or waits in no system call.
    None,
    /// It waits in this one, which has these arguments.
    Number(i64, [u64; 6]),
}

/// That of a `syscall`.
pub(crate) fn call_in(text: &str) -> Option<SystemCall> {
    let mut words = text.split_ascii_whitespace();
    let number = match words.next()? {
        "running" | "-1" => return Some(SystemCall::None),
        number => number.parse().ok()?,
    };
    let mut arguments = [0; 6];
    for argument in &mut arguments {
        *argument = u64::from_str_radix(words.next()?.trim_start_matches("0x"), 16).ok()?;
    }
    Some(SystemCall::Number(number, arguments))
}

/// `utime + stime` of a `stat` line, in ticks.
pub(crate) fn own_ticks(stat: &[u8]) -> u64 {
    let ticks = behind_name(stat).skip(11).take(2);
    ticks.filter_map(|ticks| ticks.parse::<u64>().ok()).fold(0, u64::saturating_add)
}

/// `cutime + cstime` of a `stat` line, in ticks.
pub(crate) fn children_ticks(stat: &[u8]) -> u64 {
    let ticks = behind_name(stat).skip(13).take(2);
    ticks.filter_map(|ticks| ticks.parse::<u64>().ok()).fold(0, u64::saturating_add)
}

/// How many threads a process has, by its `stat` line.
pub(crate) fn thread_count_in(stat: &[u8]) -> usize {
    behind_name(stat).nth(17).and_then(|threads| threads.parse().ok()).unwrap_or(0)
}

/// Whether a process only waits for its parent to take notice, by its `stat` line: its first thread has ended, and no
/// other is left.
pub(crate) fn is_zombie_in(stat: &[u8]) -> bool {
    let mut fields = behind_name(stat);
    let has_ended = matches!(fields.next(), Some("Z" | "X"));
    has_ended && fields.nth(16).is_none_or(|threads| matches!(threads, "0" | "1"))
}

/// The fields of a `stat` line from the state on. The name before them may hold anything, even a parenthesis.
fn behind_name(stat: &[u8]) -> impl Iterator<Item = &str> {
    let name_end = stat.iter().rposition(|&byte| byte == b')');
    let fields = name_end.and_then(|end| std::str::from_utf8(&stat[end + 1..]).ok()).unwrap_or_default();
    fields.split_ascii_whitespace()
}

/// Of `/proc/stat`: ticks of all CPUs together, in the order of its first line, until that of stolen time.
pub(super) fn machine_ticks_in(text: &[u8]) -> Option<[u64; 8]> {
    let line = text.split(|byte| *byte == b'\n').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    if words.next() != Some("cpu") {
        return None;
    }
    let mut ticks = [0; 8];
    for tick in &mut ticks {
        *tick = words.next()?.parse().ok()?;
    }
    Some(ticks)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &[u8] =
        b"Name:\t\xff\xfe\nUmask:\t0022\nPid:\t77\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nNSpid:\t77\t12\t3\n\
                            voluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t7\n";

    #[test]
    fn the_time_of_children_is_found_behind_any_name() {
        assert_eq!(children_ticks(b"7 (a) (b 1 2) S 1 7 7 0 -1 4194560 10 20 0 0 5 6 70 8 20 0 1 0 100"), 78);
        assert_eq!(children_ticks(b"7 (\xd0) S 1 7 7 0 -1 4194560 10 20 0 0 5 6 70 8 20 0 1 0 100"), 78);
        assert_eq!(children_ticks(b""), 0);
        assert_eq!(own_ticks(b"7 (a) (b 1 2) S 1 7 7 0 -1 4194560 10 20 0 0 5 6 70 8 20 0 1 0 100"), 11);
    }

    #[test]
    fn a_program_is_known_by_where_it_is() {
        let stat = |code: &str| {
            let line = format!("7 (a b) S 1 7 7 0 -1 4194560 10 20 0 0 5 6 70 8 20 0 1 0 100 9 9 9 {code} 0");
            image_in(line.as_bytes())
        };
        assert_eq!(stat("4096 8192 77"), Some(ProgramPlacement([4096, 8192, 77])));
        assert!(stat("4096 8192 78") != stat("4096 8192 77") && stat("4096").is_none());
        assert_eq!((stat("0 0 0"), image_in(b"")), (None, None));
    }

    #[test]
    fn a_call_is_read_with_its_arguments() {
        let poll = "7 0x7ffd 0x1 0x14 0x0 0x8 0xffffffffffffffff 0x7ffe 0x7fff\n";
        assert_eq!(call_in(poll), Some(SystemCall::Number(7, [0x7ffd, 1, 0x14, 0, 8, u64::MAX])));
        assert_eq!(
            (call_in("running\n"), call_in("-1 0x1 0x2\n")),
            (Some(SystemCall::None), Some(SystemCall::None))
        );
        assert_eq!((call_in(""), call_in("7 0x1\n"), call_in("x 0x1\n")), (None, None, None));
    }

    #[test]
    fn a_zombie_has_no_thread_left_whatever_it_is_called() {
        let stat = |state: &str, threads: u32| {
            format!("7 (a) S (b) {state} 1 7 7 0 -1 4194560 10 20 0 0 5 6 70 8 20 0 {threads} 0 100")
        };
        for (state, threads, is_zombie) in
            [("Z", 1, true), ("X", 0, true), ("Z", 2, false), ("S", 1, false), ("R", 1, false)]
        {
            assert_eq!(is_zombie_in(stat(state, threads).as_bytes()), is_zombie, "{state} {threads}");
        }
        assert!(!is_zombie_in(b"") && !is_zombie_in(b"7 (Z Z"));
    }

    #[test]
    fn a_process_is_known_whatever_it_is_called() {
        assert_eq!(identity_in(STATUS), Some(ProcessIdentity { pid: 3, user: 4 }));
        assert_eq!(
            identity_in(b"Name:\ta\nPid:\t9\nUid:\t0\t0\t0\t0\n"),
            Some(ProcessIdentity { pid: 9, user: 0 })
        );
        for none in [&b""[..], b"Pid:\t9\n", b"NSpid:\nUid:\t0\t0\t0\t0\n", b"Pid:\t9\nUid:\t0\t0\t0\n"] {
            assert_eq!(identity_in(none), None, "{}", none.escape_ascii());
        }
    }

    #[test]
    fn switches_are_counted_whatever_the_thread_is_called() {
        assert_eq!(switches_in(STATUS), 12);
        assert_eq!(switches_in(b""), 0);
        assert_eq!(switches_in(b"Name:\tvoluntary_ctxt_switches:\t9\nvoluntary_ctxt_switches:\t5\n"), 5);
    }

    #[test]
    fn ticks_of_all_cpus_are_in_the_first_line() {
        let text = b"cpu  10 20 30 40 50 60 70 80 90 100\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(machine_ticks_in(text), Some([10, 20, 30, 40, 50, 60, 70, 80]));
        for not in [&b""[..], b"cpu 1 2", b"cpu0 1 2 3 4 5 6 7 8", b"cpu a b c d e f g h", b"\xff\n"] {
            assert_eq!(machine_ticks_in(not), None);
        }
    }
}
