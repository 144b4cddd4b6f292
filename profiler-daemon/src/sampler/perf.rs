//! Samples by perf events: one clock for each CPU, or for each thread and CPU of the target.
//!
//! The rings belong to events of their own, so that the clocks can be opened anew (another stack size,
//! another way to unwind, new threads) while not a record is lost: the old clocks stop when the new ones run.

use std::io;

use profiler_core::rate::{Dither, PeriodTimeline};
use profiler_core::record::{RawRecord, Record, RecordFormat};
use profiler_core::sorter::drain_in_order;
use profiler_core::unwind::method::Method;
use rustc_hash::{FxHashMap, FxHashSet};

use super::access::{Access, OpenError};
use crate::sys::perf_event::{ClockEvent, Event, Scope};
use crate::sys::ring::{Ring, page_size};
use crate::sys::{clock, limits};

/// Most memory that all rings take together (bytes).
const RINGS_BYTES: usize = 16 << 20;
/// The largest ring of one CPU (bytes).
const MAX_RING_BYTES: usize = 4 << 20;
/// The smallest ring worth having (bytes): a few samples with the biggest copy of the stack.
const MIN_RING_BYTES: usize = 256 << 10;
/// Records of closed clocks are still read this long after (ns).
const FORGET_AFTER_NS: u64 = 5_000_000_000;
/// A redraw costs a system call for each clock, so at most so many are redrawn at once.
const REDRAWS_AT_ONCE: usize = 64;
/// Files kept for everything that is not an event, or a quarter of what may be open.
const OTHER_FILES: u64 = 256;

/// What the clocks are attached to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Attachment {
    /// Whole CPUs; samples of strangers are thrown away.
    Cpus,
    /// These threads and all that they create.
    Tasks(Vec<u32>),
}

/// What the next clocks shall be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClockSettings {
    /// Mean period (ns).
    pub(crate) period_ns: u64,
    /// How stacks are found.
    pub(crate) method: Method,
    /// Bytes of stack to copy.
    pub(crate) stack_bytes: u32,
}

impl ClockSettings {
    /// Bytes of stack in force: none with frame pointers.
    pub(crate) fn copied_bytes(&self) -> u32 {
        if self.method.copies_stack() { self.stack_bytes } else { 0 }
    }
}

/// The task a clock follows (`None`: a whole CPU) and its CPU. Keeps its period's history when the event
/// behind it is opened anew.
type Slot = (Option<u32>, u32);

struct Clock {
    event: Event,
    slot: Slot,
}

/// An event that records may come from.
struct Known {
    slot: Slot,
    format: RecordFormat,
    retired_at_ns: Option<u64>,
}

/// A set of running clocks, their rings and the periods they had.
pub(crate) struct PerfSampler {
    access: Access,
    cpus: Vec<u32>,
    owners: Vec<Event>,
    /// Whether the owners report mappings, names, forks and exits; if not, the clocks do.
    owners_report: bool,
    rings: Vec<Ring>,
    clocks: Vec<Clock>,
    known: FxHashMap<u64, Known>,
    timelines: FxHashMap<Slot, PeriodTimeline>,
    dither: Dither,
    settings: ClockSettings,
    attachment: Attachment,
    /// Where the next redraws begin.
    next_redraw: usize,
}

/// What a drain hands over.
pub(crate) enum Drained<'a> {
    /// A record; for a sample, the CPU time it stands for (ns).
    Record(Record<'a>, u64),
    /// A record that could not be decoded.
    Undecodable,
}

impl PerfSampler {
    /// Opens rings and clocks; nothing runs yet.
    pub(crate) fn open(
        access: Access,
        attachment: Attachment,
        settings: ClockSettings,
        dither: Dither,
    ) -> Result<Self, OpenError> {
        limits::raise_open_files();
        let cpus = limits::online_cpus();
        let owners = open_owners(&cpus, &attachment)?;
        let rings = map_rings(&owners)?;
        let mut sampler = Self {
            access,
            cpus,
            owners,
            owners_report: attachment == Attachment::Cpus,
            rings,
            clocks: Vec::new(),
            known: FxHashMap::default(),
            timelines: FxHashMap::default(),
            dither,
            settings,
            attachment,
            next_redraw: 0,
        };
        sampler.clocks = sampler.open_clocks()?;
        Ok(sampler)
    }

    /// Starts the clocks.
    pub(crate) fn start(&mut self) -> io::Result<()> {
        for owner in &mut self.owners {
            owner.enable()?;
        }
        let mut clocks = std::mem::take(&mut self.clocks);
        let started = self.run(&mut clocks);
        self.clocks = clocks;
        started
    }

