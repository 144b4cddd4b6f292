//! How to attach: events for each thread, for whole CPUs, or for a control group on each CPU. Whichever costs less here
//! and now.
//!
//! Events of threads cost the target at each of its context switches, and must be renewed for new threads.
//! Events of whole CPUs follow every thread by themselves, but interrupt whatever else runs there. Events of
//! a control group follow every thread too and interrupt nobody else; they cost something at each switch into
//! the group and out of it, and nothing at those within it. They are a way where the group holds the target
//! and nobody else. Which is dearest depends on the target and its neighbours, and shows only while it runs;
//! so the cost is watched, and another way is tried when it might be cheaper. What another way would cost can
//! often be told before: that of whole CPUs by what else keeps them busy, that of threads by their switches.
//! Then nothing is tried.
//!
//! Costs are those at the wanted rate, for the target and the profiler: two budgets bound them, one for the
//! target and one for the profiler itself. But switches cost the same at any rate, and the target alone.
//! Where they take half of what it may be slowed down by, anything that costs less is better, and where they
//! take all of it, everything is.
//!
//! Events of threads multiply with the CPUs. Where they would be too many, one event for each CPU has to do.
//!
//! Events of threads also end with them, and half a period with each: threads that live for a few periods are weighed
//! badly, those that live for less than one are never seen. Then CPUs or the group are sampled, whatever that costs.
//!
//! Events of a control group are per CPU and run for the group only, with one countdown for all its threads, so
//! short-lived threads are weighted correctly. They can follow processes only while these have the group to
//! themselves, which is checked once a second. The group's CPU time is the kernel's account, which lags by at
//! most a step.
//!
//! With several targets, events of whole CPUs are used only where context switches alone take half of a
//! target's budget (a pool of threads that wake all the time): every target would interrupt all CPUs for
//! itself, and once that is throttled to a sample a second it seems to cost nothing.

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
pub const MANY_EVENTS: usize = 256;
/// Context switches of a target (per second of wall time) from which events of single threads are too dear to begin with:
/// at half a microsecond each, a fifth of a budget of 1%.
const MANY_SWITCHES_PER_S: f64 = 4000.0;
/// What such a switch is taken to cost before any was measured (s).
const USUAL_SWITCH_S: f64 = 0.5e-6;
/// A cost below this share of the target's CPU time is not worth a change.
const WORTH_A_CHANGE: f64 = 0.002;
/// What samples of non-target processes cost, relative to those of the target, is worth one from here on.
const LOST_TO_NON_TARGETS: f64 = 0.5;
/// Another way must have cost less than this share of the present one.
const CLEARLY_CHEAPER: f64 = 0.5;
/// A cost of the way to begin with, from which nobody waits for its measurement to be complete.
const CLEARLY_TOO_DEAR: f64 = 0.02;
/// The same beside other targets, as a share of the target's budget: what is spent without a sample is not left for samples.
const TOO_DEAR_FOR_BUDGET: f64 = 0.5;
/// Events of threads that would take more than this share of the target's budget by switches are not gone over to.
const NEARLY_ALL: f64 = 0.9;
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

/// What ways to attach would cost beyond the target's samples (CPU time per wall time), at the rate that is wanted; `None`
/// where nobody knows before they are tried.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Foreseen {
    /// Events of threads: their switches.
    pub task_cpus: Option<f64>,
    /// Whole CPUs: samples of whatever else runs there, with what the profiler does about them.
    pub cpu_cpus: Option<f64>,
    /// The control group: switches out of it and into it.
    pub group_cpus: Option<f64>,
}

