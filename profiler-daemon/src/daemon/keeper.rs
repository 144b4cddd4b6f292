//! Names what was sampled and keeps it, on a thread of its own: neither a big program's debug information nor a slow disk
//! delays a sample.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use profiler_core::profile::{Run, SymbolizedProfile};

use super::ask::Refused;
use super::flushing::Waiting;
use super::pace::{Pace, Wanted};
use super::state::StoreStatus;
use crate::debuginfod;
use crate::run::names::{Hurry, symbolize};
use crate::sampler::session::Collected;
use crate::store::{self, Now, RealDisk, Store, StoreError, Window};
use crate::sys::{clock, memory};

/// Windows that wait at most, however small they are.
const MOST_WAITING: usize = 4_096;
/// While a window waits, it is looked this often whether somebody wants it at once.
const LOOK: Duration = Duration::from_millis(50);
/// How often it is looked what is too old, and what can be merged.
const MAINTAIN_EVERY: Duration = Duration::from_secs(10);
/// Merges wait for what the host's budget leaves them, but no longer than this (ns): the more files there are, the more it costs
/// to read them.
const MERGE_EVERY_NS: u64 = 60_000_000_000;
/// A window that waits for longer than this has met a disk that does not answer (ns).
const TOO_LONG_NS: u64 = 60_000_000_000;
/// Windows that were not kept and are remembered for those who wait for them.
const MOST_LOST: usize = 1_024;
/// Files that readers took for damaged and that wait to be looked at: whoever reads finds them again.
const MOST_SUSPECTS: usize = 100;
/// How often the memory that names, merges and readers have freed is given back.
const GIVE_BACK_EVERY: Duration = Duration::from_secs(60);

/// A window of a target, to be named and kept.
pub(crate) struct Parcel {
    /// Which.
    pub(crate) window: Window,
    /// What was counted in it.
    pub(crate) collected: Collected,
    /// What takes its weights to CPU time.
    pub(crate) scale: f64,
    /// Its figures.
    pub(crate) run: Run,
    /// Room that it takes while it waits (bytes, about).
    pub(crate) bytes: u64,
}

enum Job {
    /// With the moment that it was handed over (ns).
    Keep(Box<Parcel>, u64),
    /// What was given before is kept by now.
    Flushed(Vec<Waiting>),
    /// There is something new beside the queue, which may be full.
    Look,
}

/// A window that was not kept.
#[derive(Debug)]
pub(crate) struct Lost {
    /// Whose.
    pub(crate) target: String,
    /// Its labels.
    pub(crate) labels: BTreeMap<String, String>,
    /// When it was handed over (ns).
    pub(crate) handed_ns: u64,
    /// Why, as it is said of a target.
    pub(crate) why: String,
}

/// What is in force.
struct Rules {
    store: store::Settings,
    /// Windows that may wait (bytes, about).
    most_bytes: u64,
    debuginfod: Option<debuginfod::Settings>,
}

/// What became of a target's windows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Kept {
    /// Windows in the store.
    pub(crate) windows: u64,
    /// Samples in them whose innermost function has no name.
    pub(crate) unnamed: u64,
    /// Whether the target is not there any more: nobody asks for it once its last window is kept.
    is_gone: bool,
}

/// What the thread tells, and what it is told beside the queue.
#[derive(Default)]
struct Told {
    store: StoreStatus,
    /// When each window was handed over that is not kept by now (ns), and whose it is; the oldest first.
    handed: VecDeque<(u64, String)>,
    /// Windows that did not find their way into the queue since one was kept.
    dropped: u64,
    lost: VecDeque<Lost>,
    suspects: Vec<PathBuf>,
    rules: Option<Rules>,
    /// Windows that were named, and the thread's CPU time (ns).
    spent: (u64, u64),
    targets: BTreeMap<String, Kept>,
}

