//! Threads as they come and go: each has a slot and a timer.

use core::ffi::c_void;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize};

use agent_memory::{Memory, SLOTS};

use crate::announce::{self, How};
use crate::stack::{self, Bounds};
use crate::{guard, handler, memory, sys};

/// What this process knows of the thread that has a slot. Not in shared memory, where anybody could change it.
pub(crate) struct Thread {
    /// Whether the timer runs.
    pub(crate) armed: AtomicBool,
    pub(crate) timer: AtomicI32,
    low: AtomicUsize,
    high: AtomicUsize,
    /// When the timer expires next, on the thread's CPU clock, as it was set (ns).
    pub(crate) expires_ns: AtomicU64,
    /// The interval that is set, and the mean that it was drawn around (ns).
    pub(crate) interval_ns: AtomicU64,
    pub(crate) mean_ns: AtomicU64,
    /// Samples since it was drawn, and when that was (monotonic clock, ns).
    pub(crate) fresh: AtomicU32,
    pub(crate) drawn_ns: AtomicU64,
    pub(crate) random: AtomicU64,
}

impl Thread {
    const fn new() -> Self {
        Self {
            armed: AtomicBool::new(false),
            timer: AtomicI32::new(-1),
            low: AtomicUsize::new(0),
            high: AtomicUsize::new(0),
            expires_ns: AtomicU64::new(0),
            interval_ns: AtomicU64::new(0),
            mean_ns: AtomicU64::new(0),
            fresh: AtomicU32::new(0),
            drawn_ns: AtomicU64::new(0),
            random: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(crate) fn bounds(&self) -> Bounds {
        Bounds { low: self.low.load(Relaxed), high: self.high.load(Relaxed) }
    }

    fn set_bounds(&self, bounds: Bounds) {
        self.low.store(bounds.low, Relaxed);
        self.high.store(bounds.high, Relaxed);
    }

    /// Draws an interval within a quarter of the mean, never the same twice in a row for long: no program keeps its time.
    #[inline]
    pub(crate) fn draw_ns(&self, mean_ns: u64) -> u64 {
        let spread = mean_ns / 2;
        mean_ns - spread / 2 + self.next_random() % (spread + 1)
    }

    /// Marsaglia's xorshift.
    #[inline]
    fn next_random(&self) -> u64 {
        let mut x = self.random.load(Relaxed);
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.store(x, Relaxed);
        x
    }

    /// Tells what a sample stood for that no tick has come in time for, once the thread is over.
    fn note_unseen(&self, memory: &Memory<'_>) {
        if guard::is_shut() || !self.armed.load(Relaxed) {
            return;
        }
        let (due_ns, interval_ns) = (self.expires_ns.load(Relaxed), self.interval_ns.load(Relaxed).max(1));
        if let Some(late_ns) = sys::thread_cpu_ns().checked_sub(due_ns) {
            memory.note_unseen((late_ns / interval_ns + 1) * interval_ns);
        }
    }

    /// Sets the timer. The first time, the beginning of the thread falls anywhere into the interval: so what is sampled of
    /// threads that live for less than one is their share, whatever they do.
    fn start(&self, memory: &Memory<'_>, tid: u32) -> bool {
        let seed = memory.seed() ^ u64::from(tid).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.random.store(seed.max(1), Relaxed);
        for _ in 0..4 {
            self.next_random(); // seeds of neighbours differ in few bits
        }
        let mean_ns = memory.period_ns().max(1);
        let interval_ns = self.draw_ns(mean_ns);
        let first_ns = sys::thread_cpu_ns() + 1 + self.next_random() % interval_ns;
        self.expires_ns.store(first_ns, Relaxed);
        self.interval_ns.store(interval_ns, Relaxed);
        self.mean_ns.store(mean_ns, Relaxed);
        self.fresh.store(0, Relaxed);
        self.drawn_ns.store(sys::monotonic_ns(), Relaxed);
        self.armed.store(true, Release);
        sys::timer_settime(self.timer.load(Relaxed), first_ns, interval_ns)
    }
}

static THREADS: [Thread; SLOTS] = [const { Thread::new() }; SLOTS];

/// The key whose destructor tells the end of a thread, plus one; its value is a thread's slot, plus one.
static KEY: AtomicU32 = AtomicU32::new(0);

/// What is known of the thread with this slot.
#[inline]
pub(crate) fn get(slot: usize) -> Option<&'static Thread> {
    THREADS.get(slot)
}

/// Has the end of threads told.
pub(crate) fn make_key() {
    let mut key = 0;
    // SAFETY: the pointer is valid for the call, and the destructor takes any value.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(leave)) } == 0 {
        KEY.store(key + 1, Release);
    }
}

