//! One target of the service: waiting for processes, sampled, or left out for a reason.
//!
//! A target stays attached for a minute after its last process ended: attaching costs more than a job that runs
//! every second. That cost belongs to the target and is spent once; the token bucket earns it back.

mod attaching;
mod processes;
mod resampling;
mod status;
mod windows;

use self::processes::TargetProcesses;
pub(super) use self::resampling::differ_in_control_alone;
pub(super) use self::windows::WindowLengths;

use std::collections::BTreeMap;
use std::sync::Arc;

use config::SamplingSettings;
use profiler_core::rate::Replicas;
use profiler_core::stats::{Confidence, Interval, WeightedSum};

use super::flush_limiter::FlushLimiter;
use super::window_writer::PendingWindow;
use crate::run::{Engine, Setup, ShareStatus};
use crate::sampler::watch::Watch;
use crate::service::recent::RecentDecisions;
use crate::service::state::{Origin, TargetState};
use crate::sys::alarm::SwitchAlarm;

/// A target that could not be attached to is tried again after this time, then after twice as long, up to an hour (ns).
const FIRST_RETRY_NS: u64 = 5_000_000_000;
const LONGEST_RETRY_NS: u64 = 3_600_000_000_000;
/// A target without a process stays attached to for this time, as long as discovery keeps names (ns). Attaching anew
/// each time a program restarts would cost more.
const LINGER_NS: u64 = 60_000_000_000;
/// So many scans in a row without a process of its own mean that those in its control group are another target's: one scan may be too
/// early for processes that have just started.
const SCANS_WITHOUT_OWN: u32 = 2;
/// Most processes that are watched before they are attached to: watching more would take longer than it saves.
const MOST_WATCHED: usize = 64;
/// Minimum time that they are watched (ns).
pub(crate) const LONG_ENOUGH_NS: u64 = 50_000_000;

/// The properties that identify a target.
#[derive(Clone, Debug)]
pub(crate) struct TargetIdentity {
    /// What it is called.
    pub(crate) name: String,
    /// Its labels.
    pub(crate) labels: BTreeMap<String, String>,
    /// Where it comes from.
    pub(crate) origin: Origin,
    /// The path of the control group that it is, if it is one.
    pub(crate) group: Option<Arc<str>>,
    /// Whether it is the target for all other processes.
    pub(crate) is_everything: bool,
    /// Whether a process belongs to it because of the program that it runs.
    pub(crate) is_program: bool,
}

/// A target.
pub(crate) struct Watched {
    pub(crate) identity: TargetIdentity,
    pub(crate) sampling: SamplingSettings,
    /// When watching ends, if the target was requested (ns).
    pub(crate) ends_ns: Option<u64>,
    /// The processes that belong to it.
    pub(crate) processes: TargetProcesses,
    state: TargetState,
    reason: Option<String>,
    /// The sampler that it has for itself.
    sampled: Option<Box<SampledTarget>>,
    /// Its part of the shared sampler.
    part: Option<SamplerPart>,
    attempts: Attempts,
    /// The sampling settings to switch to, once there is time to open other events.
    wanted: Option<SamplingSettings>,
    cpu_use: CpuUse,
    /// Totals of its earlier samplers and its earlier parts of the shared one.
    before: Totals,
    /// Totals of its earlier own samplers.
    before_own: Totals,
    windows: u64,
}

/// Attempts to attach to a target.
#[derive(Default)]
struct Attempts {
    /// What its processes do before events are opened for them, since when (ns).
    watch: Option<(Watch, u64)>,
    retry: Retry,
    /// The profiler's CPU time for them since the target was last sampled; charged once one succeeds (ns).
    spent_ns: u64,
}

/// CPU time that the processes of a target use; it is read seldom.
#[derive(Default)]
struct CpuUse {
    /// At the last reading (ns).
    total_ns: u64,
    /// Between the last two readings (ns).
    recent_ns: u64,
}

struct SampledTarget {
    engine: Engine<RecentDecisions>,
    /// Where the open window began (ns).
    from_ns: u64,
    flush_limiter: FlushLimiter,
    /// Since when it has no process (ns).
    empty_since_ns: Option<u64>,
    /// Scans in which it had no process, and others were in the control group that its events are of.
    scans_without_own: u32,
}

/// A target's part of the shared sampler.
#[derive(Clone, Copy)]
struct SamplerPart {
    /// Where the open window began (ns).
    from_ns: u64,
    flush_limiter: FlushLimiter,
    totals: Totals,
}

/// When something that failed is tried again.
#[derive(Clone, Copy, Default)]
pub(super) struct Retry {
    at_ns: u64,
    pause_ns: u64,
}

