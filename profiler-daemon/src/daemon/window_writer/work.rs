//! The thread that names and stores windows, and maintains the store in between.
//!
//! Merges share the budget for names: they start when there is budget and no window waits, and after a minute
//! without one in any case. At shutdown no merge starts, and one that has started is abandoned between two
//! files.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use profile_files::store::{Now, Spool, SpoolReadError, Store};
use profiler_core::profile::SymbolizedProfile;

use super::{LostWindow, QueueItem, UnnamedWindow, WriterRules, WriterShared};
use crate::daemon::pace::NamingPace;
use crate::debuginfod;
use crate::objects::Symbols;
use crate::run::names::{Cut, symbolize_cut};
use crate::service::state::StoreStatus;
use crate::sys::{clock, family, memory};

/// While a window waits, the thread checks this often whether the host's budget has room for it. A request for the
/// window wakes it at once.
const LOOK: Duration = Duration::from_millis(250);
/// How often the store is checked while a window waits.
const LOOK_OVER_EVERY: Duration = Duration::from_secs(2);
/// How often files are checked for their age, and for merges.
const MAINTAIN_EVERY: Duration = Duration::from_secs(10);
/// Merges wait for what the host's budget leaves them, but at most this long (ns): more files cost more to read.
const MERGE_EVERY_NS: u64 = 60_000_000_000;
/// How often the memory that names, merges and readers have freed is given back.
const GIVE_BACK_EVERY: Duration = Duration::from_secs(60);

/// What the thread owns.
pub(super) struct WriterWork {
    pub(super) folder: PathBuf,
    pub(super) store: Store,
    pub(super) spool: Spool,
    /// Windows that an earlier process left in the spool.
    pub(super) leftovers: VecDeque<String>,
    /// When the writer began (ns). All leftovers share this start: together they wait no longer than one window may.
    pub(super) started_ns: u64,
    /// Symbols, shared with sessions.
    pub(super) symbols: Symbols,
    pub(super) rules: WriterRules,
    pub(super) servers: Option<debuginfod::Servers>,
    pub(super) boot: String,
    pub(super) shared: WriterShared,
    pub(super) pace: NamingPace,
    /// When files were merged last (ns).
    pub(super) merged_ns: u64,
    /// Why the last window was not kept.
    pub(super) problem: Option<String>,
    /// Why no window can be stored at present.
    pub(super) obstacle: Option<String>,
}

