//! How to attach: events for each thread, for whole CPUs, or for a control group on each CPU. Whichever costs less here
//! and now.
//!
//! Events of threads cost the target at each of its context switches, and must be renewed for new threads. Events
//! of whole CPUs follow every thread by themselves, but interrupt whatever else runs there. Events of a control group
//! follow every thread too and interrupt nobody else; they cost something at each switch into the group and out of it,
//! and nothing at those within it. They are a way where the group holds the target and nobody else. Which is dearest
//! depends on the target and its neighbours, and shows only while it runs; so the cost is watched, and another
//! way is tried when it might be cheaper.
//!
//! Events of threads multiply with the CPUs. Where they would be too many, one event for each CPU has to do.
//!
//! Events of threads also end with them, and half a period with each: threads that live for a few periods are weighed
//! badly, those that live for less than one are never seen. Then CPUs or the group are sampled, whatever that costs.

use serde::Serialize;

use crate::rate::OWN_COST_FLOOR_CPUS;

/// The ways to attach, as `--attach-mode` names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AttachMode {
    /// Events of single threads.
    Task,
    /// Events of whole CPUs.
    Cpu,
    /// Events of a control group, one for each CPU.
    Cgroup,
}

/// In the order in which ways of unknown cost are tried.
const WAYS: [AttachMode; 3] = [AttachMode::Task, AttachMode::Cgroup, AttachMode::Cpu];

impl AttachMode {
    /// The name on the command line and in outputs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Task => "task",
            Self::Cpu => "cpu",
            Self::Cgroup => "cgroup",
        }
    }

    /// Whether threads that come are followed without events of their own, however short they live.
    pub fn follows_by_itself(self) -> bool {
        self != Self::Task
    }
}

/// What a switch out of a control group and back into it costs, in switches of a thread that has events of its own:
/// all events of the CPU are stopped and started for it, not swapped. On a virtual machine .82 µs against .45 µs (medians of
/// 41 comparisons, the machine was busy), and .71 µs against .36 µs (of 11).
pub const GROUP_SWITCH: f64 = 1.9;

/// Events beyond which single threads are not attached to unless nothing else is permitted.
const MANY_EVENTS: usize = 256;
/// Context switches of a target (per second of wall time) from which events of single threads are too dear to begin with:
/// at half a microsecond each, a fifth of a budget of 1%.
const MANY_SWITCHES_PER_S: f64 = 4000.0;
/// What such a switch is taken to cost before any was measured (s).
const USUAL_SWITCH_S: f64 = 0.5e-6;
/// A cost below this share of the target's CPU time is not worth a change.
const WORTH_A_CHANGE: f64 = 0.002;
/// What samples of strangers cost, relative to those of the target, is worth one from here on.
const LOST_TO_STRANGERS: f64 = 0.5;
/// Another way must have cost less than this share of the present one.
const CLEARLY_CHEAPER: f64 = 0.5;
/// A cost of the way to begin with, from which nobody waits for its measurement to be complete.
const CLEARLY_TOO_DEAR: f64 = 0.02;
/// CPU time of the target that says enough for that (ns).
const EARLY_NS: f64 = 50e6;
/// A cost that says enough for that: a tenth of what a budget of 1% leaves to a second of a CPU (ns).
pub const EARLY_COST_NS: f64 = 1e6;
/// Share of the target's CPU time that may pass between the last samples of its threads and their ends.
const SHORT_LIVED: f64 = 0.05;
/// For so long a way is kept, and its cost is measured (ns).
const DWELL_NS: u64 = 1_000_000_000;
/// Each time that threads turn out to be short-lived, what follows by itself is kept for twice as long, up to so many times.
const MOST_PATIENCE: u32 = 7;
/// For so long a measured cost is believed, and too many threads are expected to come back (ns).
const BELIEVED_NS: u64 = 120_000_000_000;

/// What one way to attach has cost.
#[derive(Clone, Copy, Debug)]
struct Measured {
    /// Share of the target's CPU time.
    ratio: f64,
    at_ns: u64,
}

