//! Names, forks and exits on whole CPUs, reported once for all targets that need them. With events for each
//! target, a process that forks would pay for a record for each of them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::{Rc, Weak};

use profiler_core::record::{RawData, RawRecord};
use profiler_core::sorter::RecordQueue;

use super::access::{Access, OpenError};
use super::reporters::Reporters;
use super::rings::Rings;
use crate::sys::limits::{self, OnlineCpu};

/// Most records that are kept for slow readers: more than a machine forks in seconds. A reader further behind loses
/// some.
const MOST_RECORDS: usize = 1 << 15;

/// Reports are small, so their rings have the size that each of this many targets would get.
const AS_OF_TARGETS: usize = 32;

/// The reports that all targets of a daemon share. Clones share them too.
#[derive(Clone)]
pub(crate) struct SharedReports(Rc<RefCell<ReportLog>>);

struct ReportLog {
    access: Access,
    /// None while there is no reader.
    source: Option<ReporterRings>,
    log: VecDeque<SharedReport>,
    /// Number of the first report in `log`.
    first: u64,
    readers: Vec<Weak<ReaderPosition>>,
}

/// The position of a reader.
#[derive(Debug, Default)]
struct ReaderPosition {
    /// The number of the next report.
    next: Cell<u64>,
    /// Unclaimed reports that it has to pay for.
    owed: Cell<u64>,
    /// Whether it only wants what was reported before it stopped.
    is_done: Cell<bool>,
}

struct ReporterRings {
    rings: Rings,
    reporters: Reporters,
    online: Vec<OnlineCpu>,
}

struct SharedReport {
    kind: u32,
    misc: u16,
    body: Box<[u8]>,
    claim: ReportClaim,
}

/// Whether a target has claimed the report: that target pays for it, as for what its own events report.
#[derive(Debug, Default)]
pub(crate) struct ReportClaim(Cell<bool>);

impl ReportClaim {
    /// A target that reads this report marks it as its own, and so pays for it.
    pub(crate) fn mark_claimed(&self) {
        self.0.set(true);
    }
}

impl SharedReport {
    /// Stands for something that is not a record: it cannot be decoded.
    fn damaged() -> Self {
        const FORK: u32 = 7; // `PERF_RECORD_FORK`
        Self { kind: FORK, misc: 0, body: Box::default(), claim: ReportClaim::default() }
    }
}

impl SharedReports {
    /// Nothing is reported before there is a reader.
    pub(crate) fn new(access: Access) -> Self {
        let (log, readers) = (VecDeque::new(), Vec::new());
        let access = Access { targets: AS_OF_TARGETS, ..access };
        Self(Rc::new(RefCell::new(ReportLog { access, source: None, log, first: 0, readers })))
    }

    /// Reads what is reported from now on.
    pub(super) fn reader(&self) -> io::Result<ReportReader> {
        let mut shared = self.0.borrow_mut();
        shared.forget_readers();
        if shared.source.is_none() {
            shared.source = Some(ReporterRings::open(shared.access)?);
        }
        shared.read(u64::MAX);
        let next = Cell::new(shared.first + shared.log.len() as u64);
        let place = Rc::new(ReaderPosition { next, ..ReaderPosition::default() });
        shared.readers.push(Rc::downgrade(&place));
        drop(shared);
        Ok(ReportReader { shared: self.clone(), place })
    }

    /// Memory of the rings (bytes).
    pub(crate) fn ring_bytes(&self) -> u64 {
        self.0.borrow().source.as_ref().map_or(0, |source| source.rings.bytes())
    }
}

impl ReporterRings {
    fn open(access: Access) -> io::Result<Self> {
        let online = limits::online();
        let rings = Rings::open(limits::numbers(&online), access).map_err(OpenError::into_io)?;
        let mut reporters = Reporters::default();
        reporters.adjust(&rings, true, false)?;
        Ok(Self { rings, reporters, online })
    }
}

