//! Names what was sampled and keeps it, on threads of their own: neither a big program's debug information nor a slow disk
//! delays a sample.
//!
//! A window is first written without names ([`spooling`]), since names wait for CPU time and may take long: whatever ends the
//! process, the next one names it. Then it is named and stored ([`work`]).

mod spooling;
#[cfg(test)]
mod tests;
mod work;

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use profile_files::store::{self, Export, Outboxes, RealDisk, Spool, Store, StoreError, TargetWindow};
use profiler_core::profile::Run;

use super::flushing::FlushWaiter;
use super::pace::{NameBudget, NamingPace};
use crate::debuginfod;
use crate::objects::Symbols;
use crate::run::names::{CancelFlag, Cut};
use crate::sampler::session::Collected;
use crate::service::command::CommandRefused;
use crate::service::state::StoreStatus;
use crate::sys::clock;

/// Most windows that may wait, however small they are.
const MOST_WAITING: usize = 4_096;
/// A window that waits for longer than this to be on the disk has met one that does not answer (ns).
const TOO_LONG_NS: u64 = 60_000_000_000;
/// The same of one that is there and only lacks its names, which wait for CPU time (ns).
const TOO_LONG_FOR_NAMES_NS: u64 = 10 * TOO_LONG_NS;
/// Lost windows that are remembered for requests that wait for them.
const MOST_LOST: usize = 1_024;
/// Files reported as damaged that wait for a check; readers will report the rest again.
const MOST_SUSPECTS: usize = 100;

/// A window of a target, to be named and kept.
pub(crate) struct PendingWindow {
    /// Its target and time range.
    pub(crate) window: TargetWindow,
    /// What was counted in it.
    pub(crate) collected: Collected,
    /// Converts the weights to CPU time.
    pub(crate) scale: f64,
    /// Its figures.
    pub(crate) run: Run,
    /// Room that it takes while it waits (bytes, about).
    pub(crate) bytes: u64,
}

/// An item of the queues: from the loop to the spooling thread, and on to the naming thread.
enum QueueItem<P> {
    /// With the moment that it was handed over (ns).
    Keep(Box<P>, u64),
    /// Answer these requests: everything queued before is stored by now.
    Flushed(Vec<FlushWaiter>),
    /// There is something new beside the queue, which may be full.
    Look,
}

/// A window that waits for its names.
struct UnnamedWindow {
    window: TargetWindow,
    cut: Cut,
    scale: f64,
    run: Run,
    bytes: u64,
    /// Its file in the spool, where it could be written.
    spooled: Option<String>,
}

/// A window that was handed over and is not kept by now.
#[derive(Debug)]
struct QueuedWindow {
    /// When it was handed over (ns).
    at_ns: u64,
    target: String,
    /// Whether it outlives the process, once that is known.
    is_spooled: Option<bool>,
}

/// A window that was not kept.
#[derive(Debug)]
pub(crate) struct LostWindow {
    /// Its target.
    pub(crate) target: String,
    /// Its labels.
    pub(crate) labels: BTreeMap<String, String>,
    /// When it was handed over (ns).
    pub(crate) handed_ns: u64,
    /// Why, as shown in a target's status.
    pub(crate) why: String,
}

/// The rules in force.
struct WriterRules {
    store: store::StoreTerms,
    /// Limit for waiting windows (bytes, about).
    most_bytes: u64,
    debuginfod: Option<debuginfod::DebuginfodSettings>,
}

/// What became of a target's windows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StoredWindows {
    /// Windows in the store.
    pub(crate) windows: u64,
    /// Samples in them whose innermost function has no name.
    pub(crate) unnamed: u64,
    /// Whether the target was removed: the counts are dropped once its last window is stored.
    is_gone: bool,
}

/// What is noted for the other threads.
#[derive(Default)]
struct WriterState {
    store: StoreStatus,
    /// Windows that are not stored yet, oldest first.
    handed: VecDeque<QueuedWindow>,
    /// Windows that could not be written before they are named.
    unspooled: u64,
    /// Why the last of them could not.
    unspooled_cause: String,
    /// What spooling took (ns of CPU time).
    spooling_ns: u64,
    /// Windows that did not fit into the queue since the last one was stored.
    dropped: u64,
    lost: VecDeque<LostWindow>,
    suspects: Vec<PathBuf>,
    rules: Option<WriterRules>,
    exports: Option<Vec<Export>>,
    /// Windows that were named, without the first of each target.
    later_windows: u64,
    /// CPU time of the threads and of the processes that read symbols (ns).
    cpu_ns: u64,
    /// The part of it that went into first windows.
    first_windows_ns: u64,
    targets: BTreeMap<String, StoredWindows>,
}

