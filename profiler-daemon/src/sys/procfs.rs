//! Readers of `/proc`.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use procfs::process::{Process, Stat, Syscall};
use procfs::{CurrentSI, KernelStats};
use profiler_core::record::Mapped;
use rustc_hash::{FxHashMap, FxHashSet};

use super::maps::{MappedCode, regions};
pub(crate) use super::proc_text::{ProcessIdentity, ProgramPlacement, SystemCall};
use super::proc_text::{
    call_in, children_ticks, identity_in, image_in, is_zombie_in, machine_ticks_in, own_ticks, switches_in,
    thread_count_in,
};
use super::{clock, family};

/// More of `maps` is not read: some 65,000 mappings with paths of a kilobyte.
const MAX_MAPS_BYTES: u64 = 64 << 20;

/// The threads of a process; empty once it is gone.
pub(crate) fn threads(pid: u32) -> Vec<u32> {
    let tasks = open(pid).and_then(|process| process.tasks().ok());
    tasks.map_or_else(Vec::new, |tasks| tasks.flatten().map(|task| task.tid as u32).collect())
}

/// Whether a process has a thread: a list of them can leave some out while others end.
pub(crate) fn has_thread(pid: u32, tid: u32) -> bool {
    std::fs::metadata(format!("/proc/{pid}/task/{tid}")).is_ok()
}

/// The system call that a thread waits in; `None` once it is gone, and where we may not know.
pub(crate) fn thread_call(pid: u32, tid: u32) -> Option<SystemCall> {
    call_in(&std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).ok()?)
}

/// CPU time that a thread has used, in steps of the kernel's unit for that (ms); 0 once it is gone.
pub(crate) fn thread_cpu_ms(pid: u32, tid: u32) -> u64 {
    let stat = std::fs::read(format!("/proc/{pid}/task/{tid}/stat")).unwrap_or_default();
    own_ticks(&stat).saturating_mul(1000) / procfs::ticks_per_second().max(1)
}

