//! Samples by timer signals: an agent in each process takes them, and this side reads what it wrote.
//!
//! Agents announce processes, threads and mapped code; the session receives them as the records that the kernel
//! would have written.
//!
//! A timer on CPU time only expires at the kernel's ticks, up to one tick late. So its expiries are a grid in
//! the thread's CPU time that the kernel keeps (`it_interval`), and a sample stands for the intervals that have
//! passed (`si_overrun`). The weights of a thread add up to its CPU time, and the handler needs no clock beyond
//! the one in user space. The first expiry falls anywhere into an interval, so that short threads are sampled
//! in proportion to their time. What was due when a thread ended between ticks is reported.
//!
//! Rings for half as many threads more than there are kept ready, and reserved by the profiler
//! ([`AgentMemory::reserve`]): a page that the target wrote first would be charged to the target, and end it
//! where it has no memory left. So rings are small where there are many: 32 MiB for 128 threads.

mod descendants;
mod injected_agent;
mod new_thread;
mod shared_memory;
mod slots;
mod unannounced;

use std::io;
use std::sync::Arc;

use profiler_core::machine::Machine;
use profiler_core::rate::{AtTick, CostModel, Dither, HandlerTime};
use profiler_core::record::{RawData, RawSample, Record, StackCopy, Task};
use profiler_core::resources;
use profiler_core::unwind::method::Method;
use rustc_hash::FxHashSet;

use agent_memory::{
    AgentSettings, Begun, FoundRecord, Memory, SLOTS, SampleHead, decode, ring_words, words_for,
};

use self::descendants::DescendantCheck;
pub(crate) use self::injected_agent::Host;
use self::injected_agent::InjectedAgent;
use self::shared_memory::{SharedMemory, begin_memory};
use self::slots::{SlotOwner, Slots};
use self::unannounced::UnannouncedThreads;
use super::access::OpenError;
use super::source::{Attachment, ClockSettings, Drained, Nature, Source, StartError};
use crate::inject::{InjectionRefused, Meanwhile};
use crate::sys::agent_memory::AgentMemory;
use crate::sys::maps::regions;
use crate::sys::{clock, limits, procfs, self_copy, signal_cost};

/// The largest weight of a sample (ns); a larger one is not a valid record.
const HEAVIEST_NS: u64 = 3_600_000_000_000;
/// CPU time of short-lived threads that may go unsampled before the user is informed (ms).
const MOST_UNSEEN_MS: u64 = 100;
/// Threads that may start before the next look, if there are few.
const FEW: usize = 16;
/// Handler times that are kept between two looks.
const MOST_TIMES: usize = 256;

/// Timers in the threads of a command and of what it starts.
pub(crate) struct TimerSampler {
    nature: Nature,
    shared: SharedMemory,
    slots: Slots,
    unannounced: UnannouncedThreads,
    descendants: DescendantCheck,
    settings: ClockSettings,
    is_stopped: bool,
    dither: Dither,
    target: TargetRecords,
    buffers: Buffers,
    /// The agent that is loaded into a running process.
    agent: Option<InjectedAgent>,
}

/// Kept between records to spare allocations.
#[derive(Default)]
struct Buffers {
    words: Vec<u64>,
    bytes: Vec<u8>,
}

impl TimerSampler {
    /// Memory for agents; nothing samples yet.
    pub(crate) fn new(settings: ClockSettings, dither: Dither, seed: u64) -> io::Result<Self> {
        let shared = SharedMemory::new(AgentSettings {
            period_ns: settings.period_ns,
            stack_bytes: u64::from(settings.copied_bytes()),
            seed,
            identity: clock::monotonic_ns() ^ u64::from(std::process::id()) << 32,
            may_copy: self_copy::is_permitted(),
            now_ns: clock::monotonic_ns(),
            ..AgentSettings::default()
        })?;
        Ok(Self {
            nature: Self::nature(),
            shared,
            slots: Slots::default(),
            unannounced: UnannouncedThreads::default(),
            descendants: DescendantCheck::default(),
            settings,
            is_stopped: false,
            dither,
            target: TargetRecords::default(),
            buffers: Buffers::default(),
            agent: None,
        })
    }

