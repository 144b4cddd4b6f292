//! Facts about the kernel and the machine.

use std::fs;
use std::io::{self, BufRead};
use std::path::{Path, PathBuf};

use nix::sys::resource::{Resource, getrlimit};

use crate::cgroup::{Cgroup, TransientCgroup, hierarchy};
use crate::run::backend::find_library;
use crate::sampler::access::{probe_access, probe_group};
use crate::sampler::handler_tracer::{HandlerTracer, Unavailable};
use crate::sys::{limits, signal_cost};

/// Capability numbers of the kernel.
const CAP_IPC_LOCK: u32 = 14;
const CAP_SYS_PTRACE: u32 = 19;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;

/// The first symbols of the kernel can be at address zero, on whatever machine.
const MOST_SYMBOLS: usize = 10_000;

/// Everything that [`super::diagnose()`] judges. `None`: the kernel does not say.
#[derive(Clone, Debug)]
pub(super) struct HostFacts {
    pub(super) kernel: KernelFacts,
    pub(super) rights: OwnRights,
    pub(super) machine: MachineFacts,
    pub(super) groups: GroupFacts,
    /// The usual sockets of container runtimes that there are, and whether we may open each.
    pub(super) runtimes: Vec<(PathBuf, bool)>,
    /// The agent's file, if it is installed.
    pub(super) agent: Option<PathBuf>,
    /// Why the kernel's handler cannot be timed; `None` where it can.
    pub(super) handler: Option<Untimed>,
    /// The file that keeps the measured cost of a sample between runs.
    pub(super) cache: Option<PathBuf>,
    /// Whether it exists.
    pub(super) calibrated: bool,
}

/// The kernel, and its settings for everybody.
#[derive(Clone, Debug)]
pub(super) struct KernelFacts {
    /// Such as `6.18.4-generic`.
    pub(super) release: String,
    /// Such as `x86_64`.
    pub(super) architecture: &'static str,
    /// `kernel.perf_event_paranoid`.
    pub(super) paranoid: Option<i64>,
    /// `kernel.perf_event_mlock_kb`: ring memory for each CPU of one user (KiB).
    pub(super) mlock_kb: Option<u64>,
    /// `kernel.perf_event_max_stack`: frames of a call chain.
    pub(super) max_stack: Option<u64>,
    /// `kernel.kptr_restrict`.
    pub(super) kptr_restrict: Option<i64>,
    /// `kernel.yama.ptrace_scope`.
    pub(super) ptrace_scope: Option<i64>,
    /// How `/proc` hides the processes of others, if it does.
    pub(super) hidepid: Option<String>,
    /// Ticks of the kernel in a second.
    pub(super) ticks_hz: f64,
}

/// What this process may do.
#[derive(Clone, Debug)]
pub(super) struct OwnRights {
    /// Effective capabilities, a bit for each.
    pub(super) capabilities: u64,
    /// Whether they are those of a user namespace, which count for nothing where the whole machine is concerned.
    pub(super) user_namespace: bool,
    /// Whether an event for a whole CPU was opened.
    pub(super) cpu_wide: bool,
    /// Whether the kernel shows us the addresses of its functions.
    pub(super) kernel_addresses: bool,
    /// Processes whose mappings we were refused.
    pub(super) protected: usize,
    /// Mode of system call filtering: 2 is a filter.
    pub(super) seccomp: u64,
    /// Soft limit of locked memory (bytes); `u64::MAX` is none.
    pub(super) memlock_bytes: u64,
    /// Hard limit of open files.
    pub(super) open_files: u64,
    /// Whether the files that a process maps can be opened through `/proc/PID/map_files`.
    pub(super) map_files: bool,
    /// Why a sampling event could not be opened: an error number, 0 where there is none.
    pub(super) open_error: Option<i32>,
}

/// The machine, or the part of it that we see.
#[derive(Clone, Debug)]
pub(super) struct MachineFacts {
    /// CPUs that are online.
    pub(super) cpus: u64,
    /// Threads of the largest process that we can see.
    pub(super) threads: u64,
    /// Whether the CPU has counters that can interrupt.
    pub(super) hardware_counters: bool,
    /// Whether we run under a hypervisor.
    pub(super) virtual_machine: bool,
    /// The container that we run in, by its mark.
    pub(super) container: Option<&'static str>,
}

