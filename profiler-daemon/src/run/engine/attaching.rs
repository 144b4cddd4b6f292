//! Whether the way to attach is still the right one, and the change to another: new threads, CPUs and members, storms of
//! switches, another way to unwind.
//!
//! After the last event of a thread was closed, the kernel looks for events at every context switch on the
//! machine for another second. Two threads at real-time priority that pass a byte took 2.20 µs per switch; 0.25
//! µs more in that second, 1.42 µs more with clocks of their own, and 1.90 µs more with an alarm next to these.
//! An unsampled twin pays the 0.25 µs too, so neither the stopwatch nor a calibration whose halves are less
//! than a second apart can see them. Three things follow:
//!
//! - rings belong to events of whole CPUs where these are permitted, because an event of our own process counts
//!   like any other;
//! - the cost is still booked for that second;
//! - events of threads are not tried where a storm of switches was seen, or where the threads have switched as
//!   much since they began.
//!
//! A first storm cannot be foreseen; that second costs a tenth of it, ten times the budget. An alarm ends the
//! step when one begins (`sys/alarm.rs`), and the events are changed in the same turn.

use std::collections::VecDeque;
use std::sync::Arc;

use profiler_core::attach::{AttachChoice, AttachMode, GROUP_SWITCH, MANY_EVENTS, Observed};

use super::ways::Ways;
use super::{Engine, MIN_STEP_NS};
use crate::cgroup::Cgroup;
use crate::explain;
use crate::output::DecisionLog;
use crate::sampler::access::{Access, OpenError};
use crate::sampler::session::Session;
use crate::sampler::source::{Attachment, ClockSettings};
use crate::sampler::switches::{GroupSwitches, Switches};
use crate::sys::alarm::SwitchAlarm;
use crate::sys::{limits, procfs};

const SECOND_NS: u64 = 1_000_000_000;
/// The shortest time between two reopenings for the sake of new threads (ns).
const ADOPT_EVERY_NS: u64 = 1_000_000_000;
/// [`ADOPT_EVERY_NS`] if the rate has fallen to `TOO_OFTEN` of what it was: inherited clocks then sample too often.
const ADOPT_SOON_NS: u64 = 100_000_000;
const TOO_OFTEN: f64 = 0.8;
/// Events of threads that may be opened in a second, except for a change of the attach mode or of CPUs.
const OPENS_PER_SECOND: u64 = 400;

/// How often the switches of a target without events of its threads are read (ns).
const PAST_EVERY_NS: u64 = 60_000_000_000;
/// Pause after a failed attempt to reopen clocks, before a change of what they record is a reason to try again (ns).
const RETRY_NS: u64 = 10_000_000_000;
/// Alarms in a second after which the alarm is off until the next second: no other way is better.
const RINGS: u32 = 2;

/// Switches of a target while events of its threads are not open: whether they would be a way.
#[derive(Default)]
struct Past {
    switches: Switches,
    looked_ns: Option<u64>,
}

/// When the clocks were opened, and what was then.
#[derive(Clone, Copy, Default)]
struct Adopted {
    at_ns: u64,
    /// Threads created by then; later ones inherit a clock.
    threads_created: u64,
    rate_hz: f64,
}

/// Counters at the last look, once a second.
#[derive(Clone, Copy, Default)]
struct SeenCounters {
    samples: u64,
    foreign: u64,
    foreign_records: u64,
    ends: u64,
    target_cpu_ns: u64,
    at_ns: u64,
}

/// The way to attach, and what would change it.
pub(super) struct Attaching {
    pub(super) access: Access,
    pub(super) choice: AttachChoice,
    pub(super) group: Option<Arc<Cgroup>>,
    /// Processes of the target that are yet to be followed.
    pub(super) joining: VecDeque<u32>,
    pub(super) members_changed: bool,
    pub(super) attach_changed: bool,
    cpus_changed: bool,
    adopted: Adopted,
    seen: SeenCounters,
    pub(super) switches: Switches,
    group_switches: GroupSwitches,
    past: Past,
    pub(super) ways: Ways,
    /// When clocks could not be reopened (ns).
    failed_ns: Option<u64>,
}