    /// [`Self::new`] for a process that already runs, into which the agent is loaded at the start.
    pub(crate) fn within(host: Host, settings: ClockSettings, dither: Dither, seed: u64) -> io::Result<Self> {
        let mut sampler = Self::new(settings, dither, seed)?;
        sampler.agent = Some(InjectedAgent::new(host, sampler.shared.settings().identity));
        // Nothing is loaded before the C library there, so a filter that ends a process for copying memory could not be
        // detected.
        sampler.shared.publish(|settings| settings.may_copy = false);
        Ok(sampler)
    }

    /// What to know about timer signals.
    pub(crate) fn nature() -> Nature {
        Nature {
            event: "timer-signal",
            runs_in_target: true,
            attaches_itself: true,
            times_itself: true,
            clock_tick_ns: Some(signal_cost::tick_ns()),
            unwinds: Some(Method::Dwarf), // agents copy stacks
        }
    }

    /// The name by which agents find the memory.
    pub(crate) fn place(&self) -> String {
        self.shared.memory.path()
    }

    /// How much of the stack is copied from now on.
    fn set_copy(&mut self, settings: ClockSettings) {
        self.settings = settings;
        self.shared.publish(|published| published.stack_bytes = u64::from(settings.copied_bytes()));
    }

    /// CPU time of threads that were sampled late or never, in words.
    fn unseen(&self, memory: &Memory<'_>) -> Option<String> {
        let (unseen_ms, what) = match &self.agent {
            None => {
                (memory.unseen_ns() / 1_000_000, "threads that ended between two ticks of the kernel used")
            }
            Some(agent) => {
                (agent.late_ms(), "threads that started later had used, before they were sampled,")
            }
        };
        (unseen_ms > MOST_UNSEEN_MS).then(|| format!("{what} some {unseen_ms} ms that no sample could hit"))
    }
}

impl Source for TimerSampler {
    fn nature(&self) -> Nature {
        self.nature
    }

    fn follow(&mut self, pid: u32) {
        self.target.root = pid;
        self.target.known.insert(pid);
        self.descendants.begin(pid);
    }

    fn begin_with(&mut self, settings: ClockSettings, costs: &CostModel) {
        self.set_copy(settings);
        self.set_period(settings.period_ns);
        self.target.at_tick = costs.at_tick;
    }

    fn start(&mut self) -> Result<(), StartError> {
        let rings = rings_for(self.agent.as_ref().map_or(0, InjectedAgent::thread_count));
        if let Some(mut agent) = self.agent.take() {
            let settings = *self.shared.settings();
            let prepare = |memory: &Arc<AgentMemory>| {
                memory.reserve(words_for(rings))?;
                begin_memory(memory, settings);
                // Without signs of life, threads that begin meanwhile would start with a long first period.
                let memory = Arc::clone(memory);
                let beat = move || {
                    if let Some(memory) = Memory::of_own(memory.words()) {
                        memory.beat(clock::monotonic_ns());
                    }
                };
                Ok(Box::new(beat) as Meanwhile)
            };
            self.shared.replace(agent.attach(prepare).map_err(StartError::Refused)?, rings);
            if let Some(memory) = self.shared.view() {
                self.slots.look(&memory); // these threads are known without announcements
                if memory.left_out() == 0 && memory.refused() == 0 {
                    agent.found(self.slots.owners().map(|owner| owner.tid));
                }
            }
            self.agent = Some(agent);
        } else {
            self.shared.reserve(rings).map_err(|error| {
                StartError::Refused(InjectionRefused::Failed(format!(
                    "cannot be given memory for the samples ({error}); free some, and try again"
                )))
            })?;
        }
        self.beat();
        Ok(())
    }

    /// Only changes the settings: new threads have theirs already.
    fn open_incoming(&mut self, _: Attachment, settings: ClockSettings) -> Result<(), OpenError> {
        self.set_copy(settings);
        Ok(())
    }

    fn clock_count(&self) -> usize {
        self.slots.taken()
    }

    fn beat(&mut self) {
        self.shared.beat(self.is_stopped);
    }

    /// Each thread stops at its next expiry. An injected agent is removed.
    fn stop(&mut self) {
        self.is_stopped = true;
        if let Some(memory) = self.shared.view() {
            memory.stop();
        }
        if let Some(agent) = &mut self.agent {
            agent.leave();
        }
    }

