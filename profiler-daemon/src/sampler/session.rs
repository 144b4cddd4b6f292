//! One profiled target from its first sample to its profile: records become stacks, stacks are counted, and
//! what sampling costs is read off.

mod charged;
mod clocks;
mod code;
mod counts;
mod cpu;
mod cut;
mod deeper;
mod ended;
mod exits;
mod lost;
mod maps;
mod members;
mod owners;
mod readings;
mod stack_counts;
mod stacks;

use std::hash::Hash;

use profiler_core::aggregate::Chain;
use profiler_core::handler_trace::HandledSample;
use profiler_core::process::ProcessTable;
use profiler_core::rate::TopShares;
use profiler_core::record::{RawSample, Record, Task};
use profiler_core::stack::Frame;
use profiler_core::stats;
use profiler_core::unwind::method::MethodChoice;

use self::charged::{Charged, Clock};
use self::code::TargetCode;
pub(crate) use self::counts::Counts;
use self::cpu::SessionCpu;
pub(crate) use self::cut::Collected;
use self::lost::Losses;
use self::members::Members;
use self::owners::Sampled;
pub(crate) use self::owners::{Owner, OwnerShare, Owners};
use self::readings::Readings;
use self::stack_counts::StackCounts;
use self::stacks::{Chains, StackRead, StackReader};
use super::handler_time::RecentSamples;
use super::own_time::OwnTime;
use super::rereads::Rereads;
use super::source::Drained;
use crate::objects::Symbols;
use crate::sys::clock;

/// Births and execs of the target's processes, from records.
#[derive(Debug, Default)]
pub(crate) struct ProcessEvents {
    /// Children with their creators.
    pub(crate) births: Vec<(u32, u32)>,
    /// Processes that execute another program.
    pub(crate) execs: Vec<u32>,
}

impl ProcessEvents {
    fn born(&mut self, task: Task) {
        if self.births.len() < MOST_PROCESS_EVENTS {
            self.births.push((task.pid, task.parent_pid));
        }
    }

    fn executes(&mut self, pid: u32) {
        if self.execs.len() < MOST_PROCESS_EVENTS {
            self.execs.push(pid);
        }
    }
}

/// The largest valid count in a record of a timer signal: the program writes these records, and may write anything.
const MOST_AT_ONCE: u64 = u32::MAX as u64;

/// Most events that are kept until they are taken; scans find later ones.
const MOST_PROCESS_EVENTS: usize = 1 << 14;

/// Everything known about the target.
pub(crate) struct Session {
    pub(crate) processes: ProcessTable,
    pub(crate) code: TargetCode,
    rereads: Rereads,
    pub(crate) cpu: SessionCpu,
    pub(crate) counts: Counts,
    pub(crate) recent: RecentSamples,
    losses: Losses,
    charged: Charged,
    /// Births and execs, if the owner of the session wants them.
    pub(crate) process_events: Option<ProcessEvents>,
    /// What of this process' CPU time is overhead.
    pub(crate) own_time: OwnTime,
    members: Members,
    pub(crate) stacks: StackReader,
    /// Where stacks are counted.
    pub(crate) counted: StackCounts,
    readings: Readings,
    times: SessionTimes,
}

/// Times of a session (ns of the monotonic clock); `u64::MAX` until known.
struct SessionTimes {
    /// When sampling began.
    start_ns: u64,
    /// When another session takes over.
    end_ns: u64,
    /// When the time range began that the next cut hands over.
    range_start_ns: u64,
    /// End of the present window.
    window_end_ns: u64,
}

impl Session {
    /// A session without a target yet; memory for unwind tables and names is shared.
    pub(crate) fn new(choice: MethodChoice, symbols: &Symbols) -> Self {
        Self {
            processes: ProcessTable::default(),
            code: TargetCode::new(symbols),
            rereads: Rereads::default(),
            cpu: SessionCpu::default(),
            counts: Counts::default(),
            recent: RecentSamples::default(),
            losses: Losses::default(),
            charged: Charged::default(),
            process_events: None,
            own_time: OwnTime::default(),
            members: Members::default(),
            stacks: StackReader::new(choice),
            counted: StackCounts::default(),
            readings: Readings::default(),
            times: SessionTimes {
                start_ns: u64::MAX,
                end_ns: u64::MAX,
                range_start_ns: u64::MAX,
                window_end_ns: u64::MAX,
            },
        }
    }