/// The thread that names and keeps.
pub(crate) struct Keeper {
    jobs: Option<SyncSender<Job>>,
    waiting_bytes: Arc<AtomicU64>,
    most_bytes: u64,
    told: Arc<Mutex<Told>>,
    hurry: Hurry,
    wanted: Wanted,
    is_ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Told {
    fn lose(&mut self, lost: Lost) {
        self.lost.push_back(lost);
        if self.lost.len() > MOST_LOST {
            self.lost.pop_front();
        }
    }

    /// The oldest window is kept, or lost.
    fn done(&mut self) {
        let Some((_, target)) = self.handed.pop_front() else { return };
        if self.targets.get(&target).is_some_and(|kept| kept.is_gone) {
            self.forget(&target);
        }
    }

    fn forget(&mut self, target: &str) {
        if self.handed.iter().any(|(_, handed)| handed == target) {
            self.targets.entry(target.to_owned()).or_default().is_gone = true;
        } else {
            self.targets.remove(target);
        }
    }

    /// Why nothing is kept at present, if that is so.
    fn problem(&self, has_ended: bool, now_ns: u64) -> Option<String> {
        if has_ended {
            return Some("what keeps windows has met an error of sweetspot's; its log says which".to_owned());
        }
        let waits_ns = self.handed.front().map_or(0, |(handed_ns, _)| now_ns.saturating_sub(*handed_ns));
        if waits_ns > TOO_LONG_NS {
            let waits_s = waits_ns / 1_000_000_000;
            return Some(format!("a window has waited for {waits_s} s to be kept; look at the disk"));
        }
        if self.dropped > 0 {
            return Some(format!(
                "{} windows were dropped since one was kept: more wait than limits.queue lets; look at the disk, or raise it",
                self.dropped
            ));
        }
        self.store.problem.clone()
    }
}

impl Keeper {
    /// Opens the store and begins. At most `most_bytes` of windows wait.
    ///
    /// # Errors
    ///
    /// If the store cannot be used.
    pub(crate) fn start(
        folder: &Path,
        bounds: store::Settings,
        most_bytes: u64,
        debuginfod: Option<debuginfod::Settings>,
    ) -> Result<Self, StoreError> {
        let store = Store::open(folder, bounds, RealDisk)?;
        if let Some(remark) = store.left_alone() {
            tracing::warn!("{remark}; they are looked at again at the next start");
        }
        let (jobs, queue) = mpsc::sync_channel(MOST_WAITING);
        let (waiting_bytes, told) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::default()));
        let (hurry, wanted, is_ending) = (Hurry::default(), Wanted::default(), Arc::default());
        let mut work = Work {
            folder: folder.to_owned(),
            servers: debuginfod.clone().map(debuginfod::Servers::new),
            store,
            rules: Rules { store: bounds, most_bytes, debuginfod },
            boot: boot_id(),
            waiting_bytes: Arc::clone(&waiting_bytes),
            told: Arc::clone(&told),
            hurry: hurry.clone(),
            pace: Pace::new(wanted.clone(), clock::monotonic_ns()),
            is_ending: Arc::clone(&is_ending),
            merged_ns: clock::monotonic_ns(),
        };
        work.tell(None);
        let thread = std::thread::Builder::new().name("keeper".to_owned()).spawn(move || work.run(&queue));
        let thread = thread.map_err(|cause| StoreError::Unwritable { path: folder.to_owned(), cause })?;
        let thread = Some(thread);
        Ok(Self { jobs: Some(jobs), waiting_bytes, most_bytes, told, hurry, wanted, is_ending, thread })
    }

    /// Hands over a window; one that there is no room for is dropped and counted.
    pub(crate) fn keep(&self, parcel: Parcel) {
        let (bytes, handed_ns) = (parcel.bytes, clock::monotonic_ns());
        let (target, labels) = (parcel.window.target.clone(), parcel.window.labels.clone());
        let waiting = self.waiting_bytes.load(Ordering::Relaxed);
        let has_room = waiting == 0 || waiting + bytes <= self.most_bytes;
        self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        let mut told = self.told();
        told.handed.push_back((handed_ns, target.clone())); // before the thread can be done with it
        told.targets.entry(target.clone()).and_modify(|kept| kept.is_gone = false);
        drop(told);
        if has_room && self.send(Job::Keep(Box::new(parcel), handed_ns)) {
            return;
        }
        self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
        let mut told = self.told();
        told.handed.pop_back();
        told.dropped += 1;
        told.store.dropped_queue += 1;
        let why = "a window was dropped, since too many wait to be kept".to_owned();
        told.lose(Lost { target, labels, handed_ns, why });
    }

    /// Names may take so many CPUs, as long as nobody waits for them, and so much at once (ns).
    pub(crate) fn allow(&self, cpus: f64, room_ns: f64) {
        self.wanted.allow(cpus, room_ns);
    }

    /// Own CPU time that names and keeping them took until now (ns).
    pub(crate) fn names_ns(&self) -> u64 {
        self.wanted.spent_ns()
    }

    /// Answers once all that was handed over before is kept.
    pub(crate) fn flush(&self, waiting: Vec<Waiting>) {
        let busy =
            || Refused::Busy("the disk is too slow for what there is to write; ask again later".to_owned());
        let job = Job::Flushed(waiting);
        self.wanted.hasten();
        let sent = self.jobs.as_ref().map(|jobs| jobs.try_send(job));
        if let Some(Err(
            TrySendError::Full(Job::Flushed(waiting)) | TrySendError::Disconnected(Job::Flushed(waiting)),
        )) = sent
        {
            self.wanted.hastened();
            waiting.into_iter().for_each(|waiting| waiting.refuse(busy()));
        }
    }

    /// Files that a reader took for damaged: those that are will be set aside.
    pub(crate) fn suspect(&self, paths: Vec<PathBuf>) {
        let mut told = self.told();
        for path in paths {
            if told.suspects.len() < MOST_SUSPECTS && !told.suspects.contains(&path) {
                told.suspects.push(path);
            }
        }
        drop(told);
        self.send(Job::Look); // where the queue is full, it looks after the next window
    }

    /// Other bounds are in force.
    pub(crate) fn rebound(
        &mut self,
        bounds: store::Settings,
        most_bytes: u64,
        debuginfod: Option<debuginfod::Settings>,
    ) {
        self.most_bytes = most_bytes;
        self.told().rules = Some(Rules { store: bounds, most_bytes, debuginfod });
        self.send(Job::Look); // where the queue is full, it looks after the next window
    }

    fn send(&self, job: Job) -> bool {
        self.jobs.as_ref().is_some_and(|jobs| jobs.try_send(job).is_ok())
    }

    /// How the store is.
    pub(crate) fn status(&self) -> StoreStatus {
        let told = self.told();
        StoreStatus {
            queued_bytes: self.waiting_bytes.load(Ordering::Relaxed),
            problem: told.problem(self.has_ended(), clock::monotonic_ns()),
            ..told.store.clone()
        }
    }

    /// Whether the thread is not there any more: nothing will be kept.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_some_and(JoinHandle::is_finished)
    }

    /// Windows that were not kept until now.
    pub(crate) fn lost(&self) -> u64 {
        let told = self.told();
        told.store.dropped_queue + told.store.counters.dropped_full + told.store.counters.dropped_refused
    }

    /// Windows that were named until now, and what that and keeping them took (ns of CPU time).
    pub(crate) fn spent(&self) -> (u64, u64) {
        self.told().spent
    }

    /// What became of a target's windows.
    pub(crate) fn kept(&self, target: &str) -> Kept {
        self.told().targets.get(target).copied().unwrap_or_default()
    }

    /// A target is not there any more, once its last window is kept.
    pub(crate) fn forget(&self, target: &str) {
        self.told().forget(target);
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes no more; what was handed over is kept as fast as it can be, and nothing else is done. Then the thread ends.
    pub(crate) fn end(&mut self) {
        self.is_ending.store(true, Ordering::Relaxed);
        self.wanted.end();
        drop(self.jobs.take());
    }

    /// Waits until everything is kept, until `until` at most: how many windows were lost by then, all in all. From `hurried` on,
    /// what has no name yet is written without one.
    pub(crate) fn finish(mut self, hurried: Instant, until: Instant) -> u64 {
        self.end();
        while !self.has_ended() && Instant::now() < until {
            if Instant::now() >= hurried {
                self.hurry.begin();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let waiting = self.told().handed.len() as u64;
        self.lost() + waiting
    }
}

/// The thread's side.
struct Work {
    folder: PathBuf,
    store: Store,
    rules: Rules,
    servers: Option<debuginfod::Servers>,
    boot: String,
    waiting_bytes: Arc<AtomicU64>,
    told: Arc<Mutex<Told>>,
    hurry: Hurry,
    pace: Pace,
    is_ending: Arc<AtomicBool>,
    /// When files were merged last (ns).
    merged_ns: u64,
}

impl Work {
    fn run(&mut self, queue: &mpsc::Receiver<Job>) {
        let mut problem = None;
        let mut next = Instant::now() + MAINTAIN_EVERY;
        let mut next_return = Instant::now() + GIVE_BACK_EVERY;
        loop {
            match queue.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(Job::Keep(parcel, handed_ns)) => problem = self.keep(*parcel, handed_ns),
                Ok(Job::Flushed(waiting)) => {
                    self.pace.wanted.hastened();
                    let told = self.told();
                    waiting.into_iter().for_each(|waiting| waiting.answer(&told.lost));
                }
                Ok(Job::Look) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.look();
            // By the clock: the windows of many targets may never leave a pause so long.
            if Instant::now() >= next && !self.is_ending() {
                self.look_after();
                next = Instant::now() + MAINTAIN_EVERY;
            }
            if Instant::now() >= next_return {
                memory::give_back();
                next_return = Instant::now() + GIVE_BACK_EVERY;
            }
            self.tell(problem.clone());
        }
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    /// What it was told beside the queue.
    fn look(&mut self) {
        let mut told = self.told();
        let (rules, suspects) = (told.rules.take(), std::mem::take(&mut told.suspects));
        drop(told);
        if let Some(rules) = rules {
            self.store.rebound(rules.store);
            self.servers = rules.debuginfod.clone().map(debuginfod::Servers::new);
            self.rules = rules;
        }
        if !self.is_ending() {
            self.store.check(&suspects);
        }
    }

    /// Removes what is too old, and merges as long as there is CPU time for it and no window waits.
    fn look_after(&mut self) {
        let now = self.now();
        self.store.expire(&now);
        loop {
            let now_ns = clock::monotonic_ns();
            let has_room = self.pace.pause_ns(now_ns, now_ns) == 0;
            if !has_room && now_ns.saturating_sub(self.merged_ns) < MERGE_EVERY_NS {
                return;
            }
            let (is_ending, before_ns) = (Arc::clone(&self.is_ending), clock::thread_cpu_ns());
            let more = self.store.maintain(&self.now(), &|| !is_ending.load(Ordering::Relaxed));
            self.merged_ns = clock::monotonic_ns();
            self.pace.settle(self.merged_ns, clock::thread_cpu_ns().saturating_sub(before_ns));
            if !more || !self.told().handed.is_empty() {
                return;
            }
        }
    }

    fn now(&self) -> Now {
        now(&self.boot)
    }

    /// Names a window and writes it; why it was not kept, if it was not.
    fn keep(&mut self, parcel: Parcel, handed_ns: u64) -> Option<String> {
        let (target, labels) = (parcel.window.target.clone(), parcel.window.labels.clone());
        let bytes = parcel.bytes;
        // What is named are other people's files: nothing in them may end this thread.
        let kept = catch_unwind(AssertUnwindSafe(|| self.name_and_write(parcel, handed_ns)));
        let kept = kept.unwrap_or_else(|_| {
            self.store.count_lost();
            Err("a window was not kept: it met an error of sweetspot's; its log says which".to_owned())
        });
        self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
        let mut told = self.told();
        told.spent.0 += 1;
        let unnamed = kept.as_ref().ok();
        let of_target = told.targets.entry(target.clone()).or_default();
        of_target.windows += unnamed.map_or(0, |_| 1);
        of_target.unnamed += unnamed.copied().unwrap_or_default();
        told.done();
        match kept {
            Ok(_) => told.dropped = 0,
            Err(why) => {
                told.lose(Lost { target, labels, handed_ns, why: why.clone() });
                return Some(why);
            }
        }
        None
    }

    /// How many samples have no name, if it is kept.
    fn name_and_write(&mut self, parcel: Parcel, handed_ns: u64) -> Result<u64, String> {
        let Parcel { mut window, collected, scale, run, bytes: _ } = parcel;
        window.boot.clone_from(&self.boot);
        let most_bytes = self.rules.most_bytes;
        let is_crowded = || self.waiting_bytes.load(Ordering::Relaxed) > most_bytes / 2;
        let mut breath = Breath::new(&mut self.pace, handed_ns);
        breath.take(&is_crowded);
        let profile = symbolize(collected, scale, run, self.servers.as_ref(), &self.hurry, &mut || {
            breath.take(&is_crowded);
        });
        let kept = self.store.write(&now(&self.boot), window, &profile);
        breath.settle();
        kept.map(|()| unnamed(&profile)).map_err(|error| match std::error::Error::source(&error) {
            Some(cause) => format!("a window was not kept: {error} ({cause})"),
            None => format!("a window was not kept: {error}"),
        })
    }

    fn tell(&mut self, problem: Option<String>) {
        let (files, bytes) = self.store.size();
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.spent.1 = clock::thread_cpu_ns();
        told.store = StoreStatus {
            folder: self.folder.display().to_string(),
            problem,
            files,
            bytes,
            limit_bytes: self.rules.store.bytes,
            window_s: 0.0, // the loop's business, as what is queued is the queue's
            queued_bytes: 0,
            dropped_queue: told.store.dropped_queue,
            counters: self.store.counters(),
            waiting: self.store.waiting(clock::monotonic_ns()),
        };
    }
}

fn now(boot: &str) -> Now {
    Now { unix_ns: clock::unix_ns(), boot: boot.to_owned(), monotonic_ns: clock::monotonic_ns() }
}

/// A window's way through the pace.
struct Breath<'a> {
    pace: &'a mut Pace,
    handed_ns: u64,
    /// CPU time until which it is settled (ns): of all threads but the loop's, since names are looked for by several.
    settled_ns: u64,
}

impl<'a> Breath<'a> {
    fn new(pace: &'a mut Pace, handed_ns: u64) -> Self {
        Self { pace, handed_ns, settled_ns: clock::beside_main_thread_ns() }
    }

    fn settle(&mut self) {
        let cpu_ns = clock::beside_main_thread_ns();
        let spent_ns = cpu_ns.saturating_sub(std::mem::replace(&mut self.settled_ns, cpu_ns));
        self.pace.settle(clock::monotonic_ns(), spent_ns);
    }

    /// Waits until there is CPU time for more, or too much waits.
    fn take(&mut self, is_crowded: &dyn Fn() -> bool) {
        self.settle();
        loop {
            let pause_ns = self.pace.pause_ns(clock::monotonic_ns(), self.handed_ns);
            if pause_ns == 0 || is_crowded() {
                break;
            }
            std::thread::sleep(Duration::from_nanos(pause_ns).min(LOOK));
        }
        self.settled_ns = clock::beside_main_thread_ns(); // what others did meanwhile is not for names
    }
}

/// Samples whose innermost function has no name.
fn unnamed(profile: &SymbolizedProfile) -> u64 {
    let is_unnamed = |stack: &&profiler_core::profile::WeightedStack| {
        let innermost = stack.frames.first();
        innermost.is_none_or(|frame| profile.locations[frame.0 as usize].unknown.is_some())
    };
    profile.stacks.iter().filter(is_unnamed).map(|stack| stack.samples).sum()
}

/// Identity of this boot; empty where the kernel does not tell.
pub(crate) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}