/// Samples the first thread of a program.
pub(crate) fn enter_first(how: How) {
    enter(stack::first(), Some(how));
}

/// Samples the calling thread, whose stack has this size.
pub(crate) fn enter_new(stack_size: usize) {
    enter(stack::of_thread(stack_size), None);
}

/// In the child of a fork: its only thread goes on where the parent's was. None of the parent's timers is its.
pub(crate) fn enter_child() {
    let bounds = own_slot().and_then(get).map(Thread::bounds);
    forget();
    THREADS.iter().for_each(|thread| thread.armed.store(false, Relaxed));
    if let Some(bounds) = bounds {
        enter(bounds, Some(How::Forked));
    }
}

fn enter(bounds: Bounds, begins: Option<How>) {
    let Some(memory) = memory::get() else { return };
    if guard::is_shut() {
        return memory.note_refused();
    }
    let (pid, tid) = (sys::getpid(), sys::gettid());
    memory::own(pid);
    sys::unblock(handler::signal());
    let Some(index) = memory.claim(pid, tid) else { return memory.note_left_out() };
    let (Some(slot), Some(thread)) = (memory.slot(index), get(index)) else { return };
    if let Some(how) = begins {
        announce::process(&slot, how); // before the handler writes to the ring, too
    }
    thread.set_bounds(bounds);
    let timer = sys::timer_create(handler::signal(), handler::value_of(index));
    thread.timer.store(timer.unwrap_or(-1), Relaxed);
    if timer.is_none() || !remember(index) || !thread.start(&memory, tid) {
        memory.note_refused();
        stop(thread);
        slot.end();
    }
}

fn remember(slot: usize) -> bool {
    let Some(key) = KEY.load(Acquire).checked_sub(1) else { return false };
    // SAFETY: the key was created; the value is a number and no pointer.
    unsafe { libc::pthread_setspecific(key, (slot + 1) as *const c_void) == 0 }
}

/// The calling thread's slot.
fn own_slot() -> Option<usize> {
    let key = KEY.load(Acquire).checked_sub(1)?;
    // SAFETY: the key was created.
    (unsafe { libc::pthread_getspecific(key) } as usize).checked_sub(1)
}

/// The parent's slot is no child's.
fn forget() {
    if let Some(key) = KEY.load(Acquire).checked_sub(1) {
        // SAFETY: the key was created.
        unsafe { libc::pthread_setspecific(key, core::ptr::null()) };
    }
}

fn stop(thread: &Thread) {
    thread.armed.store(false, Release); // a signal that is on its way finds nothing to do
    let timer = thread.timer.swap(-1, Relaxed);
    if timer >= 0 {
        sys::timer_delete(timer);
    }
}

/// The calling thread is sampled no longer.
pub(crate) fn leave_out() {
    if let (Some(index), Some(memory)) = (own_slot(), memory::get()) {
        memory.note_refused();
        forget();
        end(index, &memory);
    }
}

/// The program ends, and with it the calling thread: of the others nobody knows.
pub(crate) fn at_exit() {
    if let (Some(thread), Some(memory)) = (own_slot().and_then(get), memory::get()) {
        thread.note_unseen(&memory);
    }
}

/// The thread ends, in whatever way: called by the C library.
unsafe extern "C" fn leave(value: *mut c_void) {
    let Some(index) = (value as usize).checked_sub(1) else { return };
    if let Some(memory) = memory::get() {
        end(index, &memory);
    }
}

fn end(index: usize, memory: &Memory<'_>) {
    let Some(thread) = get(index) else { return };
    thread.note_unseen(memory);
    if !guard::is_shut() {
        stop(thread);
    }
    thread.armed.store(false, Release);
    if let Some(slot) = memory.slot(index) {
        slot.end_of(sys::getpid(), sys::gettid()); // it may have been given up, and be another's
    }
}
