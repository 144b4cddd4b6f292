//! Which clock counts, and what its samples stand for.
//!
//! Clocks are renewed while the old ones run, so that no task is ever without one. Meanwhile two clocks sample the same
//! time, and a child born then inherits both. Exactly one of them counts: a task's own clock from its start on; for a
//! task without one, a clock of the set in force. That set may contain two for a task: a thread born while clocks are
//! renewed inherits a new clock and gets one of its own, and its children inherit both.
//!
//! An inherited event cannot be retuned: the call reaches the parent's event only, and the kernel swaps the
//! contexts of parent and child. Samples carry the stream id, which tells the two apart: an event of ours has a
//! timeline, an inherited one has the period it was born with.

use rustc_hash::{FxHashMap, FxHashSet};

use super::{Dither, PeriodTimeline};

/// How long after its end a retired clock's records are still read (ns).
const FORGET_AFTER_NS: u64 = 5_000_000_000;

/// What a clock follows: a task, or everything (`None`), on one CPU. The history of its periods stays when its event is
/// reopened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClockSlot {
    /// Thread.
    pub tid: Option<u32>,
    /// CPU.
    pub cpu: u32,
}

/// The properties of a sample that determine its weight.
#[derive(Clone, Copy, Debug)]
pub struct Hit {
    /// The event that we opened; for an inherited event, the one it was inherited from (`PERF_SAMPLE_IDENTIFIER`).
    pub event: u64,
    /// The event itself (`PERF_SAMPLE_STREAM_ID`).
    pub stream: u64,
    /// Thread that was hit.
    pub tid: u32,
    /// CPU it ran on.
    pub cpu: u32,
    /// Monotonic clock (ns).
    pub time_ns: u64,
    /// The event's period when it was opened or inherited (ns).
    pub opened_period_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct ClockLife {
    slot: ClockSlot,
    /// From here on it counts for the task it follows,
    started_ns: u64,
    /// from here on for those that inherited it,
    in_force_ns: u64,
    /// and until here.
    retired_ns: u64,
    /// The number of its set.
    set: u64,
}

impl ClockLife {
    fn in_force(&self, at_ns: u64) -> bool {
        (self.in_force_ns..self.retired_ns).contains(&at_ns)
    }
}

/// The clocks that run or ran until lately.
#[derive(Clone, Debug, Default)]
pub struct ClockBook {
    clocks: FxHashMap<u64, ClockLife>,
    /// The events of each slot, oldest first.
    events: FxHashMap<ClockSlot, Vec<u64>>,
    timelines: FxHashMap<ClockSlot, PeriodTimeline>,
    /// Inherited events that were sampled, and the event that they come from.
    inherited: FxHashMap<u64, u64>,
    /// Which of them counts for a task that has none of its own: the one that sampled it first.
    counting: FxHashMap<ClockSlot, u64>,
    cpus: FxHashSet<u32>,
    /// Number of sets that were put in force.
    sets: u64,
    twice_ns: u64,
}

impl ClockBook {
    /// Enters a clock that was started at `at_ns`, with a period drawn around `mean_ns`. For tasks that inherit it,
    /// it counts from the next [`hand_over`](Self::hand_over) on.
    pub fn started(&mut self, event: u64, slot: ClockSlot, at_ns: u64, period_ns: u64, mean_ns: u64) {
        let clock = ClockLife {
            slot,
            started_ns: at_ns,
            in_force_ns: u64::MAX,
            retired_ns: u64::MAX,
            set: self.sets,
        };
        self.clocks.insert(event, clock);
        self.events.entry(slot).or_default().push(event);
        self.cpus.insert(slot.cpu);
        self.timelines
            .entry(slot)
            .and_modify(|timeline| timeline.set(at_ns, period_ns, mean_ns))
            .or_insert_with(|| PeriodTimeline::new(at_ns, period_ns));
    }

    /// Whether the clock of a slot is a whole CPU's, see [`PeriodTimeline::run_on`].
    pub fn run_on(&mut self, slot: ClockSlot, runs_on: bool) {
        if let Some(timeline) = self.timelines.get_mut(&slot) {
            timeline.run_on(runs_on);
        }
    }

    /// At `at_ns` the outgoing clocks cease to count, and all others are in force.
    pub fn hand_over(&mut self, at_ns: u64, outgoing: impl IntoIterator<Item = u64>) {
        for event in outgoing {
            if let Some(clock) = self.clocks.get_mut(&event) {
                clock.retired_ns = clock.retired_ns.min(at_ns);
            }
        }
        let incoming = |clock: &&mut ClockLife| clock.in_force_ns == u64::MAX;
        self.clocks.values_mut().filter(incoming).for_each(|clock| clock.in_force_ns = at_ns);
        self.sets += 1;
    }

