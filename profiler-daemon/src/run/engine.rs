//! The loop's body: drain the rings, read off what it cost, decide, and change the clocks accordingly.

mod attaching;
mod members;

use std::sync::Arc;
use std::time::Duration;

use profiler_core::attach::{AttachChoice, AttachMode};
use profiler_core::profile::RateChange;
use profiler_core::rate::{
    Account, CostModel, Decision, Dither, FieldFigures, Prediction, RateController, Reading, Reason,
    SampleCost, TopShares,
};
use profiler_core::unwind::copy::CopySize;
use profiler_core::unwind::method::Method;
use serde::Serialize;

use self::attaching::Seen;
pub(crate) use self::members::others_in;
use super::explain;
use super::foresight::Foresight;
use crate::cgroup::Cgroup;
use crate::sampler::access::{Access, OpenError};
use crate::sampler::handler_time::HandlerBursts;
use crate::sampler::perf::{Attachment, ClockSettings, PerfSampler};
use crate::sampler::session::{Collected, Counts, Session};
use crate::sampler::switches::{GroupSwitches, Switches};
use crate::sys::alarm::SwitchAlarm;
use crate::sys::{clock, procfs};

/// The shortest time from one tick to the next, where the first was late.
const MIN_TICK_NS: u64 = 50_000_000;
/// Time between two looks at the rings where a sample's cost could jump: it must not go unseen for a whole tick.
const LOOK_NS: u64 = 25_000_000;
/// A jump by less than this factor cannot overspend the budget of a second within a tick.
const HARMLESS_JUMP: f64 = 2.0;
/// Records younger than this may still have older neighbours on their way to another ring (ns).
const SETTLING_NS: u64 = 2_000_000;
/// How often, while clocks are renewed, threads are looked for that were born meanwhile. Of a later look are only the
/// children of those that the look before found.
const GENERATIONS: usize = 3;
/// Length of a window of the profile (ns).
const WINDOW_NS: u64 = 500_000_000;
/// The longest pause of a target that rests is a tick, doubled so often: until then a burst is sampled at the rate that an idle
/// target is granted, which no burst turns into much.
const LONGEST_REST: u32 = 4;
/// What one target among many is early or late for no wake-up of its own (ns), and how often that is doubled while it rests.
const SLACK_NS: u64 = 20_000_000;
const LONGEST_SLACK: u32 = 5;
/// Changes by the bucket below this (in logarithms) are not entered into the history of the rate.
const WORTH_NOTING: f64 = 0.2;

/// Where control decisions go.
pub(crate) trait DecisionLog {
    /// A decision that is worth a line: a change, or the one that holds each second.
    fn decision(&mut self, line: &DecisionLine<'_>);
}

/// A decision and what it was made in: a line of `--stats`.
#[derive(Serialize)]
pub(crate) struct DecisionLine<'a> {
    /// The decision.
    #[serde(flatten)]
    pub(crate) decision: &'a Decision,
    at_s: f64,
    /// Spent since the start: charged to the target, and elsewhere (the profiler, samples of strangers).
    target_spend_s: f64,
    others_spend_s: f64,
    unwind: Method,
    stack_copy_bytes: u32,
    attach_mode: AttachMode,
    clocks: usize,
}

/// How to attach at first, and what that depends on.
pub(crate) struct Attach {
    /// What is permitted.
    pub(crate) access: Access,
    /// Which way.
    pub(crate) choice: AttachChoice,
    /// To what.
    pub(crate) attachment: Attachment,
    /// The target's control group, where its events are a way.
    pub(crate) group: Option<Arc<Cgroup>>,
    /// What samples and switches cost.
    pub(crate) costs: CostModel,
    /// What the run will cost.
    pub(crate) foresight: Foresight,
}

