//! When the kernel's handler is timed in a run: in short bursts, now and then, on the CPUs where the target runs.

use profiler_core::handler_trace::HandledSample;
use profiler_core::rate::{BurstSchedule, HandlerTime};
use rustc_hash::FxHashSet;

use super::handler_tracer::{HandlerTracer, SWITCHES, Traced, Unavailable};

/// Most CPUs of a burst; a target on more of them is timed on some.
const MOST_CPUS: usize = 16;

/// The target's recent samples, as needed to time their handlers.
#[derive(Debug, Default)]
pub(crate) struct RecentSamples {
    /// Where the target was sampled since the last burst.
    cpus: FxHashSet<u32>,
    /// Where it was sampled last.
    cpu: Option<u32>,
    /// The samples of a burst.
    samples: Vec<HandledSample>,
    wanted: bool,
}

impl RecentSamples {
    /// Notes a sample.
    pub(crate) fn note(&mut self, sample: HandledSample) {
        self.cpus.insert(sample.cpu);
        self.cpu = Some(sample.cpu);
        if self.wanted {
            self.samples.push(sample);
        }
    }

    /// Where the target was sampled last.
    pub(crate) fn cpu(&self) -> Option<u32> {
        self.cpu
    }

    /// Keeps samples from now on.
    pub(crate) fn keep(&mut self) {
        self.wanted = true;
    }

    /// The kept samples; no more are kept.
    pub(crate) fn take(&mut self) -> Vec<HandledSample> {
        self.wanted = false;
        std::mem::take(&mut self.samples)
    }

    /// The target's CPUs since the last call, in order, limited to `MOST_CPUS`.
    fn take_cpus(&mut self) -> Vec<u32> {
        let mut cpus: Vec<u32> = self.cpus.drain().collect();
        cpus.sort_unstable();
        cpus.truncate(MOST_CPUS);
        cpus
    }

    fn cpu_count(&self) -> usize {
        self.cpus.len().min(MOST_CPUS)
    }
}

/// Why there are no times, for the summary.
#[derive(Debug, thiserror::Error)]
enum NoHandlerTime {
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    #[error("no handler of the kernel takes the samples")]
    ByItself,
    #[error("the calibration did not time it; `sweetspot calibrate` does, where the kernel allows it")]
    NotCalibrated,
}

#[derive(Debug)]
enum Phase {
    /// Nothing is on.
    Resting,
    /// The tracepoints are on until then (ns).
    Running { until_ns: u64 },
    /// They were switched off then (ns); samples may still be on their way.
    Settling { since_ns: u64 },
}

/// The bursts of a run.
pub(crate) struct HandlerBursts {
    tracer: Result<HandlerTracer, NoHandlerTime>,
    schedule: BurstSchedule,
    phase: Phase,
    /// Interrupts and records that bursts have cost since the last call of `take_spent`.
    spent: BurstCost,
    timed: u64,
    bursts: u64,
}

/// What bursts cost the tasks that they interrupted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BurstCost {
    /// Interrupts that switch tracepoints on and off.
    pub(crate) interrupts: u64,
    /// Records of the tracepoints.
    pub(crate) records: u64,
}

impl HandlerBursts {
    /// Bursts for a run; none before it begins, and none at all where the calibration did not time the handler, since
    /// there would be nothing to compare with.
    pub(crate) fn new(calibrated: bool) -> Self {
        let tracer = HandlerTracer::find().map_err(NoHandlerTime::from);
        let tracer = if calibrated { tracer } else { tracer.and(Err(NoHandlerTime::NotCalibrated)) };
        let (schedule, phase) = (BurstSchedule::default(), Phase::Resting);
        Self { tracer, schedule, phase, spent: BurstCost::default(), timed: 0, bursts: 0 }
    }

    /// No bursts: the handler itself reports its time with each sample.
    pub(crate) fn by_itself() -> Self {
        let (schedule, phase) = (BurstSchedule::default(), Phase::Resting);
        let tracer = Err(NoHandlerTime::ByItself);
        Self { tracer, schedule, phase, spent: BurstCost::default(), timed: 0, bursts: 0 }
    }