    /// Stops the clocks for good.
    pub(crate) fn stop(&mut self) {
        for event in self.clocks.iter_mut().map(|clock| &mut clock.event).chain(&mut self.owners) {
            let _ = event.disable(); // what cannot be stopped ends with its descriptor
        }
    }

    /// Opens all clocks anew, with other settings or for other threads.
    pub(crate) fn reopen(
        &mut self,
        attachment: Attachment,
        settings: ClockSettings,
    ) -> Result<(), OpenError> {
        (self.attachment, self.settings) = (attachment, settings);
        let mut clocks = self.open_clocks()?;
        self.run(&mut clocks).map_err(OpenError::Other)?;
        for mut old in std::mem::replace(&mut self.clocks, clocks) {
            let _ = old.event.disable();
            if let Some(known) = self.known.get_mut(&old.event.id()) {
                known.retired_at_ns = Some(clock::monotonic_ns());
            }
        }
        self.forget_old();
        Ok(())
    }

    /// Sets the mean period of all clocks, each at its next redraw.
    pub(crate) fn set_period(&mut self, period_ns: u64) {
        self.settings.period_ns = period_ns;
    }

    /// Draws the time until the next redraw (ns).
    pub(crate) fn draw_tick_ns(&mut self) -> u64 {
        self.dither.tick_ns()
    }

    /// Draws new periods for those clocks that are due.
    pub(crate) fn redraw(&mut self) {
        let count = self.clocks.len();
        let mean_ns = self.settings.period_ns;
        for step in 0..count.min(REDRAWS_AT_ONCE) {
            let slot = self.clocks[(self.next_redraw + step) % count].slot;
            let Some(timeline) = self.timelines.get_mut(&slot) else { continue };
            if timeline.due(clock::monotonic_ns(), mean_ns, &mut self.dither) {
                self.draw_period((self.next_redraw + step) % count);
            }
        }
        self.next_redraw = (self.next_redraw + REDRAWS_AT_ONCE) % count.max(1);
    }

