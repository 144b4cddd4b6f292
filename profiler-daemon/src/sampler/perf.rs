//! Samples by perf events: one clock for each CPU, for a control group on each CPU, or for each thread on each CPU.
//!
//! The clocks can be reopened (another stack size, another way to unwind, new threads) without losing a record or
//! leaving a task without a clock: [`open_incoming`](Source::open_incoming) starts the new clocks next to the old
//! ones, [`attach_more`](Source::attach_more) attaches to threads that were born meanwhile, and
//! [`close_outgoing`](Source::close_outgoing) stops the old ones. Samples that both took are recognised.
//!
//! - Closing an event ends those that children inherited from it. So a child that was born before its parent's
//!   new clock ran gets a clock of its own: births are drained from the rings until there are no new ones.
//! - A child inherits before its birth is recorded, by milliseconds on a busy machine. So the old clocks stop
//!   some milliseconds after the new ones run.
//! - A CPU that goes offline ends its events for good. The CPUs are compared with the rings once a second, and
//!   the clocks are renewed.
//! - Since Linux 6.16 `do_exit` removes the events of a thread before the memory is freed. The time for which
//!   events ran is read from the events; what the scheduler charged beyond that was not sampled and is reported
//!   separately (`not_sampled_cpu_s`).
//! - Rings belong to events of their own, and samples name their event, so layouts can differ within one ring.
//! - Rings are drained by the clock before they fill. No wake-up is requested from the kernel: it would be one
//!   more interrupt.
//! - Build ids are not requested with mappings: `profiler_core::record` says why.

use std::io;
use std::sync::Arc;

use profiler_core::rate::{ClockBook, ClockSlot, Dither, Hit};
use profiler_core::record::{RawRecord, RawSample, Record, RecordFormat};
use profiler_core::resources::{self, FillRate};
use rustc_hash::{FxHashMap, FxHashSet};

use super::access::{Access, OpenError};
use super::report_sources::{ReportSources, WantedReports};
use super::rings::Rings;
use super::shared_reports::{DrainSummary, ReportClaim, SharedReports};
use super::source::{Attachment, ClockSettings, Drained, Nature, Source, StartError};
use crate::cgroup::Cgroup;
use crate::sys::limits::OnlineCpu;
use crate::sys::perf_event::{ClockEvent, Event, EventReports, Scope};
use crate::sys::{clock, limits, procfs};

/// Most clocks that are redrawn at once: each costs a system call.
const REDRAWS_AT_ONCE: usize = 64;

/// What one clock follows on each CPU.
#[derive(Clone, Debug)]
enum EventScope {
    Everything,
    Group(Arc<Cgroup>),
    Task(u32),
}

impl Attachment {
    fn followed(&self) -> Vec<EventScope> {
        match self {
            Self::Cpus => vec![EventScope::Everything],
            Self::Cgroup(group) => vec![EventScope::Group(Arc::clone(group))],
            Self::Tasks(tids) => tids.iter().copied().map(EventScope::Task).collect(),
            Self::ByItself => Vec::new(),
        }
    }

    /// These have no clock, and count as new.
    fn leave_out(&mut self, refused: &FxHashSet<u32>) {
        if let Self::Tasks(threads) = self {
            threads.retain(|thread| !refused.contains(thread));
        }
    }
}

impl EventScope {
    fn scope(&self, cpu: u32) -> Scope<'_> {
        match self {
            Self::Everything => Scope::Cpu(cpu),
            Self::Group(group) => Scope::Cgroup { folder: group.folder(), cpu },
            Self::Task(tid) => Scope::Task { tid: *tid, cpu },
        }
    }

    /// The thread, if it follows one. For the weights of samples, a group's clock is like a CPU's.
    fn tid(&self) -> Option<u32> {
        match self {
            Self::Task(tid) => Some(*tid),
            Self::Everything | Self::Group(_) => None,
        }
    }
}

struct EventClock {
    event: Event,
    slot: ClockSlot,
    /// The period it was opened with (ns).
    period_ns: u64,
}

