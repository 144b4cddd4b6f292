//! A run in parts: what was collected between two cuts, and the figures that go with it.

use profiler_core::attach::AttachMode;
use profiler_core::profile::RateChange;
use profiler_core::rate::{Account, Decision, FieldFigures, Prediction, SampleCost};

use super::Engine;
use crate::output::DecisionLog;
use crate::sampler::session::{Collected, Counts};
use crate::sampler::source::{ClockSettings, Nature};
use crate::sys::clock;

/// The figures of a run, or of a window of it.
#[derive(Clone)]
pub(crate) struct RunFigures {
    /// What sampling cost.
    pub(crate) account: Account,
    /// What a sample costs at the end of the part.
    pub(crate) cost: SampleCost,
    /// What the kernel's handler takes, where it was timed.
    pub(crate) handler: Option<FieldFigures>,
    /// Whether the kernel's handler was timed, or why not.
    pub(crate) handler_time: String,
    /// What the run was expected to cost.
    pub(crate) prediction: Prediction,
    /// The last decision, if there was time for one.
    pub(crate) decision: Option<Decision>,
    pub(crate) history: Vec<RateChange>,
    pub(crate) notes: Vec<String>,
    /// Whether there was no room for some unwind tables.
    pub(crate) lacks_tables: bool,
    pub(crate) how: SamplingMode,
    pub(crate) part: PartFigures,
    /// Our own CPU time before sampling began (ns).
    pub(crate) setup_cpu_ns: u64,
}

/// How samples were taken.
#[derive(Clone, Copy)]
pub(crate) struct SamplingMode {
    /// What took the samples.
    pub(crate) nature: Nature,
    pub(crate) attach_mode: AttachMode,
    pub(crate) settings: ClockSettings,
    /// Whether time in the kernel was sampled too.
    pub(crate) kernel_seen: bool,
}

/// What happened in a part of a run.
#[derive(Clone, Copy, Default)]
pub(crate) struct PartFigures {
    /// Wall-clock start (ns since the epoch).
    pub(crate) start_unix_ns: u64,
    /// Length (ns).
    pub(crate) duration_ns: u64,
    pub(crate) counts: Counts,
    /// CPU time the scheduler charged to the target (ns).
    pub(crate) target_cpu_ns: u64,
    /// The part of it while events sampled it (ns), if known.
    pub(crate) counted_ns: Option<u64>,
    /// Our own CPU time while sampling (ns).
    pub(crate) self_cpu_ns: u64,
}

/// Where the next part of the run begins.
#[derive(Clone, Copy, Default)]
pub(super) struct PartStart {
    start_unix_ns: u64,
    pub(super) start_ns: u64,
    counts: Counts,
    target_cpu_ns: u64,
    counted_ns: Option<u64>,
    self_cpu_ns: u64,
}

impl PartStart {
    /// What happened until `next` begins.
    fn until(&self, next: &Self) -> PartFigures {
        PartFigures {
            start_unix_ns: self.start_unix_ns,
            duration_ns: next.start_ns.saturating_sub(self.start_ns),
            counts: next.counts.since(&self.counts),
            target_cpu_ns: next.target_cpu_ns.saturating_sub(self.target_cpu_ns),
            counted_ns: next.counted_ns.zip(self.counted_ns).map(|(until, from)| until.saturating_sub(from)),
            self_cpu_ns: next.self_cpu_ns.saturating_sub(self.self_cpu_ns),
        }
    }
}

impl<L: DecisionLog> Engine<L> {
    /// What was collected since the last call or the beginning, with its figures; the next part of the run begins where this
    /// one ends: when the target's CPU time was read. A step reads it: calm ones are half a second apart, and the CPU time
    /// of a part would be that of another time than its samples.
    pub(crate) fn cut(&mut self) -> (Collected, RunFigures) {
        self.catch_up();
        self.step();
        let once = self.session.begin_once();
        let collected = self.session.cut(self.session.read_at_ns());
        let figures = self.take_figures(collected.span.end);
        self.session.spent_once(once);
        (collected, figures)
    }

    /// Ends the run: what was collected since the last cut or the beginning, its figures, and where its decisions went.
    pub(crate) fn end(mut self) -> (Collected, RunFigures, L) {
        let figures = self.take_figures(clock::monotonic_ns());
        (self.session.finish(), figures, self.log)
    }

    fn take_figures(&mut self, end_ns: u64) -> RunFigures {
        let next = self.part_from(end_ns);
        let part = std::mem::replace(&mut self.part, next);
        RunFigures {
            account: self.controller.take_account(),
            part: part.until(&next),
            history: self.take_history(),
            ..self.figures()
        }
    }

    /// The figures that do not depend on what was collected.
    pub(super) fn figures(&mut self) -> RunFigures {
        RunFigures {
            account: Account::default(),
            cost: self.controller.cost(),
            handler: self.controller.handler(),
            handler_time: self.costs.bursts.outcome(),
            prediction: *self.costs.prediction.prediction(),
            decision: self.last_decision,
            history: Vec::new(),
            notes: self.notes.clone(),
            lacks_tables: self.session.code.objects.lacks_tables(),
            how: SamplingMode {
                nature: self.nature,
                attach_mode: self.attaching.choice.mode(),
                settings: self.settings,
                kernel_seen: self.attaching.access.kernel,
            },
            part: PartFigures::default(),
            setup_cpu_ns: self.session.setup_cpu_ns(),
        }
    }

    /// The history so far; the next one starts with its last rate.
    fn take_history(&mut self) -> Vec<RateChange> {
        let going_on = self.history.last().map(|last| RateChange { at_s: 0.0, ..last.clone() });
        std::mem::replace(&mut self.history, going_on.into_iter().collect())
    }

    pub(super) fn part_from(&self, start_ns: u64) -> PartStart {
        let ago_ns = clock::monotonic_ns().saturating_sub(start_ns);
        PartStart {
            start_unix_ns: clock::unix_ns().saturating_sub(ago_ns),
            start_ns,
            counts: self.session.counts,
            target_cpu_ns: self.session.target_cpu_ns(),
            counted_ns: self.sampler.counted_ns(),
            self_cpu_ns: self.session.self_cpu_ns(),
        }
    }
}