    /// A thread has ended: a later thread with its id has no clock of its own.
    pub fn ended(&mut self, tid: u32) {
        for &cpu in &self.cpus {
            let slot = ClockSlot { tid: Some(tid), cpu };
            self.events.remove(&slot);
            self.counting.remove(&slot);
        }
    }

    /// Whether to draw a new period for the clock of a slot now; see [`PeriodTimeline::due`].
    pub fn due(&mut self, slot: ClockSlot, now_ns: u64, mean_ns: u64, dither: &mut Dither) -> bool {
        self.timelines.get_mut(&slot).is_some_and(|timeline| timeline.due(now_ns, mean_ns, dither))
    }

    /// Notes a new period for the clock of a slot; see [`PeriodTimeline::set`].
    pub fn set(&mut self, slot: ClockSlot, at_ns: u64, period_ns: u64, mean_ns: u64) {
        if let Some(timeline) = self.timelines.get_mut(&slot) {
            timeline.set(at_ns, period_ns, mean_ns);
        }
    }

    /// The CPU time that a sample stands for (ns); `None` if another clock counts for it. Samples must come in the
    /// order of their times.
    pub fn weigh(&mut self, hit: &Hit) -> Option<u64> {
        let counts = self.counting(hit)?;
        if counts != hit.event {
            if self.set_of(counts).is_some() && self.set_of(counts) == self.set_of(hit.event) {
                self.twice_ns = self.twice_ns.saturating_add(hit.opened_period_ns);
            }
            return None;
        }
        let own = self.clocks.get(&hit.stream).map(|clock| clock.slot);
        match own.and_then(|slot| self.timelines.get_mut(&slot)) {
            Some(timeline) => Some(timeline.weight(hit.time_ns)),
            None => Some(self.inherited_weight(hit)),
        }
    }

    /// CPU time that two clocks of one set have sampled (ns), by the samples that count for nothing.
    pub fn twice_ns(&self) -> u64 {
        self.twice_ns
    }

    fn set_of(&self, event: u64) -> Option<u64> {
        self.clocks.get(&event).map(|clock| clock.set)
    }

    /// Weight of a sample by an inherited clock, which keeps the period it was born with and reports it. When its task
    /// ends, half a period on average was not sampled: the first sample stands for it.
    fn inherited_weight(&mut self, hit: &Hit) -> u64 {
        let is_first = self.inherited.insert(hit.stream, hit.event).is_none();
        let unsampled_ns = if is_first { hit.opened_period_ns / 2 } else { 0 };
        hit.opened_period_ns.saturating_add(unsampled_ns)
    }

    /// The event that counts for the task where and when it was hit.
    fn counting(&mut self, hit: &Hit) -> Option<u64> {
        if let Some(own) = self.own_clock(hit) {
            return Some(own);
        }
        let in_force = |event| self.clocks.get(&event).is_some_and(|clock| clock.in_force(hit.time_ns));
        if self.clocks.contains_key(&hit.event) && !in_force(hit.event) {
            return None;
        }
        let slot = ClockSlot { tid: Some(hit.tid), cpu: hit.cpu };
        let before = self.counting.get(&slot).copied().filter(|event| in_force(*event));
        Some(before.unwrap_or_else(|| {
            self.counting.insert(slot, hit.event);
            hit.event
        }))
    }

    /// The latest clock that followed the task, or the whole CPU, when the sample was taken.
    fn own_clock(&self, hit: &Hit) -> Option<u64> {
        let slots = [Some(hit.tid), None].map(|tid| ClockSlot { tid, cpu: hit.cpu });
        let events = slots.iter().filter_map(|slot| self.events.get(slot)).flatten();
        let started = events.filter_map(|event| Some((event, self.clocks.get(event)?)));
        let running =
            started.filter(|(_, clock)| (clock.started_ns..clock.retired_ns).contains(&hit.time_ns));
        running.max_by_key(|(_, clock)| clock.started_ns).map(|(event, _)| *event)
    }

    /// Forgets clocks that were retired long ago.
    pub fn forget(&mut self, now_ns: u64) {
        self.clocks.retain(|_, clock| now_ns.saturating_sub(clock.retired_ns) < FORGET_AFTER_NS);
        let clocks = &self.clocks;
        self.events.retain(|_, events| {
            events.retain(|event| clocks.contains_key(event));
            !events.is_empty()
        });
        let used: FxHashSet<ClockSlot> = clocks.values().map(|clock| clock.slot).collect();
        self.timelines.retain(|slot, _| used.contains(slot));
        self.inherited.retain(|_, event| clocks.contains_key(event));
        self.counting.retain(|_, event| clocks.contains_key(event));
    }

    /// Whether the event is one that is still known.
    pub fn knows(&self, event: u64) -> bool {
        self.clocks.contains_key(&event)
    }
}

#[cfg(test)]
mod tests;
