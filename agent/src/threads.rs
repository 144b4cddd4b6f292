//! Threads as they come and go: each has a slot and a timer.

use core::ffi::c_void;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize};

use agent_memory::{Memory, SLOTS, SlotState};

use crate::announce::{self, How};
use crate::control::Using;
use crate::handler::MOST_STACK_BYTES;
use crate::stack::{self, ProvenStack, StackBounds};
use crate::{control, guard, handler, memory, sys};

/// What this process knows of the thread that has a slot. Not in shared memory, where anybody could change it.
pub(crate) struct Thread {
    /// Whether the timer runs.
    pub(crate) armed: AtomicBool,
    /// Handlers of its timer's signals that run at the moment.
    pub(crate) inside: AtomicU32,
    pub(crate) timer: AtomicI32,
    /// Its number, which may no longer be asked for when it ends.
    tid: AtomicU32,
    low: AtomicUsize,
    high: AtomicUsize,
    /// Whether its stack may be less than that, and what is known to be there.
    is_guessed: AtomicBool,
    proven: ProvenStack,
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
            inside: AtomicU32::new(0),
            timer: AtomicI32::new(-1),
            tid: AtomicU32::new(0),
            low: AtomicUsize::new(0),
            high: AtomicUsize::new(0),
            is_guessed: AtomicBool::new(false),
            proven: ProvenStack::new(),
            expires_ns: AtomicU64::new(0),
            interval_ns: AtomicU64::new(0),
            mean_ns: AtomicU64::new(0),
            fresh: AtomicU32::new(0),
            drawn_ns: AtomicU64::new(0),
            random: AtomicU64::new(0),
        }
    }

    /// Where its stack is. To be called by the thread itself: of one that was there before us, it is found the first time.
    #[inline]
    pub(crate) fn bounds(&self) -> StackBounds {
        if self.high.load(Relaxed) == 0 {
            self.find_bounds();
        }
        StackBounds { low: self.low.load(Relaxed), high: self.high.load(Relaxed) }
    }

    /// Bytes of its stack that can be read from `sp` on, as far as any are asked for. To be called by the thread itself.
    #[inline]
    pub(crate) fn readable(&self, sp: usize) -> usize {
        let readable = self.bounds().readable(sp);
        match self.is_guessed.load(Relaxed) && readable > 0 {
            true => self.proven.readable(sp, readable.min(MOST_STACK_BYTES as usize)),
            false => readable,
        }
    }

    #[cold]
    fn find_bounds(&self) {
        let is_first = sys::gettid() == sys::getpid();
        let bounds = if is_first { stack::first() } else { stack::of_running_thread() };
        self.proven.forget();
        self.set_bounds(StackBounds { high: bounds.high.max(1), ..bounds }); // and is not looked for again
        self.is_guessed.store(!is_first, Relaxed);
    }

    fn set_bounds(&self, bounds: StackBounds) {
        self.low.store(bounds.low, Relaxed);
        self.high.store(bounds.high, Relaxed);
        self.is_guessed.store(false, Relaxed);
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
            return; // the clock is the kernel's
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
        let mean_ns = memory.period_at_ns(sys::monotonic_ns());
        let interval_ns = self.draw_ns(mean_ns);
        let first_ns = sys::cpu_ns(sys::clock_of(tid)) + 1 + self.next_random() % interval_ns;
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

/// Slots from here on were never this process's: a child need not look at them.
static USED: AtomicUsize = AtomicUsize::new(0);

/// The key whose destructor tells the end of a thread, plus one; its value is a thread's slot, plus one.
static KEY: AtomicU32 = AtomicU32::new(0);

/// Threads that have had anything to do with this process.
fn used() -> &'static [Thread] {
    // ATOMICS: in one order with whether there is memory to be found, as the counts of handlers are.
    &THREADS[..USED.load(SeqCst).min(SLOTS)]
}

/// The one in this slot is about to.
fn use_to(index: usize) {
    USED.fetch_max(index + 1, SeqCst);
}

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
    forget_all();
    if let Some(bounds) = bounds {
        enter(bounds, Some(How::Forked));
    }
}

fn enter(bounds: StackBounds, begins: Option<How>) {
    let _using = Using::begin();
    let Some(memory) = memory::get() else { return };
    if guard::is_shut() {
        return memory.note_refused();
    }
    let (pid, tid) = (sys::getpid(), sys::gettid());
    memory::own(pid);
    sys::unblock(handler::signal());
    if memory.is_over(sys::monotonic_ns()) {
        return;
    }
    let Some((memory, index)) = memory::claim(pid, tid) else { return memory.note_left_out() };
    use_to(index);
    let (Some(slot), Some(thread)) = (memory.slot(index), get(index)) else { return };
    if let Some(how) = begins {
        announce::process(&slot, how); // before the handler writes to the ring, too
    }
    thread.set_bounds(bounds);
    thread.tid.store(tid, Relaxed);
    let timer = sys::timer_create(tid, handler::signal(), handler::value_of(index));
    thread.timer.store(timer.unwrap_or(-1), Relaxed);
    if timer.is_none() || !remember(index, tid) || !thread.start(&memory, tid) {
        memory.note_refused();
        stop(thread);
        slot.end();
    }
}