    /// Reads new names of generated code, before the samples that hit that code.
    pub(crate) fn refresh_code(&mut self) {
        self.code.jit.refresh(&self.code.objects.roots);
        // Files are there now that were not when these processes mapped them.
        for pid in self.code.objects.take_answered() {
            self.rereads.owe(pid);
        }
    }

    /// Sampling begins now: what was used before does not count.
    pub(crate) fn begin(&mut self) {
        self.code.objects.read_tables(); // of a big program, they would use up the budget of its first second
        self.code.objects.opener().sampling_begins();
        self.times.start_ns = clock::monotonic_ns();
        self.times.range_start_ns = self.times.start_ns;
        self.times.window_end_ns = self.times.start_ns + stats::window_ns(0);
        (self.counts, self.losses) = (Counts::default(), Losses::since(self.times.start_ns));
        let (target_cpu_ns, gone) = self.read_cpu();
        self.readings.gone = gone;
        self.readings.last = self.at(self.times.start_ns, target_cpu_ns);
        if self.own_time.counts_from_the_start() {
            // Of that, what adoptions took was counted already.
            let until_now_ns = std::mem::take(&mut self.readings.last.self_cpu_ns);
            self.readings.last.forget_once(std::mem::replace(&mut self.readings.once_ns, until_now_ns));
        }
        self.readings.first = self.readings.last;
    }

    /// When sampling began (ns).
    pub(crate) fn start_ns(&self) -> u64 {
        self.times.start_ns
    }

    /// Samples count until `end_ns`: from then on another session counts.
    pub(crate) fn count_until(&mut self, end_ns: u64) {
        self.times.end_ns = end_ns;
    }

    /// Time since sampling began (ns).
    pub(crate) fn elapsed_ns(&self) -> u64 {
        clock::monotonic_ns().saturating_sub(self.times.start_ns)
    }

    /// Whether a stack was deeper than its copy, so that the rest is read from the running process.
    pub(crate) fn exceeds_copies(&self) -> bool {
        self.counts.completed + self.counts.truncated.copy_too_short > 0
    }

    /// Takes in one record.
    pub(crate) fn handle(&mut self, drained: Drained<'_>) {
        match drained {
            Drained::Undecodable => {
                self.counts.undecodable += 1;
                self.rereads.lost();
            }
            Drained::LostReports(count) => {
                self.counts.lost_others += count.min(MOST_AT_ONCE);
                self.rereads.lost();
            }
            Drained::Report(record, claim) => {
                let non_targets = self.counts.side_records.foreign;
                self.handle(Drained::Record(record, 0));
                if self.counts.side_records.foreign == non_targets {
                    claim.mark_claimed();
                }
                self.counts.side_records.foreign = non_targets; // charged once the owner is known
            }
            Drained::Owed(count) => self.counts.side_records.foreign += count.min(MOST_AT_ONCE),
            Drained::Double => self.counts.doubled += 1,
            Drained::Record(Record::Sample(sample), weight_ns) => self.sample(&sample, weight_ns),
            Drained::Record(Record::Mmap(mapped), _) => {
                self.count_side_record(mapped.pid);
                self.counts.side_records.mappings += 1;
                self.mapping_reported(&mapped);
                self.stacks.unwinder.note_change();
            }
            Drained::Record(Record::Comm { pid, tid, name, exec }, _) => self.renamed(pid, tid, &name, exec),
            Drained::Record(Record::Fork(task), _) => self.forked(task),
            Drained::Record(Record::Lost { count }, _) => {
                self.losses.unjudged = self.losses.unjudged.saturating_add(count.min(MOST_AT_ONCE));
                self.rereads.lost();
            }
            Drained::Record(Record::Throttle, _) => self.counts.throttled += 1,
            Drained::Record(Record::Exit(task), _) => self.ended(task),
            Drained::Record(Record::Other, _) => {}
        }
    }

