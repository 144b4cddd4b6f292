//! When the next step of a target is due.
//!
//! A step comes every 90 to 110 ms, at random, and every 25 ms at the start of a run without a horizon: clocks that are redrawn
//! at exact multiples would lock onto programs with a period that divides them. While nothing changes and samples are 20 ms apart or more, every other
//! one is left out; at 40 ms or more, three of four. The rings are read more often than that, every 25 ms, where the most
//! expensive sample that the clocks can take would cost more than twice the usual one (a cheap interrupt and a
//! large copy), and where samples of other processes would soon overspend the budget of a target that falls
//! idle. In the first 30 ms of a run they are read every 0.5 ms, and up to 300 ms every 2 ms if stacks are deeper than
//! their copies.
//!
//! A target to which nothing happens is stepped ever more rarely, up to every 1.6 s, and so is one whose
//! samples are seconds apart (up to every 0.4 s if a process' mappings are read at its first sample: the
//! process has to be alive then).

use std::time::Duration;

use super::{Engine, SETTLING_NS};
use crate::output::DecisionLog;
use crate::sys::alarm::SwitchAlarm;
use crate::sys::clock;

/// Time between two reads of the rings if a sample's cost could jump, so that a jump does not go unnoticed for a whole
/// step (ns).
const LOOK_NS: u64 = 25_000_000;
/// Time between two looks at the rings in the beginning, where stacks are deeper than their copies (ns): the rest is read from the
/// process, which may soon run another program, and no earlier stack completes the first.
const EARLY_LOOK_NS: u64 = 2_000_000;
/// How long a run is beginning (ns).
const BEGINNING_NS: u64 = 300_000_000;
/// Time from the start of `record` or `attach` in which the rings are read most often (ns): a launcher such as rustup has a
/// deep stack, and is replaced by the program itself after a few milliseconds.
const OPENING_NS: u64 = 30_000_000;
/// Time between two looks at the rings meanwhile (ns).
const OPENING_LOOK_NS: u64 = 500_000;
/// [`SETTLING_NS`] meanwhile (ns). A mapping that is recorded later than that may cost a stack; waiting costs many.
const OPENING_SETTLING_NS: u64 = 200_000;
/// A jump by less than this factor cannot overspend the budget of a second within a step.
const HARMLESS_JUMP: f64 = 2.0;
/// The longest step, unless it is doubled (s).
pub(super) const LONGEST_STEP_S: f64 = 0.11;
/// Most times that a step is doubled while a target rests. A burst that begins in such a pause is sampled at the rate
/// of an idle target, so its cost stays small.
const LONGEST_REST: u32 = 4;
/// If samples of a target are this far apart (ns), its steps are half as frequent; at twice the distance a quarter, and
/// so on. Of ten steps between two samples, nine would only cost.
const RARE_NS: f64 = 250_000_000.0;
/// Most times that a step is doubled for rare samples, if a process' mappings are read at its first sample: it should
/// live then.
const LONGEST_REST_WITHOUT_MAPPINGS: u32 = 2;
/// How much earlier or later one target among many may be stepped to share a wake-up (ns), and how often that is
/// doubled while it rests.
const SLACK_NS: u64 = 20_000_000;
const LONGEST_SLACK: u32 = 5;

/// How long nothing has happened.
#[derive(Clone, Copy, Default)]
pub(super) struct Rest {
    /// Samples and other records until the last step.
    seen: u64,
    /// Steps in a row without any, up to [`LONGEST_REST`].
    pub(super) quiet_steps: u32,
    /// How often a step is doubled since samples are rare; more by one at each, for a target may be about to begin.
    rarity: u32,
    /// Whether the target used no CPU time in the last of them: then it has not switched, either.
    pub(super) is_idle: bool,
}

/// When something is done next, and what may hasten it.
#[derive(Default)]
pub(super) struct StepPace {
    pub(super) next_step_ns: u64,
    /// When the last full step was taken.
    pub(super) stepped_ns: u64,
    pub(super) next_second_ns: u64,
    /// Whether the last drain found samples.
    pub(super) samples_came: bool,
    /// `None` before sampling starts, and if there cannot be an alarm.
    pub(super) alarm: Option<SwitchAlarm>,
    /// `None` unless steps may get rarer while nothing happens.
    pub(super) resting: Option<Rest>,
}

impl<L: DecisionLog> Engine<L> {
    /// How old records have to be to be read (ns).
    pub(super) fn settling_ns(&self) -> u64 {
        if self.is_opening() { OPENING_SETTLING_NS } else { SETTLING_NS }
    }

    /// Whether the only target has just begun; one among many does not read on that closely.
    fn is_opening(&self) -> bool {
        self.pace.resting.is_none() && self.session.elapsed_ns() < OPENING_NS
    }