impl Retry {
    /// The time of the next attempt (ns).
    pub(super) fn at_ns(&self) -> u64 {
        self.at_ns
    }

    /// After another failure.
    pub(super) fn after(self, now_ns: u64) -> Self {
        let pause_ns = (2 * self.pause_ns).clamp(FIRST_RETRY_NS, LONGEST_RETRY_NS);
        Self { at_ns: now_ns.saturating_add(pause_ns), pause_ns }
    }

    /// Other processes than those that failed get a first attempt at once.
    fn for_another(self) -> Self {
        let pause_ns = self.pause_ns.min(FIRST_RETRY_NS);
        Self { at_ns: self.at_ns - (self.pause_ns - pause_ns), pause_ns }
    }
}

/// Totals up to a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Totals {
    /// CPU time of the target (ns).
    pub(crate) cpu_ns: u64,
    /// The part of it that is known by samples alone (ns).
    pub(crate) unsure: WeightedSum,
    /// Charged to it and to non-target processes (ns).
    pub(crate) charged_ns: u64,
    /// Own CPU time in its turns (ns).
    pub(crate) turns_ns: u64,
    /// The part of it for set-up (ns).
    pub(crate) once_ns: u64,
    samples: u64,
    lost: u64,
    truncated: u64,
}

impl Totals {
    /// The sum of both.
    #[must_use]
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            cpu_ns: self.cpu_ns + other.cpu_ns,
            unsure: self.unsure.plus(other.unsure),
            charged_ns: self.charged_ns + other.charged_ns,
            turns_ns: self.turns_ns + other.turns_ns,
            once_ns: self.once_ns + other.once_ns,
            samples: self.samples + other.samples,
            lost: self.lost + other.lost,
            truncated: self.truncated + other.truncated,
        }
    }
}

impl Totals {
    /// Where the CPU time of the target lies (s, at 95%), while a sample stands for `weight_ns`.
    fn cpu_s_interval(&self, weight_ns: f64) -> Interval {
        let (cpu_ns, sampled_ns) = (self.cpu_ns as f64, self.unsure.sum);
        let unsure_ns = match sampled_ns > 0.0 {
            true => self.unsure.interval(weight_ns, Confidence::default()),
            false => Interval { low: 0.0, high: 0.0 }, // no sample told of what was not read
        };
        let low_ns = (cpu_ns - (sampled_ns - unsure_ns.low)).max(0.0);
        Interval { low: low_ns * 1e-9, high: (cpu_ns + unsure_ns.high - sampled_ns) * 1e-9 }
    }

    /// What a sampler has counted so far.
    pub(super) fn of(engine: &Engine<RecentDecisions>) -> Self {
        let (account, counts) = (engine.controller.account(), &engine.session.counts);
        let own_ns = account.spent().self_ns;
        Self {
            cpu_ns: engine.session.target_cpu_ns(),
            unsure: engine.session.cpu.unsure(),
            charged_ns: (account.spent().total_ns() - own_ns) as u64,
            turns_ns: engine.session.own_ns(),
            once_ns: account.spent().self_once_ns as u64,
            samples: counts.samples,
            lost: counts.lost,
            truncated: counts.truncated.total(),
        }
    }
}

impl SampledTarget {
    fn totals(&self) -> Totals {
        Totals::of(&self.engine)
    }
}

impl Watched {
    pub(crate) fn new(identity: TargetIdentity, sampling: SamplingSettings) -> Self {
        Self {
            identity,
            sampling,
            ends_ns: None,
            processes: TargetProcesses::default(),
            state: TargetState::Waiting,
            reason: None,
            sampled: None,
            part: None,
            attempts: Attempts::default(),
            wanted: None,
            cpu_use: CpuUse::default(),
            before: Totals::default(),
            before_own: Totals::default(),
            windows: 0,
        }
    }

    /// A process joins the target.
    pub(crate) fn join(&mut self, pid: u32) {
        if self.processes.join(pid) {
            self.attempts.retry = self.attempts.retry.for_another();
        }
    }

    /// A process does not belong to it any more, or has ended.
    pub(crate) fn leave(&mut self, pid: u32) {
        self.processes.leave(pid);
    }

    /// Whether there is something to sample.
    pub(crate) fn has_processes(&self) -> bool {
        self.identity.is_everything || !self.processes.is_empty()
    }

    pub(crate) fn is_sampled(&self) -> bool {
        self.sampled.is_some() || self.part.is_some()
    }

    /// Whether it uses the shared sampler.
    pub(crate) fn shares(&self) -> bool {
        self.part.is_some()
    }