/// A set of running clocks, their rings and the periods they had.
pub(crate) struct PerfSampler {
    access: Access,
    rings: Rings,
    filling: FillRate,
    reports: ReportSources,
    clocks: Vec<EventClock>,
    /// Clocks that are about to replace those above, and run already.
    incoming: Vec<EventClock>,
    /// How the samples of each event are laid out.
    formats: FxHashMap<u64, RecordFormat>,
    book: ClockBook,
    dither: Dither,
    settings: ClockSettings,
    attachment: Attachment,
    /// As they were when the clocks were opened.
    online: Vec<OnlineCpu>,
    /// Why no clock could be opened for some thread that lives.
    refused: Option<io::Error>,
    /// Live threads that got no clock when clocks were last opened for all.
    left_out: FxHashSet<u32>,
    /// Index of the clock at which the next redraws begin.
    next_redraw: usize,
    /// CPU time counted by closed clocks of threads, without what their replacements had counted by then (ns). `None`
    /// once there were clocks of whole CPUs or groups, which do not tell whose time they counted.
    closed_ns: Option<i64>,
}

/// The result of opening clocks.
#[derive(Default)]
struct Opened {
    clocks: Vec<EventClock>,
    /// Live threads that got no clock.
    refused: FxHashSet<u32>,
}

impl PerfSampler {
    /// What to know about perf events.
    pub(crate) const NATURE: Nature = Nature {
        event: "cpu-clock",
        runs_in_target: false,
        attaches_itself: false,
        times_itself: false,
        clock_tick_ns: None,
        unwinds: None,
    };

    /// Opens rings and clocks; nothing runs yet.
    pub(crate) fn open(
        access: Access,
        attachment: Attachment,
        settings: ClockSettings,
        dither: Dither,
    ) -> Result<Self, OpenError> {
        limits::raise_open_files();
        let online = limits::online();
        let rings = Rings::open(limits::numbers(&online), access)?;
        let mut sampler = Self {
            access,
            rings,
            filling: FillRate::default(),
            reports: ReportSources::default(),
            clocks: Vec::new(),
            incoming: Vec::new(),
            formats: FxHashMap::default(),
            book: ClockBook::default(),
            dither,
            settings,
            attachment,
            online,
            refused: None,
            left_out: FxHashSet::default(),
            next_redraw: 0,
            closed_ns: Some(0),
        };
        let opened = sampler.open_clocks(&sampler.attachment.followed())?;
        sampler.attachment.leave_out(&opened.refused);
        (sampler.clocks, sampler.left_out) = (opened.clocks, opened.refused);
        Ok(sampler)
    }

    /// What clocks of whole CPUs do not report, also while those of `outgoing` still run.
    fn wanted_reports(&self, outgoing: &Attachment) -> WantedReports {
        let tasks = [outgoing, &self.attachment].iter().any(|one| matches!(one, Attachment::Cpus));
        WantedReports { tasks, mappings: tasks && self.settings.mappings }
    }

    /// For as long as both ran, only what the outgoing ones have counted counts.
    fn count_closed(&mut self, outgoing: &[EventClock]) {
        let counted = counted_ns(outgoing).zip(counted_ns(&self.clocks));
        self.closed_ns =
            self.closed_ns.zip(counted).map(|(sum_ns, (old_ns, new_ns))| sum_ns + old_ns - new_ns);
    }

    fn open_and_run(&mut self, followed: &[EventScope]) -> Result<FxHashSet<u32>, OpenError> {
        let Opened { mut clocks, refused } = self.open_clocks(followed)?;
        let ran = self.run(&mut clocks);
        if ran.is_err() {
            self.book.hand_over(clock::monotonic_ns(), clocks.drain(..).map(|clock| clock.event.id()));
        }
        self.incoming.append(&mut clocks);
        ran.map(|()| refused).map_err(OpenError::Other)
    }

    fn open_clocks(&mut self, followed: &[EventScope]) -> Result<Opened, OpenError> {
        let needed = (followed.len() * self.rings.cpus().len()) as u64;
        let limit = limits::open_files();
        if needed > resources::events_within(limit, procfs::own_open_files()) {
            return Err(OpenError::TooManyEvents { needed, limit });
        }
        let mut opened = Opened::default();
        let mut refused = None;
        for one in followed {
            match self.open_for(one) {
                Ok(clocks) => opened.clocks.extend(clocks),
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {} // the thread has ended
                Err(error) => {
                    opened.refused.extend(one.tid());
                    refused = Some(error);
                }
            }
        }
        match refused {
            refused if !opened.clocks.is_empty() => {
                self.refused = refused.or(self.refused.take());
                Ok(opened)
            }
            None => Err(OpenError::TargetGone),
            Some(e) if e.kind() == io::ErrorKind::PermissionDenied => Err(OpenError::TargetNotPermitted(e)),
            Some(e) => Err(OpenError::Other(e)),
        }
    }