    /// How long to sleep now.
    pub(crate) fn pause(&self, now_ns: u64) -> Duration {
        let until_step = self.pace.next_step_ns.saturating_sub(now_ns);
        let looks =
            self.pace.samples_came && self.cost_may_jump() && !self.has_room_for_a_jump(LONGEST_STEP_S)
                || self.controller.non_targets_may_overspend();
        let reads_on = self.session.exceeds_copies() && self.session.elapsed_ns() < BEGINNING_NS;
        let look_ns = match (reads_on, looks) {
            _ if self.is_opening() => OPENING_LOOK_NS,
            (true, _) => EARLY_LOOK_NS,
            (false, true) => LOOK_NS,
            (false, false) => u64::MAX,
        };
        let burst_ns = self.costs.bursts.ends_ns().map_or(u64::MAX, |ends_ns| ends_ns.saturating_sub(now_ns));
        // While nothing comes, rings may fill to half, instead of a quarter, before they are read.
        let rests = self.pace.resting.is_some_and(|rest| rest.quiet_steps > 0);
        let fill_ns = self.sampler.time_to_fill_ns().saturating_mul(if rests { 2 } else { 1 });
        Duration::from_nanos(until_step.min(look_ns).min(burst_ns).min(fill_ns))
    }

    /// Steps get rarer while nothing happens: for one target among many, which shall cost nothing while they idle.
    pub(crate) fn rests(&mut self) {
        self.pace.resting = Some(Rest::default());
    }

    /// Takes stock at the next turn, and often again after that: something has begun.
    pub(super) fn rouse(&mut self) {
        self.pace.next_step_ns = self.pace.next_step_ns.min(clock::monotonic_ns());
        self.pace.resting = self.pace.resting.map(|_| Rest::default());
    }

    /// How long until the next step (ns).
    pub(super) fn next_pause_ns(&mut self) -> u64 {
        let step_ns = self.sampler.draw_step_ns(self.controller.age_for_steps_ns(self.session.elapsed_ns()));
        let Some(rest) = &mut self.pace.resting else { return step_ns };
        let counts = &self.session.counts;
        let seen = counts.samples + counts.foreign + counts.side_records.own + counts.side_records.forks;
        let is_quiet = std::mem::replace(&mut rest.seen, seen) == seen;
        rest.quiet_steps = if is_quiet { (rest.quiet_steps + 1).min(LONGEST_REST) } else { 0 };
        let rarity = (2.0 * self.controller.sample_gap_ns() / RARE_NS).log2().max(0.0) as u32;
        let most_rare = if self.settings.mappings { LONGEST_REST } else { LONGEST_REST_WITHOUT_MAPPINGS };
        rest.rarity = rarity.min(most_rare).min(rest.rarity + 1);
        step_ns << rest.quiet_steps.max(rest.rarity)
    }

    /// Whether the dearest sample that the clocks can take, with the longest chain or the fullest copy, costs far
    /// more than those that come.
    fn cost_may_jump(&self) -> bool {
        self.dearest_ns() > HARMLESS_JUMP * self.controller.cost().target.mean_ns
    }

    fn dearest_ns(&self) -> f64 {
        let frames =
            if self.settings.method.follows_frame_pointers() { self.session.stacks.chain_limit() } else { 0 };
        self.costs.model.sample(frames as f64, f64::from(self.settings.copied_bytes())).mean_ns
    }

    /// Whether a step could bring such samples alone, and the budget would not even feel it.
    pub(super) fn has_room_for_a_jump(&self, step_s: f64) -> bool {
        let samples = self.controller.rate_hz() * self.sampler.cpus() as f64 * step_s;
        self.controller.has_room_for(samples * self.dearest_ns())
    }

    /// Whether there is something to do: it is time to take stock, or will be soon, or there are records that should not wait
    /// for that.
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        let until_step_ns = self.pace.next_step_ns.saturating_sub(now_ns);
        let burst_ends = self.costs.bursts.ends_ns().is_some_and(|ends_ns| now_ns + SLACK_NS >= ends_ns);
        let rings = || self.pace.alarm.as_ref().is_some_and(SwitchAlarm::is_ringing);
        let looks = || self.pause(now_ns) < Duration::from_nanos(until_step_ns);
        until_step_ns <= self.slack_ns() || burst_ends || rings() || looks() && self.sampler.has_records()
    }

    /// How much earlier than it is due a step may come, so that it needs no wake-up of its own: longer while nothing happens.
    pub(super) fn slack_ns(&self) -> u64 {
        self.pace.resting.map_or(0, |rest| SLACK_NS << (2 * rest.quiet_steps).min(LONGEST_SLACK))
    }
}