    fn set_period(&mut self, period_ns: u64) {
        self.settings.period_ns = period_ns;
        self.shared.publish(|settings| settings.period_ns = period_ns);
    }

    fn draw_step_ns(&mut self, elapsed_ns: u64) -> u64 {
        self.dither.step_ns(elapsed_ns)
    }

    fn take_handler_times(&mut self) -> Vec<HandlerTime> {
        std::mem::take(&mut self.target.times)
    }

    fn cpus(&self) -> usize {
        limits::online_cpus().len()
    }

    fn shortfalls(&self) -> Vec<String> {
        let Some(memory) = self.shared.view() else { return Vec::new() };
        let mut lines = self.agent.as_ref().map(InjectedAgent::shortfalls).unwrap_or_default();
        if self.agent.is_none() && !self.slots.ever_taken() {
            let why = "the program, or its environment, prevents preloading";
            lines.push(format!("the command was not sampled: {why} (LD_PRELOAD)"));
        }
        lines.extend(self.unseen(&memory));
        lines.extend(self.descendants.shortfall());
        let (left_out, refused) = (memory.left_out(), memory.refused());
        if left_out > 0 {
            lines.push(format!("{left_out} threads were not sampled: at most {SLOTS} are sampled at a time"));
        }
        if refused > 0 {
            lines.push(format!(
                "{refused} threads were not sampled: no timer could be created for them (`ulimit -i`, or a sandbox)"
            ));
        }
        let unannounced = self.unannounced.count().saturating_sub(left_out.saturating_add(refused));
        if unannounced > 0 {
            lines.push(format!(
                "{unannounced} threads were not sampled: they were created without the C library (by `clone`)"
            ));
        }
        lines.extend(self.shared.shortfalls());
        lines
    }

    fn has_records(&self) -> bool {
        self.shared.view().is_some_and(|memory| self.slots.have_records(&memory))
    }

    fn time_to_fill_ns(&self) -> u64 {
        let stack_bytes = u64::from(self.settings.copied_bytes());
        let ring_bytes = ring_words(self.slots.highest_taken()) as u64 * 8; // the smallest ring in use
        resources::time_to_fill_ns(ring_bytes, stack_bytes, self.settings.period_ns)
    }