/// Where the program of a process is; `None` once it is gone.
pub(crate) fn image(pid: u32) -> Option<ProgramPlacement> {
    image_in(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// How many threads a process has, without a look at each; 0 once it is gone.
pub(crate) fn thread_count(pid: u32) -> usize {
    thread_count_in(&std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default())
}

/// The name of a process, as the kernel has it.
pub(crate) fn comm(pid: u32) -> Option<String> {
    Some(open(pid)?.stat().ok()?.comm)
}

/// The same, and the process that created it or took it over.
pub(crate) fn name_and_parent(pid: u32) -> Option<(String, u32)> {
    let stat = open(pid)?.stat().ok()?;
    Some((stat.comm, stat.ppid as u32))
}

/// Who a process is; `None` once it is gone.
pub(crate) fn identity(pid: u32) -> Option<ProcessIdentity> {
    identity_in(&std::fs::read(format!("/proc/{pid}/status")).ok()?)
}

/// When a process began (ticks since the boot), which tells it from others of the same number; `None` once it is gone.
pub(crate) fn start_ticks(pid: u32) -> Option<u64> {
    Some(open(pid)?.stat().ok()?.starttime)
}

/// Whether the process is a thread of the kernel, which has no user space.
pub(crate) fn is_kernel_thread(pid: u32) -> bool {
    const PF_KTHREAD: u32 = 0x0020_0000;
    open(pid).and_then(|process| process.stat().ok()).is_some_and(|stat| stat.flags & PF_KTHREAD != 0)
}

/// The process that a thread belongs to; `None` if there is no such thread, or it is the first of its process.
pub(crate) fn process_of_thread(tid: u32) -> Option<u32> {
    let status = std::fs::read(format!("/proc/{tid}/status")).ok()?;
    let lines = status.split(|&byte| byte == b'\n');
    let value = lines.into_iter().find_map(|line| line.strip_prefix(b"Tgid:"))?;
    let process = std::str::from_utf8(value).ok()?.trim().parse().ok()?;
    (process != tid).then_some(process)
}

/// Whether a thread has something to do, and runs or waits for its turn.
pub(crate) fn is_runnable(tid: u32) -> bool {
    Process::new(tid as i32).and_then(|thread| thread.stat()).is_ok_and(|stat| stat.state == 'R')
}

/// Whether the process is gone, or only waits for its parent to take notice.
pub(crate) fn has_ended(pid: u32) -> bool {
    // Asked of hundreds in a second where programs come and go; a clock is a tenth of a file.
    clock::process_cpu_ns(pid).is_none()
        || std::fs::read(format!("/proc/{pid}/stat"))
            .map_or_else(|error| says_gone(&error), |stat| is_zombie_in(&stat))
}

/// Whether an error says that a process is not there; one of ours, such as too many open files, says nothing of it.
fn says_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

/// Whether the first thread of a process has ended while others work.
pub(crate) fn has_lost_first_thread(pid: u32) -> bool {
    open(pid)
        .and_then(|process| process.stat().ok())
        .is_some_and(|stat| matches!(stat.state, 'Z' | 'X') && !is_zombie(&stat))
}

/// A process whose first thread has ended while others work is none.
fn is_zombie(stat: &Stat) -> bool {
    matches!(stat.state, 'Z' | 'X') && stat.num_threads <= 1
}

/// CPU time of children that the process has waited for (ns). Read often, so without a detour.
pub(crate) fn waited_children_cpu_ns(pid: u32) -> u64 {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    children_ticks(&stat).saturating_mul(1_000_000_000 / procfs::ticks_per_second().max(1))
}

/// A process and the one that created it, or took it over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Child {
    pub(crate) pid: u32,
    pub(crate) parent: u32,
}

/// All that these processes created, and what those created, as far as it lives; parents come first. This process is
/// none of them.
pub(crate) fn descendants(pids: &[u32]) -> Vec<Child> {
    let Ok(all) = procfs::process::all_processes() else { return Vec::new() };
    let mut children: FxHashMap<u32, Vec<u32>> = FxHashMap::default();
    for stat in all.filter_map(|process| process.ok()?.stat().ok()).filter(|stat| !is_zombie(stat)) {
        children.entry(stat.ppid as u32).or_default().push(stat.pid as u32);
    }
    let mut known: FxHashSet<u32> = pids.iter().copied().chain([std::process::id()]).collect();
    let mut parents = pids.to_vec();
    let mut found = Vec::new();
    while let Some(parent) = parents.pop() {
        for pid in children.remove(&parent).unwrap_or_default() {
            if known.insert(pid) && !family::is_reader(pid) {
                found.push(Child { pid, parent });
                parents.push(pid);
            }
        }
    }
    found
}

/// Its executable mappings, as the kernel would have reported them. An error says why they cannot be read.
pub(crate) fn executable_maps(pid: u32) -> Result<Vec<Mapped>, procfs::ProcError> {
    let text = maps(&Process::new(pid as i32)?)?;
    let executable = regions(&text).filter(|region| region.executable);
    Ok(executable.filter_map(|region| region.mapped(pid)).collect())
}

/// The same, with the parts of files next to code that has no file by its path.
pub(crate) fn mapped_code(
    pid: u32,
    is_without_file: impl Fn(&str) -> bool,
) -> Result<Vec<MappedCode>, procfs::ProcError> {
    Ok(super::maps::mapped_code(&maps(&Process::new(pid as i32)?)?, pid, is_without_file))
}

/// The text of a process' `maps`, up to a size that nobody has by accident.
fn maps(process: &Process) -> Result<Vec<u8>, procfs::ProcError> {
    let mut text = Vec::new();
    process.open_relative("maps")?.take(MAX_MAPS_BYTES).read_to_end(&mut text)?;
    Ok(text)
}

/// The text of a process' `maps`; `None` if it may not be read or is longer than `most` bytes.
pub(crate) fn short_maps(pid: u32, most: u64) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    open(pid)?.open_relative("maps").ok()?.take(most + 1).read_to_end(&mut text).ok()?;
    (text.len() as u64 <= most).then_some(text)
}

/// Where code is mapped: address, length and inode.
pub(crate) type CodeMapping = (u64, u64, u64);

/// What a look at the memory of a process tells.
#[derive(Debug, Default)]
pub(crate) struct ProcessMemory {
    /// The code that is mapped.
    pub(crate) code: Vec<CodeMapping>,
    /// Bytes of stack in use, of threads that wait: where those that run have theirs, nobody can tell without
    /// stopping them.
    pub(crate) stacks: Vec<u64>,
}

/// The memory of a process, with the stacks of so many of its threads; `None` where it is gone or not ours to read.
pub(crate) fn memory(pid: u32, stacks: usize) -> Option<ProcessMemory> {
    let text = maps(&open(pid)?).ok()?;
    let executable = regions(&text).filter(|region| region.executable);
    let code = executable.map(|region| (region.start, region.end - region.start, region.file.inode));
    let in_use = |stack_pointer: u64| {
        let stack = regions(&text).find(|region| (region.start..region.end).contains(&stack_pointer))?;
        Some(stack.end - stack_pointer)
    };
    let threads = threads(pid).into_iter().take(stacks);
    Some(ProcessMemory {
        code: code.collect(),
        stacks: threads.filter_map(stack_pointer).filter_map(in_use).collect(),
    })
}

