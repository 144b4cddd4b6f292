//! What `/proc` says of a process.

use procfs::process::{MMPermissions, MMapPath, MemoryMap, Process};
use profiler_core::record::{FileId, Mapped};

/// The threads of a process; empty once it is gone.
pub(crate) fn threads(pid: u32) -> Vec<u32> {
    let tasks = open(pid).and_then(|process| process.tasks().ok());
    tasks.map_or_else(Vec::new, |tasks| tasks.flatten().map(|task| task.tid as u32).collect())
}

/// The name of a process, as the kernel has it.
pub(crate) fn comm(pid: u32) -> Option<String> {
    Some(open(pid)?.stat().ok()?.comm)
}

/// Whether the process is a thread of the kernel, which has no user space.
pub(crate) fn is_kernel_thread(pid: u32) -> bool {
    const PF_KTHREAD: u32 = 0x0020_0000;
    open(pid).and_then(|process| process.stat().ok()).is_some_and(|stat| stat.flags & PF_KTHREAD != 0)
}

/// Whether the process is gone, or only waits for its parent to take notice.
pub(crate) fn has_ended(pid: u32) -> bool {
    let state = open(pid).and_then(|process| process.stat().ok()).map(|stat| (stat.state, stat.num_threads));
    state.is_none_or(|(state, threads)| matches!(state, 'Z' | 'X') && threads <= 1)
}

/// CPU time of children that the process has waited for (ns). Read often, so without a detour.
pub(crate) fn waited_children_cpu_ns(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    children_ticks(&stat) * (1_000_000_000 / procfs::ticks_per_second().max(1))
}

/// `cutime + cstime` of a `stat` line. The name before them may hold anything, even a parenthesis.
fn children_ticks(stat: &str) -> u64 {
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = fields.split_ascii_whitespace().skip(13).take(2);
    ticks.filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
}

/// Its executable mappings, as the kernel would have reported them. An error says why they cannot be read.
pub(crate) fn executable_maps(pid: u32) -> Result<Vec<Mapped>, procfs::ProcError> {
    let maps = Process::new(pid as i32)?.maps()?;
    let executable = maps.into_iter().filter(|map| map.perms.contains(MMPermissions::EXECUTE));
    Ok(executable.filter_map(|map| mapped(pid, map)).collect())
}

fn mapped(pid: u32, map: MemoryMap) -> Option<Mapped> {
    let path = match map.pathname {
        MMapPath::Path(path) => path.to_string_lossy().into_owned(),
        MMapPath::Vdso => "[vdso]".to_owned(),
        MMapPath::Vsyscall => return None, // at a fixed address; nobody's file
        _ => "//anon".to_owned(),
    };
    let (start, end) = map.address;
    let file = FileId { major: map.dev.0 as u32, minor: map.dev.1 as u32, inode: map.inode };
    Some(Mapped { pid, start, len: end.saturating_sub(start), file_offset: map.offset, file, path })
}

/// Threads whose context switches are read; the rest is estimated from them.
const THREADS_READ: usize = 16;

/// Context switches of these threads since they began.
pub(crate) fn context_switches_of(threads: &[u32]) -> u64 {
    let read: u64 = threads.iter().take(THREADS_READ).map(|&tid| context_switches(tid)).sum();
    read * threads.len() as u64 / threads.len().clamp(1, THREADS_READ) as u64
}

/// Context switches of a thread since it began.
fn context_switches(tid: u32) -> u64 {
    let status = open(tid).and_then(|thread| thread.status().ok());
    let count = |status: procfs::process::Status| {
        status.voluntary_ctxt_switches.unwrap_or(0) + status.nonvoluntary_ctxt_switches.unwrap_or(0)
    };
    status.map_or(0, count)
}

fn open(pid: u32) -> Option<Process> {
    Process::new(i32::try_from(pid).ok()?).ok()
}

/// The image of the vDSO, which is the same in every process.
pub(crate) fn vdso_image() -> Option<Vec<u8>> {
    use std::os::unix::fs::FileExt;
    let maps = Process::myself().ok()?.maps().ok()?;
    let (start, end) = maps.into_iter().find(|map| map.pathname == MMapPath::Vdso)?.address;
    let memory = std::fs::File::open("/proc/self/mem").ok()?;
    let mut image = vec![0; usize::try_from(end - start).ok()?];
    memory.read_exact_at(&mut image, start).ok()?;
    Some(image)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_children_is_found_behind_any_name() {
        let stat = "7 (a) (b 1 2) S 1 7 7 0 -1 4194560 10 20 0 0 5 6 70 8 20 0 1 0 100";
        assert_eq!(children_ticks(stat), 78);
        assert_eq!(children_ticks(""), 0);
    }

    #[test]
    fn this_process_has_threads_maps_and_a_vdso() {
        let pid = std::process::id();
        assert!(threads(pid).contains(&pid));
        let maps = executable_maps(pid).unwrap();
        let own = std::env::current_exe().unwrap();
        assert!(maps.iter().any(|map| map.path == own.to_string_lossy() && map.file.inode != 0));
        assert!(vdso_image().unwrap().starts_with(b"\x7fELF"));
    }
}