impl ReportLog {
    /// Takes in what was reported until `until_ns`, and removes what every reader has read. The readers take turns to
    /// pay for reports that no target has claimed.
    fn read(&mut self, until_ns: u64) {
        let log = &mut self.log;
        if let Some(source) = &mut self.source {
            source.rings.drain(until_ns, |_, raw| {
                let mut body = vec![0; raw.body.len()].into_boxed_slice();
                if raw.body.clone().read_exact(&mut body).is_ok() {
                    log.push_back(SharedReport {
                        kind: raw.kind,
                        misc: raw.misc,
                        body,
                        claim: ReportClaim::default(),
                    });
                }
            });
            (0..source.rings.take_damaged()).for_each(|_| log.push_back(SharedReport::damaged()));
        }
        let end = self.first + log.len() as u64;
        let read =
            self.readers.iter().filter_map(Weak::upgrade).map(|place| place.next.get()).min().unwrap_or(end);
        let kept = (end - read.clamp(self.first, end)) as usize;
        let gone = log.len() - kept.min(MOST_RECORDS);
        for (report, number) in log.drain(..gone).zip(self.first..) {
            let payer = payer(number, self.readers.len()).and_then(|turn| self.readers[turn].upgrade());
            if let Some(place) = payer.filter(|_| !report.claim.0.get()) {
                place.owed.set(place.owed.get() + 1);
            }
        }
        self.first += gone as u64;
    }

    fn forget_readers(&mut self) {
        self.readers.retain(|place| place.strong_count() > 0);
    }

    /// Closes the events if no reader wants more.
    fn rest(&mut self) {
        let is_done = |place: &Weak<ReaderPosition>| place.upgrade().is_none_or(|place| place.is_done.get());
        self.read(u64::MAX);
        if self.readers.iter().all(is_done) {
            self.source = None;
        }
    }
}

/// A target's reader of the reports.
pub(super) struct ReportReader {
    shared: SharedReports,
    place: Rc<ReaderPosition>,
}

impl ReportReader {
    /// Reopens the events if CPUs have come or gone.
    pub(super) fn renew(&self, online: &[OnlineCpu]) -> io::Result<()> {
        let mut shared = self.shared.0.borrow_mut();
        let Some(source) = shared.source.as_mut().filter(|source| source.online != online) else {
            return Ok(());
        };
        source.rings.replace(&limits::numbers(online))?;
        source.reporters = Reporters::default();
        source.reporters.adjust(&source.rings, true, false)?;
        source.online = online.to_vec();
        Ok(())
    }

    /// Declares that nothing reported after now is wanted.
    pub(super) fn stop(&self) {
        self.place.is_done.set(true);
        self.shared.0.borrow_mut().rest();
    }

    /// Hands over every record of `rings` and every report made until `until_ns`, in time order; a report comes with
    /// its claim.
    pub(super) fn drain_with(
        &self,
        rings: &mut Rings,
        until_ns: u64,
        mut handle: impl FnMut(Option<&ReportClaim>, RawRecord<'_>),
    ) -> DrainSummary {
        let mut shared = self.shared.0.borrow_mut();
        shared.forget_readers();
        shared.read(until_ns);
        let next = &self.place.next;
        let lost = shared.first.saturating_sub(next.get());
        next.set(next.get() + lost);
        let log = UnreadReports { reports: &shared.log, first: shared.first, next };
        rings.drain_with(log, until_ns, |is_report, raw| {
            let at = next.get().wrapping_sub(shared.first) as usize;
            let claim = shared.log.get(at).filter(|_| is_report).map(|report| &report.claim);
            handle(claim, raw);
        });
        DrainSummary { lost, owed: self.place.owed.take() }
    }
}

/// What a drain returns beside the reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DrainSummary {
    /// Reports that were removed before this reader got to them.
    pub(super) lost: u64,
    /// Reports about no target that all readers have read by now, and that are charged to this one.
    pub(super) owed: u64,
}

impl Drop for ReportReader {
    fn drop(&mut self) {
        // The borrow fails only inside of a read. The last reader closes the events.
        if let Ok(mut shared) = self.shared.0.try_borrow_mut() {
            shared.readers.retain(|place| !std::ptr::eq(place.as_ptr(), Rc::as_ptr(&self.place)));
            shared.rest();
        }
    }
}

/// Which of `readers` readers pays for report `number`. Reports come in patterns (a process that forks soon ends), so a
/// hash of the number draws the turns, or one reader might pay for most of them.
fn payer(number: u64, readers: usize) -> Option<usize> {
    let drawn = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
    Some(drawn.checked_rem(readers as u64)? as usize)
}

/// What a reader has not yet read.
pub(super) struct UnreadReports<'a> {
    reports: &'a VecDeque<SharedReport>,
    first: u64,
    next: &'a Cell<u64>,
}

