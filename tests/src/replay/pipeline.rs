//! Ring bytes through everything that `profiler-core` does with them, in the order in which the daemon's session does it.

use profiler_core::aggregate::{Aggregate, Aggregator, Chain};
use profiler_core::process::{LoadedObject, ProcessTable};
use profiler_core::profile::{Outcome, ProcessInfo};
use profiler_core::rate::{ClockBook, Hit};
use profiler_core::record::{Mapped, RawData, RawRecord, RawSample, Record, RecordFormat};
use profiler_core::sorter::{RecordQueue, drain_in_order};
use profiler_core::unwind::StackUnwinder;
use profiler_core::unwind::copy::CopySize;
use profiler_core::unwind::earlier::{EarlierStacks, Followed};
use profiler_core::unwind::method::{Method, MethodChoice};

/// Bytes of `perf_event_header`: type, misc and size.
const HEADER_BYTES: usize = 8;
/// Entries that the kernel keeps of a call chain.
const CHAIN_LIMIT: usize = 127;
/// Samples that make a window: enough windows that some are joined.
const WINDOW_SAMPLES: u64 = 16;

/// A ring that was recorded.
#[derive(Clone, Debug)]
pub struct RecordedRing<'a> {
    rest: &'a [u8],
    /// Where bodies are split in two, as at the end of a real ring; beyond their end: nowhere.
    seam: usize,
    damaged: u64,
}

impl<'a> RecordedRing<'a> {
    /// The records in `bytes`, each split after `seam` bytes of its body.
    pub fn new(bytes: &'a [u8], seam: usize) -> Self {
        Self { rest: bytes, seam, damaged: 0 }
    }

    /// The header at the front: type, misc and the record's size. An invalid header ends the ring.
    fn header(&mut self) -> Option<(u32, u16, usize)> {
        let (header, _) = self.rest.split_first_chunk::<HEADER_BYTES>()?;
        let [t0, t1, t2, t3, m0, m1, s0, s1] = *header;
        let size = usize::from(u16::from_le_bytes([s0, s1]));
        if !(HEADER_BYTES..=self.rest.len()).contains(&size) {
            self.damaged += 1;
            self.rest = &[];
            return None;
        }
        Some((u32::from_le_bytes([t0, t1, t2, t3]), u16::from_le_bytes([m0, m1]), size))
    }
}

impl RecordQueue for RecordedRing<'_> {
    fn front(&mut self) -> Option<RawRecord<'_>> {
        let (kind, misc, size) = self.header()?;
        let body = &self.rest[HEADER_BYTES..size];
        let body = match body.split_at_checked(self.seam) {
            Some((left, right)) => RawData::Split(left, right),
            None => RawData::Single(body),
        };
        Some(RawRecord { kind, misc, body })
    }

    fn pop(&mut self) {
        if let Some((_, _, size)) = self.header() {
            self.rest = &self.rest[size..];
        }
    }
}

/// The parameters of a replay, beside the bytes.
#[derive(Clone, Copy, Debug)]
pub struct Given {
    /// Whether samples hold a copy of the stack.
    pub copies_stack: bool,
    /// The way to unwind; `None` leaves it to the profiler.
    pub method: Option<Method>,
    /// The process that was waiting to execute the command.
    pub pid: u32,
}

/// Counts of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records of any kind.
    pub records: u64,
    /// Samples of the command and its children.
    pub samples: u64,
    /// Samples of others.
    pub foreign: u64,
    /// Samples without outer frames.
    pub truncated: u64,
    /// Records that could not be decoded, and rings that ended in something else.
    pub undecodable: u64,
    /// Records that the kernel says it dropped.
    pub lost: u64,
    /// Times that the kernel stopped an event.
    pub throttled: u64,
    /// Mappings.
    pub mappings: u64,
    /// Names.
    pub names: u64,
    /// Tasks that began.
    pub forks: u64,
    /// Tasks that ended.
    pub exits: u64,
}

/// The result of a replay.
pub struct Replayed {
    /// The stacks.
    pub aggregate: Aggregate,
    /// The processes they refer to.
    pub processes: Vec<ProcessInfo>,
    /// The counts.
    pub counts: Counts,
}

/// Replays recorded rings.
pub fn replay(
    mut rings: Vec<RecordedRing<'_>>,
    given: Given,
    load: &mut dyn FnMut(&Mapped) -> LoadedObject,
) -> Replayed {
    let format = RecordFormat::new(given.copies_stack);
    let mut session = Session::new(given);
    drain_in_order(&mut rings, &format, u64::MAX, |_, raw| session.take(raw, &format, load));
    session.counts.undecodable += rings.iter().map(|ring| ring.damaged).sum::<u64>();
    Replayed {
        aggregate: session.aggregator.finish(u64::MAX),
        processes: session.processes.infos().to_vec(),
        counts: session.counts,
    }
}

struct Session {
    processes: ProcessTable,
    aggregator: Aggregator,
    unwinder: StackUnwinder,
    earlier: EarlierStacks,
    book: ClockBook,
    choice: MethodChoice,
    copy: CopySize,
    counts: Counts,
}