/// Samples a thread that runs already, and whose end nobody will tell: whoever looks from outside sees it.
fn enter_running(memory: &Memory<'_>, pid: u32, tid: u32) {
    let Some((memory, index)) = memory::claim(pid, tid) else { return memory.note_left_out() };
    use_to(index);
    let (Some(slot), Some(thread)) = (memory.slot(index), get(index)) else { return };
    stop(thread); // whoever had it before may have ended without a word
    thread.set_bounds(StackBounds::default());
    thread.tid.store(tid, Relaxed);
    let timer = sys::timer_create(tid, handler::signal(), handler::value_of(index));
    thread.timer.store(timer.unwrap_or(-1), Relaxed);
    if timer.is_none() || !thread.start(&memory, tid) {
        memory.note_refused();
        stop(thread);
        slot.end();
    }
}

/// Samples every thread that the process has.
pub(crate) fn enter_all(memory: &Memory<'_>) {
    let pid = sys::getpid();
    announce::each_thread(|tid| enter_running(memory, pid, tid));
}

/// Samples the calling thread, which has come since the others were entered, unless it was found among them. Called by a handler.
pub(crate) fn enter_latecomer(memory: &Memory<'_>) {
    if guard::is_shut() {
        return memory.note_refused();
    }
    let (pid, tid) = (sys::getpid(), sys::gettid());
    // That of a thread with the same number which has ended is given back, or about to be.
    let has_slot = |index| {
        let slot = memory.slot(index);
        slot.is_some_and(|slot| slot.owner() == Some((pid, tid)) && slot.state() == SlotState::Taken)
    };
    let is_own = |thread: &Thread| thread.armed.load(Acquire) && thread.tid.load(Relaxed) == tid;
    if used().iter().enumerate().any(|(index, thread)| is_own(thread) && has_slot(index)) {
        return;
    }
    enter_running(memory, pid, tid);
}

/// Whether a handler of any of our timers runs.
pub(crate) fn are_inside() -> bool {
    // ATOMICS: in one order with whether there is memory to be found.
    used().iter().any(|thread| thread.inside.load(SeqCst) > 0)
}

/// None is sampled any more.
pub(crate) fn stop_all() {
    used().iter().for_each(stop);
}

/// In another process than the one whose timers they were: there, their numbers may be those of others.
pub(crate) fn forget_all() {
    for thread in used() {
        thread.armed.store(false, Relaxed);
        thread.timer.store(-1, Relaxed);
        thread.inside.store(0, Relaxed);
    }
}

/// Bits of what a thread notes that are its slot's.
const SLOT_BITS: u32 = 24;

/// What a thread notes of its slot: its own id with it, since a slot that was given up while the profiler stood still is
/// another thread's by then.
fn noted(tid: u32, slot: usize) -> usize {
    (tid as usize) << SLOT_BITS | (slot + 1)
}

/// The slot that was noted, if it is still the thread's.
fn slot_of(noted: usize) -> Option<usize> {
    let slot = (noted & ((1 << SLOT_BITS) - 1)).checked_sub(1)?;
    get(slot).filter(|thread| thread.tid.load(Relaxed) as usize == noted >> SLOT_BITS).map(|_| slot)
}

fn remember(slot: usize, tid: u32) -> bool {
    let Some(key) = KEY.load(Acquire).checked_sub(1) else { return false };
    // SAFETY: the key was created; the value is a number and no pointer.
    unsafe { libc::pthread_setspecific(key, noted(tid, slot) as *const c_void) == 0 }
}

/// The calling thread's slot. In a process that we were loaded into none is noted: what a thread still has noted there was its
/// slot in the memory of the profiler that began the process.
fn own_slot() -> Option<usize> {
    if control::is_injected() {
        return None;
    }
    let key = KEY.load(Acquire).checked_sub(1)?;
    // SAFETY: the key was created.
    slot_of(unsafe { libc::pthread_getspecific(key) } as usize)
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
    let _using = Using::begin();
    if let (Some(index), Some(memory)) = (own_slot(), memory::get()) {
        memory.note_refused();
        forget();
        end(index, &memory);
    }
}

/// The calling thread, or all, can be sent no signal any more: their timers are taken away while that is possible.
pub(crate) fn stop_for_filter(all: bool) {
    let _using = Using::begin();
    let Some(memory) = memory::get() else { return };
    let own = own_slot();
    for (index, thread) in used().iter().enumerate() {
        if (all || own == Some(index)) && thread.armed.load(Relaxed) {
            memory.note_refused();
            stop(thread);
        }
    }
}

/// The program ends, and with it the calling thread: of the others nobody knows.
pub(crate) fn at_exit() {
    let _using = Using::begin();
    if let (Some(thread), Some(memory)) = (own_slot().and_then(get), memory::get()) {
        thread.note_unseen(&memory);
    }
}

/// The thread ends, in whatever way: called by the C library.
unsafe extern "C" fn leave(value: *mut c_void) {
    let Some(index) = slot_of(value as usize) else { return };
    let _using = Using::begin();
    // To an injected agent the slot is another's: see `own_slot`.
    if let Some(memory) = memory::get().filter(|_| !control::is_injected()) {
        end(index, &memory);
    }
}

fn end(index: usize, memory: &Memory<'_>) {
    let Some(thread) = get(index) else { return };
    thread.note_unseen(memory);
    if guard::may_stop_timers() {
        stop(thread);
    }
    thread.armed.store(false, Release);
    if let Some(slot) = memory.slot(index) {
        // It may have been given up, and be another's; or this is a copy of the process that nobody has told us of.
        let pid = if guard::may_stop_timers() { sys::getpid() } else { memory::own_pid() };
        slot.end_of(pid, thread.tid.load(Relaxed));
    }
}