    /// Hands over every record made until `until_ns`, in time order.
    pub(crate) fn drain(&mut self, until_ns: u64, mut handle: impl FnMut(Drained<'_>)) {
        let (known, timelines) = (&self.known, &mut self.timelines);
        let order = RecordFormat::new(false); // times stand at the same place in all formats
        drain_in_order(&mut self.rings, &order, until_ns, |raw| {
            let format = sample_id(&raw).and_then(|id| known.get(&id)).map_or(order, |known| known.format);
            match raw.decode(&format) {
                Ok(Record::Sample(sample)) => {
                    // A clock that a child inherited keeps the period it was born with, and the kernel
                    // reports that one.
                    let own = known.get(&sample.stream_id);
                    let weight = match own.and_then(|known| timelines.get_mut(&known.slot)) {
                        Some(timeline) => timeline.weight(sample.time_ns),
                        None => sample.opened_period,
                    };
                    handle(Drained::Record(Record::Sample(sample), weight));
                }
                Ok(record) => handle(Drained::Record(record, 0)),
                Err(_) => handle(Drained::Undecodable),
            }
        });
        for _ in 0..self.rings.iter_mut().map(Ring::take_damaged).sum() {
            handle(Drained::Undecodable);
        }
    }

    /// How long the rings take to fill to a third at the present rate, if every CPU is busy (ns).
    pub(crate) fn time_to_fill_ns(&self) -> u64 {
        let fixed_bytes = 512; // headers, registers and a usual call chain
        let sample_bytes = u64::from(self.settings.copied_bytes()) + fixed_bytes;
        let samples = self.rings.iter().map(Ring::capacity).min().unwrap_or(0) as u64 / sample_bytes / 3;
        samples.max(1) * self.settings.period_ns
    }

    /// Clocks that run.
    pub(crate) fn clock_count(&self) -> usize {
        self.clocks.len()
    }

    /// What the clocks are attached to.
    pub(crate) fn attachment(&self) -> &Attachment {
        &self.attachment
    }

    fn open_clocks(&mut self) -> Result<Vec<Clock>, OpenError> {
        let tasks: Vec<Option<u32>> = match &self.attachment {
            Attachment::Cpus => vec![None],
            Attachment::Tasks(tids) => tids.iter().copied().map(Some).collect(),
        };
        let needed = (tasks.len() * self.cpus.len()) as u64;
        let limit = limits::open_files();
        let free = limit.saturating_sub(OTHER_FILES.min(limit / 4) + self.clocks.len() as u64);
        if needed > free {
            return Err(OpenError::TooManyEvents { needed, limit });
        }
        let mut clocks = Vec::with_capacity(needed as usize);
        let mut refused = None;
        for task in tasks {
            match self.open_for(task) {
                Ok(opened) => clocks.extend(opened),
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {} // the thread has ended
                Err(error) => refused = Some(error),
            }
        }
        match refused {
            _ if !clocks.is_empty() => Ok(clocks),
            None => Err(OpenError::TargetGone),
            Some(e) if e.kind() == io::ErrorKind::PermissionDenied => Err(OpenError::TargetNotPermitted(e)),
            Some(e) => Err(OpenError::Other(e)),
        }
    }

    fn open_for(&mut self, task: Option<u32>) -> io::Result<Vec<Clock>> {
        let settings = self.settings;
        let format = RecordFormat::new(settings.method.copies_stack());
        let mut clocks = Vec::with_capacity(self.cpus.len());
        for (&cpu, owner) in self.cpus.iter().zip(&self.owners) {
            let event = ClockEvent {
                period_ns: self.dither.draw(settings.period_ns),
                format,
                stack_bytes: settings.stack_bytes,
                user_chain: settings.method.follows_frame_pointers(),
                kernel: self.access.kernel,
                side_records: !self.owners_report,
            };
            let scope = task.map_or(Scope::Cpu(cpu), |tid| Scope::Task { tid, cpu });
            let opened = Event::clock(scope, &event)?;
            opened.write_into(owner)?;
            let slot = (task, cpu);
            self.known.insert(opened.id(), Known { slot, format, retired_at_ns: None });
            clocks.push((Clock { event: opened, slot }, event.period_ns));
        }
        let now_ns = clock::monotonic_ns();
        for (clock, period_ns) in &clocks {
            self.note_period(clock.slot, now_ns, *period_ns);
        }
        Ok(clocks.into_iter().map(|(clock, _)| clock).collect())
    }

    fn run(&mut self, clocks: &mut [Clock]) -> io::Result<()> {
        for clock in clocks {
            clock.event.enable()?;
        }
        Ok(())
    }

    fn draw_period(&mut self, i: usize) {
        let period_ns = self.dither.draw(self.settings.period_ns);
        let clock = &self.clocks[i];
        if clock.event.set_period(period_ns).is_ok() {
            self.note_period(clock.slot, clock::monotonic_ns(), period_ns);
        }
    }

    fn note_period(&mut self, slot: Slot, at_ns: u64, period_ns: u64) {
        let mean_ns = self.settings.period_ns;
        let timeline = self.timelines.entry(slot);
        timeline
            .and_modify(|timeline| timeline.set(at_ns, period_ns, mean_ns))
            .or_insert_with(|| PeriodTimeline::new(at_ns, period_ns));
    }

    fn forget_old(&mut self) {
        let now_ns = clock::monotonic_ns();
        self.known.retain(|_, known| known.retired_at_ns.is_none_or(|at| now_ns - at < FORGET_AFTER_NS));
        let used: FxHashSet<Slot> = self.known.values().map(|known| known.slot).collect();
        self.timelines.retain(|slot, _| used.contains(slot));
    }
}

/// The event that a sample belongs to: it decides how the sample is laid out.
fn sample_id(raw: &RawRecord<'_>) -> Option<u64> {
    let mut id = [0; 8];
    raw.body.get(0..8)?.read_exact(&mut id).ok()?;
    Some(u64::from_ne_bytes(id))
}

fn open_owners(cpus: &[u32], attachment: &Attachment) -> Result<Vec<Event>, OpenError> {
    let own = std::process::id();
    let open = |&cpu: &u32| match attachment {
        Attachment::Cpus => Event::ring_owner(Scope::Cpu(cpu), true),
        Attachment::Tasks(_) => Event::ring_owner(Scope::Task { tid: own, cpu }, false),
    };
    cpus.iter().map(open).collect::<io::Result<_>>().map_err(OpenError::Other)
}

/// Maps a ring for each owner, smaller ones where the kernel refuses the memory.
fn map_rings(owners: &[Event]) -> Result<Vec<Ring>, OpenError> {
    let fair = (RINGS_BYTES / owners.len().max(1)).clamp(MIN_RING_BYTES, MAX_RING_BYTES);
    let mut bytes = 1 << fair.ilog2();
    loop {
        let mapped: io::Result<Vec<Ring>> = owners.iter().map(|owner| Ring::map(owner.fd(), bytes)).collect();
        match mapped {
            Ok(rings) => return Ok(rings),
            Err(_) if bytes / 2 >= 16 * page_size() => bytes /= 2,
            Err(error) => return Err(OpenError::RingMemory(error)),
        }
    }
}