/// Control groups.
#[derive(Clone, Debug)]
pub(super) struct GroupFacts {
    /// Where cgroup v2 is mounted.
    pub(super) hierarchy: Option<PathBuf>,
    /// Whether a control group can be made for a command.
    pub(super) makes_groups: bool,
    /// Why an event for a control group could not be opened: an error number, 0 where there is none.
    pub(super) error: Option<i32>,
}

/// Why the kernel's handler cannot be timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Untimed {
    /// The tracepoints are not mounted.
    NotMounted,
    /// They are mounted for others.
    NotReadable,
    /// They are not those that we know.
    OtherLayout,
    /// Their events were refused.
    Refused,
}

impl HostFacts {
    /// Asks the kernel.
    pub(super) fn read(try_open: impl Fn() -> io::Result<()>) -> Self {
        let cache = crate::calibrate::cache_path();
        let status = text("/proc/self/status");
        Self {
            kernel: KernelFacts {
                release: text("/proc/sys/kernel/osrelease"),
                architecture: std::env::consts::ARCH,
                paranoid: number("/proc/sys/kernel/perf_event_paranoid"),
                mlock_kb: number("/proc/sys/kernel/perf_event_mlock_kb"),
                max_stack: number("/proc/sys/kernel/perf_event_max_stack"),
                kptr_restrict: number("/proc/sys/kernel/kptr_restrict"),
                ptrace_scope: number("/proc/sys/kernel/yama/ptrace_scope"),
                hidepid: hidepid(&text("/proc/self/mounts")),
                ticks_hz: 1e9 / signal_cost::tick_ns() as f64,
            },
            rights: OwnRights {
                capabilities: field(&status, "CapEff:")
                    .and_then(|hex| u64::from_str_radix(hex, 16).ok())
                    .unwrap_or(0),
                user_namespace: fs::read_to_string("/proc/self/uid_map")
                    .is_ok_and(|map| is_user_namespace(&map)),
                cpu_wide: probe_access().is_ok_and(|access| access.cpu_wide),
                kernel_addresses: shows_addresses(),
                protected: protected(),
                seccomp: field(&status, "Seccomp:").and_then(|mode| mode.parse().ok()).unwrap_or(0),
                memlock_bytes: getrlimit(Resource::RLIMIT_MEMLOCK).map_or(0, |(soft, _)| soft),
                open_files: getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(_, hard)| hard),
                map_files: map_files(),
                open_error: try_open().err().map(|error| error.raw_os_error().unwrap_or(0)),
            },
            machine: MachineFacts {
                cpus: limits::online_cpus().len() as u64,
                threads: most_threads(),
                hardware_counters: hardware_counters(),
                virtual_machine: virtual_machine(),
                container: container(),
            },
            groups: GroupFacts {
                error: hierarchy().and_then(|root| group_error(&root)),
                makes_groups: TransientCgroup::make().is_ok(),
                hierarchy: hierarchy(),
            },
            runtimes: crate::containers::found(),
            agent: find_library(),
            handler: untimed(),
            calibrated: cache.as_ref().is_some_and(|file| file.exists()),
            cache,
        }
    }

    /// Whether events of other users, of all CPUs and of the kernel are open to us at any setting.
    pub(super) fn may_profile_anything(&self) -> bool {
        self.claims_to_profile_anything() && self.rights.cpu_wide
    }

    /// Whether we hold the capability for that, be it of a user namespace.
    pub(super) fn claims_to_profile_anything(&self) -> bool {
        self.has(CAP_PERFMON) || self.has(CAP_SYS_ADMIN)
    }

    /// Whether ring memory is unlimited for us.
    pub(super) fn may_lock_memory(&self) -> bool {
        self.has(CAP_IPC_LOCK) && !self.rights.user_namespace
    }

    /// Whether processes of other users are open to us, but for those that are protected.
    pub(super) fn may_read_others(&self) -> bool {
        self.has(CAP_SYS_PTRACE) && (self.rights.protected == 0 || !self.rights.user_namespace)
    }

    fn has(&self, capability: u32) -> bool {
        self.rights.capabilities >> capability & 1 == 1
    }
}