/// Where the stack of a thread ends that waits in a system call.
fn stack_pointer(tid: u32) -> Option<u64> {
    match open(tid)?.syscall().ok()? {
        Syscall::Blocked { stack_pointer, .. } => Some(stack_pointer),
        _ => None,
    }
}

/// CPU time of everything on this machine since it started, stolen time included (ns); 0 if the kernel does not say.
pub(crate) fn machine_busy_ns() -> u64 {
    machine_ns(|[user, nice, system, _, _, irq, softirq, stolen]| {
        user + nice + system + irq + softirq + stolen
    })
}

/// The same without stolen time, which the scheduler charges to nobody.
pub(crate) fn machine_charged_ns() -> u64 {
    machine_ns(|[user, nice, system, _, _, irq, softirq, _]| user + nice + system + irq + softirq)
}

fn machine_ns(ticks: impl Fn(&[u64; 8]) -> u64) -> u64 {
    machine_ticks().map_or(0, |all| ticks(&all) * (1_000_000_000 / procfs::ticks_per_second().max(1)))
}

/// Ticks of all CPUs together: user, nice, system, idle, waiting for a disk, interrupts, soft interrupts, stolen. It is asked at
/// every tick of a clock: the file stays open, and its first line is all that is looked at.
fn machine_ticks() -> Option<[u64; 8]> {
    static STAT: OnceLock<Option<File>> = OnceLock::new();
    let file = STAT.get_or_init(|| File::open("/proc/stat").ok()).as_ref()?;
    let mut bytes = [0; 512];
    let length = file.read_at(&mut bytes, 0).ok()?;
    machine_ticks_in(&bytes[..length])
}

/// Memory of this process that is resident, and of those that read symbols for it (bytes); 0 if the kernel does not say.
pub(crate) fn resident_bytes() -> u64 {
    let pages = |process: Process| process.statm().map_or(0, |statm| statm.resident);
    let readers = family::readers().into_iter().filter_map(|pid| Process::new(pid as i32).ok());
    let all: u64 = Process::myself().into_iter().chain(readers).map(pages).sum();
    all * procfs::page_size()
}

/// Files that this process has open; 0 if the kernel does not say.
pub(crate) fn own_open_files() -> u64 {
    Process::myself().and_then(|own| own.fd_count()).map_or(0, |count| count as u64)
}

/// Tasks that were created on this machine since it started; 0 if the kernel does not say.
pub(crate) fn machine_forks() -> u64 {
    KernelStats::current().map_or(0, |stats| stats.processes)
}

/// Context switches of these threads since they began.
pub(crate) fn context_switches_of(tids: &[u32]) -> u64 {
    tids.iter().map(|&tid| context_switches(tid)).sum()
}

/// Context switches of these threads per second, each since it began: of some of them, where there are many. What is
/// younger than a second is taken to be that old.
pub(crate) fn past_switches_per_s(tids: &[u32]) -> f64 {
    const READ: usize = 16;
    let read = &tids[..tids.len().min(READ)];
    let sum: f64 = read.iter().map(|&tid| context_switches(tid) as f64 / age_s(tid).max(1.0)).sum();
    sum * tids.len() as f64 / read.len().max(1) as f64
}

/// For how long a thread has been there (s); for ever if it is gone.
fn age_s(tid: u32) -> f64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME);
    let began = open(tid).and_then(|thread| thread.stat().ok()).map(|stat| stat.starttime);
    match now.ok().zip(began) {
        Some((now, began)) => {
            now.tv_sec() as f64 + now.tv_nsec() as f64 * 1e-9
                - began as f64 / procfs::ticks_per_second() as f64
        }
        None => f64::INFINITY,
    }
}

/// Context switches of a thread since it began: how often it was given a CPU. That is the last of three numbers in a short
/// file; a kernel that keeps none of them has the same in a long one.
pub(crate) fn context_switches(tid: u32) -> u64 {
    arrivals_in(&std::fs::read(format!("/proc/{tid}/schedstat")).unwrap_or_default())
        .unwrap_or_else(|| switches_in(&std::fs::read(format!("/proc/{tid}/status")).unwrap_or_default()))
}

/// The count in the short file, where the kernel keeps it.
fn arrivals_in(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    text.split_ascii_whitespace().nth(2)?.parse().ok().filter(|count| *count > 0)
}

