//! Perf events: opening them, and the calls that change them while they run.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use perf_event::events::Software;
use perf_event::{Builder, Counter};
use perf_event_open_sys::bindings::{
    PERF_COUNT_SW_CGROUP_SWITCHES, PERF_TYPE_SOFTWARE, PERF_TYPE_TRACEPOINT,
};
use perf_event_open_sys::ioctls;
use profiler_core::handler_trace;
use profiler_core::record::RecordFormat;

/// Whose time an event samples.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scope<'a> {
    /// One thread and all it creates, while on one CPU.
    Task {
        /// Thread.
        tid: u32,
        /// CPU.
        cpu: u32,
    },
    /// One thread alone, on whichever CPU.
    Thread(u32),
    /// Everything that runs on one CPU.
    Cpu(u32),
    /// Everything in a control group and below, while on one CPU.
    Cgroup {
        /// The group's folder.
        folder: &'a File,
        /// CPU.
        cpu: u32,
    },
}

/// A clock that takes a sample each time `period_ns` of CPU time has passed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClockEvent {
    /// CPU time between samples (ns).
    pub(crate) period_ns: u64,
    /// What samples contain.
    pub(crate) format: RecordFormat,
    /// Bytes of user stack to copy.
    pub(crate) stack_bytes: u32,
    /// Whether the kernel follows frame pointers in user space.
    pub(crate) user_chain: bool,
    /// Whether samples inside the kernel, and its frames, are wanted.
    pub(crate) kernel: bool,
    /// What the event reports beside its samples.
    pub(crate) reports: EventReports,
}

/// What an event writes besides what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventReports {
    /// Nothing.
    Own,
    /// Names, forks and exits.
    Tasks,
    /// Mappings.
    Mappings,
    /// Mappings, names, forks and exits.
    SideRecords,
    /// Nothing, and whoever waits for it is woken.
    Wakes,
}

/// An open event.
#[derive(Debug)]
pub(crate) struct Event(Counter);

impl Event {
    /// A sampling clock, not yet running.
    pub(crate) fn clock(scope: Scope<'_>, clock: &ClockEvent) -> io::Result<Self> {
        let mut builder = Builder::new().kind(Software::CPU_CLOCK);
        let attrs = builder.attrs_mut();
        attrs.__bindgen_anon_1.sample_period = clock.period_ns;
        attrs.sample_type = clock.format.sample_type();
        attrs.sample_regs_user = clock.format.sample_regs_user();
        attrs.sample_stack_user = if clock.format.sample_regs_user() != 0 { clock.stack_bytes } else { 0 };
        attrs.set_exclude_callchain_user(u64::from(!clock.user_chain));
        attrs.set_exclude_kernel(u64::from(!clock.kernel));
        attrs.set_exclude_callchain_kernel(u64::from(!clock.kernel));
        attrs.set_exclude_idle(1);
        attrs.set_inherit(u64::from(matches!(scope, Scope::Task { .. })));
        Self::open(builder, scope, clock.reports)
    }

    /// An event that never fires, and writes what it `reports`; it can own a ring.
    pub(crate) fn silent(scope: Scope<'_>, reports: EventReports) -> io::Result<Self> {
        let mut builder = Builder::new().kind(Software::DUMMY);
        let attrs = builder.attrs_mut();
        attrs.sample_type = RecordFormat::new(false).sample_type();
        Self::open(builder, scope, reports)
    }

    /// Wakes whoever waits for it each time that a thread has switched so often; not yet running.
    pub(crate) fn switch_alarm(tid: u32, switches: u64) -> io::Result<Self> {
        let mut builder = Builder::new().kind(Software::CONTEXT_SWITCHES);
        let attrs = builder.attrs_mut();
        attrs.__bindgen_anon_1.sample_period = switches;
        attrs.set_exclude_kernel(0); // where switches happen
        attrs.set_exclude_hv(0);
        Self::open(builder, Scope::Thread(tid), EventReports::Wakes)
    }

    /// Counts how often a CPU is switched from a task of a control group to one outside of it, or of another group within
    /// it; not yet running. It takes no samples.
    pub(crate) fn group_switches(folder: &File, cpu: u32) -> io::Result<Self> {
        let mut builder = Builder::new();
        let attrs = builder.attrs_mut();
        attrs.type_ = PERF_TYPE_SOFTWARE;
        attrs.config = u64::from(PERF_COUNT_SW_CGROUP_SWITCHES); // since Linux 5.13
        attrs.set_exclude_kernel(0);
        attrs.set_exclude_hv(0);
        Self::open(builder, Scope::Cgroup { folder, cpu }, EventReports::Own)
    }