impl RecordQueue for UnreadReports<'_> {
    fn front(&mut self) -> Option<RawRecord<'_>> {
        let at = usize::try_from(self.next.get().checked_sub(self.first)?).ok()?;
        let SharedReport { kind, misc, body, .. } = self.reports.get(at)?;
        Some(RawRecord { kind: *kind, misc: *misc, body: RawData::Single(body) })
    }

    fn pop(&mut self) {
        self.next.set(self.next.get() + 1);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use profiler_core::record::{Record, RecordFormat};

    use super::*;
    use crate::sampler::access::probe_access;
    use crate::sys::clock;

    #[derive(Debug, Default)]
    struct Read {
        /// Children of this process.
        forks: u64,
        reports: u64,
        summary: DrainSummary,
    }

    /// Whoever `claims` does so with these children.
    fn read(reader: &ReportReader, rings: &mut Rings, until_ns: u64, claims: bool) -> Read {
        let mut read = Read::default();
        read.summary = reader.drain_with(rings, until_ns, |claim, raw| {
            read.reports += u64::from(claim.is_some());
            if let Ok(Record::Fork(task)) = raw.decode(&RecordFormat::new(false)) {
                let is_child = task.parent_pid == std::process::id() && task.pid != task.parent_pid;
                read.forks += u64::from(is_child);
                claim.filter(|_| is_child && claims).inspect(|claim| claim.mark_claimed());
            }
        });
        read
    }

    #[test]
    fn every_reader_is_told_of_all_and_whose_it_is_pays_or_one_of_them() {
        let Some(access) = probe_access().ok().filter(|access| access.cpu_wide) else {
            return; // events of whole CPUs are not permitted here
        };
        let shared = SharedReports::new(access);
        let mut rings = Rings::open(limits::numbers(&limits::online()), access).unwrap();
        let (first, second) = (shared.reader().unwrap(), shared.reader().unwrap());
        let children = || (0..20).for_each(|_| assert!(Command::new("true").status().unwrap().success()));
        children();
        let now_ns = clock::monotonic_ns();
        let (a, b) = (read(&first, &mut rings, now_ns, true), read(&second, &mut rings, now_ns, false));
        assert!(a.forks >= 20 && b.forks >= 20, "{a:?} {b:?}"); // other tests fork beside this one
        assert!(a.reports == b.reports && (a.summary, b.summary) == Default::default(), "{a:?} {b:?}");
        let [c, d] = [&first, &second].map(|reader| read(reader, &mut rings, now_ns, false).summary.owed);
        assert_eq!(c + d, a.reports - a.forks, "{a:?} {b:?}");
        assert!(c.min(d) > (c + d) / 5, "{c} {d}");
        let read =
            |reader, until_ns| read(reader, &mut Rings::open(vec![0], access).unwrap(), until_ns, false);
        let late = shared.reader().unwrap();
        drop(second);
        children();
        let late_ns = clock::monotonic_ns();
        assert!(read(&late, late_ns).forks >= 20);
        drop(first);
        children();
        late.stop();
        assert!(shared.0.borrow().source.is_none() && shared.ring_bytes() == 0, "nobody wants more");
        assert!(read(&late, u64::MAX).forks >= 20, "what was reported until then is read");
        drop(late);
        assert!(shared.0.borrow().log.is_empty());
    }

    #[test]
    fn who_is_too_far_behind_is_told_how_much_he_has_lost() {
        let access = Access { cpu_wide: false, kernel: false, targets: 1 };
        let shared = SharedReports::new(access);
        let place = Rc::new(ReaderPosition { next: Cell::new(3), ..ReaderPosition::default() });
        let report = || SharedReport {
            kind: 4,
            misc: 0,
            body: vec![0; 40].into_boxed_slice(),
            claim: ReportClaim::default(),
        };
        {
            let mut shared = shared.0.borrow_mut();
            shared.readers.push(Rc::downgrade(&place));
            (shared.first, shared.log) = (10, (0..5).map(|_| report()).collect());
        }
        let reader = ReportReader { shared: shared.clone(), place };
        let Ok(mut rings) = Rings::open(limits::numbers(&limits::online()), access) else {
            return; // perf events are not permitted here
        };
        let mut reports = 0;
        let lost =
            reader.drain_with(&mut rings, u64::MAX, |report, _| reports += u64::from(report.is_some())).lost;
        assert_eq!((lost, reports), (7, 5));
        shared.0.borrow_mut().log.push_back(SharedReport::damaged());
        let mut damaged = 0;
        reader.drain_with(&mut rings, u64::MAX, |report, raw| {
            let is_told = report.is_some() && raw.decode(&RecordFormat::new(false)).is_err();
            damaged += u64::from(is_told);
        });
        assert_eq!(damaged, 1, "damage is told as what cannot be decoded");
        let summary = reader.drain_with(&mut rings, u64::MAX, |_, _| ());
        assert_eq!(summary, DrainSummary { lost: 0, owed: 1 }, "nobody else is there to pay");
    }
}
