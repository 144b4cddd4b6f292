//! Which processes are left alone, by what the kernel tells of them: nothing is tried on them.

use std::collections::BTreeMap;

/// Fields of `/proc/PID/status` that matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Status {
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
    OtherNamespace,
    ShadowStack,
}

impl LeftAlone {
    /// What is said of the process, and what to do.
    pub(super) fn in_words(&self) -> String {
        match self {
            Self::Ended => "has ended; start it again".to_owned(),
            Self::Halted => "is stopped; let it go on first (`kill -CONT`)".to_owned(),
            Self::Traced(by) => format!("is traced by process {by} (a debugger, strace); end that first"),
            Self::OthersRights => {
                "runs with the rights of another user or group, and nothing is loaded into such; use perf events".to_owned()
            }
            Self::ShutIn => {
                "has shut itself in (seccomp), and could be ended by a system call of the library; use perf events".to_owned()
            }
            Self::OtherNamespace => {
                "is in another PID namespace (a container); run sweetspot inside of that".to_owned()
            }
            Self::ShadowStack => "has a shadow stack, which guards it against this; use perf events".to_owned(),
        }
    }
}

impl Status {
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

    /// Signals that wait for a thread, and that it would let come.
    pub(super) fn signals_wait(&self) -> bool {
        (self.mask("SigPnd") | self.mask("ShdPnd")) & !self.mask("SigBlk") != 0
    }

    /// Whether a thread blocks a signal.
    pub(super) fn blocks(&self, signal: i32) -> bool {
        signal > 0 && self.mask("SigBlk") >> (signal - 1) & 1 != 0
    }

    /// Whether more filters of system calls are in force for it than for another: it has added some to those of the container.
    pub(super) fn is_shut_in_beside(&self, own: &Self) -> bool {
        const STRICT: u64 = 1;
        self.number("Seccomp") == STRICT
            || self.number("Seccomp") != 0
                && self.number("Seccomp_filters").max(1) > own.number("Seccomp_filters")
    }

    /// Why the process is left alone; `own` are ours.
    pub(super) fn left_alone(&self, own: &Self, same_namespace: bool) -> Option<LeftAlone> {
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
            (self.is_shut_in_beside(own), LeftAlone::ShutIn),
            (self.text("x86_Thread_features").contains("shstk"), LeftAlone::ShadowStack),
        ];
        reasons.into_iter().find(|(holds, _)| *holds).map(|(_, reason)| reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(changes: &str) -> Status {
        let usual = "State:\tS (sleeping)\nTracerPid:\t0\nUid:\t5\t5\t5\t5\nGid:\t6\t6\t6\t6\nSeccomp:\t0\nSeccomp_filters:\t0\n\
                     SigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\nSigBlk:\t0000000000000000\nx86_Thread_features:\t\n";
        Status::parse(&format!("{usual}{changes}"))
    }

    #[test]
    fn who_is_left_alone_and_why() {
        let own = status("");
        let why = |changes: &str| status(changes).left_alone(&own, true);
        assert_eq!(why(""), None);
        assert_eq!(why("State:\tT (stopped)\n"), Some(LeftAlone::Halted));
        assert_eq!(why("State:\tZ (zombie)\n"), Some(LeftAlone::Ended));
        assert_eq!(why("State:\tt (tracing stop)\nTracerPid:\t77\n"), Some(LeftAlone::Traced(77)));
        assert_eq!(why("Uid:\t5\t0\t0\t0\n"), Some(LeftAlone::OthersRights));
        assert_eq!(why("Gid:\t6\t6\t7\t6\n"), Some(LeftAlone::OthersRights));
        assert_eq!(why("Uid:\t5\t5\t5\t9\n"), None, "files are another matter");
        assert_eq!(why("Seccomp:\t1\n"), Some(LeftAlone::ShutIn));
        assert_eq!(why("Seccomp:\t2\nSeccomp_filters:\t1\n"), Some(LeftAlone::ShutIn));
        assert_eq!(why("x86_Thread_features:\tshstk wrss\n"), Some(LeftAlone::ShadowStack));
        assert_eq!(status("").left_alone(&own, false), Some(LeftAlone::OtherNamespace));
        assert_eq!(Status::parse("").left_alone(&own, true), Some(LeftAlone::Ended));
    }

    #[test]
    fn a_containers_own_filter_is_in_nobodys_way() {
        let own = status("Seccomp:\t2\nSeccomp_filters:\t1\n");
        assert_eq!(own.clone().left_alone(&own, true), None);
        let more = status("Seccomp:\t2\nSeccomp_filters:\t2\n");
        assert_eq!(more.left_alone(&own, true), Some(LeftAlone::ShutIn));
        let untold = status("Seccomp:\t2\nSeccomp_filters:\t\n"); // before Linux 5.9
        assert_eq!(untold.left_alone(&status(""), true), Some(LeftAlone::ShutIn));
    }

    #[test]
    fn signals_that_wait_and_are_blocked_are_told_apart() {
        assert!(!status("").signals_wait());
        assert!(status("ShdPnd:\t0000000000000002\n").signals_wait());
        assert!(!status("SigPnd:\t0000000000000002\nSigBlk:\t0000000000000002\n").signals_wait());
        assert!(status("SigBlk:\t0000000000400000\n").blocks(23) && !status("").blocks(23));
    }
}
