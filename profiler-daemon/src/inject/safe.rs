//! Whether a library can be loaded in a stopped thread: it may hold none of the locks that the dynamic linker or `malloc` takes.
//!
//! A thread that waits in a call of the C library which the program has made itself holds none of them, and most programs have one.
//! One that computes is taken if its whole stack says so. What other threads hold, they give back: they go on meanwhile.

/// Where a frame of the stack is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CodeRegion<'a> {
    /// In the dynamic linker.
    Linker,
    /// In the C library: in this function that others can call, or in one of its own (empty).
    CLibrary(&'a str),
    /// In a library that has a `malloc` of its own.
    Allocator,
    /// In the program itself, which has a `malloc` of its own.
    AllocatingProgram,
    /// What a signal handler returns to: below it is whatever was interrupted.
    Handler,
    /// Anywhere else.
    Program,
}

/// Why a thread is not the one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unsafe {
    Linker,
    Allocator,
    Handler,
    CLibrary,
    Cut,
}

impl Unsafe {
    /// Where the thread is.
    pub(super) fn in_words(self) -> &'static str {
        match self {
            Self::Linker => "in the dynamic linker",
            Self::Allocator => "in malloc",
            Self::Handler => "in a signal handler",
            Self::CLibrary => "in the C library",
            Self::Cut => "where its stack cannot be followed",
        }
    }
}

/// Functions of the C library that wait and do nothing else. In none of them a lock is held that any other function takes.
const WAITS: [&str; 47] = [
    "accept",
    "accept4",
    "clock_nanosleep",
    "connect",
    "epoll_pwait",
    "epoll_pwait2",
    "epoll_wait",
    "io_getevents",
    "msgrcv",
    "msgsnd",
    "nanosleep",
    "pause",
    "poll",
    "ppoll",
    "pread",
    "pread64",
    "preadv",
    "pselect",
    "pthread_clockjoin_np",
    "pthread_cond_clockwait",
    "pthread_cond_timedwait",
    "pthread_cond_wait",
    "pthread_join",
    "pthread_timedjoin_np",
    "read",
    "readv",
    "recv",
    "recvfrom",
    "recvmmsg",
    "recvmsg",
    "select",
    "sem_clockwait",
    "sem_timedwait",
    "sem_wait",
    "semop",
    "semtimedop",
    "send",
    "sendmsg",
    "sendto",
    "sigsuspend",
    "sigtimedwait",
    "sigwait",
    "sigwaitinfo",
    "sleep",
    "usleep",
    "wait4",
    "waitpid",
];
/// The same, and whoever brings along locks of his own may use it for them.
const WAITS_FOR_ANYTHING: &str = "syscall";
/// Functions that call the program back while they hold a lock, or that are about to end it.
const HOLDS: [&str; 10] = [
    "__cxa_finalize",
    "abort",
    "dl_iterate_phdr",
    "dlclose",
    "dlmopen",
    "dlopen",
    "exit",
    "fork",
    "pthread_exit",
    "quick_exit",
];

/// Judges a stack, innermost frame first.
pub(super) fn judge(frames: &[CodeRegion<'_>], is_complete: bool) -> Result<(), Unsafe> {
    for frame in frames {
        match frame {
            CodeRegion::Linker => return Err(Unsafe::Linker),
            CodeRegion::Allocator => return Err(Unsafe::Allocator),
            CodeRegion::Handler => return Err(Unsafe::Handler),
            CodeRegion::CLibrary(name) if HOLDS.contains(name) => return Err(Unsafe::CLibrary),
            _ => {}
        }
    }
    let inner = frames.iter().take_while(|frame| matches!(frame, CodeRegion::CLibrary(_))).count();
    let caller = frames.get(inner).ok_or(Unsafe::Cut)?;
    match inner.checked_sub(1).map(|outermost| frames[outermost]) {
        Some(CodeRegion::CLibrary(name)) if WAITS.contains(&name) => Ok(()),
        Some(CodeRegion::CLibrary(WAITS_FOR_ANYTHING)) if *caller == CodeRegion::Program => Ok(()),
        Some(_) => Err(Unsafe::CLibrary),
        None if *caller == CodeRegion::AllocatingProgram => Err(Unsafe::Allocator),
        None if !is_complete => Err(Unsafe::Cut),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::CodeRegion::{AllocatingProgram, Allocator, CLibrary, Handler, Linker, Program};
    use super::*;

    const START: CodeRegion<'_> = CLibrary("__libc_start_main");

    #[test]
    fn a_thread_that_waits_is_safe_whatever_is_known_of_its_callers() {
        for is_complete in [true, false] {
            assert_eq!(judge(&[CLibrary("epoll_wait"), Program, START, Program], is_complete), Ok(()));
            let condition = [CLibrary(""), CLibrary("pthread_cond_wait"), AllocatingProgram];
            assert_eq!(judge(&condition, is_complete), Ok(()));
            assert_eq!(judge(&[CLibrary("syscall"), Program], is_complete), Ok(()));
        }
    }

    #[test]
    fn a_thread_that_waits_for_a_lock_is_not() {
        assert_eq!(judge(&[CLibrary(""), CLibrary("malloc"), Program], true), Err(Unsafe::CLibrary));
        assert_eq!(
            judge(&[CLibrary(""), CLibrary("pthread_mutex_lock"), Program], true),
            Err(Unsafe::CLibrary)
        );
        assert_eq!(judge(&[CLibrary("syscall"), AllocatingProgram], true), Err(Unsafe::CLibrary));
        assert_eq!(judge(&[CLibrary("poll"), CLibrary("getaddrinfo"), Program], true), Err(Unsafe::CLibrary));
        assert_eq!(judge(&[CLibrary("madvise"), Allocator, Program], true), Err(Unsafe::Allocator));
    }

    #[test]
    fn a_thread_that_computes_is_safe_if_its_whole_stack_is() {
        assert_eq!(judge(&[Program, Program, START], true), Ok(()));
        assert_eq!(judge(&[Program, CLibrary("qsort"), Program], true), Ok(()));
        assert_eq!(judge(&[Program, Program], false), Err(Unsafe::Cut));
        assert_eq!(judge(&[AllocatingProgram, START], true), Err(Unsafe::Allocator));
        assert_eq!(judge(&[CLibrary(""), Program], true), Err(Unsafe::CLibrary));
    }

    #[test]
    fn nobody_is_taken_below_whom_a_lock_may_be_held() {
        let waiting = [CLibrary("poll"), Program];
        for below in [Linker, Allocator, Handler, CLibrary("dl_iterate_phdr"), CLibrary("fork")] {
            assert!(judge(&[&waiting[..], &[below, Program]].concat(), true).is_err(), "{below:?}");
        }
    }

    #[test]
    fn a_stack_that_ends_in_the_c_library_tells_nothing() {
        assert_eq!(judge(&[CLibrary("poll")], true), Err(Unsafe::Cut));
        assert_eq!(judge(&[], true), Err(Unsafe::Cut));
    }
}