/// What the threads share outside of the queues.
#[derive(Clone, Default)]
struct WriterShared {
    state: Arc<Mutex<WriterState>>,
    /// Room that the waiting windows take (bytes, about).
    waiting_bytes: Arc<AtomicU64>,
    /// Shutdown has begun: no merge starts any more, and what an earlier process left waits for the next.
    is_ending: Arc<AtomicBool>,
    /// Naming is given up: windows stay in the spool.
    cancel: CancelFlag,
}

impl WriterShared {
    fn state(&self) -> MutexGuard<'_, WriterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    /// The clock of naming: CPU time of the threads and processes that look for names (ns), without the main thread and without the
    /// spooling thread, which books its own.
    fn naming_threads_ns(&self) -> u64 {
        clock::beside_main_thread_ns().saturating_sub(self.state().spooling_ns)
    }
}

/// The threads that spool, name and keep.
pub(crate) struct WindowWriter {
    jobs: Option<SyncSender<QueueItem<PendingWindow>>>,
    /// The store's.
    folder: PathBuf,
    spool: Spool,
    outboxes: Outboxes,
    shared: WriterShared,
    most_bytes: u64,
    budget: NameBudget,
    thread: Option<JoinHandle<()>>,
}

/// The outcome of [`WindowWriter::finish`].
pub(crate) struct Finished {
    /// Windows that were lost by then, all in all.
    pub(crate) lost: u64,
    /// Windows that the next process will name.
    pub(crate) unnamed: u64,
    /// The final status of the store.
    pub(crate) store: StoreStatus,
}

impl WriterState {
    fn lose(&mut self, lost: LostWindow) {
        self.lost.push_back(lost);
        if self.lost.len() > MOST_LOST {
            self.lost.pop_front();
        }
    }

    /// The oldest window is kept, or lost.
    fn done(&mut self) {
        let Some(QueuedWindow { target, .. }) = self.handed.pop_front() else { return };
        if self.targets.get(&target).is_some_and(|kept| kept.is_gone) {
            self.forget(&target);
        }
    }

    fn forget(&mut self, target: &str) {
        if self.handed.iter().any(|handed| handed.target == target) {
            self.targets.entry(target.to_owned()).or_default().is_gone = true;
        } else {
            self.targets.remove(target);
        }
    }

    /// Notes whether the oldest window with unknown state is in the spool, or why not.
    fn note_spooled(&mut self, outcome: Result<(), String>) {
        let is_spooled = outcome.is_ok();
        if let Err(cause) = outcome {
            self.unspooled += 1;
            self.unspooled_cause = cause;
        }
        if let Some(handed) = self.handed.iter_mut().find(|handed| handed.is_spooled.is_none()) {
            handed.is_spooled = Some(is_spooled);
        }
    }

    /// How many windows wait in memory alone, in a line for a person.
    fn in_memory_only(&self) -> Option<String> {
        let count = self.handed.iter().filter(|handed| handed.is_spooled == Some(false)).count();
        let windows = if count == 1 { "1 window waits".to_owned() } else { format!("{count} windows wait") };
        (count > 0).then(|| {
            let cause = &self.unspooled_cause;
            format!("{windows} for names in memory only ({cause}); a crash loses what waits there")
        })
    }

    /// Why nothing can be stored at present, if so.
    fn problem(&self, has_ended: bool, now_ns: u64) -> Option<String> {
        if has_ended {
            return Some("internal error in the thread that stores windows; see sweetspot's log".to_owned());
        }
        let late = self.handed.iter().find_map(|handed| {
            let (longest_ns, for_what) = match handed.is_spooled {
                Some(true) => {
                    (TOO_LONG_FOR_NAMES_NS, "for its names; raise budget.host, or restart sweetspot")
                }
                _ => (TOO_LONG_NS, "to be stored; check the disk"),
            };
            let waits_ns = now_ns.saturating_sub(handed.at_ns);
            (waits_ns > longest_ns)
                .then(|| format!("a window has waited {} s {for_what}", waits_ns / 1_000_000_000))
        });
        if late.is_some() {
            return late;
        }
        if self.dropped > 0 {
            return Some(format!(
                "{} windows were dropped since one was last stored: limits.queue is full; check the disk, or raise limits.queue",
                self.dropped
            ));
        }
        self.store.problem.clone()
    }
}