    fn open_for(&mut self, followed: &EventScope) -> io::Result<Vec<EventClock>> {
        let settings = self.settings;
        let format = RecordFormat::new(settings.method.copies_stack());
        let reports = match &self.attachment {
            Attachment::Cpus => EventReports::Own,
            _ if settings.mappings => EventReports::SideRecords,
            _ => EventReports::Tasks,
        };
        let mut clocks = Vec::with_capacity(self.rings.cpus().len());
        for (cpu, owner) in self.rings.owners() {
            let period_ns = self.dither.draw(settings.period_ns);
            let clock = ClockEvent {
                period_ns,
                format,
                stack_bytes: settings.stack_bytes,
                user_chain: settings.method.follows_frame_pointers(),
                kernel: self.access.kernel,
                reports,
            };
            let event = match Event::clock(followed.scope(cpu), &clock) {
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => continue, // the CPU has gone offline
                opened => opened?,
            };
            event.write_into(owner)?;
            self.formats.insert(event.id(), format);
            let slot = ClockSlot { tid: followed.tid(), cpu };
            clocks.push(EventClock { event, slot, period_ns });
        }
        Ok(clocks)
    }

    fn run(&mut self, clocks: &mut [EventClock]) -> io::Result<()> {
        for EventClock { event, slot, period_ns } in clocks {
            event.enable()?;
            let at_ns = clock::monotonic_ns();
            self.book.started(event.id(), *slot, at_ns, *period_ns, self.settings.period_ns);
            self.book.run_on(*slot, matches!(self.attachment, Attachment::Cpus));
        }
        Ok(())
    }
}

impl Source for PerfSampler {
    fn nature(&self) -> Nature {
        Self::NATURE
    }

    fn start(&mut self) -> Result<(), StartError> {
        self.reports.adjust(&self.rings, self.wanted_reports(&self.attachment))?;
        let mut clocks = std::mem::take(&mut self.clocks);
        let started = self.run(&mut clocks);
        self.clocks = clocks;
        self.book.hand_over(0, []);
        Ok(started?)
    }

    fn stop(&mut self) {
        for clock in &mut self.clocks {
            let _ = clock.event.disable(); // what cannot be stopped ends with its descriptor
        }
        self.reports.stop();
    }

    fn open_incoming(&mut self, attachment: Attachment, settings: ClockSettings) -> Result<(), OpenError> {
        let online = limits::online();
        self.rings.replace(&limits::numbers(&online)).map_err(OpenError::Other)?;
        let old = (self.settings, std::mem::replace(&mut self.attachment, attachment));
        self.settings = settings;
        let wanted = self.wanted_reports(&old.1);
        let reported = match online == self.online {
            true => self.reports.adjust(&self.rings, wanted),
            false => self.reports.renew(&self.rings, wanted, &online),
        };
        let opened =
            reported.map_err(OpenError::Other).and_then(|()| self.open_and_run(&self.attachment.followed()));
        match opened {
            Ok(refused) => {
                self.attachment.leave_out(&refused);
                (self.online, self.left_out) = (online, refused);
                Ok(())
            }
            Err(error) => {
                (self.settings, self.attachment) = old;
                Err(error)
            }
        }
    }

    fn set_period(&mut self, period_ns: u64) {
        self.settings.period_ns = period_ns;
    }

    fn draw_step_ns(&mut self, elapsed_ns: u64) -> u64 {
        self.dither.step_ns(elapsed_ns)
    }