/// Reads the context switches of one thread again and again, from a file that stays open: to open it each time took ten times as
/// long as to read it.
#[derive(Debug)]
pub(crate) struct SwitchCounter {
    tid: u32,
    /// None where files are not kept, and once the thread is gone.
    file: Option<File>,
}

impl SwitchCounter {
    /// For this thread; where it `keeps` no file open, each reading opens one.
    pub(crate) fn new(tid: u32, keeps: bool) -> Self {
        let file = if keeps { File::open(format!("/proc/{tid}/schedstat")).ok() } else { None };
        Self { tid, file }
    }

    /// As [`context_switches`].
    pub(crate) fn read(&mut self) -> u64 {
        let mut text = [0; 96];
        let length = self.file.as_ref().and_then(|file| file.read_at(&mut text, 0).ok());
        length.and_then(|length| arrivals_in(&text[..length])).unwrap_or_else(|| {
            self.file = None; // whoever has the number now is another thread
            context_switches(self.tid)
        })
    }
}

fn open(pid: u32) -> Option<Process> {
    Process::new(i32::try_from(pid).ok()?).ok()
}

/// The image of the vDSO, which is the same in every process.
pub(crate) fn vdso_image() -> Option<Vec<u8>> {
    let text = maps(&Process::myself().ok()?).ok()?;
    let vdso = regions(&text).find(|region| region.name == b"[vdso]")?;
    let memory = File::open("/proc/self/mem").ok()?;
    let mut image = vec![0; usize::try_from(vdso.end - vdso.start).ok()?];
    memory.read_exact_at(&mut image, vdso.start).ok()?;
    Some(image)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_an_identity_and_switches() {
        let user = nix::unistd::geteuid().as_raw();
        assert_eq!(identity(std::process::id()), Some(ProcessIdentity { pid: std::process::id(), user }));
        let (own, none) = ([std::process::id()], [u32::MAX]);
        assert!(context_switches(own[0]) > 0);
        assert!((0.0..f64::INFINITY).contains(&age_s(own[0])), "{}", age_s(own[0]));
        let past = past_switches_per_s(&own);
        assert!(past > 0.0 && past <= context_switches(own[0]) as f64, "{past}");
        assert_eq!((past_switches_per_s(&none), past_switches_per_s(&[])), (0.0, 0.0));
    }

    #[test]
    fn a_file_that_stays_open_tells_the_same_as_one_that_is_opened() {
        let tid = nix::unistd::gettid().as_raw() as u32;
        for keeps in [true, false] {
            let mut counter = SwitchCounter::new(tid, keeps);
            let before = (counter.read(), context_switches(tid));
            std::thread::sleep(std::time::Duration::from_millis(1));
            let after = (counter.read(), context_switches(tid));
            assert!(before.0 <= before.1 && before.1 < after.0 && after.0 <= after.1, "{before:?} {after:?}");
        }
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let mut counter = SwitchCounter::new(child.id(), true);
        child.wait().unwrap();
        assert_eq!((counter.read(), counter.file.is_none()), (0, true));
        assert_eq!((thread_count(std::process::id()) > 0, thread_count(u32::MAX)), (true, 0));
    }

    #[test]
    fn descendants_are_found_parents_first_and_never_ourselves() {
        let mut shell = std::process::Command::new("sh")
            .args(["-c", "sleep 60 & echo $!; wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut said = std::io::BufReader::new(shell.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut said, &mut line).unwrap();
        let sleeper: u32 = line.trim().parse().unwrap();
        let found = descendants(&[std::process::id()]);
        let grandparent = std::os::unix::process::parent_id();
        let from_above = descendants(&[grandparent]);
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(sleeper as i32), nix::sys::signal::SIGKILL)
            .unwrap();
        shell.wait().unwrap();
        let at = |pid| found.iter().position(|child| child.pid == pid);
        assert!(at(shell.id()).unwrap() < at(sleeper).unwrap());
        assert!(found.contains(&Child { pid: sleeper, parent: shell.id() }));
        assert!(from_above.iter().all(|child| child.pid != std::process::id()));
    }

    #[test]
    fn what_cannot_be_read_has_not_ended_for_that() {
        let error = io::Error::from_raw_os_error;
        assert!(says_gone(&error(libc::ESRCH)) && says_gone(&error(libc::ENOENT)));
        assert!(!says_gone(&error(libc::EMFILE)) && !says_gone(&error(libc::EACCES)));
        assert!(!has_ended(std::process::id()) && has_ended(u32::MAX));
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
