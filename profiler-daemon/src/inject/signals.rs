//! What a process does with the signals that an agent could use: one that nobody handles may be blocked, and be read from a file
//! (`signalfd`) or waited for (`sigwait`). Event loops wake themselves up so. Signals of ours would be taken for others there,
//! and to take back a handler drops what waits.
//!
//! In a process that was not started for it, nothing can be interposed. So the agent's signal is one that is
//! ignored by default (SIGURG): a program that resets all signals or executes another program is not harmed. A
//! signal that the process blocks and reads itself looks unused, so masks, signal files and waiting calls are
//! checked from outside. If it is in use, another signal is taken; a handler stays where removing it would drop
//! what is pending.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use agent_memory::UsableSignals;

use super::status::{awaited_at, status_of};
use crate::sys::procfs;

/// What an agent that is loaded into a running process has its timers send: nobody else answers to another one.
pub(super) const SIGNALS: [i32; 2] = [libc::SIGURG, libc::SIGWINCH];
/// Who is in a handler, or about to begin a thread, blocks every signal for a moment: who blocks one is looked at so often.
const LOOKS: u32 = 4;
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);
const SIGNAL_FILE: &str = "anon_inode:[signalfd]";

/// What a process does with them.
pub(super) fn look(pid: u32, memory: &File) -> UsableSignals {
    let threads = procfs::threads(pid);
    let read = threads
        .iter()
        .filter_map(|&tid| awaited(pid, tid, memory))
        .fold(in_files(pid, &threads), |a, b| a | b);
    judge(read, &blocked(pid, &threads))
}

/// The same, and those that wait for anybody: they are not ours, which come to single threads.
pub(super) fn with_waiting(signals: UsableSignals, pid: u32) -> UsableSignals {
    let waiting = status_of(pid, pid).unwrap_or_default().waiting_for_any();
    signals.keeping(SIGNALS.into_iter().filter(|&signal| holds(waiting, signal)))
}

/// Those that somebody reads are left alone, and so are those that every thread blocks. The fewest threads do without samples.
fn judge(read: u64, blocked: &[u64]) -> UsableSignals {
    let deaf = |signal: i32| blocked.iter().filter(|&&mask| holds(mask, signal)).count();
    let is_usable =
        |signal: &i32| !holds(read, *signal) && (deaf(*signal) < blocked.len() || blocked.is_empty());
    let mut usable: Vec<i32> = SIGNALS.into_iter().filter(is_usable).collect();
    usable.sort_by_key(|&signal| deaf(signal)); // stable: else the first one
    UsableSignals::new(usable, SIGNALS.into_iter().filter(|&signal| holds(read, signal)))
}

fn holds(mask: u64, signal: i32) -> bool {
    mask >> (signal - 1) & 1 != 0
}

/// What each thread blocks at every look.
fn blocked(pid: u32, threads: &[u32]) -> Vec<u64> {
    let mask = |tid: u32| status_of(pid, tid).map_or(0, |status| status.blocked());
    let mut blocked: Vec<u64> = threads.iter().map(|&tid| mask(tid)).collect();
    for _ in 1..LOOKS {
        let blocks_any = |mask: u64| SIGNALS.into_iter().any(|signal| holds(mask, signal));
        if !blocked.iter().any(|&mask| blocks_any(mask)) {
            break;
        }
        std::thread::sleep(BETWEEN_LOOKS);
        let deaf = blocked.iter_mut().zip(threads).filter(|(before, _)| blocks_any(**before));
        deaf.for_each(|(before, &tid)| *before &= mask(tid));
    }
    blocked
}

/// The signals that a thread waits for at the moment.
fn awaited(pid: u32, tid: u32, memory: &File) -> Option<u64> {
    let mut set = [0; 8];
    memory.read_exact_at(&mut set, awaited_at(pid, tid)?).ok()?;
    Some(u64::from_le_bytes(set))
}