impl Attaching {
    /// Nothing has changed yet; `others_cpus` as in [`Ways::beside`].
    pub(super) fn new(
        access: Access,
        choice: AttachChoice,
        group: Option<Arc<Cgroup>>,
        others_cpus: Option<f64>,
    ) -> Self {
        Self {
            access,
            choice,
            group,
            joining: VecDeque::new(),
            members_changed: false,
            attach_changed: false,
            cpus_changed: false,
            adopted: Adopted::default(),
            seen: SeenCounters::default(),
            switches: Switches::default(),
            group_switches: GroupSwitches::default(),
            past: Past::default(),
            ways: Ways::beside(others_cpus),
            failed_ns: None,
        }
    }
}

impl<L: DecisionLog> Engine<L> {
    /// Reopens the clocks if necessary.
    pub(super) fn maintain(&mut self, now_ns: u64) {
        self.session.stacks.revise(now_ns);
        let sampled_otherwise = self.settings.method != self.session.stacks.method()
            || self.settings.stack_bytes != self.session.stacks.copy_bytes();
        let may_reopen = self.may_reopen(now_ns);
        let has_new_threads = self.has_new_threads(now_ns);
        if has_new_threads && self.attaching.choice.would_open(now_ns, task_events(&self.session)).is_some() {
            self.attaching.attach_changed = true;
            self.controller.attached_anew();
        }
        let attach_changed = std::mem::take(&mut self.attaching.attach_changed);
        let machine_changed = attach_changed | std::mem::take(&mut self.attaching.cpus_changed);
        // Changes that do not spoil samples meanwhile wait until events of threads may be opened again.
        let can_wait = (sampled_otherwise || self.attaching.members_changed || self.reports.changed)
            && self.attaching.failed_ns.is_none_or(|failed_ns| now_ns.saturating_sub(failed_ns) >= RETRY_NS);
        let is_due = machine_changed || has_new_threads || can_wait && may_reopen;
        if !is_due {
            return;
        }
        let stacks = &self.session.stacks;
        let wanted =
            ClockSettings { method: stacks.method(), stack_bytes: stacks.copy_bytes(), ..self.settings };
        if self.nature.attaches_itself {
            (self.settings, self.reports.changed, self.attaching.members_changed) = (wanted, false, false);
            let _ = self.sampler.open_incoming(Attachment::ByItself, wanted); // only changes settings
            return;
        }
        let attachment = self.next_attachment();
        self.attaching.adopted = Adopted {
            at_ns: now_ns,
            threads_created: self.session.processes.threads_created(),
            rate_hz: self.controller.rate_hz(),
        };
        let left = match (self.sampler.attachment(), &attachment) {
            (Attachment::Tasks(threads), Attachment::Cpus | Attachment::Cgroup(_)) => threads.clone(),
            _ => Vec::new(),
        };
        if !left.is_empty() {
            let has_alarm = self.has_alarm();
            self.attaching.switches.leave(left, has_alarm, now_ns);
            self.watch_for_storms(&[]); // it is an event of the thread itself
        }
        if let (Attachment::Cpus | Attachment::Cgroup(_), Attachment::Tasks(threads)) =
            (self.sampler.attachment(), &attachment)
        {
            self.attaching.switches.come(threads);
        }
        let Err(error) = self.renew(attachment, wanted) else {
            (self.reports.changed, self.attaching.members_changed) = (false, false);
            return self.session.set_mappings_reported(wanted.mappings);
        };
        self.attaching.failed_ns = Some(now_ns);
        match error {
            OpenError::TargetGone => {}
            _ if attach_changed => self.attaching.choice.refuse(),
            error => self.note(explain::not_renewed(error)),
        }
    }

    /// What the next clocks are attached to.
    fn next_attachment(&self) -> Attachment {
        match (self.attaching.choice.mode(), &self.attaching.group) {
            (AttachMode::Cpu, _) => Attachment::Cpus,
            (AttachMode::Cgroup, Some(group)) => Attachment::Cgroup(Arc::clone(group)),
            (AttachMode::Task | AttachMode::Cgroup, _) => Attachment::Tasks(self.threads()),
        }
    }

    /// Whether it is time to open clocks for new threads: an inherited clock keeps the period it was born with, a
    /// thread's own clock can be retuned.
    fn has_new_threads(&self, now_ns: u64) -> bool {
        let has_slowed = self.controller.rate_hz() < TOO_OFTEN * self.attaching.adopted.rate_hz;
        let pause_ns = if has_slowed { ADOPT_SOON_NS } else { ADOPT_EVERY_NS };
        self.attaching.choice.mode() == AttachMode::Task
            && !self.nature.attaches_itself
            && now_ns.saturating_sub(self.attaching.adopted.at_ns) >= pause_ns
            && self.may_reopen(now_ns)
            && self.session.processes.threads_created() > self.attaching.adopted.threads_created
    }