impl WindowWriter {
    /// Opens the store and begins. At most `most_bytes` of windows wait, in memory and on the disk. Reading symbols is not paced by
    /// its budget until [`Self::pace_reading`]: a writer may be prepared and never put in force.
    ///
    /// # Errors
    ///
    /// If the store cannot be used.
    pub(crate) fn start(
        folder: &Path,
        bounds: store::StoreTerms,
        most_bytes: u64,
        debuginfod: Option<debuginfod::DebuginfodSettings>,
        symbols: &Symbols,
    ) -> Result<Self, StoreError> {
        let store = Store::open(folder, bounds, RealDisk)?;
        store.notes(clock::monotonic_ns()).iter().for_each(|note| tracing::warn!("{note}"));
        let spool = Spool::open(folder, most_bytes);
        let outboxes = store.outboxes();
        let leftovers: VecDeque<String> = spool.names().into();
        if !leftovers.is_empty() {
            tracing::info!(
                "{} windows that an earlier process left without names are named",
                leftovers.len()
            );
        }
        let (jobs, to_spool) = mpsc::sync_channel(MOST_WAITING);
        let (to_name, queue) = mpsc::sync_channel(MOST_WAITING);
        let (shared, budget) = (WriterShared::default(), NameBudget::default());
        let boot = boot_id();
        let mut spooler = spooling::Spooler {
            spool: spool.clone(),
            boot: boot.clone(),
            shared: shared.clone(),
            budget: budget.clone(),
            log: spooling::SpoolLog::default(),
        };
        let mut work = work::WriterWork {
            folder: folder.to_owned(),
            servers: debuginfod.clone().map(debuginfod::Servers::new),
            store,
            spool: spool.clone(),
            leftovers,
            started_ns: clock::monotonic_ns(),
            symbols: symbols.clone(),
            rules: WriterRules { store: bounds, most_bytes, debuginfod },
            boot,
            shared: shared.clone(),
            pace: NamingPace::new(budget.clone(), clock::monotonic_ns()),
            merged_ns: clock::monotonic_ns(),
            problem: None,
            obstacle: None,
        };
        work.tell();
        let unwritable = |cause| StoreError::Unwritable { path: folder.to_owned(), cause };
        let named = |name: &str| std::thread::Builder::new().name(name.to_owned());
        // The spooler ends with the loop, and the keeper with the spooler.
        named("spooler").spawn(move || spooler.run(&to_spool, &to_name)).map_err(unwritable)?;
        let thread = Some(named("keeper").spawn(move || work.run(&queue)).map_err(unwritable)?);
        let folder = folder.to_owned();
        Ok(Self { jobs: Some(jobs), folder, spool, outboxes, shared, most_bytes, budget, thread })
    }

    /// Has its budget pace the process that reads symbols, from now on.
    pub(crate) fn pace_reading(&self, symbols: &Symbols) {
        let budget = self.budget.clone();
        symbols.pace_reading(Arc::new(move |spent_ns| budget.may_read_on(spent_ns)));
    }

    /// Hands over a window; it is dropped and counted if there is no room.
    pub(crate) fn keep(&self, pending: PendingWindow) {
        let (bytes, handed_ns) = (pending.bytes, clock::monotonic_ns());
        let (target, labels) = (pending.window.target.clone(), pending.window.labels.clone());
        let waiting = self.shared.waiting_bytes.load(Ordering::Relaxed);
        let has_room = waiting == 0 || waiting + bytes <= self.most_bytes;
        self.shared.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        let mut state = self.shared.state();
        let handed = QueuedWindow { at_ns: handed_ns, target: target.clone(), is_spooled: None };
        state.handed.push_back(handed); // before the thread can be done with it
        state.targets.entry(target.clone()).and_modify(|kept| kept.is_gone = false);
        drop(state);
        if has_room && self.send(QueueItem::Keep(Box::new(pending), handed_ns)) {
            return;
        }
        self.shared.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
        let mut state = self.shared.state();
        state.handed.pop_back();
        state.dropped += 1;
        state.store.dropped_queue += 1;
        let why =
            "a window was dropped: limits.queue is full; check the disk, or raise limits.queue".to_owned();
        state.lose(LostWindow { target, labels, handed_ns, why });
    }

    /// Sets the budget for names: `cpus` CPUs, unless a request waits, and `room_ns` at once.
    pub(crate) fn allow(&self, cpus: f64, room_ns: f64) {
        self.budget.allow(cpus, room_ns);
    }

    /// Own CPU time that it took to hand windows over (ns): names wait for it.
    pub(crate) fn handing_took(&self, cpu_ns: u64) {
        self.budget.spend_beside(cpu_ns);
    }

    /// When the window was handed over that has waited longest (ns).
    pub(crate) fn waits_since_ns(&self) -> Option<u64> {
        self.shared.state().handed.front().map(|handed| handed.at_ns)
    }

    /// Own CPU time for naming and storing windows so far (ns).
    pub(crate) fn names_ns(&self) -> u64 {
        self.budget.spent_ns(self.shared.naming_threads_ns())
    }

