//! Which processes are not touched at all, according to the kernel.
//!
//! Filters of system calls belong to single threads, so every thread is checked before a process is touched,
//! and a few at each look after that. A thread with as many filters as this process, in the same mount
//! namespace, has those of a container.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::PathBuf;
use std::{fs, io};

use super::hijacked_thread::OWN;

/// Fields of `/proc/PID/status` that matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ThreadStatus {
    fields: BTreeMap<String, String>,
}

/// Why a process is left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LeftAlone {
    Ended,
    Halted,
    Traced(u32),
    OthersRights,
    ShutIn,
    InMemoryOf(u32),
    OtherNamespace,
    ShadowStack,
}

impl LeftAlone {
    /// What is said of the process, and what to do.
    pub(super) fn in_words(&self) -> String {
        match self {
            Self::Ended => "has ended; start it again".to_owned(),
            Self::Halted => "is stopped; continue it first (`kill -CONT`)".to_owned(),
            Self::Traced(by) => format!("is traced by process {by} (a debugger, strace); end that first"),
            Self::OthersRights => {
                "runs with the rights of another user or group, so no library is loaded into it; use perf \
                 events"
                    .to_owned()
            }
            Self::ShutIn => {
                "has a seccomp filter, which could end it at a system call of the library; use perf events"
                    .to_owned()
            }
            Self::InMemoryOf(parent) => {
                format!(
                    "runs in the memory of its parent, process {parent} (vfork); attach to its parent, or later, \
                     once it has its own memory"
                )
            }
            Self::OtherNamespace => {
                "is in another PID namespace (a container); run sweetspot inside it".to_owned()
            }
            Self::ShadowStack => "has a shadow stack, which prevents this; use perf events".to_owned(),
        }
    }
}

/// Whether a mask keeps every signal away, but for those of the kernel, of the C library and of the processor: as that of our
/// handlers does, and that of a thread that makes calls for us.
pub(super) fn blocks_all(mask: u64) -> bool {
    const KEPT_BY_LIBRARY: [i32; 2] = [32, 33];
    let let_come = [libc::SIGKILL, libc::SIGSTOP].into_iter().chain(KEPT_BY_LIBRARY).chain(OWN);
    let_come.fold(mask, |mask, signal| mask | 1 << (signal - 1)) == u64::MAX
}

impl ThreadStatus {
    pub(super) fn parse(text: &str) -> Self {
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        let fields = fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
        Self { fields: fields.collect() }
    }

    fn text(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or(0)
    }

    fn mask(&self, name: &str) -> u64 {
        u64::from_str_radix(self.text(name), 16).unwrap_or(0)
    }

    /// The signals that a thread blocks, a bit each.
    pub(super) fn blocked(&self) -> u64 {
        self.mask("SigBlk")
    }

    /// The signals that wait for whichever thread of the process takes them first.
    pub(super) fn waiting_for_any(&self) -> u64 {
        self.mask("ShdPnd")
    }

    /// Signals that wait for a thread, and that it would let come.
    pub(super) fn signals_wait(&self) -> bool {
        (self.mask("SigPnd") | self.mask("ShdPnd")) & !self.mask("SigBlk") != 0
    }

    /// Whether a thread blocks a signal.
    pub(super) fn blocks(&self, signal: i32) -> bool {
        (1..=64).contains(&signal) && self.blocked() >> (signal - 1) & 1 != 0
    }

    /// Whether it lets no signal come.
    pub(super) fn blocks_all(&self) -> bool {
        blocks_all(self.blocked())
    }

    /// The process that began it.
    pub(super) fn parent(&self) -> u32 {
        self.number("PPid") as u32
    }

    /// Whether its system calls are filtered.
    pub(super) fn is_filtered(&self) -> bool {
        self.number("Seccomp") != 0
    }

    /// Whether as many filters are in force for both, as where a container has put them on whatever runs in it.
    pub(super) fn has_as_many_filters_as(&self, other: &Self) -> bool {
        const FILTERED: u64 = 2;
        let count = |status: &Self| match status.number("Seccomp") {
            FILTERED => Some(status.number("Seccomp_filters")).filter(|&count| count > 0),
            _ => None,
        };
        count(self).is_some() && count(self) == count(other)
    }

    /// Why the process is left alone; of filters every thread has its own.
    pub(super) fn left_alone(&self, same_namespace: bool) -> Option<LeftAlone> {
        let differ = |name: &str| {
            let mut ids = self.text(name).split_ascii_whitespace().take(3);
            let first = ids.next();
            ids.any(|id| Some(id) != first)
        };
        match self.text("State").chars().next() {
            None | Some('Z' | 'X') => return Some(LeftAlone::Ended),
            Some('T') => return Some(LeftAlone::Halted),
            _ => {}
        }
        let tracer = self.number("TracerPid");
        if tracer != 0 {
            return Some(LeftAlone::Traced(tracer as u32));
        }
        let reasons = [
            (!same_namespace, LeftAlone::OtherNamespace),
            (differ("Uid") || differ("Gid"), LeftAlone::OthersRights),
            (self.text("x86_Thread_features").contains("shstk"), LeftAlone::ShadowStack),
        ];
        reasons.into_iter().find(|(holds, _)| *holds).map(|(_, reason)| reason)
    }
}

/// Whether any of these threads of a process has shut itself in.
pub(super) fn is_shut_in(pid: u32, tids: &[u32]) -> bool {
    tids.iter().any(|&tid| status_of(pid, tid).is_ok_and(|status| has_other_filters(pid, &status)))
}