    fn drain(&mut self, until_ns: u64, handle: &mut dyn FnMut(Drained<'_>)) {
        let now_ns = clock::monotonic_ns();
        if self.filling.is_due(now_ns) {
            self.filling.note(now_ns, self.rings.take_most_written());
        }
        let (book, formats) = (&mut self.book, &self.formats);
        let bare = RecordFormat::new(false);
        let mut take = |report: Option<&ReportClaim>, raw: RawRecord<'_>| {
            let event = event_of(&raw);
            let format = event.and_then(|event| formats.get(&event)).unwrap_or(&bare);
            handle(match raw.decode(format) {
                Ok(Record::Sample(sample)) => match book.weigh(&hit(event.unwrap_or(0), &sample)) {
                    Some(weight_ns) => Drained::Record(Record::Sample(sample), weight_ns),
                    None => Drained::Double,
                },
                Ok(Record::Exit(task)) => {
                    book.ended(task.tid);
                    side_record(Record::Exit(task), report)
                }
                // Records that other targets read too are passed on as they are, except that their losses were not
                // samples.
                Ok(Record::Lost { count }) if report.is_some() => Drained::LostReports(count),
                Ok(record) => side_record(record, report),
                Err(_) => Drained::Undecodable,
            });
        };
        let DrainSummary { lost, owed } = match self.reports.reader() {
            Some(reader) => reader.drain_with(&mut self.rings, until_ns, take),
            None => {
                self.rings.drain(until_ns, |_, raw| take(None, raw));
                DrainSummary::default()
            }
        };
        if lost > 0 {
            handle(Drained::LostReports(lost));
        }
        handle(Drained::Owed(owed));
        for _ in 0..self.rings.take_damaged() {
            handle(Drained::Undecodable);
        }
    }

    fn has_records(&self) -> bool {
        self.rings.have_records()
    }

    fn time_to_fill_ns(&self) -> u64 {
        let stack_bytes = u64::from(self.settings.copied_bytes());
        let ring_bytes = self.rings.capacity() as u64;
        let by_period_ns = resources::time_to_fill_ns(ring_bytes, stack_bytes, self.settings.period_ns);
        by_period_ns.min(self.filling.time_to_fill_ns(ring_bytes))
    }

    fn cpus(&self) -> usize {
        self.rings.cpus().len()
    }

    fn clock_count(&self) -> usize {
        self.clocks.len()
    }

    fn attachment(&self) -> &Attachment {
        &self.attachment
    }

    fn attach_more(&mut self, threads: &[u32]) -> Result<(), OpenError> {
        let tasks: Vec<EventScope> = threads.iter().copied().map(EventScope::Task).collect();
        let refused = match self.open_and_run(&tasks) {
            Err(OpenError::TargetGone) => FxHashSet::default(),
            Err(OpenError::TargetNotPermitted(cause)) => {
                self.refused = Some(cause);
                threads.iter().copied().collect()
            }
            opened => opened?,
        };
        if let Attachment::Tasks(attached) = &mut self.attachment {
            attached.extend(threads);
        }
        self.attachment.leave_out(&refused);
        self.left_out.extend(refused);
        Ok(())
    }

    fn close_outgoing(&mut self) {
        let incoming = std::mem::take(&mut self.incoming);
        let mut outgoing = std::mem::replace(&mut self.clocks, incoming);
        let now_ns = clock::monotonic_ns();
        self.book.hand_over(now_ns, outgoing.iter().map(|old| old.event.id()));
        for old in &mut outgoing {
            let _ = old.event.disable(); // also stops inherited events
        }
        self.count_closed(&outgoing);
        // This can only close reporters.
        let _ = self.reports.adjust(&self.rings, self.wanted_reports(&self.attachment));
        self.book.forget(now_ns);
        self.formats.retain(|event, _| self.book.knows(*event));
    }

    fn counted_ns(&self) -> Option<u64> {
        let running_ns = counted_ns(&self.clocks)?;
        let once_ns = self.closed_ns? + running_ns - self.book.twice_ns() as i64;
        Some(once_ns.max(0) as u64)
    }

    fn redraw(&mut self) {
        let (count, mut drawn) = (self.clocks.len(), 0);
        let (mean_ns, now_ns) = (self.settings.period_ns, clock::monotonic_ns());
        for _ in 0..count {
            if drawn >= REDRAWS_AT_ONCE {
                break;
            }
            let clock = &self.clocks[self.next_redraw % count];
            self.next_redraw = (self.next_redraw + 1) % count;
            if !self.book.due(clock.slot, now_ns, mean_ns, &mut self.dither) {
                continue;
            }
            drawn += 1;
            let period_ns = self.dither.draw(mean_ns);
            if clock.event.set_period(period_ns).is_ok() {
                self.book.set(clock.slot, clock::monotonic_ns(), period_ns, mean_ns);
            }
        }
    }

    fn ring_bytes(&self) -> u64 {
        self.rings.bytes()
    }

