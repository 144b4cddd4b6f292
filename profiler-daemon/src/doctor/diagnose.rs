//! The judgement over the facts: pure, so that machines we do not have can be judged too.

use nix::errno::Errno;
use profiler_core::resources;
use serde::Serialize;

use super::facts::{HostFacts, Untimed};

/// Ring memory for each CPU that a run wants (KiB): 128 pages and one for the header.
const RING_KB: u64 = 516;
/// Frames that the kernel walks unless told otherwise.
const DEFAULT_MAX_STACK: u64 = 127;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    /// As it should be.
    Ok,
    /// Something is lost or costs more.
    Warn,
    /// Sampling does not work.
    Fail,
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    /// How bad it is.
    pub(super) level: Severity,
    /// What was looked at.
    pub(super) name: &'static str,
    /// What it is, and what follows.
    pub(super) finding: String,
    /// The command that mends it.
    pub(super) remedy: Option<String>,
}

impl Severity {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        }
    }
}

/// Judges the facts.
pub(super) fn diagnose(facts: &HostFacts) -> Vec<Check> {
    let checks: [fn(&HostFacts) -> Check; 17] = [
        kernel,
        architecture,
        opening,
        backend,
        paranoid,
        ring_memory,
        max_stack,
        kernel_names,
        open_files,
        groups,
        handler_time,
        counters,
        processes,
        map_files,
        containers,
        machine,
        calibration,
    ];
    checks.iter().map(|check| check(facts)).collect()
}

fn ok(name: &'static str, finding: impl Into<String>) -> Check {
    Check { level: Severity::Ok, name, finding: finding.into(), remedy: None }
}

fn warn(name: &'static str, finding: impl Into<String>, remedy: Option<String>) -> Check {
    Check { level: Severity::Warn, name, finding: finding.into(), remedy }
}

fn fail(name: &'static str, finding: impl Into<String>, remedy: Option<String>) -> Check {
    Check { level: Severity::Fail, name, finding: finding.into(), remedy }
}

/// The capabilities that the program needs, as the service has them: docs/service.md says what each of them
/// is for.
pub(super) const CAPABILITIES: [&str; 5] =
    ["cap_perfmon", "cap_sys_ptrace", "cap_dac_read_search", "cap_checkpoint_restore", "cap_syslog"];

