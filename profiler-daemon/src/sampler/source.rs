//! The source of a run's samples: perf events, or timers inside of the threads.

use std::io;
use std::sync::Arc;

use profiler_core::rate::{CostModel, HandlerTime};
use profiler_core::record::Record;
use profiler_core::unwind::method::Method;

use super::access::OpenError;
use super::shared_reports::{ReportClaim, SharedReports};
use crate::cgroup::Cgroup;
use crate::inject::InjectionRefused;

/// What the clocks are attached to.
#[derive(Clone, Debug)]
pub(crate) enum Attachment {
    /// Whole CPUs; samples of non-target processes are thrown away.
    Cpus,
    /// A control group and all below it.
    Cgroup(Arc<Cgroup>),
    /// These threads and all that they create.
    Tasks(Vec<u32>),
    /// The source's code runs in the processes, and attaches itself: no event of ours is attached to anything.
    ByItself,
}

/// Settings for the next clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClockSettings {
    /// Mean period (ns).
    pub(crate) period_ns: u64,
    /// How stacks are found.
    pub(crate) method: Method,
    /// Bytes of stack to copy.
    pub(crate) stack_bytes: u32,
    /// Whether mappings are reported; names, forks and exits always are.
    pub(crate) mappings: bool,
}

impl ClockSettings {
    /// Bytes of stack in force: none with frame pointers.
    pub(crate) fn copied_bytes(&self) -> u32 {
        if self.method.copies_stack() { self.stack_bytes } else { 0 }
    }
}

/// An item handed over by a drain.
pub(crate) enum Drained<'a> {
    /// A record; for a sample, the CPU time it stands for (ns).
    Record(Record<'a>, u64),
    /// A record that several targets read: the one that claims it pays for it.
    Report(Record<'a>, &'a ReportClaim),
    /// This many reports that no target claimed, for this one to pay for.
    Owed(u64),
    /// This many lost records that were not samples.
    LostReports(u64),
    /// A sample for time that another clock has sampled too: a cost and nothing else.
    Double,
    /// A record that could not be decoded.
    Undecodable,
}

/// Why the clocks do not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// The kernel starts no event.
    #[error(transparent)]
    Events(#[from] io::Error),
    /// The process cannot take an agent; the message names the process.
    #[error("no agent can be loaded into the process")]
    Refused(InjectionRefused),
}

/// What a run has to know of its source before it is opened: each item is a question that the code around it asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nature {
    /// What is sampled, for the profile.
    pub(crate) event: &'static str,
    /// Whether its code runs in the target's processes. What cannot load it is not sampled, and nothing may interrupt the profiler
    /// while it is loaded.
    pub(crate) runs_in_target: bool,
    /// Whether new threads and processes have a clock by themselves. Clocks are then never opened for them, and only change
    /// their settings.
    pub(crate) attaches_itself: bool,
    /// Whether its samples say what they cost, so that nothing else has to find that out.
    pub(crate) times_itself: bool,
    /// The kernel's tick (ns), if its clocks only expire at ticks.
    pub(crate) clock_tick_ns: Option<u64>,
    /// How its stacks can be unwound, if only in one way.
    pub(crate) unwinds: Option<Method>,
}

/// What takes the samples. A source hands them over as the records that the kernel would write, in time order, each with the CPU
/// time that it stands for.
///
/// What has a default is for sources that can do it, or need it.
pub(crate) trait Source {
    /// What to know about it.
    fn nature(&self) -> Nature;

    /// Everything that is sampled descends from this process.
    fn follow(&mut self, _pid: u32) {}

    /// What the first clocks are like and what samples cost, if it was not opened with that.
    fn begin_with(&mut self, _settings: ClockSettings, _costs: &CostModel) {}

    /// Starts the clocks.
    ///
    /// # Errors
    ///
    /// Why they do not start.
    fn start(&mut self) -> Result<(), StartError>;

    /// Stops the clocks for good.
    fn stop(&mut self);

    /// Opens new clocks, with other settings, for other threads or for the CPUs that are online now, and starts them next to the
    /// old ones; a source that attaches by itself only changes its settings. After an error everything is as before.
    ///
    /// # Errors
    ///
    /// Why they cannot be opened.
    fn open_incoming(&mut self, attachment: Attachment, settings: ClockSettings) -> Result<(), OpenError>;

    /// Sets the mean period of all clocks (ns), each when it is its turn.
    fn set_period(&mut self, period_ns: u64);

    /// Draws the time until the next redraw in a run of this age (ns).
    fn draw_step_ns(&mut self, age_ns: u64) -> u64;

    /// Hands over every record made until `until_ns`, in time order.
    fn drain(&mut self, until_ns: u64, handle: &mut dyn FnMut(Drained<'_>));

    /// Whether there is a record to be handed over.
    fn has_records(&self) -> bool;

    /// How long the rings take to fill to a quarter at the present rate, if everything is busy (ns).
    fn time_to_fill_ns(&self) -> u64;

    /// CPUs that are sampled.
    fn cpus(&self) -> usize;

    /// Clocks that run.
    fn clock_count(&self) -> usize;

    /// What the clocks are attached to.
    fn attachment(&self) -> &Attachment {
        &Attachment::ByItself
    }

    /// A sign of life for code in the target, which samples less without one; for use after long work.
    fn beat(&mut self) {}

    /// Attaches to more threads, next to those of the incoming clocks.
    ///
    /// # Errors
    ///
    /// Why clocks cannot be opened for them.
    fn attach_more(&mut self, _threads: &[u32]) -> Result<(), OpenError> {
        Ok(())
    }

    /// Stops the old clocks; the incoming ones alone count from now on.
    fn close_outgoing(&mut self) {}

    /// CPU time of the target while it had clocks (ns), if that is known.
    fn counted_ns(&self) -> Option<u64> {
        None
    }

    /// Draws new periods for those clocks that are due, if they do not do so by themselves.
    fn redraw(&mut self) {}

    /// What handlers that time themselves have taken since the last call.
    fn take_handler_times(&mut self) -> Vec<HandlerTime> {
        Vec::new()
    }

    /// Memory of the rings that the kernel keeps (bytes).
    fn ring_bytes(&self) -> u64 {
        0
    }

    /// Reads names, forks and exits on whole CPUs from `shared`; to be called before the clocks start.
    fn share_reports(&mut self, _shared: SharedReports) {}

    /// Whether the clocks are attached to so few threads that their switches can be read often.
    fn few_threads(&self) -> bool {
        false
    }

    /// Those of these threads without a clock of their own, except for those that were refused one.
    fn unattached(&self, _threads: Vec<u32>) -> Vec<u32> {
        Vec::new()
    }

    /// Why clocks could not be opened for some threads since the last call, if so.
    fn take_refused(&mut self) -> Option<io::Error> {
        None
    }

    /// What could not be sampled, in lines for the user.
    fn shortfalls(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether CPUs have come or gone since the clocks were opened.
    fn cpus_changed(&self) -> bool {
        false
    }
}