    fn share_reports(&mut self, shared: SharedReports) {
        self.reports.share(shared);
    }

    fn few_threads(&self) -> bool {
        const FEW: usize = 8;
        matches!(&self.attachment, Attachment::Tasks(threads) if threads.len() <= FEW)
    }

    fn unattached(&self, mut threads: Vec<u32>) -> Vec<u32> {
        let Attachment::Tasks(attached) = &self.attachment else { return Vec::new() };
        let attached: FxHashSet<&u32> = attached.iter().collect();
        threads.retain(|thread| !attached.contains(thread) && !self.left_out.contains(thread));
        threads
    }

    fn take_refused(&mut self) -> Option<io::Error> {
        self.refused.take()
    }

    fn cpus_changed(&self) -> bool {
        limits::online() != self.online
    }
}

/// What these clocks of threads, and those that children inherited, have counted (ns); `None` for other clocks, or if
/// one cannot be read.
fn counted_ns(clocks: &[EventClock]) -> Option<i64> {
    let each = clocks.iter().map(|clock| {
        clock.slot.tid?;
        i64::try_from(clock.event.count().ok()?).ok()
    });
    each.sum()
}

/// The event that a sample belongs to: it decides how the sample is laid out.
fn event_of(raw: &RawRecord<'_>) -> Option<u64> {
    let mut id = [0; 8];
    raw.body.get(0..8)?.read_exact(&mut id).ok()?;
    Some(u64::from_ne_bytes(id))
}

/// A record that is not a sample; other targets may read it too.
fn side_record<'a>(record: Record<'a>, claim: Option<&'a ReportClaim>) -> Drained<'a> {
    match claim {
        Some(claim) => Drained::Report(record, claim),
        None => Drained::Record(record, 0),
    }
}

fn hit(event: u64, sample: &RawSample<'_>) -> Hit {
    let RawSample { stream_id: stream, tid, cpu, time_ns, opened_period: opened_period_ns, .. } = *sample;
    Hit { event, stream, tid, cpu, time_ns, opened_period_ns }
}

#[cfg(test)]
mod tests {
    use profiler_core::unwind::method::Method;

    use super::*;

    fn settings() -> ClockSettings {
        ClockSettings { period_ns: 1_000_000_000, method: Method::Fp, stack_bytes: 0, mappings: true }
    }

    /// Needs no privilege: the clocks are attached to this thread. None where perf events are not permitted.
    fn sampler(threads: Vec<u32>) -> Option<PerfSampler> {
        let access = Access { cpu_wide: false, kernel: false, targets: 1 };
        PerfSampler::open(access, Attachment::Tasks(threads), settings(), Dither::new(7)).ok()
    }

    fn this_thread() -> u32 {
        nix::unistd::gettid().as_raw() as u32
    }

    #[test]
    fn cpus_have_changed_until_clocks_were_renewed_for_them() {
        let Some(mut sampler) = sampler(vec![this_thread()]) else { return };
        sampler.start().unwrap();
        assert!(!sampler.cpus_changed());
        sampler.online.clear(); // as if one had gone and come back since
        let nobody = Attachment::Tasks(Vec::new());
        assert!(sampler.open_incoming(nobody, settings()).is_err());
        assert!(sampler.cpus_changed(), "nothing was renewed");
        sampler.open_incoming(sampler.attachment().clone(), settings()).unwrap();
        sampler.close_outgoing();
        assert!(!sampler.cpus_changed());
    }

    #[test]
    fn threads_that_are_refused_are_left_out() {
        let mut attachment = Attachment::Tasks(vec![1, 2, 3]);
        attachment.leave_out(&FxHashSet::from_iter([2]));
        assert!(matches!(attachment, Attachment::Tasks(threads) if threads == [1, 3]));
    }

    /// Of threads that were left out, clocks are not asked for again before all are opened anew.
    #[test]
    fn threads_that_were_left_out_are_not_unattached() {
        let Some(mut sampler) = sampler(vec![this_thread()]) else { return };
        sampler.left_out.insert(1);
        assert_eq!(sampler.unattached(vec![1, 2, this_thread()]), [2]);
        sampler.open_incoming(sampler.attachment().clone(), settings()).unwrap();
        assert_eq!(sampler.unattached(vec![1, 2, this_thread()]), [1, 2]);
    }
}
