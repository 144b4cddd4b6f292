//! One step of a run: drain the rings, measure what sampling cost, decide, and adjust the clocks.

mod attaching;
mod calm;
mod members;
mod pace;
mod parts;
mod reports;
mod target_charges;
mod ways;

use std::sync::Arc;
use std::time::Duration;

use config::SamplingSettings;
use profiler_core::attach::{AttachChoice, AttachMode, EARLY_COST_NS};
use profiler_core::profile::RateChange;
use profiler_core::rate::{
    CostModel, Decision, Dither, RateController, RateReason, RateSettings, Reading, UnseenInterrupts,
};
use profiler_core::unwind::copy::CopySize;
use profiler_core::unwind::method::Method;

use self::attaching::Attaching;
pub(crate) use self::members::others_in;
use self::pace::StepPace;
use self::parts::PartStart;
pub(crate) use self::parts::{PartFigures, RunFigures, SamplingMode};
use self::reports::ReportWatch;
pub(crate) use self::target_charges::ShareStatus;
use self::target_charges::TargetCharges;
pub(crate) use self::ways::NON_TARGET_OWN_NS;
use super::cost_prediction::CostPrediction;
use crate::cgroup::Cgroup;
use crate::explain;
use crate::output::{DecisionLine, DecisionLog};
use crate::sampler::access::{Access, OpenError};
use crate::sampler::handler_time::HandlerBursts;
use crate::sampler::interrupt_probe::InterruptProbe;
use crate::sampler::perf::PerfSampler;
use crate::sampler::session::Session;
use crate::sampler::source::{Attachment, ClockSettings, Nature, Source, StartError};
use crate::sys::alarm::SwitchAlarm;
use crate::sys::{clock, procfs};

/// After a step that was late, the next one comes no sooner than this (ns).
const MIN_STEP_NS: u64 = 50_000_000;
/// Records younger than this may still be preceded by records on their way to another ring (ns).
const SETTLING_NS: u64 = 2_000_000;
/// How long after inheriting its parent's clocks a child is on record (ns). On a very busy machine it may
/// take longer; the child then has no clock until threads are listed again.
const BIRTH_NS: u64 = 1_000_000;
/// How often threads are listed again while clocks are renewed. Each listing only finds children of threads
/// that the one before found.
const GENERATIONS: usize = 3;
/// A drain reads at most 32 MiB of what agents have written; their rings hold 172 MiB together, and are written meanwhile.
const LAST_DRAINS: usize = 32;
/// Rate changes by the bucket below this (in logarithms) are left out of the history of the rate.
const WORTH_NOTING: f64 = 0.2;
/// Note for a host where interrupts cost more or less than when it was calibrated.
const INTERRUPTS_ARE_DEARER: &str = "interrupts cost more on this host than when it was calibrated, and the \
                                     cost of a sample was raised accordingly (interrupt_ratio in the \
                                     summary); if that persists on a quiet machine, run `sweetspot \
                                     calibrate`";
const INTERRUPTS_ARE_CHEAPER: &str = "interrupts cost less on this host than when it was calibrated, and \
                                      the cost of a sample was lowered accordingly (interrupt_ratio in the \
                                      summary); if that persists, run `sweetspot calibrate`";

/// How to attach at first, and what it depends on.
pub(crate) struct Attach {
    /// What is permitted.
    pub(crate) access: Access,
    /// Which attach mode.
    pub(crate) choice: AttachChoice,
    /// What is attached to.
    pub(crate) attachment: Attachment,
    /// The target's control group, if events of a group are possible.
    pub(crate) group: Option<Arc<Cgroup>>,
    /// What samples and switches cost.
    pub(crate) costs: CostModel,
    /// What the run will cost.
    pub(crate) cost_prediction: CostPrediction,
    /// CPUs that other processes kept busy while the target was watched.
    pub(crate) others_cpus: Option<f64>,
    /// What takes the samples instead of perf events, if anything does.
    pub(crate) source: Option<Box<dyn Source>>,
}