    fn drain(&mut self, until_ns: u64, handle: &mut dyn FnMut(Drained<'_>)) {
        self.beat();
        let now_ns = self.shared.settings().now_ns;
        let Some(memory) = self.shared.view() else { return };
        for taken in self.slots.look(&memory) {
            let is_first = taken.pid == taken.tid;
            if is_first && self.agent.is_none() {
                self.descendants.look(taken.pid);
            }
            // The first thread of a process announces itself.
            if !is_first && !self.descendants.is_excluded(taken.pid) {
                handle(Drained::Record(Record::Fork(taken.of_own_process()), 0));
            }
        }
        if let Some(agent) = &mut self.agent {
            let gone = agent.follow_threads(|| self.slots.owners().map(|owner| owner.tid).collect());
            self.slots.end(&memory, &gone);
            if agent.is_shut() {
                memory.shut();
            }
        }
        let Buffers { words, bytes } = &mut self.buffers;
        let (descendants, target) = (&mut self.descendants, &mut self.target);
        target.now_ns = now_ns;
        self.slots.drain(&memory, (until_ns, now_ns), words, |thread, words| {
            match descendants.is_excluded(thread.pid) {
                true => descendants.count_excluded(thread.pid),
                false => target.decode(thread, words, bytes, handle),
            }
        });
        for _ in 0..self.slots.take_damaged() {
            handle(Drained::Undecodable);
        }
        let dropped = self.slots.take_dropped(&memory);
        if dropped > 0 {
            handle(Drained::Record(Record::Lost { count: dropped }, 0));
        }
        if self.agent.is_none() {
            let owners = self.slots.owners().filter(|owner| !self.descendants.is_excluded(owner.pid));
            self.unannounced.look(now_ns, owners);
        }
        let ended = self.slots.free_ended(&memory, until_ns);
        // Their numbers may be given to other processes.
        for owner in ended.iter().filter(|owner| owner.tid == owner.pid && procfs::has_ended(owner.pid)) {
            self.target.known.remove(&owner.pid);
        }
        for ended in ended.into_iter().filter(|ended| !self.descendants.is_excluded(ended.pid)) {
            handle(Drained::Record(Record::Exit(ended.of_own_process()), 0));
        }
        // For threads that may start.
        self.shared.reserve_more(rings_for(self.slots.taken()).max(self.slots.highest_taken() + 1));
    }
}

/// Rings to keep ready for this many threads: half as many more, and a few.
fn rings_for(threads: usize) -> usize {
    (threads + (threads / 2).max(FEW)).min(SLOTS)
}

/// Whatever ends a run early: an agent is not left at work.
impl Drop for TimerSampler {
    fn drop(&mut self) {
        if !self.is_stopped {
            self.stop();
        }
    }
}

/// What is needed to interpret records.
#[derive(Default)]
struct TargetRecords {
    /// Processes of the target that have announced themselves.
    known: FxHashSet<u32>,
    /// The process that everything else descends from.
    root: u32,
    times: Vec<HandlerTime>,
    /// What a sample costs outside of its handler, if that can be derived from each.
    at_tick: Option<AtTick>,
    /// When they are read (ns): whatever a program wrote into them, none is later.
    now_ns: u64,
}

impl TargetRecords {
    fn decode(
        &mut self,
        thread: SlotOwner,
        words: &[u64],
        bytes: &mut Vec<u8>,
        handle: &mut dyn FnMut(Drained<'_>),
    ) {
        match decode(words) {
            Ok(FoundRecord::Sample(head, stack)) => {
                bytes.clear();
                bytes.extend(stack.iter().flat_map(|word| word.to_ne_bytes()));
                self.time(&head, bytes.len());
                handle(Drained::Record(
                    Record::Sample(sample(thread, head.time_ns.min(self.now_ns), &head, bytes)),
                    head.weight_ns.min(HEAVIEST_NS),
                ));
            }
            Ok(FoundRecord::Forked(begun)) => {
                handle(Drained::Record(Record::Fork(self.forked(thread, &begun)), 0));
            }
            Ok(FoundRecord::Executed(begun)) => {
                // From `vfork`, or from a program without an agent: the process was not announced.
                if !self.known.contains(&thread.pid) {
                    handle(Drained::Record(Record::Fork(self.forked(thread, &begun)), 0));
                }
                let SlotOwner { pid, tid } = thread;
                handle(Drained::Record(Record::Comm { pid, tid, name: begun.name, exec: true }, 0));
            }
            Ok(FoundRecord::Mappings(_, text, length)) => {
                bytes.clear();
                bytes.extend(text.iter().flat_map(|word| word.to_ne_bytes()));
                let mapped = regions(&bytes[..length]).filter_map(|region| region.mapped(thread.pid));
                mapped.for_each(|mapped| handle(Drained::Record(Record::Mmap(mapped), 0)));
            }
            Err(_) => handle(Drained::Undecodable),
        }
    }

    /// The fork record of a process, with its parent if that is known, else with the first process, which adopts
    /// orphans.
    fn forked(&mut self, thread: SlotOwner, begun: &Begun) -> Task {
        let parent_pid = if self.known.contains(&begun.parent) { begun.parent } else { self.root };
        self.known.insert(thread.pid);
        Task { pid: thread.pid, parent_pid, tid: thread.tid, time_ns: begun.time_ns.min(self.now_ns) }
    }

    fn time(&mut self, head: &SampleHead, bytes: usize) {
        let outside_ns = self.at_tick.map_or(Some(0.0), |ticks| ticks.outside_ns(head.time_ns));
        if let (Some(outside_ns), true) = (outside_ns, self.times.len() < MOST_TIMES) {
            let time_ns = head.handler_ns as f64 + outside_ns;
            self.times.push(HandlerTime { time_ns, frames: 0, stack_bytes: bytes as u64 });
        }
    }
}

fn sample<'a>(thread: SlotOwner, time_ns: u64, head: &SampleHead, stack: &'a [u8]) -> RawSample<'a> {
    let requested = usize::try_from(head.requested_bytes).unwrap_or(usize::MAX);
    let stack = StackCopy::new(RawData::Single(stack), requested);
    let regs = Machine::HOST.noted_regs(&head.registers);
    RawSample::of_thread(time_ns, (thread.pid, thread.tid), regs, stack)
}

#[cfg(test)]
mod tests;