impl Session {
    fn new(given: Given) -> Self {
        let mut processes = ProcessTable::default();
        processes.adopt(given.pid, "");
        Self {
            processes,
            aggregator: Aggregator::default(),
            unwinder: StackUnwinder::default(),
            earlier: EarlierStacks::default(),
            book: ClockBook::default(),
            choice: given.method.map_or_else(MethodChoice::auto, MethodChoice::fixed),
            copy: CopySize::default(),
            counts: Counts::default(),
        }
    }

    fn take(
        &mut self,
        raw: RawRecord<'_>,
        format: &RecordFormat,
        load: &mut dyn FnMut(&Mapped) -> LoadedObject,
    ) {
        self.counts.records += 1;
        let Ok(record) = raw.decode(format) else {
            self.counts.undecodable += 1;
            return;
        };
        match record {
            Record::Sample(sample) => self.sample(&raw, &sample),
            Record::Mmap(mapped) => {
                self.counts.mappings += 1;
                self.processes.mapped(&mapped, load);
                self.unwinder.note_change();
            }
            Record::Comm { pid, tid, name, exec } => {
                self.counts.names += 1;
                self.processes.renamed(pid, tid, &name, exec);
                if exec {
                    self.earlier.forget_process(pid);
                    self.choice.program_changed();
                }
            }
            Record::Fork(task) => {
                self.counts.forks += 1;
                self.processes.forked(task);
            }
            Record::Exit(task) => {
                self.counts.exits += 1;
                self.book.ended(task.tid);
                self.earlier.forget_thread(task.tid);
                if task.tid == task.pid {
                    self.earlier.forget_process(task.pid);
                    self.processes.forget(task.pid);
                }
            }
            Record::Lost { count } => self.counts.lost = self.counts.lost.saturating_add(count),
            Record::Throttle => self.counts.throttled += 1,
            Record::Other => {}
        }
    }

    fn sample(&mut self, raw: &RawRecord<'_>, sample: &RawSample<'_>) {
        let Some(process) = self.processes.get(sample.pid) else {
            self.counts.foreign += 1;
            return;
        };
        self.counts.samples += 1;
        let (mut kernel, mut user, mut chain) = (Vec::new(), Vec::new(), Vec::new());
        sample.kernel_chain(&mut kernel);
        sample.user_chain(&mut chain);
        let mut places = Vec::new();
        let outcome = match (self.choice.method(), sample.regs, sample.stack) {
            (Method::Dwarf | Method::Trial, Some(regs), Some(stack)) => {
                let unwound = self.unwinder.unwind(process, regs, stack, &mut user);
                self.copy.observe(unwound.depth_bytes, unwound.outcome == Outcome::CopyTooShort);
                let is_trial = self.choice.method() == Method::Trial && !chain.is_empty();
                let continued = is_trial.then(|| {
                    let end = self.unwinder.chain_end(process, &mut chain);
                    let locate = |address| process.locate(address);
                    self.choice.compare(&chain, &user, unwound.outcome, end, locate)
                });
                if let Some(continued) = continued.flatten() {
                    continued.apply(&chain, &mut user);
                    Outcome::Complete
                } else {
                    if !is_trial {
                        self.choice.note_unwound(unwound.outcome);
                    }
                    places.extend_from_slice(self.unwinder.places());
                    unwound.outcome
                }
            }
            (_, _, None) if !chain.is_empty() => {
                user = chain;
                let limit_reached = sample.chain_len() >= CHAIN_LIMIT;
                let end = self.unwinder.chain_end(process, &mut user);
                self.choice.judge(&user, limit_reached, end, |address| process.locate(address))
            }
            (_, Some(regs), Some(stack)) => self.unwinder.unwind(process, regs, stack, &mut user).outcome,
            _ => Outcome::NoUserStack,
        };
        let unread = self.unwinder.unread().filter(|_| !places.is_empty());
        let stack = Followed { frames: &mut user, places: &mut places, unread };
        let same_function = |a, b| process.space.function(a) == process.space.function(b);
        let is_completed = self.earlier.take((sample.pid, sample.tid), outcome, stack, same_function);
        let outcome = if is_completed { Outcome::Complete } else { outcome };
        self.copy.revise(sample.time_ns);
        self.choice.revise(sample.time_ns);
        self.counts.truncated += u64::from(outcome.is_truncated());
        let RawSample { stream_id: stream, tid, cpu, time_ns, opened_period: opened_period_ns, .. } = *sample;
        let mut event = [0; 8];
        let _ = raw.body.get(0..8).map(|mut body| body.read_exact(&mut event)); // a decoded sample is longer
        let event = u64::from_le_bytes(event);
        let hit = Hit { event, stream, tid, cpu, time_ns, opened_period_ns };
        let Some(weight_ns) = self.book.weigh(&hit) else { return };
        self.aggregator.add(process, Chain { kernel: &kernel, user: &user, outcome }, weight_ns);
        if self.counts.samples.is_multiple_of(WINDOW_SAMPLES) {
            self.aggregator.close_window(sample.time_ns, 1.0);
        }
    }
}