/// What sampling costs, and what measures it while sampling.
struct Costs {
    model: CostModel,
    prediction: CostPrediction,
    bursts: HandlerBursts,
    unseen: UnseenInterrupts,
    /// None where samples are not taken by interrupts of clocks.
    interrupts: Option<InterruptProbe>,
}

/// A run in progress.
pub(crate) struct Engine<L> {
    pub(crate) sampler: Box<dyn Source>,
    pub(crate) nature: Nature,
    pub(crate) session: Session,
    pub(crate) controller: RateController,
    pub(crate) log: L,
    pub(crate) history: Vec<RateChange>,
    pub(crate) notes: Vec<String>,
    settings: ClockSettings,
    last_decision: Option<Decision>,
    part: PartStart,
    pace: StepPace,
    attaching: Attaching,
    costs: Costs,
    reports: ReportWatch,
    shares: TargetCharges,
}

impl<L: DecisionLog> Engine<L> {
    pub(crate) fn open(
        session: Session,
        controller: RateController,
        how: Attach,
        dither: Dither,
        log: L,
    ) -> Result<Self, OpenError> {
        let settings = ClockSettings {
            period_ns: period_ns(controller.rate_hz()),
            method: session.stacks.method(),
            stack_bytes: CopySize::default().bytes(),
            mappings: true,
        };
        let mut sampler = match how.source {
            Some(source) => source,
            None => Box::new(PerfSampler::open(how.access, how.attachment, settings, dither)?),
        };
        sampler.begin_with(settings, &how.costs);
        let nature = sampler.nature();
        let bursts = match nature.times_itself {
            true => HandlerBursts::by_itself(),
            false => HandlerBursts::new(how.costs.per_handler_ns.is_some()),
        };
        Ok(Self {
            sampler,
            nature,
            session,
            controller,
            log,
            history: Vec::new(),
            notes: Vec::new(),
            settings,
            last_decision: None,
            part: PartStart::default(),
            pace: StepPace::default(),
            attaching: Attaching::new(how.access, how.choice, how.group, how.others_cpus),
            costs: Costs {
                model: how.costs,
                prediction: how.cost_prediction,
                bursts,
                unseen: UnseenInterrupts::default(),
                interrupts: None,
            },
            reports: ReportWatch::default(),
            shares: TargetCharges::default(),
        })
    }

    /// Starts the clocks. Their records are read later, so nothing is missed while existing mappings are read.
    pub(crate) fn start_clocks(&mut self) -> Result<(), StartError> {
        self.sampler.start()
    }

    /// Attaches to threads that started while the first ones were attached to. Where the clocks cannot be renewed for them,
    /// the first ones go on.
    pub(crate) fn catch_up_with_threads(&mut self) -> Result<(), OpenError> {
        let threads = self.threads();
        if self.sampler.unattached(threads.clone()).is_empty() {
            return Ok(());
        }
        match self.renew(Attachment::Tasks(threads), self.settings) {
            Err(error @ (OpenError::TooManyEvents { .. } | OpenError::Other(_))) => {
                self.note(explain::not_renewed(error));
                Ok(())
            }
            renewed => renewed,
        }
    }

    /// Reopens the clocks under these settings; if that fails, the old ones go on under theirs. Threads that were
    /// born before the new clock of their parent ran get a clock before the old ones stop, because inherited clocks end with those.
    fn renew(&mut self, attachment: Attachment, settings: ClockSettings) -> Result<(), OpenError> {
        self.sampler.open_incoming(attachment, settings)?;
        self.settings = settings;
        let attached = self.attach_to_latecomers();
        self.sampler.close_outgoing();
        attached
    }

