//! The tracepoints around the kernel's handler that writes our samples. While they are on, they show how long it takes.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use profiler_core::handler_trace::{CpuTrace, HandledSample, TraceLayout};
use profiler_core::rate::HandlerTime;
use profiler_core::sorter::RecordQueue;

use crate::sys::limits::{self, OnlineCpu};
use crate::sys::perf_event::Event;
use crate::sys::ring::PerfRing;
use crate::sys::tracefs;

/// Mount points of tracefs: the usual one, and that of older kernels.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
const ENTRY: &str = "events/timer/hrtimer_expire_entry/format";
const EXIT: &str = "events/timer/hrtimer_expire_exit/format";
/// Holds the records of a burst. What does not fit is lost, and counted.
const RING_BYTES: usize = 64 << 10;
/// Interrupts that it takes to switch the tracepoints of a CPU on and off again.
pub(crate) const SWITCHES: u64 = 4;

/// Why the handler cannot be timed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unavailable {
    /// There is no tracefs, or no permission to read it.
    #[error(
        "the kernel's tracepoints cannot be read ({0}); as root, `mount -t tracefs nodev /sys/kernel/tracing` shows them"
    )]
    NoTracefs(#[source] io::Error),
    /// The tracepoints have an unknown layout.
    #[error("this kernel's tracepoints hrtimer_expire_entry and hrtimer_expire_exit have another layout")]
    UnknownLayout,
    /// The events were refused.
    #[error("the kernel refused events for its tracepoints ({0}); root, or CAP_PERFMON, may have them")]
    Refused(#[source] io::Error),
}

/// The tracepoints, on the CPUs where they were needed so far.
///
/// Once opened they stay open, switched off: opening and closing changes the kernel's code, which interrupts every CPU.
/// While off, they cost each timer some nanoseconds.
pub(crate) struct HandlerTracer {
    layout: TraceLayout,
    cpus: BTreeMap<u32, CpuTracer>,
    /// The CPUs that were online then.
    online: Vec<OnlineCpu>,
    /// The CPUs where the tracepoints are on.
    running: Vec<u32>,
    /// The handler's address, once samples have shown it: entries of other timers are then filtered out.
    handler: Option<u64>,
}

/// The result of a burst.
#[derive(Debug, Default)]
pub(crate) struct Traced {
    /// For those samples that lie in a bracket.
    pub(crate) times: Vec<HandlerTime>,
    /// Records that the tracepoints made, lost ones too.
    pub(crate) records: u64,
}

/// Finds the two tracepoints in tracefs, which is mounted privately if it is mounted nowhere.
fn layout() -> Result<TraceLayout, Unavailable> {
    let read = |folder: &Path| -> io::Result<(String, String)> {
        Ok((fs::read_to_string(folder.join(ENTRY))?, fs::read_to_string(folder.join(EXIT))?))
    };
    let (own, older) = (read(Path::new(TRACEFS[0])), || read(Path::new(TRACEFS[1])));
    let unseen = || {
        let mount = tracefs::mounted_nowhere()?;
        read(Path::new(&format!("/proc/self/fd/{}", mount.as_raw_fd())))
    };
    let found = own.or_else(|error| older().or_else(|_| unseen()).map_err(|_| error));
    let (entry, exit) = found.map_err(Unavailable::NoTracefs)?;
    TraceLayout::parse(&entry, &exit).ok_or(Unavailable::UnknownLayout)
}

impl HandlerTracer {
    /// Finds the tracepoints; nothing is opened yet.
    pub(crate) fn find() -> Result<Self, Unavailable> {
        let (layout, online) = (layout()?, Vec::new());
        Ok(Self { layout, cpus: BTreeMap::new(), online, running: Vec::new(), handler: None })
    }

    /// Switches the tracepoints on, on these CPUs except offline ones. After an error they are off everywhere.
    pub(crate) fn start(&mut self, cpus: &[u32]) -> Result<(), Unavailable> {
        self.stop();
        let online = limits::online();
        if self.online != online {
            self.cpus.clear(); // events of a CPU that went offline bring nothing when it is back
            self.online = online;
        }
        for &cpu in cpus {
            self.running.push(cpu);
            match self.start_on(cpu) {
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
                Err(error) => {
                    self.stop();
                    return Err(Unavailable::Refused(error));
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }

    fn start_on(&mut self, cpu: u32) -> io::Result<()> {
        if !self.cpus.contains_key(&cpu) {
            self.cpus.insert(cpu, CpuTracer::open(cpu, &self.layout)?);
        }
        self.cpus.get_mut(&cpu).map_or(Ok(()), |tracer| tracer.start(self.handler))
    }

    /// Switches the tracepoints off.
    pub(crate) fn stop(&mut self) {
        for cpu in self.running.drain(..) {
            if let Some(tracer) = self.cpus.get_mut(&cpu) {
                tracer.stop();
            }
        }
    }

    /// Handler times since the last call. `samples` must be all that were taken while the tracepoints were on.
    pub(crate) fn collect(&mut self, samples: &[HandledSample]) -> Traced {
        let layout = &self.layout;
        let traces: BTreeMap<u32, CpuTrace> =
            self.cpus.iter_mut().map(|(&cpu, tracer)| (cpu, tracer.read(layout))).collect();
        let mut times = Vec::new();
        for sample in samples {
            let bracket = traces.get(&sample.cpu).and_then(|trace| trace.around(sample.at_ns));
            let Some(bracket) = bracket else { continue };
            self.handler.get_or_insert(bracket.function);
            times.push(sample.timed(bracket));
        }
        Traced { times, records: traces.values().map(CpuTrace::records).sum() }
    }
}

/// The two tracepoints of a CPU and the ring that both write into.
struct CpuTracer {
    entry: Event,
    exit: Event,
    ring: PerfRing,
    filtered: bool,
}

impl CpuTracer {
    fn open(cpu: u32, layout: &TraceLayout) -> io::Result<Self> {
        let [entry, exit] = layout.numbers();
        let (entry, exit) = (Event::tracepoint(cpu, entry)?, Event::tracepoint(cpu, exit)?);
        let ring = PerfRing::map(entry.fd(), RING_BYTES)?;
        exit.write_into(&entry)?;
        Ok(Self { entry, exit, ring, filtered: false })
    }

    fn start(&mut self, handler: Option<u64>) -> io::Result<()> {
        if let Some(address) = handler.filter(|_| !self.filtered) {
            let filter = CString::new(format!("function == {address:#x}"))?;
            // Without the filter there are more records, and nothing else changes.
            let _ = self.entry.set_filter(&filter);
            self.filtered = true;
        }
        self.exit.enable()?;
        self.entry.enable()
    }

    fn stop(&mut self) {
        let _ = (self.entry.disable(), self.exit.disable()); // what cannot be stopped ends with its descriptor
    }

    fn read(&mut self, layout: &TraceLayout) -> CpuTrace {
        let mut trace = CpuTrace::default();
        while let Some(raw) = self.ring.front() {
            trace.record(layout, &raw);
            self.ring.pop();
        }
        trace
    }
}
