//! Changes to the machine that tests must undo, even when they panic.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;

/// A kernel setting, put back when dropped, and also when this process is killed.
pub struct Sysctl {
    /// Waits for its input to end, which it does with this process at the latest, and writes the old value.
    keeper: Child,
}

impl Sysctl {
    /// Sets `/proc/sys/kernel/<name>`.
    pub fn kernel(name: &str, value: &str) -> Result<Sysctl> {
        let path = Path::new("/proc/sys/kernel").join(name);
        let before = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut keeper = Command::new("sh");
        keeper.args(["-c", r#"read -r _; printf %s "$1" >"$2""#, "sh", before.trim()]).arg(&path);
        // In a group of its own, Ctrl-C does not reach it.
        let keeper = keeper.stdin(Stdio::piped()).process_group(0).spawn().context("cannot start sh")?;
        let guard = Sysctl { keeper };
        fs::write(&path, value).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(guard)
    }
}

impl Drop for Sysctl {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        // Nothing can be done about a failure here; the next reader of the setting will see it.
        let _ = self.keeper.wait();
    }
}

/// A file system in memory, of a size in KiB, unmounted when dropped.
pub struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// Mounts it; only root can.
    pub fn new(kib: u32) -> Result<SmallDisk> {
        let folder = tempfile::tempdir()?;
        let size = format!("size={kib}k");
        mount(Some("tmpfs"), folder.path(), Some("tmpfs"), MsFlags::empty(), Some(size.as_str()))
            .context("cannot mount a tmpfs")?;
        Ok(SmallDisk(folder))
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = umount2(self.0.path(), MntFlags::MNT_DETACH);
    }
}

/// A child that is killed when dropped, and with it all that it has started and that still has it for a parent.
pub struct Running(pub Child);

impl Running {
    /// Starts a command.
    pub fn start(command: &mut Command) -> Result<Running> {
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        Ok(Running(child))
    }
}

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Once it was waited for, its number may be another's.
        if matches!(self.0.try_wait(), Ok(None)) {
            kill_descendants(Pid::from_raw(self.0.id() as i32));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Kills what a process has started, and leaves itself stopped: so it starts no more, and waits for none of them, whose numbers stay
/// theirs. A process whose parent has ended could not be found any more.
fn kill_descendants(pid: Pid) {
    let _ = kill(pid, Signal::SIGSTOP); // it may have ended
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let children: Vec<String> = children.collect();
    for child in children.iter().flat_map(|pids| pids.split_whitespace()).filter_map(|pid| pid.parse().ok()) {
        let child = Pid::from_raw(child);
        kill_descendants(child);
        let _ = kill(child, Signal::SIGKILL);
    }
}

/// The calling thread, and what it starts, on one CPU until dropped.
pub struct OnCpu(CpuSet);

impl OnCpu {
    /// Moves the thread there.
    pub fn new(cpu: usize) -> Result<OnCpu> {
        let before = sched_getaffinity(Pid::from_raw(0))?;
        let mut one = CpuSet::new();
        one.set(cpu)?;
        sched_setaffinity(Pid::from_raw(0), &one).with_context(|| format!("cannot move to CPU {cpu}"))?;
        Ok(OnCpu(before))
    }
}

impl Drop for OnCpu {
    fn drop(&mut self) {
        let _ = sched_setaffinity(Pid::from_raw(0), &self.0);
    }
}

/// A CPU for the target and another for everything else; the same where there is but one.
pub fn two_cpus() -> Result<(usize, usize)> {
    let allowed = sched_getaffinity(Pid::from_raw(0))?;
    let mut cpus = (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false));
    let first = cpus.next().context("no CPU is allowed")?;
    Ok((first, cpus.next_back().unwrap_or(first)))
}

/// Whether this process is root.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Whether this machine lets a test enter other processes by `ptrace`; says why a test that needs it is skipped.
#[allow(clippy::print_stderr, reason = "a test that skips says why")]
pub fn may_trace() -> bool {
    let may = is_root() && cfg!(target_arch = "x86_64");
    if !may {
        eprintln!("skipped: needs root, on x86-64");
    }
    may
}

/// Makes a file or folder readable (and a program executable) by everyone.
pub fn open_to_all(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o777))?;
    ensure!(path.exists(), "{} is gone", path.display());
    Ok(())
}

/// Blocks the signals that ask a program to end, for this thread and what it starts, as some supervisors do; unblocked when dropped.
pub struct Deaf(SigSet);

impl Deaf {
    /// From now on.
    pub fn new() -> Result<Deaf> {
        let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
        signals.thread_block()?;
        Ok(Deaf(signals))
    }
}

impl Drop for Deaf {
    fn drop(&mut self) {
        let _ = self.0.thread_unblock(); // fails of a wrong number alone
    }
}

/// Leaves the test where the daemon cannot sample, and says so.
#[macro_export]
macro_rules! privileged {
    () => {
        if !$crate::guards::is_root() {
            eprintln!("skipped: the daemon samples other users' processes, which needs root");
            return Ok(());
        }
    };
}
