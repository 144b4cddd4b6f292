//! The processes of ours beside this one: those that read symbols for it. They belong to no target, and their
//! CPU time is ours.

use std::io;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::clock;

static READERS: Mutex<Readers> = Mutex::new(Readers { living: Vec::new(), ended_ns: 0 });

struct Readers {
    /// Process ids, of those that are not reaped.
    living: Vec<u32>,
    /// CPU time of those that were.
    ended_ns: u64,
}

fn known() -> MutexGuard<'static, Readers> {
    READERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a child that reads symbols for this process, until [`end`]. No thread sees it run before it is known.
pub(crate) fn start(command: &mut Command) -> io::Result<Child> {
    let mut readers = known();
    let child = command.spawn()?;
    readers.living.push(child.id());
    Ok(child)
}

/// It has ended, and is about to be reaped: its clock can be read for the last time.
pub(crate) fn end(pid: u32) {
    let mut readers = known();
    let before = readers.living.len();
    readers.living.retain(|living| *living != pid);
    if readers.living.len() < before {
        readers.ended_ns += clock::process_cpu_ns(pid).unwrap_or(0);
    }
}

/// Whether a process is this one, or reads symbols for it.
pub(crate) fn is_ours(pid: u32) -> bool {
    pid == std::process::id() || is_reader(pid)
}

/// Whether a process reads symbols for this one.
pub(crate) fn is_reader(pid: u32) -> bool {
    known().living.contains(&pid)
}

/// All that read symbols for this process now.
pub(crate) fn readers() -> Vec<u32> {
    known().living.clone()
}

/// CPU time of all that read symbols for this process, those that have ended included (ns).
pub(crate) fn readers_cpu_ns() -> u64 {
    let readers = known();
    let living_ns: u64 = readers.living.iter().filter_map(|pid| clock::process_cpu_ns(*pid)).sum();
    readers.ended_ns + living_ns
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    #[test]
    fn the_time_of_a_reader_stays_ours_when_it_has_ended() {
        let spin = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done";
        let before_ns = readers_cpu_ns();
        let mut child = start(Command::new("sh").args(["-c", spin]).stdout(Stdio::null())).unwrap();
        let pid = child.id();
        assert!(is_ours(pid) && is_ours(std::process::id()) && !is_reader(std::process::id()));
        while !super::super::procfs::has_ended(pid) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let used_ns = clock::process_cpu_ns(pid).unwrap();
        assert!(readers_cpu_ns() >= before_ns + used_ns && used_ns > 0);
        end(pid);
        child.wait().unwrap();
        assert!(readers_cpu_ns() >= before_ns + used_ns && !is_ours(pid));
        end(pid);
    }
}