impl Foreseen {
    fn of(&self, way: AttachMode) -> Option<f64> {
        let cpus = match way {
            AttachMode::Task => self.task_cpus,
            AttachMode::Cpu => self.cpu_cpus,
            AttachMode::Cgroup => self.group_cpus,
        };
        cpus.filter(|cpus| cpus.is_finite() && *cpus >= 0.0)
    }
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
        self.extra_ns / self.base_ns()
    }

    fn base_ns(&self) -> f64 {
        self.target_ns.max(OWN_COST_FLOOR_CPUS * self.wall_ns).max(1.0)
    }

    /// The same of what would have cost so much (CPU time per wall time).
    fn ratio_of(&self, cpus: f64) -> f64 {
        cpus * self.wall_ns / self.base_ns()
    }

    /// Whether what is no sample of the target costs anything worth a change: of its CPU time, or, where that grows with the
    /// rate, of what is spent on sampling it. Where the budget binds, the latter is lost to the profile.
    fn is_worth_a_change(&self, mode: AttachMode) -> bool {
        self.is_lost_to_non_targets(mode) || self.cost_ratio() >= WORTH_A_CHANGE
    }

    fn is_lost_to_non_targets(&self, mode: AttachMode) -> bool {
        mode == AttachMode::Cpu && self.extra_ns > LOST_TO_NON_TARGETS * self.samples_ns
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
    /// Cost (ratio of the target's CPU time) from which whole CPUs are a way all the same.
    too_dear: f64,
    /// What the target may be slowed down by (ratio of its CPU time).
    budget_ratio: f64,
    /// What the ways would cost that are not in force.
    foreseen: Foreseen,
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
            crowded_ns: crowded.then_some(0), // where time begins at 0; else it is queried again
            missed_ends: false,
            among_others: false,
            too_dear: CLEARLY_TOO_DEAR,
            budget_ratio: f64::INFINITY,
            foreseen: Foreseen::default(),
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

    /// Other targets are sampled beside this one, each of which would interrupt every CPU for itself, and take in all non-target
    /// samples: whole CPUs are a way out where events of threads take half of the budget without a sample, and no small
    /// saving. What they cost cannot be read off either where they are throttled: at a sample a second everything is cheap.
    #[must_use]
    pub fn among_others(mut self) -> Self {
        self.among_others = true;
        self
    }

    /// What is foreseen before anything is sampled, of a target that keeps so many CPUs busy: one that switches much has events
    /// of its threads all the same, where samples of whatever else runs would cost as much.
    #[must_use]
    pub fn foreseeing(mut self, foreseen: Foreseen, target_cpus: f64) -> Self {
        let (Some(task), Some(cpu)) = (foreseen.of(AttachMode::Task), foreseen.of(AttachMode::Cpu)) else {
            return self;
        };
        let is_affordable =
            task < TOO_DEAR_FOR_BUDGET * self.budget_ratio * target_cpus.max(OWN_COST_FLOOR_CPUS);
        let is_open = !self.is_fixed() && self.crowded_ns.is_none() && self.mode.follows_by_itself();
        if is_open && is_affordable && cpu >= CLEARLY_CHEAPER * task {
            (self.mode, self.before, self.expected) = (AttachMode::Task, AttachMode::Task, None);
        }
        self
    }

    /// What the ways would cost now that are not in force, as far as it can be told. It counts for more than what they have cost
    /// when they were in force.
    pub fn foresee(&mut self, foreseen: Foreseen) {
        self.foreseen = foreseen;
    }

    /// What may be spent on the target (ratio of its CPU time).
    pub fn set_budget(&mut self, budget_ratio: f64) {
        self.budget_ratio = budget_ratio;
        self.too_dear = CLEARLY_TOO_DEAR.min(TOO_DEAR_FOR_BUDGET * budget_ratio);
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
    /// `task_events` counts the events that single threads need at present (threads times CPUs), or says any number above
    /// [`MANY_EVENTS`] if there are more; it is asked only when it matters, once a second.
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
        let small = self.among_others && !must && observed.cost_ratio() < self.too_dear;
        let throttled = self.among_others && observed.is_lost_to_non_targets(self.mode);
        let measured = |way: AttachMode| {
            let cost = self.costs[way as usize]?;
            (now_ns.saturating_sub(cost.at_ns) < BELIEVED_NS).then_some(cost.ratio)
        };
        let foreseen = |way: AttachMode| Some(observed.ratio_of(self.foreseen.of(way)?));
        let known = |way: AttachMode| foreseen(way).or_else(|| measured(way));
        let ratio = observed.cost_ratio();
        let clearly = match self.mode {
            AttachMode::Task if ratio >= self.budget_ratio => f64::INFINITY, // a rate can be lowered, and switches cannot
            AttachMode::Task if ratio >= TOO_DEAR_FOR_BUDGET * self.budget_ratio => ratio,
            _ => CLEARLY_CHEAPER * ratio,
        };
        let enough = if throttled { clearly.max(self.too_dear) } else { clearly };
        let takes_all = |way: AttachMode| {
            let switches = foreseen(way).filter(|_| way == AttachMode::Task);
            switches.is_some_and(|ratio| ratio >= NEARLY_ALL * self.budget_ratio)
        };
        let is_better = |way: &AttachMode| must || known(*way).is_none_or(|ratio| ratio < enough);
        // What non-target samples would cost is not known before they are taken; a group has none.
        let is_a_gamble = |way: AttachMode| {
            self.mode == AttachMode::Cgroup
                && way == AttachMode::Cpu
                && known(way).is_none()
                && observed.cost_ratio() < CLEARLY_TOO_DEAR
        };
        let is_out = |way: AttachMode| is_a_gamble(way) || takes_all(way);
        let others = WAYS.into_iter().filter(|way| {
            *way != self.mode
                && !is_out(*way)
                && !(small && *way == AttachMode::Cpu)
                && self.possible.contains(way)
                && (way.follows_by_itself() || !need_one_for_all)
                && is_better(way)
        });
        others.min_by(|a, b| known(*a).unwrap_or(-1.0).total_cmp(&known(*b).unwrap_or(-1.0)))
    }
}

#[cfg(test)]
mod tests;