    /// Answers once all that was handed over before is kept.
    pub(crate) fn flush(&self, waiting: Vec<FlushWaiter>) {
        let busy = || CommandRefused::Busy("the disk cannot keep up; try again later".to_owned());
        let job = QueueItem::Flushed(waiting);
        self.budget.add_urgent();
        self.wake();
        let sent = self.jobs.as_ref().map(|jobs| jobs.try_send(job));
        if let Some(Err(
            TrySendError::Full(QueueItem::Flushed(waiting))
            | TrySendError::Disconnected(QueueItem::Flushed(waiting)),
        )) = sent
        {
            self.budget.remove_urgent();
            waiting.into_iter().for_each(|waiting| waiting.refuse(busy()));
        }
    }

    /// Files that a reader took for damaged: those that are will be set aside.
    pub(crate) fn suspect(&self, paths: Vec<PathBuf>) {
        let mut state = self.shared.state();
        for path in paths {
            if state.suspects.len() < MOST_SUSPECTS && !state.suspects.contains(&path) {
                state.suspects.push(path);
            }
        }
        drop(state);
        self.send(QueueItem::Look); // if the queue is full, the thread checks after its next window
    }

    /// Puts other bounds in force.
    pub(crate) fn rebound(
        &mut self,
        bounds: store::StoreTerms,
        most_bytes: u64,
        debuginfod: Option<debuginfod::DebuginfodSettings>,
    ) {
        self.most_bytes = most_bytes;
        self.spool.rebound(most_bytes);
        self.shared.state().rules = Some(WriterRules { store: bounds, most_bytes, debuginfod });
        self.send(QueueItem::Look); // if the queue is full, the thread checks after its next window
    }

    /// Sets the exports that get windows from now on.
    pub(crate) fn export(&self, exports: Vec<Export>) {
        self.shared.state().exports = Some(exports);
        self.send(QueueItem::Look); // if the queue is full, the thread checks after its next window
    }

    /// The store's folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The windows that wait to be sent, by export.
    pub(crate) fn outboxes(&self) -> &Outboxes {
        &self.outboxes
    }

    fn send(&self, job: QueueItem<PendingWindow>) -> bool {
        self.jobs.as_ref().is_some_and(|jobs| jobs.try_send(job).is_ok())
    }

    /// The status of the store.
    pub(crate) fn status(&self) -> StoreStatus {
        let state = self.shared.state();
        let notes = state.store.notes.iter().cloned().chain(state.in_memory_only()).collect();
        StoreStatus {
            notes,
            queued_bytes: self.shared.waiting_bytes.load(Ordering::Relaxed),
            problem: state.problem(self.has_ended(), clock::monotonic_ns()),
            unnamed_files: self.spool.size().0,
            unspooled: state.unspooled,
            ..state.store.clone()
        }
    }

    /// Whether the thread has ended unexpectedly: nothing more will be stored.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_some_and(JoinHandle::is_finished)
    }

    /// Windows that were lost so far.
    pub(crate) fn lost(&self) -> u64 {
        let state = self.shared.state();
        state.store.dropped_queue + state.store.counters.dropped_full + state.store.counters.dropped_refused
    }

    /// Windows that were named until now, and what naming and storing them took (ns of CPU time), without the
    /// first window of each target: reading a program's symbols is set-up, and the next windows find them read.
    pub(crate) fn spent(&self) -> (u64, u64) {
        let state = self.shared.state();
        (state.later_windows, state.cpu_ns.saturating_sub(state.first_windows_ns))
    }

    /// What became of a target's windows.
    pub(crate) fn kept(&self, target: &str) -> StoredWindows {
        self.shared.state().targets.get(target).copied().unwrap_or_default()
    }

    /// Drops the counts of a removed target, once its last window is stored.
    pub(crate) fn forget(&self, target: &str) {
        self.shared.state().forget(target);
    }

    /// Takes no more windows. Those handed over are stored without pauses; then the thread ends.
    pub(crate) fn end(&mut self) {
        self.shared.is_ending.store(true, Ordering::Relaxed);
        self.budget.end();
        drop(self.jobs.take());
        self.wake();
    }

    /// Wakes the thread if it pauses: it checks whether it still has to.
    fn wake(&self) {
        self.thread.iter().for_each(|thread| thread.thread().unpark());
    }

    /// Waits until everything is stored, until `until` at most. After `cancel_at`, windows without names stay in the
    /// spool; those that are not in the spool are stored without names.
    pub(crate) fn finish(mut self, cancel_at: Instant, until: Instant) -> Finished {
        self.end();
        while !self.has_ended() && Instant::now() < until {
            if Instant::now() >= cancel_at {
                self.shared.cancel.set();
                self.wake();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let state = self.shared.state();
        let spooled = state.handed.iter().filter(|handed| handed.is_spooled == Some(true)).count() as u64;
        let lost = state.handed.len() as u64 - spooled;
        drop(state);
        let unnamed = self.spool.size().0 as u64;
        Finished { lost: self.lost() + lost, unnamed, store: self.status() }
    }
}

/// The id of this boot; empty if the kernel has none.
pub(crate) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}