    /// Handlers have reported the times of this many samples.
    pub(crate) fn note_times(&mut self, times: usize) {
        self.timed += times as u64;
    }

    /// The run begins.
    pub(crate) fn begin_run(&mut self, now_ns: u64) {
        self.schedule.begin(now_ns);
    }

    /// What a burst would cost now: at most, if other timers are quiet.
    pub(crate) fn cost(recent: &RecentSamples) -> BurstCost {
        let cpus = recent.cpu_count() as u64;
        BurstCost { interrupts: SWITCHES * cpus, records: 2 * BurstSchedule::SAMPLES as u64 }
    }

    /// Whether it is time for a burst.
    pub(crate) fn is_due(&self, now_ns: u64, recent: &RecentSamples) -> bool {
        let due = matches!(self.phase, Phase::Resting) && self.schedule.is_due(now_ns);
        due && self.tracer.is_ok() && !recent.cpus.is_empty()
    }

    /// Begins a burst.
    pub(crate) fn begin_burst(&mut self, now_ns: u64, recent: &mut RecentSamples) {
        let Ok(tracer) = &mut self.tracer else { return };
        let cpus = recent.take_cpus();
        if let Err(error) = tracer.start(&cpus) {
            self.tracer = Err(error.into());
            return;
        }
        recent.keep();
        self.spent.interrupts += SWITCHES * cpus.len() as u64;
        self.bursts += 1;
        self.phase = Phase::Running { until_ns: now_ns.saturating_add(BurstSchedule::LENGTH_NS) };
    }

    /// When the burst ends (ns); `None` without one.
    pub(crate) fn ends_ns(&self) -> Option<u64> {
        match self.phase {
            Phase::Running { until_ns } => Some(until_ns),
            _ => None,
        }
    }

    /// Ends a burst that is over, and returns its handler times once all samples until `read_ns` have been read.
    pub(crate) fn proceed(
        &mut self,
        now_ns: u64,
        read_ns: u64,
        recent: &mut RecentSamples,
    ) -> Vec<HandlerTime> {
        match self.phase {
            Phase::Running { until_ns }
                if now_ns >= until_ns || recent.samples.len() >= BurstSchedule::SAMPLES =>
            {
                self.stop(now_ns);
                Vec::new()
            }
            Phase::Settling { since_ns } if read_ns >= since_ns => self.collect(now_ns, recent),
            _ => Vec::new(),
        }
    }

    /// Ends all bursts and hands out what the last one brought; all samples have been read.
    pub(crate) fn finish(&mut self, now_ns: u64, recent: &mut RecentSamples) -> Vec<HandlerTime> {
        if let Phase::Running { .. } = self.phase {
            self.stop(now_ns);
        }
        match self.phase {
            Phase::Settling { .. } => self.collect(now_ns, recent),
            _ => Vec::new(),
        }
    }

    fn stop(&mut self, now_ns: u64) {
        if let Ok(tracer) = &mut self.tracer {
            tracer.stop();
        }
        self.phase = Phase::Settling { since_ns: now_ns };
    }

    fn collect(&mut self, now_ns: u64, recent: &mut RecentSamples) -> Vec<HandlerTime> {
        let samples = recent.take();
        let traced =
            self.tracer.as_mut().map_or_else(|_| Traced::default(), |tracer| tracer.collect(&samples));
        self.spent.records += traced.records;
        self.timed += traced.times.len() as u64;
        self.phase = Phase::Resting;
        self.schedule.ended(now_ns);
        traced.times
    }

    /// What bursts have cost since the last call.
    pub(crate) fn take_spent(&mut self) -> BurstCost {
        std::mem::take(&mut self.spent)
    }