impl WriterWork {
    pub(super) fn run(&mut self, queue: &mpsc::Receiver<QueueItem<UnnamedWindow>>) {
        let mut next = Instant::now() + MAINTAIN_EVERY;
        let mut next_return = Instant::now() + GIVE_BACK_EVERY;
        loop {
            let pause = match self.leftovers.is_empty() {
                true => next.saturating_duration_since(Instant::now()),
                false => Duration::ZERO,
            };
            match queue.recv_timeout(pause) {
                Ok(QueueItem::Keep(unnamed_window, handed_ns)) => {
                    self.problem = self.keep(*unnamed_window, handed_ns);
                    self.obstacle = None; // it would show as `problem`
                }
                Ok(QueueItem::Flushed(waiting)) => {
                    self.pace.budget.remove_urgent();
                    let state = self.shared.state();
                    waiting.into_iter().for_each(|waiting| waiting.answer(&state.lost));
                }
                Ok(QueueItem::Look) => {}
                Err(RecvTimeoutError::Timeout) => self.name_leftover(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.look();
            // By the clock: with many targets there may never be a pause of that length.
            if Instant::now() >= next && !self.shared.is_ending() {
                self.obstacle = self.look_after();
                next = Instant::now() + MAINTAIN_EVERY;
            }
            if Instant::now() >= next_return {
                memory::give_back();
                self.symbols.end_idle_process(clock::monotonic_ns());
                next_return = Instant::now() + GIVE_BACK_EVERY;
            }
            self.tell();
        }
    }

    /// Does what must continue while a window waits for its names.
    fn look_meanwhile(&mut self) {
        self.look();
        if !self.shared.is_ending() {
            self.obstacle = self.store.look_over(&self.now()).err().map(|error| error.to_string());
        }
        self.tell();
    }

    /// Takes over new rules, exports and suspects, which do not come through the queue.
    fn look(&mut self) {
        let mut state = self.shared.state();
        let (rules, suspects) = (state.rules.take(), std::mem::take(&mut state.suspects));
        let exports = state.exports.take();
        drop(state);
        if let Some(rules) = rules {
            self.store.rebound(rules.store);
            self.servers = rules.debuginfod.clone().map(debuginfod::Servers::new);
            self.rules = rules;
        }
        if let Some(exports) = exports {
            self.store.export(&self.now(), &exports);
        }
        if !self.shared.is_ending() {
            self.store.check(&suspects);
        }
    }

    /// Removes files that are too old, and merges as long as there is CPU time for it and neither a window nor a request waits.
    ///
    /// Returns why nothing can be written: the folder was removed and cannot be created again.
    fn look_after(&mut self) -> Option<String> {
        if let Err(error) = self.store.look_over(&self.now()) {
            return Some(error.to_string());
        }
        loop {
            if self.pace.budget.is_urgent() {
                return None;
            }
            let now_ns = clock::monotonic_ns();
            let has_room = self.pace.pause_ns(now_ns, now_ns) == 0;
            if !has_room && now_ns.saturating_sub(self.merged_ns) < MERGE_EVERY_NS {
                return None;
            }
            let (shared, before_ns) = (self.shared.clone(), clock::thread_cpu_ns());
            self.pace.budget.reads_since(Some(shared.naming_threads_ns()));
            let budget = self.pace.budget.clone();
            let may_go_on = || !shared.is_ending() && !budget.is_urgent();
            let more = self.store.maintain(&self.now(), &may_go_on);
            self.merged_ns = clock::monotonic_ns();
            self.pace.budget.reads_since(None);
            self.pace.settle(self.merged_ns, clock::thread_cpu_ns().saturating_sub(before_ns));
            if !more || !self.shared.state().handed.is_empty() {
                return None;
            }
        }
    }

    fn now(&self) -> Now {
        now(&self.boot)
    }

    /// Names and stores a window. Returns why it was not kept, if so.
    fn keep(&mut self, unnamed_window: UnnamedWindow, handed_ns: u64) -> Option<String> {
        let (target, labels) = (unnamed_window.window.target.clone(), unnamed_window.window.labels.clone());
        let (bytes, spooled) = (unnamed_window.bytes, unnamed_window.spooled.clone());
        let before_ns = naming_ns();
        let outcome = self.name_and_write(unnamed_window, handed_ns);
        let took_ns = naming_ns().saturating_sub(before_ns);
        if !matches!(outcome, WindowOutcome::Spooled) {
            spooled.iter().for_each(|file| self.spool.remove(file));
        }
        self.shared.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
        let mut state = self.shared.state();
        let is_first = state.targets.get(&target).is_none_or(|of_target| of_target.windows == 0);
        if is_first {
            state.first_windows_ns += took_ns;
        } else {
            state.later_windows += 1;
        }
        let of_target = state.targets.entry(target.clone()).or_default();
        if let WindowOutcome::Stored { unnamed } = outcome {
            of_target.windows += 1;
            of_target.unnamed += unnamed;
        }
        state.done();
        match outcome {
            WindowOutcome::Stored { .. } => state.dropped = 0,
            WindowOutcome::Spooled => {}
            WindowOutcome::Lost(why) => {
                state.lose(LostWindow { target, labels, handed_ns, why: why.clone() });
                return Some(why);
            }
        }
        None
    }

    /// Names and stores the next window that an earlier process left.
    fn name_leftover(&mut self) {
        if self.shared.is_ending() {
            return self.leftovers.clear(); // the next process names them
        }
        let Some(file) = self.leftovers.pop_front() else { return };
        let (window, profile) = match self.spool.read(&file) {
            Ok(read) => read,
            Err(SpoolReadError::Damaged(damage)) => {
                tracing::warn!(
                    "{file}, which was left without names, is damaged ({damage}): it is set aside"
                );
                return self.store.set_unnamed_aside(&self.spool, &file);
            }
            Err(SpoolReadError::Refused(cause)) => {
                return tracing::warn!("{file}, which was left without names, cannot be read ({cause})");
            }
        };
        // It was stored already if the process ended before it could remove the spool file.
        if !self.store.has_time_of(&window) {
            let is_same_boot = window.boot == self.boot;
            let symbols = self.symbols.clone();
            let cut = || Cut::of_unnamed(profile, is_same_boot, &symbols);
            let Ok((cut, run)) = catch_unwind(AssertUnwindSafe(cut)) else {
                self.store.count_lost();
                return self.store.set_unnamed_aside(&self.spool, &file);
            };
            let spooled = Some(file.clone());
            let unnamed_window = UnnamedWindow { window, cut, scale: 1.0, run, bytes: 0, spooled };
            match self.name_and_write(unnamed_window, self.started_ns) {
                WindowOutcome::Stored { .. } => self.store.count_recovered(),
                WindowOutcome::Spooled => return,
                WindowOutcome::Lost(why) => self.problem = Some(why),
            }
        }
        self.spool.remove(&file);
    }

    fn name_and_write(&mut self, unnamed_window: UnnamedWindow, handed_ns: u64) -> WindowOutcome {
        // Windows contain data from other programs' files: nothing in them may end this thread.
        let outcome =
            catch_unwind(AssertUnwindSafe(|| self.try_to_name_and_write(unnamed_window, handed_ns)));
        outcome.unwrap_or_else(|_| {
            self.store.count_lost();
            let why = "a window was not kept: internal error; see sweetspot's log";
            WindowOutcome::Lost(why.to_owned())
        })
    }

    fn try_to_name_and_write(&mut self, unnamed_window: UnnamedWindow, handed_ns: u64) -> WindowOutcome {
        let UnnamedWindow { window, cut, scale, run, bytes: _, spooled } = unnamed_window;
        let cancel = self.shared.cancel.clone();
        let is_left = || spooled.is_some() && cancel.is_set();
        if is_left() {
            return WindowOutcome::Spooled;
        }
        let servers = self.servers.clone();
        let mut pacing = Pacing::new(self, handed_ns);
        pacing.wait();
        let profile = symbolize_cut(cut, scale, run, servers.as_ref(), &cancel, &mut || pacing.wait());
        if is_left() {
            pacing.settle();
            return WindowOutcome::Spooled; // some of its names may be missing
        }
        let kept = pacing.work.store.write(&now(&pacing.work.boot), window, &profile);
        pacing.settle();
        match kept {
            Ok(()) => WindowOutcome::Stored { unnamed: unnamed(&profile) },
            Err(error) => WindowOutcome::Lost(match std::error::Error::source(&error) {
                Some(cause) => format!("a window was not kept: {error} ({cause})"),
                None => format!("a window was not kept: {error}"),
            }),
        }
    }

    pub(super) fn tell(&mut self) {
        let (now_ns, (files, bytes)) = (clock::monotonic_ns(), self.store.size());
        let mut state = self.shared.state();
        state.cpu_ns = naming_ns() + state.spooling_ns;
        state.store = StoreStatus {
            folder: self.folder.display().to_string(),
            problem: self.problem.clone().or_else(|| self.obstacle.clone()),
            files,
            bytes,
            limit_bytes: self.rules.store.bytes,
            window_s: 0.0, // the loop's business, as what is queued is the queue's
            queued_bytes: 0,
            unnamed_files: 0,
            unspooled: 0,
            dropped_queue: state.store.dropped_queue,
            counters: self.store.counters(),
            waiting: self.store.waiting(now_ns),
            left_alone_files: self.store.left_alone(),
            notes: self.store.notes(now_ns),
        };
    }
}

/// The result of naming and storing a window.
enum WindowOutcome {
    /// Stored; `unnamed` of its samples have no name.
    Stored { unnamed: u64 },
    /// Left in the spool, for the next process.
    Spooled,
    /// Lost, with the reason.
    Lost(String),
}

/// CPU time of this thread and of the processes that read symbols for it (ns).
fn naming_ns() -> u64 {
    clock::thread_cpu_ns() + family::readers_cpu_ns()
}

fn now(boot: &str) -> Now {
    Now { unix_ns: clock::unix_ns(), boot: boot.to_owned(), monotonic_ns: clock::monotonic_ns() }
}

/// Paces the naming of one window.
struct Pacing<'a> {
    work: &'a mut WriterWork,
    handed_ns: u64,
    /// Own CPU time that is settled with the pace (ns).
    settled_ns: u64,
}

impl<'a> Pacing<'a> {
    fn new(work: &'a mut WriterWork, handed_ns: u64) -> Self {
        let settled_ns = work.shared.naming_threads_ns();
        Self { work, handed_ns, settled_ns }
    }