/// What was seen of a target in a stretch of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Observed {
    /// What the way in force has cost beyond the target's samples (ns).
    pub extra_ns: f64,
    /// What the target's samples have cost it (ns).
    pub samples_ns: f64,
    /// Threads that ended, times half a period (ns).
    pub ends_ns: f64,
    /// CPU time that the scheduler charged to the target (ns).
    pub target_ns: f64,
    /// Length of the stretch (ns).
    pub wall_ns: f64,
}

impl Observed {
    fn plus(self, other: Self) -> Self {
        let sum = |a: f64, b: f64| if b.is_finite() && b > 0.0 { a + b } else { a };
        Observed {
            extra_ns: sum(self.extra_ns, other.extra_ns),
            samples_ns: sum(self.samples_ns, other.samples_ns),
            ends_ns: sum(self.ends_ns, other.ends_ns),
            target_ns: sum(self.target_ns, other.target_ns),
            wall_ns: sum(self.wall_ns, other.wall_ns),
        }
    }

    /// Set against what the budget is set against: a target that does next to nothing has as much to spend as one that uses a
    /// tenth of a CPU.
    fn cost_ratio(&self) -> f64 {
        self.extra_ns / self.target_ns.max(OWN_COST_FLOOR_CPUS * self.wall_ns).max(1.0)
    }

    /// Whether what is no sample of the target costs anything worth a change: of its CPU time, or, where that grows with the
    /// rate, of what is spent on sampling it. Where the budget binds, the latter is lost to the profile.
    fn is_worth_a_change(&self, mode: AttachMode) -> bool {
        self.is_lost_to_strangers(mode) || self.cost_ratio() >= WORTH_A_CHANGE
    }

    fn is_lost_to_strangers(&self, mode: AttachMode) -> bool {
        mode == AttachMode::Cpu && self.extra_ns > LOST_TO_STRANGERS * self.samples_ns
    }

    /// Whether this alone is too dear, however cheap it was before.
    fn is_a_storm(&self) -> bool {
        self.extra_ns >= EARLY_COST_NS && self.cost_ratio() >= CLEARLY_TOO_DEAR
    }

    fn is_short_lived(&self) -> bool {
        self.target_ns >= EARLY_NS && self.ends_ns > SHORT_LIVED * self.target_ns
    }
}

/// Chooses between the ways to attach by what each was seen to cost.
#[derive(Clone, Debug)]
pub struct AttachChoice {
    mode: AttachMode,
    /// The way before the last change.
    before: AttachMode,
    /// What can be had, that in force included.
    possible: Vec<AttachMode>,
    /// What the ways that were left have cost, by [`AttachMode`].
    costs: [Option<Measured>; WAYS.len()],
    since_ns: Option<u64>,
    observed: Observed,
    /// How often threads turned out to be too short-lived for events of their own.
    patience: u32,
    /// When there were last too many threads for events of their own.
    crowded_ns: Option<u64>,
    /// Whether threads were seen to be too short-lived for events of their own, which they had.
    missed_ends: bool,
    /// Whether other targets are sampled beside this one.
    among_others: bool,
    /// What switches were expected to cost with events of their own before any were opened, as a share of wall time.
    expected: Option<f64>,
}

impl AttachChoice {
    /// The way to begin with.
    ///
    /// `asked` is what the user wants, `cpu_permitted` what the kernel allows, `threads` and `cpus` the sizes of target
    /// and machine; `switches_per_s` how often the target was seen to switch.
    pub fn new(
        asked: Option<AttachMode>,
        cpu_permitted: bool,
        threads: usize,
        cpus: usize,
        switches_per_s: f64,
    ) -> Self {
        let crowded = threads.saturating_mul(cpus) > MANY_EVENTS;
        let first = if cpu_permitted && (crowded || switches_per_s > MANY_SWITCHES_PER_S) {
            AttachMode::Cpu
        } else {
            AttachMode::Task
        };
        let possible = match asked {
            Some(asked) => vec![asked],
            None if cpu_permitted => vec![AttachMode::Task, AttachMode::Cpu],
            None => vec![AttachMode::Task],
        };
        let mode = asked.unwrap_or(first);
        Self {
            mode,
            before: mode,
            possible,
            costs: [None; WAYS.len()],
            since_ns: None,
            observed: Observed::default(),
            patience: 0,
            crowded_ns: crowded.then_some(0), // where time begins at 0; else it is asked again
            missed_ends: false,
            among_others: false,
            expected: (switches_per_s > MANY_SWITCHES_PER_S).then_some(switches_per_s * USUAL_SWITCH_S),
        }
    }