/// The signals that the process reads from files. Whoever has ended has none, and may be the first thread.
fn in_files(pid: u32, threads: &[u32]) -> u64 {
    let read = threads.iter().find_map(|tid| {
        let files = fs::read_dir(format!("/proc/{pid}/task/{tid}/fd")).ok()?;
        let files: Vec<_> = files.flatten().collect();
        let is_of_signals = |link: PathBuf| link.as_os_str() == SIGNAL_FILE;
        let of_signals = files.iter().filter(|file| fs::read_link(file.path()).is_ok_and(is_of_signals));
        let infos = of_signals.filter_map(|file| {
            fs::read_to_string(format!("/proc/{pid}/task/{tid}/fdinfo/{}", file.file_name().display())).ok()
        });
        let read = infos.fold(0, |read, info| read | mask_in(&info));
        (!files.is_empty()).then_some(read)
    });
    read.unwrap_or(0)
}

fn mask_in(info: &str) -> u64 {
    let mask = info.lines().find_map(|line| line.strip_prefix("sigmask:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::{SigSet, Signal};
    use nix::sys::signalfd::SignalFd;

    const URG: u64 = 1 << (libc::SIGURG - 1);
    const WINCH: u64 = 1 << (libc::SIGWINCH - 1);

    fn judged(read: u64, blocked: &[u64]) -> (Vec<i32>, [bool; 2]) {
        let signals = judge(read, blocked);
        (signals.usable().collect(), SIGNALS.map(|signal| signals.keeps(signal)))
    }

    #[test]
    fn a_signal_is_used_that_nobody_reads_and_the_fewest_block() {
        let [urg, winch] = SIGNALS;
        assert_eq!(judged(0, &[0, 0]), (vec![urg, winch], [false; 2]));
        assert_eq!(judged(0, &[]), (vec![urg, winch], [false; 2]));
        assert_eq!(judged(URG, &[URG]), (vec![winch], [true, false]), "it is read");
        assert_eq!(judged(0, &[URG, 0]), (vec![winch, urg], [false; 2]));
        assert_eq!(judged(0, &[URG | WINCH, WINCH, 0]), (vec![urg, winch], [false; 2]));
        assert_eq!(judged(0, &[URG | WINCH]), (vec![], [false; 2]));
        assert_eq!(judged(URG | WINCH, &[0]), (vec![], [true; 2]));
    }

    #[test]
    fn what_is_read_from_a_file_or_waited_for_is_seen() {
        let own = std::process::id();
        assert_eq!(in_files(own, &[own]) & (URG | WINCH), 0);
        let set = SigSet::from(Signal::SIGWINCH);
        let file = SignalFd::new(&set).unwrap();
        assert_eq!(in_files(own, &[0, own]) & (URG | WINCH), WINCH);
        drop(file);
        assert_eq!(mask_in("pos:\t0\nflags:\t02\nsigmask:\t0000000000400000\n"), URG);
        assert_eq!((mask_in(""), mask_in("sigmask:\tnonsense\n")), (0, 0));
        let (sender, receiver) = std::sync::mpsc::channel();
        let waiting = std::thread::spawn(move || {
            let set = SigSet::from(Signal::SIGURG);
            set.thread_block().unwrap();
            sender.send(nix::unistd::gettid().as_raw() as u32).unwrap();
            set.wait()
        });
        let memory = File::open("/proc/self/mem").unwrap();
        let until = std::time::Instant::now() + Duration::from_secs(10);
        while !look(own, &memory).keeps(libc::SIGURG) && std::time::Instant::now() < until {
            std::thread::yield_now();
        }
        let signals = look(own, &memory);
        assert!(signals.keeps(libc::SIGURG) && signals.usable().eq([libc::SIGWINCH]));
        crate::sys::signal::queue(own, receiver.recv().unwrap(), libc::SIGURG, 0).unwrap();
        assert_eq!(waiting.join().unwrap(), Ok(Signal::SIGURG));
    }
}