    /// Whether it has its own sampler.
    pub(crate) fn has_own_sampler(&self) -> bool {
        self.sampled.is_some()
    }

    /// Whether it is the target for all other processes, with its own sampler.
    pub(crate) fn is_everything_alone(&self) -> bool {
        self.identity.is_everything && self.has_own_sampler()
    }

    /// Whether its settings equal `usual`, apart from the budget: then it can share a sampler.
    pub(crate) fn is_sampled_like(&self, usual: &SamplingSettings) -> bool {
        let wanted = self.wanted.as_ref().unwrap_or(&self.sampling);
        SamplingSettings { budget: usual.budget, symbol_memory: usual.symbol_memory, ..wanted.clone() }
            == *usual
    }

    /// The target joins the shared sampler.
    pub(crate) fn begin_share(&mut self, now_ns: u64) {
        self.part = Some(SamplerPart {
            from_ns: now_ns,
            flush_limiter: FlushLimiter::default(),
            totals: Totals::default(),
        });
        (self.state, self.reason, self.attempts.retry) = (TargetState::Sampled, None, Retry::default());
        self.processes.take_changes();
        self.sampling = self.wanted.take().unwrap_or(self.sampling.clone());
    }

    /// Takes over its figures from the shared sampler.
    pub(crate) fn note_share(&mut self, status: &ShareStatus<'_>) {
        if let Some(part) = &mut self.part {
            let spent = status.account.spent();
            part.totals = Totals {
                cpu_ns: status.cpu_ns,
                unsure: status.unsure,
                charged_ns: (spent.total_ns() - spent.self_ns) as u64,
                turns_ns: spent.self_ns as u64,
                once_ns: spent.self_once_ns as u64,
                samples: status.counts.samples,
                lost: status.counts.lost,
                truncated: status.counts.truncated.total(),
            };
        }
    }

    /// The target leaves the shared sampler.
    pub(crate) fn end_share(&mut self) {
        if let Some(part) = self.part.take() {
            self.before = self.before.plus(part.totals);
            (self.state, self.reason) = (TargetState::Waiting, None);
        }
    }

    /// Whether it is to be sampled, and is not yet.
    pub(crate) fn is_coming(&self) -> bool {
        !self.is_sampled() && !self.is_left_out() && self.has_processes()
    }

    pub(crate) fn engine(&mut self) -> Option<&mut Engine<RecentDecisions>> {
        self.sampled.as_mut().map(|sampled| &mut sampled.engine)
    }

    /// The target is one of `replicas`. For a shared sampler, that is set there.
    pub(crate) fn join_fleet(&mut self, replicas: Replicas) {
        if let Some(sampled) = &mut self.sampled {
            sampled.engine.controller.join_fleet(replicas);
        }
    }

    /// Whether a sampler of its own has, or had, something to account for.
    pub(crate) fn has_own_account(&self) -> bool {
        self.sampled.is_some() || self.before_own != Totals::default()
    }

    /// Memory of its rings (bytes), while it is sampled.
    pub(crate) fn ring_bytes(&self) -> Option<u64> {
        self.sampled.as_ref().map(|sampled| sampled.engine.sampler.ring_bytes())
    }

    /// What rings when it switches too often.
    pub(crate) fn alarm(&self) -> Option<&SwitchAlarm> {
        self.sampled.as_ref().and_then(|sampled| sampled.engine.alarm())
    }

    /// Tells the engine which processes joined and left.
    pub(crate) fn settle_members(&mut self) {
        let (joined, left) = self.processes.take_changes();
        // For shared targets, the scan itself tells the shared sampler.
        let Some(sampled) = &mut self.sampled else { return };
        // A group's and the machine's own are met when they are sampled.
        if self.identity.is_everything || (joined.is_empty() && left.is_empty()) {
            return;
        }
        sampled.engine.session.own_time.enter();
        sampled.engine.apply_member_changes(&joined, &left);
        sampled.engine.session.own_time.leave();
    }