    /// A tracepoint of one CPU, not yet running: a record each time it is passed. `number` is its number in tracefs.
    pub(crate) fn tracepoint(cpu: u32, number: u64) -> io::Result<Self> {
        let mut builder = Builder::new();
        let attrs = builder.attrs_mut();
        attrs.type_ = PERF_TYPE_TRACEPOINT;
        attrs.config = number;
        attrs.__bindgen_anon_1.sample_period = 1;
        attrs.sample_type = handler_trace::SAMPLE_TYPE;
        attrs.set_exclude_kernel(0);
        attrs.set_exclude_hv(0);
        Self::open(builder, Scope::Cpu(cpu), EventReports::Own)
    }

    fn open<'a>(mut builder: Builder<'a>, scope: Scope<'a>, reports: EventReports) -> io::Result<Self> {
        let attrs = builder.attrs_mut();
        attrs.set_sample_id_all(1);
        attrs.set_use_clockid(1);
        attrs.clockid = libc::CLOCK_MONOTONIC;
        attrs.read_format = 0;
        attrs.set_disabled(1);
        if reports == EventReports::Wakes {
            attrs.__bindgen_anon_2.wakeup_events = 1;
        } else {
            // Nobody waits for a wake-up: the rings are drained before they can fill. A wake-up would be one
            // more interrupt for the target.
            attrs.set_watermark(1);
            attrs.__bindgen_anon_2.wakeup_watermark = u32::MAX;
        }
        if matches!(reports, EventReports::Mappings | EventReports::SideRecords) {
            attrs.set_mmap(1);
            attrs.set_mmap2(1);
        }
        if matches!(reports, EventReports::Tasks | EventReports::SideRecords) {
            attrs.set_comm(1);
            attrs.set_comm_exec(1);
            attrs.set_task(1);
        }
        let builder = match scope {
            Scope::Task { tid, cpu } => builder.observe_pid(tid as libc::pid_t).one_cpu(cpu as usize),
            Scope::Thread(tid) => builder.observe_pid(tid as libc::pid_t).any_cpu(),
            Scope::Cpu(cpu) => builder.any_pid().one_cpu(cpu as usize),
            Scope::Cgroup { folder, cpu } => builder.observe_cgroup(folder).one_cpu(cpu as usize),
        };
        let event = Self(builder.build()?);
        // SAFETY: the descriptor is open as long as the counter, which outlives this call.
        let fd = unsafe { BorrowedFd::borrow_raw(event.fd()) };
        fcntl(fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
        Ok(event)
    }

    /// The kernel's number for the event; records carry it.
    pub(crate) fn id(&self) -> u64 {
        self.0.id()
    }

    /// The file descriptor, valid while the event lives.
    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// What a counting event has counted so far.
    pub(crate) fn count(&self) -> io::Result<u64> {
        let mut count = [0; 8];
        // SAFETY: the descriptor is open as long as the counter, which outlives this call.
        let fd = unsafe { BorrowedFd::borrow_raw(self.fd()) };
        let read = nix::unistd::read(fd, &mut count)?;
        if read == count.len() {
            Ok(u64::from_ne_bytes(count))
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }

    /// Starts it.
    pub(crate) fn enable(&mut self) -> io::Result<()> {
        self.0.enable()
    }

    /// Stops it.
    pub(crate) fn disable(&mut self) -> io::Result<()> {
        self.0.disable()
    }

    /// Changes the period of a running clock. The kernel restarts the countdown.
    pub(crate) fn set_period(&self, period_ns: u64) -> io::Result<()> {
        let mut period = period_ns;
        // The binding's type is wrong: the kernel wants a pointer to the period.
        // SAFETY: the descriptor is open, and the kernel reads eight bytes from a pointer that is valid for
        // the call.
        check(unsafe { libc::ioctl(self.fd(), PERF_EVENT_IOC_PERIOD, &raw mut period) })
    }

    /// Lets a tracepoint record only what `filter` holds for.
    pub(crate) fn set_filter(&self, filter: &CStr) -> io::Result<()> {
        // SAFETY: the descriptor is open, and the kernel copies a string that is valid for the call.
        check(unsafe { ioctls::SET_FILTER(self.fd(), filter.as_ptr().cast_mut()) })
    }

    /// Writes this event's records into the ring of `owner`, which must be on the same CPU.
    pub(crate) fn write_into(&self, owner: &Event) -> io::Result<()> {
        // SAFETY: both descriptors are open; the kernel checks that they fit together.
        check(unsafe { ioctls::SET_OUTPUT(self.fd(), owner.fd()) })
    }
}

/// `_IOW('$', 4, __u64)`.
const PERF_EVENT_IOC_PERIOD: libc::c_ulong = 0x4008_2404;

fn check(result: libc::c_int) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
