//! A process' `stat` line. The process chooses the name in it: any bytes, including parentheses, blanks and line breaks.

/// Set in `flags` for threads of the kernel.
const PF_KTHREAD: u32 = 0x0020_0000;

/// The relevant fields of a `stat` line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    /// The name of the process.
    pub(super) comm: Box<[u8]>,
    /// Its parent: the creator, or the process that adopted it.
    pub(super) parent: u32,
    /// Start time (ticks since boot), which distinguishes it from others with the same id.
    pub(super) start: u64,
    /// Identifies the program it runs, if visible.
    pub(super) image: ProgramAddresses,
    /// CPU time that it has used (ticks).
    pub(super) cpu_ticks: u64,
    /// It belongs to the kernel, and runs no program.
    pub(super) is_kernel: bool,
    /// It has ended and waits for its parent (a zombie).
    pub(super) has_ended: bool,
}

/// Addresses of a program's code and stack. They are random: another start of the same program has others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProgramAddresses {
    code: u64,
    code_end: u64,
    stack: u64,
}

impl ProgramAddresses {
    /// Whether there is memory for a program. A process has none when its first thread has ended while others run, and when it is about
    /// to end: it has not begun another program then.
    pub(super) fn has_memory(self) -> bool {
        self.code != 0 // those that may not be seen are 1
    }

    /// Whether the addresses are visible; if not, all programs look alike.
    pub(super) fn is_known(self) -> bool {
        self.stack != 0
    }
}

impl Stat {
    /// Parses the line; `None` if it is not valid.
    pub(super) fn parse(line: &[u8]) -> Option<Self> {
        let name = line.iter().position(|byte| *byte == b'(')? + 1;
        let end = line.iter().rposition(|byte| *byte == b')').filter(|end| *end >= name)?;
        let fields = std::str::from_utf8(&line[end + 1..]).ok()?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        let (state, threads) = (*fields.first()?, number(17)?);
        Some(Self {
            comm: line[name..end].into(),
            parent: number(1)?.try_into().ok()?,
            start: number(19)?,
            image: ProgramAddresses { code: number(23)?, code_end: number(24)?, stack: number(25)? },
            cpu_ticks: number(11)?.saturating_add(number(12)?),
            is_kernel: number(6)? & u64::from(PF_KTHREAD) != 0,
            // A process whose first thread has ended while others run has not ended.
            has_ended: matches!(state, "Z" | "X") && threads <= 1,
        })
    }
}

/// The second of the users in a `status`: real, effective, saved, of files. The name before them has its line breaks
/// escaped.
pub(super) fn effective_user(status: &[u8]) -> Option<u32> {
    let line = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"Uid:"))?;
    std::str::from_utf8(line).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REST: &str =
        "7 1 1 0 -1 4194304 101 0 0 0 30 12 5 5 20 0 1 0 1240508 3133440 398 1 100 200 300 0 0 0 0";

    #[test]
    fn a_line_is_read_whatever_the_process_is_called() {
        for name in [&b"cat"[..], b"", b"a) (b", b"\xff\n7 (x) Z 1", b")"] {
            let line = [b"9 (", name, b") S ", REST.as_bytes()].concat();
            let stat = Stat::parse(&line).unwrap();
            assert_eq!(*stat.comm, *name);
            assert_eq!((stat.parent, stat.start, stat.cpu_ticks), (7, 1_240_508, 42));
            assert_eq!(stat.image, ProgramAddresses { code: 100, code_end: 200, stack: 300 });
            assert!(!stat.is_kernel && !stat.has_ended && stat.image.is_known());
        }
    }

    #[test]
    fn who_has_ended_is_told_from_who_has_threads_left() {
        let line = |state: &str, threads: &str| {
            let rest = REST.replacen(" 20 0 1 0 ", &format!(" 20 0 {threads} 0 "), 1);
            Stat::parse(format!("9 (a) {state} {rest}").as_bytes()).unwrap().has_ended
        };
        assert!(line("Z", "1") && line("X", "0") && !line("Z", "2") && !line("R", "1"));
    }

    #[test]
    fn what_is_no_line_is_none() {
        let cut = format!("9 (a) S {}", &REST[..60]);
        for none in ["", "9", "9 (a", ")(", "9 (a) S", "9 (a) S x 1", &cut] {
            assert_eq!(Stat::parse(none.as_bytes()), None, "{none}");
        }
    }

    #[test]
    fn the_effective_user_counts() {
        assert_eq!(effective_user(b"Name:\tUid:\\n\xff\nUid:\t1\t2\t3\t4\n"), Some(2));
        for none in [&b""[..], b"Uid:", b"Uid:\t1", b"Uid:\t1\tx", b"Uid:\t1\t-2"] {
            assert_eq!(effective_user(none), None);
        }
    }
}
