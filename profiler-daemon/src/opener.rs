//! File operations that sampling does not wait for.
//!
//! `open`, `read` and `fstat` do not return while a FUSE or network mount hangs, and the thread cannot be called back from there. So
//! they run on threads of their own. Each mount is served by one thread at most: one that hangs takes one thread, and other
//! mounts go on.
//!
//! The sampling thread waits for an answer if there is one soon: at most [`LONGEST_WAIT_NS`] for one, and in the long run a twentieth of
//! the time for all ([`Allowance`]). After that it goes on without the file. The work stays queued, and its answer can be collected
//! when it comes. For a mount that has not answered yet, work is queued and not waited for.

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustc_hash::FxHashMap;

use crate::sys::clock;

/// The sampling thread waits for one answer for so long, and for all that it needs at once (ns).
const LONGEST_WAIT_NS: u64 = 50_000_000;
/// It may wait for one part of the time in so many.
const PARTS: u64 = 20;
/// What an answer takes where nothing hangs does not count as waiting (ns).
const USUAL_NS: u64 = 1_000_000;
/// Before sampling begins, nothing is lost by waiting for slow disks (ns).
const BEFORE_SAMPLING_NS: u64 = 2_000_000_000;
/// Threads that name have more time: nothing is lost meanwhile (ns).
const NAMING_WAIT_NS: u64 = 2_000_000_000;
/// Threads, and so mounts that are served at once.
const MOST_THREADS: usize = 32;
/// Mounts that hang, of one target: a target that can mount file systems must not take the threads of others.
const MOST_STALLED: usize = 8;
/// Work that waits for one mount, and mounts that wait for a thread.
const MOST_QUEUED: usize = 1_024;
/// A thread without work ends after this time, unless it is the last.
const IDLE: Duration = Duration::from_secs(10);

/// What hangs as one, as far as that is known without asking it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mount {
    /// A device, by the number that the kernel gives with each mapping.
    Device {
        /// Its major number.
        major: u32,
        /// Its minor number.
        minor: u32,
    },
    /// A folder, where no device is known.
    Folder {
        /// Its path.
        path: PathBuf,
        /// What sees it there.
        view: String,
    },
}

/// As `/proc/PID/mountinfo` lists it.
impl fmt::Display for Mount {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device { major, minor } => write!(out, "device {major}:{minor}"),
            Self::Folder { path, .. } => path.display().fmt(out),
        }
    }
}

/// Which thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// The thread that drains rings.
    Sampling,
    /// One that names.
    Naming,
}

/// Runs file operations for one target. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Opener {
    shared: Arc<Shared>,
    own: Arc<Client>,
}

/// What is counted for one target.
#[derive(Default)]
struct Client {
    late_answers: AtomicU64,
    cpu_ns: AtomicU64,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    has_work: Condvar,
}

#[derive(Default)]
struct State {
    /// Those with work.
    mounts: FxHashMap<Mount, MountQueue>,
    /// Those whose work no thread has begun.
    ready: VecDeque<Mount>,
    threads: usize,
    idle: usize,
    allowance: Allowance,
}

#[derive(Default)]
struct MountQueue {
    queued: VecDeque<Queued>,
    /// What its thread does at this moment, and since when (ns).
    running: Option<(Ticket, u64)>,
}

struct Queued {
    work: Box<dyn FnOnce() + Send>,
    ticket: Ticket,
}

/// A request.
#[derive(Clone)]
struct Ticket {
    client: Arc<Client>,
    /// Whether nothing waits for it any more.
    is_late: Arc<AtomicBool>,
}

/// How long the sampling thread may wait.
struct Allowance {
    left_ns: u64,
    at_ns: u64,
}

impl Default for Allowance {
    fn default() -> Self {
        Self { left_ns: BEFORE_SAMPLING_NS, at_ns: 0 }
    }
}