    fn renamed(&mut self, pid: u32, tid: u32, name: &str, exec: bool) {
        self.count_side_record(pid);
        if exec {
            self.counts.side_records.execs += 1;
            self.members.awaited = self.members.awaited.filter(|awaited| *awaited != pid);
            self.program_ended(pid);
        }
        self.processes.renamed(pid, tid, name, exec);
        if let Some(owners) =
            self.counted.owners.as_mut().filter(|_| exec && !self.members.excluded.contains(&pid))
        {
            owners.executes(pid);
        }
        if self.members.meets_unknown && pid == tid && !self.processes.contains(pid) {
            self.members.names.note(pid, name);
        }
        if exec && self.processes.contains(pid) {
            self.stacks.executes(pid, self.processes.live().nth(1).is_none());
        }
        if let Some(events) = self.process_events.as_mut().filter(|_| exec) {
            events.executes(pid);
        }
    }

    fn forked(&mut self, task: Task) {
        let is_new = self.processes.forked(task);
        let is_process = task.pid != task.parent_pid;
        let has_owner = self.counted.owners.as_ref().is_some_and(|owners| owners.is_assigned(task.pid));
        let is_theirs = self.members.excluded.contains(&task.parent_pid) && !has_owner;
        if self.members.meets_unknown && is_process && is_theirs {
            self.exclude_birth(task.pid);
        }
        if is_new && self.members.excluded.contains(&task.pid) {
            self.processes.forget(task.pid); // it was found before this was read
        }
        // The child of a non-target process may still be the target's, if a scan found it.
        let is_ours = [task.pid, task.parent_pid].iter().all(|pid| self.processes.contains(*pid));
        match is_ours {
            true => self.counts.side_records.forks += 1,
            false => self.counts.side_records.foreign += 1,
        }
        if let Some(owners) = self.counted.owners.as_mut().filter(|_| is_process) {
            owners.forked(task.pid, task.parent_pid, task.time_ns);
            self.readings.ended_unknown.remove(&task.pid);
        }
        if is_process && is_ours {
            self.cpu.forked(task.pid, task.parent_pid);
            self.rereads.inherited(task.pid, task.parent_pid);
            self.process_events.iter_mut().for_each(|events| events.born(task));
            if is_new {
                self.code_inherited(task);
            }
        }
    }

    fn ended(&mut self, task: Task) {
        if self.processes.contains(task.pid) {
            self.counts.side_records.ends += 1;
            self.stacks.earlier.forget_thread(task.tid);
            self.counted.visits.ended(task.tid);
            self.readings.exits.note(task);
            return;
        }
        self.counts.side_records.foreign += 1;
        if task.pid == task.tid {
            // Since Linux 6.16 a process is sampled while it gives back its memory, after this was reported.
            self.readings.ended_unknown.insert(task.pid);
            if self.readings.ended_unknown.len() > MOST_PROCESS_EVENTS {
                self.forget_ended_unknown();
            }
        }
    }

    /// Forgets the processes that have ended and had no sample since.
    fn forget_ended_unknown(&mut self) {
        for pid in std::mem::take(&mut self.readings.ended_unknown) {
            if !self.processes.contains(pid) {
                self.members.names.forget(pid);
                self.counted.owners.iter_mut().for_each(|owners| owners.ended(pid, None));
            }
        }
    }

    fn code_inherited(&mut self, task: Task) {
        if let (Some(parent), Some(child)) =
            (self.processes.get(task.parent_pid), self.processes.get(task.pid))
        {
            self.code.jit.forked(parent.index, child.index);
        }
    }

    fn count_side_record(&mut self, pid: u32) {
        match self.processes.contains(pid) {
            true => self.counts.side_records.own += 1,
            false => self.counts.side_records.foreign += 1,
        }
    }

