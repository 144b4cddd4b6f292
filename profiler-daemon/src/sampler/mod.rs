//! Where samples come from.

pub(crate) mod access;
pub(crate) mod handler_time;
pub(crate) mod handler_tracer;
pub(crate) mod interrupt_probe;
pub(crate) mod own_time;
pub(crate) mod perf;
mod report_sources;
mod reporters;
mod rereads;
mod rings;
pub(crate) mod session;
pub(crate) mod shared_reports;
pub(crate) mod source;
pub(crate) mod switches;
pub(crate) mod target_cpu;
pub(crate) mod timer_signal;
pub(crate) mod watch;

use config::Backend;

/// The kernel's tick (ns), if a backend's clocks only expire at ticks.
pub(crate) fn clock_tick_ns(backend: Backend) -> Option<u64> {
    match backend {
        Backend::Auto | Backend::Perf => perf::PerfSampler::NATURE.clock_tick_ns,
        Backend::TimerSignal => timer_signal::TimerSampler::nature().clock_tick_ns,
    }
}
