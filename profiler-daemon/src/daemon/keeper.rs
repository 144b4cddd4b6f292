//! Names what was sampled and keeps it, on a thread of its own: neither a big program's debug information nor a slow disk
//! delays a sample.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use profiler_core::profile::{Run, SymbolizedProfile};

use super::ask::{Refused, Reply};
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
    Flushed(Vec<Reply<Result<(), Refused>>>),
    Bounds(store::Settings, u64, Option<Box<debuginfod::Settings>>),
}

/// What became of a target's windows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Kept {
    /// Windows in the store.
    pub(crate) windows: u64,
    /// Samples in them whose innermost function has no name.
    pub(crate) unnamed: u64,
}

/// What the thread tells.
#[derive(Debug, Default)]
struct Told {
    store: StoreStatus,
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
    thread: Option<JoinHandle<()>>,
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
        let (jobs, queue) = mpsc::sync_channel(MOST_WAITING);
        let (waiting_bytes, told) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::default()));
        let (hurry, wanted) = (Hurry::default(), Wanted::default());
        let mut work = Work {
            folder: folder.to_owned(),
            store,
            bounds,
            boot: boot_id(),
            debuginfod: debuginfod.map(debuginfod::Servers::new),
            waiting_bytes: Arc::clone(&waiting_bytes),
            told: Arc::clone(&told),
            hurry: hurry.clone(),
            pace: Pace::new(wanted.clone(), clock::monotonic_ns()),
            most_bytes,
        };
        work.tell(None);
        let thread = std::thread::Builder::new().name("keeper".to_owned()).spawn(move || work.run(&queue));
        let thread = thread.map_err(|cause| StoreError::Unwritable { path: folder.to_owned(), cause })?;
        Ok(Self { jobs: Some(jobs), waiting_bytes, most_bytes, told, hurry, wanted, thread: Some(thread) })
    }

    /// Hands over a window; one that there is no room for is dropped and counted.
    pub(crate) fn keep(&self, parcel: Parcel) {
        let bytes = parcel.bytes;
        let waiting = self.waiting_bytes.load(Ordering::Relaxed);
        let has_room = waiting == 0 || waiting + bytes <= self.most_bytes;
        self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        if !has_room || !self.send(Job::Keep(Box::new(parcel), clock::monotonic_ns())) {
            self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.told().store.dropped_queue += 1;
        }
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
    pub(crate) fn flush(&self, replies: Vec<Reply<Result<(), Refused>>>) {
        let busy =
            || Refused::Busy("the disk is too slow for what there is to write; ask again later".to_owned());
        let job = Job::Flushed(replies);
        self.wanted.hasten();
        let sent = self.jobs.as_ref().map(|jobs| jobs.try_send(job));
        if let Some(Err(
            TrySendError::Full(Job::Flushed(replies)) | TrySendError::Disconnected(Job::Flushed(replies)),
        )) = sent
        {
            self.wanted.hastened();
            replies.into_iter().for_each(|reply| drop(reply.send(Err(busy()))));
        }
    }

    /// Other bounds are in force.
    pub(crate) fn rebound(
        &mut self,
        bounds: store::Settings,
        most_bytes: u64,
        debuginfod: Option<debuginfod::Settings>,
    ) {
        self.most_bytes = most_bytes;
        self.send(Job::Bounds(bounds, most_bytes, debuginfod.map(Box::new)));
    }

    fn send(&self, job: Job) -> bool {
        self.jobs.as_ref().is_some_and(|jobs| jobs.try_send(job).is_ok())
    }

    /// How the store is.
    pub(crate) fn status(&self) -> StoreStatus {
        StoreStatus { queued_bytes: self.waiting_bytes.load(Ordering::Relaxed), ..self.told().store.clone() }
    }

    /// Windows that were named until now, and what that and keeping them took (ns of CPU time).
    pub(crate) fn spent(&self) -> (u64, u64) {
        self.told().spent
    }

    /// What became of a target's windows.
    pub(crate) fn kept(&self, target: &str) -> Kept {
        self.told().targets.get(target).copied().unwrap_or_default()
    }

    /// A target is not there any more.
    pub(crate) fn forget(&self, target: &str) {
        self.told().targets.remove(target);
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps all that was handed over, and ends; whether that was done within `patience`. After the first half of it, what has no
    /// name yet is written without one.
    pub(crate) fn finish(mut self, patience: Duration) -> bool {
        self.wanted.end();
        drop(self.jobs.take());
        let Some(thread) = self.thread.take() else { return true };
        let begun = Instant::now();
        while !thread.is_finished() && begun.elapsed() < patience {
            if begun.elapsed() > patience / 2 {
                self.hurry.begin();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        thread.is_finished() && thread.join().is_ok()
    }
}

/// The thread's side.
struct Work {
    folder: PathBuf,
    store: Store,
    bounds: store::Settings,
    boot: String,
    debuginfod: Option<debuginfod::Servers>,
    waiting_bytes: Arc<AtomicU64>,
    told: Arc<Mutex<Told>>,
    hurry: Hurry,
    pace: Pace,
    /// Windows that may wait (bytes, about).
    most_bytes: u64,
}

impl Work {
    fn run(&mut self, queue: &mpsc::Receiver<Job>) {
        let mut problem = None;
        let mut next = Instant::now() + MAINTAIN_EVERY;
        let mut next_return = Instant::now() + GIVE_BACK_EVERY;
        loop {
            match queue.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(Job::Keep(parcel, handed_ns)) => problem = self.keep(*parcel, handed_ns),
                Ok(Job::Flushed(replies)) => {
                    self.pace.wanted.hastened();
                    replies.into_iter().for_each(|reply| drop(reply.send(flushed(problem.as_deref()))));
                }
                Ok(Job::Bounds(bounds, most_bytes, debuginfod)) => {
                    self.store.rebound(bounds);
                    (self.bounds, self.most_bytes) = (bounds, most_bytes);
                    self.debuginfod = debuginfod.map(|settings| debuginfod::Servers::new(*settings));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            // By the clock: the windows of many targets may never leave a pause so long.
            if Instant::now() >= next {
                self.store.maintain(&self.now(), &|| true);
                next = Instant::now() + MAINTAIN_EVERY;
            }
            if Instant::now() >= next_return {
                memory::give_back();
                next_return = Instant::now() + GIVE_BACK_EVERY;
            }
            self.tell(problem.clone());
        }
    }

    fn now(&self) -> Now {
        now(&self.boot)
    }

    /// Names a window and writes it; why it was not kept, if it was not.
    fn keep(&mut self, parcel: Parcel, handed_ns: u64) -> Option<String> {
        let Parcel { mut window, collected, scale, run, bytes } = parcel;
        window.boot.clone_from(&self.boot);
        let is_crowded = || self.waiting_bytes.load(Ordering::Relaxed) > self.most_bytes / 2;
        let mut breath = Breath::new(&mut self.pace, handed_ns);
        breath.take(&is_crowded);
        let profile = symbolize(collected, scale, run, self.debuginfod.as_ref(), &self.hurry, &mut || {
            breath.take(&is_crowded);
        });
        let target = window.target.clone();
        let now = now(&self.boot);
        let kept = self.store.write(&now, window, &profile);
        breath.settle();
        self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
        let unnamed = unnamed(&profile); // before the lock: the loop waits for it
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.spent.0 += 1;
        let of_target = told.targets.entry(target).or_default();
        of_target.windows += u64::from(kept.is_ok());
        of_target.unnamed += unnamed;
        drop(told);
        kept.err().map(|error| match std::error::Error::source(&error) {
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
            limit_bytes: self.bounds.bytes,
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

fn flushed(problem: Option<&str>) -> Result<(), Refused> {
    match problem {
        None => Ok(()),
        Some(problem) => {
            Err(Refused::Busy(format!("{problem}; `sweetspot ctl status` says how the store is")))
        }
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