    /// Whether the last attempt to sample it failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.state == TargetState::Failed
    }

    /// Removes its events; the records that they left are still to be read.
    pub(crate) fn silence(&mut self) {
        if let Some(sampled) = &mut self.sampled {
            sampled.engine.sampler.stop();
        }
    }

    /// Whether its events are no longer needed: it has had no process for a while, its control group is gone, or other targets have all of
    /// the group.
    pub(crate) fn is_over(&mut self, now_ns: u64) -> bool {
        let Some(sampled) = self.sampled.as_mut().filter(|_| !self.identity.is_everything) else {
            return false;
        };
        if sampled.engine.group_is_gone() || sampled.scans_without_own >= SCANS_WITHOUT_OWN {
            return true;
        }
        if !self.processes.is_empty() || !sampled.engine.target_has_ended() {
            sampled.empty_since_ns = None;
            return false;
        }
        let since_ns = *sampled.empty_since_ns.get_or_insert(now_ns);
        !sampled.engine.takes_newcomers() || now_ns.saturating_sub(since_ns) >= LINGER_NS
    }

    /// Removes its events, and hands over what was sampled until now.
    pub(crate) fn stop(&mut self, setup: &Setup) -> Option<PendingWindow> {
        let sampled = self.sampled.as_mut()?;
        sampled.engine.session.own_time.enter();
        sampled.engine.stop();
        sampled.engine.session.own_time.leave();
        let pending = self.cut(setup);
        if let Some(sampled) = self.sampled.take() {
            self.before = self.before.plus(sampled.totals());
            self.before_own = self.before_own.plus(sampled.totals());
        }
        if let Some(wanted) = self.wanted.take() {
            self.sampling = wanted;
        }
        (self.state, self.reason) = (TargetState::Waiting, None);
        pending
    }

    /// Marks it as left out, with the reason. The caller has stopped it if it was sampled.
    pub(crate) fn leave_out(&mut self, why: &str) {
        (self.state, self.reason) = (TargetState::LeftOut, Some(why.to_owned()));
    }

    /// Whether it was left out.
    pub(crate) fn is_left_out(&self) -> bool {
        self.state == TargetState::LeftOut
    }

    /// Allows to attach to it again.
    pub(crate) fn let_in(&mut self) {
        (self.state, self.reason) = (TargetState::Waiting, None);
    }

    /// Notes the CPU time that its processes have used.
    pub(crate) fn note_cpu_ns(&mut self, cpu_ns: u64) {
        let before_ns = std::mem::replace(&mut self.cpu_use.total_ns, cpu_ns);
        self.cpu_use.recent_ns = cpu_ns.saturating_sub(before_ns);
    }

    /// Why it is not sampled, where that is known.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// CPU time used between the last two readings (ns).
    pub(crate) fn activity_ns(&self) -> u64 {
        self.cpu_use.recent_ns
    }

    /// Everything that was counted so far.
    pub(crate) fn totals(&self) -> Totals {
        let now = self.sampled.as_ref().map(|sampled| sampled.totals()).or(self.part.map(|part| part.totals));
        now.map_or(self.before, |now| self.before.plus(now))
    }

    /// The part of the totals that its own samplers counted.
    pub(crate) fn own_totals(&self) -> Totals {
        self.sampled.as_ref().map_or(self.before_own, |sampled| self.before_own.plus(sampled.totals()))
    }

    /// The recent decisions of its own sampler.
    pub(crate) fn decisions(&self) -> Option<RecentDecisions> {
        self.sampled.as_ref().map(|sampled| sampled.engine.log.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn target() -> Watched {
        let identity = TargetIdentity {
            name: "job".to_owned(),
            labels: BTreeMap::new(),
            origin: Origin::Settings,
            group: None,
            is_everything: false,
            is_program: false,
        };
        Watched::new(identity, SamplingSettings::default())
    }

    #[test]
    fn what_fails_is_tried_ever_more_rarely_and_another_process_soon() {
        let mut retry = Retry::default();
        let mut now_ns = 0;
        for pause_s in [5, 10, 20, 40] {
            retry = retry.after(now_ns);
            assert_eq!(retry.at_ns - now_ns, pause_s * SECOND_NS);
            now_ns = retry.at_ns;
        }
        let failed_ns = now_ns - 40 * SECOND_NS;
        assert_eq!(retry.for_another().at_ns, failed_ns + 5 * SECOND_NS);
        assert_eq!(retry.for_another().for_another().at_ns, failed_ns + 5 * SECOND_NS);
        assert_eq!(Retry::default().for_another().at_ns, 0);
        // Whoever comes and goes all the time, and fails, is tried every ten seconds.
        assert_eq!(retry.for_another().after(now_ns).pause_ns, 10 * SECOND_NS);
    }

    #[test]
    fn a_process_that_joins_is_not_kept_waiting_for_those_that_failed() {
        let mut target = target();
        target.join(7);
        target.attempts.retry = Retry { at_ns: 3_600 * SECOND_NS, pause_ns: 1_800 * SECOND_NS };
        target.join(7);
        assert_eq!(target.attempts.retry.at_ns, 3_600 * SECOND_NS, "it is none that came");
        target.join(8);
        assert_eq!(target.attempts.retry.at_ns, 1_805 * SECOND_NS);
    }
}