    fn settle(&mut self) {
        let cpu_ns = self.work.shared.naming_threads_ns();
        self.work.pace.budget.reads_since(None);
        let spent_ns = cpu_ns.saturating_sub(std::mem::replace(&mut self.settled_ns, cpu_ns));
        self.work.pace.settle(clock::monotonic_ns(), spent_ns);
    }

    /// Waits until there is CPU time for the next object, or until too many windows wait. The store is checked
    /// meanwhile.
    fn wait(&mut self) {
        self.settle();
        let mut looked = Instant::now();
        loop {
            let pause_ns = self.work.pace.pause_ns(clock::monotonic_ns(), self.handed_ns);
            if pause_ns == 0 || self.is_crowded() {
                break;
            }
            std::thread::park_timeout(Duration::from_nanos(pause_ns).min(LOOK));
            if looked.elapsed() >= LOOK_OVER_EVERY {
                self.work.look_meanwhile();
                looked = Instant::now();
            }
        }
        self.settled_ns = self.work.shared.naming_threads_ns(); // time of other threads during the wait is not for names
        self.work.pace.budget.reads_since(Some(self.settled_ns));
    }

    fn is_crowded(&self) -> bool {
        self.work.shared.waiting_bytes.load(Ordering::Relaxed) > self.work.rules.most_bytes / 2
    }
}

impl Drop for Pacing<'_> {
    fn drop(&mut self) {
        self.work.pace.budget.reads_since(None);
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