/// The figures of a run, or of a window of it.
pub(crate) struct Figures {
    /// What sampling cost.
    pub(crate) account: Account,
    /// What a sample costs at its end.
    pub(crate) cost: SampleCost,
    /// What the kernel's handler takes, where it was timed.
    pub(crate) handler: Option<FieldFigures>,
    pub(crate) history: Vec<RateChange>,
    pub(crate) notes: Vec<String>,
    pub(crate) settings: ClockSettings,
    pub(crate) attach_mode: AttachMode,
    /// What the run was expected to cost.
    pub(crate) prediction: Prediction,
    /// The last decision, if there was time for one.
    pub(crate) decision: Option<Decision>,
    /// Wall-clock start (ns since the epoch).
    pub(crate) start_unix_ns: u64,
    pub(crate) counts: Counts,
    /// Length (ns).
    pub(crate) duration_ns: u64,
    /// CPU time the scheduler charged to the target (ns).
    pub(crate) target_cpu_ns: u64,
    /// Our own CPU time while sampling (ns).
    pub(crate) self_cpu_ns: u64,
    /// Our own CPU time before that (ns).
    pub(crate) setup_cpu_ns: u64,
    /// Whether the kernel's handler was timed, or why not.
    pub(crate) handler_time: String,
    /// Whether time in the kernel was sampled too.
    pub(crate) kernel_seen: bool,
}

/// A run in progress.
pub(crate) struct Engine<L> {
    pub(crate) sampler: PerfSampler,
    pub(crate) session: Session,
    pub(crate) controller: RateController,
    pub(crate) log: L,
    pub(crate) history: Vec<RateChange>,
    pub(crate) notes: Vec<String>,
    access: Access,
    attach: AttachChoice,
    group: Option<Arc<Cgroup>>,
    costs: CostModel,
    foresight: Foresight,
    settings: ClockSettings,
    next_tick_ns: u64,
    next_window_ns: u64,
    adopted: (u64, u64),
    attach_changed: bool,
    cpus_changed: bool,
    members_changed: bool,
    /// Whether the last look at the rings found samples.
    samples_came: bool,
    last_decision: Option<Decision>,
    part: Part,
    next_second_ns: u64,
    seen: Seen,
    switches: Switches,
    group_switches: GroupSwitches,
    /// None before sampling begins, and where there can be none.
    alarm: Option<SwitchAlarm>,
    bursts: HandlerBursts,
    resting: Option<Rest>,
}

/// How long nothing has happened.
#[derive(Clone, Copy, Default)]
struct Rest {
    /// Samples and other records until the last tick.
    seen: u64,
    /// Ticks in a row without any, up to [`LONGEST_REST`].
    quiet_ticks: u32,
    /// Whether the target used no CPU time in the last of them: then it has not switched, either.
    is_idle: bool,
}