    /// The target has a control group of its own, so that its events are a way too. Where one event for each CPU is what
    /// to begin with, it is the group's: it interrupts nobody else.
    ///
    /// Nothing changes where the user has chosen, or where whole CPUs are not permitted, since groups are not then either.
    #[must_use]
    pub fn with_group(mut self) -> Self {
        if self.possible.contains(&AttachMode::Cpu) && self.possible.len() > 1 {
            self.possible.push(AttachMode::Cgroup);
            if self.mode == AttachMode::Cpu {
                (self.mode, self.before) = (AttachMode::Cgroup, AttachMode::Cgroup);
            }
        }
        self
    }

    /// Other targets are sampled beside this one, each of which would interrupt every CPU for itself, and take in all strangers'
    /// samples: whole CPUs are a way out of what events of threads make much dearer, and no small saving. What they cost
    /// cannot be read off either where they are throttled: at a sample a second everything is cheap.
    #[must_use]
    pub fn among_others(mut self) -> Self {
        self.among_others = true;
        self
    }

    /// The target was seen to switch so often (per second of wall time), while events of its threads were not open: where that
    /// is too often for them, they are not tried out.
    pub fn expect_switches(&mut self, now_ns: u64, switches_per_s: f64) {
        if !self.mode.follows_by_itself() || switches_per_s <= MANY_SWITCHES_PER_S {
            return;
        }
        let ratio = switches_per_s * USUAL_SWITCH_S;
        self.costs[AttachMode::Task as usize] = Some(Measured { ratio, at_ns: now_ns });
    }

    /// The way in force.
    pub fn mode(&self) -> AttachMode {
        self.mode
    }

    /// The way that was changed to cannot be had; the one before is in force again, and the refused one is not tried again.
    pub fn refuse(&mut self) {
        self.possible.retain(|way| *way != self.mode);
        let left = self.possible.first().copied();
        self.mode = if self.before == self.mode { left.unwrap_or(self.mode) } else { self.before };
    }

    /// The control group is the target's own no longer. Returns the way that is in force instead of its events, if they were.
    pub fn lose_group(&mut self) -> Option<AttachMode> {
        if !self.offers_group() {
            return None;
        }
        self.possible.retain(|way| *way != AttachMode::Cgroup);
        if self.mode != AttachMode::Cgroup {
            return None;
        }
        let crowded = self.crowded_ns.is_some();
        let next = if crowded { AttachMode::Cpu } else { AttachMode::Task };
        (self.mode, self.before) = (next, next);
        Some(next)
    }

    /// Whether events of a control group are one of several ways.
    pub fn offers_group(&self) -> bool {
        !self.is_fixed() && self.possible.contains(&AttachMode::Cgroup)
    }

    /// Whether there is but one way.
    pub fn is_fixed(&self) -> bool {
        self.possible.len() < 2
    }

    /// Whether the target's threads were too short-lived for the way in force, and that could not be changed.
    pub fn misses_short_lived(&self) -> bool {
        self.is_fixed() && self.missed_ends
    }