    fn sample(&mut self, sample: &RawSample<'_>, weight_ns: u64) {
        if sample.time_ns < self.times.start_ns {
            return; // taken before anything counted
        }
        if sample.time_ns >= self.times.end_ns {
            self.counts.doubled += u64::from(self.processes.contains(sample.pid)); // a cost without a weight
            return;
        }
        self.end_windows_until(sample.time_ns);
        let stack_bytes = sample.stack.map_or(0, |stack| stack.len()) as u64;
        let is_unassigned =
            self.counted.owners.as_ref().is_some_and(|owners| owners.is_unassigned(sample.pid));
        let is_unknown = !self.processes.contains(sample.pid) && !self.members.excluded.contains(&sample.pid);
        if self.members.meets_unknown && is_unknown && !is_unassigned {
            self.meet_by_sample(sample.pid);
        }
        self.losses.took(weight_ns);
        let clock = Clock::of(sample.stream_id, sample.tid);
        if let Some(owners) = self.counted.owners.as_mut().filter(|_| self.processes.contains(sample.pid)) {
            owners.met(sample.pid, None);
        }
        let is_awaited = self.members.awaited == Some(sample.pid);
        if !self.processes.contains(sample.pid) || is_awaited && !has_kernel_frames(sample) {
            self.charged.hit_non_target(clock, stack_bytes);
            match &self.counted.owners {
                // A shared sampler keeps its rate whichever process runs, except for those sampled elsewhere.
                Some(_) if !self.members.excluded.contains(&sample.pid) => {
                    self.counts.samples += 1;
                    self.counts.stack_bytes += stack_bytes;
                }
                _ => self.counts.foreign += 1,
            }
            return;
        }
        self.stacks.begin(sample, !is_awaited);
        let Chains { kernel, by_frame_pointer, .. } = self.stacks.chains();
        let (innermost, frames) =
            (by_frame_pointer.first().copied(), (kernel.len() + by_frame_pointer.len()) as u64);
        self.look_for_code(sample, innermost);
        let Some(process) = self.processes.get(sample.pid) else { return };
        self.counts.samples += 1;
        self.counts.stack_bytes += stack_bytes;
        self.counts.frames += frames;
        self.recent.note(HandledSample { at_ns: sample.time_ns, cpu: sample.cpu, frames, stack_bytes });
        let StackRead { outcome, is_completed, returns_outside_code } =
            self.stacks.read(sample, process, !is_awaited);
        self.counts.completed += u64::from(is_completed);
        let Chains { kernel, user, .. } = self.stacks.chains();
        self.code.jit.sampled(process.index, sample.pid, &self.code.objects.roots);
        self.code.jit.translate(process.index, sample.time_ns, &process.space, user);
        let chain = Chain { kernel, user, outcome };
        let done_ns = self.charged.done_ns(clock, weight_ns, frames, stack_bytes);
        let sampled = Sampled { pid: sample.pid, weight_ns, done_ns, frames, stack_bytes, is_completed };
        let Some(outcome) = self.counted.add(process, sample.tid, chain, sampled) else { return };
        self.cpu.sampled(sample.pid, weight_ns);
        self.counts.truncated.add(outcome, 1);
        if returns_outside_code {
            self.look_for_callers(sample);
        }
    }

    /// Samples by innermost function since the last call, and how often consecutive ones changed function.
    pub(crate) fn take_shares(&mut self) -> TopShares {
        self.counted.take_shares()
    }

    /// What each function had in each window so far; see [`profiler_core::aggregate::Aggregator::function_parts`].
    pub(crate) fn function_parts<N: Eq + Hash>(
        &self,
        name: impl Fn(Frame) -> N,
    ) -> (Vec<stats::WindowSums>, Vec<Vec<stats::Part>>) {
        self.counted.aggregator.function_parts(name)
    }

    /// What a sample costs the target from now on: without its stack, for a frame and for a byte of it (ns).
    pub(crate) fn set_prices(&mut self, prices_ns: [f64; 3]) {
        self.charged.set_prices(prices_ns);
    }
}

fn has_kernel_frames(sample: &RawSample<'_>) -> bool {
    let mut kernel = Vec::new();
    sample.kernel_chain(&mut kernel);
    !kernel.is_empty()
}

#[cfg(test)]
mod tests;