    /// For the summary: `measured`, or why not.
    pub(crate) fn outcome(&self) -> String {
        match &self.tracer {
            Err(NoHandlerTime::ByItself) if self.timed > 0 => "measured".to_owned(),
            Err(NoHandlerTime::ByItself) => "unavailable, because no sample was taken".to_owned(),
            Err(reason) => format!("unavailable, because {reason}"),
            Ok(_) if self.timed > 0 => "measured".to_owned(),
            Ok(_) if self.bursts > 0 => {
                format!(
                    "unavailable, because no sample lay between the tracepoints (bursts: {})",
                    self.bursts
                )
            }
            Ok(_) => {
                "unavailable, because the run was too short or the budget left no room for it".to_owned()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(cpu: u32) -> HandledSample {
        HandledSample { at_ns: 5, cpu, frames: 1, stack_bytes: 0 }
    }

    #[test]
    fn samples_are_kept_for_a_burst_alone_and_its_cpus_are_few() {
        let mut recent = RecentSamples::default();
        (0..100).for_each(|cpu| recent.note(sample(cpu)));
        assert_eq!(recent.cpu_count(), MOST_CPUS);
        assert_eq!(HandlerBursts::cost(&recent).interrupts, SWITCHES * MOST_CPUS as u64);
        assert_eq!(recent.take_cpus().len(), MOST_CPUS);
        assert_eq!((recent.cpu_count(), recent.take()), (0, Vec::new()));
        recent.keep();
        recent.note(sample(3));
        assert_eq!(recent.take(), [sample(3)]);
        recent.note(sample(4));
        assert_eq!(recent.take(), []);
    }

    #[test]
    fn without_a_calibrated_handler_there_is_no_burst_and_a_reason() {
        let (mut bursts, mut recent) = (HandlerBursts::new(false), RecentSamples::default());
        recent.note(sample(0));
        bursts.begin_run(0);
        assert!(!bursts.is_due(u64::MAX, &recent));
        assert!(bursts.outcome().starts_with("unavailable, because "), "{}", bursts.outcome());
        assert_eq!(bursts.finish(1, &mut recent), []);
    }

    /// Runs through a burst where it is permitted. Nobody samples, so it brings records and no times.
    #[test]
    fn a_burst_ends_by_itself_and_is_paid_for() {
        let (mut bursts, mut recent) = (HandlerBursts::new(true), RecentSamples::default());
        bursts.begin_run(0);
        let due_ns = 1_000_000_000;
        assert!(!bursts.is_due(due_ns, &recent), "no target, no burst");
        recent.note(sample(0));
        assert!(!bursts.is_due(due_ns - 1, &recent));
        if !bursts.is_due(due_ns, &recent) {
            return; // no tracepoints here
        }
        bursts.begin_burst(due_ns, &mut recent);
        let Some(ends_ns) = bursts.ends_ns() else {
            assert!(bursts.outcome().contains("refused"), "{}", bursts.outcome());
            return; // not permitted here
        };
        assert!(!bursts.is_due(u64::MAX - 1, &recent));
        assert_eq!(bursts.proceed(ends_ns - 1, ends_ns - 1, &mut recent), []);
        assert_eq!(bursts.ends_ns(), Some(ends_ns));
        bursts.proceed(ends_ns, ends_ns - 1, &mut recent);
        assert_eq!(bursts.ends_ns(), None);
        recent.note(sample(0));
        assert!(!bursts.is_due(u64::MAX - 1, &recent), "samples are still on their way");
        assert_eq!(bursts.proceed(ends_ns + 1, ends_ns, &mut recent), []);
        assert_eq!(bursts.take_spent().interrupts, SWITCHES);
        assert!(bursts.outcome().contains("bursts: 1"), "{}", bursts.outcome());
        assert!(bursts.is_due(u64::MAX - 1, &recent));
    }

    #[test]
    fn a_burst_that_the_run_cuts_short_is_collected() {
        let (mut bursts, mut recent) = (HandlerBursts::new(true), RecentSamples::default());
        bursts.begin_run(0);
        recent.note(sample(0));
        if bursts.is_due(1_000_000_000, &recent) {
            bursts.begin_burst(1_000_000_000, &mut recent);
        }
        assert_eq!(bursts.finish(1_000_000_001, &mut recent), []);
        assert_eq!(bursts.ends_ns(), None);
    }
}