/// Whether a thread blocks a signal, or takes signals by itself: while it waits for them, the kernel says that it lets them come.
pub(super) fn blocks(pid: u32, tid: u32, signal: i32) -> bool {
    status_of(pid, tid).is_ok_and(|status| status.blocks(signal))
        || call_of(pid, tid) == Some(libc::SYS_rt_sigtimedwait)
}

/// The system call that a thread is in; negative if it waits elsewhere, `None` if it runs.
pub(super) fn call_of(pid: u32, tid: u32) -> Option<i64> {
    call_text(pid, tid)?.split(' ').next()?.parse().ok()
}

/// Where the set is of the signals that a thread waits for and takes itself, if it does.
pub(super) fn awaited_at(pid: u32, tid: u32) -> Option<u64> {
    let call = call_text(pid, tid)?;
    let mut words = call.split(' ');
    let number: i64 = words.next()?.parse().ok()?;
    let first = words.next().filter(|_| number == libc::SYS_rt_sigtimedwait)?;
    u64::from_str_radix(first.strip_prefix("0x")?, 16).ok()
}

fn call_text(pid: u32, tid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).ok()
}

/// Whether filters of system calls are in force for a thread that may not be those of a container that we share.
fn has_other_filters(pid: u32, status: &ThreadStatus) -> bool {
    let own = || ThreadStatus::parse(&fs::read_to_string("/proc/self/status").unwrap_or_default());
    let is_beside_us = || namespace("self", "mnt").is_some_and(|ours| namespace(pid, "mnt") == Some(ours));
    status.is_filtered() && !(status.has_as_many_filters_as(&own()) && is_beside_us())
}

/// Which namespace of a kind a process is in; `None` if we may not know.
pub(super) fn namespace(pid: impl Display, kind: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok()
}

/// What the kernel tells of a thread.
pub(super) fn status_of(pid: u32, tid: u32) -> io::Result<ThreadStatus> {
    Ok(ThreadStatus::parse(&fs::read_to_string(format!("/proc/{pid}/task/{tid}/status"))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(changes: &str) -> ThreadStatus {
        let usual = "State:\tS (sleeping)\nTracerPid:\t0\nUid:\t5\t5\t5\t5\nGid:\t6\t6\t6\t6\nSeccomp:\t0\nSeccomp_filters:\t0\n\
                     SigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\nSigBlk:\t0000000000000000\nx86_Thread_features:\t\n";
        ThreadStatus::parse(&format!("{usual}{changes}"))
    }

    #[test]
    fn who_is_left_alone_and_why() {
        let why = |changes: &str| status(changes).left_alone(true);
        assert_eq!(why(""), None);
        assert_eq!(why("State:\tT (stopped)\n"), Some(LeftAlone::Halted));
        assert_eq!(why("State:\tZ (zombie)\n"), Some(LeftAlone::Ended));
        assert_eq!(why("State:\tt (tracing stop)\nTracerPid:\t77\n"), Some(LeftAlone::Traced(77)));
        assert_eq!(why("Uid:\t5\t0\t0\t0\n"), Some(LeftAlone::OthersRights));
        assert_eq!(why("Gid:\t6\t6\t7\t6\n"), Some(LeftAlone::OthersRights));
        assert_eq!(why("Uid:\t5\t5\t5\t9\n"), None, "files are another matter");
        assert_eq!(why("x86_Thread_features:\tshstk wrss\n"), Some(LeftAlone::ShadowStack));
        assert_eq!(status("").left_alone(false), Some(LeftAlone::OtherNamespace));
        assert_eq!(ThreadStatus::parse("").left_alone(true), Some(LeftAlone::Ended));
    }

    #[test]
    fn filters_are_a_containers_where_we_have_as_many() {
        let container = status("Seccomp:\t2\nSeccomp_filters:\t1\n");
        assert!(container.is_filtered() && container.has_as_many_filters_as(&container));
        let more = status("Seccomp:\t2\nSeccomp_filters:\t2\n");
        let untold = status("Seccomp:\t2\nSeccomp_filters:\t\n"); // before Linux 5.9
        let strict = status("Seccomp:\t1\nSeccomp_filters:\t1\n");
        let free = status("");
        assert!(!free.is_filtered() && strict.is_filtered() && untold.is_filtered());
        for (theirs, ours) in [
            (&more, &container),
            (&container, &more),
            (&container, &free),
            (&untold, &free),
            (&untold, &untold),
            (&strict, &strict),
        ] {
            assert!(!theirs.has_as_many_filters_as(ours), "{theirs:?} {ours:?}");
        }
    }

    #[test]
    fn signals_that_wait_and_are_blocked_are_told_apart() {
        assert!(!status("").signals_wait());
        assert!(status("ShdPnd:\t0000000000000002\n").signals_wait());
        assert!(!status("SigPnd:\t0000000000000002\nSigBlk:\t0000000000000002\n").signals_wait());
        assert!(status("SigBlk:\t0000000000400000\n").blocks(23) && !status("").blocks(23));
        let all = status("SigBlk:\tffffffffffffffff\n");
        assert!(
            all.blocks(64) && ![0, -1, 65, i32::MAX, i32::MIN].into_iter().any(|signal| all.blocks(signal))
        );
    }

    #[test]
    fn a_mask_that_keeps_all_away_is_that_of_a_handler_of_ours() {
        assert!(status("SigBlk:\tfffffffe7ffbfeff\n").blocks_all(), "what `sigfillset` keeps away");
        assert!(blocks_all(OWN.iter().fold(u64::MAX, |mask, signal| mask & !(1 << (signal - 1)))));
        assert!(!blocks_all(!(1 << (libc::SIGURG - 1))) && !status("").blocks_all());
    }
}