/// Where the part of the run began that is collected next.
#[derive(Clone, Copy, Default)]
struct Part {
    start_unix_ns: u64,
    start_ns: u64,
    counts: Counts,
    target_cpu_ns: u64,
    self_cpu_ns: u64,
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
            method: session.choice.method(),
            stack_bytes: CopySize::default().bytes(),
        };
        let sampler = PerfSampler::open(how.access, how.attachment, settings, dither)?;
        Ok(Self {
            sampler,
            session,
            controller,
            log,
            history: Vec::new(),
            notes: Vec::new(),
            access: how.access,
            attach: how.choice,
            group: how.group,
            costs: how.costs,
            foresight: how.foresight,
            settings,
            next_tick_ns: 0,
            next_window_ns: WINDOW_NS,
            adopted: (0, 0),
            attach_changed: false,
            cpus_changed: false,
            members_changed: false,
            samples_came: false,
            last_decision: None,
            part: Part::default(),
            next_second_ns: 0,
            seen: Seen::default(),
            switches: Switches::default(),
            group_switches: GroupSwitches::default(),
            alarm: None,
            bursts: HandlerBursts::new(how.costs.per_handler_ns.is_some()),
            resting: None,
        })
    }

    /// Starts the clocks. What they report is read later, so that nothing is missed while the code that is mapped
    /// already is looked at.
    pub(crate) fn start_clocks(&mut self) -> std::io::Result<()> {
        self.sampler.start()
    }

    /// Attaches to threads that came while the first ones were attached to.
    pub(crate) fn catch_up_with_threads(&mut self) -> Result<(), OpenError> {
        let threads = self.threads();
        if self.sampler.unattached(threads.clone()).is_empty() {
            return Ok(());
        }
        self.renew(Attachment::Tasks(threads))
    }

    /// Opens the clocks anew. Those for threads that were born meanwhile, from parents whose new clock did not run yet,
    /// are opened before the old ones stop: what they inherited ends with these.
    fn renew(&mut self, attachment: Attachment) -> Result<(), OpenError> {
        self.sampler.open_incoming(attachment, self.settings)?;
        let attached = self.attach_to_latecomers();
        self.sampler.close_outgoing();
        attached
    }

    fn attach_to_latecomers(&mut self) -> Result<(), OpenError> {
        for _ in 0..GENERATIONS {
            if !matches!(self.sampler.attachment(), Attachment::Tasks(_)) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_nanos(SETTLING_NS)); // then every birth until now is on record
            self.drain(clock::monotonic_ns().saturating_sub(SETTLING_NS));
            let latecomers = self.sampler.unattached(self.threads());
            if latecomers.is_empty() {
                return Ok(());
            }
            self.sampler.attach_more(&latecomers)?;
        }
        Ok(())
    }

    fn drain(&mut self, until_ns: u64) {
        self.session.refresh_code();
        let session = &mut self.session;
        self.sampler.drain(until_ns, |drained| session.handle(drained));
    }

    /// From now on everything counts: samples, CPU time, overhead.
    pub(crate) fn begin(&mut self) {
        self.session.begin();
        self.part = self.part_from(clock::monotonic_ns());
        self.context_switches(); // those until now are history
        let now_ns = clock::monotonic_ns();
        self.next_tick_ns = now_ns + self.sampler.draw_tick_ns();
        self.bursts.begin_run(now_ns);
        self.alarm = SwitchAlarm::new().ok();
        self.set_alarm();
        let decision = self.controller.start(now_ns);
        self.note_rate(&decision);
        self.write_decision(&decision);
    }

    /// How long to sleep from now on.
    pub(crate) fn pause(&self, now_ns: u64) -> Duration {
        let until_tick = self.next_tick_ns.saturating_sub(now_ns);
        let looks = self.samples_came && self.cost_may_jump() || self.controller.strangers_may_overspend();
        let look_ns = if looks { LOOK_NS } else { u64::MAX };
        let burst_ns = self.bursts.ends_ns().map_or(u64::MAX, |ends_ns| ends_ns.saturating_sub(now_ns));
        Duration::from_nanos(until_tick.min(look_ns).min(burst_ns).min(self.sampler.time_to_fill_ns()))
    }

    /// Ticks get rarer while nothing happens: for one target among many, which shall cost nothing while they idle.
    pub(crate) fn rests(&mut self) {
        self.resting = Some(Rest::default());
    }

    /// How long until the next tick (ns).
    fn next_pause_ns(&mut self) -> u64 {
        let tick_ns = self.sampler.draw_tick_ns();
        let Some(rest) = &mut self.resting else { return tick_ns };
        let counts = &self.session.counts;
        let seen = counts.samples + counts.foreign + counts.side_records + counts.forks;
        let is_quiet = std::mem::replace(&mut rest.seen, seen) == seen;
        rest.quiet_ticks = if is_quiet { (rest.quiet_ticks + 1).min(LONGEST_REST) } else { 0 };
        tick_ns << rest.quiet_ticks
    }

    /// Whether the dearest sample that the clocks can take, with the longest chain or the fullest copy, costs far
    /// more than those that come.
    fn cost_may_jump(&self) -> bool {
        let frames =
            if self.settings.method.follows_frame_pointers() { self.session.chain_limit() } else { 0 };
        let dearest = self.costs.sample(frames as f64, f64::from(self.settings.copied_bytes()));
        dearest.mean_ns > HARMLESS_JUMP * self.controller.cost().target.mean_ns
    }

    /// Whether there is something to do: it is time to take stock, or will be soon, or there are records that should not wait
    /// for that.
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        let until_tick_ns = self.next_tick_ns.saturating_sub(now_ns);
        let burst_ends = self.bursts.ends_ns().is_some_and(|ends_ns| now_ns + SLACK_NS >= ends_ns);
        let rings = || self.alarm.as_ref().is_some_and(SwitchAlarm::is_ringing);
        let looks = || self.pause(now_ns) < Duration::from_nanos(until_tick_ns);
        until_tick_ns <= self.slack_ns() || burst_ends || rings() || looks() && self.sampler.has_records()
    }

    /// How much earlier than it is due a tick may come, so that it needs no wake-up of its own: longer while nothing happens.
    fn slack_ns(&self) -> u64 {
        self.resting.map_or(0, |rest| SLACK_NS << (2 * rest.quiet_ticks).min(LONGEST_SLACK))
    }

    /// Drains the rings, and takes stock if it is time to, or will be soon.
    pub(crate) fn turn(&mut self) {
        let slack_ns = self.slack_ns();
        let now_ns = clock::monotonic_ns();
        let samples_before = self.session.counts.samples;
        self.drain(now_ns.saturating_sub(SETTLING_NS));
        self.samples_came = self.session.counts.samples > samples_before;
        self.time_handler(now_ns);
        if self.alarm.as_mut().is_some_and(SwitchAlarm::take_rung) {
            self.next_tick_ns = now_ns;
            self.resting = self.resting.map(|_| Rest::default());
        }
        let so_far = self.without_inheritance(self.session.since_last_reading(now_ns));
        if now_ns + slack_ns >= self.next_tick_ns || self.controller.overdrawn(&so_far) {
            self.tick();
            let tick_ns = self.next_pause_ns();
            self.next_tick_ns = (self.next_tick_ns + tick_ns).max(now_ns + MIN_TICK_NS);
        }
        self.maintain(now_ns); // at once: what a tick has found too dear goes on costing until then
    }

    /// Times the kernel's handler in short bursts, where the budget has room for them.
    fn time_handler(&mut self, now_ns: u64) {
        let recent = &mut self.session.recent;
        let times = self.bursts.proceed(now_ns, now_ns.saturating_sub(SETTLING_NS), recent);
        self.controller.observe_handler(&times);
        if self.bursts.is_due(now_ns, recent) {
            let cost = HandlerBursts::cost(recent);
            let cost_ns = cost.interrupts as f64 * self.controller.cost().target.upper_ns()
                + cost.records as f64 * self.costs.per_trace_record_ns.upper_ns();
            if self.controller.has_room_for(cost_ns) {
                self.bursts.begin_burst(now_ns, recent);
            }
        }
    }

    /// Events for whole CPUs or a group are inherited by nobody: a new task is two records, its beginning and its end.
    fn without_inheritance(&self, reading: Reading) -> Reading {
        match self.attach.mode() {
            AttachMode::Task => reading,
            AttachMode::Cpu | AttachMode::Cgroup => {
                Reading { side_records: reading.side_records + 2 * reading.forks, forks: 0, ..reading }
            }
        }
    }

    /// Stops sampling and takes in what is left.
    pub(crate) fn stop(&mut self) {
        self.sampler.stop();
        self.drain(u64::MAX);
        let times = self.bursts.finish(clock::monotonic_ns(), &mut self.session.recent);
        self.controller.observe_handler(&times);
        // The books are closed; a decision from this moment, with the target gone, would be about nothing.
        let decided = self.last_decision;
        self.tick();
        self.last_decision = decided;
    }

    fn tick(&mut self) {
        let now_ns = clock::monotonic_ns();
        let second_is_over = now_ns >= self.next_second_ns;
        if second_is_over {
            self.each_second(now_ns);
        }
        let is_idle = self.resting.is_some_and(|rest| rest.quiet_ticks > 0 && rest.is_idle);
        let looks = (second_is_over || self.sampler.few_threads()) && !is_idle;
        let (switches, attached_anew) = if looks { self.look_at_attach(now_ns) } else { (0, false) };
        let reading = self.session.reading(switches);
        if let Some(rest) = &mut self.resting {
            rest.is_idle = reading.target_cpu_ns == 0;
        }
        self.foresight.observe(&reading, self.session.elapsed_ns());
        let burst = self.bursts.take_spent();
        let reading = Reading {
            lost: reading.lost + burst.interrupts,
            trace_records: burst.records,
            ..self.without_inheritance(reading)
        };
        let shares = TopShares { counts: self.session.take_function_counts() };
        let decision = self.controller.tick(&reading, &shares);
        if attached_anew {
            self.controller.attached_anew(); // what the way until now has cost is spent, and no sign of what is to come
        }
        if decision.period_ns != self.settings.period_ns {
            self.settings.period_ns = decision.period_ns;
            self.sampler.set_period(decision.period_ns);
            self.note_rate(&decision);
        }
        self.sampler.redraw();
        if decision.reason != Reason::Hold && decision.reason != Reason::Fixed || second_is_over {
            self.write_decision(&decision);
        }
        self.last_decision = Some(decision);
        if self.session.elapsed_ns() >= self.next_window_ns {
            self.session.close_window();
            self.next_window_ns = self.session.elapsed_ns() + WINDOW_NS;
        }
    }

    /// Enters a change of the rate into the profile's history; of what the bucket does tick by tick, only the
    /// big strokes.
    fn note_rate(&mut self, decision: &Decision) {
        let last_hz = self.history.last().map_or(0.0, |change| change.rate_hz);
        let small = (decision.rate_hz / last_hz).ln().abs() < WORTH_NOTING;
        if small && matches!(decision.reason, Reason::Throttle | Reason::Release) {
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
            attach_mode: self.attach.mode(),
            clocks: self.sampler.clock_count(),
        };
        self.log.decision(&line);
    }

    /// A line for the person, once.
    pub(crate) fn note(&mut self, line: String) {
        if !self.notes.contains(&line) {
            self.notes.push(line);
        }
    }

    /// Follows what the followed processes created before they were followed, until nothing new is found.
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

    /// What a person calls a process of the target.
    pub(crate) fn name_of(&self, pid: u32) -> String {
        format!("{} ({pid})", procfs::comm(pid).unwrap_or_default())
    }

    /// How events are attached.
    pub(crate) fn attach_mode(&self) -> AttachMode {
        self.attach.mode()
    }

    /// How stacks are unwound.
    pub(crate) fn method(&self) -> Method {
        self.settings.method
    }

    /// The rate that the law, the budget and the caps asked for last.
    pub(crate) fn optimum_rate_hz(&self) -> Option<f64> {
        self.last_decision.map(|decision| decision.optimum_rate_hz)
    }

    /// What was collected since the last call or the beginning, with its figures; the next part of the run begins where this
    /// one ends.
    pub(crate) fn cut(&mut self) -> (Collected, Figures) {
        let collected = self.session.cut();
        let figures = self.take_figures(collected.span.end);
        (collected, figures)
    }

    /// Ends the run: what was collected since the last cut or the beginning, its figures, and where its decisions went.
    pub(crate) fn end(mut self) -> (Collected, Figures, L) {
        let figures = self.take_figures(clock::monotonic_ns());
        (self.session.finish(), figures, self.log)
    }

    fn take_figures(&mut self, end_ns: u64) -> Figures {
        let next = self.part_from(end_ns);
        let part = std::mem::replace(&mut self.part, next);
        Figures {
            account: self.controller.take_account(),
            cost: self.controller.cost(),
            handler: self.controller.handler(),
            attach_mode: self.attach.mode(),
            prediction: *self.foresight.prediction(),
            decision: self.last_decision,
            start_unix_ns: part.start_unix_ns,
            counts: next.counts.since(&part.counts),
            duration_ns: next.start_ns.saturating_sub(part.start_ns),
            target_cpu_ns: next.target_cpu_ns.saturating_sub(part.target_cpu_ns),
            self_cpu_ns: next.self_cpu_ns.saturating_sub(part.self_cpu_ns),
            setup_cpu_ns: self.session.setup_cpu_ns(),
            handler_time: self.bursts.outcome(),
            kernel_seen: self.access.kernel,
            history: self.take_history(),
            notes: self.notes.clone(),
            settings: self.settings,
        }
    }

    /// The history so far; the next one begins with the rate in force.
    fn take_history(&mut self) -> Vec<RateChange> {
        let going_on = self.history.last().map(|last| RateChange { at_s: 0.0, ..last.clone() });
        std::mem::replace(&mut self.history, going_on.into_iter().collect())
    }

    fn part_from(&self, start_ns: u64) -> Part {
        let ago_ns = clock::monotonic_ns().saturating_sub(start_ns);
        Part {
            start_unix_ns: clock::unix_ns().saturating_sub(ago_ns),
            start_ns,
            counts: self.session.counts,
            target_cpu_ns: self.session.target_cpu_ns(),
            self_cpu_ns: self.session.self_cpu_ns(),
        }
    }

    fn threads(&self) -> Vec<u32> {
        self.session.processes.live().flat_map(|(pid, _)| procfs::threads(pid)).collect()
    }
}

fn period_ns(rate_hz: f64) -> u64 {
    (1e9 / rate_hz).round() as u64
}