fn text(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn number<T: std::str::FromStr>(path: &str) -> Option<T> {
    text(path).parse().ok()
}

/// The first word after `key` in a file of `key: value` lines.
fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key))?.split_whitespace().next()
}

fn most_threads() -> u64 {
    let Ok(processes) = fs::read_dir("/proc") else { return 1 };
    let ids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let threads = ids.filter_map(|pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        field(&status, "Threads:")?.parse().ok()
    });
    threads.max().unwrap_or(1)
}

/// Hybrid CPUs and ARM have a PMU of another name.
fn hardware_counters() -> bool {
    let Ok(devices) = fs::read_dir("/sys/bus/event_source/devices") else { return false };
    let names = devices.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.into_iter().any(|name| name.starts_with("cpu") || name.starts_with("armv"))
}

fn virtual_machine() -> bool {
    let processor = text("/proc/cpuinfo");
    let flags = processor.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor"))
        || fs::exists("/proc/device-tree/hypervisor").unwrap_or(false)
}

fn container() -> Option<&'static str> {
    let marks = [("/.dockerenv", "docker"), ("/run/.containerenv", "podman")];
    let found = marks.into_iter().find(|(mark, _)| fs::exists(mark).unwrap_or(false));
    let kubernetes = std::env::var_os("KUBERNETES_SERVICE_HOST").map(|_| "kubernetes");
    kubernetes.or(found.map(|(_, name)| name))
}

/// The option of the mount on `/proc`, unless it hides nothing.
pub(super) fn hidepid(mounts: &str) -> Option<String> {
    let mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let options = mounts
        .filter(|fields| fields.get(1) == Some(&"/proc"))
        .filter_map(|f| f.get(3).copied())
        .next_back()?;
    let hidden = options.split(',').find_map(|option| option.strip_prefix("hidepid="))?;
    (!matches!(hidden, "0" | "off")).then(|| hidden.to_owned())
}

/// Tries the tracepoints for a moment, on one CPU.
fn untimed() -> Option<Untimed> {
    let cpu = limits::online_cpus()[0];
    match HandlerTracer::find().and_then(|mut tracer| tracer.start(&[cpu])) {
        Ok(()) => None,
        Err(Unavailable::NoTracefs(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
            Some(Untimed::NotReadable)
        }
        Err(Unavailable::NoTracefs(_)) => Some(Untimed::NotMounted),
        Err(Unavailable::UnknownLayout) => Some(Untimed::OtherLayout),
        Err(Unavailable::Refused(_)) => Some(Untimed::Refused),
    }
}

/// Whether users of this namespace are not those of the machine: the initial one maps all of them to themselves.
pub(super) fn is_user_namespace(map: &str) -> bool {
    map.split_whitespace().ne(["0", "0", "4294967295"])
}

/// The kernel's list has zeros in place of addresses for those who may not see them.
fn shows_addresses() -> bool {
    let Ok(list) = fs::File::open("/proc/kallsyms") else { return false };
    let mut lines = io::BufReader::new(list).lines().map_while(Result::ok).take(MOST_SYMBOLS);
    lines.any(|line| line.split(' ').next().is_some_and(|address| address.bytes().any(|byte| byte != b'0')))
}

/// Opens the mappings of every process, and counts those that are refused.
fn protected() -> usize {
    let Ok(processes) = fs::read_dir("/proc") else { return 0 };
    let ids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let refused = ids.filter_map(|pid| fs::File::open(format!("/proc/{pid}/maps")).err());
    refused.filter(|error| error.kind() == io::ErrorKind::PermissionDenied).count()
}

/// Tries an event for the group at the top.
fn group_error(root: &Path) -> Option<i32> {
    let group = Cgroup::find(root).ok();
    let tried = group.map_or(Err(io::ErrorKind::NotFound.into()), |group| probe_group(&group));
    tried.err().map(|error| error.raw_os_error().unwrap_or(0))
}

fn map_files() -> bool {
    let Ok(mut files) = fs::read_dir("/proc/self/map_files") else { return false };
    files.next().is_some_and(|file| file.is_ok_and(|file| fs::File::open(file.path()).is_ok()))
}