impl Allowance {
    /// What it may wait now (ns). Unused time adds up to the longest wait.
    fn left(&mut self, now_ns: u64) -> u64 {
        let more_ns = now_ns.saturating_sub(self.at_ns) / PARTS;
        if self.left_ns < LONGEST_WAIT_NS {
            self.left_ns = (self.left_ns + more_ns).min(LONGEST_WAIT_NS);
        }
        self.at_ns = now_ns;
        self.left_ns.min(LONGEST_WAIT_NS)
    }

    fn spend(&mut self, waited_ns: u64) {
        self.left_ns = self.left_ns.saturating_sub(waited_ns.saturating_sub(USUAL_NS));
    }
}

impl MountQueue {
    /// For how long its thread has been at work (ns), if that is longer than anything may take; otherwise 0.
    fn stalled_ns(&self, now_ns: u64) -> u64 {
        let Some((ticket, since_ns)) = &self.running else { return 0 };
        let ns = now_ns.saturating_sub(*since_ns);
        if ticket.is_late.load(Ordering::Relaxed) || ns >= LONGEST_WAIT_NS { ns.max(1) } else { 0 }
    }

    fn is_stalled(&self, now_ns: u64) -> bool {
        self.stalled_ns(now_ns) > 0
    }
}

impl State {
    fn is_stalled(&self, mount: &Mount, now_ns: u64) -> bool {
        self.mounts.get(mount).is_some_and(|queue| queue.is_stalled(now_ns))
    }

    /// Whether a target has as many mounts that hang as it may.
    fn has_too_many(&self, client: &Arc<Client>, now_ns: u64) -> bool {
        let is_theirs = |queue: &&MountQueue| {
            let is_own = |(ticket, _): &(Ticket, u64)| Arc::ptr_eq(&ticket.client, client);
            queue.is_stalled(now_ns) && queue.running.as_ref().is_some_and(is_own)
        };
        self.mounts.values().filter(is_theirs).count() >= MOST_STALLED
    }

    /// The next work of a mount that a thread serves; none is left if it returns `None`.
    fn begin(&mut self, mount: &Mount) -> Option<Queued> {
        let queue = self.mounts.get_mut(mount)?;
        let Some(next) = queue.queued.pop_front() else {
            self.mounts.remove(mount);
            return None;
        };
        queue.running = Some((next.ticket.clone(), clock::monotonic_ns()));
        Some(next)
    }
}