    /// Takes in what was seen since the last call. Returns another way when it is time to change to it; it is then
    /// in force.
    ///
    /// `task_events` counts the events that single threads need at present (threads times CPUs); it is asked only when it
    /// matters, once a second.
    pub fn observe(
        &mut self,
        now_ns: u64,
        latest: Observed,
        task_events: impl FnOnce() -> usize,
    ) -> Option<AttachMode> {
        let since_ns = *self.since_ns.get_or_insert(now_ns);
        if let Some(ratio) = self.expected.take() {
            // As good as measured: to try it out would cost the budget of some seconds.
            self.costs[AttachMode::Task as usize] = Some(Measured { ratio, at_ns: now_ns });
        }
        self.observed = self.observed.plus(latest);
        let (short_lived, is_task) = (self.observed.is_short_lived(), self.mode == AttachMode::Task);
        self.missed_ends |= is_task && short_lived;
        let too_dear = self.is_clearly_too_dear() || latest.is_a_storm();
        let is_clear = is_task && short_lived || self.mode != AttachMode::Cpu && too_dear;
        if self.is_fixed() || !is_clear && now_ns.saturating_sub(since_ns) < self.dwell_ns() {
            return None;
        }
        let observed = std::mem::take(&mut self.observed);
        self.since_ns = Some(now_ns);
        let needs_one_for_all = short_lived || self.is_crowded(now_ns, task_events());
        let next = self.cheapest_other(now_ns, &observed, needs_one_for_all)?;
        self.patience += u32::from(short_lived && self.patience < MOST_PATIENCE);
        // Left for another reason than its cost, a way may be come back to once that reason is gone.
        let ratio = observed.cost_ratio();
        self.costs[self.mode as usize] = (!short_lived).then_some(Measured { ratio, at_ns: now_ns });
        (self.before, self.mode) = (self.mode, next);
        Some(next)
    }

    /// Events of single threads would be opened now, so many of them. Returns the way that is in force from now on, if they are
    /// too many and there is another: opening them costs most where they would soon be given up.
    pub fn would_open(&mut self, now_ns: u64, task_events: usize) -> Option<AttachMode> {
        if self.is_fixed() || self.mode.follows_by_itself() || !self.is_crowded(now_ns, task_events) {
            return None;
        }
        let next = self.cheapest_other(now_ns, &Observed::default(), true)?;
        (self.before, self.mode) = (self.mode, next);
        (self.since_ns, self.observed) = (Some(now_ns), Observed::default());
        Some(next)
    }

    /// Whether there are too many threads, or were of late: a pool that grows and shrinks changes nothing.
    fn is_crowded(&mut self, now_ns: u64, task_events: usize) -> bool {
        if task_events > MANY_EVENTS {
            self.crowded_ns = Some(now_ns);
        }
        self.crowded_ns.is_some_and(|then| now_ns.saturating_sub(then) < BELIEVED_NS)
    }

    fn dwell_ns(&self) -> u64 {
        if self.mode.follows_by_itself() { DWELL_NS << self.patience } else { DWELL_NS }
    }

    fn is_clearly_too_dear(&self) -> bool {
        self.observed.target_ns >= EARLY_NS && self.observed.cost_ratio() >= CLEARLY_TOO_DEAR
    }