    /// Whether clocks may be reopened: there are few events of threads, or they were opened long enough ago.
    fn may_reopen(&self, now_ns: u64) -> bool {
        let opens = self.sampler.clock_count() as u64;
        self.attaching.choice.mode().follows_by_itself()
            || self.nature.attaches_itself
            || now_ns.saturating_sub(self.attaching.adopted.at_ns) >= opens * 1_000_000_000 / OPENS_PER_SECOND
    }

    /// Checks done once a second, and more often at first: which CPUs are online, and which processes are in the
    /// control group.
    pub(super) fn each_second(&mut self, now_ns: u64) {
        self.pace.next_second_ns =
            now_ns + if self.session.elapsed_ns() < SECOND_NS { MIN_STEP_NS } else { SECOND_NS };
        self.attaching.cpus_changed |= self.sampler.cpus_changed();
        if let Some(cause) = self.sampler.take_refused() {
            self.note(explain::threads_refused(&cause));
        }
        if self.session.elapsed_ns() >= SECOND_NS {
            self.meet_joining();
            self.look_at_members();
        }
        self.look_at_past(now_ns);
        self.look_at_reports(now_ns);
        self.note_while(explain::WATCHING_TAKES_THE_BUDGET, self.controller.watching_takes_the_budget());
        self.set_alarm();
    }

    /// Whether the target has switched too much of late for events of its threads: to find out by trying would cost the
    /// budget of some seconds, each time.
    fn look_at_past(&mut self, now_ns: u64) {
        if self.attaching.choice.is_fixed() || !self.attaching.choice.mode().follows_by_itself() {
            self.attaching.past = Past::default();
            return;
        }
        let since_ns = self.attaching.past.looked_ns.map(|looked_ns| now_ns.saturating_sub(looked_ns));
        if since_ns.is_some_and(|since_ns| since_ns < PAST_EVERY_NS) {
            return;
        }
        let threads = self.threads();
        let switches = self.attaching.past.switches.since_last_look(&threads);
        if let Some(since_ns) = since_ns {
            self.attaching.choice.expect_switches(now_ns, switches as f64 * 1e9 / since_ns as f64);
        }
        self.attaching.past.looked_ns = Some(now_ns);
    }

    pub(super) fn has_alarm(&self) -> bool {
        self.pace.alarm.as_ref().is_some_and(SwitchAlarm::is_watching)
    }

    /// Sets the alarm for storms of switches, for few threads and if there is another way than events of their own.
    pub(super) fn set_alarm(&mut self) {
        let threads = match self.sampler.attachment() {
            Attachment::Tasks(threads) if self.sampler.few_threads() && !self.attaching.choice.is_fixed() => {
                threads.clone()
            }
            _ => Vec::new(),
        };
        self.watch_for_storms(&threads);
    }

    fn watch_for_storms(&mut self, threads: &[u32]) {
        if let Some(alarm) = &mut self.pace.alarm {
            alarm.watch(threads);
        }
    }

    /// The alarm that ends a pause early, if there is one.
    pub(crate) fn alarm(&self) -> Option<&SwitchAlarm> {
        self.pace.alarm.as_ref()
    }

    /// Asks whether the way to attach is still the right one: once a second, and at every step where few threads make that
    /// cheap, since a storm of switches spends the budget of a second within some steps. Returns the context switches that the
    /// events made dearer, and whether the way changes.
    pub(super) fn look_at_attach(&mut self, now_ns: u64) -> (u64, bool) {
        let switches = self.context_switches();
        let observed = self.observe(switches);
        self.attaching.choice.set_budget(self.controller.budget_ratio());
        self.foresee_ways(now_ns, switches, observed.wall_ns);
        if self.attaching.choice.observe(now_ns, observed, || task_events(&self.session)).is_some() {
            self.attaching.attach_changed = true;
            self.go_another_way();
            return (switches, true);
        }
        // The remaining cost of the former way says nothing about the present one.
        let switches = match self.sampler.attachment() {
            Attachment::Tasks(_) | Attachment::ByItself => switches,
            Attachment::Cpus | Attachment::Cgroup(_) => {
                switches + self.attaching.switches.after_leaving(now_ns)
            }
        };
        if let Some(alarm) = self.pace.alarm.as_mut().filter(|alarm| alarm.rings() >= RINGS) {
            alarm.silence(); // no other way is better, whatever they cost; off until the next second
        }
        if self.attaching.choice.misses_short_lived() && !self.nature.attaches_itself {
            self.note(explain::short_lived(self.attaching.access.cpu_wide));
        }
        (switches, false)
    }