    fn attach_to_latecomers(&mut self) -> Result<(), OpenError> {
        for _ in 0..GENERATIONS {
            if !matches!(self.sampler.attachment(), Attachment::Tasks(_)) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_nanos(BIRTH_NS + SETTLING_NS)); // by then every earlier birth is recorded
            self.drain(clock::monotonic_ns().saturating_sub(SETTLING_NS));
            let new_threads = self.sampler.unattached(self.threads());
            if new_threads.is_empty() {
                return Ok(());
            }
            self.sampler.attach_more(&new_threads)?;
        }
        Ok(())
    }

    /// Takes in what the events have reported, except for what may still be on its way; says until when (ns).
    pub(crate) fn catch_up(&mut self) -> u64 {
        let until_ns = clock::monotonic_ns().saturating_sub(self.settling_ns());
        self.drain(until_ns);
        until_ns
    }

    fn drain(&mut self, until_ns: u64) {
        self.session.refresh_code();
        let session = &mut self.session;
        self.sampler.drain(until_ns, &mut |drained| session.handle(drained));
    }

    /// Starts counting samples, CPU time and overhead.
    pub(crate) fn begin(&mut self) {
        self.session.begin();
        self.part = self.part_from(clock::monotonic_ns());
        self.context_switches(); // earlier ones do not count
        let now_ns = clock::monotonic_ns();
        (self.pace.stepped_ns, self.pace.next_step_ns) = (now_ns, now_ns + self.next_pause_ns());
        self.costs.bursts.begin_run(now_ns);
        self.begin_ways(now_ns);
        self.costs.interrupts =
            (!self.nature.times_itself).then(|| InterruptProbe::start(self.attaching.access));
        self.pace.alarm = SwitchAlarm::new(EARLY_COST_NS, self.costs.model.per_switch_ns.mean_ns).ok();
        self.set_alarm();
        self.session.set_prices(self.controller.parts_ns());
        let decision = self.controller.start(now_ns);
        self.note_rate(&decision);
        self.write_decision(&decision);
    }

    /// Drains the rings, and takes a step if one is due, or will be soon.
    pub(crate) fn turn(&mut self) {
        let slack_ns = self.slack_ns();
        let now_ns = clock::monotonic_ns();
        let samples_before = self.session.counts.samples;
        self.drain(now_ns.saturating_sub(self.settling_ns()));
        self.pace.samples_came = self.session.counts.samples > samples_before;
        self.time_handler(now_ns);
        let wakes_up = self.pace.samples_came && self.pace.resting.is_some_and(|rest| rest.quiet_steps > 0);
        let is_alarmed = self.pace.alarm.as_mut().is_some_and(SwitchAlarm::take_rung) || wakes_up;
        if is_alarmed {
            self.rouse();
        }
        let so_far = self.by_events(self.session.since_last_reading(now_ns));
        let is_due = now_ns + slack_ns >= self.pace.next_step_ns;
        if is_due || self.controller.overdrawn(&so_far) {
            let is_calm = is_due && !is_alarmed && self.is_calm(now_ns, &so_far);
            match is_calm {
                true => self.stay_calm(),
                false => self.step(),
            }
            let step_ns = self.next_pause_ns();
            let step_ns = if is_calm { self.calm_pause_ns(now_ns, step_ns) } else { step_ns };
            self.pace.next_step_ns =
                (self.pace.next_step_ns + step_ns).max(now_ns + MIN_STEP_NS.min(step_ns));
        }
        self.maintain(now_ns); // at once: if a step found the events too expensive, they cost on until they change
    }

    /// Times the kernel's handler in short bursts, if the budget allows.
    fn time_handler(&mut self, now_ns: u64) {
        let times = self.sampler.take_handler_times();
        if self.nature.times_itself {
            self.costs.bursts.note_times(times.len());
            return self.controller.observe_handler(&times);
        }
        let recent = &mut self.session.recent;
        let times = self.costs.bursts.proceed(now_ns, now_ns.saturating_sub(SETTLING_NS), recent);
        self.controller.observe_handler(&times);
        if self.costs.bursts.is_due(now_ns, recent) {
            let cost = HandlerBursts::cost(recent);
            let cost_ns = cost.interrupts as f64 * self.controller.cost().target.upper_ns()
                + cost.records as f64 * self.costs.model.per_trace_record_ns.upper_ns();
            if self.controller.has_room_for(cost_ns) {
                self.costs.bursts.begin_burst(now_ns, recent);
            }
        }
    }

    /// Events of whole CPUs or of a group are not inherited: a new task costs two records, its start and its end.
    fn by_events(&self, reading: Reading) -> Reading {
        match self.attaching.choice.mode() {
            AttachMode::Task => reading,
            AttachMode::Cpu | AttachMode::Cgroup => {
                Reading { side_records: reading.side_records + 2 * reading.forks, forks: 0, ..reading }
            }
        }
    }

    /// Continues with another budget or law, under the same events.
    pub(crate) fn adopt(&mut self, sampling: &SamplingSettings) {
        self.controller.adopt(super::rate_settings(sampling));
    }

    /// Continues with another horizon (s of the target's CPU time), under the same settings otherwise.
    pub(crate) fn set_horizon(&mut self, sampling: &SamplingSettings, horizon_s: f64) {
        let settings = super::rate_settings(sampling);
        self.controller.adopt(RateSettings { horizon_s: Some(horizon_s), ..settings });
    }

    /// Stops sampling and drains what is left.
    pub(crate) fn stop(&mut self) {
        self.sampler.stop();
        for _ in 0..LAST_DRAINS {
            self.drain(u64::MAX);
            if !self.sampler.has_records() {
                break;
            }
        }
        let mut times = self.costs.bursts.finish(clock::monotonic_ns(), &mut self.session.recent);
        times.extend(self.sampler.take_handler_times());
        self.controller.observe_handler(&times);
        self.sampler.shortfalls().into_iter().for_each(|line| self.note(line));
        // The target is gone, so no further decision is logged.
        let decided = self.last_decision;
        self.step();
        self.last_decision = decided;
    }

    fn step(&mut self) {
        let now_ns = clock::monotonic_ns();
        let second_is_over = now_ns >= self.pace.next_second_ns;
        if second_is_over {
            self.each_second(now_ns);
        }
        self.judge_lost(now_ns);
        let is_idle = self.pace.resting.is_some_and(|rest| rest.quiet_steps > 0 && rest.is_idle);
        let looks =
            (second_is_over || self.sampler.few_threads() || self.attaching.switches.linger()) && !is_idle;
        let (switches, attached_anew) = if looks { self.look_at_attach(now_ns) } else { (0, false) };
        let reading = self.session.reading(switches);
        self.look_at_others(now_ns);
        if let Some(rest) = &mut self.pace.resting {
            rest.is_idle = reading.target_cpu_ns == 0;
        }
        self.costs.prediction.observe(&reading, self.session.elapsed_ns());
        let burst = self.costs.bursts.take_spent();
        let reading = Reading {
            lost: reading.lost + burst.interrupts,
            unseen: self.unseen_interrupts(&reading),
            trace_records: burst.records,
            ..self.by_events(reading)
        };
        self.look_at_interrupts();
        let decision = self.controller.step(&reading, &self.session.take_shares());
        self.session.set_prices(self.controller.parts_ns());
        if attached_anew {
            self.controller.attached_anew(); // the cost of the old way is spent, and says nothing about the new one
        }
        if decision.period_ns != self.settings.period_ns {
            self.settings.period_ns = decision.period_ns;
            self.sampler.set_period(decision.period_ns);
            self.note_rate(&decision);
        }
        self.sampler.redraw();
        if decision.reason != RateReason::Hold && decision.reason != RateReason::Fixed || second_is_over {
            self.write_decision(&decision);
        }
        self.last_decision = Some(decision);
        if second_is_over {
            self.session.keep_within_bounds();
        }
    }

    /// Interrupts of the step in the kernel's code, where that may not be sampled. Timer signals wait until it is left.
    fn unseen_interrupts(&mut self, reading: &Reading) -> u64 {
        if self.attaching.access.kernel || self.nature.runs_in_target {
            return 0;
        }
        let came = reading.samples + reading.lost;
        self.costs.unseen.observe(reading.target_cpu_ns, self.settings.period_ns, came)
    }

    /// Updates the cost of interrupts on this host, which may have changed since the calibration.
    fn look_at_interrupts(&mut self) {
        if let Some(cpu) = self.session.recent.cpu() {
            InterruptProbe::sampled_on(cpu);
        }
        let Some(times_ns) = self.costs.interrupts.as_mut().and_then(InterruptProbe::take) else { return };
        self.controller.observe_interrupts(&times_ns);
        let ratio = self.controller.interrupt_ratio();
        self.note_while(INTERRUPTS_ARE_DEARER, ratio > 1.0);
        self.note_while(INTERRUPTS_ARE_CHEAPER, ratio < 1.0);
    }

    /// Separates lost samples from other lost records.
    fn judge_lost(&mut self, now_ns: u64) {
        self.pace.stepped_ns = now_ns;
        self.session.set_most_hz(self.sampler.cpus() as f64 * 1e9 / self.settings.period_ns.max(1) as f64);
        self.session.judge_lost(now_ns);
    }

    /// Adds a change of the rate to the profile's history; of what changes in every step, the anytime law and the bucket, only
    /// the large ones.
    fn note_rate(&mut self, decision: &Decision) {
        let last_hz = self.history.last().map_or(0.0, |change| change.rate_hz);
        let small = (decision.rate_hz / last_hz).ln().abs() < WORTH_NOTING;
        if small && matches!(decision.reason, RateReason::Hold | RateReason::Throttle | RateReason::Release) {
            return;
        }
        self.history.push(RateChange {
            at_s: clock::monotonic_ns().saturating_sub(self.part.start_ns) as f64 / 1e9,
            rate_hz: decision.rate_hz,
            reason: decision.reason.as_str().to_owned(),
        });
    }

    fn write_decision(&mut self, decision: &Decision) {
        let account = self.controller.account();
        let line = DecisionLine {
            decision,
            at_s: self.session.elapsed_ns() as f64 / 1e9,
            target_spend_s: account.target_spend_s(),
            others_spend_s: account.others_spend_s(),
            unwind: self.settings.method,
            stack_copy_bytes: self.settings.copied_bytes(),
            attach_mode: self.attaching.choice.mode(),
            clocks: self.sampler.clock_count(),
        };
        self.log.decision(&line);
    }

    /// Adds a note for the user, once.
    pub(crate) fn note(&mut self, line: String) {
        if !self.notes.contains(&line) {
            self.notes.push(line);
        }
    }

    /// Shows a note for the user while a condition holds.
    fn note_while(&mut self, line: &str, is_so: bool) {
        match is_so {
            true => self.note(line.to_owned()),
            false => self.notes.retain(|note| note != line),
        }
    }

    /// Follows children that the followed processes had created before, until no new ones are found.
    pub(crate) fn adopt_descendants(&mut self) {
        for _ in 0..GENERATIONS {
            let followed: Vec<u32> = self.session.processes.live().map(|(pid, _)| pid).collect();
            let found = procfs::descendants(&followed);
            if found.is_empty() {
                return;
            }
            for child in found {
                let read = self.session.adopt_child(child);
                explain::child(child.pid, read, &mut self.notes);
            }
        }
    }

    /// The name of a process of the target, for messages.
    pub(crate) fn name_of(&self, pid: u32) -> String {
        format!("{} ({pid})", procfs::comm(pid).unwrap_or_default())
    }

    /// How events are attached.
    pub(crate) fn attach_mode(&self) -> AttachMode {
        self.attaching.choice.mode()
    }

    /// How stacks are unwound.
    pub(crate) fn method(&self) -> Method {
        self.settings.method
    }

    /// The latest rate that the law, the budget and the caps gave.
    pub(crate) fn optimum_rate_hz(&self) -> Option<f64> {
        self.last_decision.map(|decision| decision.terms.optimum_rate_hz)
    }

    fn threads(&self) -> Vec<u32> {
        self.session.processes.live().flat_map(|(pid, _)| procfs::threads(pid)).collect()
    }
}

fn period_ns(rate_hz: f64) -> u64 {
    (1e9 / rate_hz).round() as u64
}
