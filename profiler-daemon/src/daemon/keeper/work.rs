//! The thread's side: windows are named and written one after the other, and the store is looked after in between.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use profiler_core::profile::SymbolizedProfile;

use super::{Job, Lost, Parcel, Rules, Told};
use crate::daemon::pace::Pace;
use crate::daemon::state::StoreStatus;
use crate::debuginfod;
use crate::run::names::{Hurry, symbolize};
use crate::store::{Now, Store};
use crate::sys::{clock, memory};

/// While a window waits, it is looked this often whether somebody wants it at once.
const LOOK: Duration = Duration::from_millis(50);
/// How often it is looked what is too old, and what can be merged.
const MAINTAIN_EVERY: Duration = Duration::from_secs(10);
/// Merges wait for what the host's budget leaves them, but no longer than this (ns): the more files there are, the more it costs
/// to read them.
const MERGE_EVERY_NS: u64 = 60_000_000_000;
/// How often the memory that names, merges and readers have freed is given back.
const GIVE_BACK_EVERY: Duration = Duration::from_secs(60);

/// The thread's side.
pub(super) struct Work {
    pub(super) folder: PathBuf,
    pub(super) store: Store,
    pub(super) rules: Rules,
    pub(super) servers: Option<debuginfod::Servers>,
    pub(super) boot: String,
    pub(super) waiting_bytes: Arc<AtomicU64>,
    pub(super) told: Arc<Mutex<Told>>,
    pub(super) hurry: Hurry,
    pub(super) pace: Pace,
    pub(super) is_ending: Arc<AtomicBool>,
    /// When files were merged last (ns).
    pub(super) merged_ns: u64,
}

impl Work {
    pub(super) fn run(&mut self, queue: &mpsc::Receiver<Job>) {
        // Why a window was not kept, and why none can be.
        let (mut problem, mut obstacle) = (None, None);
        let mut next = Instant::now() + MAINTAIN_EVERY;
        let mut next_return = Instant::now() + GIVE_BACK_EVERY;
        loop {
            match queue.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(Job::Keep(parcel, handed_ns)) => {
                    problem = self.keep(*parcel, handed_ns);
                    obstacle = None; // it would be the problem
                }
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
                obstacle = self.look_after();
                next = Instant::now() + MAINTAIN_EVERY;
            }
            if Instant::now() >= next_return {
                memory::give_back();
                next_return = Instant::now() + GIVE_BACK_EVERY;
            }
            self.tell(problem.clone().or_else(|| obstacle.clone()));
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
    ///
    /// Why nothing can be written, if somebody has taken the folder away and it cannot be made anew.
    fn look_after(&mut self) -> Option<String> {
        if let Err(error) = self.store.look_over(&self.now()) {
            return Some(error.to_string());
        }
        loop {
            let now_ns = clock::monotonic_ns();
            let has_room = self.pace.pause_ns(now_ns, now_ns) == 0;
            if !has_room && now_ns.saturating_sub(self.merged_ns) < MERGE_EVERY_NS {
                return None;
            }
            let (is_ending, before_ns) = (Arc::clone(&self.is_ending), clock::thread_cpu_ns());
            let more = self.store.maintain(&self.now(), &|| !is_ending.load(Ordering::Relaxed));
            self.merged_ns = clock::monotonic_ns();
            self.pace.settle(self.merged_ns, clock::thread_cpu_ns().saturating_sub(before_ns));
            if !more || !self.told().handed.is_empty() {
                return None;
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

    pub(super) fn tell(&mut self, problem: Option<String>) {
        let (now_ns, (files, bytes)) = (clock::monotonic_ns(), self.store.size());
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
            waiting: self.store.waiting(now_ns),
            left_alone_files: self.store.left_alone(),
            notes: self.store.notes(now_ns),
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