    /// What happened since the last look, as the choice of the attach mode needs it.
    fn observe(&mut self, switches: u64) -> Observed {
        let counts = &self.session.counts;
        let now = SeenCounters {
            samples: counts.samples,
            foreign: counts.foreign,
            foreign_records: counts.side_records.foreign,
            ends: counts.side_records.ends,
            target_cpu_ns: self.session.target_cpu_ns(),
            at_ns: self.session.elapsed_ns(),
        };
        let last = std::mem::replace(&mut self.attaching.seen, now);
        let foreign = now.foreign.saturating_sub(last.foreign) as f64;
        let foreign_records = now.foreign_records.saturating_sub(last.foreign_records) as f64;
        let ends = now.ends.saturating_sub(last.ends) as f64;
        let samples = now.samples.saturating_sub(last.samples) as f64;
        // At the wanted rate: what samples of other processes take from it is part of their cost. One target among many
        // is judged at its present rate and without own time, because both depend on the host's budget.
        let alone = self.pace.resting.is_none();
        let wanted = if alone { self.wanted_hz() / self.controller.rate_hz() } else { 1.0 };
        let non_target_sample_ns =
            if alone { self.non_target_sample_ns() } else { self.costs.model.per_sample_ns.mean_ns };
        Observed {
            extra_ns: switches as f64 * self.costs.model.per_switch_ns.mean_ns
                + wanted * foreign * non_target_sample_ns
                + foreign_records * self.costs.model.per_side_record_ns.mean_ns,
            samples_ns: wanted * samples * self.controller.cost().target.mean_ns,
            ends_ns: ends * self.settings.period_ns as f64 / 2.0,
            target_ns: now.target_cpu_ns.saturating_sub(last.target_cpu_ns) as f64,
            wall_ns: now.at_ns.saturating_sub(last.at_ns) as f64,
        }
    }

    /// Context switches of the target since the last look, where the events make them cost something, in those of a thread.
    pub(super) fn context_switches(&mut self) -> u64 {
        match self.sampler.attachment() {
            Attachment::Tasks(threads) => {
                self.attaching.group_switches = GroupSwitches::default(); // they would count on, and cost on
                let has_alarm = self.pace.alarm.as_ref().is_some_and(SwitchAlarm::is_watching);
                self.attaching.switches.with_events(threads, has_alarm)
            }
            Attachment::Cpus | Attachment::ByItself => {
                self.attaching.group_switches = GroupSwitches::default();
                0
            }
            // A kernel that cannot count them (before 5.13) leaves them out of the overhead.
            Attachment::Cgroup(group) => {
                let switches = self.attaching.group_switches.since_last_look(group).unwrap_or(0);
                (switches as f64 * GROUP_SWITCH).round() as u64
            }
        }
    }
}

/// Events that clocks for each thread would need, or a smaller number that is too many already.
fn task_events(session: &Session) -> usize {
    let live = session.processes.live().map(|(pid, _)| pid);
    count_events(&live.collect::<Vec<_>>(), limits::online_cpus().len(), procfs::thread_count)
}

/// The threads of a process are only counted where that can matter: it takes a file of `/proc` for each.
fn count_events(pids: &[u32], cpus: usize, threads_of: impl Fn(u32) -> usize) -> usize {
    let mut events = pids.len().saturating_mul(cpus); // a thread each at least
    for &pid in pids {
        if events > MANY_EVENTS {
            break;
        }
        events = events.saturating_add(threads_of(pid).saturating_sub(1).saturating_mul(cpus));
    }
    events
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn threads_are_counted_until_their_events_are_too_many() {
        let asked = Cell::new(0);
        let count = |processes: u32, threads| {
            asked.set(0);
            let threads_of = |_| {
                asked.set(asked.get() + 1);
                threads
            };
            (count_events(&(1..=processes).collect::<Vec<_>>(), 2, threads_of), asked.get())
        };
        assert_eq!(count(10, 3), (60, 10));
        assert_eq!(count(0, 3), (0, 0));
        assert_eq!(count(200, 1), (400, 0), "a thread each is too many");
        assert_eq!(count(100, 29), (200 + 56 + 56, 2), "those of two are");
        assert_eq!(count(2, usize::MAX).0, usize::MAX);
    }
}
