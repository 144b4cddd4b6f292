//! When a new thread may be signalled to have itself sampled: not every system call continues after a signal
//! (signal(7)). A sleeping thread uses no CPU time, so nothing is missed by waiting.
//!
//! Lists of threads omit some while others end. So the slots say which threads are sampled, and a thread whose
//! folder is still there has not ended. A process that executes another program is recognised by the address of
//! its code.

use std::fs;

use crate::sys::procfs::{self, SystemCall};

/// A thread that runs may be about to sleep, or about to be woken: so it is signalled once it has used as much as would have brought it a signal
/// of its timer by now (ms).
const USED_MS: u64 = 10;

/// Whether it may be signalled now.
pub(super) fn may_be_signalled(pid: u32, tid: u32) -> bool {
    match procfs::thread_call(pid, tid) {
        None => false, // it has ended
        Some(SystemCall::None) => procfs::thread_cpu_ms(pid, tid) >= USED_MS,
        Some(SystemCall::Number(number, arguments)) => {
            goes_on(number, arguments, |file| is_socket(pid, file))
        }
    }
}

/// Whether a system call continues after a signal, with any argument; calls on sockets with a possible timeout do not.
fn goes_on(number: i64, arguments: [u64; 6], is_socket: impl Fn(u64) -> bool) -> bool {
    const WAIT: u64 = 0;
    const WAIT_FOR_BITS: u64 = 9;
    const OPERATION: u64 = 127; // without its flags
    let [first, second, _, timeout, ..] = arguments;
    match number {
        libc::SYS_futex => timeout == 0 && matches!(second & OPERATION, WAIT | WAIT_FOR_BITS),
        libc::SYS_read => !is_socket(first),
        libc::SYS_wait4 | libc::SYS_waitid | libc::SYS_flock => true,
        _ => false,
    }
}

fn is_socket(pid: u32, file: u64) -> bool {
    let link = fs::read_link(format!("/proc/{pid}/fd/{file}"));
    link.map_or(true, |link| link.to_string_lossy().starts_with("socket:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_calls_that_go_on_after_a_signal_are_disturbed() {
        const PRIVATE: u64 = 128;
        let holds = |number: i64, arguments: [u64; 6]| goes_on(number, arguments, |file| file == 7);
        assert!(holds(libc::SYS_futex, [1, PRIVATE, 2, 0, 0, 0]));
        assert!(holds(libc::SYS_futex, [1, 9 | PRIVATE | 256, 2, 0, 0, 0]));
        assert!(!holds(libc::SYS_futex, [1, PRIVATE, 2, 0x7f00, 0, 0]), "it has a timeout");
        assert!(!holds(libc::SYS_futex, [1, 11, 2, 0, 0, 0]), "it waits for another");
        assert!(holds(libc::SYS_read, [6, 0, 1, 0, 0, 0]) && !holds(libc::SYS_read, [7, 0, 1, 0, 0, 0]));
        assert!(holds(libc::SYS_wait4, [0; 6]));
        let sleeping =
            [libc::SYS_nanosleep, libc::SYS_clock_nanosleep, libc::SYS_ppoll, libc::SYS_epoll_pwait];
        assert!(sleeping.iter().all(|&number| !holds(number, [0; 6])));
        assert!(!holds(libc::SYS_recvfrom, [0; 6]) && !holds(libc::SYS_rt_sigtimedwait, [0; 6]));
    }

    #[test]
    fn a_thread_is_signalled_while_it_computes_and_not_while_it_sleeps() {
        use std::sync::atomic::{AtomicBool, Ordering};
        static DONE: AtomicBool = AtomicBool::new(false);
        let begin = |work: fn()| {
            let (sender, receiver) = std::sync::mpsc::channel();
            let thread = std::thread::spawn(move || {
                sender.send(nix::unistd::gettid().as_raw() as u32).unwrap();
                while !DONE.load(Ordering::Relaxed) {
                    work();
                }
            });
            (thread, receiver.recv().unwrap())
        };
        let pid = std::process::id();
        let (sleeping, sleeper) = begin(|| std::thread::sleep(std::time::Duration::from_secs(1)));
        let (computing, computer) = begin(std::hint::spin_loop);
        while procfs::thread_cpu_ms(pid, computer) < USED_MS {
            std::thread::yield_now();
        }
        let signalled = [computer, sleeper, u32::MAX].map(|tid| may_be_signalled(pid, tid));
        DONE.store(true, Ordering::Relaxed);
        assert_eq!(signalled, [true, false, false]);
        assert!(sleeping.join().is_ok() && computing.join().is_ok());
    }
}
