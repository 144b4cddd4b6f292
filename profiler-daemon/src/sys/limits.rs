//! Limits of this process and of the machine.

use std::cell::RefCell;
use std::os::unix::fs::MetadataExt;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::clock;

/// How often the list of CPUs is read (ns).
const LOOK_EVERY_NS: u64 = 2_000_000_000;

/// Raises the number of files this process may open to the hard limit: events are files.
pub(crate) fn raise_open_files() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// Files this process may open.
pub(crate) fn open_files() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft)
}

/// A CPU that is online. One that went offline and came back is another: the kernel has ended all events of the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OnlineCpu {
    /// Its number.
    pub(crate) number: u32,
    /// Of a folder that the kernel makes whenever a CPU comes online; 0 where it cannot be seen.
    inode: u64,
}

thread_local! {
    /// When the CPUs were looked at (ns), and which were online.
    static ONLINE: RefCell<(u64, Vec<OnlineCpu>)> = const { RefCell::new((0, Vec::new())) };
}

/// The CPUs that are online, as they were within the last two seconds: each target asks.
pub(crate) fn online() -> Vec<OnlineCpu> {
    with_online(<[OnlineCpu]>::to_vec)
}

/// Their numbers.
pub(crate) fn online_cpus() -> Vec<u32> {
    with_online(|online| online.iter().map(|cpu| cpu.number).collect())
}

/// Their numbers.
pub(crate) fn numbers(online: &[OnlineCpu]) -> Vec<u32> {
    online.iter().map(|cpu| cpu.number).collect()
}

fn with_online<T>(ask: impl FnOnce(&[OnlineCpu]) -> T) -> T {
    let now_ns = clock::monotonic_ns();
    ONLINE.with_borrow_mut(|(looked_ns, cpus)| {
        if cpus.is_empty() || now_ns.saturating_sub(*looked_ns) >= LOOK_EVERY_NS {
            let numbers = cpu_list("/sys/devices/system/cpu/online");
            let numbers = if numbers.is_empty() { vec![0] } else { numbers };
            (*looked_ns, *cpus) = (now_ns, numbers.into_iter().map(online_cpu).collect());
        }
        ask(cpus)
    })
}

fn online_cpu(number: u32) -> OnlineCpu {
    let folder = std::fs::metadata(format!("/sys/devices/system/cpu/cpu{number}/topology"));
    OnlineCpu { number, inode: folder.map_or(0, |folder| folder.ino()) }
}

/// The CPUs that share a core with this one, itself included.
pub(crate) fn core_siblings(cpu: u32) -> Vec<u32> {
    cpu_list(&format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))
}

fn cpu_list(path: &str) -> Vec<u32> {
    let list = std::fs::read_to_string(path).unwrap_or_default();
    list.trim().split(',').filter_map(cpu_range).flatten().collect()
}

fn cpu_range(range: &str) -> Option<std::ops::RangeInclusive<u32>> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

/// Entries that the kernel keeps of a call chain, user and kernel together.
pub(crate) fn max_call_chain() -> usize {
    let read = std::fs::read_to_string("/proc/sys/kernel/perf_event_max_stack").ok();
    read.and_then(|limit| limit.trim().parse().ok()).unwrap_or(127)
}

#[cfg(test)]
mod tests {
    use super::cpu_range;

    #[test]
    fn cpu_lists_have_single_numbers_and_ranges() {
        assert_eq!(cpu_range("0-3"), Some(0..=3));
        assert_eq!(cpu_range("7"), Some(7..=7));
        assert_eq!(cpu_range(""), None);
    }
}