/// Gives it all of them: `setcap` takes away what it does not name, so that pieces of advice with other lists would undo each
/// other.
fn grant() -> String {
    format!(r#"sudo setcap {}=ep "$(command -v sweetspot)""#, CAPABILITIES.join(","))
}

fn sysctl(setting: &str) -> Option<String> {
    Some(format!("sudo sysctl {setting}"))
}

fn kernel(facts: &HostFacts) -> Check {
    const NAME: &str = "kernel";
    let mut parts = facts.kernel.release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>());
    match (parts.next(), parts.next()) {
        (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= (5, 11) => ok(NAME, &facts.kernel.release),
        (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= (4, 3) => warn(
            NAME,
            format!("{}: older than 5.11, the oldest that is supported", facts.kernel.release),
            None,
        ),
        (Some(Ok(_)), _) => fail(NAME, format!("{}: older than 4.3", facts.kernel.release), None),
        _ => warn(NAME, format!("version unknown: `{}`", facts.kernel.release), None),
    }
}

fn architecture(facts: &HostFacts) -> Check {
    match facts.kernel.architecture {
        "x86_64" | "aarch64" => ok("architecture", facts.kernel.architecture),
        other => fail("architecture", format!("{other}: stacks can be unwound on x86_64 and aarch64"), None),
    }
}

/// Whether the kernel really opens an event, whatever the settings say.
fn opening(facts: &HostFacts) -> Check {
    const NAME: &str = "perf_event_open";
    let Some(number) = facts.rights.open_error else { return ok(NAME, "opens a sampling event") };
    let error = Errno::from_raw(number);
    let denied = matches!(error, Errno::EPERM | Errno::EACCES);
    let by_setting = facts.kernel.paranoid.is_some_and(|level| level > 2) && !facts.may_profile_anything();
    match error {
        _ if denied && by_setting => fail(NAME, "denied by kernel.perf_event_paranoid, see below", None),
        _ if denied && (facts.rights.seccomp == 2 || facts.machine.container.is_some()) => {
            let place = facts.machine.container.unwrap_or("a system call filter");
            let remedy =
                "run the container with --cap-add PERFMON and a seccomp profile that allows perf_event_open";
            fail(NAME, format!("denied by {place}, not by a setting of the kernel"), Some(remedy.to_owned()))
        }
        _ if denied => fail(NAME, "denied by a security module", Some(grant())),
        Errno::ENOSYS => fail(NAME, "missing: the kernel is built without CONFIG_PERF_EVENTS", None),
        Errno::EMFILE => fail(NAME, "out of open files", Some("ulimit -n $(ulimit -Hn)".to_owned())),
        Errno::UnknownErrno => fail(NAME, "failed for an unknown reason", None),
        other => fail(NAME, format!("failed: {}", other.desc()), None),
    }
}

/// What `record` uses if no backend is asked for, and why. `run::backend::for_command` decides which errors are a refusal.
fn backend(facts: &HostFacts) -> Check {
    const NAME: &str = "record";
    let refused = facts.rights.open_error.map(Errno::from_raw);
    match (refused, &facts.agent) {
        (None, _) => ok(NAME, "samples by perf events"),
        (Some(Errno::EPERM | Errno::EACCES), Some(agent)) => warn(
            NAME,
            format!(
                "samples by timer signals ({}), since perf events are refused: at most {:.0} per \
                 CPU-second, no functions of the kernel; `attach` does so with --backend timer-signal",
                agent.display(),
                facts.kernel.ticks_hz
            ),
            None,
        ),
        (Some(Errno::EPERM | Errno::EACCES), None) => warn(
            NAME,
            "could sample by timer signals, but libsweetspot_agent.so is neither beside sweetspot nor in \
             /usr/lib/sweetspot",
            None,
        ),
        (Some(_), _) => fail(NAME, "cannot sample: perf events are not refused, but do not work", None),
    }
}

/// What the kernel's own setting permits.
fn paranoid(facts: &HostFacts) -> Check {
    const NAME: &str = "kernel.perf_event_paranoid";
    let Some(level) = facts.kernel.paranoid else {
        return fail(NAME, "missing: the kernel is built without CONFIG_PERF_EVENTS", None);
    };
    if facts.may_profile_anything() {
        return ok(NAME, format!("{level}, and we hold CAP_PERFMON: all processes, all CPUs, kernel frames"));
    }
    let of_namespace = facts.claims_to_profile_anything() && facts.rights.user_namespace;
    let of_namespace = if of_namespace { "; CAP_PERFMON counts for nothing in a user namespace" } else { "" };
    match level {
        ..=0 if facts.rights.cpu_wide => ok(NAME, format!("{level}: own processes, all CPUs, kernel frames")),
        ..=0 => warn(NAME, format!("{level}, but events for whole CPUs are refused"), None),
        1 => warn(
            NAME,
            format!(
                "1: own processes with kernel frames; no CPU-wide events (--attach-mode cpu){of_namespace}"
            ),
            sysctl("kernel.perf_event_paranoid=0"),
        ),
        // Levels above 2 are of Debian's and Android's kernels; others treat them like 2.
        _ if level == 2 || facts.rights.open_error.is_none() => warn(
            NAME,
            format!(
                "{level}: own processes, user frames only; no CPU-wide events, no kernel frames{of_namespace}"
            ),
            sysctl("kernel.perf_event_paranoid=1"),
        ),
        _ => fail(
            NAME,
            format!(
                "{level}: nothing without CAP_SYS_ADMIN; above 2, CAP_PERFMON is not enough{of_namespace}"
            ),
            sysctl("kernel.perf_event_paranoid=2"),
        ),
    }
}

fn ring_memory(facts: &HostFacts) -> Check {
    const NAME: &str = "ring memory";
    if facts.may_lock_memory() {
        return ok(NAME, "unlimited: we hold CAP_IPC_LOCK");
    }
    let per_cpu = facts.kernel.mlock_kb.unwrap_or(0);
    let locked_kb = facts.rights.memlock_bytes / 1024;
    let limit = if facts.rights.memlock_bytes == u64::MAX {
        "unlimited".to_owned()
    } else {
        format!("{locked_kb} KiB")
    };
    let finding = format!("{per_cpu} KiB for each CPU and {limit} more (RLIMIT_MEMLOCK)");
    let wanted = RING_KB * facts.machine.cpus;
    if per_cpu.saturating_mul(facts.machine.cpus).saturating_add(locked_kb) >= wanted {
        return ok(NAME, finding);
    }
    let finding = format!(
        "{finding}; {RING_KB} KiB for each of {} CPUs are needed, and samples may be lost",
        facts.machine.cpus
    );
    warn(NAME, finding, sysctl(&format!("kernel.perf_event_mlock_kb={RING_KB}")))
}

fn max_stack(facts: &HostFacts) -> Check {
    const NAME: &str = "kernel.perf_event_max_stack";
    let Some(frames) = facts.kernel.max_stack else {
        return warn(NAME, "missing: call chains end at 127 frames", None);
    };
    if frames > DEFAULT_MAX_STACK {
        return ok(NAME, format!("{frames} frames"));
    }
    let finding = format!("{frames}: deeper stacks are cut when they are unwound by frame pointers");
    warn(NAME, finding, sysctl("kernel.perf_event_max_stack=512"))
}

fn kernel_names(facts: &HostFacts) -> Check {
    const NAME: &str = "kernel.kptr_restrict";
    let Some(level) = facts.kernel.kptr_restrict else {
        return warn(NAME, "missing: kernel frames may have no names", None);
    };
    if facts.rights.kernel_addresses {
        return ok(NAME, format!("{level}: kernel frames have names"));
    }
    let remedy = match level {
        0 => sysctl("kernel.perf_event_paranoid=1"),
        1 => Some(grant()),
        _ => sysctl("kernel.kptr_restrict=0"),
    };
    warn(NAME, format!("{level}: kernel frames have no names"), remedy)
}

/// Task events take one file for each thread and CPU.
fn open_files(facts: &HostFacts) -> Check {
    /// What a run has open otherwise, about.
    const OPEN: u64 = 64;
    let wanted = facts.machine.threads.saturating_mul(facts.machine.cpus);
    let events = resources::events_within(facts.rights.open_files, OPEN);
    let enough = events / facts.machine.cpus.max(1);
    let finding = format!(
        "at most {}, enough for {enough} threads on {} CPUs",
        facts.rights.open_files, facts.machine.cpus
    );
    if events >= wanted {
        return ok("open files", finding);
    }
    let finding = format!(
        "{finding}; the largest process here has {}: use --attach-mode cpu for it",
        facts.machine.threads
    );
    let remedy = format!("sudo prlimit --pid $$ --nofile={0}:{0}", wanted + 1024);
    warn("open files", finding, Some(remedy))
}

/// Events of control groups are open to those to whom events of whole CPUs are.
fn groups(facts: &HostFacts) -> Check {
    const NAME: &str = "cgroup events";
    let Some(hierarchy) = &facts.groups.hierarchy else {
        let remedy = "sudo mkdir -p /run/cgroup2 && sudo mount -t cgroup2 none /run/cgroup2";
        let finding = "no cgroup v2 hierarchy is mounted: neither --cgroup nor --unit";
        return warn(NAME, finding, Some(remedy.to_owned()));
    };
    let mounted = format!("cgroup v2 is mounted at {}", hierarchy.display());
    match facts.groups.error.map(Errno::from_raw) {
        None if facts.groups.makes_groups => {
            ok(NAME, format!("possible (--cgroup, --unit, --attach-mode cgroup); {mounted}"))
        }
        None => {
            let finding = format!(
                "of existing groups only (--cgroup, --unit): none can be made for a command (--attach-mode \
                 cgroup); {mounted}"
            );
            ok(NAME, finding)
        }
        Some(Errno::EPERM | Errno::EACCES) => {
            let finding = "not permitted: they need what events of whole CPUs need";
            warn(NAME, finding, sysctl("kernel.perf_event_paranoid=0"))
        }
        Some(Errno::ENOENT | Errno::EINVAL | Errno::EBADF) => {
            let finding = format!(
                "missing, though {mounted}: the kernel is built without CONFIG_CGROUP_PERF, or perf_event is a hierarchy of \
                 version 1"
            );
            warn(NAME, finding, None)
        }
        Some(Errno::UnknownErrno) => warn(NAME, format!("no group can be opened, though {mounted}"), None),
        Some(other) => warn(NAME, format!("failed: {}", other.desc()), None),
    }
}

/// Whether the tracepoints around the handler that writes samples can be had: they tell what a sample costs in the target.
fn handler_time(facts: &HostFacts) -> Check {
    const NAME: &str = "handler time";
    let calibrated = "samples are charged as calibrated";
    let (why, remedy) = match facts.handler {
        None => return ok(NAME, "measured in the target, by tracepoints"),
        Some(Untimed::NotMounted) => (
            "the kernel's tracepoints are not mounted",
            Some("sudo mount -t tracefs nodev /sys/kernel/tracing".to_owned()),
        ),
        Some(Untimed::NotReadable) => (
            "the kernel's tracepoints are readable for root alone",
            Some(r#"sudo mount -o remount,gid="$(id -g)" /sys/kernel/tracing"#.to_owned()),
        ),
        Some(Untimed::OtherLayout) => ("this kernel's tracepoints have another layout", None),
        Some(Untimed::Refused) => ("events of tracepoints need CAP_PERFMON", Some(grant())),
    };
    warn(NAME, format!("not measured: {why}; {calibrated}"), remedy)
}

fn counters(facts: &HostFacts) -> Check {
    if facts.machine.hardware_counters {
        return ok("hardware counters", "present");
    }
    ok("hardware counters", "none: samples are taken by the CPU clock, which also serves")
}

/// Whether the mappings of other processes can be read: their code has no names otherwise.
fn processes(facts: &HostFacts) -> Check {
    const NAME: &str = "/proc/PID/maps";
    if facts.may_read_others() {
        return match facts.rights.protected {
            0 => ok(NAME, "readable for all processes: we hold CAP_SYS_PTRACE"),
            1 => ok(NAME, "readable for all processes but one, which is protected: we hold CAP_SYS_PTRACE"),
            few => ok(
                NAME,
                format!("readable for all processes but {few}, which are protected: we hold CAP_SYS_PTRACE"),
            ),
        };
    }
    if let Some(hidepid) = &facts.kernel.hidepid {
        let finding = format!("processes of other users are hidden (hidepid={hidepid})");
        return warn(NAME, finding, Some(grant()));
    }
    // Yama restricts attaching as a debugger, not reading.
    let yama = facts.kernel.ptrace_scope.filter(|scope| *scope > 0);
    let yama =
        yama.map(|scope| format!(" (kernel.yama.ptrace_scope={scope} does not matter)")).unwrap_or_default();
    ok(NAME, format!("readable for our own processes; others need CAP_SYS_PTRACE{yama}"))
}

fn map_files(facts: &HostFacts) -> Check {
    const NAME: &str = "/proc/PID/map_files";
    if facts.rights.map_files {
        return ok(NAME, "readable: libraries that were deleted or replaced keep their names");
    }
    let finding = "not readable: libraries that were deleted or replaced while they run have no names";
    warn(NAME, finding, Some(grant()))
}

fn containers(facts: &HostFacts) -> Check {
    const NAME: &str = "container names";
    let sockets = |is_open: bool| {
        let sockets = facts.runtimes.iter().filter(|(_, open)| *open == is_open);
        sockets.map(|(socket, _)| socket.display().to_string()).collect::<Vec<_>>().join(", ")
    };
    let (open, closed) = (sockets(true), sockets(false));
    match (open.is_empty(), closed.is_empty()) {
        (true, true) => ok(NAME, "there is no socket of a container runtime at the usual places"),
        (_, true) => ok(NAME, format!("can be read from {open}")),
        (_, false) => {
            let unnamed = if open.is_empty() { "containers and pods" } else { "its containers" };
            let finding = format!("we may not open {closed}: {unnamed} have no names (docs/containers.md)");
            warn(NAME, finding, None)
        }
    }
}

fn machine(facts: &HostFacts) -> Check {
    if facts.machine.virtual_machine {
        let finding = "virtual: an interrupt costs several times as much, so that the best rate is lower";
        return warn("machine", finding, None);
    }
    ok("machine", "physical")
}

fn calibration(facts: &HostFacts) -> Check {
    match &facts.cache {
        Some(file) if facts.calibrated => ok("calibration", format!("kept in {}", file.display())),
        Some(file) => ok("calibration", format!("none yet; the first run keeps it in {}", file.display())),
        None => warn(
            "calibration",
            "neither HOME nor XDG_CACHE_HOME is set: each run measures the cost of a sample again",
            None,
        ),
    }
}
