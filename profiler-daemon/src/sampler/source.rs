//! The source of a run's samples: perf events, or timers inside of the threads.

use std::io;

use profiler_core::rate::HandlerTime;

use super::access::OpenError;
use super::perf::{Attachment, ClockSettings, Drained, PerfSampler};
use super::shared_reports::SharedReports;
use super::timer_signal::TimerSampler;
use crate::inject::Refused;

/// Why the clocks do not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// The kernel starts no event.
    #[error(transparent)]
    Events(#[from] io::Error),
    /// The process cannot take an agent; the message names the process.
    #[error("no agent can be loaded into the process")]
    Refused(Refused),
}

/// One of the two sources.
pub(crate) enum Source {
    /// The kernel takes the samples.
    Perf(Box<PerfSampler>),
    /// An agent in each process does.
    Timers(Box<TimerSampler>),
}

/// Calls a method of whichever source it is.
macro_rules! either {
    ($source:expr, $one:ident => $answer:expr) => {
        match $source {
            Source::Perf($one) => $answer,
            Source::Timers($one) => $answer,
        }
    };
}

impl Source {
    /// Whether samples are taken inside of the target's processes.
    pub(crate) fn is_inside(&self) -> bool {
        match self {
            Self::Perf(_) => false,
            Self::Timers(_) => true,
        }
    }

    /// Starts the clocks.
    pub(crate) fn start(&mut self) -> Result<(), StartError> {
        match self {
            Self::Perf(perf) => Ok(perf.start()?),
            Self::Timers(timers) => timers.start().map_err(StartError::Refused),
        }
    }

    /// A sign of life for agents, which sample less without one; for use after long work.
    pub(crate) fn beat(&mut self) {
        match self {
            Self::Perf(_) => {}
            Self::Timers(timers) => timers.beat(),
        }
    }

    /// Stops the clocks for good.
    pub(crate) fn stop(&mut self) {
        either!(self, one => one.stop());
    }

    /// See [`PerfSampler::open_incoming`]. Timers only change their settings; new threads already have theirs.
    pub(crate) fn open_incoming(
        &mut self,
        attachment: Attachment,
        settings: ClockSettings,
    ) -> Result<(), OpenError> {
        match self {
            Self::Perf(perf) => perf.open_incoming(attachment, settings),
            Self::Timers(timers) => {
                timers.set_copy(settings);
                Ok(())
            }
        }
    }

    /// See [`PerfSampler::attach_more`].
    pub(crate) fn attach_more(&mut self, threads: &[u32]) -> Result<(), OpenError> {
        match self {
            Self::Perf(perf) => perf.attach_more(threads),
            Self::Timers(_) => Ok(()),
        }
    }

    /// See [`PerfSampler::close_outgoing`].
    pub(crate) fn close_outgoing(&mut self) {
        match self {
            Self::Perf(perf) => perf.close_outgoing(),
            Self::Timers(_) => {}
        }
    }

    /// See [`PerfSampler::counted_ns`]; `None` for timers.
    pub(crate) fn counted_ns(&self) -> Option<u64> {
        match self {
            Self::Perf(perf) => perf.counted_ns(),
            Self::Timers(_) => None,
        }
    }

    /// Sets the mean period of all clocks, each when it is its turn.
    pub(crate) fn set_period(&mut self, period_ns: u64) {
        either!(self, one => one.set_period(period_ns));
    }

    /// Draws the time until the next redraw (ns).
    pub(crate) fn draw_step_ns(&mut self) -> u64 {
        either!(self, one => one.draw_step_ns())
    }

    /// Draws new periods for those clocks that are due; timers do so by themselves.
    pub(crate) fn redraw(&mut self) {
        match self {
            Self::Perf(perf) => perf.redraw(),
            Self::Timers(_) => {}
        }
    }

    /// Hands over every record made until `until_ns`, in time order.
    pub(crate) fn drain(&mut self, until_ns: u64, handle: impl FnMut(Drained<'_>)) {
        either!(self, one => one.drain(until_ns, handle));
    }

    /// What handlers that time themselves have taken since the last call.
    pub(crate) fn take_handler_times(&mut self) -> Vec<HandlerTime> {
        match self {
            Self::Perf(_) => Vec::new(),
            Self::Timers(timers) => timers.take_handler_times(),
        }
    }

    /// How long the rings take to fill to a quarter at the present rate, if everything is busy (ns).
    pub(crate) fn time_to_fill_ns(&self) -> u64 {
        either!(self, one => one.time_to_fill_ns())
    }

    /// Memory of the rings that the kernel keeps (bytes).
    pub(crate) fn ring_bytes(&self) -> u64 {
        match self {
            Self::Perf(perf) => perf.ring_bytes(),
            Self::Timers(_) => 0, // the agents' memory is resident
        }
    }

    /// See [`PerfSampler::share_reports`].
    pub(crate) fn share_reports(&mut self, shared: &SharedReports) {
        match self {
            Self::Perf(perf) => perf.share_reports(shared.clone()),
            Self::Timers(_) => {}
        }
    }

    /// CPUs that are sampled.
    pub(crate) fn cpus(&self) -> usize {
        either!(self, one => one.cpus())
    }

    /// Whether there is a record to be handed over.
    pub(crate) fn has_records(&self) -> bool {
        either!(self, one => one.has_records())
    }

    /// Clocks that run.
    pub(crate) fn clock_count(&self) -> usize {
        match self {
            Self::Perf(perf) => perf.clock_count(),
            Self::Timers(timers) => timers.threads(),
        }
    }

    /// Whether the clocks are attached to few threads, whose switches can be read often.
    pub(crate) fn few_threads(&self) -> bool {
        match self {
            Self::Perf(perf) => perf.few_threads(),
            Self::Timers(_) => false,
        }
    }

    /// What the clocks are attached to.
    pub(crate) fn attachment(&self) -> &Attachment {
        match self {
            Self::Perf(perf) => perf.attachment(),
            Self::Timers(_) => &Attachment::Inside,
        }
    }

    /// Those of these threads without a clock of their own.
    pub(crate) fn unattached(&self, threads: Vec<u32>) -> Vec<u32> {
        match self {
            Self::Perf(perf) => perf.unattached(threads),
            Self::Timers(_) => Vec::new(),
        }
    }

    /// See [`PerfSampler::take_refused`].
    pub(crate) fn take_refused(&mut self) -> Option<io::Error> {
        match self {
            Self::Perf(perf) => perf.take_refused(),
            Self::Timers(_) => None,
        }
    }

    /// What could not be sampled, for the person: lines.
    pub(crate) fn shortfalls(&self) -> Vec<String> {
        match self {
            Self::Perf(_) => Vec::new(),
            Self::Timers(timers) => timers.shortfalls(),
        }
    }

    /// The name of the event that is sampled.
    pub(crate) fn event(&self) -> &'static str {
        match self {
            Self::Perf(_) => "cpu-clock",
            Self::Timers(_) => "timer-signal",
        }
    }

    /// Whether CPUs have come or gone since the clocks were opened.
    pub(crate) fn cpus_changed(&self) -> bool {
        match self {
            Self::Perf(perf) => perf.cpus_changed(),
            Self::Timers(_) => false,
        }
    }
}