impl Opener {
    /// The same threads for another target.
    pub(crate) fn for_another(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), own: Arc::default() }
    }

    /// Runs `work`, which asks this mount, on a thread of its own, and waits for the answer as long as `wait` permits.
    ///
    /// # Errors
    ///
    /// There was no answer yet. The channel has it when it comes; it is disconnected if the work was refused, because too many
    /// mounts do not answer.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        mount: &Mount,
        wait: Wait,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Receiver<T>> {
        let (sender, answer) = sync_channel(1);
        let ticket = Ticket { client: Arc::clone(&self.own), is_late: Arc::default() };
        // Nothing receives it where it is not of interest any more.
        let work = Box::new(move || drop(sender.send(work())));
        let Some(longest_ns) = self.enqueue(mount, wait, Queued { work, ticket: ticket.clone() }) else {
            return Err(answer);
        };
        let from_ns = clock::monotonic_ns();
        let found = answer.recv_timeout(Duration::from_nanos(longest_ns));
        let mut state = self.shared.lock();
        if wait == Wait::Sampling {
            state.allowance.spend(clock::monotonic_ns().saturating_sub(from_ns));
        }
        // A thread that has answered marks that only with the lock held.
        match found.or_else(|_| answer.try_recv()) {
            Ok(found) => Ok(found),
            Err(_) => {
                ticket.is_late.store(true, Ordering::Relaxed);
                drop(state);
                Err(answer)
            }
        }
    }

    /// Queues work; returns how long its answer may be waited for (ns), and nothing if it was refused.
    fn enqueue(&self, mount: &Mount, wait: Wait, queued: Queued) -> Option<u64> {
        let now_ns = clock::monotonic_ns();
        let mut state = self.shared.lock();
        let is_stalled = state.is_stalled(mount, now_ns);
        let longest_ns = match wait {
            _ if is_stalled => 0,
            Wait::Sampling => state.allowance.left(now_ns),
            Wait::Naming => NAMING_WAIT_NS,
        };
        let is_new = !state.mounts.contains_key(mount);
        if is_new && (state.ready.len() >= MOST_QUEUED || state.has_too_many(&self.own, now_ns)) {
            return None;
        }
        match state.mounts.get_mut(mount) {
            Some(queue) if queue.queued.len() >= MOST_QUEUED => return None,
            Some(queue) => queue.queued.push_back(queued),
            None => {
                let queue = MountQueue { queued: VecDeque::from([queued]), running: None };
                state.mounts.insert(mount.clone(), queue);
                state.ready.push_back(mount.clone());
                self.shared.find_thread(&mut state);
                if state.threads == 0 {
                    state.ready.clear();
                    state.mounts.clear();
                    return None;
                }
            }
        }
        Some(longest_ns)
    }

    /// Whether this mount has not answered for longer than anything may take.
    pub(crate) fn is_stalled(&self, mount: &Mount) -> bool {
        self.shared.lock().is_stalled(mount, clock::monotonic_ns())
    }

    /// For how long this mount has not answered (ns), if that is longer than anything may take; otherwise 0.
    pub(crate) fn stalled_ns(&self, mount: &Mount) -> u64 {
        let (state, now_ns) = (self.shared.lock(), clock::monotonic_ns());
        state.mounts.get(mount).map_or(0, |queue| queue.stalled_ns(now_ns))
    }

    /// Sampling begins: from now on, waiting for long loses samples.
    pub(crate) fn sampling_begins(&self) {
        let mut state = self.shared.lock();
        state.allowance.left_ns = state.allowance.left_ns.min(LONGEST_WAIT_NS);
    }

    /// Answers that came when this target did not wait for them any more.
    pub(crate) fn late_answers(&self) -> u64 {
        self.own.late_answers.load(Ordering::Relaxed)
    }

    /// CPU time that the work of this target took (ns).
    pub(crate) fn cpu_ns(&self) -> u64 {
        self.own.cpu_ns.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a thread serve what is ready. If there are too many, one that ends its work does.
    fn find_thread(self: &Arc<Self>, state: &mut State) {
        if state.idle >= state.ready.len() {
            self.has_work.notify_one();
        } else if state.threads < MOST_THREADS {
            let shared = Arc::clone(self);
            let thread = thread::Builder::new().name("files".to_owned()).spawn(move || shared.serve());
            match thread {
                Ok(_) => state.threads += 1,
                Err(error) => {
                    tracing::warn!("no thread to open files with ({error}): raise the limit of tasks")
                }
            }
        }
    }

    fn serve(&self) {
        let mut state = self.lock();
        loop {
            let Some(mount) = state.ready.pop_front() else {
                state.idle += 1;
                let woken = self.has_work.wait_timeout(state, IDLE);
                let (next, timeout) = woken.unwrap_or_else(PoisonError::into_inner);
                state = next;
                state.idle -= 1;
                if timeout.timed_out() && state.ready.is_empty() && state.threads > 1 {
                    state.threads -= 1;
                    return;
                }
                continue;
            };
            while let Some(Queued { work, ticket }) = state.begin(&mount) {
                drop(state);
                let before_ns = clock::thread_cpu_ns();
                work();
                let took_ns = clock::thread_cpu_ns().saturating_sub(before_ns);
                ticket.client.cpu_ns.fetch_add(took_ns, Ordering::Relaxed);
                state = self.lock();
                if let Some(queue) = state.mounts.get_mut(&mount) {
                    queue.running = None;
                }
                if ticket.is_late.load(Ordering::Relaxed) {
                    ticket.client.late_answers.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