    /// The other way that costs least as far as is known, if it is worth a change; what nobody has measured, first.
    /// Events of threads are none where threads `need` one for all, and are then left whatever the others cost.
    fn cheapest_other(&self, now_ns: u64, observed: &Observed, need_one_for_all: bool) -> Option<AttachMode> {
        let must = need_one_for_all && !self.mode.follows_by_itself();
        if !must && !observed.is_worth_a_change(self.mode) {
            return None;
        }
        let small = self.among_others && !must && observed.cost_ratio() < CLEARLY_TOO_DEAR;
        let throttled = self.among_others && observed.is_lost_to_strangers(self.mode);
        let known = |way: AttachMode| {
            let cost = self.costs[way as usize]?;
            (now_ns.saturating_sub(cost.at_ns) < BELIEVED_NS).then_some(cost.ratio)
        };
        let clearly = CLEARLY_CHEAPER * observed.cost_ratio();
        let enough = if throttled { clearly.max(CLEARLY_TOO_DEAR) } else { clearly };
        let is_better = |way: &AttachMode| must || known(*way).is_none_or(|ratio| ratio < enough);
        // What strangers' samples would cost is not known before they are taken; a group has none.
        let is_a_gamble = |way: AttachMode| {
            self.mode == AttachMode::Cgroup
                && way == AttachMode::Cpu
                && known(way).is_none()
                && observed.cost_ratio() < CLEARLY_TOO_DEAR
        };
        let others = WAYS.into_iter().filter(|way| {
            *way != self.mode
                && !is_a_gamble(*way)
                && !(small && *way == AttachMode::Cpu)
                && self.possible.contains(way)
                && (way.follows_by_itself() || !need_one_for_all)
                && is_better(way)
        });
        others.min_by(|a, b| known(*a).unwrap_or(-1.0).total_cmp(&known(*b).unwrap_or(-1.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Runs for `seconds` where each way has its cost; returns the changes.
    fn run(choice: &mut AttachChoice, seconds: u64, task: f64, cpu: f64) -> Vec<AttachMode> {
        let step = |second: u64| {
            let ratio = if choice.mode() == AttachMode::Task { task } else { cpu };
            let (extra_ns, target_ns) = (ratio * 1e9, 1e9);
            choice.observe(
                second * SECOND,
                Observed { extra_ns, target_ns, samples_ns: 1e9, ends_ns: 0.0, wall_ns: 1e9 },
                || 4,
            )
        };
        (0..seconds).filter_map(step).collect()
    }

    #[test]
    fn the_cheaper_way_is_found_and_kept() {
        let mut choice = AttachChoice::new(None, true, 2, 2, 0.0);
        assert_eq!(run(&mut choice, 60, 0.18, 0.03), [AttachMode::Cpu]);
        let mut choice = AttachChoice::new(None, true, 2, 2, 0.0);
        assert_eq!(run(&mut choice, 60, 0.0001, 0.03), []);
    }

    #[test]
    fn events_of_threads_that_switched_much_are_not_tried_out() {
        let mut choice = AttachChoice::new(None, true, 2, 2, 50_000.0);
        assert_eq!(run(&mut choice, 60, 0.3, 0.004), []);
        // Unless whole CPUs turn out to be dearer still.
        let mut choice = AttachChoice::new(None, true, 2, 2, 5_000.0);
        assert_eq!(run(&mut choice, 60, 0.003, 0.1), [AttachMode::Task]);
    }

    #[test]
    fn storms_that_were_seen_without_events_keep_these_away() {
        let mut choice = AttachChoice::new(None, true, 2, 2, 50_000.0);
        let mut changes = Vec::new();
        for second in 0..600 {
            if second % 60 == 59 {
                choice.expect_switches(second * SECOND, 50_000.0);
            }
            let observed =
                Observed { extra_ns: 4e6, target_ns: 1e9, samples_ns: 4e6, ends_ns: 0.0, wall_ns: 1e9 };
            changes.extend(choice.observe(second * SECOND, observed, || 4));
        }
        assert_eq!(changes, []);
        // Without a look, they would be tried out once the first one is forgotten.
        assert_eq!(run(&mut choice, 1, 0.3, 0.004), []);
        let observed =
            Observed { extra_ns: 4e6, target_ns: 1e9, samples_ns: 4e6, ends_ns: 0.0, wall_ns: 1e9 };
        let later = (800..803).find_map(|second| choice.observe(second * SECOND, observed, || 4));
        assert_eq!(later, Some(AttachMode::Task));
    }

    #[test]
    fn a_dearer_way_is_left_again_and_not_tried_for_a_while() {
        let mut choice = AttachChoice::new(None, true, 2, 2, 0.0);
        assert_eq!(run(&mut choice, 100, 0.003, 0.03), [AttachMode::Cpu, AttachMode::Task]);
    }

    #[test]
    fn a_way_that_cannot_be_had_is_not_tried_again() {
        let mut choice = AttachChoice::new(None, true, 2, 2, 0.0);
        assert_eq!(run(&mut choice, 5, 0.18, 0.0), [AttachMode::Cpu]);
        choice.refuse();
        assert_eq!(run(&mut choice, 60, 0.18, 0.0), []);
        assert_eq!(choice.mode(), AttachMode::Task);
    }

    #[test]
    fn what_was_asked_for_stays() {
        let mut choice = AttachChoice::new(Some(AttachMode::Task), true, 1000, 64, 1e6);
        assert_eq!(run(&mut choice, 60, 0.5, 0.0), []);
        assert_eq!(AttachChoice::new(None, false, 1000, 64, 1e6).mode(), AttachMode::Task);
        assert_eq!(AttachChoice::new(None, true, 1000, 64, 0.0).mode(), AttachMode::Cpu);
        assert_eq!(AttachChoice::new(None, true, 2, 2, 50_000.0).mode(), AttachMode::Cpu);
    }

    fn seen(extra_ns: f64, ends_ns: f64, target_ns: f64) -> Observed {
        Observed { extra_ns, samples_ns: 1e9, ends_ns, target_ns, wall_ns: target_ns }
    }

    #[test]
    fn what_is_clearly_too_dear_is_left_at_once_but_not_for_a_moment_of_it() {
        let mut choice = AttachChoice::new(None, true, 1, 2, 0.0);
        assert_eq!(choice.observe(0, seen(0.9e6, 0.0, 25e6), || 4), None); // too little CPU time to tell
        assert_eq!(choice.observe(SECOND / 5, seen(0.9e6, 0.0, 25e6), || 4), Some(AttachMode::Cpu));
        let mut choice = AttachChoice::new(None, true, 1, 2, 0.0);
        assert_eq!(choice.observe(0, seen(0.5e6, 0.0, 100e6), || 4), None);
        assert_eq!(choice.observe(SECOND, seen(0.5e6, 0.0, 100e6), || 4), Some(AttachMode::Cpu));
    }

    #[test]
    fn a_few_switches_are_no_reason_to_leave_though_samples_are_fewer() {
        let mut choice = AttachChoice::new(None, true, 1, 2, 0.0);
        let few = |second: u64| {
            let seen =
                Observed { extra_ns: 0.3e6, samples_ns: 0.1e6, ends_ns: 0.0, target_ns: 1e9, wall_ns: 1e9 };
            choice.observe(second * SECOND, seen, || 4)
        };
        assert_eq!((0..10).filter_map(few).next(), None);
    }

    /// Twenty looks a second at something that has not happened: two percent of next to nothing.
    #[test]
    fn the_switches_of_a_target_that_does_next_to_nothing_are_no_reason_to_leave() {
        let mut choice = AttachChoice::new(None, true, 1, 2, 0.0);
        let idle = Observed { wall_ns: 1e9, ..seen(20e3, 0.0, 500e3) };
        assert_eq!((0..600).filter_map(|second| choice.observe(second * SECOND, idle, || 4)).next(), None);
    }

    #[test]
    fn a_storm_after_a_calm_is_left_at_once() {
        let mut choice = AttachChoice::new(None, true, 1, 2, 0.0);
        assert_eq!(choice.observe(0, seen(0.0, 0.0, 900e6), || 4), None);
        assert_eq!(choice.observe(SECOND / 2, seen(1e6, 0.0, 5e6), || 4), None); // a gust
        assert_eq!(choice.observe(SECOND / 2, seen(2.5e6, 0.0, 10e6), || 4), Some(AttachMode::Cpu));
    }

    #[test]
    fn short_lived_threads_are_sampled_by_whole_cpus_whatever_that_costs() {
        let mut choice = AttachChoice::new(None, true, 1, 2, 0.0);
        assert_eq!(choice.observe(0, seen(0.0, 4e6, 100e6), || 4), None);
        assert_eq!(choice.observe(1, seen(0.0, 8e6, 100e6), || 4), Some(AttachMode::Cpu));
        let dear = |second: u64| choice.observe(second * SECOND, seen(0.2e9, 0.06e9, 1e9), || 4);
        assert_eq!((1..60).filter_map(dear).collect::<Vec<_>>(), []);
        assert!(!choice.misses_short_lived());
        // Once they live longer, what counts is the cost again.
        let longer = |second: u64| choice.observe(second * SECOND, seen(0.2e9, 0.0, 1e9), || 4);
        assert_eq!((60..65).filter_map(longer).next(), Some(AttachMode::Task));
    }

    #[test]
    fn whole_cpus_are_left_where_most_samples_are_strangers_and_threads_live_on() {
        let mut choice = AttachChoice::new(None, true, 1, 2, 0.0);
        assert_eq!(choice.observe(0, seen(0.0, 8e6, 100e6), || 4), Some(AttachMode::Cpu));
        // A fifth of a percent of the CPU time at most, but twice what the target's own samples cost.
        let idle = Observed { extra_ns: 1e6, samples_ns: 0.5e6, ends_ns: 0.0, target_ns: 1e9, wall_ns: 1e9 };
        let changes = |choice: &mut AttachChoice, from: u64| {
            (from..from + 60).find(|second| choice.observe(second * SECOND, idle, || 4).is_some())
        };
        let (first, short) = (changes(&mut choice, 1), seen(0.0, 80e6, 1000e6));
        assert_eq!((first, choice.mode()), (Some(2), AttachMode::Task));
        // Each time it was wrong, the next change waits longer.
        assert_eq!(choice.observe(100 * SECOND, short, || 4), Some(AttachMode::Cpu));
        assert_eq!(changes(&mut choice, 101), Some(104));
    }

    #[test]
    fn among_others_whole_cpus_are_for_storms_and_left_where_strangers_take_most() {
        let choice = || AttachChoice::new(None, true, 1, 2, 0.0).among_others();
        assert_eq!(run(&mut choice(), 60, 0.01, 0.0), []);
        let mut storm = choice();
        assert_eq!(run(&mut storm, 1, 0.18, 0.03), [AttachMode::Cpu]);
        // It goes on costing more than events of threads would, but for the storm.
        assert_eq!(run(&mut storm, 60, 0.18, 0.03), []);
        // Short-lived ones are over, and the clocks stand at their slowest: nothing seems to cost anything.
        let mut throttled = choice();
        assert_eq!(throttled.observe(0, seen(0.0, 8e6, 100e6), || 4), Some(AttachMode::Cpu));
        let slow =
            Observed { extra_ns: 0.1e6, samples_ns: 0.02e6, ends_ns: 0.0, target_ns: 1e9, wall_ns: 1e9 };
        let back = (1..60).find(|second| throttled.observe(second * SECOND, slow, || 4).is_some());
        assert_eq!((back.is_some(), throttled.mode()), (true, AttachMode::Task));
    }

    #[test]
    fn short_lived_threads_are_told_of_where_the_way_is_fixed() {
        for (asked, permitted) in [(Some(AttachMode::Task), true), (None, false)] {
            let mut choice = AttachChoice::new(asked, permitted, 1, 2, 0.0);
            assert_eq!(choice.observe(0, seen(0.0, 4e6, 100e6), || 4), None);
            assert!(!choice.misses_short_lived());
            assert_eq!(choice.observe(1, seen(0.0, 8e6, 100e6), || 4), None);
            assert!(choice.misses_short_lived());
        }
    }

    #[test]
    fn too_many_threads_are_never_given_events_of_their_own() {
        let mut choice = AttachChoice::new(None, true, 1000, 64, 0.0);
        let dear = seen(2.0, 0.0, 1.0);
        let crowd = |second: u64| choice.observe(second * SECOND, dear, || 64_000);
        assert_eq!((0..600).filter_map(crowd).next(), None);
        // Most of them are gone: for two minutes they may come back.
        let few = |second: u64| Some((second, choice.observe(second * SECOND, dear, || 64)?));
        assert_eq!((600..800).find_map(few), Some((719, AttachMode::Task)));
    }

    #[test]
    fn a_crowd_that_comes_is_left_to_whole_cpus_and_one_that_comes_and_goes_changes_nothing() {
        let mut choice = AttachChoice::new(None, true, 1, 64, 0.0);
        let pool = |second: u64| if second % 20 < 10 { 64 } else { 64_000 };
        let swings = |second: u64| choice.observe(second * SECOND, seen(0.1, 0.0, 1.0), || pool(second));
        assert_eq!((0..600).filter_map(swings).collect::<Vec<_>>(), [AttachMode::Cpu]);
        let mut cheap = AttachChoice::new(None, true, 1, 64, 0.0);
        assert_eq!(cheap.observe(0, seen(0.0, 0.0, 1e9), || 64_000), None);
        assert_eq!(cheap.observe(SECOND, seen(0.0, 0.0, 1e9), || 64_000), Some(AttachMode::Cpu));
    }

    #[test]
    fn hostile_figures_do_no_harm() {
        let mut choice = AttachChoice::new(None, true, usize::MAX, usize::MAX, f64::NAN);
        for x in [f64::NAN, f64::INFINITY, -1.0, f64::MAX, 0.0] {
            choice.observe(u64::MAX, seen(x, x, x), || 4);
            choice.observe(0, seen(x, -x, 1.0), || 4);
        }
    }

    /// As [`run`], with a cost for each of the three ways.
    fn run_three(
        choice: &mut AttachChoice,
        costs: [f64; 3],
        seconds: std::ops::Range<u64>,
    ) -> Vec<AttachMode> {
        let step = |second: u64| {
            let extra_ns = costs[choice.mode() as usize] * 1e9;
            choice.observe(second * SECOND, seen(extra_ns, 0.0, 1e9), || 4)
        };
        seconds.filter_map(step).collect()
    }

    #[test]
    fn of_three_ways_the_cheapest_is_kept() {
        use AttachMode::{Cgroup, Cpu, Task};
        let choice = || AttachChoice::new(None, true, 2, 2, 0.0).with_group();
        // By mode: task, cpu, cgroup.
        for (costs, expected) in [
            ([0.001, 0.3, 0.3], vec![]),
            ([0.1, 0.3, 0.001], vec![Cgroup]),
            ([0.1, 0.01, 0.05], vec![Cgroup, Cpu]),
            ([0.1, 0.3, 0.08], vec![Cgroup, Cpu, Cgroup]),
            ([0.01, 0.3, 0.08], vec![Cgroup, Cpu, Task]),
        ] {
            assert_eq!(run_three(&mut choice(), costs, 0..60), expected, "{costs:?}");
        }
    }

    #[test]
    fn what_needs_one_event_for_all_has_the_groups_first() {
        let crowd = AttachChoice::new(None, true, 1000, 64, 0.0).with_group();
        assert_eq!(crowd.mode(), AttachMode::Cgroup);
        let mut short = AttachChoice::new(None, true, 1, 2, 0.0).with_group();
        assert_eq!(short.observe(0, seen(0.0, 80e6, 1e9), || 4), Some(AttachMode::Cgroup));
        // The group turns out to be dear, and the threads are as short-lived as before.
        let dear = |second: u64| short.observe(second * SECOND, seen(0.2e9, 0.06e9, 1e9), || 4);
        assert_eq!((1..20).find_map(dear), Some(AttachMode::Cpu));
    }

    #[test]
    fn a_group_that_is_no_longer_the_targets_own_is_left_for_good() {
        let mut choice = AttachChoice::new(None, true, 2, 2, 0.0).with_group();
        assert_eq!(run_three(&mut choice, [0.1, 0.3, 0.001], 0..9), [AttachMode::Cgroup]);
        assert_eq!(choice.lose_group(), Some(AttachMode::Task));
        assert_eq!(choice.lose_group(), None);
        assert_eq!(run_three(&mut choice, [0.1, 0.05, 0.001], 10..60), [AttachMode::Cpu]);
        let asked = || AttachChoice::new(Some(AttachMode::Cgroup), true, 2, 2, 0.0);
        assert_eq!((asked().lose_group(), asked().with_group().mode()), (None, AttachMode::Cgroup));
        let alone = AttachChoice::new(None, false, 2, 2, 0.0).with_group();
        assert!(!alone.offers_group());
    }

    #[test]
    fn a_crowd_is_not_given_events_only_to_lose_them_again() {
        let mut choice = AttachChoice::new(None, true, 1, 2, 0.0);
        assert_eq!(choice.would_open(5, MANY_EVENTS), None);
        assert_eq!(choice.would_open(5, MANY_EVENTS + 1), Some(AttachMode::Cpu));
        assert_eq!((choice.mode(), choice.would_open(6, 1_000_000)), (AttachMode::Cpu, None));
        for mut fixed in [
            AttachChoice::new(Some(AttachMode::Task), true, 1, 2, 0.0),
            AttachChoice::new(None, false, 1, 2, 0.0),
        ] {
            assert_eq!((fixed.would_open(5, 1_000_000), fixed.mode()), (None, AttachMode::Task));
        }
    }

    #[test]
    fn a_refused_way_leaves_the_others() {
        let mut choice = AttachChoice::new(None, true, 2, 2, 0.0).with_group();
        assert_eq!(run_three(&mut choice, [0.1, 0.01, 0.0], 0..3), [AttachMode::Cgroup]);
        choice.refuse();
        assert_eq!(choice.mode(), AttachMode::Task);
        assert_eq!(run_three(&mut choice, [0.1, 0.01, 0.0], 3..60), [AttachMode::Cpu]);
    }
}
