//! Confines the calling process: it keeps its descriptors, memory and its own threads, and loses everything
//! else for good.

use std::collections::BTreeMap;
use std::io;

use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

/// What it may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessBounds {
    /// Address space (bytes).
    pub(crate) address_bytes: u64,
    /// CPU time of its whole life (s).
    pub(crate) cpu_s: u64,
    /// Open files.
    pub(crate) files: u64,
}

/// Shuts this process in. To be called while it has one thread: those that come later have the same filter.
///
/// # Errors
///
/// What could not be done.
pub(crate) fn confine(bounds: &ProcessBounds) -> Result<(), String> {
    close_inherited();
    // Where memory runs out, this process is the first to go.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    step("to end with its parent", prctl::set_pdeathsig(Signal::SIGKILL))?;
    step("to be closed to other processes", prctl::set_dumpable(false))?;
    step("to gain no privileges", prctl::set_no_new_privs())?;
    drop_capabilities().map_err(|error| failed("to drop its capabilities", &error))?;
    for (resource, most) in [
        (Resource::RLIMIT_AS, bounds.address_bytes),
        (Resource::RLIMIT_CPU, bounds.cpu_s),
        (Resource::RLIMIT_NOFILE, bounds.files),
        (Resource::RLIMIT_CORE, 0),
        (Resource::RLIMIT_FSIZE, 0),
    ] {
        // A limit that is lower stays: without capabilities it can't be raised.
        let most = getrlimit(resource).map_or(most, |(_, hard)| most.min(hard));
        step("to limit what it takes", setrlimit(resource, most, most))?;
    }
    filter().map_err(|error| format!("to filter its system calls ({error})"))
}

fn step(what: &str, done: nix::Result<()>) -> Result<(), String> {
    done.map_err(|error| failed(what, &error.into()))
}

fn failed(what: &str, error: &io::Error) -> String {
    format!("{what} ({error})")
}

/// Closes whatever our parent had open beside the first three: another thread of it may have been about to mark a descriptor as one
/// that is closed by an exec.
fn close_inherited() {
    let first: libc::c_uint = 3;
    // SAFETY: nothing of this process has opened a file so far that it still uses.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) };
    if done == 0 {
        return;
    }
    // Before Linux 5.9.
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
    let open: Vec<i32> = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    for fd in open.into_iter().filter(|fd| *fd > 2) {
        // SAFETY: as above; one that is closed by now is an error and nothing else.
        unsafe { libc::close(fd) };
    }
}

/// `struct __user_cap_header_struct` of version 3.
#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: i32,
}

/// `struct __user_cap_data_struct`.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq)]
struct Capabilities {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

const CAPABILITY_VERSION: u32 = 0x2008_0522;

/// Drops all capabilities. A process without any need not be permitted to.
fn drop_capabilities() -> io::Result<()> {
    // SAFETY: the call takes numbers alone. On a kernel without ambient capabilities it fails, and there are none.
    unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) };
    let mut header = CapabilityHeader { version: CAPABILITY_VERSION, pid: 0 };
    let mut held = [Capabilities::default(); 2];
    // SAFETY: the kernel writes two records of this version to a pointer to two.
    let read = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, held.as_mut_ptr()) };
    if read == 0 && held == [Capabilities::default(); 2] {
        return Ok(());
    }
    let none = [Capabilities::default(); 2];
    // SAFETY: the kernel reads two records of this version from a pointer to two.
    match unsafe { libc::syscall(libc::SYS_capset, &raw mut header, none.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What it may do: read the descriptors that it has, answer, take memory, and begin and end threads of its own.
const ALLOWED: &[libc::c_long] = &[
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_pread64,
    libc::SYS_fstat,
    libc::SYS_close,
    libc::SYS_write, // its last words go to /dev/null
    libc::SYS_writev,
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_clock_gettime,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// What is answered as if the kernel had no such call: the C library starts threads by `clone` then, whose flags a filter can see, and
/// how many CPUs a control group grants stays unknown.
const UNKNOWN: &[libc::c_long] = &[libc::SYS_clone3, libc::SYS_openat];

/// Whoever makes any other call is killed. All threads that are started from now on have the same filter.
fn filter() -> seccompiler::Result<()> {
    let unknown = UNKNOWN.iter().map(|call| (*call, Vec::new())).collect();
    let enosys = SeccompAction::Errno(libc::ENOSYS as u32);
    let unknown = program(unknown, SeccompAction::Allow, enosys)?;
    let allowed = program(allowed()?, SeccompAction::KillProcess, SeccompAction::Allow)?;
    // The second sees also what the first answers, and the stricter of two answers is in force.
    seccompiler::apply_filter(&unknown)?;
    seccompiler::apply_filter(&allowed)
}

type SeccompRules = BTreeMap<i64, Vec<SeccompRule>>;

fn program(
    rules: SeccompRules,
    others: SeccompAction,
    these: SeccompAction,
) -> Result<BpfProgram, seccompiler::BackendError> {
    let machine: TargetArch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, others, these, machine)?.try_into()
}

fn allowed() -> Result<SeccompRules, seccompiler::BackendError> {
    let plain = ALLOWED.iter().chain(UNKNOWN).map(|call| (*call, Vec::new()));
    let mut rules: SeccompRules = plain.collect();
    // Threads, and no processes: those would outlive this one.
    let thread = libc::CLONE_THREAD as u64;
    let conditional = [
        (libc::SYS_clone, 0, thread, thread),
        (libc::SYS_mmap, 2, libc::PROT_EXEC as u64, 0),
        (libc::SYS_mprotect, 2, libc::PROT_EXEC as u64, 0),
        // Without optimisation, the standard library asks so whether what it closes is open.
        (libc::SYS_fcntl, 1, u64::from(u32::MAX), libc::F_GETFD as u64),
        // To end itself, as a failed allocation does.
        (libc::SYS_tgkill, 0, u64::from(u32::MAX), u64::from(std::process::id())),
    ];
    for (call, argument, mask, value) in conditional {
        let operator = SeccompCmpOp::MaskedEq(mask);
        let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Qword, operator, value)?;
        rules.insert(call, vec![SeccompRule::new(vec![condition])?]);
    }
    Ok(rules)
}
